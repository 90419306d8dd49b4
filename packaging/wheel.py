#!/usr/bin/env python3
"""What is in a wheel, under which licenses, and whether it works where nothing but Python is.

usage: packaging/wheel.py licenses FOLDER        write the licenses of all that is linked in there, from where it came
       packaging/wheel.py describe WHEEL...      sizes, contents and licenses; exits with 1 if anything has no license
       packaging/wheel.py check PYTHON WHEEL...  install them into an empty environment without compilers, and use them
"""

from __future__ import annotations

import fnmatch
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from typing import NamedTuple, Optional

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCUMENTS, COMMON = pathlib.Path("/usr/share/doc"), pathlib.Path("/usr/share/common-licenses")


class Part(NamedTuple):
    """Somebody else's work that is in the wheel: `package` is Debian's, or PyPI's where `from_pypi`."""

    name: str
    license: str
    package: str
    how: str
    file: Optional[str] = None  #: the library, where it is one of its own
    texts: tuple[str, ...] = ()  #: licenses that Debian keeps in one place for all
    from_pypi: bool = False


PARTS = [
    Part("Highway", "Apache-2.0", "libhwy1", "a library", "libhwy*.so*", ("Apache-2.0",)),
    Part("fmt", "MIT", "libfmt9", "a library", "libfmt*.so*"),
    Part("libgomp", "GPL-3.0-or-later WITH GCC-exception-3.1", "libgomp1", "a library", "libgomp.so.1", ("GPL-3",)),
    Part("Eigen", "MPL-2.0", "libeigen3-dev", "compiled in", None, ("MPL-2.0",)),
    Part("JSON for Modern C++", "MIT", "nlohmann-json3-dev", "compiled in"),
    Part("CLI11", "BSD-3-Clause", "libcli11-dev", "compiled in"),
    Part("D3", "BSD-3-Clause", "node-d3", "in reports"),
    Part("nanobind (with robin-map, MIT)", "BSD-3-Clause", "nanobind", "compiled in", None, (), True),
]
CUDA = Part("CUDA runtime", "NVIDIA CUDA Toolkit EULA (cudart, redistributable)", "", "compiled in")


# Licenses -------------------------------------------------------------------------------------------------------------
def text_of(part: Part) -> str:
    if part.from_pypi:
        found = importlib.metadata.distribution(part.package)
        files = [file for file in found.files or [] if "licen" in str(file).lower()]
        texts = [pathlib.Path(str(found.locate_file(file))).read_text(encoding="utf-8") for file in files]
        # robin-map's headers carry its license.
        spec = importlib.util.find_spec(part.package)
        folder = pathlib.Path(str(spec and spec.origin)).parent
        for header in folder.glob("ext/robin_map/include/tsl/robin_map.h"):
            texts.append("robin-map\n\n" + header.read_text(encoding="utf-8").split("*/", 1)[0])
    else:
        texts = [(DOCUMENTS / part.package / "copyright").read_text(encoding="utf-8")]
        texts += [(COMMON / name).read_text(encoding="utf-8") for name in part.texts]
    return "\n\n".join(texts)


