"""Attention in double by a law: what a function was found to compute, written down so that it can be computed again."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable

import numpy as np

from .probe import Array


@dataclasses.dataclass(frozen=True)
class Batch:
    """q [batch, heads, len_q, dim]; k, v [batch, heads_kv, len_kv, dim]; mask and bias broadcast to [batch, heads,
    len_q, len_kv]."""

    name: str
    q: Array
    k: Array
    v: Array
    mask: Any = None  # bool, as the function is given it
    bias: Any = None


@dataclasses.dataclass(frozen=True)
class Law:
    """s = c·q·k → cap → + bias, ALiBi → mask → sink → softmax → ·v, with everything that was found about who reads
    what."""

    scale: dict[int, Array]  # [heads] by dim
    cap: float | None = None
    causal: bool = False
    alignment: str = "top_left"  # of causal masks and windows: where query 0 stands
    left: int | None = None  # keys before and after the query's own that are visible
    right: int | None = None
    sink: Array | None = None  # [heads]
    alibi: Array | None = None  # slopes [heads]
    alibi_by_key: bool = False  # + slope·j, not − slope·|i − j|
    alibi_offset: str = "bottom_right"  # where query 0 stands
    mask_shows: bool = True
    bias: str = "after_scale"
    counts: dict[int, Array] = dataclasses.field(default_factory=dict)  # bool [dim]: components that count
    k_heads: dict[int, Array] = dataclasses.field(default_factory=dict)  # by heads_kv: the one each query head reads
    v_heads: dict[int, Array] = dataclasses.field(default_factory=dict)
    # by "q", "k", "v", "mask", "bias": the item each item reads
    items: dict[str, Array] = dataclasses.field(default_factory=dict)
    # by "mask", "bias": the head each head reads
    mask_heads: dict[str, Array] = dataclasses.field(default_factory=dict)
    # What is done to the scores beside the law, for diagnosis: (scores, visible) → visible.
    keep: Callable[[Array, Any], Any] | None = None
    padded: int = 0  # keys of score 0 and value 0 that pad the length to a multiple of this


def _exact(x: Array) -> Array:
    return x


def offset_of(alignment: str, len_q: int, len_kv: int) -> int:
    return len_kv - len_q if alignment == "bottom_right" else 0


def visible_of(law: Law, batch: Batch) -> Any:
    """bool [batch, heads, len_q, len_kv]."""
    (size, heads, len_q, _), len_kv = batch.q.shape, batch.k.shape[2]
    i, j = np.indices((len_q, len_kv))
    place = i + offset_of(law.alignment, len_q, len_kv)
    visible = np.ones((len_q, len_kv), dtype=bool)
    if law.causal:
        visible &= j <= place
    if law.left is not None:
        visible &= place - j <= law.left
    if law.right is not None:
        visible &= j - place <= law.right
    shown = np.broadcast_to(visible, (size, heads, len_q, len_kv))
    if batch.mask is not None:
        shown = shown & (_read(law, "mask", batch.mask, shown.shape) == law.mask_shows)
    return shown


def _read(law: Law, name: str, given: Any, shape: tuple[int, ...]) -> Any:
    full = np.broadcast_to(given, shape)
    if name in law.items and len(law.items[name]) == shape[0]:
        full = full[law.items[name]]
    return full[:, law.mask_heads[name]] if name in law.mask_heads else full


def scores_of(
    law: Law, batch: Batch, rounded: Callable[[Array], Array] = _exact, q_first: bool = True
) -> tuple[Array, Array]:
    """Scores, and how large they can have been on the way: c·Σ|q||k| + |bias|. Both [batch, heads, len_q, len_kv].
    Every step is `rounded`; the scale is put on q first, or on q·k."""
    q, k = batch.q, batch.k
    size, heads, len_q, dim = q.shape
    if len(law.items.get("q", ())) == size:
        q = q[law.items["q"]]
    if len(law.items.get("k", ())) == size:
        k = k[law.items["k"]]
    k = k[:, law.k_heads[k.shape[1]]]
    if dim in law.counts:
        q = q * law.counts[dim]
    c = law.scale[dim][None, :, None, None]
    s = rounded(rounded(q * c) @ k.swapaxes(-1, -2)) if q_first else rounded(rounded(q @ k.swapaxes(-1, -2)) * c)
    reach = np.abs(q * c) @ np.abs(k).swapaxes(-1, -2)
    if law.cap:
        s = rounded(law.cap * rounded(np.tanh(rounded(s / law.cap))))
    if batch.bias is not None and law.bias != "ignored":
        added = _read(law, "bias", batch.bias, s.shape) * (c if law.bias == "before_scale" else 1.0)
        s, reach = rounded(s + added), reach + np.abs(added)
    if law.alibi is not None:
        i, j = np.indices(s.shape[-2:])
        offset = offset_of(law.alibi_offset, len_q, s.shape[-1])
        distance = -(j - offset) if law.alibi_by_key else np.abs(i + offset - j)
        added = -law.alibi[None, :, None, None] * distance
        s, reach = rounded(s + added), reach + np.abs(added)
    return s, reach


def probabilities_of(
    law: Law, batch: Batch, rounded: Callable[[Array], Array] = _exact, q_first: bool = True
) -> tuple[Array, Array, Any]:
    """Probabilities, the reach of the scores, and who is visible. A row that sees nothing is 0."""
    s, reach = scores_of(law, batch, rounded, q_first)
    visible = visible_of(law, batch)
    if law.keep is not None:
        visible = law.keep(np.where(visible, s, -np.inf), visible)
    s = np.where(visible, s, -np.inf)
    z = np.full((1, s.shape[1], 1, 1), -np.inf) if law.sink is None else law.sink[None, :, None, None]
    pad = -s.shape[-1] % law.padded if law.padded else 0
    m = np.maximum(s.max(-1, keepdims=True), z)
    m = np.maximum(m, 0.0) if pad else np.where(np.isfinite(m), m, 0.0)
    e = rounded(np.exp(np.where(visible, rounded(s - m), -np.inf)))
    total = rounded(e.sum(-1, keepdims=True) + np.exp(z - m) + (pad * np.exp(-m) if pad else 0.0))
    return rounded(e / np.where(total > 0, total, 1.0)), reach, visible


def values_of(law: Law, batch: Batch) -> Array:
    """v as each query head reads it: [batch, heads, len_kv, dim]."""
    v = batch.v[law.items["v"]] if len(law.items.get("v", ())) == len(batch.v) else batch.v
    return v[:, law.v_heads[v.shape[1]]]


def attend(law: Law, batch: Batch, rounded: Callable[[Array], Array] = _exact, q_first: bool = True) -> Array:
    return rounded(probabilities_of(law, batch, rounded, q_first)[0] @ values_of(law, batch))
