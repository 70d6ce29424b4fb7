#!/usr/bin/env python3
"""Counts the lines of code of each crate: without blank lines and comments, product code and tests apart.

    scripts/count.py              prints the table that stands in docs/development.md
    scripts/count.py --files N    prints the N largest files of product code

Tests are what lies below `tests`, the test kit, and the items and modules under `#[cfg(test)]`.
"""

import argparse
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEST_CRATES = {"stepvault-testkit"}
TOKEN = re.compile(
    r"""
      (?P<comment>//[^\n]*)
    | (?P<raw>b?r(?P<hashes>\#*)".*?"(?P=hashes))
    | (?P<string>b?"(?:\\.|[^"\\])*")
    | (?P<char>b?'(?:\\(?:u\{[^}]*\}|x..|.)|[^'\\\n])')
    """,
    re.VERBOSE | re.DOTALL,
)
TEST_ITEM = re.compile(r"#\[cfg\((?:all\()?test\b[^\]]*\]")


def without_comments(text):
    """The code; a string keeps its lines and has no braces."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)

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


def lines(code):
    return sum(1 for line in code.splitlines() if line.strip())


def test_modules(path):
    """The files and directories of the modules that a file declares under `#[cfg(test)]`."""
    home = path.parent if path.stem in ("lib", "main", "mod") else path.with_suffix("")
    for attributes, name in re.findall(r"#\[cfg\(test\)\]\s*((?:#\[[^\]]*\]\s*)*)(?:pub(?:\([a-z]+\))? )?mod (\w+);", path.read_text()):
        given = re.search(r'#\[path = "([^"]+)"\]', attributes)
        yield path.parent / given[1] if given else home / f"{name}.rs"
        yield home / name


def count(path, tests):
    """Lines of product code and of tests in a file."""
    crate, *inner = path.relative_to(ROOT / "crates").parts
    code = without_comments(path.read_text())
    if crate in TEST_CRATES or inner[0] in ("tests", "benches") or not tests.isdisjoint({path, *path.parents}):
        return 0, lines(code)
    product, inside = split_tests(code)
    return lines(product), lines(inside)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=0)
    arguments = parser.parse_args()
    paths = sorted(ROOT.glob("crates/*/**/*.rs"))
    tests = {module for path in paths for module in test_modules(path)}
    files = {path: count(path, tests) for path in paths}
    if arguments.files:
        for path, (product, _) in sorted(files.items(), key=lambda entry: -entry[1][0])[: arguments.files]:
            print(f"{product:6} {path.relative_to(ROOT)}")
        return
    table = {}
    for path, (product, tests) in files.items():
        crate = table.setdefault(path.relative_to(ROOT / "crates").parts[0], [0, 0, 0])
        crate[0] += bool(product)
        crate[1] += product
        crate[2] += tests
    table["all"] = [sum(column) for column in zip(*table.values())]
    print("| Crate | Files | Product code | Tests |\n|---|---|---|---|")
    for crate, (number, product, tests) in table.items():
        print(f"| `{crate}` | {number} | {product:,} | {tests:,} |" if crate != "all" else f"| all | {number} | {product:,} | {tests:,} |")


if __name__ == "__main__":
    main()
