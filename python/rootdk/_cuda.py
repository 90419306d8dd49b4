"""Attention on a GPU: rootdk/c.h through ctypes, which needs nothing compiled beside the library itself.

Calls enqueue and return. What waits for the device is reading statistics, and nothing else.
"""

from __future__ import annotations

import contextlib
import ctypes
import pathlib
import struct
from ctypes import c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any, Callable, Mapping, Optional, Sequence

from ._description import Problem
from ._masks import PER_ITEM
from ._problem import checked
from ._slow import mind
from ._statistics import BASIC_ROWS, FULL_ROWS, GRADIENTS
from ._structure import KINDS

DTYPES = {"f32": 0, "f16": 1, "bf16": 2, "f64": 3, "bool": 4}
_LEVELS = {"basic": 1, "full": 2}
_LEAST, _FAR = 2.0**-100, 2**28  # a scale and an offset, as kernels tell them apart
_CPU, _CUDA = 0, 1
_SPARE = 24  # ROOTDK_PROBLEM_SPARE
FORWARD, BACKWARD = 0, 1


# The structs of rootdk/c.h --------------------------------------------------------------------------------------------
class CTensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("dtype", c_int32),
        ("device", c_int32),
        ("shape", c_int64 * 4),
        ("strides", c_int64 * 4),
    ]


class CArray(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("count", c_int64)]


class CProblem(ctypes.Structure):
    _fields_ = [
        ("version", c_int32),
        ("scale_rule", c_int32),
        ("scale_value", c_double),
        ("scale_per_head", CArray),
        ("has_soft_cap", c_int32),
        ("soft_cap", c_float),
        ("transform", c_void_p * 5),
        ("causal", c_int32),
        ("diagonal", c_int32),
        ("diagonal_offset", c_int64),
        ("window_left", c_int64),
        ("window_right", c_int64),
        ("document_q_starts", CArray),
        ("document_kv_starts", CArray),
        ("allowed", CTensor),
        ("bias", CTensor),
        ("alibi_slopes", CArray),
        ("sink", CArray),
        ("dropout_seed", c_uint64),
        ("dropout_p", c_float),
        ("stats", c_int32),
        ("page_table", CArray),
        ("pages_per_item", c_int64),
        ("paged_len_kv", c_int64),
        ("scale", c_char_p),
        ("ssmax_gains", CArray),
        ("ssmax_offsets", CArray),
        ("stats_sample", c_int64),
        ("stats_sample_offset", c_int64),
        ("stats_first_query", c_int64),
        ("stats_flags", c_int32),
        ("document_items", c_int32),
        ("dropout_device_seed", c_void_p),
        *((field.name, CArray) for field in PER_ITEM),
        ("reserved", c_uint64 * (_SPARE - 2 * len(PER_ITEM))),
    ]


class CInputs(ctypes.Structure):
    _fields_ = [("q", CTensor), ("k", CTensor), ("v", CTensor), ("reserved", c_uint64 * 8)]


class CRows(ctypes.Structure):
    _fields_ = [*((name, CTensor) for name in FULL_ROWS), ("reserved", c_uint64 * 8)]


class COutputs(ctypes.Structure):
    _fields_ = [
        ("o", CTensor),
        ("lse", CTensor),
        *((f"row_{name}", CTensor) for name in BASIC_ROWS),
        ("head_stats", c_void_p),
        ("head_stats_count", c_int64),
        ("key_mass", CTensor),
        ("gaps", c_void_p),
        ("gaps_count", c_int64),
        ("rows", c_void_p),
        ("stats", c_void_p),
        ("reserved", c_uint64 * 6),
    ]


class CBackwardInputs(ctypes.Structure):
    _fields_ = [(name, CTensor) for name in ("q", "k", "v", "o", "lse", "d_o", "d_lse")] + [("reserved", c_uint64 * 8)]


class CGradients(ctypes.Structure):
    _fields_ = [
        *((name, CTensor) for name in ("d_q", "d_k", "d_v", "d_bias")),
        *((name, CArray) for name in ("d_scale", "d_sink", "d_ssmax_gains", "d_ssmax_offsets")),
        ("head_stats", c_void_p),
        ("head_stats_count", c_int64),
        ("reserved", c_uint64 * 4),
    ]


class CHeadGradients(ctypes.Structure):
    _fields_ = [*((name, c_double) for name in GRADIENTS), ("reserved", c_uint64 * 3)]


# The library ----------------------------------------------------------------------------------------------------------
_library: Optional[ctypes.CDLL] = None


