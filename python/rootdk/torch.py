"""Attention for torch tensors: an operator with gradients for everything that can be learned, and PyTorch's own
signature.

`torch.ops.rootdk.attention` is the operator; `rootdk.attention` and `scaled_dot_product_attention` call it.
"""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any, Literal, Optional, Sequence, overload

import torch
from torch import Tensor

from . import _cuda
from ._attention import ARGUMENTS, four_axes, heads_of
from ._description import Description, Packed
from ._direct import call as call
from ._direct import call_immediately, immediate
from ._kernels import _NAMES as _NAMES  # what is named twice is for the rest of the package, too
from ._kernels import Collector as Collector
from ._kernels import _collectors as _collectors
from ._kernels import _view as _view
from ._kernels import _wide, problem_of
from ._kernels import register as register
from ._kernels import seeds as seeds
from ._kernels import unregister as unregister
from ._operator import transformed as transformed
from ._operator import under_autocast as under_autocast
from ._problem import Arguments, Level, QkNorm, StatsOptions, Window, options_of, real, refuse_names
from ._stats import GradientStats, Stats
from ._structure import Structure, further

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["AuxRequest", "attention", "scaled_dot_product_attention", "varlen_attn", "varlen_attn_out"]


# rootdk.attention -----------------------------------------------------------------------------------------------------
class _Box:
    """Takes the statistics of one call."""

    def __init__(self, options: StatsOptions):
        self.options = options
        self.stats: Optional[Stats] = None

    def on_forward(self, stats: Stats) -> None:
        self.stats = stats

    def on_backward(self, stats: GradientStats) -> None:
        pass


def _check(name: str, x: Any, like: Optional[Tensor] = None) -> Tensor:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: {type(x).__name__}, but q is a torch tensor, so a torch tensor is wanted")
    if x.layout != torch.strided or x.is_quantized:
        raise TypeError(f"{name}: layout is {x.layout}, but a dense tensor is wanted")
    if like is not None and x.device != like.device:
        raise ValueError(f"{name}: lies on {x.device}, but q on {like.device}")
    return x


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    stats: None = None,
    return_lse: Literal[False] = False,
    **others: Unpack[Arguments],
) -> Tensor: ...
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, stats: None = None, return_lse: Literal[True], **others: Unpack[Arguments]
) -> tuple[Tensor, Tensor]: ...
@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    stats: StatsOptions | Level,
    return_lse: Literal[False] = False,
    **others: Unpack[Arguments],
) -> tuple[Tensor, Stats]: ...
@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    stats: StatsOptions | Level,
    return_lse: Literal[True],
    **others: Unpack[Arguments],
) -> tuple[Tensor, Tensor, Stats]: ...
@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    stats: StatsOptions | str | None = None,
    return_lse: bool = False,
    **others: Unpack[Arguments],
) -> Any: ...
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: Any = "sqrt_dk",
    causal: bool = False,
    diagonal: str | int = "bottom_right",
    window: Window = None,
    key_starts: Any = None,
    key_lengths: Any = None,
    query_lengths: Any = None,
    documents: Any = None,
    mask: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    alibi: Any = None,
    softcap: Optional[float] = None,
    sink: Any = None,
    qk_norm: QkNorm | str | None = None,
    dropout: float = 0.0,
    seed: int | Tensor | None = None,
    stats: StatsOptions | str | None = None,
    return_lse: bool = False,
    **unknown: Any,
) -> Any:
    """`rootdk.attention` for torch tensors. Gradients reach q, k, v, and scale, bias, sink and QK-norm's gains where
    they are tensors.

    Without a seed, dropout draws one from torch's generator of q's device; a seed may also be an int64 tensor there,
    with one element. Under torch.autocast q, k, v and bias are cast as F.scaled_dot_product_attention casts them. With
    return_lse the logsumexp [batch, heads, len_q] comes second; it has gradients, too (z-loss).
    """
    if (
        window is key_starts is key_lengths is query_lengths is documents is None
        and mask is bias is alibi is sink is None
        and qk_norm is None
        and seed is None
        and stats is None
        and type(dropout) is float
        and dropout == 0.0
        and type(scale) in _SIMPLE
        and type(softcap) in _SIMPLE
        and not return_lse
        and not unknown
        and immediate(q, k, v)
    ):
        try:
            return call_immediately(q, k, v, *_simple(scale, causal, diagonal, softcap))
        except (ValueError, TypeError, NotImplementedError):
            pass  # said below, with more care
    per_item = dict(key_starts=key_starts, key_lengths=key_lengths, query_lengths=query_lengths, **further(unknown))
    if unknown:
        refuse_names("attention", unknown, (*ARGUMENTS, "return_lse"))
    q = _check("q", q)
    k, v = _check("k", k, q), _check("v", v, q)
    heads = heads_of(q)
    for name, x in (("k", k), ("v", v)):
        if x.ndim != 4:
            raise ValueError(f"{name}: {x.ndim} axes, but the 4 of [batch, heads, length, dim] are wanted")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dtype not in _NAMES:
            raise TypeError(f"{name}: dtype is {x.dtype}, but float32, float16, bfloat16 or float64 is wanted")
    if q.device.type not in ("cpu", "cuda", "meta"):
        raise ValueError(f"q: lies on {q.device}, but the CPU or a CUDA device is wanted")
    options = options_of(stats)
    if (norm := QkNorm.of(qk_norm)) is not None:
        q, k = _normalised(norm, norm.q_gain, q), _normalised(norm, norm.k_gain, k)
    rule, factor, scales = "sqrt_dk", None, None
    if scale is None or isinstance(scale, str):
        rule = "sqrt_dk" if scale is None else scale
    elif isinstance(scale, Tensor):
        scales = scale.expand(heads) if scale.ndim == 0 else scale
    elif hasattr(scale, "__len__"):
        scales = torch.tensor([real("scale", c) for c in scale], dtype=torch.float32)
    else:
        factor = real("scale", scale)
    sinks = None
    if sink is not None:
        sinks = sink if isinstance(sink, Tensor) else torch.as_tensor(sink, dtype=torch.float32)
        sinks = sinks.expand(heads) if sinks.ndim == 0 else sinks
    structure = Structure.of(
        causal,
        diagonal,
        window,
        documents,
        **{name: _constant(name, values) for name, values in per_item.items()},
    )
    dropout = real("dropout", _constant("dropout", dropout))
    number, seed_tensor = seeds(q, dropout, seed)
    slopes = None
    if alibi is not None:
        _constant("alibi", alibi)
        slopes = tuple(float(slope) for slope in (alibi.tolist() if hasattr(alibi, "tolist") else alibi))
    cap = None if softcap is None else real("softcap", _constant("softcap", softcap))
    packed = Description(structure, rule, factor, cap, slopes, dropout, number).packed()
    box = _Box(options) if options is not None else None
    tag = register(box) if box is not None else 0
    try:
        out, lse = call(
            q,
            k,
            v,
            scales,
            None if mask is None else four_axes("mask", _check("mask", mask, q)),
            None if bias is None else four_axes("bias", _check("bias", bias, q)),
            sinks,
            seed_tensor,
            *packed,
            tag,
        )
    finally:
        unregister(tag)
    results = (out, lse) if return_lse else (out,)
    if box is not None:
        if box.stats is None and transformed(q, k, v, scales, mask, bias, sinks):
            raise NotImplementedError(
                "stats: not known under torch.func, torch.vmap and forward-mode differentiation; leave them out there"
            )
        results += (box.stats,)
    return results if len(results) > 1 else out


