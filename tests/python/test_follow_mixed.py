"""Attention that is not one softmax of each head's q·k over keys, times values: heads that talk to each other, softmax
over queries, softmax1, windows. It is shown as what it is, or named."""

from __future__ import annotations

import contextlib
import math
import warnings

import numpy as np
import pytest
import rootdk
import torch
import torch.nn.functional as F
from conftest import plain
from rootdk._watch.follow import Follow
from test_follow import B, C, D, H, Notes, S, T, qkv

torch.manual_seed(11)
TALK = torch.randn(H, H + 1, dtype=torch.float64)
CONV = TALK.T[:, :, None, None].contiguous()


def scores(q, k):
    return q @ k.mT * C


def times_values(p, v):
    """Of one head more than v has."""
    return p @ torch.cat([v, v[:, :1]], 1)


# Heads that talk after softmax ----------------------------------------------------------------------------------------
AFTER = {
    "einsum": lambda p: torch.einsum("bhqk,hg->bgqk", p, TALK),
    "einsum, elsewhere": lambda p: torch.einsum("hg,bhqk->qkbg", TALK, p).permute(2, 3, 0, 1),
    "einsum, by position": lambda p: torch.einsum("bhqk,bqhg->bgqk", p, TALK.expand(B, T, -1, -1)),
    "linear": lambda p: F.linear(p.permute(0, 2, 3, 1), TALK.T).permute(0, 3, 1, 2),
    "matmul": lambda p: (p.permute(0, 2, 3, 1) @ TALK).permute(0, 3, 1, 2),
    "matmul, from the left": lambda p: (TALK.T @ p.permute(0, 2, 1, 3)).permute(0, 2, 1, 3),
    "convolution": lambda p: F.conv2d(p, CONV),
}


@pytest.mark.parametrize("way", AFTER)
def test_heads_that_talk_after_softmax_are_shown_as_softmax_has_them(way):
    q, k, v = qkv()

    def attention():
        return times_values(AFTER[way](scores(q, k).softmax(-1)), v)

    looker = Notes()
    with Follow(looker) as follow:
        out = attention()
        follow.forget()
    assert torch.equal(out, attention()) and not looker.unseen
    (found,) = looker.written
    torch.testing.assert_close(found.scores, scores(q, k))
    torch.testing.assert_close(found.factor * (found.q @ found.k), scores(q, k).detach())
    out.sum().backward()
    assert looker.gradients[0].shape == (B, H, T, S) and looker.gradients[0].abs().sum() > 0


# Heads that talk before softmax ---------------------------------------------------------------------------------------
BEFORE = {
    "einsum": lambda s: torch.einsum("bhqk,hg->bgqk", s, TALK),
    "einsum, keys first": lambda s: torch.einsum("bhqk,hg->kqbg", s, TALK).permute(2, 3, 1, 0),
    "einsum, by position": lambda s: torch.einsum("bhqk,bqhg->bgqk", s, TALK.expand(B, T, -1, -1)),
    "linear": AFTER["linear"],
    "matmul": AFTER["matmul"],
    "matmul, from the left": AFTER["matmul, from the left"],
    "matmul of a batch": lambda s: (s.permute(0, 2, 3, 1) @ TALK.expand(B, T, -1, -1)).permute(0, 3, 1, 2),
    "convolution": AFTER["convolution"],
    "convolution of keys": lambda s: F.conv2d(s, torch.cat([CONV] * 3, -1), padding=(0, 1)),
}


@pytest.mark.parametrize("then", ["values", "talk again", "masked"])
@pytest.mark.parametrize("way", BEFORE)
def test_heads_that_talk_before_softmax_are_named(way, then):
    q, k, v = qkv()
    looker = Notes()
    with Follow(looker) as follow:
        s = BEFORE[way](scores(q, k))
        s = s + torch.zeros(T, S, dtype=s.dtype) if then == "masked" else s
        p = s.contiguous().softmax(-1)
        p = torch.einsum("bhqk,hg->bgqk", p, torch.eye(H + 1, dtype=p.dtype)) if then == "talk again" else p
        times_values(p, v)
        follow.forget()
    assert not looker.written
    ((what, why),) = looker.unseen
    assert what == f"softmax over [{B}, {H + 1}, {T}, {S}]" and "mixed before it" in why


