#!/usr/bin/env python3
"""Whether the documentation holds together: links and their anchors lead somewhere, files that it names are there,
lines have at most 120 columns (rows of tables may be longer, and what a program printed), performance.md is short.

usage: tools/check_docs.py        (prints what is wrong, a line each; exits with 1 if anything is)
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
from typing import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDTH = 120
#: What a program or a compiler reads, or printed, to the letter: examples/hello.cc and what the tests hold the README
#: to.
EXACT = {"README.md"}
LINK = re.compile(r"!?\[[^\]]*\]\(([^()\s]+)\)")
NAME = re.compile(r"`([\w./-]+/[\w.-]+\.(?:cc|cu|cuh|h|py|md|js|sh|svg|cmake|json))`")


class Page:
    def __init__(self, path: pathlib.Path):
        self.path = path
        self.lines = path.read_text(encoding="utf-8").split("\n")
        #: Of each line, whether it is code.
        self.code = list(code_lines(self.lines))

    def prose(self) -> str:
        return "\n".join("" if code else line for line, code in zip(self.lines, self.code))

    def anchors(self) -> set[str]:
        """As GitHub makes them of headings."""
        headings = (line.lstrip("#") for line, code in zip(self.lines, self.code) if line.startswith("#") and not code)
        return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def code_lines(lines: list[str]) -> Iterator[bool]:
    fenced, indented, before = False, False, ""
    for line in lines:
        if re.match(r"\s*```", line):
            fenced = not fenced
            yield True
        elif fenced:
            yield True
        else:
            indented = line.startswith("    ") and (indented or not before.strip())
            yield indented
        before = line


def pages() -> list[Page]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    return [Page(ROOT / name) for name in listed if (ROOT / name).exists()]


def wrong_links(page: Page, by_path: dict[pathlib.Path, Page]) -> Iterator[str]:
    for target in LINK.findall(page.prose()):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.path.parent / name).resolve() if name else page.path
        if not path.exists():
            yield f"{target}: nothing is there"
        elif anchor and path in by_path and anchor not in by_path[path].anchors():
            yield f"{target}: there is no such heading"


def wrong_names(page: Page) -> Iterator[str]:
    """Files of this repository that are named in backquotes, from its root or from a folder that pages speak of."""
    if page.path.name == "CHANGELOG.md":  # tells of what was
        return
    folders = (
        "",
        "src",
        "src/cuda",
        "src/cuda/hopper/forward",
        "include",
        "docs",
        "python",
        "python/rootdk",
        str(page.path.parent),
    )
    for name in NAME.findall(page.prose()):
        known = name.split("/")[0] in {
            *(x.name for x in ROOT.iterdir()),
            *(x.name for x in (ROOT / "src").iterdir()),
            *(x.name for x in (ROOT / "src/cuda").iterdir()),
        }
        if known and not any((ROOT / folder / name).exists() for folder in folders):
            yield f"`{name}`: there is no such file"


def wide_lines(page: Page) -> Iterator[str]:
    printed = page.path.name in EXACT or "notebook" in page.path.parts
    for number, (line, code) in enumerate(zip(page.lines, page.code), 1):
        if len(line) > WIDTH and not line.lstrip().startswith("|") and not (code and printed):
            yield f"line {number}: {len(line)} columns"


def main() -> int:
    found = pages()
    by_path = {page.path: page for page in found}
    complaints = [
        f"{page.path.relative_to(ROOT)}: {what}"
        for page in found
        for what in (*wrong_links(page, by_path), *wrong_names(page), *wide_lines(page))
    ]
    lines = len((ROOT / "docs/performance.md").read_text(encoding="utf-8").splitlines())
    if lines > 150:
        complaints.append(f"docs/performance.md: {lines} lines, but at most 150 are wanted (docs/notebook has room)")
    print("\n".join(complaints), end="\n" if complaints else "")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
