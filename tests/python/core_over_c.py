"""Stands in for rootdk._core where no extension can be built: what the tests on a GPU need of it, through the C ABI by
ctypes.

usage: ROOTDK_LIBRARY=…/librootdk.so core_over_c.py FILE [ARGUMENT...]      (./run gpu-python builds the library first)

Runs a Python program over the package of the source tree, with this in the compiled module's place. Statistics are
rootdk_stats, so merging is the engine's; reports, judgements and the CPU's kernels are not here.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import re
import runpy
import subprocess
import sys
from typing import Any

import numpy as np

_ROOT = pathlib.Path(__file__).parents[2]
version = re.search(r"project\(rootdk\s+VERSION ([0-9.]+)", (_ROOT / "CMakeLists.txt").read_text())[1]  # type: ignore[index]


def install() -> Any:
    """The package of the source tree, over this module."""
    sys.modules["rootdk._core"] = sys.modules[__name__]
    sys.path.insert(0, str(_ROOT / "python"))
    made = [sys.executable, str(_ROOT / "tools/tables.py"), "modules", str(_ROOT / "python/rootdk")]
    subprocess.run(made, check=True)
    import rootdk
    from rootdk import _cuda

    _cuda._library = _cuda.opened(os.environ["ROOTDK_LIBRARY"])
    return rootdk


def _c() -> Any:
    from rootdk import _cuda

    return _cuda


class _Missing:
    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(f"{name}: needs the compiled module")


theory = _Missing()


def _needs_it(*_: Any) -> Any:
    raise NotImplementedError("the CPU needs the compiled module")


forward = explain_plan = _needs_it


class Spec:
    """Of what the compiled module's does only the list of numbers is kept: see visible_keys."""

    def __init__(self, numbers: list[int], *_: Any) -> None:
        self.numbers = numbers


def visible_keys(spec: Spec, batch: int, len_q: int, len_kv: int, ranges: Any) -> None:
    from rootdk._description import Description, Problem

    c, problem = _c(), Problem(Description.unpacked(spec.numbers, None))
    lib, described = c.library(), c.c_problem(problem)
    shape = batch, len_q, len_kv
    c.check(lib, lib.rootdk_visible_keys(ctypes.addressof(described), *shape, ranges.ctypes.data, ranges.size))


_WORDS = 96  # ROOTDK_HEAD_STATS_WORDS


def _head() -> np.dtype[Any]:
    """rootdk_head_stats."""
    from rootdk import _statistics

    fields: list[Any] = [(s.name, "i8" if s.type == "whole" else "f8") for s in _statistics.HEAD]
    return np.dtype([*fields, ("reserved", "u8", _WORDS - len(fields))])


class Stats:
    """Of a rootdk_stats, which it ends."""

    def __init__(self, handle: int, level: str = "full"):
        c = _c()
        self._handle, self.level = handle, level
        batch, heads = ctypes.c_int64(), ctypes.c_int64()
        lib = c.library()
        self._free = lib.rootdk_stats_free
        c.check(lib, lib.rootdk_stats_shape(handle, ctypes.addressof(batch), ctypes.addressof(heads)))
        self.batch, self.heads = batch.value, heads.value
        self._table = np.zeros(self.batch * self.heads, _head())
        c.check(lib, lib.rootdk_stats_read(handle, self._table.ctypes.data, self._table.size, None, 0))
        if not self._table["rows_sampled"].any() and not self._table["score_pairs"].any():
            self.level = "basic"

    def __del__(self) -> None:
        self._free(self._handle)

    def columns(self) -> list[str]:
        from rootdk import _statistics

        return [s.name for s in _statistics.HEAD if s.level == "basic" or self.level == "full"]

    def column(self, name: str) -> Any:
        return self._table[name].reshape(self.batch, self.heads)

    def _new(self, function: str, *others: Stats) -> Stats:
        c, merged = _c(), ctypes.c_void_p()
        lib = c.library()
        c.check(lib, getattr(lib, function)(self._handle, *(x._handle for x in others), ctypes.addressof(merged)))
        assert merged.value is not None
        return Stats(merged.value)

    def merge(self, other: Stats) -> Stats:
        return self._new("rootdk_stats_merge", other)

    def over_batch(self) -> Stats:
        return self._new("rootdk_stats_over_batch")

    def with_causes(self, dim: int, per_head: Any) -> Stats:
        """For looking at only: what is merged from it has other causes."""
        out = self.over_batch()
        for name, column in zip(("sigma_q", "sigma_k", "key_mean_norm", "scale"), np.asarray(per_head).T):
            out._table[name] = column
        return out


def take_stats(handle: int) -> Stats:
    return Stats(handle)


class GradientStats:
    def __init__(self, batch: int, heads: int, rows: Any):
        self.batch, self.heads = batch, heads
        self._table = np.array(rows, dtype=np.float64).reshape(batch, heads, -1)

    def column(self, name: str) -> Any:
        from rootdk import _statistics

        return self._table[..., _statistics.GRADIENTS.index(name)]


gradient_stats = GradientStats


def row_names() -> list[str]:
    c = _c()
    return [*c.BASIC_ROWS, *c.FULL_ROWS]


def stats_of_rows(rows: Any, lse: Any) -> Stats:
    c, out, full, handle = _c(), _c().COutputs(), _c().CRows(), ctypes.c_void_p()

    def view(x: Any) -> Any:
        return c.View(x.data_ptr(), "f32", x.shape, x.stride(), 0)

    c._put(out, c.COutputs.lse, view(lse))
    for name, row in rows.items():
        if name in c.BASIC_ROWS:
            c._put(out, getattr(c.COutputs, f"row_{name}"), view(row))
        else:
            c._put(full, getattr(c.CRows, name), view(row))
    out.rows = ctypes.addressof(full)
    lib = c.library()
    c.check(lib, lib.rootdk_stats_of_rows(ctypes.addressof(out), ctypes.addressof(handle)))
    assert handle.value is not None
    return Stats(handle.value)


def main(program: str) -> None:
    import core_over_c  # this module under its own name, which stays when the program becomes __main__

    core_over_c.install()
    sys.path[0] = str(pathlib.Path(program).resolve().parent)
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    if len(sys.argv) < 2 or "ROOTDK_LIBRARY" not in os.environ:
        sys.exit(__doc__)
    del sys.argv[0]
    main(sys.argv[0])
