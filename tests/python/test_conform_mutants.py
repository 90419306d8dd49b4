"""Attention functions that are wrong as real ones have been: each is caught, by the one property that says why."""

from __future__ import annotations

import numpy as np
import pytest
import rootdk
from test_conform import keep_bits, softmax


def spread(q, k, v):
    group = q.shape[1] // k.shape[1]
    return k.repeat(group, 1), v.repeat(group, 1)


def scores(q, k):
    return q @ k.swapaxes(-1, -2) * np.asarray(q.shape[-1] ** -0.5, q.dtype)


def shown(s, mask):
    if mask is None:
        return s
    return np.where(mask, s, np.asarray(-np.inf, s.dtype)) if mask.dtype == bool else s + mask


def finish(s, v):
    p = softmax(s)
    return (np.where(np.isnan(p), 0, p) @ v).astype(v.dtype)


def right(q, k, v, mask=None):
    k, v = spread(q, k, v)
    return finish(shown(scores(q, k), mask), v)


def before(change):
    """A function that does something to q, k, v and the mask first, and is right from there on."""

    def wrong(q, k, v, mask=None):
        return right(*change(q, k, v, mask))

    return wrong


def on_probabilities(change):
    def wrong(q, k, v, mask=None):
        k, v = spread(q, k, v)
        p = softmax(shown(scores(q, k), mask))
        return (change(np.where(np.isnan(p), 0, p)) @ v).astype(v.dtype)

    return wrong


def of_first(x):
    return x if x is None else np.broadcast_to(x[:1], x.shape)


def of_first_head(x):
    return x if x is None else np.broadcast_to(x[:, :1], x.shape)


def only(x, keep):
    return np.where(keep(np.arange(x.shape[-1]), x.shape[-1]), x, 0)


def at_dim(dim, change):
    return before(lambda q, k, v, m: (change(q) if q.shape[-1] == dim else q, k, v, m))


def without_maximum(q, k, v, mask=None):
    k, v = spread(q, k, v)
    e = np.exp(shown(scores(q, k), mask))
    total = e.sum(-1, keepdims=True)
    return np.where(total == 0, 0, e / np.where(total == 0, 1, total) @ v).astype(v.dtype)


def one_maximum_for_all(q, k, v, mask=None):
    k, v = spread(q, k, v)
    s = shown(scores(q, k), mask)
    e = np.exp(s - s.max())
    empty = np.isneginf(s).all(-1, keepdims=True)
    return np.where(empty, 0, e / np.where(empty, 1, e.sum(-1, keepdims=True)) @ v).astype(v.dtype)


def top(count):
    def wrong(q, k, v, mask=None):
        k, v = spread(q, k, v)
        s = shown(scores(q, k), mask)
        if s.shape[-1] > count:
            s = np.where(s >= np.sort(s, -1)[..., -count][..., None], s, -np.inf)
        return finish(s, v)

    return wrong


def top_by_index(q, k, v, mask=None):
    k, v = spread(q, k, v)
    s = shown(scores(q, k), mask)
    if s.shape[-1] > 8:
        kept = np.argpartition(s, -8, -1)[..., -8:]
        t = np.full_like(s, -np.inf)
        np.put_along_axis(t, kept, np.take_along_axis(s, kept, -1), -1)
        s = t
    return finish(s, v)


def alibi(slopes, by_key=False):
    def biased(q, k, v, mask=None):
        k, v = spread(q, k, v)
        s = scores(q, k)
        i, j = np.indices(s.shape[-2:])
        place = i + s.shape[-1] - s.shape[-2]
        added = j if by_key else -np.abs(place - j)
        return finish(shown(s + (np.asarray(slopes)[:, None, None] * added).astype(s.dtype), mask), v)

    return biased


def by_position(q, k, v):
    k, v = spread(q, k, v)
    s = scores(q, k)
    i, j = np.indices(s.shape[-2:])
    return finish(s - np.sqrt(np.abs(i - j)).astype(s.dtype), v)


