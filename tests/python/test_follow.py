"""What a watch sees of torch calls, without the watch: a looker that writes down what it is told."""
from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import plain

from rootdk._follow import Follow


class Notes:
    """A looker."""

    looking = True

    def __init__(self, hint=()):
        self.written, self.unseen, self.fused, self.hint, self.gradients = [], [], [], hint, []

    def sdpa(self, func, *args, prescale=1.0, **kwargs):
        self.fused.append((args, kwargs, prescale))
        return func(*args, **kwargs)

    def written_out(self, found):
        self.written.append(found)
        if found.hooked.requires_grad:
            found.hooked.register_hook(lambda gradient: self.gradients.append(found.per_head(gradient).clone()))

    def missed(self, what, why):
        self.unseen.append((what, why))

    def batch_hint(self):
        return self.hint


B, H, T, S, D = 2, 3, 5, 7, 4


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(5)


def qkv(*, heads_kv=H, dtype=torch.float64):
    return (torch.randn(B, H, T, D, dtype=dtype, requires_grad=True), torch.randn(B, heads_kv, S, D, dtype=dtype, requires_grad=True),
            torch.randn(B, heads_kv, S, D, dtype=dtype, requires_grad=True))


HIDE = torch.zeros(T, S, dtype=torch.bool)
HIDE[0, 3:] = HIDE[2, :2] = True
MASK = torch.zeros(T, S, dtype=torch.float64).masked_fill(HIDE, -1e9)
BIAS = torch.linspace(-1, 1, H * T * S, dtype=torch.float64).reshape(H, T, S)
C = D**-0.5


def times_values(p, v):
    return p @ v


def folded(x):
    return x.reshape(B * H, -1, D)


def sequence_first(x):
    """[len, batch, heads · dim], as fairseq has it."""
    return x.permute(2, 0, 1, 3).reshape(x.shape[2], B, H * D)


def fairseq(q, k, v):
    q, k, v = (sequence_first(x) for x in (q, k, v))
    q = (q * C).contiguous().view(T, B * H, D).transpose(0, 1)
    k, v = (x.contiguous().view(S, B * H, D).transpose(0, 1) for x in (k, v))
    out = torch.bmm(F.softmax(torch.bmm(q, k.transpose(1, 2)), -1), v)
    return out.view(B, H, T, D)


def gpt_oss(q, k, v):
    sinks = torch.tensor([0.5, -1.0, 2.0], dtype=q.dtype)
    s = torch.matmul(q, k.transpose(2, 3)) * C
    s = s + MASK
    both = torch.cat([s, sinks.reshape(1, -1, 1, 1).expand(B, -1, T, -1)], dim=-1)
    both = both - both.max(dim=-1, keepdim=True).values
    p = F.softmax(both, dim=-1, dtype=both.dtype)[..., :-1]
    return F.dropout(p, 0.1, False).to(v.dtype) @ v


def sink_first_and_masked_after(q, k, v):
    both = torch.cat((torch.full((B, H, T, 1), 0.25, dtype=q.dtype), (q @ k.mT).mul(C)), -1)
    both = both + F.pad(MASK, (1, 0))
    return both.softmax(-1)[..., 1:] @ v


def gemma2(q, k, v):
    s = torch.matmul(q, k.transpose(2, 3)) * 0.3
    s = s / 1.5
    s = torch.tanh(s)
    s = s * 1.5
    return torch.matmul(F.softmax(s + MASK, dim=-1, dtype=torch.float64).to(q.dtype), v)


def written_softmax(q, k, v):
    s = q @ k.transpose(-1, -2) * C
    e = torch.exp(s - s.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True) @ v


def written_softmax_in_place(q, k, v):
    s = (q @ k.transpose(-1, -2)).mul_(C)
    s -= s.detach().max(-1, keepdim=True)[0]
    e = s.exp_()
    return (e * (1 / (e.sum(dim=-1)[..., None] + 1e-300))) @ v


def normalised_last(q, k, v):
    s = (q @ k.transpose(-1, -2)) * C
    e = torch.exp(s)
    return (e @ v) / e.sum(-1, keepdim=True)


def logsumexp(q, k, v):
    s = q @ k.mT / math.sqrt(D)
    return torch.exp(s - torch.logsumexp(s, -1, keepdim=True)) @ v


def grouped(q, k, v):
    """Five axes: [batch, heads_kv, group, len, dim]."""
    q = q.view(B, 1, H, T, D)
    s = torch.einsum("bhgqd,bhkd->bhgqk", q, k[:, :1]) * C
    return torch.einsum("bhgqk,bhkd->bhgqd", s.softmax(-1), v[:, :1]).view(B, H, T, D)


