"""Attention for torch tensors: an operator with gradients for everything that can be learned, and PyTorch's own signature.

`torch.ops.rootdk.attention` is the operator; `rootdk.attention` and `scaled_dot_product_attention` call it.
"""
from __future__ import annotations

import threading
import warnings
from typing import Any, Callable, Optional, Protocol, Sequence

import torch
from torch import Tensor

from . import _core, _cuda
from ._attention import four_axes, heads_of, seed_of
from ._problem import (QkNorm, StatsOptions, apply_options, diagonal_of, documents_of, flag, options_of, real, row_names, wholes,
                       window_of)
from ._stats import GradientStats, Rows, Stats

__all__ = ["attention", "scaled_dot_product_attention"]

_NAMES = {torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16"}
_UNBOUNDED = -1  # a side of a window, in the operator's arguments


# Who wants to know ----------------------------------------------------------------------------------------------------
class Collector(Protocol):
    """Receives what a call of the operator learned. An operator returns tensors only, so this is a way beside it: the call
    carries the number under which its collector is listed."""

    options: StatsOptions

    def on_forward(self, stats: Stats) -> None: ...

    def on_backward(self, stats: GradientStats) -> None: ...


_collectors: dict[int, Collector] = {}
_next_tag = 1
_tag_lock = threading.Lock()


def register(collector: Collector) -> int:
    global _next_tag
    with _tag_lock:
        tag, _next_tag = _next_tag, _next_tag + 1
        _collectors[tag] = collector
    return tag


def unregister(tag: int) -> None:
    _collectors.pop(tag, None)


# The operator ---------------------------------------------------------------------------------------------------------
def _spec(q: Tensor, scale: Optional[Tensor], rule: str, factor: Optional[float], mask: Optional[Tensor], bias: Optional[Tensor],
          sink: Optional[Tensor], softcap: Optional[float], causal: bool, diagonal: str, offset: int,
          window: Optional[Sequence[int]], key_lengths: Optional[Sequence[int]], q_starts: Optional[Sequence[int]],
          kv_starts: Optional[Sequence[int]], alibi: Optional[Sequence[float]], dropout: float, seed: int,
          seed_tensor: Optional[Tensor] = None) -> Any:
    """The compiled module's Spec, or that of _cuda."""
    spec: Any = _cuda.Spec() if q.is_cuda else _core.Spec()
    heads = q.shape[1]
    if scale is not None:
        spec.scale_heads = _per_head("scale", scale, heads)
    elif factor is not None:
        spec.scale_value = factor
    else:
        spec.scale = rule
    spec.softcap = softcap
    spec.causal = causal
    spec.diagonal, spec.diagonal_offset = diagonal, offset
    if window is not None:
        spec.set_window(*(None if side == _UNBOUNDED else side for side in window))
    if key_lengths is not None:
        spec.set_key_lengths(list(key_lengths))
    if q_starts is not None and kv_starts is not None:
        spec.set_documents(list(q_starts), list(kv_starts))
    if mask is not None:
        spec.set_allowed(_view("mask", mask, q) if q.is_cuda else mask.detach())
    if bias is not None:
        spec.set_bias(_view("bias", bias, q) if q.is_cuda else bias.detach())
    if sink is not None:
        spec.sink = _per_head("sink", sink, heads)
    if alibi is not None:
        spec.alibi = list(alibi)
    spec.dropout = dropout
    spec.seed = seed
    if seed_tensor is not None:
        _check_seed(seed_tensor, q)
        if q.is_cuda:
            spec.seed_address = seed_tensor.data_ptr()
        else:
            spec.seed = int(seed_tensor) % 2**64
    return spec


def _check_seed(seed: Tensor, q: Tensor) -> None:
    if seed.device != q.device:
        raise ValueError(f"seed: lies on {seed.device}, but q on {q.device}")
    if seed.dtype != torch.int64 or seed.numel() != 1:
        raise ValueError(f"seed: {seed.numel()} elements of {seed.dtype}, but one of torch.int64 is wanted")


def seeds(q: Tensor, dropout: float, seed: Any = None) -> tuple[int, Optional[Tensor]]:
    """The operator's `seed` and `seed_tensor`. A seed that nobody gave comes from torch's generator of q's device and stays there: nothing
    waits, and every replay of a captured graph draws another."""
    if isinstance(seed, Tensor):
        _check_seed(seed, q)
        return 0, seed
    if seed is None and dropout > 0:
        return 0, torch.randint(0, 2**62, (), device=q.device)
    return seed_of(seed, 0.0), None


def under_autocast(*tensors: Optional[Tensor]) -> tuple[Optional[Tensor], ...]:
    """As torch's autocast gives their arguments to its own attention: what is floating and not float64 in autocast's dtype. The first one's
    device counts."""
    kind = tensors[0].device.type if isinstance(tensors[0], Tensor) else ""
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)

    def cast(x: Optional[Tensor]) -> Optional[Tensor]:
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.dtype == torch.float64 or x.device.type != kind:
            return x
        return x.to(dtype)

    return tuple(cast(x) for x in tensors)


