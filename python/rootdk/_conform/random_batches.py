"""Random batches against the same in double: whatever the constructed inputs did not think of shows here."""

from __future__ import annotations

import dataclasses
import math
from typing import Iterator

import numpy as np

from .law import Batch, Law, attend, probabilities_of, scores_of, values_of
from .probe import BITS, Array, Probe, Refused, keep_bits, rounded
from .reads import ITEMS


@dataclasses.dataclass(frozen=True)
class Miss:
    """A batch whose output is further from the exact one than rounding explains."""

    batch: Batch
    out: Array
    exact: Array
    room: Array  # [batch, heads, len_q, 1]
    compared: Array  # bool, alike: rows that see anything


@dataclasses.dataclass(frozen=True)
class Taken:
    """What the function takes."""

    dims: list[int]
    heads_kv: list[int]  # largest first
    items: int = ITEMS
    rectangular: bool = True
    mask: bool = False
    bias: bool = False
    masks_per_head: bool = False
    large_scores: bool = True
    longest: int = 128


def draw(probe: Probe, rng: np.random.Generator, taken: Taken) -> Iterator[Batch]:
    """Batches of several items and heads; odd lengths, so that no block size divides them; longer than a block; one
    query; a mask and a bias for each item and head; scores from −200 to 200. What the function does not take is left
    out."""

    def batch(name: str, dim: int, len_q: int, len_kv: int, spread: float = 1.0, kv: int = taken.heads_kv[0]) -> Batch:
        # q·k of normal q and k has a spread of √dim; `spread` is that of q·k/√dim, shared by q and k.
        q = rng.standard_normal((items, probe.heads, len_q, dim)) * math.sqrt(spread)
        k = rng.standard_normal((items, kv, len_kv, dim)) * math.sqrt(spread)
        return Batch(name, *(rounded(x, probe.dtype) for x in (q, k, rng.standard_normal((items, kv, len_kv, dim)))))

    items, dim, widest = taken.items, taken.dims[0], max(taken.dims)
    longer = taken.longest + 1
    for d in taken.dims:
        yield batch(f"{items} items, {probe.heads} heads, 33 × 33, d_k {d}", d, 33, 33)
    yield batch(f"a length of {longer}", dim, longer, longer)
    yield batch("sharp scores", widest, 19, 19, 6.0)
    if taken.large_scores:
        yield batch("large scores", dim, 21, 21, {"float64": 300.0, "float16": 20.0}.get(probe.dtype, 60.0))
    if taken.rectangular:
        yield batch("17 queries on 41 keys", widest, 17, 41)
        yield batch("one query on 71 keys", dim, 1, 71)
        yield batch("23 queries on 13 keys", dim, 23, 13)
    for kv in taken.heads_kv[1:]:
        yield batch(f"{kv} heads of K and V", dim, 29, 29, kv=kv)
    shape = (items, probe.heads if taken.masks_per_head else 1, 27, 27)
    if taken.mask:
        hidden = rng.random(shape) < 0.4
        hidden[..., np.arange(27), np.arange(27)] = False  # no row without its own key
        yield dataclasses.replace(batch("a mask for each item", dim, 27, 27), mask=hidden)
    if taken.bias:
        yield dataclasses.replace(
            batch("a bias for each item", dim, 27, 27), bias=rounded(rng.standard_normal(shape), probe.dtype)
        )


def room_of(law: Law, batch: Batch, exact: Array, probe: Probe, uncertain: list[Law]) -> Array:
    """How far a right output may be off: [batch, heads, len_q, 1].

    Twice the error of the plain method in the same dtype (every step rounded to it; the scale on q or on q·k), and a
    floor: sums in f32 (f64 for f64) of dim products and len_kv terms are log2 levels deep, each level off by u·A of a
    score, A = Σ|c·q||k| + |bias|; exp makes of that a relative error of p, and o has 2 roundings of its own; the output
    is rounded once. In f16 and bf16 the plain method's error is one draw of a wide distribution: two more roundings of
    each score, all of them the worst way, are granted (see _worst). Where the law was measured, not known, also what
    its uncertainty makes of the output."""
    unit = max(probe.unit, 2.0 ** -BITS[probe.dtype])
    bits = round(-math.log2(unit))

    def narrow(x: Array) -> Array:
        return keep_bits(x, bits)

    p, reach, visible = probabilities_of(law, batch)
    v = np.abs(values_of(law, batch)).max((-2, -1))[:, :, None, None]
    wide = min(unit, 2.0**-24)
    levels = math.ceil(math.log2(batch.q.shape[-1])) + math.ceil(math.log2(max(2, batch.k.shape[2])))
    most = np.where(visible, reach, 0.0).max(-1, keepdims=True)
    plain = max(float(np.abs(attend(law, batch, narrow, first) - exact).max()) for first in (True, False))
    room = 2 * plain + (wide * (2 + most) * levels + unit) * v
    if unit > wide:
        room = room + 2 * unit * _worst(law, batch, p, exact)
    for other in uncertain:
        room = room + np.abs(attend(other, batch) - exact).max(-1, keepdims=True)
    return np.asarray(room)


def _worst(law: Law, batch: Batch, p: Array, exact: Array) -> Array:
    """Scores off by δ_j·unit move o by Σ p_j δ_j (v_j − o), to first order: at most Σ p_j |s_j| |v_j − o| if each is
    off by its own size. [batch, heads, len_q, 1]."""
    weights = p * np.abs(scores_of(law, batch)[0])
    v = values_of(law, batch)
    worst = np.empty((*exact.shape[:3], 1))
    for item, head in np.ndindex(exact.shape[:2]):
        apart = np.abs(v[item, head][None] - exact[item, head][:, None])  # [len_q, len_kv, dim]
        worst[item, head, :, 0] = (weights[item, head][:, :, None] * apart).sum(1).max(-1)
    return worst


def misses(probe: Probe, law: Law, uncertain: list[Law], batches: Iterator[Batch]) -> tuple[list[Miss], int, list[str]]:
    """What is off, how many batches were compared, and which were refused."""
    found, count, refused = [], 0, []
    for batch in batches:
        try:
            out = probe(batch.q, batch.k, batch.v, batch.mask if batch.mask is not None else batch.bias)
        except Refused as error:
            refused.append(f"{batch.name}: {error}")
            continue
        count += 1
        exact = attend(law, batch)
        room = room_of(law, batch, exact, probe, uncertain)
        compared = probabilities_of(law, batch)[2].any(-1, keepdims=True)
        # Not "greater than": NaN is off, too.
        if not (np.abs(out - exact) <= room)[np.broadcast_to(compared, out.shape)].all():
            found.append(Miss(batch, out, exact, room, compared))
    return found, count, refused
