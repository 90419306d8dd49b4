"""rootdk.flash_attn and rootdk.flash_attn_interface against attention written out in double, on random calls: outputs,
logsumexps and gradients."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import types

import numpy as np
import pytest
import rootdk
import torch
from conftest import gradient_tolerance, tolerance
from rootdk import flash_attn as fa2
from rootdk import flash_attn_interface as fa3

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def exact(q, k, v, *, scale=None, causal=False, window=(-1, -1), cap=0.0, slopes=None, sink=None):
    """(out [len_q, heads, dim], lse [heads, len_q]) of one sequence, in double and differentiable; positions are
    bottom-right."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.double() for x in (q, k, v))
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = torch.einsum("qhd,khd->hqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if cap > 0:
        s = cap * torch.tanh(s / cap)
    i = torch.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0]
    j = torch.arange(k.shape[0])
    if slopes is not None:
        s = s - slopes.double()[:, None, None] * (i - j).abs()
    left, right = window
    right = 0 if causal else right
    seen = torch.ones(q.shape[0], k.shape[0], dtype=torch.bool)
    seen &= (j >= i - left) if left >= 0 else seen
    seen &= (j <= i + right) if right >= 0 else seen
    s = s.masked_fill(~seen, -torch.inf)
    if sink is not None:
        s = torch.cat((s, sink.double()[:, None, None].expand(-1, q.shape[0], 1)), -1)
    alone = (s == -torch.inf).all(-1, keepdim=True)
    p = torch.where(alone, 0, torch.softmax(torch.where(alone, 0, s), -1))
    lse = torch.where(alone[..., 0], -torch.inf, torch.logsumexp(torch.where(alone, 0, s), -1))
    return torch.einsum("hqk,khd->qhd", p[..., : k.shape[0]], v), lse


def allowed(q, k, v, scale):
    """conftest's, of this layout."""
    return tolerance(
        *(
            x.detach().float().numpy().astype(str(x.dtype)[6:] if x.dtype != torch.bfloat16 else "float32")
            for x in (q, k, v)
        ),
        scale,
    ) + UNIT[q.dtype] * float(v.detach().abs().max() if v.numel() else 0)


def score_bound(q, k, scale):
    c = q.shape[-1] ** -0.5 if scale is None else abs(scale)
    return c * q.shape[-1] * float(q.detach().abs().max() * k.detach().abs().max()) if q.numel() and k.numel() else 0.0


def close(found, wanted, q, k, v, scale, what):
    assert found.shape == wanted.shape, what
    if found.numel():
        assert (found.double() - wanted).abs().max() <= allowed(q, k, v, scale), what


def close_lse(found, wanted, q, k, scale):
    """A score is off by u·A a level, in f32; the logarithm of a sum of up to 40 adds as many levels."""
    assert found.shape == wanted.shape and found.dtype == torch.float32
    fine = torch.isfinite(wanted)
    assert torch.equal(found[~fine].double(), wanted[~fine])
    limit = (
        2.0**-24 * 8 * (2 + score_bound(q, k, scale) + float(wanted[fine].detach().abs().max() if fine.any() else 0))
    )
    assert ((found.double() - wanted)[fine].abs() <= limit).all()


def as_in_2(lse):
    """FlashAttention 2 has +inf where a row sees nothing, and 3 has −inf."""
    return torch.where(lse == -torch.inf, torch.inf, lse)


def close_gradients(found, wanted, q, k, v, scale, dtype):
    """And each is rounded once to its own type."""
    limit = gradient_tolerance(*(x.detach().float().numpy() for x in (q, k, v)), scale, UNIT[dtype])
    for f, w in zip(found, wanted):
        assert f.shape == w.shape
        if f.numel():
            assert (f.double() - w).abs().max() <= limit + UNIT[dtype] * float(w.abs().max())


def draw(g, dtype, *shape):
    return torch.randn(*shape, generator=g).to(dtype).requires_grad_()


def problem(seed):
    """Options of one random call, the same for the function and for `exact`."""
    rng = np.random.default_rng(seed)
    heads_k = int(rng.integers(1, 4))
    heads = heads_k * int(rng.integers(1, 4))
    g = torch.Generator().manual_seed(seed)
    window = [(-1, -1), (3, -1), (-1, 2), (4, 1), (0, 0)][rng.integers(5)]
    said = dict(
        scale=[None, 0.3, -0.2][rng.integers(3)],
        causal=bool(rng.integers(2)),
        window=window,
        cap=[0.0, 1.5][rng.integers(2)],
        sink=torch.randn(heads, generator=g) if rng.integers(3) == 0 else None,
    )
    slopes = [None, (heads,), "each"][rng.integers(3)]
    return rng, g, DTYPES[rng.integers(3)], heads, heads_k, int(rng.choice([4, 8, 20, 32])), said, slopes


def names(said, **more):
    out = dict(softmax_scale=said["scale"], causal=said["causal"], window_size=said["window"], softcap=said["cap"])
    return out | (dict(s_aux=said["sink"]) if said["sink"] is not None else {}) | more


def gradients(outs, weights, leaves):
    loss = sum((o.double() * w).sum() for o, w in zip(outs, weights))
    return torch.autograd.grad(loss, leaves)


