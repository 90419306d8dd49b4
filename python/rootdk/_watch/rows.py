"""Statistics in plain torch, where the engine does not compute the attention itself: from a few query rows against all
keys, or from scores that somebody has written out. Row by row, then reduced by the engine."""

from __future__ import annotations

import math
from typing import Optional

import torch
from torch import Tensor

from .. import _core
from .._stats import Stats


def stats_of_scores(
    raw: Tensor, score: Tensor, visible: Optional[Tensor] = None, sink: Optional[Tensor] = None
) -> Stats:
    """raw and score [batch, heads, rows, keys], the same tensor where nothing comes between; what is not visible (None:
    all is) does not count. A sink's score broadcasts to [batch, heads, rows, 1]. float32 throughout, on whatever device
    they are."""
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
    # One transfer for all of them: on a GPU each one waits.
    table = torch.stack([*rows.values(), shift + torch.log(total)]).detach().cpu().unsqueeze(-1)
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
    """`rows` queries, evenly spaced from `offset` on, against all keys. query [batch, heads_q, len_q, dim], key with
    heads_kv. Numbers up to `below` in a mask that is added hide."""
    with torch.no_grad():
        len_q, len_kv = query.shape[-2], key.shape[-2]
        stride = max(1, len_q // rows)
        chosen = torch.arange(offset % stride, len_q, stride, device=query.device)[:rows]
        group = query.shape[1] // key.shape[1]
        q = query.detach()[:, :, chosen].float()
        k = key.detach().float()
        q = q.reshape(q.shape[0], key.shape[1], group * len(chosen), q.shape[-1])
        raw = (q @ k.transpose(-1, -2)).reshape(query.shape[0], query.shape[1], len(chosen), len_kv)
        raw = raw * (query.shape[-1] ** -0.5 if scale is None else scale)
        score = raw
        visible: Optional[Tensor] = None
        if is_causal:
            visible = (torch.arange(len_kv, device=query.device) <= chosen[:, None])[None, None]
        if attn_mask is not None:
            mask = attn_mask.detach()
            mask = mask.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape))
            mask = mask[:, :, chosen] if mask.shape[2] > 1 else mask
            if mask.dtype != torch.bool:
                score, mask = raw + mask.float(), mask > (-math.inf if below is None else below)
            visible = mask if visible is None else visible & mask
        return stats_of_scores(raw, score, None if visible is None else visible.expand(raw.shape))
