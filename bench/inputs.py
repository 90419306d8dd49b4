"""The tensors of a case. Every process makes its own, from the same seed: the same bits for every competitor, in memory
that is aligned and lies in huge pages alike."""

import zlib
from functools import cached_property

import numpy as np
from cases import Case

ALIGNMENT = 4096


def empty(shape, dtype) -> np.ndarray:
    """As np.empty (which asks for huge pages where they pay), at a page boundary."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    raw[::ALIGNMENT] = 0  # touched now, not in a timed call
    first = -raw.ctypes.data % ALIGNMENT
    return raw[first : first + size].view(dtype).reshape(shape)


def copy(x: np.ndarray) -> np.ndarray:
    y = empty(x.shape, x.dtype)
    y[...] = x
    return y


def to_bf16(x: np.ndarray) -> np.ndarray:
    """f32 to bf16, nearest even, as uint16: numpy has no bf16. Finite values only."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def store(x: np.ndarray, dtype: str) -> np.ndarray:
    return {"f32": lambda: x, "f16": lambda: x.astype(np.float16), "bf16": lambda: to_bf16(x)}[dtype]()


def load(x: np.ndarray, dtype: str) -> np.ndarray:
    """Stored values as f32."""
    return (x.astype(np.uint32) << 16).view(np.float32) if dtype == "bf16" else x.astype(np.float32)


def numpy_type(dtype: str):
    return {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}[dtype]


class Inputs:
    """q, k, v of the first cache, d_o for backward, and `caches`: all (k, v); stored as the case says, made when asked
    for."""

    def __init__(self, case: Case):
        self.case = case

    def tensor(self, name: str, heads: int, length: int) -> np.ndarray:
        random = np.random.default_rng(zlib.crc32(f"{name} of {self.case}".encode()))
        x = empty((self.case.batch, heads, length, self.case.dim), numpy_type(self.case.dtype))
        x[...] = store(random.standard_normal(x.shape, dtype=np.float32), self.case.dtype)
        return x

    @cached_property
    def q(self):
        return self.tensor("q", self.case.heads_q, self.case.len_q)

    @cached_property
    def k(self):
        return self.tensor("k", self.case.heads_kv, self.case.len_kv)

    @cached_property
    def v(self):
        return self.tensor("v", self.case.heads_kv, self.case.len_kv)

    @cached_property
    def d_o(self):
        return self.tensor("d_o", self.case.heads_q, self.case.len_q)

    @cached_property
    def caches(self):
        return [(self.k, self.v)] + [(copy(self.k), copy(self.v)) for _ in range(self.case.caches - 1)]
