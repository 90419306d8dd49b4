"""Which rank holds which part of a sequence: runs, zigzag, or what a schedule deals out. Plain numbers, no torch."""

from __future__ import annotations

import dataclasses
import functools
import heapq
from typing import Iterable, Sequence

import numpy as np
import numpy.typing as npt

Piece = tuple[int, int]  #: begin and end in the whole sequence


@dataclasses.dataclass(frozen=True)
class Layout:
    """For each rank the pieces of the sequence that it holds, ascending, one after the other along its length axis.
    Together they are the whole sequence, each token once; a rank may hold none."""

    pieces: tuple[tuple[Piece, ...], ...]

    def __post_init__(self) -> None:
        for rank, mine in enumerate(self.pieces):
            if any(not 0 <= begin < end for begin, end in mine) or any(a[1] > b[0] for a, b in zip(mine, mine[1:])):
                raise ValueError(f"layout: the pieces of rank {rank} are {list(mine)}, but ascending ones are wanted")
        place = 0
        for begin, end in sorted(piece for mine in self.pieces for piece in mine):
            if begin != place:
                raise ValueError(f"layout: token {min(begin, place)} is on {'two ranks' if begin < place else 'none'}")
            place = end

    @property
    def ranks(self) -> int:
        return len(self.pieces)

    @functools.cached_property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each rank."""
        return tuple(sum(end - begin for begin, end in mine) for mine in self.pieces)

    @functools.cached_property
    def total(self) -> int:
        return sum(self.lengths)

    @staticmethod
    def contiguous(lengths: Sequence[int]) -> Layout:
        """The r-th run of the sequence on rank r."""
        ends = np.cumsum([0, *lengths]).tolist()
        return Layout(tuple(((a, b),) if a < b else () for a, b in zip(ends, ends[1:])))

    @staticmethod
    def even(total: int, ranks: int) -> Layout:
        """Runs that differ by a token at most."""
        cuts = [total * i // ranks for i in range(ranks + 1)]
        return Layout.contiguous([b - a for a, b in zip(cuts, cuts[1:])])

    @staticmethod
    def zigzag(total: int, ranks: int) -> Layout:
        """2·ranks pieces; rank r holds the r-th from the front and the r-th from the back: under a causal mask a cheap
        one and a dear one, which cost the same together on every rank."""
        cuts = [total * i // (2 * ranks) for i in range(2 * ranks + 1)]
        pairs = ((r, 2 * ranks - 1 - r) for r in range(ranks))
        return Layout(tuple(joined((cuts[i], cuts[i + 1]) for i in pair) for pair in pairs))

    @staticmethod
    def dealt(documents: Sequence[int], ranks: int, *, causal: bool = True, per_token: float = 0.0) -> Layout:
        """For documents packed end to end, by their starts and the end. Work is visible pairs, and `per_token` pairs
        for what a token costs elsewhere. A document of more than a sixteenth of a rank's share is cut over all ranks
        (zigzag if causal), the others go whole to whoever has least, the largest first: no rank has more than the mean
        and a sixteenth of it, and the rounding of the cuts."""
        starts = [int(start) for start in documents]
        if len(starts) < 2 or starts[0] != 0 or any(a > b for a, b in zip(starts, starts[1:])):
            raise ValueError("documents: starts from 0, ascending, and the end are wanted")
        lengths = [b - a for a, b in zip(starts, starts[1:])]

        def work(length: int) -> float:
            return (length * (length + 1) / 2 if causal else float(length * length)) + per_token * length

        share = sum(map(work, lengths)) / max(ranks, 1)
        held: list[list[Piece]] = [[] for _ in range(ranks)]
        load = [0.0] * ranks
        whole = []
        for number, (begin, length) in enumerate(zip(starts, lengths)):
            if length and work(length) * 16 > share and ranks > 1:
                cut = Layout.zigzag(length, ranks) if causal else Layout.even(length, ranks)
                for r, pieces in enumerate(cut.pieces):
                    rank = (r + number) % ranks  # so that roundings do not always meet the same one
                    held[rank] += [(begin + a, begin + b) for a, b in pieces]
                    for a, b in pieces:
                        load[rank] += (b * (b + 1) - a * (a + 1)) / 2 if causal else float((b - a) * length)
                    load[rank] += per_token * sum(b - a for a, b in pieces)
            elif length:
                whole.append((-work(length), begin, begin + length))
        least = [(load[r], sum(b - a for a, b in held[r]), r) for r in range(ranks)]
        heapq.heapify(least)
        for negative, begin, end in sorted(whole):
            so_far, tokens, rank = heapq.heappop(least)
            held[rank].append((begin, end))
            heapq.heappush(least, (so_far - negative, tokens + end - begin, rank))
        return Layout(tuple(joined(pieces) for pieces in held))

    def positions(self, rank: int) -> npt.NDArray[np.int64]:
        """Where the tokens of a rank stand in the sequence: what rotary embeddings and labels want."""
        runs = [np.arange(begin, end, dtype=np.int64) for begin, end in self.pieces[rank]]
        return np.concatenate(runs) if runs else np.zeros(0, np.int64)

    def among(self, ranks: Sequence[int]) -> Layout:
        """The same of some of its ranks, as if there were no other tokens."""
        held = joined(piece for rank in ranks for piece in self.pieces[rank])
        return Layout(
            tuple(tuple((_before(held, a), _before(held, b)) for a, b in self.pieces[rank]) for rank in ranks)
        )

    def places(self, rank: int) -> list[tuple[slice, slice]]:
        """Where each piece of a rank lies: on it, and in the sequence."""
        out, at = [], 0
        for begin, end in self.pieces[rank]:
            out.append((slice(at, at + end - begin), slice(begin, end)))
            at += end - begin
        return out

    def over(self, size: int) -> Layout:
        """The same of groups of so many ranks each, as if they were one."""
        groups = (self.pieces[first : first + size] for first in range(0, self.ranks, size))
        return Layout(tuple(joined(piece for mine in group for piece in mine) for group in groups))


def _before(pieces: Sequence[Piece], place: int) -> int:
    """How many tokens of these come before a place."""
    return sum(min(end, place) - begin for begin, end in pieces if begin < place)


def joined(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """Ascending, without empty ones, neighbours as one."""
    out: list[Piece] = []
    for begin, end in sorted(pieces):
        if begin < end:
            if out and out[-1][1] == begin:
                out[-1] = (out[-1][0], end)
            else:
                out.append((begin, end))
    return tuple(out)