# Softmax over another axis, or for another purpose --------------------------------------------------------------------
def slots(q, k, v):
    p = scores(q, k).softmax(-2)
    return p / p.sum(-1, keepdim=True) @ v


def drawn(s):
    torch.manual_seed(3)
    return F.gumbel_softmax(s, 1.0, False, 1e-10, -1)


def by_powers(s):
    e = (s / math.log(2)).exp2()
    return e / e.sum(-1, keepdim=True)


OTHERWISE = {
    "over queries": (lambda q, k, v: scores(q, k).softmax(-2) @ v, "goes over queries"),
    "over queries, einsum": (
        lambda q, k, v: torch.einsum("bhqk,bhkd->bhqd", scores(q, k).softmax(2), v),
        "goes over queries",
    ),
    "slots": (slots, "goes over queries"),
    "over queries, transposed": (lambda q, k, v: scores(q, k).softmax(-1).mT @ q, "goes over queries"),
    "over heads": (lambda q, k, v: scores(q, k).softmax(1) @ v, "neither keys nor queries"),
    "elementwise": (lambda q, k, v: (scores(q, k).softmax(-1).unsqueeze(-1) * v.unsqueeze(2)).sum(-2), "not followed"),
    "chunks": (lambda q, k, v: F.pad(scores(q, k).softmax(-1), (0, 2))[..., 1:-1] @ v, "not followed"),
    "two halves": (lambda q, k, v: torch.cat([scores(q, k).softmax(-1)] * 2, 1) @ torch.cat([v, v], 1), "not followed"),
    "a norm of weights": (lambda q, k, v: F.layer_norm(scores(q, k).softmax(-1), (S,)) @ v, "not followed"),
    "an output": (lambda q, k, v: scores(q, k).softmax(-1), "not followed"),
    "over heads, elementwise": (
        lambda q, k, v: (scores(q, k).softmax(1).unsqueeze(-1) * v.unsqueeze(2)).sum(-2),
        "neither keys nor queries",
    ),
    "softmin": (lambda q, k, v: F.softmin(scores(q, k), -1) @ v, "softmin"),
    "softmin, elementwise": (
        lambda q, k, v: (torch.nn.Softmin(-1)(scores(q, k)).unsqueeze(-1) * v.unsqueeze(2)).sum(-2),
        "not followed",
    ),
    "gumbel": (lambda q, k, v: drawn(scores(q, k)) @ v, "draws noise"),
    "powers of two": (lambda q, k, v: by_powers(scores(q, k)) @ v, "powers of two"),
    "its own mask": (
        lambda q, k, v: torch._masked_softmax(scores(q, k), torch.zeros(B, H, T, S, dtype=torch.bool), 3, 2) @ v,
        "its mask",
    ),
    "sparse": (lambda q, k, v: torch.sparse.softmax(scores(q, k).to_sparse(), -1).to_dense() @ v, "not followed"),
}


@pytest.mark.parametrize("way", OTHERWISE)
def test_a_softmax_over_scores_that_does_not_weigh_values_is_named(way):
    attention, reason = OTHERWISE[way]
    q, k, v = qkv()
    looker = Notes()
    with Follow(looker) as follow:
        found = attention(q, k, v)
        follow.forget()
        follow.forget()
    assert torch.equal(found, attention(q, k, v)) and not looker.written
    ((what, why),) = looker.unseen
    assert what == f"softmax over [{B}, {H}, {T}, {S}]" and reason in why


def test_what_was_interrupted_is_not_named():
    q, k, v = qkv()
    looker = Notes()
    with Follow(looker) as follow:
        scores(q, k).softmax(-1)
        follow.forget(finished=False)
        follow.forget()
    assert not looker.unseen


