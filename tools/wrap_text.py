#!/usr/bin/env python3
"""Wraps prose at 120 columns where it is wider: paragraphs and lists of Markdown, comments of Python, CMake and shell,
docstrings. What clang-format does to the comments of C++, for the rest. Lines that fit stay as they are.

usage: tools/wrap_text.py [FILE...]        (all files of the repository, if none is named)
"""

from __future__ import annotations

import ast
import io
import pathlib
import re
import shutil
import sys
import tokenize
from typing import Callable

from check_docs import ROOT, WIDTH, code_lines
from check_source import listed

#: At the beginning of a line Markdown takes these for something else.
MARKER = re.compile(r"([-+*#>|=]+|\d+[.)]).?$")
LIST_ITEM = re.compile(r"(\s*)(?:[-*+]|\d+\.)\s+")
#: Comments that tools read where they stand.
DIRECTIVE = re.compile(r"#\s*(noqa|type:|fmt:|ruff:|!)")


def beginning(pattern: str | re.Pattern[str], line: str) -> str:
    found = re.match(pattern, line)
    return found.group() if found else ""


def words_of(text: str) -> list[str]:
    """Split at spaces, but not inside of short `code`, nor before what would begin a line wrongly."""
    words: list[str] = []
    inside = False
    for part in text.split(" "):
        glued = inside and words and len(words[-1]) < WIDTH // 2
        if glued or (words and MARKER.match(part)):
            words[-1] += " " + part
        elif part:
            words.append(part)
        if part.count("`") % 2:
            inside = not inside
    return words


def filled(text: str, first: str, rest: str) -> list[str]:
    """The text in lines that begin with `first`, then `rest`."""
    lines, line = [], first
    for word in words_of(text):
        empty = line in (first, rest) and (len(lines) == 0) == (line == first)
        if not empty and len(line) + 1 + len(word) > WIDTH:
            lines.append(line)
            line = rest + word
        else:
            line += word if empty else " " + word
    return [*lines, line]


def wrapped_markdown(text: str) -> str:
    lines = text.split("\n")
    out: list[str] = []
    block: list[str] = []

    def close() -> None:
        if any(len(line) > WIDTH for line in block) and not any(line.endswith("  ") for line in block):
            first = beginning(LIST_ITEM, block[0]) or beginning(r"\s*", block[0])
            whole = " ".join(line.strip() for line in [block[0][len(first) :], *block[1:]])
            out.extend(filled(whole, first, " " * len(first)))
        else:
            out.extend(block)
        block.clear()

    for line, code in zip(lines, code_lines(lines)):
        if code or not line.strip() or re.match(r"\s*[|#<>]", line):
            close()
            out.append(line)
            continue
        if LIST_ITEM.match(line):
            close()
        block.append(line)
    close()
    return "\n".join(out)


def spill(lines: list[str], at: int, first: str, rest: str, continues: bool) -> None:
    """Cuts a line that is too wide and begins with `first`; what is left over goes before the next line, or becomes
    one."""
    cut = filled(lines[at][len(first) :], first, rest)
    if len(cut) < 2:
        return
    left = rest + " ".join(line[len(rest) :] for line in cut[1:])
    lines[at] = cut[0]
    if continues:
        lines[at + 1] = left + " " + lines[at + 1][len(rest) :]
    else:
        lines.insert(at + 1, left)


def wrapped_comments(lines: list[str], is_comment: list[bool]) -> list[str]:
    """Comments that have their lines to themselves."""
    out, own = list(lines), list(is_comment)
    at = 0
    while at < len(out):
        if own[at] and len(out[at]) > WIDTH and not DIRECTIVE.search(out[at]):
            prefix = beginning(r"\s*#:? ?", out[at])
            following = out[at + 1] if at + 1 < len(out) and own[at + 1] else ""
            before = len(out)
            spill(out, at, prefix, prefix, bool(beginning(re.escape(prefix) + r"(?!usage:)[^\s#-]", following)))
            own[at + 1 : at + 1] = [True] * (len(out) - before)
        at += 1
    return out


def wrapped_shell(text: str) -> str:
    lines = text.split("\n")
    return "\n".join(wrapped_comments(lines, [re.match(r"\s*# ", line) is not None for line in lines]))


def wrapped_docstrings(text: str) -> str:
    lines = text.split("\n")
    nodes = [n for n in ast.walk(ast.parse(text)) if isinstance(n, (ast.Module, ast.ClassDef, ast.FunctionDef))]
    found = [n.body[0] for n in nodes if ast.get_docstring(n) is not None]
    for doc in sorted(found, key=lambda n: -n.lineno):
        at, end = doc.lineno - 1, (doc.end_lineno or doc.lineno) - 1
        while at <= end:
            if len(lines[at]) > WIDTH and not beginning(r"\s*(>>>|\.\.\.) ", lines[at]):
                margin = " " * doc.col_offset if at == doc.lineno - 1 else beginning(r"\s*", lines[at])
                hanging = beginning(LIST_ITEM, lines[at]) or beginning(r"\s*\S+ {2,}", lines[at])  # an item, a column
                first, rest = hanging or margin, " " * len(hanging) or margin
                following = lines[at + 1] if at < end else ""
                before = len(lines)
                spill(lines, at, first, rest, bool(beginning(re.escape(rest) + r'(?!usage:)[^\s"-]', following)))
                end += len(lines) - before
            at += 1
    return "\n".join(lines)


def wrapped_python(text: str) -> str:
    lines = text.split("\n")
    own = [False] * len(lines)
    moved: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        row, column = token.start[0] - 1, token.start[1]
        if not lines[row][:column].strip():
            own[row] = True
        elif len(lines[row]) > WIDTH and not DIRECTIVE.match(token.string):
            moved[row] = token.string
            lines[row] = lines[row][:column].rstrip()
    for row in sorted(moved, reverse=True):  # what stood behind a line that is too wide stands above it
        lines.insert(row, beginning(r"\s*", lines[row]) + moved[row])
        own.insert(row, True)
    return wrapped_docstrings("\n".join(wrapped_comments(lines, own)))


def wrapper_of(path: pathlib.Path) -> Callable[[str], str] | None:
    if path.suffix == ".md":
        return wrapped_markdown
    if path.suffix in (".py", ".pyi"):
        return wrapped_python
    if path.suffix in (".cmake", ".sh") or path.name in ("CMakeLists.txt", "run"):
        return wrapped_shell
    return None


def main() -> int:
    for path in [pathlib.Path(name) for name in sys.argv[1:]] or [ROOT / name for name in listed()]:
        wrap = wrapper_of(path)
        text = path.read_text(encoding="utf-8") if wrap else ""
        new = wrap(text) if wrap else ""
        if new != text:
            beside = path.with_name(path.name + ".new")  # a shell that runs the script reads on in the old one
            beside.write_text(new, encoding="utf-8")
            shutil.copymode(path, beside)
            beside.replace(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
