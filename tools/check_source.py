#!/usr/bin/env python3
"""Whether sources say what they are: the first line of every C, C++ and CUDA file is a comment; and whether they can be
read side by side: no line of code has more than 120 columns.

usage: tools/check_source.py        (prints what is wrong, a line each; exits with 1 if anything is)
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
from typing import Iterator

from check_docs import ROOT, WIDTH

COMPILED = {".c", ".cc", ".h", ".def", ".cu", ".cuh"}
#: ruff measures Python.
READ = {*COMPILED, ".cmake", ".sh", ".toml", ".yml"}
#: README shows it to the letter.
SHOWN = {"examples/hello.cc"}


def listed() -> list[str]:
    """The files of the repository, but for results that are kept."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    return [name for name in names if name and not name.startswith("bench/results/") and (ROOT / name).is_file()]


def is_source(name: str) -> bool:
    path = pathlib.Path(name)
    return path.suffix in READ or path.name in ("run", "CMakeLists.txt")


def complaints(name: str) -> Iterator[str]:
    lines = (ROOT / name).read_text(encoding="utf-8").split("\n")
    if pathlib.Path(name).suffix in COMPILED and not lines[0].startswith(("//", "/*")):
        yield f"{name}: the first line does not say what it is"
    for number, line in enumerate(lines, 1):
        if len(line) > WIDTH:
            yield f"{name}:{number}: {len(line)} columns"


def main() -> int:
    found = [what for name in listed() if is_source(name) and name not in SHOWN for what in complaints(name)]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
