#!/usr/bin/env python3
"""Whether two builds compute the same, bit by bit: compares what their dump_results wrote (tests/dump/results.cc). For
changes that move code or names about and must not change a number.

usage: build/release/bin/dump_results > before.txt; …; build/release/bin/dump_results > after.txt
       tools/same_results.py before.txt after.txt [OLD=NEW …]

OLD=NEW says that a statistic has a new name; with a slash in OLD, that this is how its path ended. Names that only one
side has are listed and, by themselves, no difference: what is derived may come and go. Anything else that differs is
one.
"""

from __future__ import annotations

import collections
import json
import sys
from collections.abc import Iterator
from typing import Any

ENVELOPE = ("format", "version", "kind")


def leaves(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    members = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else None
    if members is None:
        yield path, node
        return
    for name, value in members:
        if path or name not in ENVELOPE:
            yield from leaves(value, (*path, str(name)))


def new_name(leaf: tuple[str, ...], renamed: dict[str, str]) -> str:
    path = "/".join(renamed.get(part, part) for part in leaf)
    for old, new in renamed.items():
        if "/" in old and path.endswith(f"/{old}"):
            path = path[: -len(old)] + new
    return path


def read(path: str, renamed: dict[str, str]) -> dict[tuple[str, str], dict[str, str]]:
    """By seed with kernel and array, what it holds by name: the one digest, or every number of the JSON."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            seed, kernel, name, value = line.rstrip("\n").split(" ", 3)
            values = {"": value}
            if value.startswith("{"):
                values = {new_name(leaf, renamed): repr(number) for leaf, number in leaves(json.loads(value))}
            found[f"{seed} {kernel}", name] = values
    return found


def main() -> int:
    before_path, after_path, *pairs = sys.argv[1:]
    renamed = dict(pair.split("=", 1) for pair in pairs)
    before, after = read(before_path, renamed), read(after_path, {})
    different: collections.Counter[str] = collections.Counter()
    alone: collections.Counter[str] = collections.Counter()
    compared = 0
    if before.keys() != after.keys():
        print(f"{len(before.keys() ^ after.keys())} arrays are only in one of the two", file=sys.stderr)
        return 1
    for key, values in before.items():
        others = after[key]
        for name in values.keys() & others.keys():
            compared += 1
            if values[name] != others[name]:
                different[f"{key[1]} {name}".strip()] += 1
        for name in values.keys() ^ others.keys():
            place = "/".join("*" if part.isdigit() else part for part in name.split("/"))
            alone[f"{key[1]} {place}, {'before' if name in values else 'after'} only"] += 1
    for title, counts in (("only in one", alone), ("DIFFERENT", different)):
        for name, count in counts.most_common(40):
            print(f"{title}: {name} ({count} times)")
    problems = len({key[0].split()[0] for key in before})
    print(f"{problems} problems, {len(before)} arrays, {compared} values compared: {sum(different.values())} differ")
    return 1 if different or not compared else 0


if __name__ == "__main__":
    sys.exit(main())
