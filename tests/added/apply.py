"""Copies of the files that docs/architecture.md shows diffs of, with those diffs applied.

usage: apply.py FOLDER NAME...        (NAME as the page has it; written to FOLDER without include/ or src/ before it)
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def hunks(page, name):
    """(what was, what is) for each run of lines; @@ is between those of a file."""
    for diff in re.findall(rf"^\+\+\+ {re.escape(name)}\n((?:(?!---|```).*\n)+)", page, re.MULTILINE):
        for hunk in diff.split("@@\n"):
            lines = hunk.splitlines()
            yield [x[1:] for x in lines if x[0] in " -"], [x[1:] for x in lines if x[0] in " +"]


def main():
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    folder = pathlib.Path(sys.argv[1])
    for name in sys.argv[2:]:
        text = (ROOT / name).read_text(encoding="utf-8")
        found = list(hunks(page, name))
        if not found:
            raise SystemExit(f"docs/architecture.md: no diff of {name}")
        for old, new in found:
            before, after = ("\n".join(lines) + "\n" for lines in (old, new))
            if text.count(before) != 1:
                raise SystemExit(f"docs/architecture.md: {name} does not have once\n{before}")
            text = text.replace(before, after)
        path = folder / pathlib.Path(*pathlib.Path(name).parts[1:])
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


main()