# softmax1 -------------------------------------------------------------------------------------------------------------
def shifted(q, k, v, sink=0.0):
    s = scores(q, k)
    m = s.detach().amax(-1, keepdim=True)
    e = torch.exp(s - m)
    return e / (torch.exp(sink - m) + e.sum(-1, keepdim=True)) @ v


def last(q, k, v):
    s = scores(q, k)
    e = s.exp()
    weighed, total = e @ v, e.sum(-1)
    return weighed / (total + 1).unsqueeze(-1)


def by_head(q, k, v):
    return shifted(q, k, v, torch.tensor([0.5, -1.0, 2.0], dtype=q.dtype).reshape(-1, 1, 1))


def by_logarithm(q, k, v):
    s = scores(q, k)
    return torch.exp(s - torch.logaddexp(torch.logsumexp(s, -1, keepdim=True), torch.zeros((), dtype=s.dtype))) @ v


def product_with_ones(q, k, v):
    e = scores(q, k).exp()
    return e / (1 + e @ torch.ones(S, 1, dtype=q.dtype)) @ v


def column_of_ones(q, k, v):
    s = scores(q, k)
    m = s.detach().amax(-1, keepdim=True)
    out = torch.exp(s - m) @ torch.cat([v, torch.ones_like(v[..., :1])], -1)
    return out[..., :-1] / (out[..., -1].unsqueeze(-1) + torch.exp(-m))


def column_split_off(q, k, v):
    weighed, total = (scores(q, k).exp() @ torch.cat([v, torch.ones_like(v[..., :1])], -1)).split([D, 1], -1)
    return weighed / total.add(1)


def by_einsum(q, k, v):
    e = scores(q, k).exp()
    return e / (1 + torch.einsum("bhqk->bhq", e)).unsqueeze(-1) @ v


def normalised(how):
    def attention(q, k, v):
        e = scores(q, k).exp()
        return how(e, e.sum(-1, keepdim=True)) @ v

    return attention


SINKS = {
    "after": (normalised(lambda e, total: e / (1 + total)), 0.0),
    "before": (normalised(lambda e, total: e / (total + 1.0)), 0.0),
    "in place": (normalised(lambda e, total: e * total.add_(2).reciprocal()), math.log(2)),
    "inverse first": (normalised(lambda e, total: 1 / (1 + total) * e), 0.0),
    "shifted": (shifted, 0.0),
    "by head": (by_head, [0.5, -1.0, 2.0]),
    "normalised last": (last, 0.0),
    "logaddexp": (by_logarithm, 0.0),
    "a product with ones": (product_with_ones, 0.0),
    "a column of ones": (column_of_ones, 0.0),
    "a column of ones, split off": (column_split_off, 0.0),
    "einsum": (by_einsum, 0.0),
}


@pytest.mark.parametrize("way", SINKS)
def test_what_is_added_to_the_sum_is_a_sink(way):
    attention, sink = SINKS[way]
    q, k, v = qkv()
    out64, s, p = plain(*(x.detach().numpy() for x in (q, k, v)), sink=sink)
    looker = Notes()
    with Follow(looker) as follow:
        out = attention(q, k, v)
        follow.forget()
    np.testing.assert_allclose(out.detach().numpy(), out64, atol=1e-12)
    (found,) = looker.written
    assert not looker.unseen
    np.testing.assert_allclose(found.scores.detach().numpy(), s, atol=1e-12)
    expected = np.broadcast_to(np.reshape(sink, (-1, 1)), (B, H, T))
    np.testing.assert_allclose(found.sink.expand(B, H, T, 1)[..., 0].numpy(), expected, atol=1e-12)


