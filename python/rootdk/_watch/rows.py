"""Statistics in plain torch, where the engine does not compute the attention itself: from a few query rows against all
keys, or from scores that somebody has written out. Row by row, then reduced by the engine."""

from __future__ import annotations

import dataclasses
import math
from typing import Optional, Sequence

import torch
from torch import Tensor

from .. import _core
from .._stats import Stats
from .masks import outweighed

_AT_ONCE = {"cpu": 1 << 20, "cuda": 1 << 26}  # scores


def stats_of_scores(
    raw: Tensor,
    score: Tensor,
    visible: Optional[Tensor] = None,
    sink: Optional[Tensor] = None,
    largest: Optional[Sequence[Tensor]] = None,
) -> Stats:
    """raw and score [batch, heads, rows, keys], the same tensor where nothing comes between; what is not visible (None:
    all is) does not count. A sink's score broadcasts to [batch, heads, rows, 1]. largest: raw and score, [batch, heads,
    rows], of all the rows that each of these stands for. float32 throughout, on whatever device they are."""
    same = raw is score
    raw = raw.float()
    score = raw if same else score.float()
    keys = raw.shape[-1]
    n = raw.new_full(raw.shape[:-1], keys) if visible is None else visible.sum(-1).float()
    none = n == 0

    def hide(x: Tensor, value: float) -> Tensor:
        return x if visible is None else x.masked_fill(~visible, value)

    def spread(x: Tensor) -> tuple[Tensor, ...]:
        """Largest, where, mean, variance within the row, smallest."""
        largest, where = hide(x, -math.inf).max(-1)
        if visible is None and keys > 1:
            variance, mean = torch.var_mean(x, -1)
        else:
            mean = hide(x, 0.0).sum(-1) / n.clamp(min=1)
            variance = hide((x - mean.unsqueeze(-1)) ** 2, 0.0).sum(-1) / (n - 1).clamp(min=1)
        smallest = hide(x, math.inf).min(-1).values
        return (
            largest,
            where.float().masked_fill(none, -1),
            mean.masked_fill(none, math.nan),
            variance,
            smallest.masked_fill(none, math.nan),
        )

    raw_spread = spread(raw)
    score_spread = raw_spread if same else spread(score)
    top = score_spread[0]
    z = None if sink is None else sink.float().expand(*raw.shape[:-1], 1)[..., 0]
    top = top if z is None else torch.maximum(top, z)
    shift = torch.where(torch.isfinite(top), top, torch.zeros_like(n))
    gap = hide(score - shift.unsqueeze(-1), 0.0)
    e = hide(torch.exp(gap), 0.0)
    total, lost = e.sum(-1), (e * gap).sum(-1)
    powers = [(e * e).sum(-1), (e * e * e).sum(-1)]
    taken = torch.zeros_like(n)
    if z is not None:  # one more key in all of these, and in nothing else
        taken = torch.exp(z - shift)
        total, lost = total + taken, lost + taken * (z - shift).nan_to_num(neginf=0.0)
        powers = [power + taken**exponent for exponent, power in zip((2, 3), powers)]
    safe = torch.where(total > 0, total, torch.ones_like(total))
    rows = {
        "visible": n,
        "entropy": torch.log(safe) - lost / safe,
        "sink_mass": taken / safe,
        "p_max": e.max(-1).values / safe,
        "sum_p2": powers[0] / safe**2,
        "sum_p3": powers[1] / safe**3,
    }
    for name, values in (("raw", raw_spread), ("score", score_spread)):
        for what, value in zip(("max", "argmax", "mean", "variance", "min"), values):
            rows[f"{name}_{what}"] = value
    lse = shift + torch.log(total)
    for name, most in zip(("raw", "score"), largest or ()):
        rows[f"{name}_argmax"] = torch.where(most > rows[f"{name}_max"], -1, rows[f"{name}_argmax"])
        rows[f"{name}_max"] = most
        lse = torch.where(most < math.inf, lse, math.nan)  # a row that is not finite is among them
    # One transfer for all of them: on a GPU each one waits.
    table = torch.stack([*rows.values(), lse]).detach().cpu().unsqueeze(-1)
    return Stats(_core.stats_of_rows(dict(zip(rows, table)), table[-1]))


