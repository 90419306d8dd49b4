"""The ways of computing one attention over ranks, each from the parts that make it."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

import torch
from torch import Tensor

from .._problem import StatsOptions
from .._stats import Stats
from .._structure import Structure
from ._call import Box, Call, Collected, Segment, described, of_heads, segments
from ._gather import GatherAttention
from ._heads import Exchange, FromHeads, ToHeads
from ._layout import Layout
from ._plan import Machine
from ._ring import RingAttention
from ._rows import RowTable
from ._statistics import RankStats, beside, renumbered
from ._team import Team


@dataclasses.dataclass(frozen=True)
class Problem:
    """The arguments of attention on this rank, looked through."""

    q: Tensor
    k: Tensor
    v: Tensor
    scale: Optional[Tensor]
    mask: Optional[Tensor]
    bias: Optional[Tensor]
    sink: Optional[Tensor]
    structure: Structure
    rule: str
    factor: Optional[float]
    softcap: Optional[float]
    alibi: Optional[tuple[float, ...]]
    stats: Optional[StatsOptions]
    return_lse: bool
    wide: bool = True
    one_row: bool = False  #: mask and bias have one row for the queries of all ranks

    @property
    def learns(self) -> bool:
        """Whether any gradient is wanted, which is so on all ranks or on none."""
        tensors = (self.q, self.k, self.v, self.scale, self.bias, self.sink)
        return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)

    def learned(self) -> Optional[Tensor]:
        """A tensor without elements that wants a gradient where any does."""
        return self.q.detach()[:0].requires_grad_() if self.learns else None

    def call(self, q_layout: Layout, k_layout: Layout) -> Call:
        return Call(
            q_layout,
            k_layout,
            self.structure,
            self.rule,
            self.factor,
            self.softcap,
            self.alibi,
            self.mask,
            self.mask is not None or self.bias is not None,
            self.wide,
            self.stats,
        )


Result = tuple[Tensor, Optional[Tensor], Optional[RankStats]]  #: output, logsumexp, statistics


def compute(p: Problem, call: Call, team: Team, way: str, machine: Machine) -> Result:
    if way == "heads":
        return _by_heads(p, call, team)
    if way == "two_levels":
        return _two_levels(p, call, team, machine.ranks_per_node)
    return _by_rows(p, call, team, way)


def _rows_stats(call: Call, table: RowTable, rank: int) -> Stats:
    """Of rows that a rank of the call holds."""
    if call.structure.pads_queries:
        for item in range(call.structure.batch()):
            table.mark_padding(item, call.padding(rank, item))
    return renumbered(table.stats(), call.q_layout.positions(rank))


def _by_rows(p: Problem, call: Call, team: Team, way: str) -> Result:
    function = RingAttention if way == "ring" else GatherAttention
    sums = p.sink is not None or (p.bias is not None and p.bias.requires_grad)  # whose gradients many rows add to
    if way == "all_gather" and call.wide and not sums and call.alone(team.rank, p.q.shape[0]):
        call = dataclasses.replace(call, wide=False)  # its backward, too: nothing is rounded before it is complete
    rows: list[RowTable] = []
    out, lse = function.apply(p.q, p.k, p.v, p.scale, p.bias, p.sink, call, team, rows)  # type: ignore[no-untyped-call]
    found = RankStats(_rows_stats(call, rows[0], team.rank)) if rows else None
    return out, lse, found


class _Share:
    """What a rank needs to know of its heads when heads travel."""

    def __init__(self, p: Problem, exchange: Exchange, rank: int):
        self.q, self.kv = exchange.range(0, rank), exchange.range(1, rank)
        self.segments = segments(self.q.start, self.q.stop, p.q.shape[1] // p.k.shape[1])
        self.scale, self.sink = (None if x is None else x[self.q] for x in (p.scale, p.sink))
        self.mask, self.bias = (_heads_of(x, self.q) for x in (p.mask, p.bias))
        self.alibi = of_heads(p.alibi, self.q)


def _heads_of(table: Optional[Tensor], heads: slice) -> Optional[Tensor]:
    """[batch, heads, …], each 1 or all."""
    return table if table is None or table.shape[1] == 1 else table[:, heads]


def _by_heads(p: Problem, call: Call, team: Team) -> Result:
    exchange = Exchange(team, call.q_layout, call.k_layout, p.q.shape[1], p.k.shape[1])
    q, k, v = ToHeads.apply(p.q, p.k, p.v, p.learned(), exchange)  # type: ignore[no-untyped-call]
    mine = _Share(p, exchange, team.rank)
    outs, lses, boxes = [], [], []
    for part in mine.segments:
        box = Box(p.stats) if p.stats is not None else None
        with Collected(box) as tag:
            out, lse = _native(p, mine, part, q, k, v, tag)
        outs.append(out)
        lses.append(lse)
        boxes.append((part.q.start, box))
    if not outs:
        # No heads, but zero gradients for what others have some of. A square, since it keeps something for backward, as
        # heads do: a checkpoint computes again on all ranks, or on none, and as far as the last thing that is kept.
        learned = [x for x in (q, k, v, p.scale, p.sink, p.bias) if x is not None]
        outs = [q.new_zeros((*q.shape[:3], v.shape[3])) + sum(x[:0].square().sum().to(q.dtype) for x in learned)]
        lses = [q.new_zeros(q.shape[:3], dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)]
    out, lse = torch.cat(outs, 1), torch.cat(lses, 1)
    found: Optional[RankStats] = None
    if p.stats is not None:
        parts = {start: box.stats for start, box in boxes if box is not None and box.stats is not None}
        stats = beside(parts, q.shape[1]) if parts else None
        found = RankStats(stats, mine.q.start, p.q.shape[1])
    if p.return_lse:
        out, lse = FromHeads.apply(out, lse, exchange)  # type: ignore[no-untyped-call]
        return out, lse, found
    return FromHeads.apply(out, None, exchange), None, found  # type: ignore[no-untyped-call]


def _native(p: Problem, mine: _Share, part: Segment, q: Tensor, k: Tensor, v: Tensor, tag: int) -> Any:
    """Whole rows of some heads: the engine's own problem."""
    return torch.ops.rootdk.attention(
        q[:, part.q],
        k[:, part.kv],
        v[:, part.kv],
        None if mine.scale is None else mine.scale[part.q],
        _heads_of(mine.mask, part.q),
        _heads_of(mine.bias, part.q),
        None if mine.sink is None else mine.sink[part.q],
        None,
        *described(p, p.structure, of_heads(mine.alibi, part.q)),
        tag,
    )


