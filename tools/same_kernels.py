#!/usr/bin/env python3
"""Whether CUDA kernels are the same as at another commit, without a GPU: compiles every .cu of both to machine code and
compares the kernels byte by byte, whatever they and their files are called. For changes that move code about and must
not change a bit, nor a cycle.

usage: tools/same_kernels.py COMMIT [PART]        (nvcc on the PATH; some minutes)
       PART: only sources whose path under src/cuda has this in it, as hopper/backward
"""

from __future__ import annotations

import collections
import hashlib
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
from typing import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent


def machine_code_of(source: pathlib.Path, tree: pathlib.Path, scratch: pathlib.Path) -> bytes:
    arch = "sm_90a" if "hopper" in source.relative_to(tree).as_posix() else "sm_80"
    out = scratch / "kernels.cubin"
    subprocess.run(
        [
            "nvcc",
            "-cubin",
            "-std=c++20",
            "-O3",
            "-diag-suppress",
            "554",
            f"-arch={arch}",
            f"-I{tree}/include",
            f"-I{tree}/src",
            f"-I{scratch}/include",
            str(source),
            "-o",
            str(out),
        ],
        check=True,
    )
    return out.read_bytes()


def code_sections(elf: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and contents of the sections of an ELF file that hold a kernel's instructions."""
    (table,) = struct.unpack_from("<Q", elf, 40)
    size, count, names_at = struct.unpack_from("<HHH", elf, 58)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    names = headers[names_at][4]
    for name, _, _, _, offset, length in headers:
        text = elf[names + name : elf.index(b"\0", names + name)].decode()
        if text.startswith(".text."):
            yield text[len(".text.") :], elf[offset : offset + length]


def kernels(tree: pathlib.Path, scratch: pathlib.Path, part: str) -> collections.Counter[tuple[str, str]]:
    """Each kernel's instructions, as a digest, with its name as far as a person can read it."""
    version = re.sub(r"@\w+@", "0", (tree / "cmake/version.h.in").read_text())
    (scratch / "include/rootdk").mkdir(parents=True, exist_ok=True)
    (scratch / "include/rootdk/version.h").write_text(version)
    found: collections.Counter[tuple[str, str]] = collections.Counter()
    for source in sorted((tree / "src/cuda").rglob("*.cu")):
        if part not in source.relative_to(tree / "src/cuda").as_posix():
            continue
        print(f"  {source.relative_to(tree)}", file=sys.stderr)
        for symbol, code in code_sections(machine_code_of(source, tree, scratch)):
            name = max(re.findall(r"\d+([a-z_]+)", symbol), key=len, default="?")
            found[hashlib.sha256(code).hexdigest(), name] += 1
    return found


def main() -> int:
    if len(sys.argv) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    part = sys.argv[2] if len(sys.argv) > 2 else ""
    with tempfile.TemporaryDirectory() as folder:
        before, scratch = pathlib.Path(folder) / "before", pathlib.Path(folder) / "scratch"
        subprocess.run(
            ["git", "-C", str(ROOT), "worktree", "add", "--quiet", "--detach", str(before), sys.argv[1]], check=True
        )
        try:
            old, new = kernels(before, scratch, part), kernels(ROOT, scratch, part)
        finally:
            subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(before)], check=True)
    gone, come = [collections.Counter({digest: count for (digest, _), count in side.items()}) for side in (old, new)]
    same = sum((gone & come).values())
    names = dict([*old, *new])
    for what, only in (("only before", gone - come), ("only now", come - gone)):
        for digest, count in sorted(only.items(), key=lambda item: names[item[0]]):
            print(f"{what}: {names[digest]}" + (f", {count} times" if count > 1 else ""))
    gone_for_good, new_here = sum((gone - come).values()), sum((come - gone).values())
    print(f"{same} kernels are the same, {gone_for_good} are only before, {new_here} only now")
    return 0 if same and gone == come else 1


if __name__ == "__main__":
    sys.exit(main())
