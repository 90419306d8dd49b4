"""Which axes are heads and which the batch, however a model lays them out: every way must give the same statistics as
the usual one, or be named; and the largest score is that of all rows, also where others are sampled."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import rootdk
import torch
import torch.nn.functional as F

B, T, H, D = 3, 7, 2, 8


class Projected(torch.nn.Module):
    """Queries, keys and values, and what is done with them. Head 0 is loud."""

    def __init__(self, attend, heads=H, says=True):
        super().__init__()
        width = heads * D
        self.q_proj, self.k_proj, self.v_proj = (torch.nn.Linear(width, width) for _ in range(3))
        self.attend = attend
        if says:
            self.num_heads = heads
        with torch.no_grad():
            self.q_proj.weight[:D] *= 8

    def forward(self, x):
        return self.attend(self.q_proj(x), self.k_proj(x), self.v_proj(x))


def largest(model, x, heads=H, causal=False):
    """Of each head."""
    with torch.no_grad():
        q, k = (p(x).unflatten(-1, (heads, D)).transpose(1, 2) for p in (model.q_proj, model.k_proj))
        s = q @ k.mT / math.sqrt(D)
        s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), -math.inf) if causal else s
        return s.amax((0, 2, 3)).numpy()


# Sampled rows ---------------------------------------------------------------------------------------------------------
def usual(x):
    return x.unflatten(-1, (H, D)).transpose(1, 2)


MASK = torch.zeros(600, 600).masked_fill(torch.ones(600, 600, dtype=torch.bool).triu(1), -math.inf)
SAMPLED = {
    "dropout": (dict(dropout_p=0.1), {}),
    "dropout, causal": (dict(dropout_p=0.1, is_causal=True), {}),
    "dropout, mask": (dict(dropout_p=0.1, attn_mask=MASK > -1), {}),
    "dropout, bias": (dict(dropout_p=0.1, attn_mask=MASK), {}),
    "beside": ({}, dict(beside=True)),
}


@pytest.mark.parametrize("how", SAMPLED)
def test_the_largest_score_is_of_all_rows(how):
    """One row in 600 is loud, and not among those sampled."""
    arguments, options = SAMPLED[how]
    torch.manual_seed(0)
    model = Projected(lambda q, k, v: F.scaled_dot_product_attention(*map(usual, (q, k, v)), **arguments))
    x = torch.randn(2, 600, H * D)
    x[:, 301] *= 40
    causal = "attn_mask" in arguments or "is_causal" in arguments
    expected = largest(model, x, causal=causal)
    events = []
    alarm = rootdk.Alarm(max_score=0.9 * float(expected.max()), call=events.append)
    with rootdk.watch(model, on=alarm, **options) as w:
        model(x)
        np.testing.assert_allclose(w.stats("(root)").raw_max[0], expected, rtol=1e-5)
        np.testing.assert_allclose(w.stats("(root)").score_max[0], expected, rtol=1e-5)
        assert [(event.what, event.head) for event in events] == [("raw_max", int(expected.argmax()))]
        factors = w.qk_clip(tau=20.0)["(root)"]
        np.testing.assert_allclose(factors, np.minimum(1, 20 / expected), rtol=1e-4)
        np.testing.assert_allclose(largest(model, x, causal=causal), np.minimum(20, expected), rtol=1e-4)


def test_the_largest_score_is_of_all_rows_with_several_heads_to_a_key_and_steps():
    """In blocks of a few rows, with any number of rows left over."""
    from rootdk._watch import rows

    torch.manual_seed(0)
    for len_q, most in ((65, 64), (127, 64), (130, 64), (600, 7)):
        q, k = torch.randn(2, 4, len_q, D), torch.randn(2, 2, len_q, D)
        s = (q @ k.repeat_interleave(2, 1).mT) * D**-0.5
        for step in range(4):
            for causal in (False, True):
                stats = rows.sampled(q, k, None, causal, None, most, 17 * step).over_batch()
                hidden = s.masked_fill(torch.ones(len_q, len_q, dtype=torch.bool).triu(1), -math.inf) if causal else s
                np.testing.assert_allclose(stats.raw_max[0], hidden.amax((0, 2, 3)), rtol=1e-5)
                assert most // 2 * 2 <= stats.row_count[0, 0] <= 2 * most


def test_a_row_that_is_not_finite_is_found_among_those_that_are_not_sampled():
    from rootdk._watch import rows

    q, k = torch.randn(1, 2, 600, D), torch.randn(1, 2, 600, D)
    q[0, 1, 301] = math.nan
    stats = rows.sampled(q, k, None, False, None, 64, 0)
    assert (stats.rows_not_finite[0] > 0).tolist() == [False, True]


# Layouts --------------------------------------------------------------------------------------------------------------
def softmaxed(q, k):
    return (q @ k.mT / math.sqrt(D)).softmax(-1)


def joined(out):
    """[batch, heads, length, dim] → [batch, length, heads · dim]"""
    return out.transpose(1, 2).flatten(2)


def heads_first_folded(x):
    """As jadore's Transformer has it."""
    b, t, _ = x.shape
    return x.view(b, t, -1, D).permute(2, 0, 1, 3).contiguous().view(-1, t, D)


