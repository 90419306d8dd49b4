"""Stands in for rootdk._core where no extension can be built: what the tests on a GPU need of it, through the C ABI by
ctypes.

usage: ROOTDK_LIBRARY=…/librootdk.so core_over_c.py FILE [ARGUMENT...]      (./run gpu-python builds the library first)

Runs a Python program over the package of the source tree, with this in the compiled module's place. Statistics are
rootdk_stats, so merging is the engine's; reports, judgements and the CPU's kernels are not here.
"""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
import re
import runpy
import sys
from typing import Any

import numpy as np

_ROOT = pathlib.Path(__file__).parents[2]
version = re.search(r"project\(rootdk\s+VERSION ([0-9.]+)", (_ROOT / "CMakeLists.txt").read_text())[1]  # type: ignore[index]


def install() -> Any:
    """The package of the source tree, over this module."""
    sys.modules["rootdk._core"] = sys.modules[__name__]
    sys.path.insert(0, str(_ROOT / "python"))
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


class Spec:
    def __init__(self) -> None:
        raise NotImplementedError("the CPU needs the compiled module")


_WHOLE = ("rows", "rows_masked", "rows_short", "rows_not_finite")
_HEAD = np.dtype(
    [(name, "i8") for name in _WHOLE]
    + [("raw_max", "f4"), ("score_max", "f4"), ("mean_p_max", "f8"), ("mean_lse", "f8")]
    + [(name, "i8") for name in ("rows_counted", "rows_sampled", "pairs")]
    + [(f"{at}_{what}", "f8") for at in ("raw", "score") for what in ("mean", "variance", "within_row_variance", "min")]
    + [(f"{at}_max_{what}", "i8") for at in ("raw", "score") for what in ("query", "key")]
    + [
        (f"mean_{name}", "f8")
        for name in (
            "entropy",
            "sum_p2",
            "sum_p3",
            "effective_keys",
            "participation",
            "trace_j",
            "frobenius_j",
            "sink_mass",
            "log_keys",
        )
    ]
    + [(name, "i8") for name in ("p_max_over_50", "p_max_over_90", "p_max_over_99", "trace_j_under_001")]
    + [(f"{name}_quantiles", "f8", 3) for name in ("relative_entropy", "p_max", "trace_j")]
    + [
        (name, "f8")
        for name in (
            "sigma_q",
            "sigma_k",
            "key_mean_norm",
            "alignment",
            "entropy_error",
            "trace_j_error",
            "raw_variance_error",
            "score_variance_error",
        )
    ]
    + [("reserved", "u8", 16)]
)


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
        self._table = np.zeros(self.batch * self.heads, _HEAD)
        c.check(lib, lib.rootdk_stats_read(handle, self._table.ctypes.data, self._table.size, None, 0))
        if not self._table["rows_sampled"].any() and not self._table["pairs"].any():
            self.level = "basic"

    def __del__(self) -> None:
        self._free(self._handle)

    @functools.cached_property
    def _columns(self) -> dict[str, Any]:
        return _columns(self._table, self.level)

    def columns(self) -> list[str]:
        return list(self._columns)

    def column(self, name: str) -> Any:
        return self._columns[name].reshape(self.batch, self.heads)

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


def _columns(t: Any, level: str) -> dict[str, Any]:
    basic = {name: t[name] for name in (*_WHOLE, "raw_max", "score_max", "mean_p_max", "mean_lse")}
    if level == "basic":
        return basic
    with np.errstate(divide="ignore", invalid="ignore"):
        keys, sampled = np.exp(t["mean_log_keys"]), np.where(t["rows_sampled"] > 0, t["rows_sampled"], np.nan)
        sigma = {at: np.sqrt(t[f"{at}_within_row_variance"]) for at in ("raw", "score")}
        critical = np.where(keys >= 2, np.sqrt(2 * np.log(keys)), np.nan)
        return (
            basic
            | {
                name: t[name]
                for name in ("rows_counted", "rows_sampled", "sigma_q", "sigma_k", "key_mean_norm", "alignment")
            }
            | {
                f"{at}_{what}": t[f"{at}_{what}"]
                for at in ("raw", "score")
                for what in ("mean", "variance", "min", "max_query", "max_key")
            }
            | {f"{at}_sigma": sigma[at] for at in sigma}
            | {
                name: t[f"mean_{name}"]
                for name in (
                    "entropy",
                    "effective_keys",
                    "sum_p2",
                    "sum_p3",
                    "participation",
                    "trace_j",
                    "frobenius_j",
                    "sink_mass",
                )
            }
            | {
                "keys": keys,
                "sigma_c": critical,
                "sigma_ratio": sigma["score"] / critical,
                "median_p_max": t["p_max_quantiles"][:, 1],
                "median_trace_j": t["trace_j_quantiles"][:, 1],
                "share_p_max_over_099": t["p_max_over_99"] / sampled,
            }
        )


def take_stats(handle: int) -> Stats:
    return Stats(handle)


class GradientStats:
    def __init__(self, batch: int, heads: int, rows: Any):
        self.batch, self.heads = batch, heads
        self._table = np.array(rows, dtype=np.float64).reshape(batch, heads, 5)

    def column(self, name: str) -> Any:
        return self._table[..., ("d_scores", "d_log_scale", "d_q", "d_k", "d_v").index(name)]


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
