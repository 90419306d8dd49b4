"""Looking at one call of attention: from the fused pass that computes it, beside the model's own kernel, or at scores
written out."""

from __future__ import annotations

import dataclasses
import math
import weakref
from typing import TYPE_CHECKING, Any, Optional, Sequence

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from .. import torch as rootdk_torch
from .._problem import StatsOptions
from .._stats import Stats
from .masks import hidden_below, hidden_scores, hides_surely
from .rows import sampled, stats_of_scores

if TYPE_CHECKING:
    from .eyes import Call
    from .follow import Written


@dataclasses.dataclass(frozen=True)
class Settings:
    """How closely a watch looks; `rootdk.watch` says what each is."""

    sample: int = 1
    rows: int = 64
    beside: bool = False
    backward: bool = True

    @staticmethod
    def of(several: Sequence[Settings]) -> Settings:
        """What satisfies all of them."""
        return (
            several[0]
            if len(several) == 1
            else Settings(
                min(s.sample for s in several),
                max(s.rows for s in several),
                any(s.beside for s in several),
                any(s.backward for s in several),
            )
        )


@dataclasses.dataclass(frozen=True)
class Sdpa:
    """A call that is ours to compute: what the operator gets."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Optional[Tensor]
    dropout_p: float
    is_causal: bool
    scale: Optional[float]
    for_output: bool = True  #: False: PyTorch's own output must stay, and ours is for its statistics


@dataclasses.dataclass(frozen=True)
class Hidden:
    """What a mask hides by numbers."""

    below: float  #: numbers up to this one
    surely: bool  #: whether −inf in their place gives the same output


@dataclasses.dataclass(frozen=True)
class _KnownMask:
    mask: weakref.ReferenceType[Tensor]
    version: int
    below: Optional[float]
    count: int
    near: Optional[float]  #: numbers up to this one may hide, if none is known to


_known_masks: dict[int, _KnownMask] = {}  # all layers of a model get the same one; on a GPU each look at it waits
_fast: dict[Any, bool] = {}
_MOST_KNOWN = 64


def hidden_by_numbers(
    call: Call, query: Tensor, key: Tensor, mask: Optional[Tensor], scale: Optional[float]
) -> Optional[Hidden]:
    """None for masks without such numbers."""
    if mask is None or not mask.is_floating_point() or mask.is_nested or not _can_be_sampled(query, key):
        return None
    known = _looked_at(mask)
    if not call.again:
        _tell_hidden(call, known.below, known.count, known.near)
    if known.below is None:
        return None
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    return Hidden(known.below, not query.is_cuda and hides_surely(mask, known.below, query, key, factor))


def _looked_at(mask: Tensor) -> _KnownMask:
    version = -1 if mask.is_inference() else mask._version
    known = _known_masks.get(id(mask))
    if known is not None and known.mask() is mask and known.version == version >= 0:
        return known
    below, near = hidden_below(mask)
    count = 0 if below is None else int(((mask.detach() <= below) & ~torch.isneginf(mask.detach())).sum())
    if len(_known_masks) >= _MOST_KNOWN:
        _known_masks.clear()
    known = _known_masks[id(mask)] = _KnownMask(weakref.ref(mask), version, below, count, near)
    return known


def computable(
    call: Call,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Optional[Tensor],
    dropout_p: float,
    is_causal: bool,
    scale: Optional[float],
    enable_gqa: bool,
    hidden: Optional[Hidden],
) -> Optional[Sdpa]:
    """The call as the operator gets it, if it is ours to compute: what we compute ourselves comes with statistics from
    the same pass."""
    q, k, v, table = rootdk_torch.under_autocast(query, key, value, attn_mask)
    assert q is not None and k is not None and v is not None
    call.dtype = rootdk_torch._NAMES.get(q.dtype, "f32")
    call.dim = query.shape[-1]
    # f64 runs in the reference kernel, which is no match for anybody's.
    if (
        call.settings.beside
        or dropout_p != 0
        or query.device.type not in ("cpu", "cuda")
        or query.dtype == torch.float64
    ):
        return None
    if hidden is not None and not hidden.surely or scale is not None and not math.isfinite(scale):
        return None
    if attn_mask is not None and attn_mask.requires_grad:
        return None
    if rootdk_torch._why_not(q, k, v, table, dropout_p, is_causal, scale, enable_gqa) is not None:
        return None
    for_output = not _would_be_written_out(q, k, v, table, is_causal, scale, enable_gqa)
    if query.is_cuda:
        if not for_output:
            return None
        for spot in call.spots:
            spot.watch.settle(before=call.step - 1)  # while the device has something to do
        call.options = _options(call, query.shape[-2])
        if not _is_fast(call.options, q, k, v, table, is_causal, scale):
            return None
    if hidden is not None and table is not None:
        table = table.masked_fill(table <= hidden.below, float("-inf"))
    return Sdpa(q, k, v, table, dropout_p, is_causal, scale, for_output)


def _would_be_written_out(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Optional[Tensor],
    is_causal: bool,
    scale: Optional[float],
    enable_gqa: bool,
) -> bool:
    """By PyTorch, for a call that learns: its gradient can be differentiated again then, and its output changed in
    place, which no fused kernel's can."""
    if not _learns(query, key, value):
        return False
    try:
        choice = torch._fused_sdp_choice(
            query, key, value, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
        )
    except RuntimeError:  # what PyTorch refuses, it is to refuse itself
        return True
    return bool(choice == SDPBackend.MATH.value)


