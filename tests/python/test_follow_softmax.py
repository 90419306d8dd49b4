"""Softmax however it is spelled: its axis by another name or by none, in place, as exponentials over their sum, masked
by zeros after the exponentials. And products whose tensors are not what they were. Each is shown right, or named."""

from __future__ import annotations

import math

import numpy as np
import pytest
import rootdk
import torch
import torch.nn.functional as F
from conftest import plain
from rootdk._watch.follow import Follow
from test_follow import B, C, D, H, Notes, S, T, qkv

CAUSAL = torch.ones(T, S, dtype=torch.bool).tril(S - T)
PADDED = (torch.arange(S) < torch.tensor([[S], [4]]))[:, None, None]  # of each batch item other keys


def scores(q, k):
    return q @ k.mT * C


def followed(attention, *args):
    """What a looker was told of it, and its result, which must be the same as ever."""
    looker = Notes()
    expected = attention(*args)
    with Follow(looker) as follow:
        out = attention(*args)
        follow.forget()
    assert torch.equal(out, expected), "another result"
    return looker, out


def is_shown(looker, q, k, visible=None):
    (found,) = looker.written
    assert not looker.unseen
    _, s, _ = plain(*(x.detach().numpy() for x in (q, k, k)), visible=visible)
    np.testing.assert_allclose(found.scores.detach().numpy(), s, atol=1e-12)
    np.testing.assert_allclose((found.factor * (found.q @ found.k)).numpy(), scores(q, k).detach().numpy(), atol=1e-12)


# Spellings ------------------------------------------------------------------------------------------------------------
def over_sum(e, **axis):
    return e / e.sum(**axis)


def each_head(q, k, v):
    """Scores of two axes, whose softmax goes over the second where nothing is said."""
    return torch.stack(
        [F.softmax(a @ b.T * C) @ c for a, b, c in zip(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1))]
    )


def twice(s):
    return torch.exp(s - s.amax(-1, keepdim=True))


def column_of_ones(q, k, v):
    out = scores(q, k).exp() @ torch.cat([v, torch.ones_like(v[..., :1])], -1)
    return out[..., :-1] / out[..., -1:]


def by_einsum(q, k, v):
    e = scores(q, k).exp()
    return e / torch.einsum("bhqk->bhq", e).unsqueeze(-1) @ v


def by_masks_of_einsum(q, k, v):
    e = torch.einsum("bhqk,qk->bhqk", scores(q, k).exp(), torch.ones(T, S, dtype=q.dtype))
    return torch.einsum("bhqk,bhkd->bhqd", e, v) / torch.einsum("bhqk->bhq", e)[..., None]


def keys_first(last=False, normalize=False):
    def attention(q, k, v):
        e = (k @ q.mT * C).exp()
        if last:
            return e.mT @ v / e.sum(-2).unsqueeze(-1)
        return (F.normalize(e, p=1, dim=-2) if normalize else e / e.sum(-2, keepdim=True)).mT @ v

    return attention


