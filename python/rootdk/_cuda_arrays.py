"""rootdk.attention for arrays on a GPU that are not torch's: cupy, jax, and whatever has __dlpack__ and can make new
arrays.

cupy has a current stream, and calls run there. Nobody can tell jax to wait for a stream, so after its arrays have been
written the call waits for the device.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import sys
from ctypes import c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p
from typing import Any, Iterator, Optional

from . import _cuda
from ._description import Problem
from ._problem import QkNorm, StatsOptions, row_names
from ._stats import Rows, Stats

_KDL_CUDA, _KDL_CUDA_MANAGED = 2, 13
_LEGACY_STREAM = 1  # how DLPack calls the default stream
_CODES = {(2, 32): "f32", (2, 16): "f16", (4, 16): "bf16", (2, 64): "f64", (6, 8): "bool", (1, 8): "u8"}


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", ctypes.POINTER(c_int64)),
        ("strides", ctypes.POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = c_void_p, [ctypes.py_object, ctypes.c_char_p]


def device_of(array: Any) -> Optional[int]:
    """The number of the CUDA device an array lies on; None for any other place."""
    where = getattr(array, "__dlpack_device__", None)
    if where is None:
        return None
    kind, index = where()
    return int(index) if int(kind) in (_KDL_CUDA, _KDL_CUDA_MANAGED) else None


class _Exported:
    """An array through DLPack; lives as long as this does."""

    def __init__(self, name: str, array: Any, stream: int):
        if device_of(array) is None:
            raise ValueError(f"{name}: does not lie on a CUDA device, but q does")
        self._capsule = array.__dlpack__(stream=stream or _LEGACY_STREAM)
        tensor = ctypes.cast(_pointer_of(self._capsule, b"dltensor"), ctypes.POINTER(_DLTensor)).contents
        self.device, axes = int(tensor.device_id), int(tensor.ndim)
        self.dtype = _CODES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
        self.address = (tensor.data or 0) + tensor.byte_offset
        self.shape = [tensor.shape[i] for i in range(axes)]
        if tensor.strides:
            self.strides = [tensor.strides[i] for i in range(axes)]
        else:
            self.strides = [1] * axes
            for i in range(axes - 2, -1, -1):
                self.strides[i] = self.strides[i + 1] * self.shape[i + 1]


def _view(name: str, array: Any, stream: int, device: int) -> _cuda.View:
    x = _Exported(name, array, stream)
    if x.device != device:
        raise ValueError(f"{name}: lies on CUDA device {x.device}, but q on {device}")
    if len(x.shape) != 4:
        raise ValueError(f"{name}: {len(x.shape)} axes, but the 4 of [batch, heads, length, dim] are wanted")
    if x.dtype is None or x.dtype == "u8":
        raise ValueError(
            f"{name}: dtype is {getattr(array, 'dtype', 'unknown')}, but float32, float16 or bfloat16 "
            "(or bool for masks) is wanted"
        )
    return _cuda.View(x.address, x.dtype, x.shape, x.strides, owner=x)


class Maker:
    """New arrays of the framework that q is of."""

    def __init__(self, like: Any):
        self.device = device_of(like)
        assert self.device is not None
        self.like = like
        namespace = getattr(like, "__array_namespace__", None)
        self.xp = namespace() if namespace is not None else importlib.import_module(type(like).__module__.split(".")[0])
        if not hasattr(self.xp, "empty"):
            raise TypeError(
                f"q: {type(like).__name__}, but an array of a framework that makes others on a GPU "
                "(torch, cupy, jax) is wanted"
            )
        cupy = sys.modules.get("cupy")
        self.is_cupy = cupy is not None and isinstance(like, cupy.ndarray)
        self.stream = int(cupy.cuda.get_current_stream().ptr) if cupy is not None and self.is_cupy else 0

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        if self.is_cupy:
            with self.like.device:
                return self.xp.empty(shape, dtype)
        return self.xp.empty(shape, dtype=dtype, device=self.like.device)

    def view(self, name: str, array: Any) -> _cuda.View:
        assert self.device is not None
        return _view(name, array, self.stream, self.device)

    def place(self) -> _cuda.Place:
        def workspace(size: int) -> tuple[Any, int]:
            memory = self.empty((max(size, 1),), "uint8")
            exported = _Exported("workspace", memory, self.stream)
            return (memory, exported), exported.address

        return _cuda.Place(workspace, self.stream, lambda: current(self.device or 0), self.device or 0)

    def finish(self) -> None:
        if not self.is_cupy:
            with current(self.device or 0):
                _driver("cuStreamSynchronize", c_void_p(self.stream))


@functools.lru_cache(None)
def _driver_library() -> ctypes.CDLL:
    library = ctypes.CDLL("libcuda.so.1")
    if status := library.cuInit(0):
        raise RuntimeError(f"cuInit: CUDA error {status}")
    return library


def _driver(name: str, *arguments: Any) -> None:
    status = getattr(_driver_library(), name)(*arguments)
    if status != 0:
        raise RuntimeError(f"{name}: CUDA error {status}")


@contextlib.contextmanager
def current(device: int) -> Iterator[None]:
    """The device's primary context, which all frameworks share, is this thread's meanwhile."""
    context = c_void_p()
    _driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    try:
        _driver("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            _driver("cuCtxPopCurrent_v2", ctypes.byref(context))
    finally:
        _driver("cuDevicePrimaryCtxRelease_v2", device)


def normalised(norm: QkNorm, gain: Any, x: Any) -> Any:
    """The engine's formula, in the array's own framework."""
    wide = x.astype("float32")
    if norm.kind == "layer":
        wide = wide - wide.mean(-1, keepdims=True)
    square = (wide * wide).sum(-1, keepdims=True) if norm.kind == "l2" else (wide * wide).mean(-1, keepdims=True)
    wide = wide * (square + norm.eps) ** -0.5
    if gain is not None:
        gain = Maker(x).xp.asarray(gain)
        dim, heads = x.shape[3], x.shape[1]
        if tuple(gain.shape) not in ((dim,), (heads, dim)):
            raise ValueError(f"qk_norm: gain is {list(gain.shape)}, but [{dim}] or [{heads}, {dim}] is wanted")
        wide = wide * (gain if gain.ndim == 1 else gain[:, None, :])
    return wide.astype(x.dtype)


def attend(problem: Problem, maker: Maker, q: Any, k: Any, v: Any, options: StatsOptions | None) -> Any:
    batch, heads, len_q, _ = q.shape
    out = maker.empty((batch, heads, len_q, v.shape[3] if len(v.shape) == 4 else 0), q.dtype)
    row = (batch, heads, len_q, 1)
    rows = {name: maker.empty(row, "float32") for name in (row_names(options) if options else [])}
    lse = maker.empty(row, "float32") if options is not None and options.rows else None
    mass = maker.empty((batch, heads, k.shape[2], 1), "float32") if options is not None and options.key_mass else None
    read = _cuda.forward(
        problem,
        maker.view("q", q),
        maker.view("k", k),
        maker.view("v", v),
        maker.view("o", out),
        None if lse is None else maker.view("lse", lse),
        {name: maker.view(name, x) for name, x in rows.items()},
        None if mass is None else maker.view("key_mass", mass),
        maker.place(),
    )
    maker.finish()
    if options is None:
        return out
    kept = None if lse is None else Rows({name: x[..., 0] for name, x in ({"lse": lse} | rows).items()})
    return out, Stats(read, kept, None if mass is None else mass[..., 0])
