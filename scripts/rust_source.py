"""Reads the source of the crates: code without comments, and product code apart from tests."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOKEN = re.compile(
    r"""
      (?P<comment>//[^\n]*|/\*.*?\*/)
    | (?P<raw>b?r(?P<hashes>\#*)".*?"(?P=hashes))
    | (?P<string>b?"(?:\\.|[^"\\])*")
    | (?P<char>b?'(?:\\(?:u\{[^}]*\}|x..|.)|[^'\\\n])')
    """,
    re.VERBOSE | re.DOTALL,
)
TEST_ITEM = re.compile(r"#\[cfg\((?:all\()?test\b[^\]]*\]")


def without_comments(text):
    """The code; a string keeps its lines and has no braces."""

    def plain(match):
        if match["comment"]:
            return ""
        return '"' + re.sub(r"[^\n]", "s", match[0])[1:-1] + '"' if len(match[0]) > 1 else match[0]

    return TOKEN.sub(plain, text)


def split_tests(code):
    """The code without the items under `#[cfg(test)]`, and these items."""
    tests = []
    while match := TEST_ITEM.search(code):
        end, depth = match.end(), 0
        while end < len(code):
            depth += {"{": 1, "(": 1, "[": 1, "}": -1, ")": -1, "]": -1}.get(code[end], 0)
            end += 1
            if depth == 0 and (code[end - 1] == ";" or code[end - 1] == "}"):
                break
        tests.append(code[match.start() : end])
        code = code[: match.start()] + code[end:]
    return code, "\n".join(tests)


def test_modules(path):
    """The files and directories of the modules that a file declares under `#[cfg(test)]`."""
    home = path.parent if path.stem in ("lib", "main", "mod") else path.with_suffix("")
    for attributes, name in re.findall(r"#\[cfg\(test\)\]\s*((?:#\[[^\]]*\]\s*)*)(?:pub(?:\([a-z]+\))? )?mod (\w+);", path.read_text()):
        given = re.search(r'#\[path = "([^"]+)"\]', attributes)
        yield path.parent / given[1] if given else home / f"{name}.rs"
        yield home / name