SPELLED = {
    "axis": lambda q, k, v: torch.softmax(scores(q, k), axis=-1) @ v,
    "axis of a method": lambda q, k, v: scores(q, k).softmax(axis=-1) @ v,
    "axis of a logarithm": lambda q, k, v: scores(q, k).log_softmax(axis=-1).exp() @ v,
    "axis of a sum": lambda q, k, v: over_sum(scores(q, k).exp(), axis=-1, keepdims=True) @ v,
    "axes of a sum": lambda q, k, v: over_sum(scores(q, k).exp(), axis=(3,), keepdim=True) @ v,
    "axis of a logarithm of a sum": lambda q, k, v: (
        ((s := scores(q, k)) - torch.logsumexp(s, axis=-1, keepdims=True)).exp() @ v
    ),
    "exponentials twice": lambda q, k, v: torch.exp(s := scores(q, k)) / torch.exp(s).sum(-1, keepdim=True) @ v,
    "exponentials of equal scores": lambda q, k, v: (
        twice(scores_of := scores(q, k)) / twice(scores_of).sum(-1, keepdim=True) @ v
    ),
    "exponentials twice, normalised last": lambda q, k, v: (
        (torch.exp(s := scores(q, k)) @ v) / torch.exp(s).sum(-1, keepdim=True)
    ),
    "a column of ones": column_of_ones,
    "a product with ones": lambda q, k, v: (e := scores(q, k).exp()) / (e @ torch.ones(S, 1, dtype=q.dtype)) @ v,
    "by a sum of einsum's": by_einsum,
    "by einsum alone": by_masks_of_einsum,
    "keys first": keys_first(),
    "keys first, normalised last": keys_first(last=True),
    "keys first, F.normalize": keys_first(normalize=True),
    "less the logarithm of their sum": lambda q, k, v: (s := scores(q, k)).sub(s.exp().sum(-1, True).log()).exp() @ v,
    "F.normalize": lambda q, k, v: F.normalize(scores(q, k).exp(), p=1, dim=-1) @ v,
    "F.normalize, by position": lambda q, k, v: F.normalize(scores(q, k).exp(), 1.0, 3) @ v,
}


@pytest.mark.parametrize("way", SPELLED)
def test_a_softmax_is_seen_however_it_is_spelled(way):
    q, k, v = qkv()
    looker, out = followed(SPELLED[way], q, k, v)
    is_shown(looker, q, k)
    weight = torch.randn_like(out)
    (out * weight).sum().backward()
    p = scores(q, k).softmax(-1).detach().numpy()
    if way == "exponentials of equal scores":  # of which either has a part of the gradient
        assert not looker.gradients
    else:
        is_gradient(looker, p, weight.numpy() @ v.detach().mT.numpy())


def is_gradient(looker, p, d_p):
    """dL/ds = p ∘ (dL/dp − Σ p dL/dp)"""
    (found,) = looker.gradients
    np.testing.assert_allclose(found.numpy(), p * (d_p - (p * d_p).sum(-1, keepdims=True)), atol=1e-11)


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
def test_a_softmax_without_an_axis_goes_over_the_second_of_two():
    q, k, v = qkv()
    looker, _ = followed(each_head, q, k, v)
    assert len(looker.written) == B * H and not looker.unseen
    torch.testing.assert_close(torch.cat([found.scores for found in looker.written])[:, 0], scores(q, k).flatten(0, 1))


def into_itself(q, k, v):
    s = scores(q.detach(), k.detach())
    torch.softmax(s, -1, out=s)
    return s @ v


def exp_into_itself(q, k, v):
    s = scores(q.detach(), k.detach())
    torch.exp(s, out=s)
    return s / s.sum(-1, keepdim=True) @ v


def over(other):
    """Exponentials over a sum that is not theirs."""

    def attention(q, k, v):
        s = scores(q, k)
        return torch.exp(s) / other(s, q, k).sum(-1, keepdim=True) @ v

    return attention


def from_minus_one(q, k, v):
    return over_sum(torch.expm1(scores(q, k)) + 1, dim=-1, keepdim=True) @ v


def other_logarithm(q, k, v):
    s = scores(q, k)
    return torch.exp(s - torch.logsumexp(2 * s, -1, keepdim=True)) @ v


def talks_before(q, k, v):
    e = F.linear(scores(q, k).permute(0, 2, 3, 1), torch.eye(H, dtype=q.dtype)).permute(0, 3, 1, 2).exp()
    return e / e.sum(-1, keepdim=True) @ v


