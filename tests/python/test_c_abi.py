"""The C ABI as rootdk._cuda calls it by ctypes: that its structs are those of rootdk/c.h shows on the CPU, where the
compiled module says what is right. What is on a GPU: test_cuda.py."""

from __future__ import annotations

import ctypes
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import rootdk
from rootdk import _attention, _core, _cuda
from rootdk._description import Description, Problem
from rootdk._problem import options_of
from rootdk._stats import Stats
from rootdk._structure import Structure

NAMES = {"float32": "f32", "float16": "f16", "float64": "f64", "bool": "bool"}


def view(name, x):
    return _cuda.View(x.ctypes.data, NAMES[x.dtype.name], x.shape, [s // x.itemsize for s in x.strides], 0, x)


def through_c(q, k, v, stats=None, seed=0, **arguments):
    options = options_of(stats)
    described = _attention.build(q.shape[1], options=options, seed=seed, view=view, **arguments)
    lib, problem, inputs = (
        _cuda.library(),
        _cuda.c_problem(described),
        _cuda._inputs(*(view("x", x) for x in (q, k, v))),
    )
    out = np.full((*q.shape[:3], v.shape[3]), np.nan, q.dtype)
    outputs, full, handle = _cuda.COutputs(), _cuda.CRows(), ctypes.c_void_p()
    rows = (
        {name: np.full((*q.shape[:3], 1), np.nan, np.float32) for name in ("p_max", "entropy", "score_argmax")}
        if options
        else {}
    )
    _cuda._put(outputs, _cuda.COutputs.o, view("o", out))
    if options:
        _cuda._put(outputs, _cuda.COutputs.row_p_max, view("p_max", rows["p_max"]))
        for name in ("entropy", "score_argmax"):
            _cuda._put(full, getattr(_cuda.CRows, name), view(name, rows[name]))
        outputs.rows = ctypes.addressof(full)
        outputs.stats = ctypes.addressof(handle)
    _cuda.check(
        lib, lib.rootdk_forward(ctypes.addressof(problem), ctypes.addressof(inputs), ctypes.addressof(outputs), None, 0)
    )
    return (out, Stats(lambda: _core.take_stats(handle.value)), rows) if options else out


@pytest.fixture
def qkv(rng):
    return [rng.standard_normal((2, heads, 70, 16), dtype=np.float32) for heads in (4, 2, 2)]


def problems(rng):
    yield {}
    yield {"causal": True, "diagonal": "top_left", "window": (20, None), "softcap": 5.0}
    yield {"causal": True, "diagonal": 3, "scale": 0.3, "alibi": [0.5, 0.25, 0.125, 0.1]}
    yield {"key_lengths": [70, 33], "causal": True, "diagonal": "last_key", "sink": [0.0, 1.0, -1.0, 2.0]}
    yield {"key_starts": [0, 12], "key_lengths": [70, 33], "query_lengths": [61, 70], "causal": True}
    yield {"documents": [[0, 30, 70], [0, 20, 20, 64]], "causal": True}
    yield {"documents": ([0, 30, 70], [0, 20, 70]), "scale": [0.1, 0.2, 0.3, 0.4], "window": (None, 9)}
    yield {"mask": rng.random((2, 1, 70, 70)) < 0.7, "bias": rng.standard_normal((1, 4, 70, 1), dtype=np.float32)}
    yield {"scale": "sqrt_dk*ssmax(0.43)", "dropout": 0.25, "seed": 2**61 + 5}


def test_problems_mean_the_same(qkv, rng):
    for arguments in problems(rng):
        assert np.array_equal(through_c(*qkv, **arguments), rootdk.attention(*qkv, **arguments)), arguments


def test_statistics_come_whole(qkv):
    options = rootdk.StatsOptions(
        "full", rows=["p_max", "entropy", "score_argmax"], by_keys=True, gaps=True, causes=False, first_query=5
    )
    out, stats, rows = through_c(*qkv, causal=True, stats=options)
    want, theirs = rootdk.attention(*qkv, causal=True, stats=options)
    assert np.array_equal(out, want)
    assert stats._reader is not None
    assert stats.to_json() == theirs.to_json() and stats._reader is None
    for name, row in rows.items():
        assert np.array_equal(row[..., 0], theirs.rows[name]), name
    assert stats.merge(theirs).raw_max == pytest.approx(theirs.raw_max)


def test_gradients_statistics(rng):
    rows = rng.random((6, 5))
    stats = rootdk.GradientStats(lambda: _core.gradient_stats(2, 3, [tuple(row) for row in rows]))
    for column, name in enumerate(stats.NAMES):
        assert np.array_equal(getattr(stats, name), rows[:, column].reshape(2, 3))


def test_a_machine_without_a_gpu_says_so(qkv):
    why = _cuda.missing()
    if not why:
        pytest.skip("there is one")
    assert "CUDA" in why
    views = [_cuda.View(64, "f32", x.shape, (1, 1, 1, 1)) for x in qkv]
    place = _cuda.Place(lambda size: (None, 64), 0)
    for call in (
        lambda: _cuda.forward(Problem(), *views, views[0], None, {}, None, place),
        lambda: _cuda.explain(Problem(), *views, 0),
        lambda: _cuda.is_fast(Problem(), *views, 1),
    ):
        with pytest.raises(ValueError, match="^cuda: "):
            call()


def test_a_seed_on_a_gpu_is_not_for_the_cpu(qkv):
    described = Problem(Description(dropout=0.5), seed_address=qkv[0].ctypes.data)
    lib, problem, inputs, outputs = (
        _cuda.library(),
        _cuda.c_problem(described),
        _cuda._inputs(*(view("x", x) for x in qkv)),
        _cuda.COutputs(),
    )
    _cuda._put(outputs, _cuda.COutputs.o, view("o", np.empty_like(qkv[0])))
    with pytest.raises(ValueError, match=r"^dropout\.device_seed: memory of a GPU, but the CPU was called"):
        _cuda.check(
            lib,
            lib.rootdk_forward(ctypes.addressof(problem), ctypes.addressof(inputs), ctypes.addressof(outputs), None, 0),
        )


def test_a_wrong_name_is_refused(qkv):
    with pytest.raises(ValueError, match="diagonal: sideways, but"):
        through_c(*qkv, diagonal="sideways")


def test_what_each_query_sees(qkv, rng):
    """By rootdk_visible_keys and by the compiled module, which the problems' outputs are held against."""
    for arguments in problems(rng):
        structural = {n: x for n, x in arguments.items() if n in ("causal", "diagonal", "window", "documents")}
        structural |= {n: x for n, x in arguments.items() if n.endswith(("_starts", "_lengths"))}
        described = Problem(Description(Structure.of(**structural)))
        seen, ranges = described.description.structure.visible(70, 70), np.full((2, 70, 4), -7, np.int64)
        lib, problem = _cuda.library(), _cuda.c_problem(described)
        where = ctypes.addressof(problem), 2, 70, 70, ranges.ctypes.data
        _cuda.check(lib, lib.rootdk_visible_keys(*where, ranges.size))
        for column, values in enumerate(seen):
            assert (ranges[..., column] == values).all(), (arguments, column)
        with pytest.raises(ValueError, match="^ranges: count is 3, but 560 is wanted"):
            _cuda.check(lib, lib.rootdk_visible_keys(*where, 3))


def test_a_program_runs_over_the_c_abi_alone(tmp_path, compiler):
    """As `./run gpu-python` runs it: no compiled module, the package of the source tree, its own folder and name."""
    (tmp_path / "beside.py").write_text("name = 'beside'\n")
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, beside, rootdk\n"
        "from rootdk import _core\n"
        "assert __name__ == '__main__'\n"
        "print(sys.argv[1:], beside.name, _core.__name__, rootdk.__version__, rootdk.__file__)\n"
    )
    source = pathlib.Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, str(source / "tests/python/core_over_c.py"), str(program), "a", "b"],
        env={**os.environ, "ROOTDK_LIBRARY": _cuda.library()._name},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    there = source / "python/rootdk/__init__.py"
    assert done.stdout == f"['a', 'b'] beside core_over_c {rootdk.__version__} {there}\n"
