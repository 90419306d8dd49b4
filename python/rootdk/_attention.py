"""rootdk.attention for numpy, jax and whatever else speaks DLPack; torch tensors go to rootdk.torch."""

from __future__ import annotations

import functools
import secrets
import sys
from typing import TYPE_CHECKING, Any, Callable, TypeVar, overload

import numpy as np

from . import _core, _cuda
from ._cuda_arrays import Maker, attend, current, device_of, normalised
from ._description import Description, Problem
from ._masks import PER_ITEM
from ._problem import (
    Arguments,
    Level,
    QkNorm,
    StatsOptions,
    Window,
    flag,
    options_of,
    real,
    reals,
    refuse_names,
    refuse_tracers,
    row_names,
    whole,
)
from ._stats import Rows, Stats
from ._structure import Structure, further

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["QkNorm", "StatsOptions", "attention", "explain_plan"]

_ARRAY = "an array (numpy, torch, jax, or anything with __dlpack__)"
_NUMPY_NAMES = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}


Array = TypeVar("Array")


@overload
def attention(q: Array, k: Any, v: Any, *, stats: None = None, **others: Unpack[Arguments]) -> Array: ...
@overload
def attention(
    q: Array, k: Any, v: Any, *, stats: StatsOptions | Level, **others: Unpack[Arguments]
) -> tuple[Array, Stats]: ...
@overload
def attention(q: Array, k: Any, v: Any, *, stats: StatsOptions | str | None, **others: Unpack[Arguments]) -> Any: ...
def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    scale: Any = "sqrt_dk",
    causal: bool = False,
    diagonal: str | int = "bottom_right",
    window: Window = None,
    key_starts: Any = None,
    key_lengths: Any = None,
    query_lengths: Any = None,
    documents: Any = None,
    mask: Any = None,
    bias: Any = None,
    alibi: Any = None,
    softcap: float | None = None,
    sink: Any = None,
    qk_norm: QkNorm | str | None = None,
    dropout: float = 0.0,
    seed: Any = None,
    stats: StatsOptions | str | None = None,
    **unknown: Any,
) -> Any:
    """softmax(c·QKᵀ)V, and what the scores did on the way.

    q is [batch, heads_q, len_q, dim_qk]; k and v are [batch, heads_kv, len_kv, dim], heads_kv divides heads_q. Any
    strides, float32, float16, bfloat16 or float64, from numpy, torch, jax or anything with ``__dlpack__``; nothing is
    copied, and the output comes back as what q was. On the CPU, or on the CUDA device where q, k, v, mask and bias lie
    (not in float64): there a call only enqueues, and statistics wait when they are read.

    scale        a name ("sqrt_dk", "none", "dk", "sqrt_dk*ssmax(0.43)"; ``rootdk.rules()``), a number, or one per query
                 head; None is "sqrt_dk"
    causal       hides keys after the query's position. Where that is says ``diagonal``: "bottom_right" (the last query
                 stands on the last key), "top_left" (what PyTorch's is_causal means), "last_key" (of key_lengths), or
                 query 0's position
    window       (left, right), None or -1 for unbounded; a number is both
    key_starts, key_lengths one per batch item: keys before the one, and from the other on, are hidden (padding on
    either side) query_lengths one per batch item: rows from there on are padding; they see nothing, and statistics
    leave them out documents starts of documents packed end to end, and their end; a list for each batch item where
    those differ, a pair
                 (q, kv) where queries and keys do
    mask         bool, broadcast to [batch, heads_q, len_q, len_kv]: False hides
    bias         added to the scores, broadcast alike; -inf hides
    alibi        one slope per query head
    softcap      cap·tanh(score/cap)
    sink         per query head, or one for all: one more key of that score and value 0
    qk_norm      "rms", "layer", "l2" or a QkNorm
    dropout      on the probabilities; ``seed`` says which. Without a seed one is drawn; torch's generator of q's device
                 draws it for torch
    stats        None, "basic", "full" or StatsOptions: returns (output, Stats)

    Raises ValueError or TypeError with one line that names the argument, what came and what was wanted.
    """
    per_item = further(unknown)
    if unknown:
        refuse_names("attention", unknown, ARGUMENTS)
    arguments = dict(
        **per_item,
        scale=scale,
        causal=causal,
        diagonal=diagonal,
        window=window,
        key_starts=key_starts,
        key_lengths=key_lengths,
        query_lengths=query_lengths,
        documents=documents,
        mask=mask,
        bias=bias,
        alibi=alibi,
        softcap=softcap,
        sink=sink,
        qk_norm=qk_norm,
        dropout=dropout,
        seed=seed,
        stats=stats,
    )
    if is_torch(q) or is_torch(k) or is_torch(v):
        return _of_torch()(q, k, v, **arguments)
    for name in ("scale", "mask", "bias", "alibi", "sink"):
        if is_torch(arguments[name]):
            raise TypeError(
                f"{name}: a torch tensor, but q is {type(q).__name__}; gradients need torch tensors throughout"
            )
    refuse_tracers({"q": q, "k": k, "v": v, **arguments})
    return _attend(q, k, v, **arguments)


