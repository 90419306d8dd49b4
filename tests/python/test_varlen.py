"""rootdk.torch.varlen_attn: PyTorch's arguments, against attention written out in double; and what can be seen of
it."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import rootdk.torch
import torch
from conftest import gradient_tolerance, tolerance
from rootdk.torch import AuxRequest, varlen_attn, varlen_attn_out

there = pytest.importorskip("torch.nn.attention.varlen")


def scores(q, k, scale, window):
    """[heads, len_q, len_k] of one sequence, in double, −inf where hidden."""
    k = k.double().repeat_interleave(q.shape[1] // k.shape[1], 1)
    s = torch.einsum("qhd,khd->hqk", q.double(), k) * scale
    i, j = torch.arange(len(q))[:, None] + len(k) - len(q), torch.arange(len(k))
    left, right = window
    hidden = (j < i - left) & (left >= 0) | (j > i + right) & (right >= 0)
    return s.masked_fill(hidden, -torch.inf)


def allowed(exact, largest_products, spread):
    """How far each statistic of a row may be off in float32, by name; u is the unit.

    A score is a sum of at most 20 products, in lanes of 4 or more, and scaled: off by u·A for each of 8 levels, where A
    is c·Σ|q||k|. So is the largest, which is rounded once more when it is stored.
    lse = m + ln Σ exp(s − m): its derivatives by scores are probabilities, whose sum is 1, so 8uA again; exp is off by
    two units, and the sum of at most 19 keys by one for each of 5 levels; 8u in all, and u of its own rounding.
    H: its derivative by a score is −p·(s − Σps), so 8uA·D with D = Σp|s − Σps|. It is ln Σ exp(s − m) + Σp(m − s),
    neither of which is more than H: 8u of either, and 8u of the exponentials.
    sigma changes by at most √2 times what scores change by. Its squares are of distances to a score, which is at most
    √n standard deviations from the mean: their sum is at most n + 1 = 20 times that of distances to the mean, and off
    by 7 levels of u, of which the root takes a half.
    """
    u, a = 2.0**-24, 8 * largest_products
    return {
        "lse": u * (a + 8 + exact["lse"].abs()),
        "max_scores": u * (a + exact["max_scores"].abs()),
        "entropy": u * (a * spread + 8 + 8 * exact["entropy"]),
        "sigma": u * (2**0.5 * a + 20 * 7 / 2 * exact["sigma"]),
    }


@pytest.mark.parametrize("seed", range(40))
def test_random_sequences(seed):
    rng, g = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    heads_kv, group, dim = int(rng.integers(1, 3)), int(rng.integers(1, 3)), int(rng.choice([8, 20]))
    counts_q, counts_k = rng.integers(1, 20, 3), rng.integers(0, 20, 3)
    window = [(-1, -1), (-1, 0), (3, 0), (2, 2)][rng.integers(4)]
    scale = [None, 0.4][rng.integers(2)]
    q = torch.randn(int(counts_q.sum()), heads_kv * group, dim, generator=g, requires_grad=True)
    k, v = (torch.randn(int(counts_k.sum()), heads_kv, dim, generator=g, requires_grad=True) for _ in range(2))
    ends_q, ends_k = (torch.tensor([0, *np.cumsum(c)], dtype=torch.int32) for c in (counts_q, counts_k))
    used = [int(rng.integers(0, n + 1)) for n in counts_k] if rng.integers(2) else list(counts_k)
    more = dict(scale=scale, window_size=window, enable_gqa=group > 1, num_splits=1)
    if used != list(counts_k):
        more["seqused_k"] = torch.tensor(used)
    asked = AuxRequest(lse=True, max_scores=True, entropy=True, sigma=True)
    given = q, k, v, ends_q, ends_k, int(counts_q.max()), int(counts_k.max())
    out, *found = varlen_attn(*given, return_aux=asked, **more)
    wanted, learned = [], []
    for i in range(3):
        mine = q[ends_q[i] : ends_q[i + 1]]
        rows = slice(int(ends_k[i]), int(ends_k[i]) + int(used[i]))
        s = scores(mine, k[rows], dim**-0.5 if scale is None else scale, window)
        seen = s > -torch.inf
        some = seen.any(-1, keepdim=True) if s.shape[-1] else torch.zeros(*s.shape[:2], 1, dtype=torch.bool)
        p = torch.where(some, torch.where(some, s, 0).softmax(-1), 0)
        wanted.append(torch.einsum("hqk,khd->qhd", p, v[rows].double().repeat_interleave(group, 1)))
        lse = torch.where(some[..., 0], torch.where(some, s, 0).logsumexp(-1), -torch.inf)
        largest = s.amax(-1) if s.shape[-1] else torch.full(s.shape[:2], -torch.inf).double()
        entropy = -(p * torch.where(p > 0, p.log(), 0)).sum(-1)
        n = seen.sum(-1)
        mean = torch.where(seen, s, 0).sum(-1) / n.clamp(min=1)
        around = torch.where(seen, (s - mean[..., None]) ** 2, 0).sum(-1)
        sigma = torch.where(n > 1, around / (n - 1).clamp(min=1), 0).sqrt()
        products = scores(mine.abs(), k[rows].abs(), dim**-0.5 if scale is None else scale, window)
        products = products.amax(-1) if s.shape[-1] else torch.zeros(s.shape[:2])
        spread = (p * (torch.where(seen, s, 0) - (p * torch.where(seen, s, 0)).sum(-1, keepdim=True)).abs()).sum(-1)
        learned.append((lse, largest, entropy, sigma, products, spread))
    assert found[0].requires_grad and not any(x.requires_grad for x in found[1:])
    wanted, learned = torch.cat(wanted), [torch.cat(x, 1) for x in zip(*learned)]
    limit = tolerance(*(x.detach().numpy() if x.numel() else np.zeros((1, dim), np.float32) for x in (q, k, v)), scale)
    assert out.shape == wanted.shape and (out - wanted).abs().max() <= limit
    off_by = allowed(dict(zip(AuxRequest._fields, learned)), *learned[4:])
    for name, mine, exact in zip(AuxRequest._fields, found, learned):
        assert mine.shape == exact.shape == (heads_kv * group, len(q)), name
        if name in ("entropy", "sigma"):  # of rows with two keys and more; others are left out of all averages
            some = torch.isfinite(learned[0]) & (learned[2] > 0)
        else:
            some = torch.isfinite(exact)
            assert torch.equal(torch.isfinite(mine), some), name
        assert ((mine.double() - exact).abs() <= off_by[name])[some].all(), name
    w = torch.randn(out.shape, generator=g).clamp(-1, 1)
    limit = gradient_tolerance(*(x.detach().numpy() for x in (q, k, v)), scale)
    ours = torch.autograd.grad((out * w).sum() + found[0][torch.isfinite(found[0])].sum(), (q, k, v))
    exact = torch.autograd.grad((wanted * w).sum() + learned[0][torch.isfinite(learned[0])].sum(), (q, k, v))
    for a, b in zip(ours, exact):
        assert a.shape == b.shape and (not a.numel() or (a.double() - b).abs().max() <= limit)
    assert torch.equal(varlen_attn(*given, **more), out)
    pair = varlen_attn(*given, return_aux=there.AuxRequest(lse=True), **more)  # torch's own request
    assert len(pair) == 2 and torch.equal(pair[1], found[0])


def test_a_row_with_a_score_that_is_not_a_number_has_no_statistics():
    g = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(12, 2, 8, generator=g) for _ in range(3))
    q[2, 1, 3] = torch.nan
    ends = torch.tensor([0, 5, 12], dtype=torch.int32)
    for window in ((-1, -1), (-1, 0)):
        _, *found = varlen_attn(q, k, v, ends, ends, 7, 7, window_size=window, return_aux=AuxRequest(*[True] * 4))
        for x in found:
            assert x.isnan().nonzero().tolist() == [[1, 2]]


def test_a_pool_of_pages():
    g = torch.Generator().manual_seed(1)
    pool = torch.randn(2, 6, 4, 2, 8, generator=g)
    q, table, used = torch.randn(3, 2, 8, generator=g), torch.tensor([[4, 1], [0, -1]], dtype=torch.int32), [7, 2]
    ends = torch.tensor([0, 2, 3], dtype=torch.int32)
    more = dict(seqused_k=torch.tensor(used), block_table=table, window_size=(-1, 0))
    found = varlen_attn(q, *pool, ends, None, 2, 8, **more)
    k, v = (torch.cat([x[[4, 1]].flatten(0, 1)[:7], x[0, :2]]) for x in pool)
    wanted = varlen_attn(q, k, v, ends, torch.tensor([0, 7, 9]), 2, 7, window_size=(-1, 0))
    assert torch.equal(found, wanted)
    with pytest.raises(ValueError, match="^seqused_k: None"):
        varlen_attn(q, *pool, ends, None, 2, 8, block_table=table)
    with pytest.raises(ValueError, match="^seqused_k: 7, but from 0 to 6 fits"):
        varlen_attn(q, *pool, ends, None, 2, 6, **more)


def test_into_memory_of_the_callers():
    g = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(9, 2, 8, generator=g, requires_grad=True) for _ in range(3))
    ends = torch.tensor([0, 4, 9], dtype=torch.int32)
    out = torch.full((2, 9, 8), torch.nan).transpose(0, 1)
    found, entropy = varlen_attn_out(out, q, k, v, ends, ends, 5, 5, return_aux=AuxRequest(entropy=True))
    wanted, also = varlen_attn(q, k, v, ends, ends, 5, 5, return_aux=AuxRequest(entropy=True))
    assert found is out and torch.equal(out, wanted) and torch.equal(entropy, also) and not out.requires_grad
    assert varlen_attn_out(out, q, k, v, ends, ends, 5, 5) is out
    with pytest.raises(ValueError, match="^out: torch.float32 "):
        varlen_attn_out(out[1:], q, k, v, ends, ends, 5, 5)


@pytest.mark.parametrize("name", ["varlen_attn", "varlen_attn_out"])
def test_the_arguments_are_torchs(name):
    if not hasattr(there, name):
        pytest.skip("this torch has no such function")
    ours, theirs = (inspect.signature(getattr(module, name)) for module in (rootdk.torch, there))
    assert list(ours.parameters) == list(theirs.parameters)
    for mine, other in zip(ours.parameters.values(), theirs.parameters.values()):
        assert (mine.kind, mine.default) == (other.kind, other.default)


def test_what_is_not_right_is_named():
    x, ends = torch.randn(6, 2, 8), torch.tensor([0, 6])
    for says, call in {
        "enable_gqa": lambda: varlen_attn(x, x[:, :1], x[:, :1], ends, ends, 6, 6),
        "max_k: 5": lambda: varlen_attn(x, x, x, ends, ends, 6, 5),
        "max_q: 5": lambda: varlen_attn(x, x, x, ends, ends, 5, 6),
        "cu_seq_k: NoneType": lambda: varlen_attn(x, x, x, ends, None, 6, 6),
        "window_size": lambda: varlen_attn(x, x, x, ends, ends, 6, 6, window_size=[1]),
        "cu_seq_k: 2 sequences": lambda: varlen_attn(x, x, x, ends, torch.tensor([0, 3, 6]), 6, 6),
    }.items():
        with pytest.raises((ValueError, TypeError), match=f"^{says}"):
            call()
