"""One call in FlashAttention's layouts: a batch [batch, length, heads, dim], or sequences packed end to end
[total, heads, dim]."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Optional, Sequence

import torch
from torch import Tensor

from .._problem import StatsOptions
from ..torch import attention
from .arguments import Said, Span


class Result(NamedTuple):
    out: Tensor  #: as q lies
    lse: Tensor  #: [batch, heads, length], or [heads, total]; −inf where a row sees nothing
    probabilities: Tensor  #: [batch, heads, len_q, len_kv], negative where dropped; empty unless asked for
    rows: Mapping[str, Tensor] = {}  #: statistics of each row, as lse lies


def dense(
    q: Tensor, k: Tensor, v: Tensor, said: Said, stats: Optional[StatsOptions] = None, **structure: Any
) -> Result:
    """`structure` is what else rootdk.attention takes: diagonals, starts and lengths, masks. Statistics of rows go with
    slopes of all items only."""
    said.fits(q.shape[2], q.shape[0])
    heads_first = [x.transpose(1, 2) for x in (q, k, v)]
    rows: dict[str, Tensor] = {}
    if said.slopes is None or said.slopes.ndim == 1 or not q.shape[0]:
        out, lse, p = _call(heads_first, said, _shared(said.slopes), structure, stats, rows)
    else:
        each = []
        for i, slopes in enumerate(said.slopes.tolist()):
            mine = {name: x[i : i + 1] if isinstance(x, list) else x for name, x in structure.items()}
            each.append(_call([x[i : i + 1] for x in heads_first], said, slopes, mine))
        out, lse, p = (torch.cat(x) for x in zip(*each))
    return Result(out.transpose(1, 2), lse, p, rows)


def packed(
    q: Tensor, k: Tensor, v: Tensor, spans: Sequence[Span], said: Said, stats: Optional[StatsOptions] = None
) -> Result:
    """Tokens of no span see nothing, and are seen by none. Statistics of rows go with slopes of all sequences only."""
    said.fits(q.shape[1], len(spans))
    if said.slopes is None or said.slopes.ndim == 1:
        documents = _documents(spans, q.shape[0], k.shape[0])
        heads_first = [x.transpose(0, 1)[None] for x in (q, k, v)]
        rows: dict[str, Tensor] = {}
        out, lse, p = _call(heads_first, said, _shared(said.slopes), {"documents": documents}, stats, rows)
        pieces = [p[0, :, s.q : s.q_end, s.k : s.k_end] for s in spans] if said.shows_dropped else []
        if said.sink is not None and sum(s.q_end - s.q for s in spans) < q.shape[0]:  # which nobody's rows saw
            nobody = torch.ones(q.shape[0], dtype=torch.bool)
            for s in spans:
                nobody[s.q : s.q_end] = False
            lse = lse.masked_fill(nobody.to(lse.device), -torch.inf)
        of_rows = {name: row[0] for name, row in rows.items()}
        return Result(out[0].transpose(0, 1), lse[0], _stacked(pieces, p), of_rows)
    out = q.new_zeros((q.shape[0], q.shape[1], v.shape[2]))
    lse = q.new_full((q.shape[1], q.shape[0]), -torch.inf, dtype=torch.promote_types(q.dtype, torch.float32))
    pieces = []
    for s, slopes in zip(spans, said.slopes.tolist()):
        mine = q[s.q : s.q_end], k[s.k : s.k_end], v[s.k : s.k_end]
        o, row, p = _call([x.transpose(0, 1)[None] for x in mine], said, slopes, {})
        out[s.q : s.q_end], lse[:, s.q : s.q_end] = o[0].transpose(0, 1), row[0]
        pieces += [p[0]] if said.shows_dropped else []
    return Result(out, lse, _stacked(pieces, q.new_empty(0)))


def _call(
    heads_first: Sequence[Tensor],
    said: Said,
    slopes: Optional[list[float]],
    structure: dict[str, Any],
    stats: Optional[StatsOptions] = None,
    rows: Optional[dict[str, Tensor]] = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v are [batch, heads, length, dim]; statistics of rows go into `rows`."""
    q, k, v = heads_first
    common: dict[str, Any] = dict(
        scale=said.scale, causal=said.causal, window=said.window, softcap=said.softcap, alibi=slopes, **structure
    )
    if said.sink is not None:
        common["sink"] = said.sink.float()
    seed = torch.randint(0, 2**62, (), device=q.device) if said.dropout > 0 else None
    out, lse, *learned = attention(q, k, v, dropout=said.dropout, seed=seed, stats=stats, return_lse=True, **common)
    if learned and rows is not None:
        broken = lse.detach().isnan()  # whose statistics are of the scores that are numbers, if any
        rows.update({name: row.masked_fill(broken, torch.nan) for name, row in learned[0].rows.items()})
    p = q.new_empty(0)
    if said.shows_dropped and not k.shape[2]:
        p = q.new_empty((*lse.shape, 0))
    elif said.shows_dropped:
        with torch.no_grad():  # values of one key each: the output is the probabilities themselves
            ones = torch.eye(k.shape[2], dtype=q.dtype, device=q.device).expand(*k.shape[:2], -1, -1)
            kept = attention(q, k, ones, dropout=said.dropout, seed=seed, **common)
            p = attention(q, k, ones, **common)
            p = torch.where(kept > 0, p, -p)
    return out, lse, p


def _shared(slopes: Optional[Tensor]) -> Optional[list[float]]:
    """Slopes that all items have; those of no items are none."""
    return None if slopes is None or slopes.ndim == 2 else [float(x) for x in slopes.tolist()]


def _documents(spans: Sequence[Span], total_q: int, total_k: int) -> tuple[list[int], list[int]]:
    """Between spans: queries without keys, then keys without queries."""
    q, k = [0], [0]
    for s in (*spans, Span(total_q, total_q, total_k, total_k)):
        if (s.q, s.k) != (q[-1], k[-1]):
            q += [s.q, s.q]
            k += [k[-1], s.k]
        q.append(s.q_end)
        k.append(s.k_end)
    return q, k


def _stacked(pieces: Sequence[Tensor], like: Tensor) -> Tensor:
    """[sequences, heads, longest, longest], with zeros where a sequence is shorter."""
    if not pieces:
        return like.new_empty(0)
    rows, columns = (max(p.shape[axis] for p in pieces) for axis in (1, 2))
    sizes = ((0, columns - p.shape[2], 0, rows - p.shape[1]) for p in pieces)
    return torch.stack([torch.nn.functional.pad(p, size) for p, size in zip(pieces, sizes)])