def test_a_watch_shows_softmax1_as_a_sink():
    q, k, v = (x.detach() for x in qkv(dtype=torch.float32))
    with rootdk.watch() as w:
        shifted(q, k, v)
    _, _, p = plain(q.numpy(), k.numpy(), v.numpy(), sink=0.0)
    np.testing.assert_allclose(w.stats("attention").sink_mass[0], 1 - p.sum(-1).mean((0, 2)), rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "attention, sink", [(shifted, [0.0] * H), (by_head, [0.5, -1.0, 2.0])], ids=["softmax1", "by head"]
)
def test_it_is_one_in_narrow_types_too(attention, sink, dtype):
    q, k, v = (x.detach() for x in qkv(dtype=dtype))
    looker = Notes()
    with Follow(looker):
        attention(q, k, v)
    (found,) = looker.written
    z = torch.tensor(sink)
    units = torch.finfo(dtype).eps * (4 + (found.scores.double().amax((0, 2, 3)) - z).abs())
    off = (found.sink.double() - z.reshape(-1, 1, 1)).abs().amax((0, 2, 3))
    assert not looker.unseen and (off <= units).all()


@pytest.mark.parametrize("guard", [0.0, 1e-9, 1e-12])
def test_a_guard_against_zero_is_no_sink(guard):
    q, k, v = qkv()
    looker = Notes()
    with Follow(looker):
        e = scores(q, k).exp()
        e / (e.sum(-1, keepdim=True) + guard) @ v
    assert looker.written[0].sink is None


@pytest.mark.parametrize("guard, seen", [(1e-5, True), (1e-6, True), (0.5, False)])
def test_a_guard_of_shifted_exponentials_is_no_sink_either(guard, seen):
    """Its score is another in each row, from which another maximum was taken."""
    q, k, v = qkv()
    looker = Notes()
    with Follow(looker) as follow:
        s = scores(q, k)
        e = (s - s.amax(-1, keepdim=True)).exp()
        e / (e.sum(-1, keepdim=True) + guard) @ v
        follow.forget()
    assert [found.sink for found in looker.written] == [None] * seen and len(looker.unseen) == 1 - seen


def test_a_softmax_in_blocks_is_named_and_not_taken_for_a_sink():
    """As FlashAttention would be written in PyTorch."""
    q, k, v = (x.detach() for x in qkv())
    looker = Notes()
    with Follow(looker) as follow:
        top = torch.full((B, H, T, 1), -math.inf, dtype=q.dtype)
        total, out = torch.zeros(B, H, T, 1, dtype=q.dtype), torch.zeros_like(q)
        for part in (slice(0, 4), slice(4, S)):
            s = scores(q, k[:, :, part])
            new = torch.maximum(top, s.amax(-1, keepdim=True))
            e, old = torch.exp(s - new), torch.exp(top - new)
            total = total * old + e.sum(-1, keepdim=True)
            out = out * old + e @ v[:, :, part]
            top = new
        out = out / total
        follow.forget()
    torch.testing.assert_close(out, scores(q, k).softmax(-1) @ v)
    assert not looker.written and looker.unseen


# Windows --------------------------------------------------------------------------------------------------------------
BLOCKS, WIDE = 4, 6  # windows of WIDE queries, each on the keys of its own


def windows():
    return (torch.randn(B, H, BLOCKS, WIDE, D, dtype=torch.float64) for _ in range(3))


def of_windows(x, order):
    """[batch, heads, blocks, wide, dim] as somebody may have it."""
    return {
        "heads first": x,
        "blocks first": x.transpose(1, 2),
        "folded": x.flatten(0, 1),
        "batch of blocks": x.transpose(1, 2).flatten(0, 1),
    }[order]


@pytest.mark.parametrize("hint", ["what it was given", "what it says"])
@pytest.mark.parametrize("order", ["heads first", "blocks first", "folded", "batch of blocks"])
def test_windows_are_not_heads(order, hint):
    q, k, v = windows()
    if hint == "what it says" and order == "folded":
        given, says = (torch.empty(B, BLOCKS * WIDE - 2, H * D + 1),), (H,)
    else:
        given, says = ((torch.empty(B, BLOCKS * WIDE - 2, H * D),), ()) if hint == "what it was given" else ((), (H,))
    looker = Notes(given, says)
    with Follow(looker) as follow:
        a, b, c = (of_windows(x, order) for x in (q, k, v))
        scores(a, b).softmax(-1) @ c
        follow.forget()
    (found,) = looker.written
    assert not looker.unseen and found.scores.shape == (B * BLOCKS, H, WIDE, WIDE)
    expected = scores(q, k).transpose(1, 2).flatten(0, 1)
    torch.testing.assert_close(found.scores, expected)
    torch.testing.assert_close(found.factor * (found.q @ found.k), expected)
    gradient = of_windows(scores(q, k), order)
    torch.testing.assert_close(found.per_head(gradient), expected)


