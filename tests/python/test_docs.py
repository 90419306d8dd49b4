"""Every example in the documentation and in docstrings says what really happens."""
from __future__ import annotations

import doctest
import importlib
import importlib.util
import pathlib

import pytest
from test_audit import llama

ROOT = pathlib.Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "python").glob("*.md"))
MODULES = ["rootdk", "rootdk.theory", "rootdk._lab", "rootdk._conform"]
NEEDS_TORCH = {"torch.md", "watch.md", "tutorial.md", "conform.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages(page, tmp_path, monkeypatch):
    if page.name in NEEDS_TORCH and not importlib.util.find_spec("torch"):
        pytest.skip("needs torch")
    monkeypatch.chdir(tmp_path)
    names = {"EXAMPLES": str(ROOT / "examples" / "python"), "MODEL": str(llama(tmp_path / "model", growth=30.0))}
    result = doctest.testfile(str(page), module_relative=False, encoding="utf-8", globs=names,
                              optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0 and result.failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_every_public_name_is_documented():
    import rootdk

    text = "\n".join(page.read_text() for page in PAGES)
    assert [name for name in rootdk.__all__ if not name.startswith("_") and f"{name}" not in text] == []


def test_the_readme_s_lines_print_what_it_says(capsys):
    import re

    text = (ROOT / "README.md").read_text()
    code, said = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", text, re.S).groups()
    exec(code, {})
    assert capsys.readouterr().out == said
