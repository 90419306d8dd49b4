#!/usr/bin/env python3
"""Whether CUDA kernels are the same as at another commit, without a GPU: compiles every .cu of both to PTX and compares
the kernels, whatever they and their files are called. For changes that move code about and must not change a bit.

usage: tools/same_kernels.py COMMIT        (nvcc on the PATH; some minutes)
"""

from __future__ import annotations

import collections
import hashlib
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
#: Names: of functions and variables, and labels inside of functions.
NAMES = re.compile(r"[\w$]*_Z[\w$]+|_INTERNAL_[\w$]+|__nv_static[\w$]+|\$L__BB[\d_]+|__cudart[\w$]+")


def ptx_of(source: pathlib.Path, tree: pathlib.Path, scratch: pathlib.Path) -> str:
    arch = "sm_90a" if "hopper" in source.relative_to(tree).as_posix() else "sm_80"
    out = scratch / "kernel.ptx"
    subprocess.run(
        [
            "nvcc",
            "-ptx",
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
    return out.read_text()


def kernels(tree: pathlib.Path, scratch: pathlib.Path) -> collections.Counter[tuple[str, str]]:
    """Each kernel's text, as a digest, with its name as far as a person can read it."""
    version = re.sub(r"@\w+@", "0", (tree / "cmake/version.h.in").read_text())
    (scratch / "include/rootdk").mkdir(parents=True, exist_ok=True)
    (scratch / "include/rootdk/version.h").write_text(version)
    found: collections.Counter[tuple[str, str]] = collections.Counter()
    for source in sorted((tree / "src/cuda").rglob("*.cu")):
        print(f"  {source.relative_to(tree)}", file=sys.stderr)
        text = re.sub(r"//[^\n]*", "", ptx_of(source, tree, scratch))
        for entry in text.split(".entry")[1:]:
            name = max(re.findall(r"\d+([a-z_]+)", entry.split("(")[0]), key=len, default="?")
            digest = hashlib.sha256(" ".join(NAMES.sub("NAME", entry).split()).encode()).hexdigest()
            found[digest, name] += 1
    return found


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        before, scratch = pathlib.Path(folder) / "before", pathlib.Path(folder) / "scratch"
        subprocess.run(
            ["git", "-C", str(ROOT), "worktree", "add", "--quiet", "--detach", str(before), sys.argv[1]], check=True
        )
        try:
            old, new = kernels(before, scratch), kernels(ROOT, scratch)
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
    return 0 if gone == come else 1


if __name__ == "__main__":
    sys.exit(main())
