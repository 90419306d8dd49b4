"""Who sees whom: the part of a mask that lies between the queries of one rank and the keys of another, as problems that
the engine knows (tiles), and how many pairs that is."""

from __future__ import annotations

import dataclasses
from typing import Iterator, Optional, Sequence

import numpy as np
import numpy.typing as npt

from .._structure import Structure
from ._layout import Layout, Piece

Counts = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Document:
    """Queries and keys that belong together, and what to add to a query's place to get where it stands among keys."""

    queries: Piece
    keys: Piece
    shift: int


@dataclasses.dataclass(frozen=True)
class Tile:
    """One call of the engine: queries q0 to q1 of those here, keys k0 to k1 of those here."""

    q0: int
    q1: int
    k0: int
    k1: int
    offset: int  #: where query q0 stands, counted from key k0
    first_key: int  #: what k0 is in the whole sequence
    first_query: int
    documents: tuple[tuple[int, int], ...] = ()  #: where more of them begin, from (q0, k0), each with the same offset


@dataclasses.dataclass(frozen=True)
class Sight:
    """Causal masks, windows and documents of one batch item, or of all where they are alike."""

    documents: tuple[Document, ...]
    left: Optional[int]
    right: Optional[int]

    @staticmethod
    def of(structure: Structure, len_q: int, len_kv: int, item: int = 0) -> Sight:
        s = structure
        q, kv = s.q_starts, s.kv_starts
        if q is None or kv is None:
            q, kv = (0, len_q), (0, len_kv)
        elif s.items:
            count = len(q) // s.items
            q, kv = q[item * count : (item + 1) * count], kv[item * count : (item + 1) * count]
        documents = []
        for q0, q1, k0, k1 in zip(q, q[1:], kv, kv[1:]):
            offset = {"bottom_right": (k1 - k0) - (q1 - q0), "top_left": 0, "at": s.offset}.get(s.diagonal)
            if offset is None:  # last_key
                offset = (s.key_lengths[item] if s.key_lengths else len_kv) - (
                    s.query_lengths[item] if s.query_lengths else len_q
                )
            if q1 > q0 and k1 > k0:
                documents.append(Document((q0, q1), (k0, k1), k0 - q0 + offset))
        left, right = s.window or (None, None)
        if s.causal:
            right = 0 if right is None else min(right, 0)
        return Sight(tuple(documents), left, right)

    @staticmethod
    def all(len_q: int, len_kv: int, causal: bool = False) -> Sight:
        """One document in which every query sees every key, or none after itself."""
        return Sight.of(Structure(causal=causal), len_q, len_kv)

    def tiles(self, queries: Sequence[Piece], keys: Sequence[Piece], group: bool = True) -> list[Tile]:
        """What queries in these pieces see of keys in those, ascending. Neighbours that differ in nothing but where
        they begin become one call, unless `group` is False."""
        out: list[Tile] = []
        for tile in self._single(queries, keys):
            last = out[-1] if out else None
            if (
                group
                and last is not None
                and (tile.q0, tile.k0, tile.offset) == (last.q1, last.k1, last.offset)
                and last.q1 > last.q0
            ):
                begun = (*last.documents, (tile.q0 - last.q0, tile.k0 - last.k0))
                out[-1] = dataclasses.replace(last, q1=tile.q1, k1=tile.k1, documents=begun)
            else:
                out.append(tile)
        return out

    def _single(self, queries: Sequence[Piece], keys: Sequence[Piece]) -> Iterator[Tile]:
        q_places, k_places = _places(queries), _places(keys)
        for document in self.documents:
            for (a0, a1), q_at in _overlaps(queries, q_places, document.queries):
                for (b0, b1), k_at in _overlaps(keys, k_places, document.keys):
                    offset = a0 + document.shift - b0
                    if self._sees(a1 - a0, b1 - b0, offset):
                        yield Tile(q_at, q_at + a1 - a0, k_at, k_at + b1 - b0, offset, b0, a0)

    def _sees(self, queries: int, keys: int, offset: int) -> bool:
        """Whether any pair is visible; the first query stands at `offset` from the first key."""
        if self.right is not None and offset + queries - 1 + self.right < 0:
            return False
        return self.left is None or offset - self.left < keys

    def pairs(self, q: Layout, k: Layout) -> Counts:
        """Visible pairs [ranks of queries, ranks of keys]."""
        out = np.zeros((q.ranks, k.ranks), np.int64)
        all_q = sorted((piece, rank) for rank, mine in enumerate(q.pieces) for piece in mine)
        all_k = sorted((piece, rank) for rank, mine in enumerate(k.pieces) for piece in mine)
        q_pieces, k_pieces = [piece for piece, _ in all_q], [piece for piece, _ in all_k]
        for document in self.documents:
            rows = [(a, i) for a, i in _clipped(q_pieces, document.queries)]
            columns = [(b, j) for b, j in _clipped(k_pieces, document.keys)]
            if not rows or not columns:
                continue
            a = np.array([piece for piece, _ in rows], np.int64)
            b = np.array([piece for piece, _ in columns], np.int64)
            counts = self._count(a[:, 0], a[:, 1], b[:, 0], b[:, 1], document.shift)
            where = np.ix_([all_q[i][1] for _, i in rows], [all_k[j][1] for _, j in columns])
            np.add.at(out, where, counts)
        return out

    def _count(self, a0: Counts, a1: Counts, b0: Counts, b1: Counts, shift: int) -> Counts:
        n, m = (a1 - a0)[:, None], (b1 - b0)[None, :]
        at = a0[:, None] + shift - b0[None, :]  # of the first query among these keys
        upper = n * m if self.right is None else _clamped_sum(n, at + self.right + 1, m)
        lower = 0 if self.left is None else _clamped_sum(n, at - self.left, m)
        return np.asarray(upper - lower, np.int64)


def _clamped_sum(n: Counts, start: Counts, most: Counts) -> Counts:
    """Σ over i < n of start + i, each clamped to 0 … most."""

    def below(x: Counts) -> Counts:
        """Σ of the clamped whole numbers below x."""
        x = np.maximum(x, 0)
        ramp = np.minimum(x, most + 1)
        return np.asarray(ramp * (ramp - 1) // 2 + (x - ramp) * most, np.int64)

    return below(start + n) - below(start)


def _places(pieces: Sequence[Piece]) -> list[int]:
    """Where each begins on its rank."""
    out, place = [], 0
    for begin, end in pieces:
        out.append(place)
        place += end - begin
    return out


def _clipped(pieces: Sequence[Piece], within: Piece) -> Iterator[tuple[Piece, int]]:
    """What of ascending pieces lies within, and of which."""
    low, high = 0, len(pieces)
    while low < high:  # the first that ends behind the beginning
        middle = (low + high) // 2
        low, high = (middle + 1, high) if pieces[middle][1] <= within[0] else (low, middle)
    for i in range(low, len(pieces)):
        begin, end = max(pieces[i][0], within[0]), min(pieces[i][1], within[1])
        if begin >= end:
            return
        yield (begin, end), i


def _overlaps(pieces: Sequence[Piece], places: Sequence[int], within: Piece) -> Iterator[tuple[Piece, int]]:
    """And where it begins on its rank."""
    for piece, i in _clipped(pieces, within):
        yield piece, places[i] + piece[0] - pieces[i][0]