def _per_head(name: str, values: Tensor, heads: int) -> list[float]:
    if values.shape != (heads,):
        raise ValueError(f"{name}: shape is {list(values.shape)}, but one value for each of {heads} query heads is wanted")
    return values.detach().float().tolist()


def _view(name: str, x: Tensor, like: Tensor) -> _cuda.View:
    if x.device != like.device:
        raise ValueError(f"{name}: lies on {x.device}, but q on {like.device}")
    if x.ndim != 4:
        raise ValueError(f"{name}: {x.ndim} axes, but the 4 of [batch, heads, length, dim] are wanted")
    if x.dtype not in _NAMES and x.dtype != torch.bool:
        raise ValueError(f"{name}: dtype is {x.dtype}, but float32, float16 or bfloat16 (or bool for masks) is wanted")
    return _cuda.View(x.data_ptr(), _NAMES.get(x.dtype, "bool"), x.shape, x.stride())


def _place(q: Tensor) -> _cuda.Place:
    """On torch's current stream; the workspace comes from its allocator, and so from a graph's pool under capture."""
    stream = torch.cuda.current_stream(q.device)

    def workspace(size: int) -> tuple[Any, int]:
        memory = torch.empty(max(size, 1), dtype=torch.uint8, device=q.device)
        return (memory, stream), memory.data_ptr()

    device = q.device
    return _cuda.Place(workspace, stream.cuda_stream, lambda: torch.cuda.device(device), device.index)


class _Streams(threading.local):
    """Each thread's own."""

    def __init__(self) -> None:
        self.by_device: dict[torch.device, torch.cuda.Stream] = {}


class Reader:
    """Reads statistics of a call that has just been enqueued. It waits for that call, not for what comes after it; where the call
    was captured, for all of the device, since a graph may be replayed anywhere."""

    _streams = _Streams()

    def __init__(self, read: Callable[..., Any], device: torch.device):
        self._read, self._device = read, device
        self._event: Optional[torch.cuda.Event] = None
        if not torch.cuda.is_current_stream_capturing():
            self._event = torch.cuda.Event(blocking=True)  # whoever waits for it sleeps
            self._event.record(torch.cuda.current_stream(device))

    def __call__(self) -> Any:
        if self._event is None:
            torch.cuda.synchronize(self._device)
        else:
            self._event.synchronize()
        streams = self._streams.by_device
        if self._device not in streams:
            streams[self._device] = torch.cuda.Stream(self._device)
        return self._read(streams[self._device].cuda_stream)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