_SIMPLE = (float, str, type(None))


@functools.lru_cache(256, typed=True)
def _simple(scale: float | str | None, causal: bool, diagonal: str | int, softcap: Optional[float]) -> Packed:
    """Most calls say no more than this, and the same again and again."""
    rule, factor = ("sqrt_dk", scale) if isinstance(scale, float) else ("sqrt_dk" if scale is None else scale, None)
    cap = None if softcap is None else real("softcap", softcap)
    return Description(Structure.of(causal, diagonal), rule, factor, cap).packed()


def _constant(name: str, value: Any) -> Any:
    """What problems keep on the host as numbers: neither gradients nor transforms would get through that."""
    if isinstance(value, Tensor):
        if transformed(value):
            raise ValueError(
                f"{name}: a tensor that torch.func, vmap or a tangent is at work on, but numbers are wanted; a "
                "bias or a mask can be such"
            )
        if torch.is_grad_enabled() and value.requires_grad:
            raise ValueError(f"{name}: requires grad, but it is taken as numbers and would not learn; detach it")
    return value


def _normalised(norm: QkNorm, gain: Any, x: Tensor) -> Tensor:
    """In plain torch, so that its gradients are torch's; the same formula as the engine's."""
    wide = x.to(_wide(x.dtype))
    if norm.kind == "layer":
        wide = wide - wide.mean(-1, keepdim=True)
    square = (wide * wide).sum(-1, keepdim=True) if norm.kind == "l2" else (wide * wide).mean(-1, keepdim=True)
    wide = wide * torch.rsqrt(square + norm.eps)
    if gain is not None:
        gain = torch.as_tensor(gain)
        dim, heads = x.shape[3], x.shape[1]
        if gain.shape not in ((dim,), (heads, dim)):
            raise ValueError(f"qk_norm: gain is {list(gain.shape)}, but [{dim}] or [{heads}, {dim}] is wanted")
        wide = wide * (gain if gain.ndim == 1 else gain[:, None, :])
    return wide.to(x.dtype)


