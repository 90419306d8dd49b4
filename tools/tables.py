#!/usr/bin/env python3
"""What is made from the tables of statistics and of masks, include/rootdk/statistics.def and masks.def, beside what C
and C++ make of them themselves: the package's names and typed properties, and the tables of docs/statistics.md.

usage: tools/tables.py modules FOLDER     write the Python modules, _statistics.py and _masks.py
       tools/tables.py docs               write the tables into docs/statistics.md
       tools/tables.py check              whether they are as they should be; exits with 1 if not
       with --include FOLDER              the tables of another folder, include by default

The tables are read as compilers read them, by one: $CXX, or c++.
"""

from __future__ import annotations

import argparse
import difflib
import os
import pathlib
import re
import shlex
import subprocess
import sys
from typing import Iterator, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "statistics.md"
WIDTH = 120


class Statistic(NamedTuple):
    kind: str  #: head, basic_row, full_row or gradient
    level: str
    type: str
    name: str
    merges: str
    doc: str


#: An entry becomes `kind level type name merges "doc" ;`, of which the preprocessor fills in the names.
EMIT = """
#define ROOTDK_STATISTIC(level, type, name, value, merges, doc) @head level type name merges doc ;
#define ROOTDK_BASIC_ROW(name, doc) @basic_row basic real name recorded doc ;
#define ROOTDK_FULL_ROW(merges, name, value, doc) @full_row full real name merges doc ;
#define ROOTDK_GRADIENT(sign, name, doc) @gradient full real name sum doc ;
#include "rootdk/statistics.def"
"""


class PerItem(NamedTuple):
    """What a mask says of each batch item by a number."""

    name: str
    axis: str
    doc: str


EMIT_MASKS = """
#define ROOTDK_PER_ITEM(name, axis, words, doc) @name axis doc ;
#include "rootdk/masks.def"
"""


def entries(include: pathlib.Path, emit: str) -> Iterator[tuple[list[str], str]]:
    """The words of each and its line of documentation."""
    compiler = shlex.split(os.environ.get("CXX") or "c++")
    command = [*compiler, "-E", "-P", "-x", "c++", f"-I{include}", f"-I{ROOT / 'include'}", "-"]
    text = subprocess.run(command, input=emit, capture_output=True, encoding="utf-8", check=True).stdout
    for entry in re.findall(r'@((?:"(?:[^"\\]|\\.)*"|[^;"])*);', text):
        words, _, quoted = entry.partition('"')
        yield words.split(), "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', '"' + quoted))


def read(include: pathlib.Path) -> list[Statistic]:
    found = [Statistic(*words, doc) for words, doc in entries(include, EMIT)]
    if not found:
        raise SystemExit(f"{include}: no statistics in rootdk/statistics.def")
    return found


def read_masks(include: pathlib.Path) -> list[PerItem]:
    found = [PerItem(*words, doc) for words, doc in entries(include, EMIT_MASKS)]
    if not found:
        raise SystemExit(f"{include}: nothing in rootdk/masks.def")
    return found


# The Python modules ---------------------------------------------------------------------------------------------------
HEADER = '''"""Every statistic by its name: what there is, and properties with types, so that editors know them. Made by
tools/tables.py from include/rootdk/statistics.def."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy.typing as npt

Array = npt.NDArray[Any]


class Statistic(NamedTuple):
    name: str
    level: str  #: from which on there is it: "basic" or "full"
    type: str  #: "whole" (int64) or "real"
    merges: str
    doc: str


'''

CLASSES = (
    ("head", "HeadStatistics", "Array", "What the scores of a head did, each an array [batch, heads]."),
    ("row", "RowStatistics", "Any", "Statistics of every row, each [batch, heads, len_q], of those asked for."),
    ("gradient", "GradientStatistics", "Array", "What backward learned of a head, each an array [batch, heads]."),
)