@pytest.mark.parametrize("seed", range(70))
def test_batches(seed):
    rng, g, dtype, heads, heads_k, dim, said, slopes = problem(seed)
    batch, len_q, len_k = int(rng.integers(1, 4)), int(rng.integers(1, 40)), int(rng.integers(1, 40))
    q = draw(g, dtype, batch, len_q, heads, dim)
    k, v = (draw(g, dtype, batch, len_k, heads_k, dim) for _ in range(2))
    if slopes is not None:
        slopes = torch.rand(*(slopes if slopes != "each" else (batch, heads)), generator=g)
    each = [None] * batch if slopes is None else slopes.expand(batch, heads)
    out, lse, p = fa2.flash_attn_func(q, k, v, alibi_slopes=slopes, return_attn_probs=True, **names(said))
    assert p.numel() == 0 and out.dtype == dtype
    pairs = [exact(q[i], k[i], v[i], slopes=each[i], **said) for i in range(batch)]
    wanted, wanted_lse = (torch.stack(x) for x in zip(*pairs))
    close(out, wanted, q, k, v, said["scale"], "out")
    close_lse(lse, as_in_2(wanted_lse), q, k, said["scale"])
    w = torch.randn(out.shape, generator=g).double().clamp(-1, 1)
    seen = torch.isfinite(wanted_lse)
    found = gradients((out, lse[seen]), (w, torch.ones(())), (q, k, v))
    close_gradients(
        found, gradients((wanted, wanted_lse[seen]), (w, torch.ones(())), (q, k, v)), q, k, v, said["scale"], dtype
    )
    kv = torch.stack((k, v), 2)
    assert torch.equal(fa2.flash_attn_kvpacked_func(q, kv, alibi_slopes=slopes, **names(said)), out)
    if slopes is None:
        third, third_lse = fa3.flash_attn_func(q, k, v, return_attn_probs=True, **names(said))
        assert torch.equal(third, out) and torch.equal(third_lse, torch.where(lse == torch.inf, -torch.inf, lse))
    if heads == heads_k and len_q == len_k:
        qkv = torch.stack((q, k, v), 2)
        assert torch.equal(fa2.flash_attn_qkvpacked_func(qkv, alibi_slopes=slopes, **names(said)), out)


def sums(counts):
    return torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32)


@pytest.mark.parametrize("seed", range(70))
def test_sequences_packed_end_to_end(seed):
    rng, g, dtype, heads, heads_k, dim, said, slopes = problem(1000 + seed)
    batch = int(rng.integers(1, 5))
    counts_q, counts_k = rng.integers(0, 20, batch), rng.integers(0, 20, batch)
    q = draw(g, dtype, int(counts_q.sum()) + int(rng.integers(3)), heads, dim)
    k, v = (draw(g, dtype, int(counts_k.sum()) + 2, heads_k, dim) for _ in range(2))
    if slopes is not None:
        slopes = torch.rand(*(slopes if slopes != "each" else (batch, heads)), generator=g)
    each = [None] * batch if slopes is None else slopes.expand(batch, heads)
    starts_q, starts_k = sums(counts_q), sums(counts_k)
    most = int(counts_q.max()), int(counts_k.max())
    used_q, used_k, third = counts_q, counts_k, True
    arguments = q, k, v, starts_q, starts_k, *most
    if slopes is None and rng.integers(2):
        used_q, used_k = (torch.tensor([rng.integers(0, n + 1) for n in counts]) for counts in (counts_q, counts_k))
        out, lse = fa3.flash_attn_varlen_func(
            *arguments, seqused_q=used_q, seqused_k=used_k, return_attn_probs=True, **names(said)
        )
    else:
        out, lse, _ = fa2.flash_attn_varlen_func(*arguments, alibi_slopes=slopes, return_attn_probs=True, **names(said))
        third = False
    wanted = torch.zeros(q.shape, dtype=torch.float64)
    wanted_lse = torch.full(lse.shape, -torch.inf, dtype=torch.float64)
    for i in range(batch):
        a, b = int(starts_q[i]), int(starts_k[i])
        rows = slice(a, a + int(used_q[i])), slice(b, b + int(used_k[i]))
        o, m = exact(q[rows[0]], k[rows[1]], v[rows[1]], slopes=each[i], **said)
        wanted[rows[0]], wanted_lse[:, rows[0]] = o, m
    close(out, wanted, q, k, v, said["scale"], "out")
    close_lse(lse, wanted_lse if third else as_in_2(wanted_lse), q, k, said["scale"])
    w = torch.randn(out.shape, generator=g).double().clamp(-1, 1)
    if wanted.requires_grad:
        found = gradients((out,), (w,), (q, k, v))
        close_gradients(found, gradients((wanted,), (w,), (q, k, v)), q, k, v, said["scale"], dtype)


def rotated(x, positions, cos, sin, interleaved):
    """x is [len, heads, dim]; in f32, rounded once, as there."""
    half = cos.shape[1]
    c, s = cos[positions].float()[:, None], sin[positions].float()[:, None]
    out = x.clone()
    a, b = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(half), slice(half, 2 * half))
    left, right = x[..., a].float(), x[..., b].float()
    out[..., a], out[..., b] = (left * c - right * s).to(x.dtype), (left * s + right * c).to(x.dtype)
    return out


