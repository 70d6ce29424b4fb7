"""The documents say what the package does."""

import ast
import inspect
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from conftest import PACKAGE, ROOT

import stepvault

CALLBACKS = sorted(path for path in (PACKAGE / "stepvault" / "callbacks").glob("*.py") if path.name[0] != "_")


@pytest.mark.parametrize("module", CALLBACKS, ids=lambda path: path.stem)
def test_the_guide_has_the_script_of_each_callback(module):
    document = ast.get_docstring(ast.parse(module.read_text()))
    script = textwrap.dedent(document.split("\n\n", 1)[1])
    compile(script, str(module), "exec")
    assert len(script.splitlines()) <= 25
    assert f"```python\n{script}\n```\n" in (ROOT / "docs" / "guides" / "python.md").read_text()


def test_the_reference_is_that_of_this_package():
    page = ROOT / "docs" / "reference" / "python.md"
    command = [Path(sys.executable).with_name("griffe2md"), "stepvault"]
    made = subprocess.run(command, cwd=PACKAGE, stdout=subprocess.PIPE, text=True, check=True).stdout
    headings = set(re.findall(r"^#+ `([\w.]+)`", made, re.MULTILINE))

    def link(found):
        # The book makes identifiers of headings without dots and capitals.
        text, name = found.groups()
        return f"[{text}](#{name.replace('.', '').lower()})" if name in headings else text

    made = re.sub(r"\[([^\[\]]*)\]\(#([\w.]+)\)", link, made)
    text = (
        f"# The Python package\n\n<!-- Generated from the docstrings by griffe2md; do not edit. -->\n\n{made.strip()}\n"
    )
    if os.environ.get("STEPVAULT_BLESS") == "1":
        page.write_text(text)
    assert page.read_text() == text, "STEPVAULT_BLESS=1 writes it anew"


def test_public_names_have_documents():
    for name in stepvault.__all__:
        value = getattr(stepvault, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), name


def test_asyncio_has_every_function():
    import stepvault.aio

    synchronous = {name for name in stepvault.__all__ if inspect.isfunction(getattr(stepvault, name))}
    # A context manager and a path need no event loop.
    assert synchronous - {"stage", "program"} <= set(vars(stepvault.aio))


def test_the_package_needs_nothing():
    names = {alias.name.split(".")[0] for path in Path(PACKAGE, "stepvault").glob("*.py") for alias in imports(path)}
    assert names <= set(sys.stdlib_module_names) | {"typing_extensions"}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from node.names
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield ast.alias(node.module)