NAMED = {
    "into its scores": into_itself,
    "exponentials into their scores": exp_into_itself,
    "over heads, unsaid": lambda q, k, v: F.softmax(scores(q, k)) @ v,
    "from expm1": from_minus_one,
    "powers": lambda q, k, v: over_sum(math.e ** scores(q, k), dim=-1, keepdim=True) @ v,
    "powers by name": lambda q, k, v: over_sum(torch.pow(3.0, scores(q, k)), dim=-1, keepdim=True) @ v,
    "of scores times two": over(lambda s, q, k: torch.exp(2 * s)),
    "of other scores": over(lambda s, q, k: torch.exp(scores(k[:, :, :T], k))),
    "normalised last, of other scores": lambda q, k, v: (
        (scores(q, k).exp() @ v) / scores(q, k.flip(2)).exp().sum(-1, keepdim=True)
    ),
    "a sum that nothing is divided by": lambda q, k, v: (e := scores(q, k).exp()) * e.sum(-1, keepdim=True).pow(-1) @ v,
    "another logarithm": other_logarithm,
    "a sum that is raised": lambda q, k, v: (e := scores(q, k).exp()) / e.sum(-1, keepdim=True).clamp(min=9) @ v,
    "a sum that is raised in place": lambda q, k, v: (
        (e := scores(q, k).exp()) / e.sum(-1, keepdim=True).detach().clamp_(min=9) @ v
    ),
    "a sum that is raised, normalised last": lambda q, k, v: (
        (e := scores(q, k).exp()) @ v / torch.maximum(e.sum(-1, keepdim=True), torch.full((T, 1), 9.0).to(q.dtype))
    ),
    "a logarithm that is raised": lambda q, k, v: (
        ((s := scores(q, k)) - torch.logsumexp(s, -1, keepdim=True).clamp(min=2)).exp() @ v
    ),
    "a share that is cut": lambda q, k, v: (
        (e := scores(q, k).exp()) * e.sum(-1, keepdim=True).reciprocal().clamp(max=0.1) @ v
    ),
    "a power of weights": lambda q, k, v: (scores(q, k).log_softmax(-1) * 2).exp() @ v,
    "exponentials that are dropped": lambda q, k, v: (
        torch.manual_seed(1),
        divided(F.dropout(scores(q, k).exp(), 0.5)) @ v,
    )[1],
    "heads that talk before": talks_before,
}


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
@pytest.mark.parametrize("way", NAMED)
def test_a_softmax_that_cannot_be_told_is_named(way):
    q, k, v = qkv()
    looker, _ = followed(NAMED[way], q, k, v)
    assert not looker.written
    assert [what for what, _ in looker.unseen] == [f"softmax over [{B}, {H}, {T}, {S}]"]


def test_powers_of_scores_are_no_softmax():
    q, k, v = qkv()
    looker, _ = followed(lambda q, k, v: scores(q, k) ** 2 @ v, q, k, v)
    assert not looker.written and not looker.unseen


def gathered(q, k, v):
    e = scores(q, k).exp().gather(-1, torch.arange(S).expand(B, H, T, S))
    return e / e.sum(-1, keepdim=True) @ v


UNDIVIDED = {
    "by nothing": lambda q, k, v: scores(q, k).exp() @ v,
    "in place": lambda q, k, v: scores(q.detach(), k).exp_() @ v,
    "by nothing, masked": lambda q, k, v: scores(q, k).exp().tril(S - T) @ v,
    "by nothing, transposed": lambda q, k, v: scores(k, q).exp().mT @ v,
    "by nothing, element by element": lambda q, k, v: (scores(q, k).exp()[..., None] * v[:, :, None]).sum(-2),
    "by nothing, powers": lambda q, k, v: 2.0 ** scores(q, k) @ v,
    "by nothing, expm1": lambda q, k, v: torch.expm1(scores(q, k)) @ v,
    "by a number": lambda q, k, v: scores(q, k).exp() / 2 @ v,
    "by numbers": lambda q, k, v: scores(q, k).exp() @ v / torch.arange(1, T + 1)[:, None],
    "by another norm": lambda q, k, v: F.normalize(scores(q, k).exp(), dim=-1) @ v,
    "out of sight": gathered,
    "joined": lambda q, k, v: (e := torch.cat([scores(q, k).exp()] * 2, -1)) / e.sum(-1, True) @ torch.cat([v, v], 2),
    "by the sum of a mask": lambda q, k, v: (
        (e := scores(q, k).exp()) @ v / torch.einsum("bhqk,qk->bhq", e, CAUSAL.to(q.dtype))[..., None]
    ),
    "by the sum of a mask, all of einsum": lambda q, k, v: (
        torch.einsum("bhqk,qk,bhkd->bhqd", e := scores(q, k).exp(), CAUSAL.to(q.dtype), v)
        / torch.einsum("bhqk,qk->bhq", e, CAUSAL.to(q.dtype))[..., None]
    ),
    "features of a kernel": lambda q, k, v: (
        (a := scores(q, k).exp()) @ (b := scores(v, k).exp().mT) @ v / (a @ b.sum(-1)[..., None])
    ),
    "features of another": lambda q, k, v: (
        (a := scores(q, k).exp()) @ (b := v.exp()) / (a * b[..., 0].unsqueeze(-2)).sum(-1, keepdim=True)
    ),
}


