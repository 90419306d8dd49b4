"""The package as it was installed: its version is the same wherever one asks, and it gets along with torch in a
process."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import traceback

import numpy as np
import pytest
import rootdk
from rootdk import _cuda

ROOT = pathlib.Path(__file__).parents[2]


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600).stdout


def test_versions_agree():
    """CMakeLists.txt is where it is written; what cannot read it there is held against it."""
    version = re.search(r"project\(rootdk\s+VERSION ([0-9.]+)", text("CMakeLists.txt"))[1]
    assert rootdk.__version__ == version
    assert importlib.metadata.version("rootdk") == version
    assert _cuda.library().rootdk_version().decode() == version
    assert subprocess.check_output([sys.executable, "-m", "rootdk", "--version"], text=True) == f"rootdk {version}\n"
    assert re.search(r"^version: (.*)$", text("CITATION.cff"), re.M)[1] == version
    assert re.search(r'^  version: "(.*)"$', text("packaging/conda-forge/recipe.yaml"), re.M)[1] == version
    assert json.loads(text("packaging/vcpkg/rootdk/vcpkg.json"))["version"] == version
    assert re.search(r"^## ([0-9.]+)", text("CHANGELOG.md"), re.M)[1] == version


def test_importing_it_imports_nothing_large():
    loaded = json.loads(run("import json, sys, rootdk; print(json.dumps(list(sys.modules)))"))
    assert not {"torch", "jax", "pandas", "transformers", "scipy"} & {name.split(".")[0] for name in loaded}


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
@pytest.mark.parametrize("order", ["torch, rootdk", "rootdk, torch"])
def test_there_is_one_pool_of_threads_with_torch(order):
    """Both bring a libgomp.so.1; the loader takes one for both, whichever comes first."""
    found = json.loads(
        run(f"""
import json, numpy, {order}
x = numpy.ones((1, 4, 300, 16), numpy.float32)
torch.ones(300, 300) @ torch.ones(300, 300)
rootdk.attention(x, x, x)
lines = [line.split() for line in open("/proc/self/maps")]
print(json.dumps(sorted({{line[5] for line in lines if len(line) > 5 and "gomp" in line[5]}})))""")
    )
    assert len(found) == 1, found


def test_a_package_without_kernels_for_gpus_says_where_they_are():
    why = _cuda.missing()
    if "librootdk_cuda" not in why:
        pytest.skip("they are here")
    assert "rootdk-cuda" in why


def test_python_suggests_no_inner_name():
    """From 3.12 on tracebacks end with "Did you mean", for which Python looks through the object that an error
    carries."""
    stats = rootdk.attention(*[np.ones((1, 1, 2, 4), np.float32)] * 3, stats="full")[1]
    for name in ("rows", "key_mass"):
        with pytest.raises(AttributeError) as error:
            getattr(stats, name)
        assert "Did you mean" not in "".join(traceback.format_exception(None, error.value, None)), name
        assert getattr(error.value, "obj", None) is None
