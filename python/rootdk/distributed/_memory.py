"""What attention over ranks needs of a rank's memory beyond q, k, v and the gradient of the output, in bytes: results,
what is kept for backward, messages and copies, as the code of each way makes them. Part of the plan's cost model; held
against what is measured by tests/python/test_distributed.py."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._plan import Sizes

Both = tuple[int, int]  #: forward and backward, the most at a time


@dataclasses.dataclass(frozen=True)
class Elements:
    """Of the tensors of so many queries and keys; `rows` are those of a logsumexp."""

    q: int
    o: int
    kv: int
    rows: int

    @staticmethod
    def of(s: Sizes, queries: int, keys: int) -> Elements:
        rows = s.batch * s.heads_q * queries
        return Elements(rows * s.dim_qk, rows * s.dim_v, s.kv(keys, 1), rows)


def _computing(s: Sizes) -> tuple[int, int]:
    """Bytes of what calls compute with, and of the copies that are made for it: 0 or the same."""
    wide = s.element < s.wide and s.wide_parts
    return (s.wide, s.wide) if wide else (s.element, 0)


def ring(s: Sizes, queries: int, keys: int, travels: bool) -> Both:
    """travels: whether any keys leave their rank."""
    x, e, w = Elements.of(s, queries, keys), s.element, s.wide
    c, copy = _computing(s)
    moving = (2 if travels else 1) * x.kv * e  # those that are here, and the next ones
    merging = 6 * 8 * x.rows  # logsumexps and shares, in double
    forward = moving + (x.q + x.kv) * copy + x.o * (2 * w + c) + merging  # the sum, a part, and its share
    sums = (3 if travels else 1) * x.kv * w  # packed, arriving, on its way
    backward = moving + (x.q + 2 * x.o + x.kv) * copy + (x.q + x.kv) * (w + c) + sums
    return forward, backward + x.o * e + x.rows * w + merging


def all_gather(s: Sizes, queries: int, keys: int, gathered: int) -> Both:
    """gathered: the keys that a rank has in the end."""
    x, e, w = Elements.of(s, queries, keys), s.element, s.wide
    c, copy = _computing(s)
    got = s.kv(gathered, 1)
    merging = 6 * 8 * x.rows
    gathering = x.kv * e + 2 * got * e  # as messages, and in order
    forward = max(gathering, got * e + x.o * (2 * w + e) + merging)
    # Pieces of what was gathered and of the rows are copied, so that they lie as the engine wants them.
    calls = (got + x.q + 2 * x.o) * c + (got + x.q) * (w + c)
    backward = max(gathering, got * e + (got + x.q + 2 * x.o) * copy + calls)
    return forward, max(backward, (3 * got + x.kv) * w) + x.o * e + x.rows * w + merging


def heads(s: Sizes, part: Sizes, ranks: int, queries: int, keys: int, all_queries: int, all_keys: int) -> Both:
    """part: of the heads of a rank, which has all queries and keys."""
    x, own, e = Elements.of(s, queries, keys), Elements.of(part, all_queries, all_keys), s.element

    def away(elements: int) -> int:
        """Of messages: what stays is none."""
        return -(-elements * e * (ranks - 1) // ranks)

    arriving = (own.q + own.kv) * e
    sent = (x.q + max(x.kv, own.kv)) if ranks > s.heads_kv else x.q + x.kv
    rows = own.rows * s.wide
    there = arriving + away(own.q + own.kv) + away(sent)
    back = arriving + 3 * own.o * e + away(x.o) + x.o * e + 3 * rows
    kept = arriving + own.o * e + rows + x.o * e
    # Gradients of heads of keys that several ranks have read are added in w bytes.
    home = (x.q + x.kv) * e + x.q * e + x.kv * s.wide
    backward = kept + own.o * e + arriving + away(own.q + own.kv) + away(sent) + home
    return max(there, back), max(backward, kept + own.o * e + away(own.o) + away(x.o))


def two_levels(s: Sizes, part: Sizes, ranks: int, queries: int, keys: int, node_queries: int, node_keys: int) -> Both:
    """ranks, and all that lies on them: of a node."""
    inside = heads(s, part, ranks, queries, keys, node_queries, node_keys)
    own, x, e = Elements.of(part, node_queries, node_keys), Elements.of(s, queries, keys), s.element
    forward, backward = ring(part, node_queries, node_keys, True)
    kept = (own.q + own.kv) * e
    return max(inside[0], kept + forward), max(inside[1], kept + (x.o + own.o) * e + backward)