@torch.library.custom_op("rootdk::attention", mutates_args=(), device_types=("cpu", "cuda"))
def _attention_op(q: Tensor, k: Tensor, v: Tensor, scale: Optional[Tensor] = None, mask: Optional[Tensor] = None,
                  bias: Optional[Tensor] = None, sink: Optional[Tensor] = None, rule: str = "sqrt_dk",
                  factor: Optional[float] = None, softcap: Optional[float] = None, causal: bool = False,
                  diagonal: str = "bottom_right", offset: int = 0, window: Optional[Sequence[int]] = None,
                  key_lengths: Optional[Sequence[int]] = None, q_starts: Optional[Sequence[int]] = None,
                  kv_starts: Optional[Sequence[int]] = None, alibi: Optional[Sequence[float]] = None, dropout: float = 0.0,
                  seed: int = 0, tag: int = 0, seed_tensor: Optional[Tensor] = None) -> tuple[Tensor, Tensor]:
    spec = _spec(q, scale, rule, factor, mask, bias, sink, softcap, causal, diagonal, offset, window, key_lengths, q_starts,
                 kv_starts, alibi, dropout, seed, seed_tensor)
    collector = _collectors.get(tag)
    options = collector.options if collector is not None else None
    apply_options(spec, options)
    q, k, v = q.detach(), k.detach(), v.detach()
    batch, heads, len_q, _ = q.shape
    out = q.new_empty((batch, heads, len_q, v.shape[3] if v.ndim == 4 else 0))
    wide = _wide(q.dtype)
    lse = q.new_empty((batch, heads, len_q), dtype=wide)
    rows = {name: q.new_empty((batch, heads, len_q), dtype=wide) for name in (row_names(options) if options else [])}
    mass = q.new_empty((batch, heads, k.shape[2]), dtype=wide) if options is not None and options.key_mass else None
    core = _forward(spec, q, k, v, out, lse.unsqueeze(-1), {name: row.unsqueeze(-1) for name, row in rows.items()},
                    None if mass is None else mass.unsqueeze(-1))
    if collector is not None:
        kept = Rows({"lse": lse.clone(), **rows}) if options is not None and options.rows else None
        collector.on_forward(Stats(core, kept, mass))
    return out, lse


def _forward(spec: Any, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, rows: dict[str, Tensor],
             mass: Optional[Tensor]) -> Any:
    """Statistics, or what reads them."""
    if not q.is_cuda:
        return _core.forward(spec, q, k, v, out, lse, rows, mass)
    read = _cuda.forward(spec, _view("q", q, q), _view("k", k, q), _view("v", v, q), _view("o", out, q), _view("lse", lse, q),
                         {name: _view(name, row, q) for name, row in rows.items()},
                         None if mass is None else _view("key_mass", mass, q), _place(q))
    return read if spec.stats == "none" else Reader(read, q.device)


@_attention_op.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    batch, heads, len_q, _dim = q.shape
    return q.new_empty((batch, heads, len_q, v.shape[3])), q.new_empty((batch, heads, len_q), dtype=_wide(q.dtype))