def _two_levels(p: Problem, call: Call, team: Team, ranks_per_node: int) -> Result:
    """Heads inside a node, the ring over nodes."""
    node, place = divmod(team.rank, ranks_per_node)
    inside = range(node * ranks_per_node, (node + 1) * ranks_per_node)
    column = team.part(range(place, team.size, ranks_per_node))
    exchange = Exchange(
        team.part(inside), call.q_layout.among(inside), call.k_layout.among(inside), p.q.shape[1], p.k.shape[1]
    )
    q, k, v = ToHeads.apply(p.q, p.k, p.v, p.learned(), exchange)  # type: ignore[no-untyped-call]
    mine = _Share(p, exchange, place)
    ring = dataclasses.replace(
        call,
        q_layout=call.q_layout.over(ranks_per_node),
        k_layout=call.k_layout.over(ranks_per_node),
        alibi=None if mine.alibi is None else tuple(mine.alibi),
        mask=mine.mask,
        heads=tuple(mine.segments),
    )
    rows: list[RowTable] = []
    out, lse = RingAttention.apply(q, k, v, mine.scale, mine.bias, mine.sink, ring, column, rows)  # type: ignore[no-untyped-call]
    found: Optional[RankStats] = None
    if rows:
        stats = _rows_stats(ring, rows[0], node) if q.shape[1] else None
        found = RankStats(stats, mine.q.start, p.q.shape[1])
    if p.return_lse:
        out, lse = FromHeads.apply(out, lse, exchange)  # type: ignore[no-untyped-call]
        return out, lse, found
    return FromHeads.apply(out, None, exchange), None, found  # type: ignore[no-untyped-call]