@pytest.mark.parametrize("way", ["einsum", "matmul"])
def test_keys_of_each_query_s_own_are_not_heads(way):
    """Neighbourhood attention: every query has its own window."""
    q, k = torch.randn(B, H, T, D, dtype=torch.float64), torch.randn(B, H, T, S, D, dtype=torch.float64)
    v = torch.randn_like(k)
    looker = Notes((torch.empty(B, T, H * D),))
    with Follow(looker) as follow:
        if way == "einsum":
            out = torch.einsum("bhtw,bhtwd->bhtd", (torch.einsum("bhtd,bhtwd->bhtw", q, k) * C).softmax(-1), v)
        else:
            out = ((q.unsqueeze(-2) @ k.mT * C).softmax(-1) @ v).squeeze(-2)
        follow.forget()
    s = (q.unsqueeze(-2) @ k.mT * C).squeeze(-2)
    torch.testing.assert_close(out, (s.softmax(-1).unsqueeze(-2) @ v).squeeze(-2))
    (found,) = looker.written
    assert not looker.unseen and found.scores.shape == (B * T, H, 1, S)
    torch.testing.assert_close(found.scores[:, :, 0].unflatten(0, (B, T)).transpose(1, 2), s)
    torch.testing.assert_close(found.factor * (found.q @ found.k), found.scores)


def test_axes_that_nothing_tells_apart_are_named():
    q, k, v = windows()
    looker = Notes()
    with Follow(looker) as follow:
        scores(q, k).softmax(-1) @ v
        follow.forget()
    assert not looker.written
    ((what, why),) = looker.unseen
    assert what == f"softmax over [{B}, {H}, {BLOCKS}, {WIDE}, {WIDE}]"
    assert why == f"which of the axes [{B}, {H}, {BLOCKS}] are heads is not known"


# Through the watch ----------------------------------------------------------------------------------------------------
class Local(torch.nn.Module):
    """Windows of its own, in the middle of the axes."""

    def __init__(self, heads=H):
        super().__init__()
        self.heads = heads

    def forward(self, x):
        x = x.unflatten(1, (BLOCKS, WIDE)).unflatten(-1, (self.heads, -1)).permute(0, 3, 1, 2, 4)
        return scores(x, x).softmax(-1) @ x


class Talks(torch.nn.Module):
    def __init__(self, before):
        super().__init__()
        self.before, self.softmax = before, torch.nn.Softmax(-1)

    def forward(self, x):
        x = x.unflatten(-1, (H, -1)).transpose(1, 2)
        s = scores(x, x)
        p = self.softmax(torch.einsum("bhqk,hg->bgqk", s, TALK.float()[:, :H]) if self.before else s)
        return torch.einsum("bhqk,hg->bgqk", p, TALK.float()[:, :H]) @ x


class Slots(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.softmax = torch.nn.Softmax(-2)

    def forward(self, x):
        x = x.unflatten(-1, (H, -1)).transpose(1, 2)
        return self.softmax(scores(x, x)) @ x


class Additive(torch.nn.Module):
    """Weights of additive scores, that meet values element by element."""

    def forward(self, x):
        p = torch.tanh(x[:, :, None] + x[:, None]).sum(-1).softmax(-1)
        return (p.unsqueeze(-1) * x.unsqueeze(1)).sum(-2)


class Routes(torch.nn.Module):
    def __init__(self, first=lambda logits: logits):
        super().__init__()
        self.gate, self.first = torch.nn.Linear(H * D, 3), first

    def forward(self, x):
        return (self.first(self.gate(x)).softmax(-1).unsqueeze(-1) * x.unsqueeze(2)).sum(-2)


class Norms(torch.nn.Module):
    """q and k normed, and q scaled after that."""

    def __init__(self):
        super().__init__()
        self.q, self.k = torch.nn.Linear(H * D, H * D), torch.nn.Linear(H * D, H * D)

    def forward(self, x):
        q, k = (
            y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) * torch.linspace(1, 2, D)
            for y in (f(x).unflatten(-1, (H, D)).transpose(1, 2) for f in (self.q, self.k))
        )
        return (q * D**-0.5 @ k.mT).softmax(-1) @ k