@pytest.mark.parametrize("way", UNDIVIDED)
def test_exponentials_that_are_not_divided_by_their_sum_are_named(way):
    q, k, v = qkv()
    looker, _ = followed(UNDIVIDED[way], q, k, v)
    assert not looker.written and looker.unseen
    assert {why for _, why in looker.unseen} == {"its exponentials were not followed to a division by their sum"}


ONE_BY_ONE = {
    "weights side by side": lambda q, k, v: torch.stack([(a @ b.T).softmax(-1) for a, b in zip(q, k)]) @ v,
    "weights in halves": lambda q, k, v: torch.stack(
        [torch.cat([(p := (a @ b.T).softmax(-1))[:, :2], p[:, 2:]], 1) @ c for a, b, c in zip(q, k, v)]
    ),
    "by einsum": lambda q, k, v: torch.stack([torch.einsum("td,sd->ts", a, b).softmax(-1) for a, b in zip(q, k)]) @ v,
    "by nothing": lambda q, k, v: torch.stack([(a @ b.T).exp() @ c for a, b, c in zip(q, k, v)]),
}


@pytest.mark.parametrize("way", ONE_BY_ONE)
def test_weights_of_two_axes_that_are_not_followed_are_named(way):
    """Of one head of one item, in a loop."""
    layer = torch.randn(D, D, dtype=torch.float64)

    def attention(q, k, v):
        q, k, v = (F.linear(x, layer).flatten(0, 1) for x in (q, k, v))
        return ONE_BY_ONE[way](q, k, v)

    looker, _ = followed(attention, *qkv())
    assert not looker.written
    assert [what for what, _ in looker.unseen] == [f"softmax over [{T}, {S}]"] * (B * H)


def test_classes_by_a_table_are_not_named():
    q, *_ = qkv()
    table = torch.randn(6, D, dtype=q.dtype)
    looker, _ = followed(lambda q: (F.linear(q[0, 0], torch.eye(D, dtype=q.dtype)) @ table.T).softmax(-1).sum(), q)
    assert not looker.written and not looker.unseen


def test_exponentials_of_what_a_layer_made_are_not_named():
    """They are its features, or a router's."""
    q, k, v = qkv()
    table = torch.nn.Parameter(torch.randn(B, H, D, 6, dtype=q.dtype))
    for other in (
        lambda q, k, v: F.linear(q, table[0, 0].mT).exp() @ torch.ones(B, H, 6, D, dtype=q.dtype),
        lambda q, k, v: (q @ table).exp() @ ((k @ table).exp().mT @ v),
        lambda q, k, v: (table.mT @ q.mT).exp().mT @ torch.ones(B, H, 6, D, dtype=q.dtype),
    ):
        looker, _ = followed(other, q, k, v)
        assert not looker.written and not looker.unseen


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
def test_routers_are_not_named_however_they_spell_theirs():
    q, k, v = qkv()
    gate = torch.randn(6, D, dtype=q.dtype)
    for router in (
        lambda x: F.linear(x, gate).softmax(axis=-1).sum(),
        lambda x: F.linear(x, gate).mean(axis=1, keepdims=True).softmax(axis=-1).sum(),
        lambda x: torch.cat([F.linear(x, gate)] * 2, axis=1).softmax(axis=-1).sum(),
        lambda x: F.softmax(F.linear(x[:, 0], gate)).sum(),
        lambda x: F.normalize(F.linear(x, gate).exp(), p=1, dim=-1).sum(),
        lambda x: (p := F.linear(x, gate).softmax(-1).topk(2).values) / p.sum(-1, keepdim=True),
    ):
        looker, _ = followed(router, q)
        assert not looker.written and not looker.unseen


