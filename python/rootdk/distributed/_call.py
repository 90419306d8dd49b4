"""One call of attention over ranks, as every rank knows it, and the engine's calls that it comes to on this one."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Iterator, Optional, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .._description import Description, Packed
from .._kernels import Collector, register, unregister
from .._masks import PER_ITEM
from .._problem import StatsOptions
from .._stats import GradientStats, Stats
from .._structure import Structure
from ._layout import Layout, Piece
from ._sight import Counts, Sight, Tile


@dataclasses.dataclass(frozen=True)
class Segment:
    """Heads of queries and of keys that fit each other as the engine wants it: so many of one for each of the other."""

    q: slice
    kv: slice


def segments(first: int, last: int, group: int) -> list[Segment]:
    """Query heads first to last, `group` of which read one head of keys; places count from `first`, and from the first
    head of keys that is read."""
    if first >= last:
        return []
    base = first // group
    if first % group == 0 and last % group == 0:
        return [Segment(slice(0, last - first), slice(0, (last - first) // group))]
    out: list[Segment] = []
    while first < last:
        end = min((first // group + 1) * group, last)
        done = out[-1].q.stop if out else 0
        out.append(Segment(slice(done, done + end - first), slice(first // group - base, first // group - base + 1)))
        first = end
    return out


@dataclasses.dataclass(frozen=True)
class Call:
    """What is the same for all ranks, and tables for the queries of this one."""

    q_layout: Layout
    k_layout: Layout
    structure: Structure  #: of the whole sequence
    rule: str = "sqrt_dk"
    factor: Optional[float] = None
    softcap: Optional[float] = None
    alibi: Optional[tuple[float, ...]] = None
    mask: Optional[Tensor] = None  #: [1 or batch, 1 or heads, 1 or queries here, 1 or all keys]
    tables: bool = False  #: a mask or a bias is read, key by key
    wide: bool = True  #: partial results of 16-bit inputs are float32
    stats: Optional[StatsOptions] = None
    heads: Optional[tuple[Segment, ...]] = None  #: None: all of them, as they come

    @property
    def by_item(self) -> bool:
        """Whether batch items see differently, so that each has calls of its own."""
        s = self.structure
        lengths = s.key_lengths is not None or s.query_lengths is not None
        return s.items > 0 or (s.diagonal == "last_key" and lengths)

    def items(self, batch: int) -> list[tuple[slice, int]]:
        """Batch items that see alike, and the first of them."""
        return [(slice(b, b + 1), b) for b in range(batch)] if self.by_item else [(slice(0, batch), 0)]

    def pairs(self, batch: int) -> Counts:
        """Visible pairs [ranks of queries, ranks of keys], of the batch items that see differently together."""
        out = np.zeros((self.q_layout.ranks, self.k_layout.ranks), np.int64)
        for _, item in self.items(batch):
            out += pairs_of(self.structure, self.q_layout, self.k_layout, item)
        return out

    def tiles(self, batch: int, queries: Sequence[Piece], keys: Sequence[Piece]) -> Iterator[tuple[slice, Tile]]:
        """The calls that queries in these pieces against keys in those come to."""
        s, totals = self.structure, (self.q_layout.total, self.k_layout.total)
        plain = not s.by_item and not self.tables
        for items, item in self.items(batch):
            for tile in tiles_of(s, totals, item, tuple(queries), tuple(keys), plain):
                yield items, tile

    def alone(self, rank: int, batch: int) -> bool:
        """Whether each row and each key of a rank is in one call of the engine at most, and that on this rank: then
        nothing is merged or summed."""
        pairs = self.pairs(batch)
        if pairs[rank].sum() + pairs[:, rank].sum() != 2 * pairs[rank, rank]:
            return False
        ends: dict[int, tuple[int, int]] = {}  # by item; tiles ascend in their queries, or there are several of a key
        for items, tile in self.tiles(batch, self.q_layout.pieces[rank], self.k_layout.pieces[rank]):
            q, k = ends.get(items.start, (0, 0))
            if tile.q0 < q or tile.k0 < k:
                return False
            ends[items.start] = (tile.q1, tile.k1)
        return True

    def local(self, tile: Tile, items: slice) -> Structure:
        """The mask of one tile, for the engine."""
        s = self.structure
        n, m = tile.q1 - tile.q0, tile.k1 - tile.k0

        def here(values: Optional[tuple[int, ...]], first: int, most: int) -> Optional[tuple[int, ...]]:
            return None if values is None else tuple(min(max(x - first, 0), most) for x in values[items])

        starts = ((0, 0), *tile.documents, (n, m)) if tile.documents else None
        return Structure(
            causal=s.causal,
            diagonal="at",
            offset=tile.offset,
            window=s.window,
            per_item=tuple(
                here(values, tile.first_query, n) if field.axis == "q" else here(values, tile.first_key, m)
                for field, values in zip(PER_ITEM, s.per_item)
            ),
            q_starts=tuple(q for q, _ in starts) if starts else None,
            kv_starts=tuple(k for _, k in starts) if starts else None,
        )

    def padding(self, rank: int, item: int) -> npt.NDArray[np.bool_]:
        """Which rows of a rank are no queries of an item, by the engine's rule: asked for the pieces that it holds, not
        for the sequence."""
        out = [np.zeros(0, np.bool_)]
        for begin, end in self.q_layout.pieces[rank]:
            here = self.local(Tile(0, end - begin, 0, 0, 0, 0, begin), slice(item, item + 1))
            out.append(here.visible(end - begin, 0).is_query[0] == 0)
        return np.concatenate(out)


# The schedule of a step: all layers of a model, forward and backward, ask for the same.
@functools.lru_cache(maxsize=64)
def pairs_of(structure: Structure, q: Layout, k: Layout, item: int) -> Counts:
    return Sight.of(structure, q.total, k.total, item).pairs(q, k)


@functools.lru_cache(maxsize=1024)
def tiles_of(
    structure: Structure,
    totals: tuple[int, int],
    item: int,
    queries: tuple[Piece, ...],
    keys: tuple[Piece, ...],
    group: bool,
) -> tuple[Tile, ...]:
    return tuple(Sight.of(structure, *totals, item).tiles(queries, keys, group))


class Box:
    """Takes statistics of one call of the engine."""

    def __init__(self, options: StatsOptions):
        self.options = options
        self.stats: Optional[Stats] = None

    def on_forward(self, stats: Stats) -> None:
        self.stats = stats

    def on_backward(self, stats: GradientStats) -> None:
        pass


class Collected:
    """Registers a collector for the time of a call."""

    def __init__(self, collector: Optional[Collector]):
        self._collector = collector
        self.tag = 0

    def __enter__(self) -> int:
        self.tag = 0 if self._collector is None else register(self._collector)
        return self.tag

    def __exit__(self, *_: Any) -> None:
        if self.tag:
            unregister(self.tag)


def table_of(table: Optional[Tensor], items: slice, heads: slice, tile: Tile) -> Optional[Tensor]:
    """The part of a mask or bias that a tile reads."""
    if table is None:
        return None
    keys = slice(tile.first_key, tile.first_key + tile.k1 - tile.k0)
    for axis, part in enumerate((items, heads, slice(tile.q0, tile.q1), keys)):
        if table.shape[axis] > 1:
            table = table[(slice(None),) * axis + (part,)]
    return table


def of_heads(values: Optional[Sequence[float]], heads: slice) -> Optional[list[float]]:
    return None if values is None else list(values[heads])


def described(what: Any, structure: Structure, alibi: Optional[Sequence[float]]) -> Packed:
    """A problem, or a call, as the engine's operator takes it."""
    slopes = None if alibi is None else tuple(alibi)
    return Description(structure, what.rule, what.factor, what.softcap, slopes).packed()


def widened(x: Tensor, wide: bool) -> Tensor:
    return x.float() if wide and x.dtype in (torch.float16, torch.bfloat16) else x


def wide_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32