# PyTorch's signature --------------------------------------------------------------------------------------------------
_warned: set[str] = set()


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, stacklevel=3)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Exactly PyTorch's arguments, and its meaning: is_causal is top-left. What rootdk does not compute (nested
    tensors, float64 on a GPU) and what PyTorch refuses goes to PyTorch, with its own message."""
    if (
        type(dropout_p) is float
        and dropout_p == 0.0
        and (scale is None or type(scale) is float)
        and type(is_causal) is type(enable_gqa) is bool
        and immediate(query, key, value)
        and _well_formed(query, key, value, enable_gqa)
    ):
        packed = _pytorch_s(is_causal, scale)
        try:
            if attn_mask is None:
                return call_immediately(query, key, value, *packed)
            if type(attn_mask) is Tensor and attn_mask.is_cpu and 2 <= attn_mask.ndim <= 4 and not is_causal:
                table = _mask_four(attn_mask, ())
                tables = (table, None) if table.dtype == torch.bool else (None, table)
                return call(query, key, value, None, *tables, None, None, *packed)[0]  # type: ignore[no-any-return]
        except (ValueError, RuntimeError):
            pass  # PyTorch's to say
    if isinstance(key, Tensor) and isinstance(value, Tensor) and not (key.is_nested or value.is_nested):
        if key.ndim == value.ndim >= 2 and key.shape[-2] != value.shape[-2]:
            # PyTorch's fused kernel does not look, and its backward writes where it must not.
            raise RuntimeError(f"value: len_kv is {value.shape[-2]}, but key has {key.shape[-2]}")
    q, k, v, mask = under_autocast(query, key, value, attn_mask)
    why_not = _why_not(q, k, v, mask, dropout_p, is_causal, scale, enable_gqa)  # type: ignore[arg-type]
    if why_not is not None:
        if why_not:
            _warn_once(f"rootdk.torch.scaled_dot_product_attention: {why_not}; PyTorch's own is used")
        return torch.nn.functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=attn_mask,
            dropout_p=dropout_p,
            is_causal=is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )
    return computed(q, k, v, mask, dropout_p, is_causal, scale)  # type: ignore[arg-type]


def _well_formed(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> bool:
    """What PyTorch is stricter about than the engine."""
    return (
        query.ndim == 4
        and query.numel() > 0
        and key.numel() > 0
        and value.numel() > 0
        and (enable_gqa or query.size(1) == key.size(1))
    )


def computed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Optional[Tensor],
    dropout_p: float,
    is_causal: bool,
    scale: Optional[float],
    tag: int = 0,
) -> Tensor:
    """The above where it is ours to compute, with statistics to whoever is listed under `tag`."""
    batch = _batch(query, key, value)
    q, k, v = _four(query, batch), _four(key, batch), _four(value, batch)
    mask = bias = None
    if attn_mask is not None:
        full = (*batch, *((1,) if query.ndim == 2 else (query.shape[-3],)), query.shape[-2], key.shape[-2])
        table = _mask_four(attn_mask, full)
        mask, bias = (table, None) if table.dtype == torch.bool else (None, table)
    seed, seed_tensor = seeds(query, dropout_p)
    out: Tensor
    packed = pytorch_s(is_causal, scale, dropout_p, seed).packed()
    out, _ = call(q, k, v, None, mask, bias, None, seed_tensor, *packed, tag)
    if query.ndim == 4:
        return out
    heads = query.shape[-3:-2]  # none where there are two axes
    return out.reshape((*batch, *heads, query.shape[-2], value.shape[-1]))


def pytorch_s(is_causal: bool, scale: Optional[float] = None, dropout: float = 0.0, seed: int = 0) -> Description:
    """What PyTorch's arguments mean."""
    structure = Structure(causal=True, diagonal="top_left") if is_causal else Structure()
    return Description(structure, factor=scale, dropout=dropout, seed=seed)


@functools.lru_cache(256, typed=True)
def _pytorch_s(is_causal: bool, scale: Optional[float]) -> Packed:
    return pytorch_s(is_causal, scale).packed()


def is_fast(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Optional[Tensor],
    is_causal: bool,
    scale: Optional[float],
    options: StatsOptions,
    passes: Sequence[int],
) -> bool:
    """Whether the above, on a GPU, is for fast kernels, with these statistics and in all of the passes."""
    batch = _batch(query, key, value)
    q, k, v = _four(query.detach(), batch), _four(key.detach(), batch), _four(value.detach(), batch)
    mask = bias = None
    if attn_mask is not None:
        table = _mask_four(attn_mask.detach(), (*batch, *query.shape[-3:-1], key.shape[-2]))
        mask, bias = (table, None) if table.dtype == torch.bool else (None, table)
    problem = problem_of(q, None, mask, bias, None, None, pytorch_s(is_causal, scale), options)
    views = _view("q", q, q), _view("k", k, q), _view("v", v, q)
    with torch.cuda.device(q.device):
        return all(_cuda.is_fast(problem, *views, which) for which in passes)