# Masks of zeros -------------------------------------------------------------------------------------------------------
def masked_exponentials(mask, last=False):
    def attention(q, k, v):
        e = mask(scores(q, k).exp())
        return (e @ v) / e.sum(-1, keepdim=True) if last else e / e.sum(-1, keepdim=True) @ v

    return attention


def masked_weights(mask, guard=0.0, before=lambda s: s):
    """Of AllenNLP, and of many others."""

    def attention(q, k, v):
        p = mask(before(scores(q, k)).softmax(-1))
        return p / (p.sum(-1, keepdim=True) + guard) @ v

    return attention


def in_place(q, k, v):
    e = scores(q, k)
    e = (e - e.amax(-1, keepdim=True)).exp_()
    e *= CAUSAL
    e /= e.sum(-1, keepdim=True)
    return e @ v


def weights_in_place(q, k, v):
    p = scores(q, k).softmax(-1)
    p = p.masked_fill(~CAUSAL, 0)
    p = p.div_(p.sum(-1, keepdim=True))
    return p @ v


def of_folded(q, k):
    return torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT) * C


def divided(x):
    return x / x.sum(-1, keepdim=True)


def twice_masked(e):
    return e * PADDED * CAUSAL


def by_einsum_masked(q, k, v):
    """Its axes in another order, too."""
    e = torch.einsum("qk,bhqk->bqkh", CAUSAL.to(q.dtype), scores(q, k).exp())
    return torch.einsum("bqkh,bhkd->bhqd", e / e.sum(2, keepdim=True), v)


ZEROS = {
    "times": (masked_exponentials(lambda e: e * CAUSAL), CAUSAL),
    "times, as numbers": (masked_exponentials(lambda e: CAUSAL.double() * e), CAUSAL),
    "tril": (masked_exponentials(lambda e: e.tril(S - T)), CAUSAL),
    "masked_fill": (masked_exponentials(lambda e: e.masked_fill(~CAUSAL, 0)), CAUSAL),
    "where": (masked_exponentials(lambda e: torch.where(CAUSAL, e, 0.0)), CAUSAL),
    "where, normalised last": (masked_exponentials(lambda e: torch.where(CAUSAL, e, 0.0), last=True), CAUSAL),
    "padding": (masked_exponentials(lambda e: e * PADDED), PADDED),
    "padding and causal": (masked_exponentials(twice_masked), PADDED & CAUSAL),
    "in place": (in_place, CAUSAL),
    "einsum": (masked_exponentials(lambda e: torch.einsum("bhqk,qk->bhqk", e, CAUSAL.to(e.dtype))), CAUSAL),
    "einsum, normalised last": (
        masked_exponentials(lambda e: torch.einsum("...qk,qk->...qk", e, CAUSAL.to(e.dtype)), last=True),
        CAUSAL,
    ),
    "einsum, turned": (by_einsum_masked, CAUSAL),
    "weights, einsum": (masked_weights(lambda p: torch.einsum("bhqk,qk->bhqk", p, CAUSAL.to(p.dtype))), CAUSAL),
    "weights": (masked_weights(lambda p: p * CAUSAL), CAUSAL),
    "weights, with a guard": (masked_weights(lambda p: p * CAUSAL, 1e-13), CAUSAL),
    "weights, masked_fill": (masked_weights(lambda p: p.masked_fill(~CAUSAL, 0)), CAUSAL),
    "weights, padding and causal": (masked_weights(twice_masked), PADDED & CAUSAL),
    "weights, in place": (weights_in_place, CAUSAL),
    "weights, F.normalize": (
        lambda q, k, v: F.normalize(scores(q, k).softmax(-1).tril(S - T), p=1, dim=-1) @ v,
        CAUSAL,
    ),
    "exponentials, heads folded before": (
        lambda q, k, v: divided(of_folded(q, k).exp().view(B, H, T, S) * PADDED) @ v,
        PADDED,
    ),
    "weights, heads folded before": (
        lambda q, k, v: divided(of_folded(q, k).softmax(-1).view(B, H, T, S) * PADDED) @ v,
        PADDED,
    ),
    "weights that were nothing's": (masked_weights(lambda p: p), None),
}