def lines_of(name: str, values: list[str]) -> str:
    return f"{name} = (\n" + "".join(f"    {value},\n" for value in values) + ")\n"


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def module(table: list[Statistic]) -> str:
    heads = [f"Statistic({', '.join(map(quoted, (s.name, *s[1:3], *s[4:])))})" for s in table if s.kind == "head"]
    out = HEADER + lines_of("HEAD", heads)
    for variable, kind in (("BASIC_ROWS", "basic_row"), ("FULL_ROWS", "full_row"), ("GRADIENTS", "gradient")):
        out += lines_of(variable, [quoted(s.name) for s in table if s.kind == kind])
    for kind, name, type_, doc in CLASSES:
        out += f'\n\nclass {name}:\n    """{doc}"""\n\n'
        out += f"    def _column(self, name: str) -> {type_}:\n        raise NotImplementedError\n"
        for s in table:
            if s.kind.endswith(kind):
                out += f'\n    @property\n    def {s.name}(self) -> {type_}:\n        """{s.doc}"""\n'
                out += f"        return self._column({quoted(s.name)})\n"
    return out


MASKS = '''"""What a mask says of each batch item by a number. Made by tools/tables.py from include/rootdk/masks.def."""

from __future__ import annotations

from typing import NamedTuple


class PerItem(NamedTuple):
    name: str
    axis: str  #: "q" or "kv", along which it counts
    doc: str


'''


def masks_module(masks: list[PerItem]) -> str:
    return MASKS + lines_of("PER_ITEM", [f"PerItem({', '.join(map(quoted, field))})" for field in masks])


# The page's tables ----------------------------------------------------------------------------------------------------
def spoken(merges: str) -> str:
    if merges == "again":
        return "worked out again"
    what, by, weight = merges.partition("_by_")
    return what.replace("_", " ") + (f", by {weight}" if by else "")


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def tables(table: list[Statistic]) -> dict[str, str]:
    """By the name of the mark that stands before each."""

    def rows(head: str, kinds: tuple[str, ...], line: str) -> str:
        body = [
            line.format(s.name, s.level, "int64" if s.type == "whole" else "f64", spoken(s.merges), cell(s.doc))
            for s in table
            if s.kind in kinds and s.merges != "error"  # the page says that each mean has its own
        ]
        return "\n".join([head, "|" + "---|" * (head.count("|") - 1), *body]) + "\n"

    return {
        "heads": rows("| name | level | type | merges | what it is |", ("head",), "| `{0}` | {1} | {2} | {3} | {4} |"),
        "rows": rows("| name | level | what it is |", ("basic_row", "full_row"), "| `{0}` | {1} | {4} |"),
        "gradients": rows("| name | what it is |", ("gradient",), "| `{0}` | {4} |"),
    }


def page_with(text: str, table: list[Statistic]) -> str:
    for name, new in tables(table).items():
        begin, end = f"<!-- statistics: {name} -->\n", "<!-- end -->"
        before, found, rest = text.partition(begin)
        if not found or end not in rest:
            raise SystemExit(f"{PAGE.relative_to(ROOT)}: no {begin.strip()} … {end}")
        text = before + begin + "\n" + new + "\n" + end + rest.partition(end)[2]
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("modules", "docs", "check"))
    parser.add_argument("folder", nargs="?", type=pathlib.Path)
    parser.add_argument("--include", type=pathlib.Path, default=ROOT / "include")
    given = parser.parse_args()
    if (given.what == "modules") != (given.folder is not None):
        parser.error("a folder goes with modules, and with nothing else")
    table = read(given.include)
    if given.what == "modules":
        for name, text in (("_statistics", module(table)), ("_masks", masks_module(read_masks(given.include)))):
            path = given.folder / f"{name}.py"
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                path.write_text(text, encoding="utf-8")
        return 0
    old = PAGE.read_text(encoding="utf-8")
    new = page_with(old, table)
    if given.what == "docs":
        PAGE.write_text(new, encoding="utf-8")
    elif new != old:
        sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), new.splitlines(True), str(PAGE), "the table"))
        print("tools/tables.py docs writes them")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