def unfolded(out, batch):
    return out.unflatten(0, (-1, batch)).permute(1, 2, 0, 3).flatten(2)


def jadore(q, k, v):
    a, b, c = map(heads_first_folded, (q, k, v))
    return unfolded(torch.bmm(softmaxed(a, b), c), len(q))


def viewed_again(q, k, v):
    """Scores [heads, batch, length, length] of a folded product."""
    a, b, c = map(heads_first_folded, (q, k, v))
    s = torch.bmm(a, b.mT).div(math.sqrt(D)).view(-1, len(q), T, T)
    return unfolded(torch.bmm(s.softmax(-1).view(-1, T, T), c), len(q))


def of_parts(cut):
    def attend(q, k, v):
        a, b, c = (torch.cat(cut(x), 0) for x in (q, k, v))
        return torch.cat(torch.bmm(softmaxed(a, b), c).split(len(q), 0), 2)

    return attend


def of_stacked(axis, cut):
    def attend(q, k, v):
        a, b, c = (torch.stack(cut(x), axis) for x in (q, k, v))
        out = softmaxed(a, b) @ c
        return joined(out if axis else out.transpose(0, 1))

    return attend


def heads_first(q, k, v):
    a, b, c = (x.unflatten(-1, (-1, D)).permute(2, 0, 1, 3) for x in (q, k, v))
    return (softmaxed(a, b) @ c).permute(1, 2, 0, 3).flatten(2)


def heads_first_einsum(q, k, v):
    a, b, c = (x.unflatten(-1, (-1, D)) for x in (q, k, v))
    p = (torch.einsum("bthd,bshd->hbts", a, b) / math.sqrt(D)).softmax(-1)
    return torch.einsum("hbts,bshd->bthd", p, c).flatten(2)


def fairseq(q, k, v):
    a, b, c = (x.transpose(0, 1).contiguous().view(T, -1, D).transpose(0, 1) for x in (q, k, v))
    return joined(torch.bmm(softmaxed(a, b), c).unflatten(0, (len(q), -1)))