@pytest.mark.parametrize("way", ZEROS)
def test_zeros_after_the_exponentials_hide_keys(way):
    attention, visible = ZEROS[way]
    q, k, v = qkv()
    looker, out = followed(attention, q, k, v)
    is_shown(looker, q, k, None if visible is None else visible.numpy())
    expected, _, p = plain(
        *(x.detach().numpy() for x in (q, k, v)), visible=None if visible is None else visible.numpy()
    )
    np.testing.assert_allclose(out.detach().numpy(), expected, atol=1e-12)
    if way != "in place":
        out.square().sum().backward()  # dL/ds = p ∘ (dL/dp − Σ p dL/dp)
        d_p = 2 * out.detach().numpy() @ v.detach().numpy().swapaxes(-1, -2)
        d_s = p * (d_p - (p * d_p).sum(-1, keepdims=True))
        np.testing.assert_allclose(looker.gradients[0].numpy(), d_s, atol=1e-11)


GUARDED = {
    "clamp": lambda t: t.clamp(min=1e-9),
    "clamp_": lambda t: t.clamp_(min=1e-9),
    "where": lambda t: torch.where(t == 0, 1.0, t),
    "masked_fill": lambda t: t.masked_fill(t == 0, 1.0),
    "maximum": lambda t: torch.maximum(t, torch.full_like(t, 1e-9)),
    "nan_to_num": lambda t: t.nan_to_num() + 1e-12,
}


@pytest.mark.parametrize("way", GUARDED)
def test_what_keeps_a_sum_from_zero_leaves_it_a_sum(way):
    q, k, v = (x.detach() for x in qkv())
    for mask in (CAUSAL, HALF):
        looker, _ = followed(
            lambda q, k, v: (e := scores(q, k).exp() * mask) / GUARDED[way](e.sum(-1, True)) @ v, q, k, v
        )
        assert len(looker.written) == 1 and not looker.unseen


def test_dropout_that_drops_nothing_leaves_exponentials():
    looker, _ = followed(lambda q, k, v: divided(F.dropout(scores(q, k).exp(), 0.5, False)) @ v, *(t := qkv()))
    is_shown(looker, *t[:2])


HALF = torch.ones(B, 1, T, S, dtype=torch.bool)
HALF[1, :, 2] = HALF[0, ..., 5:] = False