def _gpu_missing(device: int) -> str:
    if not torch.cuda.is_available():
        return _cuda.missing(device)
    return _cuda.missing(device, lambda: torch.cuda.device(device))


# torch.compiler.assume_constant_result, without what that imports.
_gpu_missing._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _batch(query: Tensor, key: Tensor, value: Tensor) -> Sequence[int]:
    """The axes before heads; torch takes its time to broadcast what is alike."""
    shapes = query.shape[:-3], key.shape[:-3], value.shape[:-3]
    return shapes[0] if shapes[0] == shapes[1] == shapes[2] else torch.broadcast_shapes(*shapes)


def _four(x: Tensor, batch: Sequence[int]) -> Tensor:
    """[…, length, dim] as [batch, heads, length, dim]."""
    if x.ndim == 2:
        return x[None, None]
    if x.ndim == 3:
        return x[None]
    x = x.expand(*batch, *x.shape[-3:])
    return x if x.ndim == 4 else x.reshape(-1, *x.shape[-3:])


def _mask_four(mask: Tensor, full: Sequence[int]) -> Tensor:
    """Broadcast axes stay 1, so that nothing of size len_q × len_kv is made that was not there."""
    if len(full) <= 4 and mask.ndim <= 4:
        return mask if mask.ndim == 4 else mask.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape))
    mask = mask.reshape((1,) * (len(full) - mask.ndim) + tuple(mask.shape)) if mask.ndim < len(full) else mask
    if mask.ndim == 4:
        return mask
    return mask.expand(*full[:-3], *mask.shape[-3:]).reshape(-1, *mask.shape[-3:])


def _why_not(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Optional[Tensor],
    dropout_p: float,
    is_causal: bool,
    scale: Optional[float],
    enable_gqa: bool,
) -> Optional[str]:
    """None if this is ours to compute; "" if PyTorch will refuse it or it is PyTorch's business; else what the user
    should know."""
    tensors = [x for x in (query, key, value, attn_mask) if x is not None]
    if not all(isinstance(x, Tensor) for x in tensors):
        return ""
    if any(x.is_nested or x.layout != torch.strided for x in tensors):
        return "nested and sparse tensors are not rootdk's"
    if any(x.device != query.device for x in tensors) or query.device.type == "meta":
        return ""
    if query.device.type != "cpu":
        if query.device.type != "cuda":
            return f"tensors on {query.device.type} are not rootdk's"
        if gpu := _gpu_missing(query.device.index or 0):
            return gpu
        if query.dtype == torch.float64:
            return "on a GPU float64 is not rootdk's"
    if query.dtype not in _NAMES or key.dtype != query.dtype or value.dtype != query.dtype:
        return ""
    if min(query.ndim, key.ndim, value.ndim) < 2 or not query.ndim == key.ndim == value.ndim:
        return ""
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        return ""
    if 0 in query.shape or 0 in key.shape or 0 in value.shape:
        return ""
    if query.ndim > 2:
        heads_q, heads_k, heads_v = query.shape[-3], key.shape[-3], value.shape[-3]
        if not (
            heads_q == heads_k == heads_v
            or (enable_gqa and query.ndim == 4 and heads_k == heads_v and heads_q % heads_k == 0)
        ):
            return ""
    try:
        batch = _batch(query, key, value)
    except RuntimeError:
        return ""
    if not isinstance(dropout_p, (int, float)) or not 0 <= dropout_p < 1:
        return ""
    if (
        not isinstance(is_causal, bool)
        or not isinstance(enable_gqa, bool)
        or not isinstance(scale, (int, float, type(None)))
    ):
        return ""
    if attn_mask is not None:
        if is_causal or attn_mask.dtype not in (torch.bool, query.dtype) and attn_mask.dtype != torch.float32:
            return ""
        if attn_mask.ndim < 2 or attn_mask.ndim > max(query.ndim, 2):
            return ""
        full = (*batch, *query.shape[-3:-1], key.shape[-2]) if query.ndim > 2 else (query.shape[-2], key.shape[-2])
        if any(size not in (1, whole) for size, whole in zip(reversed(attn_mask.shape), reversed(full))):
            return ""
    return None


# What is built on the above; the provider is listed with torch as it is imported.
from . import _provider as _provider  # noqa: E402
from ._varlen import AuxRequest, varlen_attn, varlen_attn_out  # noqa: E402