def library() -> ctypes.CDLL:
    """The C ABI: librootdk in the package, or inside the compiled module where that was linked statically."""
    global _library
    if _library is None:
        here = pathlib.Path(__file__).parent
        found = sorted((here / "lib").glob("librootdk.so*"))
        if found:
            path = found[0]
        else:
            from . import _core

            path = pathlib.Path(_core.__file__)
        _library = opened(path)
    return _library


def opened(path: pathlib.Path | str) -> ctypes.CDLL:
    lib = ctypes.CDLL(str(path))
    for name in ("rootdk_last_error", "rootdk_version", "rootdk_cuda_missing"):
        getattr(lib, name).restype = c_char_p
    p, size = c_void_p, c_size_t
    for name, arguments in {
        "problem_init": [p],
        "forward": [p, p, p, p, size],
        "backward": [p, p, p, p, size],
        "visible_keys": [p, c_int64, c_int64, c_int64, p, c_int64],
        "stats_free": [p],
        "stats_read": [p, p, c_int64, p, c_int64],
        "stats_shape": [p, p, p],
        "stats_merge": [p, p, p],
        "stats_over_batch": [p, p],
        "stats_of_rows": [p, p],
        "cuda_is_fast": [p, p, c_int32, p],
        "cuda_workspace_size": [p, p, c_int32, p],
        "cuda_explain": [p, p, c_int32, p, size, p],
        "cuda_forward": [p, p, p, p, size, p],
        "cuda_backward": [p, p, p, p, size, p],
        "cuda_read_stats": [p, p, p, size, p, p],
        "cuda_read_gradient_stats": [p, p, p, size, p, p, c_int64],
    }.items():
        getattr(lib, f"rootdk_{name}").argtypes = arguments
    return lib


def check(lib: ctypes.CDLL, status: int) -> None:
    if status != 0:
        text = lib.rootdk_last_error().decode(errors="replace")
        raise {1: ValueError, 2: MemoryError}.get(status, RuntimeError)(text)


_missing: dict[int, str] = {}


def missing(device: Optional[int] = None, guard: Callable[[], Any] = contextlib.nullcontext) -> str:
    """Why a device cannot be used, or nothing; `guard` makes it the current one. Without a number, the current one.
    What a process has found once of a device stays so."""
    if device is not None and device in _missing:
        return _missing[device]
    with guard():
        why: str = library().rootdk_cuda_missing().decode(errors="replace")
    if device is not None:
        _missing[device] = why
    return why


# Arrays ---------------------------------------------------------------------------------------------------------------
_TENSOR = struct.Struct("@Pii8q")
assert _TENSOR.size == ctypes.sizeof(CTensor)


class View:
    """Where an array lies: what CTensor says, and who keeps it alive."""

    __slots__ = ("packed", "shape", "owner")

    def __init__(
        self,
        pointer: int,
        dtype: str,
        shape: Sequence[int],
        strides: Sequence[int],
        device: int = _CUDA,
        owner: Any = None,
    ):
        # An empty array may come without an address, which would mean "absent".
        self.packed = _TENSOR.pack(pointer or (0 if 0 not in shape else 64), DTYPES[dtype], device, *shape, *strides)
        self.shape = tuple(shape)
        self.owner = owner

    def kind(self) -> tuple[bytes, int]:
        """All that a choice of kernels looks at: dtype, shape, strides, and how the address is aligned."""
        return self.packed[8:], self.packed[0] % 16


def _put(to: ctypes.Structure, field: Any, view: Optional[View]) -> None:
    if view is not None:
        ctypes.memmove(ctypes.addressof(to) + field.offset, view.packed, _TENSOR.size)


def kind(problem: Problem) -> tuple[Any, ...]:
    """All that a choice of kernels looks at, beside the tensors: of numbers that change from call to call no more than
    it does."""
    says, heads = problem.description, problem.scale
    factor = (min(heads) >= _LEAST, len(set(heads)) > 1) if len(heads) else says.factor is None or says.factor >= _LEAST
    return (
        says.rule,
        factor,
        says.softcap is None,
        -_FAR <= says.structure.offset <= _FAR,
        problem.mask is None,
        problem.bias is None,
        len(says.alibi or ()),
        says.dropout > 0,
        problem.stats and problem.stats.level,
    )