@pytest.mark.parametrize(
    "attention",
    [
        lambda q, k, v: (e := scores(q, k).exp() * HALF) / (e.sum(-1, keepdim=True) + 1e-9) @ v,
        lambda q, k, v: ((e := scores(q, k).exp() * HALF) @ v) / e.sum(-1, keepdim=True).clamp(min=1e-9),
        masked_weights(lambda p: p * HALF, 1e-13),
        masked_weights(lambda p: p * HALF, 1e-13, before=lambda s: s.masked_fill(~HALF, -1e4)),
        masked_weights(lambda p: p.nan_to_num() * HALF, 1e-13, before=lambda s: s.masked_fill(~HALF, -math.inf)),
    ],
)
def test_a_row_that_zeros_hide_as_a_whole_is_masked(attention):
    q, k, v = (x.detach() for x in qkv(dtype=torch.float32))
    with rootdk.watch() as w:
        attention(q, k, v)
    out, s, p = plain(q, k, v, visible=HALF.numpy())
    np.testing.assert_allclose(attention(q, k, v).numpy(), out, atol=1e-5)
    stats, seen = w.stats("attention"), HALF.any(-1).expand(B, H, T)
    entropy = torch.special.entr(torch.tensor(p)).sum(-1)
    np.testing.assert_allclose(stats.entropy[0], [entropy[:, h][seen[:, h]].mean() for h in range(H)], rtol=1e-5)
    np.testing.assert_allclose(stats.raw_max[0], s.max((0, 2, 3)), rtol=1e-5)
    assert np.all(stats.sink_mass == 0) and not w.unseen


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_watch_counts_the_keys_that_zeros_leave(dtype):
    q, k, v = (x.detach().to(dtype) for x in qkv())
    for attention in (masked_exponentials(lambda e: e * CAUSAL), masked_weights(lambda p: p * CAUSAL, 1e-13)):
        with rootdk.watch() as w:
            attention(q, k, v)
        _, s, p = plain(q.float(), k.float(), v.float(), visible=CAUSAL.numpy())
        stats = w.stats("attention")
        rtol = 1e-5 if dtype == torch.float32 else 0.03
        np.testing.assert_allclose(stats.raw_max[0], s.max((0, 2, 3)), rtol=rtol)
        entropy = -(p * np.log(np.where(p > 0, p, 1))).sum(-1).mean((0, 2))
        np.testing.assert_allclose(stats.entropy[0], entropy, rtol=rtol)
        keys = math.exp(CAUSAL.sum(-1).double().log().mean())
        np.testing.assert_allclose(stats.keys[0], keys, rtol=1e-5)


MASKED_LAST = {
    "weights": lambda q, k, v: (scores(q, k).softmax(-1) * CAUSAL) @ v,
    "weights, einsum": lambda q, k, v: torch.einsum("bhqk,qk->bhqk", scores(q, k).softmax(-1), CAUSAL.to(q.dtype)) @ v,
    "exponentials": lambda q, k, v: (e := scores(q, k).exp()) * CAUSAL / e.sum(-1, keepdim=True) @ v,
    "exponentials, normalised last": lambda q, k, v: ((e := scores(q, k).exp()) * CAUSAL) @ v / e.sum(-1, keepdim=True),
    "exponentials, all of einsum": lambda q, k, v: (
        torch.einsum("bhqk,qk,bhkd->bhqd", e := scores(q, k).exp(), CAUSAL.to(q.dtype), v) / e.sum(-1, keepdim=True)
    ),
}


@pytest.mark.parametrize("way", MASKED_LAST)
def test_weights_that_are_not_divided_again_are_softmax_s_own(way):
    """A mask of zeros after softmax takes weights away; what softmax saw, it leaves."""
    q, k, v = qkv()
    looker, _ = followed(MASKED_LAST[way], q, k, v)
    is_shown(looker, q, k)


DECAY = torch.linspace(0.5, 1, S, dtype=torch.float64)
CHANGED = {
    "decay": masked_exponentials(lambda e: e * DECAY),
    "a floor": masked_exponentials(lambda e: e.clamp(min=0.9)),
    "a sum of two": masked_exponentials(lambda e: e + DECAY),
    "decay that is not in the sum": lambda q, k, v: (e := scores(q, k).exp()) * DECAY / e.sum(-1, keepdim=True) @ v,
    "decay, normalised last": masked_exponentials(lambda e: e * DECAY, last=True),
    "wider": lambda q, k, v: masked_exponentials(lambda e: e * CAUSAL.expand(B, H, T, S))(q[:, :1], k[:, :1], v),
    "weights that decay": masked_weights(lambda p: p * DECAY),
    "heads that talk": masked_weights(lambda p: torch.einsum("bhqk,hg->bgqk", p, torch.ones(H, H, dtype=p.dtype))),
    "more hidden in the sum": lambda q, k, v: (
        ((e := scores(q, k).exp()) * PADDED) @ v / (e * (PADDED & CAUSAL)).sum(-1, keepdim=True)
    ),
    "more in the sum": lambda q, k, v: (e := scores(q, k).exp()) / (e * CAUSAL).sum(-1, keepdim=True) @ v,
    "a guard that counts": masked_weights(lambda p: p * CAUSAL, 0.5),
}