def _learns(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def computed_here(call: Call, problem: Sdpa) -> Tensor:
    with call.listed() as tag:
        return rootdk_torch.computed(
            problem.q, problem.k, problem.v, problem.mask, problem.dropout_p, problem.is_causal, problem.scale, tag
        )


def counted_here(call: Call, problem: Sdpa, query: Tensor, key: Tensor, value: Tensor) -> None:
    """The same for its statistics alone, where PyTorch's output is the model's; gradients by hooks."""
    if not call.again:
        try:
            with torch.no_grad():
                computed_here(call, problem)
        except Exception as error:
            return _failed(call, "scaled_dot_product_attention", error)
    if call.settings.backward:
        _hook_inputs(call, query, key, value)


def _options(call: Call, len_q: int) -> StatsOptions:
    """On a GPU: of the blocks as many as `rows` needs, others in every step."""
    blocks = -(-len_q // 64)
    sample = max(call.settings.sample, blocks * 64 // max(call.settings.rows, 64))
    return StatsOptions("full", sample=sample, sample_offset=call.step % min(sample, blocks))


def _is_fast(
    options: StatsOptions,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Optional[Tensor],
    is_causal: bool,
    scale: Optional[float],
) -> bool:
    """Forward, and backward if there will be one."""
    learns = _learns(query, key, value)
    seen = (
        *((x.shape, x.stride(), x.data_ptr() % 16) for x in (query, key, value)),
        query.dtype,
        query.device,
        is_causal,
        scale,
        learns,
        options.sample,
        None if mask is None else (mask.shape, mask.dtype),
    )
    if seen not in _fast:
        if len(_fast) > 4096:
            _fast.clear()
        _fast[seen] = rootdk_torch.is_fast(
            query, key, value, mask, is_causal, scale, options, (0, 1) if learns else (0,)
        )
    return _fast[seen]


def beside(
    call: Call,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Optional[Tensor],
    is_causal: bool,
    scale: Optional[float],
    hidden: Optional[Hidden],
) -> None:
    """Some rows against all keys, beside the model's own kernel; gradients by hooks."""
    if not _can_be_sampled(query, key):
        for spot in call.spots:
            spot.watch.missed("scaled_dot_product_attention", f"queries of shape {list(query.shape)} are not sampled")
        return
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    if not call.again:
        # For a mask that learns PyTorch writes all scores out itself.
        rows = query.shape[-2] if attn_mask is not None and attn_mask.requires_grad else call.settings.rows
        try:
            stats = sampled(
                query, key, attn_mask, is_causal, scale, rows, 17 * call.step, None if hidden is None else hidden.below
            )
            stats = _with_causes(call, stats, query, key, factor)
        except Exception as error:
            return _failed(call, "scaled_dot_product_attention", error)
        call.on_forward(stats)
    if call.settings.backward:
        _hook_inputs(call, query, key, value)


def of_written(call: Call, found: Written) -> None:
    """Attention that somebody has written out."""
    call.dtype = rootdk_torch._NAMES.get(found.q.dtype, "f32")
    call.prescale, call.doubt = found.prescale, found.doubt
    if not call.again:
        try:
            stats = _stats_of_written(call, found)
        except Exception as error:
            return _failed(call, "attention that is written out", error)
        call.on_forward(stats)
    if call.settings.backward and found.hooked.requires_grad:
        per_head = found.per_head  # not what it is of: the hook belongs to a tensor, and must not keep others

        def hook(gradient: Tensor) -> None:
            call.set("d_scores", per_head(gradient.detach()).float().square().sum((0, 2, 3)).cpu().numpy())

        found.hooked.register_hook(hook)


@torch.no_grad()
def _stats_of_written(call: Call, found: Written) -> Stats:
    score = found.scores.detach().float()
    raw, before = score, None
    if found.factor is not None:  # else times something that is no number: what came before masks is not known
        raw = before = (found.q.detach().float() @ found.k.detach().float()) * found.factor
        before = raw if found.cap is None else found.cap * torch.tanh(raw / found.cap)
    visible = ~torch.isneginf(score)
    hidden, count, near = hidden_scores(score, before)
    below = None
    if hidden is not None:
        visible &= ~hidden
        added = score if before is None else score - before
        below = float(added[hidden].max())
    _tell_hidden(call, below, count, near)
    sink = None if found.sink is None else found.sink.detach()
    return _with_causes(
        call,
        stats_of_scores(raw, score, visible, sink),
        found.q,
        found.k.transpose(-1, -2),
        math.nan if found.factor is None else found.factor,
    )


def _tell_hidden(call: Call, below: Optional[float], count: int, near: Optional[float]) -> None:
    for spot in call.spots:
        if below is not None:
            spot.watch.hides(below, count)
        elif near is not None:
            spot.watch.may_hide(near)


def _failed(call: Call, what: str, error: Exception) -> None:
    """Looking must not break what it looks at."""
    said = str(error).splitlines()[0] if str(error) else ""
    for spot in call.spots:
        spot.watch.failed(spot, f"{what}: looking at it failed ({type(error).__name__}: {said})")


@torch.no_grad()
def _with_causes(call: Call, stats: Stats, query: Tensor, key: Tensor, factor: float) -> Stats:
    """σ_q, σ_k and the mean key per query head, the batch being one. What scaled q before belongs to the scale."""
    q, k = query.detach().float(), key.detach().float()
    group = q.shape[1] // k.shape[1]
    mean = k.mean(2, keepdim=True)
    table = (
        torch.stack(
            [
                q.square().mean((0, 2, 3)).sqrt() / (abs(call.prescale) or 1.0),
                (k - mean).square().mean((0, 2, 3)).sqrt().repeat_interleave(group),
                mean.square().sum(-1).mean((0, 2)).sqrt().repeat_interleave(group),
            ]
        )
        .cpu()
        .numpy()
    )
    call.prescale, scale = 1.0, abs(factor * call.prescale)
    return stats.over_batch().with_causes(query.shape[-1], table[0], table[1], table[2], scale)


def _hook_inputs(call: Call, query: Tensor, key: Tensor, value: Tensor) -> None:
    heads = query.shape[-3] if query.ndim > 2 else 1
    for name, x in (("d_q", query), ("d_k", key), ("d_v", value)):
        if not x.requires_grad:
            continue

        # x owns the hook: one that held x would keep the two, and all that x came from, for ever.
        detached = x.detach()

        def hook(gradient: Tensor, name: str = name, x: Tensor = detached, heads: int = heads) -> None:
            wide = _by_head(gradient.detach().float())
            call.set(name, wide.square().sum((0, 2, 3)).repeat_interleave(heads // wide.shape[1]).cpu().numpy())
            if name == "d_q":
                call.set("d_log_scale", (wide * _by_head(x.float())).sum((0, 2, 3)).cpu().numpy())

        x.register_hook(hook)


def _by_head(x: Tensor) -> Tensor:
    """[…, length, dim] as [batch, heads, length, dim]."""
    return x[None, None] if x.ndim == 2 else x.reshape(-1, *x.shape[-3:])


def _can_be_sampled(query: Tensor, key: Tensor) -> bool:
    if query.is_nested or query.ndim != 4 or key.ndim != 4 or not query.numel() or not key.numel():
        return False
    return query.shape[0] == key.shape[0] and query.shape[1] % key.shape[1] == 0