def c_problem(problem: Problem) -> CProblem:
    """As rootdk/c.h has it; its arrays live as long as it does."""
    p = CProblem()
    library().rootdk_problem_init(ctypes.addressof(p))
    keep: list[Any] = []
    p.kept = keep

    def array(values: Optional[Sequence[Any]], kind: Any) -> CArray:
        if values is None:
            return CArray()
        data = (kind * len(values))(*values)
        keep.append(data)
        return CArray(ctypes.addressof(data), len(values))

    says = problem.description
    structure = says.structure
    if len(problem.scale):
        p.scale_rule, p.scale_per_head = 4, array(problem.scale, c_float)
    elif says.factor is not None:
        p.scale_rule, p.scale_value = 3, says.factor
    elif says.rule != "sqrt_dk":
        p.scale = says.rule.encode()
    if says.softcap is not None:
        p.has_soft_cap, p.soft_cap = 1, says.softcap
    p.causal = structure.causal
    p.diagonal, p.diagonal_offset = KINDS.index(structure.diagonal), structure.offset
    left, right = structure.window or (None, None)
    if left is not None:
        p.window_left = left
    if right is not None:
        p.window_right = right
    p.document_q_starts, p.document_kv_starts = array(structure.q_starts, c_int64), array(structure.kv_starts, c_int64)
    p.document_items = structure.items
    for field, values in zip(PER_ITEM, structure.per_item):
        setattr(p, field.name, array(values, c_int64))
    _put(p, CProblem.allowed, problem.mask)
    _put(p, CProblem.bias, problem.bias)
    if says.alibi:
        p.alibi_slopes = array(says.alibi, c_float)
    if len(problem.sink):
        p.sink = array(problem.sink, c_float)
    p.dropout_p, p.dropout_seed, p.dropout_device_seed = says.dropout, says.seed, problem.seed_address
    p.stats = 0
    if problem.stats is not None:
        wanted = checked(problem.stats)
        p.stats = _LEVELS[problem.stats.level]
        p.stats_sample, p.stats_sample_offset = wanted["sample"], wanted["sample_offset"]
        p.stats_first_query = wanted["first_query"]
        p.stats_flags = (not wanted["causes"]) + 2 * wanted["gaps"] + 4 * wanted["key_mass"] + 8 * wanted["by_keys"]
    return p


# Calls ----------------------------------------------------------------------------------------------------------------
class Place:
    """Where a call runs: workspace of so many bytes, as an object that owns it and its address, a cudaStream_t, and the
    device's number, with what makes it the current one."""

    def __init__(
        self,
        workspace: Callable[[int], tuple[Any, int]],
        stream: int,
        guard: Callable[[], Any] = contextlib.nullcontext,
        device: int = 0,
    ):
        self.workspace, self.stream, self.guard, self.device = workspace, stream, guard, device


def _inputs(q: View, k: View, v: View) -> CInputs:
    inputs = CInputs()
    for field, view in ((CInputs.q, q), (CInputs.k, k), (CInputs.v, v)):
        _put(inputs, field, view)
    return inputs


def _workspace(lib: ctypes.CDLL, problem: CProblem, inputs: CInputs, which: int, place: Place) -> tuple[Any, int, int]:
    size = c_size_t()
    check(
        lib,
        lib.rootdk_cuda_workspace_size(
            ctypes.addressof(problem), ctypes.addressof(inputs), which, ctypes.addressof(size)
        ),
    )
    return *place.workspace(size.value), size.value


def is_fast(problem: Problem, q: View, k: View, v: View, which: int) -> bool:
    lib, c, inputs, fast = library(), c_problem(problem), _inputs(q, k, v), c_int32()
    check(lib, lib.rootdk_cuda_is_fast(ctypes.addressof(c), ctypes.addressof(inputs), which, ctypes.addressof(fast)))
    return bool(fast.value)


def explain(problem: Problem, q: View, k: View, v: View, which: int) -> str:
    return _explain(library(), c_problem(problem), _inputs(q, k, v), which)


def _explain(lib: ctypes.CDLL, problem: CProblem, inputs: CInputs, which: int) -> str:
    needed = c_size_t()
    where = ctypes.addressof(problem), ctypes.addressof(inputs), which
    check(lib, lib.rootdk_cuda_explain(*where, None, 0, ctypes.addressof(needed)))
    words = ctypes.create_string_buffer(needed.value)
    check(lib, lib.rootdk_cuda_explain(*where, ctypes.addressof(words), needed.value, None))
    return words.value.decode()