@pytest.mark.parametrize("way", CHANGED)
def test_what_is_more_than_a_mask_of_zeros_is_named(way):
    q, k, v = qkv()
    looker, _ = followed(CHANGED[way], q, k, v)
    assert not looker.written and len(looker.unseen) == 1


# Products that are not what they were ---------------------------------------------------------------------------------
CHOICE = torch.arange(T * S).reshape(T, S) % 2 == 0
TWO = {
    "where": lambda s, other: torch.where(CHOICE, s, other),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "times": lambda s, other: s * other,
}


@pytest.mark.parametrize("way", TWO)
def test_scores_chosen_from_two_products_are_named(way):
    q, k, v = qkv()
    looker, _ = followed(lambda q, k, v: TWO[way](scores(q, k), scores(q.flip(1), k) * 9).softmax(-1) @ v, q, k, v)
    assert not looker.written
    assert looker.unseen == [(f"softmax over [{B}, {H}, {T}, {S}]", "its scores are those of several products")]


def test_a_choice_between_one_product_s_scores_and_the_same_masked_is_followed():
    q, k, v = qkv()
    looker, _ = followed(lambda q, k, v: torch.where(CAUSAL, s := scores(q, k), s - 1e9).softmax(-1) @ v, q, k, v)
    assert len(looker.written) == 1 and not looker.unseen


def changed_query(q, k, v):
    q = q.detach().clone()
    s = scores(q, k)
    q.mul_(100)
    return s.softmax(-1) @ v


def view_of_a_changed_query(q, k, v):
    buffer = torch.cat([q.detach(), q.detach()], -1)
    s = scores(buffer[..., :D], k).transpose(0, 1)
    buffer.zero_()
    return s.softmax(-1) @ v.transpose(0, 1)


def keys_and_values_in_one_buffer(q, k, v):
    buffer = k.detach().clone()
    p = scores(q, buffer).softmax(-1)
    return p @ buffer.copy_(v.detach())


def changed_scores(q, k, v):
    s = scores(q.detach(), k.detach())
    p = s.softmax(-1)
    s.zero_()
    return p @ v


def output_over_the_query(q, k, v):
    """Into the query's memory."""
    q = q.detach().clone()
    p = scores(q, k.detach()).softmax(-1)
    return torch.matmul(p, v.detach(), out=q)


def scores_less_their_logarithm_in_place(q, k, v):
    s = scores(q.detach(), k.detach())
    return s.sub_(torch.logsumexp(s, -1, keepdim=True)).exp() @ v


REWRITTEN = [
    changed_query,
    view_of_a_changed_query,
    keys_and_values_in_one_buffer,
    changed_scores,
    output_over_the_query,
    scores_less_their_logarithm_in_place,
]


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("attention", REWRITTEN)
def test_tensors_that_were_changed_in_place_since_are_not_shown(attention, mode):
    with mode():
        q, k, v = (x.detach().clone() for x in qkv())  # without versions, in inference mode
        looker, _ = followed(attention, q, k, v)
    assert not looker.written
    ((_, why),) = looker.unseen
    assert "changed in place" in why


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_tensors_that_were_changed_in_place_before_are_shown(mode):
    def attention(q, k, v):
        q = q.clone().mul_(2).div_(2)
        s = torch.matmul(q, k.mT).mul_(C)
        return s.add_(0).softmax(-1) @ v

    with mode():
        q, k, v = (x.detach().clone() for x in qkv())
        q[0, 0, 0, 0] = math.inf  # whose sum is no number that equals itself
        k[0, 0, 0, 0] = -math.inf
        looker, _ = followed(lambda *x: attention(*x).nan_to_num(), q, k, v)
    assert len(looker.written) == 1 and not looker.unseen
