"""rootdk.torch.varlen_attn: PyTorch's arguments, against attention written out in double; and what can be seen of
it."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from conftest import gradient_tolerance, tolerance
from rootdk.torch import AuxRequest, varlen_attn

there = pytest.importorskip("torch.nn.attention.varlen")


def scores(q, k, scale, window):
    """[heads, len_q, len_k] of one sequence, in double, −inf where hidden."""
    k = k.double().repeat_interleave(q.shape[1] // k.shape[1], 1)
    s = torch.einsum("qhd,khd->hqk", q.double(), k) * scale
    i, j = torch.arange(len(q))[:, None] + len(k) - len(q), torch.arange(len(k))
    left, right = window
    hidden = (j < i - left) & (left >= 0) | (j > i + right) & (right >= 0)
    return s.masked_fill(hidden, -torch.inf)


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
        learned.append((lse, largest, entropy, sigma))
    wanted, learned = torch.cat(wanted), [torch.cat(x, 1) for x in zip(*learned)]
    limit = tolerance(*(x.detach().numpy() if x.numel() else np.zeros((1, dim), np.float32) for x in (q, k, v)), scale)
    assert out.shape == wanted.shape and (out - wanted).abs().max() <= limit
    for name, mine, exact in zip(AuxRequest._fields, found, learned):
        assert mine.shape == exact.shape == (heads_kv * group, len(q)), name
        if name in ("entropy", "sigma"):  # of rows with two keys and more; others are left out of all averages
            some = torch.isfinite(learned[0]) & (learned[2] > 0)
        else:
            some = torch.isfinite(exact)
            assert torch.equal(torch.isfinite(mine), some), name
        if some.any():
            # Sums of 20 terms no larger than these, over scores that are themselves sums of 20: 2·5 levels of rounding,
            # and the exponential, logarithm and root.
            off = (mine.double() - exact)[some].abs()
            assert (off <= 2.0**-24 * 32 * (1 + exact[some].abs() + learned[0][some].abs())).all(), name
    w = torch.randn(out.shape, generator=g).clamp(-1, 1)
    limit = gradient_tolerance(*(x.detach().numpy() for x in (q, k, v)), scale)
    ours = torch.autograd.grad((out * w).sum() + found[0][torch.isfinite(found[0])].sum(), (q, k, v))
    exact = torch.autograd.grad((wanted * w).sum() + learned[0][torch.isfinite(learned[0])].sum(), (q, k, v))
    for a, b in zip(ours, exact):
        assert a.shape == b.shape and (not a.numel() or (a.double() - b).abs().max() <= limit)
    assert torch.equal(varlen_attn(*given, **more), out)
    pair = varlen_attn(*given, return_aux=there.AuxRequest(lse=True), **more)  # torch's own request
    assert len(pair) == 2 and torch.equal(pair[1], found[0])


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


def test_the_arguments_are_torchs():
    ours, theirs = inspect.signature(varlen_attn), inspect.signature(there.varlen_attn)
    assert list(ours.parameters) == list(theirs.parameters)
    for mine, other in zip(ours.parameters.values(), theirs.parameters.values()):
        assert (mine.kind, mine.default) == (other.kind, other.default)
    x, ends = torch.randn(6, 2, 8), torch.tensor([0, 6])
    for says, call in {
        "enable_gqa": lambda: varlen_attn(x, x[:, :1], x[:, :1], ends, ends, 6, 6),
        "max_q: 5": lambda: varlen_attn(x, x, x, ends, ends, 5, 6),
        "cu_seq_k: NoneType": lambda: varlen_attn(x, x, x, ends, None, 6, 6),
        "window_size": lambda: varlen_attn(x, x, x, ends, ends, 6, 6, window_size=[1]),
        "cu_seq_k: 2 sequences": lambda: varlen_attn(x, x, x, ends, torch.tensor([0, 3, 6]), 6, 6),
    }.items():
        with pytest.raises((ValueError, TypeError), match=f"^{says}"):
            call()