@torch.library.custom_op("rootdk::attention_backward", mutates_args=(), device_types=("cpu", "cuda"))
def _backward_op(d_out: Tensor, d_lse: Optional[Tensor], out: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor,
                 scale: Optional[Tensor], mask: Optional[Tensor], bias: Optional[Tensor], sink: Optional[Tensor],
                 wanted: Sequence[bool], rule: str, factor: Optional[float], softcap: Optional[float], causal: bool,
                 diagonal: str, offset: int, window: Optional[Sequence[int]], key_lengths: Optional[Sequence[int]],
                 q_starts: Optional[Sequence[int]], kv_starts: Optional[Sequence[int]], alibi: Optional[Sequence[float]],
                 dropout: float, seed: int, tag: int,
                 seed_tensor: Optional[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    spec = _spec(q, scale, rule, factor, mask, bias, sink, softcap, causal, diagonal, offset, window, key_lengths, q_starts,
                 kv_starts, alibi, dropout, seed, seed_tensor)
    collector = _collectors.get(tag)
    if collector is not None and collector.options.level == "full":
        spec.stats = "full"
    d_q, d_k, d_v, d_scale, d_bias, d_sink = _gradients(q, k, v, scale, bias, sink, wanted)
    tensors = {"q": q, "k": k, "v": v, "o": out, "lse": lse.unsqueeze(-1), "d_o": d_out,
               "d_lse": None if d_lse is None else d_lse.unsqueeze(-1)}
    given = {name: None if x is None else x.detach() for name, x in tensors.items()}
    gradients = {"d_q": d_q if wanted[0] else None, "d_k": d_k if wanted[1] else None, "d_v": d_v if wanted[2] else None,
                 "d_bias": d_bias if wanted[4] else None}
    per_head = {"d_scale": d_scale if wanted[3] else None, "d_sink": d_sink if wanted[5] else None}
    core: Any
    if q.is_cuda:
        given["d_o"] = _readable(d_out.detach())
        core = _cuda.backward(spec, _views(given, q), _views(gradients, q),
                              {name: None if x is None else x.data_ptr() for name, x in per_head.items()}, _place(q))
        core = core if spec.stats == "none" else Reader(core, q.device)
    else:
        row = (1, 1, 1, q.shape[1])
        core = _core.backward(spec, **given, **gradients,
                              **{name: None if x is None else x.view(row) for name, x in per_head.items()})
    if collector is not None and collector.options.level == "full":
        collector.on_backward(GradientStats(core))
    return d_q, d_k, d_v, d_scale, d_bias, d_sink


def _readable(d_out: Tensor) -> Tensor:
    """A gradient as the fast kernels read it, where a copy makes it so: of a sum it comes with strides of 0, and nobody chose those."""
    outer = zip(d_out.shape[:3], d_out.stride()[:3])
    fine = d_out.stride(3) == 1 and d_out.data_ptr() % 16 == 0 and all(size == 1 or (stride > 0 and stride % 8 == 0) for size, stride in outer)
    return d_out if fine or d_out.element_size() != 2 or d_out.shape[3] % 8 else d_out.contiguous()


def _views(tensors: dict[str, Optional[Tensor]], like: Tensor) -> dict[str, Optional[_cuda.View]]:
    return {name: None if x is None else _view(name, x, like) for name, x in tensors.items()}


def _gradients(q: Tensor, k: Tensor, v: Tensor, scale: Optional[Tensor], bias: Optional[Tensor], sink: Optional[Tensor],
               wanted: Sequence[bool]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """An operator cannot return None, so what is not wanted is empty."""

    def like(x: Optional[Tensor], want: bool, dtype: Optional[torch.dtype] = None) -> Tensor:
        if not want or x is None:
            return q.new_empty(0)
        return torch.empty(x.shape, dtype=dtype or x.dtype, device=q.device)

    return (like(q, wanted[0]), like(k, wanted[1]), like(v, wanted[2]), like(scale, wanted[3], torch.float32),
            like(bias, wanted[4]), like(sink, wanted[5], torch.float32))


@_backward_op.register_fake
def _(d_out: Tensor, d_lse: Optional[Tensor], out: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: Optional[Tensor],
      mask: Optional[Tensor], bias: Optional[Tensor], sink: Optional[Tensor], wanted: Sequence[bool], *_: Any,
      **__: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _gradients(q, k, v, scale, bias, sink, wanted)


_TAG = -1  # among an operator's arguments that are no tensors


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, scale, mask, bias, sink, *plain, seed_tensor = inputs
    ctx.save_for_backward(q, k, v, scale, mask, bias, sink, seed_tensor, *output)
    ctx.plain = plain
    ctx.collector = _collectors.get(plain[_TAG])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, d_out: Optional[Tensor], d_lse: Optional[Tensor]) -> tuple[Any, ...]:
    q, k, v, scale, mask, bias, sink, seed_tensor, out, lse = ctx.saved_tensors
    nothing = (None,) * (len(ctx.plain) + 1)
    if d_out is None and d_lse is None:
        return (None,) * 7 + nothing
    if d_out is None:
        d_out = torch.zeros_like(out)
    need = (*ctx.needs_input_grad, *(False,) * 7)  # trailing arguments at their defaults are left out
    wanted = [need[0], need[1], need[2], need[3], need[5], need[6]]
    plain = list(ctx.plain)
    plain[_TAG] = 0 if ctx.collector is None else register(ctx.collector)
    try:
        d_q, d_k, d_v, d_scale, d_bias, d_sink = torch.ops.rootdk.attention_backward(
            d_out, d_lse, out, lse, q, k, v, scale, mask, bias, sink, wanted, *plain, seed_tensor)
    finally:
        unregister(plain[_TAG])

    def give(gradient: Tensor, index: int, like: Optional[Tensor]) -> Optional[Tensor]:
        if not wanted[index] or like is None:
            return None
        return gradient.to(device=like.device, dtype=like.dtype)

    return (give(d_q, 0, q), give(d_k, 1, k), give(d_v, 2, v), give(d_scale, 3, scale), None, give(d_bias, 4, bias),
            give(d_sink, 5, sink), *nothing)


torch.library.register_autograd("rootdk::attention", _backward, setup_context=_setup)

_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)


def _autocast_op(q: Tensor, k: Tensor, v: Tensor, scale: Optional[Tensor] = None, mask: Optional[Tensor] = None, bias: Optional[Tensor] = None,
                 *rest: Any) -> Any:
    """register_autocast would have one dtype for ever, and cast scales and sinks as well."""
    q, k, v, bias = under_autocast(q, k, v, bias)  # type: ignore[assignment]
    with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
        return torch.ops.rootdk.attention(q, k, v, scale, mask, bias, *rest)


_autocast_library = torch.library.Library("rootdk", "IMPL")
for _key in ("AutocastCPU", "AutocastCUDA"):
    _autocast_library.impl("attention", _autocast_op, _key)


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


def attention(q: Tensor, k: Tensor, v: Tensor, *, scale: Any = "sqrt_dk", causal: bool = False,
              diagonal: str | int = "bottom_right", window: Any = None, key_lengths: Any = None, documents: Any = None,
              mask: Optional[Tensor] = None, bias: Optional[Tensor] = None, alibi: Any = None, softcap: Optional[float] = None,
              sink: Any = None, qk_norm: QkNorm | str | None = None, dropout: float = 0.0, seed: int | Tensor | None = None,
              stats: StatsOptions | str | None = None, return_lse: bool = False) -> Any:
    """`rootdk.attention` for torch tensors. Gradients reach q, k, v, and scale, bias, sink and QK-norm's gains where they are
    tensors.

    Without a seed, dropout draws one from torch's generator of q's device; a seed may also be an int64 tensor there, with one element. Under
    torch.autocast q, k, v and bias are cast as F.scaled_dot_product_attention casts them. With return_lse the logsumexp [batch, heads, len_q] comes second; it
    has gradients, too (z-loss).
    """
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
    if isinstance(scale, str):
        rule = scale
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
    starts, sides = documents_of(documents), window_of(window)
    kind, offset = diagonal_of(diagonal)
    dropout = real("dropout", dropout)
    number, seed_tensor = seeds(q, dropout, seed)
    slopes = None
    if alibi is not None:
        slopes = [float(slope) for slope in (alibi.tolist() if hasattr(alibi, "tolist") else alibi)]
    box = _Box(options) if options is not None else None
    tag = register(box) if box is not None else 0
    try:
        out, lse = torch.ops.rootdk.attention(
            q, k, v, scales, None if mask is None else four_axes("mask", _check("mask", mask, q)),
            None if bias is None else four_axes("bias", _check("bias", bias, q)), sinks, rule, factor,
            None if softcap is None else real("softcap", softcap), flag("causal", causal), kind, offset,
            None if sides is None else [_side(side) for side in sides],
            None if key_lengths is None else wholes("key_lengths", key_lengths), None if starts is None else starts[0],
            None if starts is None else starts[1], slopes, dropout, number, tag, seed_tensor)
    finally:
        unregister(tag)
    results = (out, lse) if return_lse else (out,)
    if box is not None:
        results += (box.stats,)
    return results if len(results) > 1 else out


def _side(side: Optional[int]) -> int:
    if side is None:
        return _UNBOUNDED
    if side < 0:
        raise ValueError(f"window: {side}, but a side cannot be negative")
    return side


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


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor] = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, scale: Optional[float] = None,
                                 enable_gqa: bool = False) -> Tensor:
    """Exactly PyTorch's arguments, and its meaning: is_causal is top-left. What rootdk does not compute (nested tensors, float64 on a
    GPU) and what PyTorch refuses goes to PyTorch, with its own message."""
    if isinstance(key, Tensor) and isinstance(value, Tensor) and not (key.is_nested or value.is_nested):
        if key.ndim == value.ndim >= 2 and key.shape[-2] != value.shape[-2]:
            # PyTorch's fused kernel does not look, and its backward writes where it must not.
            raise RuntimeError(f"value: len_kv is {value.shape[-2]}, but key has {key.shape[-2]}")
    q, k, v, mask = under_autocast(query, key, value, attn_mask)
    why_not = _why_not(q, k, v, mask, dropout_p, is_causal, scale, enable_gqa)  # type: ignore[arg-type]
    if why_not is not None:
        if why_not:
            _warn_once(f"rootdk.torch.scaled_dot_product_attention: {why_not}; PyTorch's own is used")
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, dropout_p=dropout_p,
                                                                is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
    return computed(q, k, v, mask, dropout_p, is_causal, scale)  # type: ignore[arg-type]