def tail_of_keys_lost(q, k, v, mask=None):
    k, v = spread(q, k, v)
    n = max(16, k.shape[2] // 16 * 16)
    return finish(shown(scores(q, k), mask)[..., :n], v[:, :, :n])


def padding_counted(q, k, v, mask=None):
    k, v = spread(q, k, v)
    s = shown(scores(q, k), mask)
    if s.shape[-1] < 8:
        return finish(s, v)
    pad = -s.shape[-1] % 16
    return finish(np.pad(s, [(0, 0)] * 3 + [(0, pad)]), np.pad(v, [(0, 0)] * 2 + [(0, pad), (0, 0)]))


def softmax_over_queries(q, k, v):
    k, v = spread(q, k, v)
    p = softmax(scores(q, k).swapaxes(-1, -2)).swapaxes(-1, -2)
    return (p @ v).astype(v.dtype)


def unnormalised_in_bf16(q, k, v, mask=None):
    k, v = spread(q, k, v)
    s = shown(scores(q, k), mask)
    e = np.exp(s - np.maximum(s.max(-1, keepdims=True), -1e30))
    total = e.sum(-1, keepdims=True)
    return (keep_bits(e, 7) @ v / np.where(total > 0, total, 1)).astype(v.dtype)


def scale_off_when_long(q, k, v, mask=None):
    return right(q * np.asarray(1.02, q.dtype) if k.shape[2] > 8 else q, k, v, mask)


def causal_when_one_query_is_not_alone(q, k, v):
    k, v = spread(q, k, v)
    s = scores(q, k)
    i, j = np.indices(s.shape[-2:])
    return finish(np.where(j > i + s.shape[-1] - s.shape[-2], -np.inf, s) if s.shape[-2] != s.shape[-1] else s, v)


def query_tail_lost(q, k, v, mask=None):
    out = right(q, k, v, mask)
    if q.shape[2] > 16:
        out[:, :, q.shape[2] // 16 * 16 :] = 0
    return out


def swapped_when_batched(q, k, v, mask=None):
    return right(q, k[:, ::-1] if len(q) > 1 and q.shape[2] > 8 else k, v, mask)


def v_interleaved(q, k, v, mask=None):
    return right(q, spread(q, k, v)[0], v[:, np.arange(q.shape[1]) % v.shape[1]], mask)


# (name, function, property that says so, its words)
MUTANTS = [
    (
        "first half of the dims",
        before(lambda q, k, v, m: (only(q, lambda i, n: i < n // 2), k, v, m)),
        "dims",
        "only the first 16 of 32 count",
    ),
    (
        "last half of the dims",
        before(lambda q, k, v, m: (q, only(k, lambda i, n: i >= n // 2), v, m)),
        "dims",
        "only the last 16 of 32 count",
    ),
    (
        "even dims",
        before(lambda q, k, v, m: (only(q, lambda i, n: i % 2 == 0), k, v, m)),
        "dims",
        "only every 2th of 32 counts",
    ),
    ("dims beyond 64", at_dim(128, lambda q: only(q, lambda i, n: i < 64)), "dims", "only the first 64 of 128 count"),
    (
        "K heads in reverse",
        before(lambda q, k, v, m: (q, k[:, ::-1] if k.shape[1] == 4 else k, v, m)),
        "heads",
        "K of heads 3, 2, 1, 0 for 0 to 3",
    ),
    (
        "two K heads swapped",
        before(lambda q, k, v, m: (q, k[:, [1, 0, 2, 3]] if k.shape[1] == 4 else k, v, m)),
        "heads",
        "K of heads 1, 0, 2, 3 for 0 to 3",
    ),
    (
        "K and V heads swapped",
        before(lambda q, k, v, m: (q, *(x[:, [1, 0, 2, 3]] if x.shape[1] == 4 else x for x in (k, v)), m)),
        "heads",
        "K of heads 1, 0, 2, 3 for 0 to 3; V of heads 1, 0, 2, 3 for 0 to 3",
    ),
    (
        "V of the next head",
        before(lambda q, k, v, m: (q, k, np.roll(v, -1, 1) if v.shape[1] == 4 else v, m)),
        "heads",
        "V of heads 1, 2, 3, 0 for 0 to 3",
    ),
    (
        "V of head 0",
        before(lambda q, k, v, m: (q, k, of_first_head(v) if v.shape[1] == 4 else v, m)),
        "heads",
        "V of head 0 for all",
    ),
    (
        "mean of the V heads",
        before(lambda q, k, v, m: (q, k, v.mean(1, keepdims=True) + 0 * v if v.shape[1] == 4 else v, m)),
        "heads",
        "V of several heads at once",
    ),
    ("V grouped otherwise than K", v_interleaved, "gqa", "K blocked, V interleaved"),
    ("K of item 0", before(lambda q, k, v, m: (q, of_first(k), v, m)), "batch", "K of item 0 for all"),
    ("V of item 0", before(lambda q, k, v, m: (q, k, of_first(v), m)), "batch", "V of item 0 for all"),
    ("q of item 0", before(lambda q, k, v, m: (of_first(q), k, v, m)), "batch", "q of item 0 for all"),
    (
        "mask of item 0",
        before(lambda q, k, v, m: (q, k, v, of_first(m) if m is not None and m.dtype == bool else m)),
        "batch",
        "mask of item 0 for all",
    ),
    (
        "bias of item 0",
        before(lambda q, k, v, m: (q, k, v, of_first(m) if m is not None and m.dtype != bool else m)),
        "batch",
        "bias of item 0 for all",
    ),
    (
        "mask of head 0",
        before(lambda q, k, v, m: (q, k, v, of_first_head(m) if m is not None and m.dtype == bool else m)),
        "heads",
        "mask of head 0 for all",
    ),
    (
        "items in another order",
        before(lambda q, k, v, m: (q, k, np.roll(v, 1, 0), m)),
        "batch",
        "V of items 2, 0, 1 for 0 to 2",
    ),
    ("no maximum taken away", without_maximum, "large_scores", "overflow from 90.5 on"),
    ("one maximum for all rows", one_maximum_for_all, "values", "not finite"),
    ("top 8", top(8), "values", "only the 8 largest scores of a row are read"),
    ("top 30", top(30), "values", "only the 30 largest scores of a row are read"),
    ("top 8 by index", top_by_index, "causal", "only 8 keys"),
    (
        "ALiBi",
        alibi([0.25, 0.0625, 0.015625, 0.00390625]),
        "alibi",
        "slopes 0.25, 0.0625, 0.01562, 0.003906 (standard)",
    ),
    ("ALiBi by key", alibi([0.5, 0.25, 0.1, 0.0], by_key=True), "alibi", "slopes 0.5, 0.25, 0.1, "),
    ("another bias by position", by_position, "alibi", "another bias by position"),
    ("keys of the last block lost", tail_of_keys_lost, "values", "keys after the last whole block of 16 are not read"),
    (
        "padding counted",
        padding_counted,
        "values",
        "keys that pad the length to a multiple of 16 are counted, with score 0",
    ),
    ("softmax over queries", softmax_over_queries, "values", "softmax goes over the queries"),
    (
        "probabilities in bfloat16",
        on_probabilities(lambda p: keep_bits(p, 7)),
        "precision",
        "probabilities or outputs are rounded to bfloat16",
    ),
    (
        "unnormalised probabilities in bfloat16",
        unnormalised_in_bf16,
        "precision",
        "probabilities are rounded to bfloat16 before they are divided by their sum",
    ),
    (
        "values in bfloat16",
        before(lambda q, k, v, m: (q, k, keep_bits(v, 7), m)),
        "precision",
        "values are rounded to bfloat16",
    ),
    (
        "all in float16",
        lambda q, k, v, mask=None: right(*(x.astype(np.float16) for x in (q, k, v)), mask).astype(q.dtype),
        "precision",
        "probabilities or outputs are rounded to float16",
    ),
    ("scale 2 % off when long", scale_off_when_long, "values", "as if scores were 1.02 times as large"),
    (
        "causal where lengths differ",
        causal_when_one_query_is_not_alone,
        "values",
        "causal (bottom_right) at these lengths",
    ),
    ("queries of the last block lost", query_tail_lost, "values", "off, and no known fault explains it"),
    ("K heads in reverse in batches", swapped_when_batched, "values", "K is read: heads in reverse"),
    (
        "columns of V rotated in batches",
        before(lambda q, k, v, m: (q, k, np.roll(v, 1, 3) if len(v) > 1 and v.shape[2] > 8 else v, m)),
        "values",
        "off, and no known fault explains it",
    ),
]


def takes_mask(function):
    return "mask" if "mask" in function.__code__.co_varnames else None


@pytest.mark.parametrize("function, name, words", [m[1:] for m in MUTANTS], ids=[m[0] for m in MUTANTS])
def test_a_mutant_is_caught_and_only_by_its_cause(function, name, words):
    result = rootdk.conform(function, framework="numpy", mask=takes_mask(function), dims=(32, 128), longest=48)
    assert [finding.property for finding in result.wrong] == [name], result
    assert result[name].found.startswith(words), result
