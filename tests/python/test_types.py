"""The package is typed: strictly checked itself, and seen with its types by those who use it; the stub of the compiled
module is true."""

from __future__ import annotations

import ast
import inspect
import pathlib
import subprocess
import sys

import pytest
import rootdk
from rootdk import _core

pytest.importorskip("mypy")
PACKAGE, ROOT = pathlib.Path(rootdk.__file__).parent, pathlib.Path(__file__).parents[2]


def mypy(*arguments, cwd):
    settings = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(cwd / "cache")]
    return subprocess.run(
        [sys.executable, "-m", "mypy", *settings, *arguments], capture_output=True, text=True, cwd=cwd
    )


def test_the_package_and_its_users_are_strictly_typed(tmp_path):
    (tmp_path / "user.py").write_text("""
import numpy as np
import rootdk

x = np.zeros((1, 2, 3, 4), np.float32)
out, stats = rootdk.attention(x, x, x, stats="full")
reveal_type(rootdk.audit("model").heads)
reveal_type(rootdk.conform(lambda q, k, v: q).ok)
with rootdk.watch(None, every=2, on=rootdk.Alarm(max_score=50)) as w:
    reveal_type(w.table())
rootdk.watch(None, evry=2)
""")
    done = mypy("-m", "user", "-p", "rootdk", cwd=tmp_path)
    lines = done.stdout.splitlines()
    errors = [line for line in lines if ": error:" in line]
    assert len(errors) == 1 and "user.py:11" in errors[0] and "evry" in errors[0], done.stdout + done.stderr
    revealed = [line.split('"')[1] for line in lines if "Revealed type" in line]
    assert revealed == ["list[dict[str, Any]]", "bool", "str"], done.stdout


def test_attention_returns_what_its_arguments_say(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "user.py").write_text("""
import numpy as np
import torch
import rootdk
import rootdk.torch as rt

x = np.zeros((1, 2, 3, 4), np.float32)
t = torch.zeros(1, 2, 3, 4)
options = rootdk.StatsOptions("full", rows=True)
reveal_type(rootdk.attention(t, t, t))
reveal_type(rootdk.attention(t, t, t, causal=True, stats=None))
reveal_type(rootdk.attention(t, t, t, stats="full"))
reveal_type(rootdk.attention(t, t, t, stats=options)[1].entropy)
reveal_type(rootdk.attention(x, x, x, stats="basic")[1].rows)
reveal_type(rt.attention(t, t, t))
reveal_type(rt.attention(t, t, t, return_lse=True))
reveal_type(rt.attention(t, t, t, stats="full"))
reveal_type(rt.attention(t, t, t, stats=options, return_lse=True))
reveal_type(rootdk.attention(x, x, x))
rootdk.attention(t, t, t, is_causal=True)
""")
    done = mypy("-m", "user", cwd=tmp_path)
    lines = done.stdout.splitlines()
    errors = [line for line in lines if ": error:" in line]
    assert errors and all("user.py:20" in line for line in errors) and "is_causal" in errors[0], (
        done.stdout + done.stderr
    )
    revealed = [line.split('"')[1] for line in lines if "Revealed type" in line]
    tensor, stats, array = (
        "torch._tensor.Tensor",
        "rootdk._stats.Stats",
        "numpy.ndarray[tuple[Any, ...], numpy.dtype[Any]]",
    )
    assert revealed[:9] == [
        tensor,
        tensor,
        f"tuple[{tensor}, {stats}]",
        array,
        "rootdk._stats.Rows",
        tensor,
        f"tuple[{tensor}, {tensor}]",
        f"tuple[{tensor}, {stats}]",
        f"tuple[{tensor}, {tensor}, {stats}]",
    ], done.stdout
    assert revealed[9].startswith("numpy.ndarray[")


def test_the_stub_names_what_is_there():
    tree = ast.parse((ROOT / "python" / "rootdk" / "_core.pyi").read_text())

    def names(body):
        found = set()
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.AnnAssign):
                found.add(node.target.id)
        return found

    def real(thing):
        return {name for name in dir(thing) if not name.startswith("_")}

    assert names(tree.body) == real(_core)
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            assert names(node.body) - {"__init__"} == real(getattr(_core, node.name)), node.name
    assert (PACKAGE / "py.typed").exists() and (PACKAGE / "_core.pyi").exists()


def test_public_signatures_are_annotated():
    for name in rootdk.__all__:
        thing = getattr(rootdk, name)
        if inspect.isfunction(thing):
            missing = [
                p.name for p in inspect.signature(thing).parameters.values() if p.annotation is inspect.Parameter.empty
            ]
            assert not missing, (name, missing)