#: what can be said of an attention beside q, k and v
ARGUMENTS = tuple(dict.fromkeys((*Arguments.__annotations__, *(field.name for field in PER_ITEM), "stats")))


def explain_plan(q: Any, k: Any, v: Any, *, backward: bool = False, **arguments: Any) -> str:
    """Which kernel will run with these arguments of :func:`attention`, with which tiles and threads, and why nothing
    faster."""
    refuse_names("explain_plan", (name for name in arguments if name not in ARGUMENTS), ARGUMENTS)
    refuse_tracers({"q": q, "k": k, "v": v, **arguments})
    options = options_of(arguments.pop("stats", "basic"))
    arguments.pop("qk_norm", None)
    arguments.pop("seed", None)
    for name, array in (("k", k), ("v", v)):
        if not hasattr(array, "shape") or is_torch(q) and not is_torch(array):
            wanted = "a torch tensor, as q is," if is_torch(q) else _ARRAY
            raise TypeError(f"{name}: {type(array).__name__}, but {wanted} is wanted")
    if is_torch(q):
        from .torch import under_autocast

        q, k, v, bias = under_autocast(q.detach(), k.detach(), v.detach(), arguments.pop("bias", None))
        arguments |= {} if bias is None else {"bias": bias.detach() if is_torch(bias) else bias}
    if (device := device_of(q)) is not None:
        view = torch_viewer(q) if is_torch(q) else Maker(q).view
        problem = build(heads_of(q), options=options, view=view, **arguments)
        with current(device):
            return _cuda.explain(
                problem, view("q", q), view("k", k), view("v", v), _cuda.BACKWARD if backward else _cuda.FORWARD
            )
    spec = build(heads_of(q), options=options, **arguments).spec()
    return _core.explain_plan(spec, q, k, v, flag("backward", backward))


def torch_viewer(q: Any) -> Callable[[str, Any], _cuda.View]:
    from .torch import _view

    return lambda name, array: _view(name, array, q)


def is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


@functools.lru_cache(None)
def _of_torch() -> Callable[..., Any]:
    from .torch import attention

    return attention


def heads_of(q: Any) -> int:
    shape = getattr(q, "shape", None)
    if shape is None:
        raise TypeError(f"q: {type(q).__name__}, but {_ARRAY} is wanted")
    if len(shape) != 4:
        raise ValueError(f"q: {len(shape)} axes, but the 4 of [batch, heads, length, dim] are wanted")
    return int(shape[1])


def four_axes(name: str, array: Any) -> Any:
    """A mask or bias broadcasts as numpy's rules say: axes are added in front."""
    shape = getattr(array, "shape", None)
    if shape is None:
        raise TypeError(f"{name}: {type(array).__name__}, but an array is wanted")
    if len(shape) > 4:
        raise ValueError(f"{name}: {len(shape)} axes, but at most the 4 of [batch, heads, len_q, len_kv] are wanted")
    return array if len(shape) == 4 else array.reshape((1,) * (4 - len(shape)) + tuple(shape))


def build(
    heads: int,
    *,
    scale: Any = "sqrt_dk",
    mask: Any = None,
    bias: Any = None,
    alibi: Any = None,
    softcap: float | None = None,
    sink: Any = None,
    dropout: float = 0.0,
    seed: int = 0,
    options: StatsOptions | None = None,
    view: Callable[[str, Any], Any] = lambda name, array: array,
    **structural: Any,
) -> Problem:
    """From the arguments of attention; `view` says what a mask or bias becomes."""
    rule, factor, scales = "sqrt_dk", None, []
    if scale is None or isinstance(scale, str):
        rule = "sqrt_dk" if scale is None else scale
    elif hasattr(scale, "__len__") and getattr(scale, "shape", (1,)) != ():
        scales = reals("scale", scale, heads)
    else:
        factor = real("scale", scale)
    description = Description(
        Structure.of(**structural),
        rule,
        factor,
        None if softcap is None else real("softcap", softcap),
        None if alibi is None else tuple(reals("alibi", alibi, heads)),
        real("dropout", dropout),
        seed,
    )
    return Problem(
        description,
        scales,
        [] if sink is None else reals("sink", sink, heads),
        None if mask is None else view("mask", four_axes("mask", mask)),
        None if bias is None else view("bias", four_axes("bias", bias)),
        options,
    )