def sampled(
    query: Tensor,
    key: Tensor,
    attn_mask: Optional[Tensor],
    is_causal: bool,
    scale: Optional[float],
    rows: int,
    offset: int,
    below: Optional[float] = None,
) -> Stats:
    """At most `rows` queries, evenly spaced from `offset` on, against all keys; each stands for those around it, and
    its largest score is the largest of them all. query [batch, heads_q, len_q, dim], key with heads_kv. Numbers up to
    `below` in a mask that is added hide."""
    with torch.no_grad():
        call = _Call(query, key, attn_mask, is_causal, query.shape[-1] ** -0.5 if scale is None else scale, below)
        len_q = query.shape[-2]
        stride = -(-len_q // rows)
        chosen = torch.arange(offset % stride, len_q, stride, device=query.device)
        largest = None
        if stride > 1:
            largest = [_largest_by_group(x, stride, len(chosen)) for x in call.largest()]
        return stats_of_scores(*call.scores(chosen), largest=largest)


def _not(visible: Optional[Tensor]) -> Optional[Tensor]:
    return None if visible is None else ~visible


def _largest_by_group(x: Tensor, stride: int, count: int) -> Tensor:
    """[batch, heads, rows] → [batch, heads, groups]; the last group has what is left over."""
    last = (count - 1) * stride
    most = x[..., :last].unflatten(-1, (count - 1, stride)).amax(-1)
    return torch.cat([most, x[..., last:].amax(-1, keepdim=True)], -1)


@dataclasses.dataclass(frozen=True)
class _Call:
    """Of F.scaled_dot_product_attention, what scores are made of."""

    query: Tensor
    key: Tensor
    mask: Optional[Tensor]
    is_causal: bool
    factor: float
    below: Optional[float]

    def scores(self, chosen: Tensor, keys: Optional[int] = None) -> tuple[Tensor, Tensor, Optional[Tensor]]:
        """(raw, score, visible), each [batch, heads_q, rows, keys], of these queries and the first so many keys."""
        batch, heads, _, dim = self.query.shape
        q = self.query.detach()[:, :, chosen].float()
        k = self.key.detach()[:, :, :keys].float()
        q = q.reshape(batch, k.shape[1], heads // k.shape[1] * len(chosen), dim)
        raw = (q @ k.transpose(-1, -2)).reshape(batch, heads, len(chosen), k.shape[2]) * self.factor
        score = raw
        visible: Optional[Tensor] = None
        if self.is_causal:
            visible = (torch.arange(k.shape[2], device=q.device) <= chosen[:, None])[None, None]
        if self.mask is not None:
            mask = self.mask.detach()
            mask = mask.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape))
            mask = mask[:, :, chosen] if mask.shape[2] > 1 else mask
            mask = mask[..., :keys] if mask.shape[3] > 1 else mask
            if mask.dtype != torch.bool:
                score = raw + mask.float()
                kept = mask > -math.inf
                if self.below is not None:
                    hidden = outweighed(score, (mask <= self.below).expand(score.shape), _not(visible))
                    kept = kept & ~hidden
                mask = kept
            visible = mask if visible is None else visible & mask
        return raw, score, None if visible is None else visible.expand(raw.shape)

    def largest(self) -> list[Tensor]:
        """Of every row the largest raw score and the largest score, [batch, heads_q, len_q]; some rows at a time."""
        batch, heads, len_q = self.query.shape[:3]
        step = max(1, _AT_ONCE.get(self.query.device.type, _AT_ONCE["cuda"]) // (batch * heads * self.key.shape[2]))
        found = []
        for first in range(0, len_q, step):
            chosen = torch.arange(first, min(first + step, len_q), device=self.query.device)
            raw, score, visible = self.scores(chosen, first + len(chosen) if self.is_causal else None)
            both = [raw] if score is raw else [raw, score]
            if visible is not None:
                both = [x.masked_fill(~visible, -math.inf) for x in both]
            found.append([x.amax(-1) for x in both])
        joined = [torch.cat(parts, -1) for parts in zip(*found)]
        return [joined[0], joined[-1]]