def grouped_matmul(q, k, v):
    s = (q.unflatten(1, (1, H)) @ k[:, :1, None].transpose(-1, -2)).mul(C).flatten(1, 2)
    return s.softmax(-1).unflatten(1, (1, H)).matmul(v[:, :1].unsqueeze(2)).flatten(1, 2)


# name → (attention of q, k, v; how plain() gets there; the prescale)
WAYS = {
    "matmul, divided": (lambda q, k, v: torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(D), -1), v), {}, 1),
    "operators": (lambda q, k, v: (q @ k.mT * C).softmax(dim=-1) @ v, {}, 1),
    "in place": (lambda q, k, v: torch.matmul(q, k.mT).mul_(C).add_(MASK).masked_fill_(HIDE, -math.inf).softmax(3) @ v,
                 dict(visible=~HIDE.numpy()), 1),
    "masked by where": (lambda q, k, v: torch.where(HIDE, -1e9, q @ k.mT * C).softmax(-1) @ v, dict(visible=~HIDE.numpy()), 1),
    "mask first": (lambda q, k, v: (MASK + C * (q @ k.mT)).softmax(-1).matmul(v), dict(visible=~HIDE.numpy()), 1),
    "bias, then scale": (lambda q, k, v: ((q @ k.mT + BIAS / C) * C).softmax(-1) @ v, dict(bias=BIAS.numpy()), 1),
    "scale of a tensor": (lambda q, k, v: (q @ k.mT / torch.tensor(2.0)).softmax(-1) @ v, {}, 1),
    "temperature per head": (lambda q, k, v: (q @ k.mT * torch.full((H, 1, 1), C, dtype=q.dtype)).softmax(-1) @ v, {}, 1),
    "gemma 2": (gemma2, dict(scale=0.3, cap=1.5, visible=~HIDE.numpy()), 1),
    "gpt-oss": (gpt_oss, dict(sink=[0.5, -1.0, 2.0], visible=~HIDE.numpy()), 1),
    "sink first": (sink_first_and_masked_after, dict(sink=0.25, visible=~HIDE.numpy()), 1),
    "q scaled before": (lambda q, k, v: ((q * C) @ k.mT).softmax(-1) @ v, {}, C),
    "q and k scaled before": (lambda q, k, v: ((q * D**-0.25).contiguous() @ (k / D**0.25).transpose(2, 3)).softmax(-1) @ v, {}, C),
    "q scaled and split": (lambda q, k, v: ((q.transpose(1, 2).reshape(B, T, H * D) * C).view(B, T, H, D).transpose(1, 2) @ k.mT)
                           .softmax(-1) @ v, {}, C),
    "float": (lambda q, k, v: torch.matmul(q, k.mT).double().mul(C).softmax(-1).to(v.dtype) @ v, {}, 1),
    "nn.Softmax, dropout": (lambda q, k, v: torch.nn.Dropout(0.0)(torch.nn.Softmax(-1)(C * q.matmul(k.mT))) @ v, {}, 1),
    "log_softmax": (lambda q, k, v: F.log_softmax(q @ k.mT * C, -1).exp() @ v, {}, 1),
    "softmax written out": (written_softmax, {}, 1),
    "softmax in place": (written_softmax_in_place, {}, 1),
    "normalised last": (normalised_last, {}, 1),
    "logsumexp": (logsumexp, {}, 1),
    "einsum": (lambda q, k, v: torch.einsum("bhqk,bhkd->bhqd", (torch.einsum("bhqd,bhkd->bhqk", q, k) * C).softmax(-1), v), {}, 1),
    "einsum, ellipsis": (lambda q, k, v: torch.einsum("...qk,...kd->...qd", (torch.einsum("...qd,...kd->...qk", q, k) * C).softmax(-1), v), {}, 1),
    "einsum, keys first": (lambda q, k, v: torch.einsum("bhkd, bhqk -> bhqd", v, (torch.einsum("bhkd,bhqd->bhqk", k, q) * C).softmax(-1)), {}, 1),
    "einsum, softmax over the first": (lambda q, k, v: torch.einsum(
        "ijbn,bnjd->bnid", (torch.einsum("bnid,bnjd->ijbn", q, k) * C).softmax(1), v), {}, 1),
    "einsum, len first": (lambda q, k, v: torch.einsum("bnij,jbnd->ibnd", (torch.einsum(
        "ibnd,jbnd->bnij", q.permute(2, 0, 1, 3), k.permute(2, 0, 1, 3)) * C).softmax(3), v.permute(2, 0, 1, 3)).permute(1, 2, 0, 3), {}, 1),
    "transposed scores": (lambda q, k, v: (k @ q.mT * C).softmax(-2).mT @ v, {}, 1),
    "bmm": (lambda q, k, v: torch.bmm((torch.bmm(folded(q), folded(k).transpose(1, 2)) * C).softmax(-1), folded(v)).view(B, H, T, D), {}, 1),
    "bmm, fairseq": (fairseq, {}, C),
    "bmm, 4-D softmax": (lambda q, k, v: torch.bmm(torch.bmm(folded(q), folded(k).mT).view(B, H, T, S).mul(C).add(BIAS).softmax(-1).view(
        B * H, T, S), folded(v)).view(B, H, T, D), dict(bias=BIAS.numpy()), 1),
    "baddbmm": (lambda q, k, v: torch.bmm(torch.baddbmm(BIAS.repeat(B, 1, 1), folded(q), folded(k).mT, beta=1.0, alpha=C).softmax(-1),
                                          folded(v)).view(B, H, T, D), dict(bias=BIAS.numpy()), 1),
    "alibi.baddbmm": (lambda q, k, v: (BIAS.repeat(B, 1, 1).baddbmm(batch1=folded(q), batch2=folded(k).mT, beta=1.0, alpha=C).view(
        B, H, T, S) + MASK).softmax(-1).view(B * H, T, S).bmm(folded(v)).view(B, H, T, D),
                      dict(bias=BIAS.numpy(), visible=~HIDE.numpy()), 1),
    "five axes, einsum": (grouped, dict(shared=True), 1),
    "five axes, matmul": (grouped_matmul, dict(shared=True), 1),
    "one key head": (lambda q, k, v: (q @ k[:, :1].mT * C).softmax(-1) @ v[:, :1], dict(shared=True), 1),
    "two products": (lambda q, k, v: ((q[..., :1] @ k[..., :1].mT + q[..., 1:] @ k[..., 1:].mT) * C).softmax(-1) @ v, {}, 1),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_written_out_is_followed(way):
    attention, how, prescale = WAYS[way]
    how = dict(how)
    q, k, v = qkv()
    expected = attention(q, k, v)
    expected_gradients = torch.autograd.grad(expected.square().sum(), (q, k, v))
    looker = Notes()
    with Follow(looker):
        out = attention(q, k, v)
    assert torch.equal(out, expected), "another result"
    assert not looker.unseen and len(looker.written) == 1
    gradients = torch.autograd.grad(out.square().sum(), (q, k, v))
    assert all(torch.equal(a, b) for a, b in zip(gradients, expected_gradients))

    numbers = [x.detach().numpy() for x in (q, k, v)]
    if how.pop("shared", False):
        numbers[1:] = [x[:, :1] for x in numbers[1:]]
    out64, s, p = plain(*numbers, **how)
    np.testing.assert_allclose(out64, out.detach().numpy(), atol=1e-12)
    found = looker.written[0]
    assert found.q.shape == (B, H, T, D) and found.k.shape == (B, H, D, S) and found.scores.shape == (B, H, T, S)
    c = how.get("scale", C)
    raw = np.broadcast_to(numbers[0] @ numbers[1].swapaxes(-1, -2) * c, s.shape)
    np.testing.assert_allclose(found.factor * (found.q @ found.k).numpy(), raw, atol=1e-12)
    if way != "temperature per head":
        assert found.factor * found.prescale == pytest.approx(c, rel=1e-7)
    assert found.prescale == pytest.approx(prescale) and found.cap == (pytest.approx(how["cap"]) if "cap" in how else None)
    scores = found.scores.detach().numpy()
    shown = np.isfinite(s)
    np.testing.assert_allclose(scores[shown], s[shown], atol=1e-12)
    assert (scores[~shown] < -1e8).all()
    if "sink" in how:
        np.testing.assert_allclose(found.sink.detach().expand(B, H, T, 1)[..., 0],
                                   np.broadcast_to(np.reshape(how["sink"], (-1, 1)), (B, H, T)), atol=1e-12)
    else:
        assert found.sink is None

    # dL/ds = p ∘ (dL/dp − Σ p dL/dp), L = Σ out².
    if way != "softmax in place":
        d_p = 2 * out.detach().numpy() @ np.broadcast_to(numbers[2], (B, H, S, D)).swapaxes(-1, -2)
        d_s = p * (d_p - (p * d_p).sum(-1, keepdims=True))
        np.testing.assert_allclose(looker.gradients[0].numpy(), d_s, atol=1e-11)