@pytest.mark.parametrize("seed", range(80))
def test_caches(seed):
    """A row of the cache, or pages, for each sequence; new keys, rotated or not; and queries of differing lengths."""
    rng, g, dtype, heads, heads_k, dim, said, slopes = problem(2000 + seed)
    third = bool(rng.integers(2))
    slopes = None if third or slopes is None else torch.rand(heads, generator=g)
    batch, len_q, new, room = int(rng.integers(1, 4)), int(rng.integers(1, 5)), int(rng.integers(0, 4)), 24
    there = rng.integers(0, room - new + 1, batch)
    paged, padded = bool(rng.integers(2)), bool(rng.integers(2))
    size, count = int(rng.choice([1, 3, 8])), -(-room // 1) * batch + 3
    pool = count if paged else batch + 2
    shape = (pool, size if paged else room, heads_k, dim)
    k_cache, v_cache = (torch.randn(shape, generator=g).to(dtype) for _ in range(2))
    more = dict(cache_seqlens=torch.tensor(there, dtype=torch.int32))
    if paged:
        per = -(-room // size)
        table = torch.tensor(rng.permutation(count)[: batch * per].reshape(batch, per), dtype=torch.int32)
        for i in range(batch):  # what is never read may be anything
            table[i, -(-(int(there[i]) + new) // size) :] = -1 if seed % 2 else 10**6
        more["page_table" if third else "block_table"] = table
        rows = None
    else:
        rows = torch.tensor(rng.permutation(pool)[:batch], dtype=torch.int32)
        more["cache_batch_idx"] = rows
    starts = [int(rng.integers(0, n + 1)) for n in there] if padded else [0] * batch
    if padded:
        more["cache_leftpad"] = torch.tensor(starts, dtype=torch.int32)
    differing = third and bool(rng.integers(2))
    counts = rng.integers(0, 4, batch) if differing else [len_q] * batch
    q = torch.randn(int(sum(counts)), heads, dim, generator=g).to(dtype)
    k_new, v_new = (torch.randn(batch, new, heads_k, dim, generator=g).to(dtype) for _ in range(2))
    rotary = new > 0 and bool(rng.integers(2))
    if rotary:
        cos = torch.randn(room + 4, int(rng.integers(1, dim // 2 + 1)), generator=g).to(dtype)
        sin = torch.randn(cos.shape, generator=g).to(dtype)
        interleaved = bool(rng.integers(2))
        more |= dict(rotary_cos=cos, rotary_sin=sin, rotary_interleaved=interleaved)
    # by hand
    keys, values = k_cache.clone(), v_cache.clone()
    wanted, wanted_lse, at = [], [], 0
    for i in range(batch):
        n = int(there[i])
        fresh, mine = k_new[i], q[at : at + int(counts[i])]
        at += int(counts[i])
        if rotary:
            fresh = rotated(fresh, torch.arange(n, n + new), cos, sin, interleaved)
            moving = said["causal"] or said["window"] != (-1, -1)
            mine = rotated(
                mine, torch.arange(n, n + len(mine)) if moving else torch.full((len(mine),), n), cos, sin, interleaved
            )
        places = torch.arange(n + new)
        where = (table[i, places // size].long(), places % size) if paged else (rows[i].long().expand(n + new), places)
        keys[where[0][n:], where[1][n:]], values[where[0][n:], where[1][n:]] = fresh, v_new[i]
        of = keys[where][starts[i] :], values[where][starts[i] :]
        o, m = exact(mine, *of, slopes=slopes, **said)
        wanted.append(o), wanted_lse.append(m)
    given = q if differing else q.unflatten(0, (batch, len_q))
    if differing:
        more |= dict(cu_seqlens_q=sums(counts), max_seqlen_q=int(max(counts)))
    if slopes is not None:
        more["alibi_slopes"] = slopes
    fresh = (k_new, v_new) if new else ()
    out, lse, *rest = (fa3 if third else fa2).flash_attn_with_kvcache(
        given, k_cache, v_cache, *fresh, return_softmax_lse=True, **names(said), **more
    )
    assert torch.equal(keys, k_cache) and torch.equal(values, v_cache) and len(rest) == 2 * third
    wanted = torch.cat(wanted) if differing else torch.stack(wanted)
    wanted_lse = torch.cat(wanted_lse, 1) if differing else torch.stack(wanted_lse)
    biggest = torch.cat((keys.flatten(), q.flatten())).abs().max().expand(1, dim)  # rotated ones may be longer
    grown = 2 * max(1.0, float(cos.abs().max()), float(sin.abs().max())) if rotary else 1
    close(out, wanted, biggest * grown, biggest, values, said["scale"], "out")
    wanted_lse = wanted_lse if third else as_in_2(wanted_lse)
    close_lse(lse, wanted_lse, biggest * grown, biggest, said["scale"])


def test_pages_of_sequences_packed_end_to_end():
    g = torch.Generator().manual_seed(3)
    q = torch.randn(7, 4, 8, generator=g)
    pool = torch.randn(2, 9, 4, 2, 8, generator=g)  # nine pages of four
    table = torch.tensor([[5, 2, -7], [8, 0, 3]], dtype=torch.int32)
    counts = [6, 11]
    k, v = (torch.cat([x[t[t >= 0].long()].flatten(0, 1)[:n] for t, n in zip(table, counts)]) for x in pool)
    starts = torch.tensor([0, 3, 7]), sums(counts)
    found = fa2.flash_attn_varlen_func(q, *pool, *starts, 4, 11, causal=True, block_table=table)
    assert torch.equal(found, fa2.flash_attn_varlen_func(q, k, v, *starts, 4, 11, causal=True))


def test_new_keys_of_differing_lengths_and_places_of_rotation_said_beside_them():
    g = torch.Generator().manual_seed(4)
    caches = torch.randn(2, 2, 16, 2, 8, generator=g)
    alone = caches.clone()
    q, k, v = torch.randn(5, 4, 8, generator=g), *torch.randn(2, 4, 2, 8, generator=g)
    cos, sin = torch.randn(2, 32, 4, generator=g)
    where = dict(rotary_cos=cos, rotary_sin=sin, causal=True)
    out = fa3.flash_attn_with_kvcache(
        q, *caches, k, v, cache_seqlens=torch.tensor([3, 9]), cu_seqlens_q=torch.tensor([0, 2, 5]), max_seqlen_q=3,
        cu_seqlens_k_new=torch.tensor([0, 1, 4]), rotary_seqlens=torch.tensor([20, 11]), **where,
    )  # fmt: skip
    for i, (length, at, rows, new) in enumerate([(3, 20, slice(2), slice(1)), (9, 11, slice(2, 5), slice(1, 4))]):
        mine = fa3.flash_attn_with_kvcache(
            q[None, rows], *alone[:, i : i + 1], k[None, new], v[None, new], cache_seqlens=length,
            rotary_seqlens=torch.tensor([at]), **where,
        )  # fmt: skip
        torch.testing.assert_close(out[rows], mine[0])
    assert torch.equal(caches, alone)


def test_a_query_for_values_is_a_longer_query():
    g = torch.Generator().manual_seed(5)
    q, k, v, qv = torch.randn(4, 2, 9, 2, 8, generator=g)
    found = fa3.flash_attn_func(q, k, v, qv=qv, causal=True)
    for i in range(2):
        scores = torch.cat((q, qv), -1)[i], torch.cat((k, v), -1)[i]
        wanted, _ = exact(*scores, v[i], causal=True)
        close(found[i], wanted, *scores, v, None, "out")
    assert torch.equal(fa3.flash_attn_with_kvcache(q, k, v, qv=qv, causal=True), found)


def test_probabilities_that_were_dropped_are_negative():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 24, 2, 16) for _ in range(3))
    out, _, p = fa2.flash_attn_func(q, k, v, dropout_p=0.4, causal=True, return_attn_probs=True)
    kept = torch.where(p > 0, p, 0) / 0.6
    torch.testing.assert_close(torch.einsum("bhqk,bkhd->bqhd", kept, v), out)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / 4
    scores = scores.masked_fill(torch.ones(24, 24).triu(1).bool(), -torch.inf)
    torch.testing.assert_close(p.abs(), scores.softmax(-1))
    assert 0.3 < (p < 0).sum() / (p != 0).sum() < 0.5  # 1200 draws of 0.4: a twentieth is 0.014 from it
    assert not torch.equal(fa2.flash_attn_func(q, k, v, 0.4, causal=True), out)  # another draw
    starts = torch.tensor([0, 10, 48])
    packed = [x.flatten(0, 1) for x in (q, k, v)]
    out, _, p = fa2.flash_attn_varlen_func(*packed, starts, starts, 38, 38, dropout_p=0.4, return_attn_probs=True)
    assert p.shape == (2, 2, 38, 38)
    rows = torch.einsum("hqk,khd->qhd", torch.where(p > 0, p, 0)[1] / 0.6, packed[2][10:])
    torch.testing.assert_close(rows, out[10:])


def test_parts_of_keys_combine():
    g = torch.Generator().manual_seed(6)
    q, k, v = (torch.randn(2, 12, 2, 8, generator=g) for _ in range(3))
    whole, lse = fa3.flash_attn_func(q, k, v, return_attn_probs=True)
    parts = [fa3.flash_attn_func(q, k[:, a:b], v[:, a:b], return_attn_probs=True) for a, b in ((0, 5), (5, 12))]
    outs, lses = torch.stack([o for o, _ in parts]), torch.stack([m.mT for _, m in parts])
    found, found_lse = fa3.flash_attn_combine(outs, lses)
    torch.testing.assert_close(found, whole)
    torch.testing.assert_close(found_lse, lse.mT)
    into = torch.empty_like(whole)
    assert fa3.flash_attn_combine(outs, lses, into)[0] is into and torch.equal(into, found)
    assert fa3.flash_attn_combine(outs, lses, out_dtype=torch.bfloat16)[0].dtype == torch.bfloat16
    stored = outs.bfloat16()  # what was stored in 16 bits is added in float32, and rounded once more
    exact = (stored.double() * (lses - found_lse).double().exp()[..., None]).sum(0)
    combined, _ = fa3.flash_attn_combine(stored, lses)
    assert ((combined.double() - exact).abs() <= UNIT[torch.bfloat16] * exact.abs() + 2.0**-20).all()
    assert fa3.flash_attn_combine(torch.ones(2, 1, 1, 1, 4), torch.full((2, 1, 1, 1), -torch.inf))[0].abs().max() == 0


def test_several_heads_of_queries_in_one_tensor():
    qkv = torch.randn(2, 7, 8, 16)
    q, k, v = qkv.split([4, 2, 2], 2)
    assert torch.equal(fa3.flash_attn_qkvpacked_func(qkv, num_heads_q=4), fa3.flash_attn_func(q, k, v))
    flat = torch.randn(14, 3, 4, 16)
    starts = torch.tensor([0, 5, 14])
    assert torch.equal(
        fa2.flash_attn_varlen_qkvpacked_func(flat, starts, 9, causal=True),
        fa2.flash_attn_varlen_kvpacked_func(flat[:, 0], flat[:, 1:], starts, starts, 9, 9, causal=True),
    )


def test_forms_that_pack_pass_everything_on():
    """Each says of its attention what the function of three tensors says; draws of dropout follow torch's generator."""
    g = torch.Generator().manual_seed(8)
    qkv, slopes, sink = (torch.randn(*shape, generator=g) for shape in ((2, 9, 3, 4, 8), (4,), (4,)))
    said = dict(softmax_scale=0.4, causal=True, window_size=(5, 0), softcap=1.5, return_attn_probs=True, s_aux=sink)
    of_2 = said | dict(dropout_p=0.4, alibi_slopes=slopes.abs(), deterministic=True)
    ends = torch.tensor([0, 7, 18], dtype=torch.int32)
    flat = qkv.flatten(0, 1)

    def told(function, *args, **more):
        torch.manual_seed(0)
        return function(*args, **more)

    dense = told(fa2.flash_attn_func, *qkv.unbind(2), **of_2)
    packed = told(fa2.flash_attn_varlen_func, *flat.unbind(1), ends, ends, 11, 11, **of_2)
    third = fa3.flash_attn_func(*qkv.unbind(2), **said)
    assert (dense[2] < 0).any() and (packed[2] < 0).any()
    for found, wanted in (
        (told(fa2.flash_attn_kvpacked_func, qkv[:, :, 0], qkv[:, :, 1:], **of_2), dense),
        (told(fa2.flash_attn_qkvpacked_func, qkv, **of_2), dense),
        (told(fa2.flash_attn_varlen_kvpacked_func, flat[:, 0], flat[:, 1:], ends, ends, 11, 11, **of_2), packed),
        (told(fa2.flash_attn_varlen_qkvpacked_func, flat, ends, 11, **of_2), packed),
        (fa3.flash_attn_qkvpacked_func(qkv, **said), third),
        (fa3.flash_attn_qkvpacked_func(qkv.flatten(2, 3), num_heads_q=4, **said), third),
    ):
        assert len(found) == len(wanted) and all(map(torch.equal, found, wanted))


def test_where_there_is_nothing():
    """No sequences, or no keys, with slopes for each of them and with probabilities."""
    x, none = torch.randn(2, 6, 2, 8), torch.tensor([0], dtype=torch.int32)
    slopes = torch.rand(3, 2)
    for more in ({}, dict(dropout_p=0.3)):
        more["return_attn_probs"] = True
        out, lse, _ = fa2.flash_attn_func(x[:0], x[:0], x[:0], alibi_slopes=slopes[:0], **more)
        assert out.shape == (0, 6, 2, 8) and lse.shape == (0, 2, 6)
        for slope in (None, slopes[0], slopes[:2]):
            out, lse, p = fa2.flash_attn_func(x, x[:, :0], x[:, :0], alibi_slopes=slope, **more)
            assert not out.any() and (lse == torch.inf).all() and not p.numel()
        out, _, _ = fa2.flash_attn_varlen_func(x[0, :0], x[0, :0], x[0, :0], none, none, 0, 0, **more)
        assert out.shape == (0, 2, 8)
        ends = torch.tensor([0, 0, 6, 6], dtype=torch.int32)
        for slope in (None, slopes):
            out, _, p = fa2.flash_attn_varlen_func(x[0], x[0], x[0], ends, ends, 6, 6, alibi_slopes=slope, **more)
            alone = fa2.flash_attn_func(x[:1], x[:1], x[:1], alibi_slopes=None if slope is None else slope[1])
            assert more.get("dropout_p") or torch.equal(out, alone[0])
            assert out.all() and p.shape == ((3, 2, 6, 6) if "dropout_p" in more else (0,))


def test_a_call_that_is_refused_leaves_the_cache_as_it_was():
    x, cache = torch.randn(2, 1, 4, 8), torch.zeros(2, 2, 8, 2, 8)
    new = x[:, :, :2]
    slopes = torch.ones(3)
    for says, call in {
        "s_aux: .5.": lambda: fa2.flash_attn_with_kvcache(x, *cache, new, new, cache_seqlens=0, s_aux=torch.ones(5)),
        "alibi_slopes": lambda: fa2.flash_attn_with_kvcache(x, *cache, new, new, cache_seqlens=0, alibi_slopes=slopes),
        "q: headdim is 4": lambda: fa2.flash_attn_with_kvcache(x[..., :4], *cache, new, new, cache_seqlens=0),
        "q: torch.float16": lambda: fa2.flash_attn_with_kvcache(x.half(), *cache, new, new, cache_seqlens=0),
        "k_cache: nheads_k is 2": lambda: fa2.flash_attn_with_kvcache(x[:, :, :3], *cache, new, new, cache_seqlens=0),
        "v: torch.float16": lambda: fa2.flash_attn_with_kvcache(x, *cache, new, new.half(), cache_seqlens=0),
        "v_cache: torch.float16": lambda: fa2.flash_attn_with_kvcache(
            x, cache[0], cache[1].half(), new, new.half(), cache_seqlens=0
        ),
        "qv: its last": lambda: fa3.flash_attn_with_kvcache(x, *cache, new, new, qv=x[..., :4], cache_seqlens=0),
    }.items():
        with pytest.raises(ValueError, match=f"^{says}"):
            call()
    assert not cache.any()
    out = fa2.flash_attn_with_kvcache(x.requires_grad_(), *cache, new, new, cache_seqlens=0)
    assert cache[:, :, 0].all() and not cache[:, :, 1:].any() and not out.requires_grad  # no gradients, as there


def test_padding_and_back():
    x = torch.randn(3, 6, 2, 4, requires_grad=True)
    mask = torch.tensor([[1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]])
    taken, places, starts, longest, used = fa2.bert_padding.unpad_input(x, mask)
    assert starts.tolist() == [0, 3, 7, 7] and longest == 4 and used.tolist() == [3, 4, 0]
    assert starts.dtype == torch.int32 and torch.equal(taken, x.flatten(0, 1)[mask.flatten() == 1])
    back = fa2.bert_padding.pad_input(taken, places, 3, 6)
    assert torch.equal(back, x * mask[..., None, None])
    back.sum().backward()
    assert torch.equal(x.grad, mask[..., None, None].expand_as(x).float())
    unused = torch.tensor([[0, 0, 0, 1, 0, 0]] * 3)
    assert fa2.bert_padding.unpad_input(x, mask * (1 - unused), unused)[2].tolist() == [0, 4, 8, 9]
    assert fa2.bert_padding.unpad_input(x, mask * (1 - unused), unused)[4].tolist() == [3, 3, 0]
    lengths = torch.tensor([[2, 3, 0, 0, 0, 0], [6, 0, 0, 0, 0, 0], [0] * 6])
    taken, places, starts, longest = fa2.bert_padding.unpad_input_for_concatenated_sequences(x, lengths)
    assert starts.tolist() == [0, 2, 5, 11] and longest == 6 and places.tolist() == [0, 1, 2, 3, 4, *range(6, 12)]
    some, everything = fa2.bert_padding.index_first_axis_residual(x.flatten(0, 1), places)
    assert torch.equal(some, taken) and everything.shape == (18, 2, 4)


# The arguments that FlashAttention 2.8.4 and 3 have, in their order.
COMMON = "dropout_p softmax_scale causal window_size softcap alibi_slopes deterministic return_attn_probs"
OF_3 = "q_descale k_descale v_descale window_size attention_chunk softcap"
SIGNATURES = {
    (fa2, "flash_attn_func"): f"q k v {COMMON}",
    (fa2, "flash_attn_kvpacked_func"): f"q kv {COMMON}",
    (fa2, "flash_attn_qkvpacked_func"): f"qkv {COMMON}",
    (fa2, "flash_attn_varlen_func"): f"q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k {COMMON} block_table",
    (fa2, "flash_attn_varlen_kvpacked_func"): f"q kv cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k {COMMON}",
    (fa2, "flash_attn_varlen_qkvpacked_func"): f"qkv cu_seqlens max_seqlen {COMMON}",
    (fa2, "flash_attn_with_kvcache"): "q k_cache v_cache k v rotary_cos rotary_sin cache_seqlens cache_batch_idx "
    "cache_leftpad block_table softmax_scale causal window_size softcap rotary_interleaved alibi_slopes num_splits "
    "return_softmax_lse",
    (fa3, "flash_attn_func"): f"q k v softmax_scale causal qv {OF_3} num_splits pack_gqa deterministic sm_margin "
    "return_attn_probs",
    (fa3, "flash_attn_qkvpacked_func"): f"qkv softmax_scale causal {OF_3} deterministic num_heads_q sm_margin "
    "return_attn_probs",
    (fa3, "flash_attn_varlen_func"): "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k seqused_q seqused_k "
    f"softmax_scale causal qv {OF_3} num_splits pack_gqa deterministic sm_margin return_attn_probs",
    (fa3, "flash_attn_combine"): "out_partial lse_partial out out_dtype",
    (fa3, "flash_attn_with_kvcache"): "q k_cache v_cache k v qv rotary_cos rotary_sin cache_seqlens cache_batch_idx "
    "cache_leftpad page_table cu_seqlens_q cu_seqlens_k_new max_seqlen_q rotary_seqlens q_descale k_descale v_descale "
    "softmax_scale causal window_size attention_chunk softcap rotary_interleaved scheduler_metadata num_splits "
    "pack_gqa sm_margin return_softmax_lse",
}


# What they have as defaults, where it is not None.
DEFAULTS = dict(dropout_p=0.0, causal=False, window_size=(-1, -1), softcap=0.0, deterministic=False, sm_margin=0)
DEFAULTS |= dict(return_attn_probs=False, return_softmax_lse=False, attention_chunk=0, rotary_interleaved=True)


@pytest.mark.parametrize("module, name", SIGNATURES)
def test_signatures_are_theirs_and_a_sink_after_them(module, name):
    wanted = SIGNATURES[module, name].split()
    parameters = inspect.signature(getattr(module, name)).parameters
    assert list(parameters) in (wanted, [*wanted, "s_aux"])
    splits = 0 if name == "flash_attn_with_kvcache" else 1
    for each in parameters.values():
        if each.default is not each.empty:
            assert each.default == (DEFAULTS | dict(num_splits=splits)).get(each.name)


def test_what_is_not_right_is_named():
    x = torch.randn(2, 6, 2, 8)
    flat, starts = x.flatten(0, 1), torch.tensor([0, 6, 12])
    cache = torch.randn(2, 8, 2, 8)
    two = torch.tensor([1, 1])

    def varlen(**more):
        given = dict(cu_seqlens_q=starts, cu_seqlens_k=starts, max_seqlen_q=6, max_seqlen_k=6) | more
        return fa3.flash_attn_varlen_func(flat, flat, flat, **given)

    def cached(k=x[:, :1], **more):
        given = dict(cache_seqlens=two) | more
        return fa2.flash_attn_with_kvcache(x[:, :1], cache, cache, k, k, **given)

    for says, call in {
        "q: .*headdim": lambda: fa2.flash_attn_func(x[0], x, x),
        "k: dim_qk is 4": lambda: fa2.flash_attn_func(x, x[..., :4], x),
        "dropout_p": lambda: fa2.flash_attn_func(x, x, x, dropout_p=1.0),
        "softmax_scale": lambda: fa2.flash_attn_func(x, x, x, softmax_scale="big"),
        "window_size": lambda: fa2.flash_attn_func(x, x, x, window_size=(-2, 0)),
        "window_size: 3": lambda: fa2.flash_attn_func(x, x, x, window_size=3),
        "causal": lambda: fa2.flash_attn_func(x, x, x, causal=1),
        "deterministic": lambda: fa2.flash_attn_func(x, x, x, deterministic="yes"),
        "alibi_slopes": lambda: fa2.flash_attn_func(x, x, x, alibi_slopes=torch.ones(3)),
        "alibi_slopes: .*2, 2": lambda: fa2.flash_attn_func(x, x, x, alibi_slopes=torch.ones(3, 2)),
        "s_aux": lambda: fa2.flash_attn_func(x, x, x, s_aux=torch.ones(2, 2)),
        "qkv: ": lambda: fa2.flash_attn_qkvpacked_func(x[:, :, None]),
        "q_descale: .*fp8": lambda: fa3.flash_attn_func(x, x, x, q_descale=torch.ones(2, 2)),
        "attention_chunk": lambda: fa3.flash_attn_func(x, x, x, attention_chunk=4),
        "num_splits": lambda: fa3.flash_attn_func(x, x, x, num_splits="many"),
        "qv: ": lambda: fa3.flash_attn_func(x, x, x, qv=x[..., :4]),
        "num_heads_q": lambda: fa3.flash_attn_qkvpacked_func(x),
        "cu_seqlens_q: ends at 12": lambda: fa3.flash_attn_varlen_func(flat[:11], flat, flat, starts, starts, 6, 6),
        "cu_seqlens_q: .*sums": lambda: varlen(cu_seqlens_q=starts.flip(0)),
        "cu_seqlens_q: .-1, 6, 12., but sums": lambda: varlen(cu_seqlens_q=torch.tensor([-1, 6, 12]), max_seqlen_q=7),
        "k_descale": lambda: varlen(k_descale=two),
        "v_descale": lambda: fa3.flash_attn_with_kvcache(x, cache, cache, v_descale=two),
        "v_cache: .2, 7, 2, 8": lambda: fa2.flash_attn_with_kvcache(x, cache, cache[:, 1:]),
        "cu_seqlens_k: 1 sequences": lambda: varlen(cu_seqlens_k=starts[::2], max_seqlen_k=12),
        "max_seqlen_k: 5": lambda: varlen(max_seqlen_k=5),
        "seqused_k: 7": lambda: varlen(seqused_k=torch.tensor([7, 1])),
        "seqused_q: 1 lengths": lambda: varlen(seqused_q=torch.tensor([1])),
        "cache_seqlens: 9": lambda: cached(cache_seqlens=torch.tensor([9, 1])),
        "cache_seqlens: None": lambda: cached(cache_seqlens=None),
        "k: 6 new tokens after 4": lambda: cached(x, cache_seqlens=4),
        "cache_leftpad: 2": lambda: cached(cache_leftpad=torch.tensor([2, 0])),
        "cache_batch_idx: 2": lambda: cached(cache_batch_idx=torch.tensor([2, 0])),
        "block_table: page 5": lambda: cached(block_table=torch.tensor([[0], [5]])),
        "rotary_cos: 1 positions": lambda: cached(rotary_cos=torch.ones(1, 4), rotary_sin=torch.ones(1, 4)),
        "rotary_sin: None": lambda: cached(rotary_cos=torch.ones(9, 4)),
        "rotary_cos: rotates 10": lambda: cached(rotary_cos=torch.ones(9, 5), rotary_sin=torch.ones(9, 5)),
        "rotary_cos: only new": lambda: cached(None, rotary_cos=torch.ones(9, 4), rotary_sin=torch.ones(9, 4)),
        "scheduler_metadata": lambda: fa3.flash_attn_with_kvcache(x, cache, cache, scheduler_metadata=two),
    }.items():
        with pytest.raises((ValueError, TypeError, NotImplementedError), match=f"^{says}") as raised:
            call()
        assert "\n" not in str(raised.value)
    assert fa3.get_scheduler_metadata(2, 6, 6, 2, 2, 8, two) is None


@pytest.fixture
def names_of_others(monkeypatch):
    """What install() changes outside of the package, and what transformers remembers of it, as before afterwards."""
    for name in ("flash_attn", "flash_attn.bert_padding", "flash_attn.flash_attn_interface"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]
    yield monkeypatch
    known = sys.modules.get("transformers.utils.import_utils")
    if known is not None:
        known.PACKAGE_DISTRIBUTION_MAPPING.pop("flash_attn", None)
        for name in ("is_flash_attn_2_available", "is_flash_attn_greater_or_equal"):
            getattr(known, name).cache_clear()


@pytest.fixture
def flash_attention_2(names_of_others):
    """transformers as on a machine with a GPU, without which it refuses flash_attention_2; all else it asks for is
    asked for. Gives the names of the functions that it calls."""
    there = pytest.importorskip("transformers.modeling_flash_attention_utils")
    fa2.install()
    assert importlib.import_module("flash_attn") is fa2
    names_of_others.setattr("transformers.utils.import_utils.is_torch_cuda_available", lambda: True)
    matrix = there.FLASH_ATTENTION_COMPATIBILITY_MATRIX[2]
    names_of_others.setitem(matrix, "supported_devices", ((lambda: True, "cuda"),))
    names_of_others.setattr(there, "_loaded_implementation", None)
    calls = []
    for name in ("flash_attn_func", "flash_attn_varlen_func"):

        def counted(function):
            @functools.wraps(function)
            def call(*args, **more):
                calls.append(function.__name__)
                return function(*args, **more)

            return call

        names_of_others.setattr(fa2, name, counted(getattr(fa2, name)))
    return calls


SIZES = dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
SIZES |= dict(intermediate_size=64, bos_token_id=1, eos_token_id=2)


def model_of(config, implementation):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation).eval()


def as_in_eager(config, **inputs):
    """Logits, and the gradient of the first query projection: there and back, where each product becomes two."""
    import models

    results = []
    for implementation in ("eager", "flash_attention_2"):
        model = model_of(config, implementation)
        logits = model(**inputs).logits
        logits = logits * inputs.get("attention_mask", torch.ones(logits.shape[:2]))[..., None]
        weight = model.model.layers[0].self_attn.q_proj.weight
        results.append((logits, torch.autograd.grad(logits.square().mean(), weight)[0]))
    limit = models.rounding(config, inputs["input_ids"].shape[1])
    for eager, flash, sums in zip(*results, (1, 3)):
        assert (eager - flash).abs().max() <= sums**0.5 * limit * eager.abs().max()


def test_transformers_takes_it_for_flash_attention_2(flash_attention_2):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    ids = torch.randint(0, 50, (2, 17))
    left = torch.ones(2, 17, dtype=torch.long)
    left[1, :5] = 0
    llama = transformers.LlamaConfig(**SIZES)
    as_in_eager(llama, input_ids=ids)
    assert set(flash_attention_2) == {"flash_attn_func"}
    as_in_eager(llama, input_ids=ids, attention_mask=left)
    as_in_eager(llama, input_ids=ids, attention_mask=left.flip(1))
    places = torch.cat([torch.arange(6), torch.arange(11)])[None]
    as_in_eager(llama, input_ids=ids[:1], position_ids=places, use_cache=False)
    as_in_eager(transformers.MistralConfig(**SIZES, sliding_window=5), input_ids=ids)
    as_in_eager(transformers.Gemma2Config(**SIZES, head_dim=8, sliding_window=5), input_ids=ids)
    assert set(flash_attention_2) == {"flash_attn_func", "flash_attn_varlen_func"}
    told = [
        model_of(llama, name).generate(ids, attention_mask=left, max_new_tokens=6, do_sample=False)
        for name in ("eager", "flash_attention_2")
    ]
    assert torch.equal(*told)


def test_it_does_not_stand_before_the_real_one(names_of_others, tmp_path):
    (tmp_path / "flash_attn.py").write_text("")
    names_of_others.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match="flash_attn: FlashAttention itself is here"):
        rootdk.flash_attn.install()
    assert "flash_attn" not in sys.modules
    loaded = types.ModuleType("flash_attn")
    names_of_others.setitem(sys.modules, "flash_attn", loaded)
    with pytest.raises(ImportError, match="flash_attn: FlashAttention itself is here"):
        rootdk.flash_attn.install()
    assert sys.modules["flash_attn"] is loaded


def test_the_one_line_that_people_write(names_of_others):
    sys.modules["flash_attn"] = rootdk.flash_attn
    from flash_attn import flash_attn_func  # type: ignore[import-not-found]
    from flash_attn.bert_padding import pad_input  # type: ignore[import-not-found]
    from flash_attn.flash_attn_interface import flash_attn_varlen_func  # type: ignore[import-not-found]

    assert flash_attn_func is fa2.flash_attn_func and callable(pad_input) and callable(flash_attn_varlen_func)