def computed(query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor], dropout_p: float, is_causal: bool,
             scale: Optional[float], tag: int = 0) -> Tensor:
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
    out, _ = torch.ops.rootdk.attention(q, k, v, None, mask, bias, None, "sqrt_dk", scale, None, is_causal, "top_left", 0, None,
                                        None, None, None, None, dropout_p, seed, tag, seed_tensor)
    heads = query.shape[-3:-2]  # none where there are two axes
    return out.reshape((*batch, *heads, query.shape[-2], value.shape[-1]))


def transformed(*tensors: Optional[Tensor]) -> bool:
    return torch._C._functorch.peek_interpreter_stack() is not None


def is_fast(query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor], is_causal: bool, scale: Optional[float],
            options: StatsOptions, passes: Sequence[int]) -> bool:
    """Whether the above, on a GPU, is for fast kernels, with these statistics and in all of the passes."""
    batch = _batch(query, key, value)
    q, k, v = _four(query.detach(), batch), _four(key.detach(), batch), _four(value.detach(), batch)
    mask = bias = None
    if attn_mask is not None:
        table = _mask_four(attn_mask.detach(), (*batch, *query.shape[-3:-1], key.shape[-2]))
        mask, bias = (table, None) if table.dtype == torch.bool else (None, table)
    spec = _spec(q, None, "sqrt_dk", scale, mask, bias, None, None, is_causal, "top_left", 0, None, None, None, None, None, 0.0, 0)
    apply_options(spec, options)
    views = _view("q", q, q), _view("k", k, q), _view("v", v, q)
    with torch.cuda.device(q.device):
        return all(_cuda.is_fast(spec, *views, which) for which in passes)


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
    if len(full) < 4:
        return mask.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape))
    mask = mask.reshape((1,) * (len(full) - mask.ndim) + tuple(mask.shape)) if mask.ndim < len(full) else mask
    if mask.ndim == 4:
        return mask
    return mask.expand(*full[:-3], *mask.shape[-3:]).reshape(-1, *mask.shape[-3:])


def _why_not(query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor], dropout_p: float, is_causal: bool,
             scale: Optional[float], enable_gqa: bool) -> Optional[str]:
    """None if this is ours to compute; "" if PyTorch will refuse it or it is PyTorch's business; else what the user should
    know."""
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
        if not (heads_q == heads_k == heads_v
                or (enable_gqa and query.ndim == 4 and heads_k == heads_v and heads_q % heads_k == 0)):
            return ""
    try:
        batch = _batch(query, key, value)
    except RuntimeError:
        return ""
    if not isinstance(dropout_p, (int, float)) or not 0 <= dropout_p < 1:
        return ""
    if not isinstance(is_causal, bool) or not isinstance(enable_gqa, bool) or not isinstance(scale, (int, float, type(None))):
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