def rotated(q, k, v):
    """By complex numbers, and by halves; heads first afterwards."""

    def turned(x):
        x = x.unflatten(-1, (-1, D))
        x = torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.ones(D // 2)).flatten(3)
        first, second = x.chunk(2, -1)
        return (x + 0 * torch.cat((-second, first), -1)).permute(2, 0, 1, 3)

    out = softmaxed(turned(q), turned(k)) @ v.unflatten(-1, (-1, D)).permute(2, 0, 1, 3)
    return out.permute(1, 2, 0, 3).flatten(2)


def by_head(x):
    return x.split(D, 2)


WRITTEN = {
    "usual": lambda q, k, v: joined(softmaxed(usual(q), usual(k)) @ usual(v)),
    "folded, batch first": lambda q, k, v: joined(
        torch.bmm(softmaxed(*(usual(x).flatten(0, 1) for x in (q, k))), usual(v).flatten(0, 1)).unflatten(0, (-1, H))
    ),
    "folded, heads first": jadore,
    "folded, heads first, four axes": viewed_again,
    "split": of_parts(by_head),
    "chunk": of_parts(lambda x: x.chunk(H, -1)),
    "slices": of_parts(lambda x: [x[..., i * D : (i + 1) * D] for i in range(H)]),
    "narrow": of_parts(lambda x: [x.narrow(2, i * D, D) for i in range(H)]),
    "unbind": of_parts(lambda x: x.unflatten(-1, (H, D)).unbind(2)),
    "stack": of_stacked(0, by_head),
    "stack, batch first": of_stacked(1, lambda x: [x.unflatten(-1, (H, D))[:, :, i] for i in range(H)]),
    "heads first": heads_first,
    "heads first, einsum": heads_first_einsum,
    "fairseq": fairseq,
    "rotated": rotated,
}


def fused(arrange, back, bias=None, **arguments):
    def attend(q, k, v):
        a, b, c = map(arrange, (q, k, v))
        mask = None if bias is None else bias(len(q)).expand(*a.shape[:-1], b.shape[-2])
        return back(F.scaled_dot_product_attention(a, b, c, attn_mask=mask, **arguments), len(q))

    return attend


def of_each(batch):
    """Another bias for each head of each item, [heads, batch, length, length]."""
    return torch.linspace(-3, 3, H * batch * T * T).reshape(H, batch, T, T)


FIRST = (lambda x: x.unflatten(-1, (-1, D)).permute(2, 0, 1, 3), lambda out, batch: out.permute(1, 2, 0, 3).flatten(2))
USUAL = (usual, lambda out, batch: joined(out))
PLAIN = fused(*USUAL)
BIASED = fused(*USUAL, bias=lambda batch: of_each(batch).transpose(0, 1))
#: each with the same in the usual layout
FUSED = {
    "usual": (PLAIN, PLAIN),
    "heads first": (fused(*FIRST), PLAIN),
    "heads first, bias": (fused(*FIRST, bias=of_each), BIASED),
    "heads first, dropout": (fused(*FIRST, dropout_p=0.2), PLAIN),
    "heads first, causal": (fused(*FIRST, is_causal=True), fused(*USUAL, is_causal=True)),
    "folded, heads first": (fused(heads_first_folded, unfolded), PLAIN),
    "folded, heads first, bias": (
        fused(heads_first_folded, unfolded, bias=lambda batch: of_each(batch).flatten(0, 1)),
        BIASED,
    ),
    "folded, batch first": (
        fused(lambda x: usual(x).flatten(0, 1), lambda out, batch: joined(out.unflatten(0, (batch, -1)))),
        PLAIN,
    ),
    "split": (
        fused(lambda x: torch.cat(x.split(D, 2), 0), lambda out, batch: torch.cat(out.split(batch, 0), 2)),
        PLAIN,
    ),
}
WAYS = {
    **{f"written, {name}": (way, WRITTEN["usual"]) for name, way in WRITTEN.items()},
    **{f"fused, {name}": ways for name, ways in FUSED.items()},
}
STATISTICS = ("raw_max", "raw_sigma", "entropy", "mean_p_max", "keys", "trace_j", "sigma_q", "sigma_k", "key_mean_norm")


def numbers(w, names):
    return np.array([[row[name] for name in names] for row in w.to_dicts()])


@pytest.mark.parametrize("says", [True, False], ids=["says", "silent"])
@pytest.mark.parametrize("batch", [B, H, 1])
@pytest.mark.parametrize("way", WAYS)
def test_heads_are_told_by_how_they_were_made(way, batch, says):
    """Never by sizes, which may be equal: statistics as in the usual layout, and the right head's weights clipped."""
    torch.manual_seed(0)
    attend, same = WAYS[way]
    model, reference = Projected(attend, says=says), Projected(same)
    reference.load_state_dict(model.state_dict())
    x = torch.randn(batch, T, H * D)
    with rootdk.watch(reference) as r:
        reference(x).square().sum().backward()
    torch.manual_seed(1)
    plain = model(x)
    torch.manual_seed(1)
    with rootdk.watch(model) as w:
        out = model(x)
        out.square().sum().backward()
        assert not w.unseen and w.stats("(root)").heads == H
        np.testing.assert_allclose(numbers(w, STATISTICS), numbers(r, STATISTICS), rtol=1e-4, atol=1e-5)
        assert (
            torch.equal(out, plain) if "written" in way or "dropout" in way else torch.allclose(out, plain, atol=1e-5)
        )
        gradients = ("d_scores",) if "written" in way else ("d_q", "d_k", "d_v", "d_log_scale")
        if "dropout" in way:  # of another output
            assert np.isfinite(numbers(w, gradients)).all()
        else:
            np.testing.assert_allclose(numbers(w, gradients), numbers(r, gradients), rtol=1e-3, atol=1e-5)
        if "causal" not in way:
            before = largest(model, x)
            tau = float(np.sqrt(before.prod()))
            w.qk_clip(tau=tau)
            np.testing.assert_allclose(largest(model, x), np.minimum(before, tau), rtol=1e-4)


class ByWeights(torch.nn.Module):
    """Projections that are products with weights [width, heads, dim], heads in front of the batch or behind it."""

    def __init__(self, order):
        super().__init__()
        self.order = order
        self.w_q, self.w_k, self.w_v = (torch.nn.Parameter(torch.randn(H * D, H, D)) for _ in range(3))

    def forward(self, x):
        q, k, v = (torch.einsum(f"btc,chd->{self.order}", x, w) for w in (self.w_q, self.w_k, self.w_v))
        return softmaxed(q, k) @ v


def test_heads_that_weights_make_are_told():
    torch.manual_seed(0)
    models = [ByWeights(order) for order in ("bhtd", "hbtd")]
    models[1].load_state_dict(models[0].state_dict())
    x = torch.randn(B, T, H * D)
    found = []
    for model in models:
        with rootdk.watch(model) as w:
            model(x)
        found.append(numbers(w, STATISTICS))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


def in_slices(size):
    """So many of batch · heads at a time, as diffusers' sliced attention has it."""

    def attend(q, k, v):
        a, b, c = (x.unflatten(-1, (-1, D)).transpose(1, 2).flatten(0, 1) for x in (q, k, v))
        parts = [slice(i, i + size) for i in range(0, len(a), size)]
        out = torch.cat([softmaxed(a[part], b[part]) @ c[part] for part in parts])
        return joined(out.unflatten(0, (len(q), -1)))

    return attend


def by_layers_of_their_own(x):
    """Three heads, each with a layer of its own, in the place of one layer for all."""
    return [x[..., i * D : (i + 1) * D] * torch.lerp(x.new_ones(()), x.new_ones(()), 0.5) for i in (0, 2, 1)]


def fewer_keys(q, k, v):
    """Heads first, where PyTorch takes items for query heads that share an item's keys."""
    a, b, c = (x.unflatten(-1, (-1, D)).permute(2, 0, 1, 3) for x in (q, k[:1], v[:1]))
    return F.scaled_dot_product_attention(a, b, c, enable_gqa=True).permute(1, 2, 0, 3).flatten(2)


NOT_KNOWN = {
    "keys of one item": fewer_keys,
    "slices": in_slices(2),
    "parts in another order": of_parts(by_layers_of_their_own),
}


@pytest.mark.parametrize("way", NOT_KNOWN)
def test_what_does_not_tell_its_heads_is_named(way):
    """Three heads of two items: no slice of two is all heads of one, and parts in another order are other heads."""
    model = Projected(NOT_KNOWN[way], heads=3, says=way == "slices")
    x = torch.randn(2, T, 3 * D)
    before = {name: p.clone() for name, p in model.named_parameters()}
    plain = model(x)
    with pytest.warns(RuntimeWarning, match="heads"), rootdk.watch(model) as w:
        assert torch.equal(model(x), plain)
        assert not w.layers and re.search("are heads is not known|do not have heads", w.unseen["(root)"])
        assert w.qk_clip(tau=0.01) == {}
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def in_the_dark(x):
    """Nobody follows this."""
    return torch.lerp(x, x, 0.5)


def twice(x):
    return usual(x).repeat(1, 2, 1, 1)


def cached(x):
    """In a buffer, as transformers' static caches have it, and then repeated."""
    return torch.zeros(len(x), H, T, D).index_copy_(2, torch.arange(T), usual(x)).repeat(1, 2, 1, 1)


def test_keys_keep_their_heads_in_a_buffer():
    """Nothing is known of the queries, and what the module says of its heads are as many as there are items."""
    torch.manual_seed(0)
    model = Projected(lambda q, k, v: joined(softmaxed(twice(in_the_dark(q)), cached(k)) @ cached(v)))
    reference = Projected(lambda q, k, v: joined(softmaxed(twice(q), twice(k)) @ twice(v)), heads=2 * H)
    reference.q_proj, reference.k_proj, reference.v_proj = model.q_proj, model.k_proj, model.v_proj
    x = torch.randn(H, T, H * D)
    with rootdk.watch(model) as w, rootdk.watch(reference) as r:
        model(x), reference(x)
    assert not w.unseen and w.stats("(root)").heads == 2 * H
    np.testing.assert_allclose(numbers(w, STATISTICS), numbers(r, STATISTICS), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "way", [lambda *x: joined(softmaxed(*map(usual, x[:2])) @ usual(x[2])), PLAIN], ids=["written", "fused"]
)
def test_qk_clip_refuses_to_guess_heads(way):
    """Two items of two heads, and nothing that says which is which."""
    model = Projected(lambda *x: way(*map(in_the_dark, x)))
    before = {name: p.clone() for name, p in model.named_parameters()}
    with rootdk.watch(model) as w:
        model(torch.randn(H, T, H * D))
        with pytest.raises(ValueError, match="a guess"):
            w.qk_clip(tau=0.01)
        assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
        assert w.qk_clip(tau=1e9) == {}  # nothing to change
        x = torch.randn(B, T, H * D)
        model(x)  # the module says two heads, and that is not the batch
        expected = np.minimum(largest(model, x), 0.5)
        w.qk_clip(tau=0.5)
        np.testing.assert_allclose(largest(model, x), expected, rtol=1e-4)
