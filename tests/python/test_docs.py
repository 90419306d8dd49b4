"""Every example in the documentation and in docstrings runs as it stands, and says what really happens.

A page is run from top to bottom in a process of its own and in an empty directory, with nothing but what the page
itself defines; a docstring with nothing but what the docstring defines."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import json
import pathlib
import re
import subprocess
import sys

import pytest
import rootdk

ROOT = pathlib.Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "python").glob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.S | re.M)
HAS_TORCH = importlib.util.find_spec("torch") is not None

RUN = """
import doctest, json, sys
flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
result = doctest.testfile(sys.argv[1], module_relative=False, encoding="utf-8", globs={}, optionflags=flags)
json.dump([result.attempted, result.failed], open("result.json", "w"))
"""


def skip_without_torch(text):
    if "import torch" in text and not HAS_TORCH:
        pytest.skip("needs torch")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages(page, tmp_path):
    text = page.read_text(encoding="utf-8")
    skip_without_torch(text)
    done = subprocess.run([sys.executable, "-c", RUN, str(page)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    attempted, failed = json.loads((tmp_path / "result.json").read_text())
    assert failed == 0, done.stdout
    assert attempted == len(re.findall(r"^>>> ", text, re.M)) > 0


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.name)
def test_what_is_called_python_can_be_run(page):
    """A block is either a session, which test_pages runs, or a program: a signature is neither."""
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        if ">>> " in block:
            assert block.startswith(">>> "), block
        else:
            compile(block, str(page), "exec")
            assert page.name == "README.md" and page.parent == ROOT, "nobody runs this block"


PACKAGE = pathlib.Path(rootdk.__file__).parent
MODULES = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    result = doctest.testmod(importlib.import_module(name), globs={})
    assert result.attempted > 0 and result.failed == 0


def test_every_public_name_is_documented():
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [name for name in rootdk.__all__ if not name.startswith("_") and f"{name}" not in text] == []


def test_the_readme_s_lines_print_what_it_says(tmp_path):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code, said = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", text, re.S).groups()
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (said, "")