def test_a_watch_counts_heads_and_not_windows():
    model, x = torch.nn.Sequential(Local()), torch.randn(B, BLOCKS * WIDE, H * D)
    with rootdk.watch(model) as w:
        model(x)
    stats = w.stats("0")
    assert stats.heads == H and np.allclose(stats.keys, WIDE, rtol=1e-6) and not w.unseen
    y = x.unflatten(1, (BLOCKS, WIDE)).unflatten(-1, (H, -1)).permute(0, 3, 1, 2, 4)
    np.testing.assert_allclose(stats.raw_max[0], scores(y, y).amax((0, 2, 3, 4)).numpy(), rtol=1e-6)


@pytest.mark.parametrize(
    "module, words",
    [(lambda: Talks(before=True), "heads are mixed"), (Slots, "goes over queries"), (Additive, "not followed")],
)
def test_a_watch_names_them_once(module, words, tmp_path):
    model, x = torch.nn.Sequential(module()), torch.randn(B, T, H * D)
    with pytest.warns(RuntimeWarning, match=words) as said, rootdk.watch(model) as w:
        for _ in range(3):
            model(x)
    assert len([s for s in said if words in str(s.message)]) == 1
    assert list(w.unseen) == ["0"] and words in w.unseen["0"] and w.layers == []
    assert words in w.table() and words in w.report(tmp_path / "r.html").read_text()


def fused_and_additive(x):
    y = F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0]
    return torch.tanh(y[:, :, None] + y[:, None]).sum(-1).softmax(-1) @ y


def additive_and_fused(x):
    return F.scaled_dot_product_attention(
        *3 * [(torch.tanh(x[:, :, None] + x[:, None]).sum(-1).softmax(-1) @ x)[:, None]]
    )


def differential(x):
    q, k = x.unflatten(-1, (2, -1)).transpose(1, 2).chunk(2, -1)
    one, other = (scores(a, b).softmax(-1) for a, b in ((q, k), (k, q)))
    return (one - 0.5 * other) @ q


class Does(torch.nn.Module):
    """One of several things, in turn."""

    def __init__(self, *ways):
        super().__init__()
        self.ways, self.calls = ways, 0

    def forward(self, x):
        self.calls += 1
        return self.ways[(self.calls - 1) % len(self.ways)](x)


@pytest.mark.parametrize("at", ["0", "(root)"])
@pytest.mark.parametrize("way", [fused_and_additive, additive_and_fused, differential])
def test_what_is_missed_beside_what_is_seen_is_named_in_any_module(way, at):
    model, x = Does(way), torch.randn(B, T, H * D)
    with (
        pytest.warns(RuntimeWarning, match="softmax over"),
        rootdk.watch(model if at == "(root)" else torch.nn.Sequential(model)) as w,
    ):
        w.model(x)
    assert w.layers == [at] and list(w.unseen) == [at] and "softmax over" in w.table()


def test_a_module_that_goes_another_way_later_is_named():
    """Its last numbers stay, and are not those of this step."""
    model = torch.nn.Sequential(Does(*[lambda x: F.scaled_dot_product_attention(x, x, x)] + 3 * [fused_and_additive]))
    x = torch.randn(B, T, H * D)
    with pytest.warns(RuntimeWarning, match="not followed") as said, rootdk.watch(model) as w:
        model(x[:, None])
        assert not w.unseen
        for _ in range(3):
            model(x)
    assert list(w.unseen) == ["0"] and len(said) == 1