def seed_of(seed: int | None, dropout: float) -> int:
    if seed is None:
        return secrets.randbits(63) if dropout else 0
    number = whole("seed", seed)
    if number < 0:
        raise ValueError(f"seed: {number}, but it cannot be negative")
    return number


def _attend(
    q: Any, k: Any, v: Any, *, qk_norm: Any, seed: int | None, stats: Any, dropout: float, **arguments: Any
) -> Any:
    heads = heads_of(q)
    options = options_of(stats)
    for name, array in (("k", k), ("v", v)):
        if not hasattr(array, "shape"):
            raise TypeError(f"{name}: {type(array).__name__}, but {_ARRAY} is wanted")
    if device_of(q) is not None:
        maker = Maker(q)
        problem = build(
            heads, options=options, dropout=dropout, seed=seed_of(seed, dropout), view=maker.view, **arguments
        )
        if (norm := QkNorm.of(qk_norm)) is not None:
            q, k = normalised(norm, norm.q_gain, q), normalised(norm, norm.k_gain, k)
        return attend(problem, maker, q, k, v, options)
    spec = build(heads, options=options, dropout=dropout, seed=seed_of(seed, dropout), **arguments).spec()
    if (norm := QkNorm.of(qk_norm)) is not None:
        q, k = _normalised("q", norm, norm.q_gain, q), _normalised("k", norm, norm.k_gain, k)
    batch, _, len_q, _ = q.shape
    dim_v = v.shape[3] if len(v.shape) == 4 else 0
    out = _empty(q, (batch, heads, len_q, dim_v))
    if options is None:
        _core.forward(spec, q, k, v, out.buffer, None, {}, None)
        return out.array()
    wide = "f64" if out.dtype == "f64" else "f32"
    rows = {name: _empty(q, (batch, heads, len_q, 1), wide) for name in row_names(options)}
    lse = _empty(q, (batch, heads, len_q, 1), wide) if options.rows else None
    mass = _empty(q, (batch, heads, k.shape[2], 1), wide) if options.key_mass else None
    core = _core.forward(
        spec,
        q,
        k,
        v,
        out.buffer,
        lse and lse.buffer,
        {name: row.buffer for name, row in rows.items()},
        mass and mass.buffer,
    )
    kept = Rows({name: row.array()[..., 0] for name, row in ({"lse": lse} | rows).items()}) if lse else None
    return out.array(), Stats(core, kept, mass.array()[..., 0] if mass else None)


class _Empty:
    """Memory to be written, and the same as an array of the caller's framework."""

    def __init__(self, like: Any, shape: tuple[int, ...], dtype: str):
        self.like, self.dtype = like, dtype
        if isinstance(like, np.ndarray):
            self.buffer: Any = np.empty(shape, {"f32": np.float32, "f64": np.float64, "f16": np.float16}[dtype])
        else:
            self.buffer = _core.empty(list(shape), dtype)

    def array(self) -> Any:
        if isinstance(self.like, np.ndarray):
            return self.buffer
        namespace = getattr(self.like, "__array_namespace__", None)
        if namespace is not None:
            return namespace().from_dlpack(self.buffer)
        return self.buffer  # an object with __dlpack__, which any framework can take


def _empty(like: Any, shape: tuple[int, ...], dtype: str | None = None) -> _Empty:
    if dtype is None:
        name = str(getattr(like, "dtype", "")).rsplit(".", 1)[-1]
        dtype = _NUMPY_NAMES.get(name)
        if dtype is None:
            raise TypeError(f"q: dtype is {name or 'unknown'}, but float32, float16, bfloat16 or float64 is wanted")
        if dtype == "bf16" and isinstance(like, np.ndarray):
            raise TypeError("q: numpy has no bfloat16 that others can read; pass a torch or jax array, or float32")
    return _Empty(like, shape, dtype)


def _normalised(name: str, norm: QkNorm, gain: Any, x: Any) -> Any:
    listed: list[float] = []
    if gain is not None:
        values = np.asarray(gain, dtype=np.float32)
        dim, heads = x.shape[3], x.shape[1]
        if values.shape not in ((dim,), (heads, dim)):
            raise ValueError(
                f"qk_norm: gain of {name} is {list(values.shape)}, but [{dim}] or [{heads}, {dim}] is wanted"
            )
        listed = values.ravel().tolist()
    y = _empty(x, tuple(x.shape))
    _core.normalise(norm.kind, real("qk_norm.eps", norm.eps), listed, x, y.buffer)
    return y.buffer if not isinstance(x, np.ndarray) and not hasattr(x, "__array_namespace__") else y.array()