def _mind_slowness(
    lib: ctypes.CDLL, problem: Problem, c: CProblem, inputs: CInputs, views: Sequence[View], which: int, place: Place
) -> None:
    """To be called where the place's device is the current one."""

    def ask() -> str:
        fast = c_int32()
        check(
            lib,
            lib.rootdk_cuda_is_fast(ctypes.addressof(c), ctypes.addressof(inputs), which, ctypes.addressof(fast)),
        )
        first = "" if fast.value else _explain(lib, c, inputs, which).split("\n", 1)[0]
        return first.removeprefix("slow: ") if first.startswith("slow: ") else ""  # of an empty problem nothing is said

    q, k, v = views
    mind((which, place.device, kind(problem), q.kind(), k.kind(), v.kind()), ask)


def forward(
    problem: Problem,
    q: View,
    k: View,
    v: View,
    o: View,
    lse: Optional[View],
    rows: Mapping[str, View],
    key_mass: Optional[View],
    place: Place,
) -> Callable[..., Any]:
    """Enqueues; returns what reads the statistics into the compiled module's Stats, and waits."""
    lib, c, inputs = library(), c_problem(problem), _inputs(q, k, v)
    outputs, full = COutputs(), CRows()
    for field, view in ((COutputs.o, o), (COutputs.lse, lse), (COutputs.key_mass, key_mass)):
        _put(outputs, field, view)
    for name, row in rows.items():
        if name in BASIC_ROWS:
            _put(outputs, getattr(COutputs, f"row_{name}"), row)
        else:
            _put(full, getattr(CRows, name), row)
            outputs.rows = ctypes.addressof(full)
    with place.guard():
        _mind_slowness(lib, problem, c, inputs, (q, k, v), FORWARD, place)
        owner, address, size = _workspace(lib, c, inputs, FORWARD, place)
        check(
            lib,
            lib.rootdk_cuda_forward(
                ctypes.addressof(c),
                ctypes.addressof(inputs),
                ctypes.addressof(outputs),
                address,
                size,
                place.stream,
            ),
        )

    def read(stream: Optional[int] = None) -> Any:
        """On another stream only what that one waits for is waited for."""
        from . import _core

        handle = c_void_p()
        with place.guard():
            check(
                lib,
                lib.rootdk_cuda_read_stats(
                    ctypes.addressof(c),
                    ctypes.addressof(inputs),
                    address,
                    size,
                    place.stream if stream is None else stream,
                    ctypes.addressof(handle),
                ),
            )
        assert handle.value is not None
        return _core.take_stats(handle.value)

    read.owner = owner  # type: ignore[attr-defined]  # the workspace lives as long as somebody may read it
    return read


def backward(
    problem: Problem,
    tensors: Mapping[str, Optional[View]],
    gradients: Mapping[str, Optional[View]],
    per_head: Mapping[str, Optional[int]],
    place: Place,
) -> Callable[..., Any]:
    """`tensors` are q, k, v, o, lse, d_o and d_lse, `gradients` d_q, d_k, d_v and d_bias, `per_head` the addresses of
    d_scale and d_sink. Returns what reads the statistics of the gradients, at level "full"."""
    lib, c = library(), c_problem(problem)
    q, k, v = tensors["q"], tensors["k"], tensors["v"]
    assert q is not None and k is not None and v is not None
    inputs, back, out = _inputs(q, k, v), CBackwardInputs(), CGradients()
    for name, view in tensors.items():
        _put(back, getattr(CBackwardInputs, name), view)
    for name, view in gradients.items():
        _put(out, getattr(CGradients, name), view)
    batch, heads = q.shape[:2]
    for name, pointer in per_head.items():
        if pointer is not None:
            setattr(out, name, CArray(pointer, heads))
    with place.guard():
        _mind_slowness(lib, problem, c, inputs, (q, k, v), BACKWARD, place)
        owner, address, size = _workspace(lib, c, inputs, BACKWARD, place)
        check(
            lib,
            lib.rootdk_cuda_backward(
                ctypes.addressof(c), ctypes.addressof(back), ctypes.addressof(out), address, size, place.stream
            ),
        )

    def read(stream: Optional[int] = None) -> Any:
        from . import _core

        found = (CHeadGradients * (batch * heads))()
        with place.guard():
            check(
                lib,
                lib.rootdk_cuda_read_gradient_stats(
                    ctypes.addressof(c),
                    ctypes.addressof(inputs),
                    address,
                    size,
                    place.stream if stream is None else stream,
                    ctypes.addressof(found),
                    batch * heads,
                ),
            )
        return _core.gradient_stats(batch, heads, [tuple(getattr(h, name) for name in GRADIENTS) for h in found])

    read.owner = owner  # type: ignore[attr-defined]
    return read