def test_two_reasons_are_both_named_and_sizes_are_none():
    def distances(x):
        return (-torch.cdist(x, x)).softmax(-1) @ x

    def over_queries(x):
        return scores(x, x).softmax(-2) @ x

    model = torch.nn.Sequential(Does(distances, over_queries))
    with pytest.warns(RuntimeWarning) as said, rootdk.watch(model) as w:
        for length in (4, 4, 5, 5, 6, 6):
            model(torch.randn(B, length, D))
    assert len(said) == 2 and list(w.unseen) == ["0"]
    assert w.unseen["0"].count("softmax over") == 2 and w.table().count("softmax over") == 2
    assert "goes over queries" in w.unseen["0"]


class Attention(torch.nn.Module):
    """First something that cannot be followed, then what can."""

    def forward(self, x):
        self.calls = getattr(self, "calls", 0) + 1
        return x if self.calls == 1 else F.scaled_dot_product_attention(x, x, x)


def test_a_module_that_is_seen_after_all_computes_attention():
    model, x = torch.nn.Sequential(Attention()), torch.randn(B, H, T, D)
    with pytest.warns(RuntimeWarning, match="computed no attention"), rootdk.watch(model) as w:
        model(x)
        assert list(w.unseen) == ["0"]
        model(x)
    assert w.layers == ["0"] and not w.unseen


@pytest.mark.parametrize("first", [lambda logits: logits, lambda logits: logits.topk(2).values])
def test_a_watch_does_not_name_routers(first):
    model, x = torch.nn.Sequential(Routes(first)), torch.randn(B, T, H * D)
    with warnings.catch_warnings(), rootdk.watch(model) as w:
        warnings.simplefilter("error")
        model(x)
    assert not w.unseen


def test_a_watch_knows_the_scale_of_normed_queries():
    model, x = torch.nn.Sequential(Norms()), torch.randn(B, T, H * D)
    with rootdk.watch(model) as w:
        model(x)
    assert {row["scale"] for row in w.to_dicts()} == {D**-0.5}


def test_a_watch_sees_heads_that_talk_after_softmax():
    model, x = torch.nn.Sequential(Talks(before=False)), torch.randn(B, T, H * D)
    with rootdk.watch(model) as w:
        model(x)
    y = x.unflatten(-1, (H, -1)).transpose(1, 2)
    p = scores(y, y).softmax(-1)
    assert w.layers == ["0"] and not w.unseen
    np.testing.assert_allclose(w.stats("0").entropy[0], -(p * p.log()).sum(-1).mean((0, 2)).numpy(), rtol=1e-5)


@pytest.mark.parametrize("model", [None, torch.nn.Identity()])
def test_what_an_error_cut_short_is_not_named(model):
    q, k, _ = (x.detach() for x in qkv())
    w = rootdk.watch(model)
    with pytest.raises(KeyError), w:
        scores(q, k).softmax(-1)
        raise KeyError
    assert not w.unseen
    with pytest.warns(RuntimeWarning, match="not followed") if model is None else contextlib.nullcontext(), w:
        scores(q, k).softmax(-1)
        w.model is None or w.model(q)


def test_an_inner_watch_does_not_end_what_an_outer_one_follows():
    """The softmax is in a module of its own, which another watch has as its model."""
    model, x = Talks(before=False), torch.randn(B, T, H * D)
    with rootdk.watch(model) as outer, rootdk.watch(model.softmax) as inner:
        model(x)
    assert outer.layers == ["(root)"] and not outer.unseen and inner.layers == []


def test_a_watch_without_an_end_of_steps_does_not_grow():
    q, k, v = (x.detach() for x in qkv())
    looker = Notes()
    with Follow(looker) as follow:
        for _ in range(1000):
            scores(q, k).softmax(-1) @ v
        assert len(follow._owed) <= 64 and not looker.unseen
        for _ in range(1000):
            scores(q, k).softmax(-1)
        assert len(follow._owed) <= 64 and len(looker.unseen) > 900