def licenses(folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        text = text_of(part)
        if len(text) < 200:
            sys.exit(f"{part.name}: no license was found")
        title = f"{part.name}: {part.license}, {part.how}"
        (folder / f"{part.package}.txt").write_text(f"{title}\n\n{text}", encoding="utf-8")


# Contents -------------------------------------------------------------------------------------------------------------
def group_of(name: str) -> str:
    parts = name.split("/")
    if ".dist-info" in parts[0]:
        return "licenses and metadata"
    if ".so" in parts[-1] or "bin" in parts[:-1]:
        return name
    return "/".join([*parts[:2], ""]) if len(parts) > 2 and parts[1] == "web" else "Python"


def describe(wheel: pathlib.Path) -> bool:
    """Whether everything in it is ours, or has a license with it."""
    groups: dict[str, list[int]] = {}
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            if not entry.is_dir():
                size = groups.setdefault(group_of(entry.filename), [0, 0])
                size[0] += entry.file_size
                size[1] += entry.compress_size
        names = archive.namelist()
    installed = sum(size[0] for size in groups.values())
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB, installed {installed / 1e6:.2f} MB")
    for group, (size, packed) in sorted(groups.items(), key=lambda item: -item[1][0]):
        print(f"  {size / 1e3:9,.0f} kB {packed / 1e3:9,.0f} kB packed  {group}")
    if wheel.name.startswith("rootdk_cuda"):
        print(f"  linked in: {CUDA.name}, {CUDA.license}")
        return True
    fine = True
    for part in PARTS:
        here = any(name.endswith(f"/licenses/linked-in/{part.package}.txt") for name in names)
        print(f"  linked in: {part.name}, {part.license}, {part.how}" + ("" if here else ": ITS LICENSE IS MISSING"))
        fine = fine and here
    known = [part.file for part in PARTS if part.file] + ["librootdk*.so*", "_core.*so"]
    for name in names:
        base = name.rsplit("/", 1)[-1]
        if ".so" in base and not any(fnmatch.fnmatch(base, pattern) for pattern in known):
            print(f"  {name}: NOBODY KNOWS WHOSE THIS IS")
            fine = False
    return fine


# An empty environment -------------------------------------------------------------------------------------------------
INSIDE = """
import ctypes, importlib.metadata, json, pathlib, shutil, subprocess, sys
import numpy, rootdk
from rootdk import _cuda
numpy.testing.assert_allclose(rootdk.attention(*(numpy.ones((1, 1, 2, 4), numpy.float32),) * 3), 1)
mapped = {line.split(None, 5)[5].strip() for line in open("/proc/self/maps") if line.count("/") and ".so" in line}
brought = ("librootdk", "libhwy", "libfmt", "libgomp", "_core")
ours = [path for path in mapped if pathlib.Path(path).name.startswith(brought)]
tools = ("c++", "g++", "gcc", "cc", "clang", "cmake", "ninja", "make", "pkg-config")
print(json.dumps({
    "tools": [tool for tool in tools if shutil.which(tool)],
    "torch": "torch" in sys.modules,
    "outside": [path for path in ours if not path.startswith(sys.prefix)],
    "inside": sorted(pathlib.Path(path).name for path in ours),
    "versions": {"package": rootdk.__version__, "C": _cuda.library().rootdk_version().decode(),
                 "wheel": importlib.metadata.version("rootdk"),
                 "command": subprocess.check_output([shutil.which("rootdk"), "--version"], text=True).split()[-1]},
    "cuda": _cuda.missing(),
}))
"""
IMPORT = """
import time
wall, cpu = time.perf_counter(), time.process_time()
import rootdk
print(1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu))
"""
PAGES = """
import doctest, sys
flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
result = doctest.testfile(sys.argv[1], module_relative=False, encoding="utf-8", globs={}, optionflags=flags)
sys.exit(result.failed > 0 or result.attempted == 0)
"""


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def check(python: str, wheels: list[pathlib.Path]) -> list[str]:
    """What is wrong. Processor time is what is bounded: a machine that is busy with something else is no slow
    package."""
    wrong = []
    with tempfile.TemporaryDirectory(prefix="rootdk-wheel-") as name:
        folder = pathlib.Path(name)
        subprocess.run([python, "-m", "venv", str(folder / "venv")], check=True)
        inside = folder / "venv" / "bin" / "python"
        kept = [key for key in os.environ if key.startswith("PIP_") or key in ("HOME", "LANG", "LC_ALL")]
        environment = {
            **{key: os.environ[key] for key in kept},
            "PATH": str(inside.parent),
            "OMP_WAIT_POLICY": "passive",
        }

        def run(*arguments: str) -> subprocess.CompletedProcess[str]:
            command = [str(inside), *arguments]
            return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)

        # The README's five lines print what it says, from nothing.
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        readme = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", text, re.S)
        assert readme
        wall, cpu = time.perf_counter(), cpu_of_children()
        paths = [str(wheel.resolve()) for wheel in wheels]
        installed = run("-m", "pip", "install", "--quiet", "--disable-pip-version-check", *paths)
        if installed.returncode:
            return [f"pip: {installed.stderr.strip()}"]
        said = run("-c", readme[1])
        wall, cpu = time.perf_counter() - wall, cpu_of_children() - cpu
        print(f"  installed, and README's five lines run: {wall:.1f} s, {cpu:.1f} s of a processor (20 s at most)")
        if cpu > 20:
            wrong.append(f"installing and README's lines took {cpu:.1f} s of a processor, but 20 are allowed")
        if (said.stdout, said.stderr) != (readme[2], ""):
            wrong.append(f"README's lines printed {said.stdout}{said.stderr}")

        found = run("-c", INSIDE)
        if found.returncode:
            return [*wrong, found.stderr]
        facts = json.loads(found.stdout)
        print(f"  version {facts['versions']['wheel']}; loaded from the environment: {', '.join(facts['inside'])}")
        print(f"  CUDA: {facts['cuda'] or 'ready'}")
        if facts["tools"]:
            wrong.append(f"the environment is not empty: {facts['tools']}")
        if facts["outside"]:
            wrong.append(f"loaded from outside the environment: {facts['outside']}")
        if facts["torch"]:
            wrong.append("import rootdk imports torch")
        if len(set(facts["versions"].values())) != 1:
            wrong.append(f"versions differ: {facts['versions']}")

        times = [tuple(map(float, run("-c", IMPORT).stdout.split())) for _ in range(7)]
        best_wall, best_cpu = min(t[0] for t in times), min(t[1] for t in times)
        print(f"  import, numpy included: {best_wall:.0f} ms, {best_cpu:.0f} ms of a processor (150 ms at most)")
        if best_cpu > 150:
            wrong.append(f"import took {best_cpu:.0f} ms of a processor, but 150 are allowed")

        pages = [
            page
            for page in sorted((ROOT / "docs/python").glob("*.md"))
            if not re.search(r"import .*\b(torch|jax|pandas)\b", page.read_text(encoding="utf-8"))
        ]
        for page in pages:
            done = run("-c", PAGES, str(page))
            if done.returncode:
                wrong.append(f"{page.name}: {done.stdout}{done.stderr}")
        print(f"  pages run that want nothing more: {', '.join(page.stem for page in pages)}")
    return wrong


def main(verb: str = "", *arguments: str) -> int:
    if verb == "licenses" and len(arguments) == 1:
        licenses(pathlib.Path(arguments[0]))
        return 0
    if verb == "describe" and arguments:
        described = [describe(pathlib.Path(wheel)) for wheel in arguments]
        return 0 if all(described) else 1
    if verb == "check" and len(arguments) > 1:
        wrong = check(arguments[0], [pathlib.Path(wheel) for wheel in arguments[1:]])
        print("\n".join(f"WRONG: {what}" for what in wrong), end="\n" if wrong else "")
        return 1 if wrong else 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
