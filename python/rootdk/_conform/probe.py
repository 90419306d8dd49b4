"""Calls an attention function that may be anything with inputs that are known, and reads its probabilities off the
output."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}  # of a significand, the leading one included


def keep_bits(x: Array, bits: int) -> Array:
    """Each number rounded to so many significant bits."""
    fraction, exponent = np.frexp(x)
    kept: Array = np.ldexp(np.rint(np.ldexp(fraction, bits)), exponent - bits)
    return kept


def rounded(x: Array, dtype: str) -> Array:
    """What is left of x in a dtype."""
    if dtype == "bfloat16":
        return keep_bits(x, 8)
    with np.errstate(over="ignore"):
        return np.asarray(np.asarray(x).astype(dtype), dtype=np.float64)


class Refused(Exception):
    """The function raised, or returned something that is no attention output."""


class Probe:
    """Calls the function with numpy arrays in double, whatever it takes itself."""

    def __init__(
        self, function: Callable[..., Any], framework: str, dtype: str, layout: str, mask: str | None, heads: int
    ):
        self.function, self.framework, self.dtype, self.layout = function, framework, dtype, layout
        self.mask_name, self.heads = mask, heads
        # Relative rounding of one number, larger where the function was found to round more than its dtype must; f16
        # and bf16 also bound how small a probability can be read.
        self.unit = 2.0 ** -BITS[dtype]
        self.axis: dict[int, int] = {}  # by dim: a component of q and k that counts
        self.deepest = {"float64": 60.0, "float32": 60.0, "float16": 6.0, "bfloat16": 60.0}[dtype]

    def limit(self, bits: int) -> None:
        """From here on nothing finer than so many bits is expected of the function."""
        self.unit = max(self.unit, 2.0**-bits)
        if bits == BITS["float16"]:
            self.deepest = min(self.deepest, 6.0)

    def __call__(self, q: Any, k: Any, v: Any, mask: Any = None) -> Array:
        arrays = [self._give(np.asarray(x, dtype=np.float64)) for x in (q, k, v)]
        extra = {}
        if mask is not None:
            assert self.mask_name is not None
            extra[self.mask_name] = self._give_mask(mask)
        try:
            with np.errstate(all="ignore"):  # scores that overflow are sent on purpose
                out = self.function(*arrays, **extra)
        except Exception as error:  # whatever it is, it is a finding
            raise Refused(
                f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:120]
            ) from error
        if isinstance(out, (tuple, list)) and out:
            out = out[0]
        return self._take(out, (q.shape[0], q.shape[1], q.shape[2], v.shape[3]))

    def _give(self, x: Array) -> Any:
        if self.layout == "blhd":
            x = x.transpose(0, 2, 1, 3)
        if self.framework == "torch":
            import torch

            return torch.from_numpy(np.ascontiguousarray(x)).to(getattr(torch, self.dtype))
        return np.ascontiguousarray(x).astype(self.dtype)

    def _give_mask(self, mask: Any) -> Any:
        mask = np.ascontiguousarray(mask)
        if self.framework == "torch":
            import torch

            given = torch.from_numpy(mask)
            return given if mask.dtype == bool else given.to(getattr(torch, self.dtype))
        return mask if mask.dtype == bool else mask.astype(self.dtype)

    def _take(self, out: Any, shape: tuple[int, ...]) -> Array:
        if self.framework == "torch" and hasattr(out, "detach"):
            out = out.detach().to("cpu").double().numpy()
        array = np.asarray(out, dtype=np.float64)
        if self.layout == "blhd" and array.ndim == 4:
            array = array.transpose(0, 2, 1, 3)
        if array.shape != shape:
            raise Refused(f"the output is {list(array.shape)}, but {list(shape)} was expected")
        return array

    def probabilities(self, q: Array, k: Array, mask: Any = None) -> Array:
        """[heads, len_q, len_kv]: V is the identity, as many columns of it at a time as dim has room for."""
        len_kv, dim = k.shape[2], q.shape[3]
        parts = []
        for first in range(0, len_kv, dim):
            v = np.zeros((1, k.shape[1], len_kv, dim))
            for j in range(first, min(first + dim, len_kv)):
                v[:, :, j, j - first] = 1
            parts.append(self(q, k, v, mask)[0][:, :, : min(dim, len_kv - first)])
        return np.concatenate(parts, axis=2)

    def gaps(self, scores: Sequence[float], dim: int, size: float = 1.0) -> Array:
        """ln p_j − ln p_0 of the last query, whose q·k_j are `scores`: [heads, keys]. q and k share the size of the
        scores, so that neither leaves the range of the dtype."""
        q = np.zeros((1, self.heads, len(scores), dim))
        k = np.zeros((1, self.heads, len(scores), dim))
        axis = self.axis.get(dim, 0)
        q[..., axis] = size
        k[:, :, :, axis] = np.asarray(scores) / size
        return log_ratio(self.probabilities(q, k)[:, -1])


def log_ratio(p: Array) -> Array:
    """ln p − ln of the first along the last axis."""
    return np.asarray(np.log(p) - np.log(p[..., :1]))
