"""Attention on a GPU, held against torch in float64. Needs no compiled module and no pytest: `./run gpu-python
tests/python/test_cuda.py` runs it over the C ABI where there is a GPU, nvcc and PyTorch."""

from __future__ import annotations

import os
import sys
import threading
import types
import warnings

import numpy as np

try:
    import pytest
except ImportError:
    pytest = None

import torch

if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)
import rootdk
from rootdk import StatsOptions, _cuda, _slow
from rootdk._description import Description, Problem
from rootdk._watch import look
from rootdk._watch import transformers as _transformers

assert _cuda.missing() == "", _cuda.missing()

F = torch.nn.functional
UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float64: 2.0**-53}
HALVES = (torch.bfloat16, torch.float16)


def raises(kind, words, call):
    try:
        call()
    except kind as error:
        assert words in str(error), f"{words!r} is not in {error}"
    else:
        raise AssertionError(f"{kind.__name__} with {words!r} was expected")


def qkv(
    batch=2,
    heads=4,
    len_q=130,
    len_kv=None,
    dim=64,
    dtype=torch.bfloat16,
    heads_kv=None,
    dim_v=None,
    seed=0,
    grad=False,
):
    g = torch.Generator(device="cuda").manual_seed(seed)
    len_kv, heads_kv, dim_v = len_kv or len_q, heads_kv or heads, dim_v or dim
    shapes = ((batch, heads, len_q, dim), (batch, heads_kv, len_kv, dim), (batch, heads_kv, len_kv, dim_v))
    return [torch.randn(s, generator=g, device="cuda").to(dtype).requires_grad_(grad) for s in shapes]


class Case:
    """Arguments of rootdk.attention, and the same for `by_hand`."""

    def __init__(self, shape, ours, visible=None, bias=None, cap=None, sink=None, scale=None):
        self.shape, self.ours, self.visible, self.bias, self.cap, self.sink, self.scale = (
            shape,
            ours,
            visible,
            bias,
            cap,
            sink,
            scale,
        )

    def by_hand(self, q, k, v):
        """In the dtype of q, S and P rounded to it: the plain method; in float64, what is exact."""
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        c = q.shape[-1] ** -0.5 if self.scale is None else self.scale
        s = (q @ k.mT) * (c if isinstance(c, float) else c.to(q)[None, :, None, None])
        if self.cap:
            s = self.cap * torch.tanh(s / self.cap)
        if self.bias is not None:
            s = s + self.bias.to(q)
        if self.visible is not None:
            s = s.masked_fill(~self.visible, -torch.inf)
        if self.sink is not None:
            s = torch.cat([s, self.sink.to(q)[None, :, None, None].expand(*s.shape[:3], 1)], -1)
        p = torch.softmax(s, -1).nan_to_num(0.0)  # a row that sees nothing
        return (p[..., : k.shape[2]]) @ v


def cases():
    i = torch.arange(130, device="cuda")[:, None]
    j = torch.arange(130, device="cuda")[None, :]
    g = torch.Generator(device="cuda").manual_seed(5)
    random = torch.rand(2, 1, 130, 130, generator=g, device="cuda") < 0.7
    random[:, :, 7] = False  # a row that sees nothing
    bias = torch.randn(1, 4, 130, 130, generator=g, device="cuda")
    lengths = torch.tensor([130, 57], device="cuda")[:, None, None, None]
    heads = torch.tensor([0.1, 0.2, 0.05, 0.3], device="cuda")
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625], device="cuda")
    yield "full", Case({}, {})
    yield "causal", Case({}, {"causal": True}, visible=j <= i)
    yield "grouped heads", Case({"heads_kv": 2}, {"causal": True}, visible=j <= i)
    yield "one key head", Case({"heads_kv": 1}, {})
    yield "bottom right", Case({"len_q": 40, "len_kv": 130}, {"causal": True}, visible=j <= i[:40] + 90)
    yield "top left", Case({"len_q": 40, "len_kv": 130}, {"causal": True, "diagonal": "top_left"}, visible=j <= i[:40])
    yield "window", Case({}, {"window": (20, 5)}, visible=(j >= i - 20) & (j <= i + 5))
    yield "key lengths", Case({}, {"key_lengths": [130, 57]}, visible=j < lengths)
    yield "documents", Case({}, {"documents": [0, 50, 130]}, visible=(i < 50) == (j < 50))
    cuts = torch.tensor([50, 20], device="cuda")[:, None, None, None]
    yield (
        "documents per item",
        Case({}, {"documents": [[0, 50, 130], [0, 20, 130]]}, visible=(i < cuts) == (j < cuts)),
    )
    starts = torch.tensor([0, 17], device="cuda")[:, None, None, None]
    queries = torch.tensor([90, 130], device="cuda")[:, None, None, None]
    yield (
        "padding",
        Case(
            {},
            {"key_starts": [0, 17], "query_lengths": [90, 130], "causal": True},
            visible=(j >= starts) & (i < queries) & (j <= i),
        ),
    )
    yield "boolean mask", Case({}, {"mask": random}, visible=random)
    yield "bias", Case({}, {"bias": bias}, bias=bias)
    yield (
        "ALiBi",
        Case(
            {}, {"alibi": slopes.tolist(), "causal": True}, visible=j <= i, bias=-(i - j) * slopes[None, :, None, None]
        ),
    )
    yield "soft-cap", Case({}, {"softcap": 5.0}, cap=5.0)
    yield "sink", Case({}, {"sink": [0.0, 1.0, -2.0, 3.0]}, sink=torch.tensor([0.0, 1.0, -2.0, 3.0], device="cuda"))
    yield "scale", Case({}, {"scale": 0.3}, scale=0.3)
    yield "scale by head", Case({}, {"scale": heads.tolist()}, scale=heads)
    yield "dims", Case({"dim": 96, "dim_v": 40}, {})
    yield "dim 128", Case({"dim": 128, "len_q": 300, "len_kv": 300}, {})
    yield "one query", Case({"len_q": 1, "len_kv": 130, "heads_kv": 2}, {})


def errors(case, q, k, v, d_o, ours):
    """For output and gradients: how far off ours and the plain method are, and the rounding that nobody avoids. With u
    of f32 and A = max c·Σ|q||k|, an f32 score is off by u·A and a probability by that share of itself: u·(2 + A) of the
    sum of what is added, taken absolutely; and a result is rounded to its dtype once."""

    def run(dtype):
        x = [t.detach().to(dtype).requires_grad_() for t in (q, k, v)]
        out = case.by_hand(*x)
        out.backward(d_o.to(dtype))
        return [out.detach().double(), *(t.grad.double() for t in x)]

    exact, plain = run(torch.float64), run(q.dtype)
    Q, K, V, D = (x.detach().double() for x in (q, k, v, d_o))
    group = Q.shape[1] // K.shape[1]
    K, V = K.repeat_interleave(group, 1), V.repeat_interleave(group, 1)
    c = Q.shape[-1] ** -0.5 if case.scale is None else float(torch.as_tensor(case.scale).max())
    a = (c * Q.abs() @ K.abs().mT).max()
    if case.bias is not None:
        a = a + case.bias.abs().max()
    # |dS| ≤ P·(|dO||V| + |δ|), and a column of P sums over no more than all rows of the group.
    d_p = (D.abs() @ V.abs().mT).max()
    d_s = 2 * d_p
    rows = Q.shape[2] * group
    sums = [V.abs().max(), c * d_s * K.abs().max(), c * d_s * Q.abs().max() * rows, D.abs().max() * rows]
    u, wide = UNIT[q.dtype], 2.0**-24
    for name, x, e, p, total in zip(("o", "dq", "dk", "dv"), ours, exact, plain, sums):
        floor = wide * (2 + a) * total + u * e.abs().max()
        yield name, float((x.double() - e).abs().max()), float((p - e).abs().nan_to_num(torch.inf).max()), float(floor)


def test_outputs_and_gradients_are_no_worse_than_twice_the_plain_method():
    worst = 0.0
    for name, case in cases():
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            q, k, v = qkv(**case.shape, dtype=dtype, grad=True)
            out = rootdk.attention(q, k, v, **case.ours)
            d_o = torch.randn(out.shape, device="cuda", generator=torch.Generator(device="cuda").manual_seed(1)).to(
                dtype
            )
            out.backward(d_o)
            assert out.dtype == dtype and out.device == q.device
            for what, error, plain, floor in errors(case, q, k, v, d_o, (out.detach(), q.grad, k.grad, v.grad)):
                assert error <= 2 * plain + floor, (
                    f"{name}, {dtype}, {what}: off by {error:.3g}, plain {plain:.3g}, floor {floor:.3g}"
                )
                worst = max(worst, error / (2 * plain + floor))
    assert worst > 0.01, "the bounds are so wide that they say nothing"


def test_any_strides():
    base = torch.randn(2, 130, 3, 4, 64, device="cuda", dtype=torch.bfloat16)  # as a projection leaves them
    q, k, v = (base[:, :, x].transpose(1, 2) for x in range(3))
    want = rootdk.attention(*(x.contiguous() for x in (q, k, v)))
    assert torch.equal(rootdk.attention(q, k, v), want)
    odd = torch.randn(2, 4, 65, 131, device="cuda", dtype=torch.bfloat16)
    # dim is not the innermost axis: the copy engine cannot
    views = [odd[:, :, :64].transpose(2, 3)[:, :, x : x + 130] for x in (0, 1, 0)]
    case = Case({}, {})
    out = rootdk.attention(*views)
    exact = case.by_hand(*(x.double() for x in views))
    plain = case.by_hand(*views).double()
    assert float((out.double() - exact).abs().max()) <= 2 * float((plain - exact).abs().max()) + 2.0**-8 * float(
        exact.abs().max()
    )
    one = torch.randn(1, 1, 130, 64, device="cuda", dtype=torch.bfloat16).expand(2, 4, -1, -1)  # strides of 0: neither
    exact = case.by_hand(*(x.double() for x in (one, k, v)))
    plain = case.by_hand(one, k, v).double()
    found = rootdk.attention(one, k, v).double()
    assert float((found - exact).abs().max()) <= 2 * float((plain - exact).abs().max()) + 2.0**-8 * float(
        exact.abs().max()
    )


def test_everything_that_learns_has_a_gradient():
    q, k, v = qkv(dtype=torch.float32, len_q=40, dim=32, grad=True)
    scale = torch.tensor([0.1, 0.2, 0.3, 0.15], device="cuda", requires_grad=True)
    sink = torch.tensor([0.5, -1.0, 0.0, 2.0], device="cuda", requires_grad=True)
    bias = torch.randn(1, 4, 40, 40, device="cuda", requires_grad=True)
    inputs = (q, k, v, scale, sink, bias)
    out, lse = rootdk.torch.attention(q, k, v, scale=scale, sink=sink, bias=bias, return_lse=True)
    (out.square().sum() + lse.square().sum()).backward()
    wide = [x.detach().double().requires_grad_() for x in inputs]
    Q, K, V, C, Z, B = wide
    s = Q @ K.mT * C[None, :, None, None] + B
    s = torch.cat([s, Z[None, :, None, None].expand(2, 4, 40, 1)], -1)
    (((torch.softmax(s, -1)[..., :40] @ V).square().sum()) + torch.logsumexp(s, -1).square().sum()).backward()
    for ours, exact in zip(inputs, wide):
        assert ours.grad.dtype == torch.float32 and ours.grad.shape == ours.shape
        # Sums of up to 2·40·40·32 products in f32, each off by a few u of itself; 1e-5 is 170 u of the largest.
        assert float((ours.grad.double() - exact.grad).abs().max()) <= 1e-5 * float(exact.grad.abs().max())
    host = scale.detach().cpu().requires_grad_()  # a scale may stay where problems live
    rootdk.attention(q, k, v, scale=host).sum().backward()
    assert host.grad.device.type == "cpu"


def test_statistics_are_those_of_the_scores():
    # Means of f32 sums over 130 keys; the products of bf16 are exact in f32.
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 1e-4)):
        q, k, v = qkv(dtype=dtype, heads_kv=2)
        out, stats = rootdk.attention(q, k, v, causal=True, stats=StatsOptions("full", rows=True))
        # other tiles, other bits
        assert torch.equal(out, rootdk.attention(q, k, v, causal=True)) or dtype == torch.bfloat16
        K = k.double().repeat_interleave(2, 1)
        s = q.double() @ K.mT / 8
        hidden = torch.ones(130, 130, dtype=torch.bool, device="cuda").triu(1)
        p = torch.softmax(s.masked_fill(hidden, -torch.inf), -1)
        entropy = torch.special.entr(p).sum(-1)

        def near(ours, exact, what):
            exact = exact.detach().cpu().numpy()
            assert np.allclose(np.asarray(ours), exact, rtol=tolerance, atol=tolerance), (
                f"{dtype}, {what}: {ours} is not {exact}"
            )

        near(stats.raw_max, s.masked_fill(hidden, -torch.inf).amax((-1, -2)), "raw_max")
        near(stats.entropy, entropy[:, :, 1:].mean(-1), "entropy")  # the first row sees one key and does not count
        near(stats.mean_p_max, p.amax(-1)[:, :, 1:].mean(-1), "mean_p_max")
        near(stats.trace_j, (1 - p.square().sum(-1))[:, :, 1:].mean(-1), "trace_j")
        near(stats.mean_lse, torch.logsumexp(s.masked_fill(hidden, -torch.inf), -1)[:, :, 1:].mean(-1), "mean_lse")
        near(stats.sigma_q, q.double().square().mean((-1, -2)).sqrt(), "sigma_q")
        near(stats.rows.entropy.cpu(), entropy, "rows.entropy")
        near(stats.rows.p_max.cpu(), p.amax(-1), "rows.p_max")
        assert (stats.row_count == 130).all() and (stats.rows_short == 1).all() and (stats.rows_not_finite == 0).all()
        assert stats.rows.entropy.device == q.device
        one = stats.over_batch()
        assert one.batch == 1 and np.allclose(one.raw_max[0], stats.raw_max.max(0))
    out, stats = rootdk.attention(q, k, v, stats="basic")
    near(stats.raw_max, s.amax((-1, -2)), "basic raw_max")
    _, stats = rootdk.attention(q, k, v, stats=StatsOptions("full", key_mass=True))
    near(stats.key_mass.cpu(), torch.softmax(s, -1).sum(2), "key_mass")


def test_padding_is_no_part_of_the_statistics():
    q, k, v = qkv(dtype=torch.float32)
    one = [x[:1, :, :90] for x in (q, k, v)]
    for sample in (1, 2):  # rows one by one, and by the block
        options = StatsOptions("full", sample=sample)
        _, stats = rootdk.attention(q, k, v, stats=options, query_lengths=[90, 130], key_lengths=[90, 130])
        _, want = rootdk.attention(*one, stats=options)
        assert (stats.row_count[0] == 90).all() and (stats.row_count[1] == 130).all()
        for name in (
            "rows_masked",
            "rows_sampled",
            "raw_max",
            "mean_p_max",
            "mean_lse",
            "entropy",
            "sigma_q",
            "sigma_k",
        ):
            ours, exact = np.asarray(getattr(stats, name))[0], np.asarray(getattr(want, name))[0]
            assert np.allclose(ours, exact, rtol=1e-5), f"{name}: {ours} is not {exact}"


def test_statistics_wait_until_they_are_read():
    q, k, v = qkv(batch=4, heads=16, len_q=2048, dim=128)
    rootdk.attention(q, k, v, stats="full")[1].raw_max
    torch.cuda.synchronize()
    busy = torch.cuda.Event()
    torch.cuda._sleep(200_000_000)  # a tenth of a second
    _, stats = rootdk.attention(q, k, v, stats="full")
    busy.record()
    assert not busy.query(), "the call waited for the device"
    assert float(stats.raw_max.max()) > 0 and busy.query()


def test_a_call_waits_for_nothing():
    q, k, v = qkv(grad=True)

    def step():
        out = rootdk.attention(q, k, v, causal=True, key_lengths=[130, 60], scale=[0.1, 0.2, 0.3, 0.4])
        out.backward(torch.ones_like(out))

    step()  # the driver loads a kernel when it is first used, and may wait for that
    torch.cuda.synchronize()
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        busy = torch.cuda.Event()
        torch.cuda._sleep(200_000_000)
        step()
        busy.record()
        assert not busy.query()
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def test_the_current_stream():
    q, k, v = qkv(batch=2, heads=8, len_q=512)
    want = rootdk.attention(q, k, v)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        q2 = q * 1.0  # behind the pause: whoever ran on another stream would read what is not there yet
        out = rootdk.attention(q2, k, v)
    assert not stream.query()
    stream.synchronize()
    assert torch.equal(out, want)


def test_two_streams_and_two_threads():
    inputs = [qkv(batch=2, heads=8, len_q=700, seed=x) for x in range(2)]
    want = [rootdk.attention(*x, causal=True, stats="basic") for x in inputs]
    torch.cuda.synchronize()
    found = {}

    def work(x):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                found[x] = rootdk.attention(*inputs[x], causal=True, stats="basic")
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=work, args=(x,)) for x in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for x in range(2):
        assert torch.equal(found[x][0], want[x][0]) and (found[x][1].raw_max == want[x][1].raw_max).all()


def test_a_graph_records_forward_and_backward():
    q, k, v = qkv(heads_kv=2, grad=True)
    d_o = torch.randn_like(q)

    def step():
        out = rootdk.attention(q, k, v, causal=True, key_lengths=[130, 99])
        return out, *torch.autograd.grad(out, (q, k, v), d_o)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = step()
        noted, stats = rootdk.attention(q.detach(), k.detach(), v.detach(), stats="basic")
    with torch.no_grad():
        for x in (q, k, v):
            x.copy_(torch.randn_like(x))
    for x in recorded:
        x.detach().fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    for ours, want in zip(recorded, step()):
        assert torch.equal(ours, want)
    raw = (q.double() @ k.double().repeat_interleave(2, 1).mT / 8).amax((-1, -2)).detach().cpu().numpy()
    assert np.allclose(stats.raw_max, raw, rtol=1e-4)  # of the replay: they were not read before


def test_the_operator_compiles_without_a_break():
    q, k, v = qkv(grad=True)

    def f(q, k, v):
        return (
            rootdk.attention(q, k, v, causal=True).float().sin().sum()
            + rootdk.torch.scaled_dot_product_attention(q, k, v).sum()
        )

    want = torch.autograd.grad(f(q, k, v), (q, k, v))
    compiled = torch.compile(f, fullgraph=True, backend=os.environ.get("ROOTDK_TEST_COMPILER", "aot_eager"))
    for ours, exact in zip(torch.autograd.grad(compiled(q, k, v), (q, k, v)), want):
        # a rounding to bf16 more or less
        assert float((ours - exact).abs().max()) <= 2.0**-6 * float(exact.abs().max())


def test_the_operator_passes_torchs_own_checks():
    q, k, v = qkv(batch=1, heads=2, len_q=16, dim=32, dtype=torch.float32, grad=True)
    torch.library.opcheck(torch.ops.rootdk.attention.default, (q, k, v))


def test_pytorchs_signature():
    mask = torch.rand(2, 1, 130, 130, device="cuda") < 0.8
    for dtype in HALVES:
        q, k, v = qkv(dtype=dtype)
        for arguments in ({}, {"is_causal": True}, {"attn_mask": mask}, {"scale": 0.2}):
            ours = rootdk.torch.scaled_dot_product_attention(q, k, v, **arguments)
            exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), **arguments)
            theirs = F.scaled_dot_product_attention(q, k, v, **arguments).double()
            floor = UNIT[dtype] * float(exact.abs().max()) * 2  # theirs may have hit the exact value by chance
            assert float((ours.double() - exact).abs().max()) <= 2 * float((theirs - exact).abs().max()) + floor, (
                arguments
            )
        grouped = qkv(dtype=dtype, heads_kv=2)
        assert torch.equal(
            rootdk.torch.scaled_dot_product_attention(*grouped, enable_gqa=True), rootdk.attention(*grouped)
        )
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        wide = [x.double() for x in (q, k, v)]
        assert torch.equal(rootdk.torch.scaled_dot_product_attention(*wide), F.scaled_dot_product_attention(*wide))
    assert any("float64" in str(warning.message) for warning in seen)


def test_dropout_is_that_of_the_seed():
    q, k, v = qkv(len_q=256, len_kv=256)
    a, b, other = (rootdk.attention(q, k, v, dropout=0.5, seed=s) for s in (7, 7, 8))
    assert torch.equal(a, b) and not torch.equal(a, other)
    ones = torch.ones_like(v)
    # 256 equal weights, each kept or not: mean 1, variance 1/256.
    kept = rootdk.attention(q * 0, k, ones, dropout=0.5, seed=3).float()
    assert abs(float(kept.mean()) - 1) < 6 / 256**0.5 / (2 * 4 * 256) ** 0.5 + 2.0**-8


def by_transformers(q, k, v, bias=None, dropout=0.0):
    module = torch.nn.Module()
    module.is_causal = False
    return _transformers._transformers_attention(module, q, k, v, bias, dropout)[0].transpose(1, 2)


WAYS = {
    "rootdk.attention": lambda q, k, v, bias=None, dropout=0.0: rootdk.attention(q, k, v, bias=bias, dropout=dropout),
    "with statistics": lambda q, k, v, bias=None, dropout=0.0: rootdk.torch.attention(
        q, k, v, bias=bias, dropout=dropout, stats="basic"
    )[0],
    "PyTorch's signature": lambda q, k, v, bias=None, dropout=0.0: rootdk.torch.scaled_dot_product_attention(
        q, k, v, bias, dropout
    ),
    "transformers": by_transformers,
}


def test_a_seed_may_be_a_tensor_there():
    for dtype in (torch.bfloat16, torch.float32):
        inputs = qkv(len_q=200, dtype=dtype, grad=True)
        bias = torch.randn(1, 1, 200, 200, device="cuda", requires_grad=True)
        found = []
        for seed in (2**61 + 5, torch.tensor(2**61 + 5, device="cuda"), torch.tensor([2**61 + 5], device="cuda"), 6):
            out = rootdk.attention(*inputs, bias=bias, dropout=0.5, seed=seed)
            found.append((out, *torch.autograd.grad(out, (*inputs, bias), torch.ones_like(out))))
        for x, same, also, other in zip(*found):
            assert torch.equal(x, same) and torch.equal(x, also) and not torch.equal(x, other), dtype
    q, k, v = qkv()
    raises(
        ValueError,
        "seed: lies on cpu, but q on cuda:0",
        lambda: rootdk.attention(q, k, v, dropout=0.5, seed=torch.tensor(3)),
    )
    raises(
        ValueError,
        "seed: 2 elements",
        lambda: rootdk.attention(q, k, v, dropout=0.5, seed=torch.zeros(2, dtype=torch.int64, device="cuda")),
    )
    raises(
        ValueError,
        "torch.int32",
        lambda: torch.ops.rootdk.attention(
            q,
            k,
            v,
            seed=torch.zeros(1, dtype=torch.int32, device="cuda"),
            reals=Description(dropout=0.5).packed()[1],
        ),
    )


def test_dropout_follows_the_cuda_generator():
    for dtype in (torch.bfloat16, torch.float32):
        q, k, v = qkv(len_q=200, dtype=dtype)
        for name, way in WAYS.items():
            torch.cuda.manual_seed(1)
            torch.random.default_generator.manual_seed(1)
            first, second = way(q, k, v, dropout=0.5), way(q, k, v, dropout=0.5)
            torch.random.default_generator.manual_seed(1)  # the host's has no say
            state = torch.cuda.get_rng_state()
            third = way(q, k, v, dropout=0.5)
            torch.cuda.set_rng_state(state)
            again = way(q, k, v, dropout=0.5)
            torch.cuda.manual_seed(1)
            assert torch.equal(way(q, k, v, dropout=0.5), first), name
            assert (
                torch.equal(third, again)
                and not torch.equal(first, second)
                and not torch.equal(first, third)
                and not torch.equal(second, third)
            ), name
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            busy = torch.cuda.Event()
            torch.cuda._sleep(200_000_000)
            for way in WAYS.values():
                way(q, k, v, dropout=0.5)
            busy.record()
            assert not busy.query()
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_backward_drops_what_forward_dropped():
    q, k, v = qkv(len_q=200, dtype=torch.float32, grad=True)
    out = rootdk.attention(q, k, v, dropout=0.5)
    torch.cuda.manual_seed(77)  # what comes in between does not matter
    rootdk.attention(q, k, v, dropout=0.5)
    (d_v,) = torch.autograd.grad(out.sum(), v)
    # Linear in v. 8·200·64 sums of 200 products in f32.
    assert abs(float((d_v.double() * v.double()).sum() - out.double().sum())) <= 1e-5 * float(
        (d_v.double() * v.double()).abs().sum()
    )


def test_every_replay_of_a_graph_drops_others():
    for dtype in (torch.bfloat16, torch.float32):
        inputs = qkv(len_q=200, dtype=dtype, grad=True)
        d_o = torch.randn_like(inputs[0])

        def step():
            out = rootdk.attention(*inputs, causal=True, dropout=0.5)
            second = rootdk.torch.scaled_dot_product_attention(*inputs, dropout_p=0.5)
            return out, second, *torch.autograd.grad(out, inputs, d_o), *torch.autograd.grad(second, inputs, d_o)

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            recorded = step()

        def replay():
            graph.replay()
            torch.cuda.synchronize()
            return [x.detach().clone() for x in recorded]

        torch.cuda.manual_seed(5)
        first, second = replay(), replay()
        torch.cuda.manual_seed(5)
        again = replay()
        torch.cuda.manual_seed(5)
        eager = [x.detach() for x in step()]
        for a, b, c, e in zip(first, second, again, eager):
            assert torch.equal(a, c), "the same seed, another mask"
            assert not torch.equal(a, b), "two replays with one mask"
            assert torch.equal(a, e), "another mask than without a graph"


def test_dropout_under_a_checkpoint():
    from torch.utils.checkpoint import checkpoint

    for reentrant in (None, False, True):
        torch.cuda.manual_seed(3)
        inputs = qkv(len_q=200, dtype=torch.float32, grad=True)

        def call(*x):
            return rootdk.attention(*x, dropout=0.5)

        out = call(*inputs) if reentrant is None else checkpoint(call, *inputs, use_reentrant=reentrant)
        rootdk.attention(*(x.detach() for x in inputs), dropout=0.5)  # moves the generator on
        out.square().sum().backward()
        gradients = [x.grad for x in inputs]
        if reentrant is None:
            want = gradients
        assert all(torch.equal(x, y) for x, y in zip(gradients, want)), reentrant


def test_dropout_compiles_without_a_break():
    inputs = qkv(len_q=200, dtype=torch.float32, grad=True)

    def f(q, k, v):
        return rootdk.attention(q, k, v, dropout=0.5)

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    compiled(*inputs)
    found = []
    for g in (f, compiled, compiled):
        torch.cuda.manual_seed(9)
        out = g(*inputs)
        found.append((out, *torch.autograd.grad(out.square().sum(), inputs)))
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(*found))
    assert not torch.equal(compiled(*inputs), found[0][0])


def test_autocast_is_pytorchs():
    g = torch.Generator(device="cuda").manual_seed(4)
    for narrow in HALVES:
        for given in (torch.float32, *HALVES):
            inputs = qkv(dtype=given, grad=True)
            for bias in (None, torch.randn(1, 4, 130, 130, device="cuda", generator=g).to(given)):
                wide = [x.detach().to(narrow).double().requires_grad_() for x in inputs]
                exact = F.scaled_dot_product_attention(
                    *wide, attn_mask=None if bias is None else bias.to(narrow).double()
                )
                d_o = torch.randn(exact.shape, device="cuda", generator=g).to(narrow)
                exact = (exact, *torch.autograd.grad(exact, wide, d_o.double()))
                with torch.autocast("cuda", dtype=narrow):
                    theirs = F.scaled_dot_product_attention(*inputs, attn_mask=bias)
                theirs = (theirs, *torch.autograd.grad(theirs, inputs, d_o))
                for name, way in WAYS.items():
                    with torch.autocast("cuda", dtype=narrow):
                        ours = way(*inputs, bias)
                    ours = (ours, *torch.autograd.grad(ours, inputs, d_o))
                    for x, y, e in zip(ours, theirs, exact):
                        assert x.dtype == y.dtype, (name, narrow, given, x.dtype, y.dtype)
                        # Theirs may have hit the exact value by chance; P, dS and the results are rounded to the dtype.
                        floor = 2 * UNIT[narrow] * float(e.abs().max())
                        assert float((x.double() - e).abs().max()) <= 2 * float((y.double() - e).abs().max()) + floor, (
                            name,
                            narrow,
                            given,
                        )
    q, k, v = qkv(dtype=torch.float32)
    plain = rootdk.attention(q, k, v)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        want = rootdk.attention(*(x.bfloat16() for x in (q, k, v)))
        assert torch.equal(torch.ops.rootdk.attention(q, k, v)[0], want)
        # a scale on the host
        assert torch.equal(torch.ops.rootdk.attention(q, k.bfloat16(), v, torch.full((4,), 0.125))[0], want)
        with torch.autocast("cuda", enabled=False):
            assert torch.equal(rootdk.attention(q, k, v), plain)
        with torch.autocast("cuda", dtype=torch.float16):
            assert rootdk.attention(q, k, v).dtype == torch.float16
        assert "forward in bf16" in rootdk.explain_plan(q, k, v)
        raises(ValueError, "q: dtype is f64", lambda: rootdk.attention(q.double(), k.double(), v.double()))
        compiled = torch.compile(lambda q, k, v: rootdk.attention(q, k, v), fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(q, k, v), want)
        model = small_model(dtype=torch.float32)
        x = torch.randn(2, 130, 256, device="cuda")
        with Counted("forward") as calls, rootdk.watch(model) as w:
            model(x)
        slow = rootdk.explain_plan(q, k, v, stats="full").startswith("slow: ")
        # bf16 is what the fused kernel takes, so it is watched from inside
        assert calls.count == (0 if slow else 2) and len(w.layers) == 2
        with Counted("forward") as calls, rootdk.watch():
            assert F.scaled_dot_product_attention(q, k, v).dtype == torch.bfloat16
        assert calls.count == (0 if slow else 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(rootdk.attention(q, k, v), plain)  # of another device


def slow_words(call):
    """The warnings of a call, as if it were the first."""
    _slow._said.clear()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        call()
        torch.cuda.synchronize()
    return [str(x.message) for x in seen if issubclass(x.category, rootdk.SlowKernelWarning)]


def slow_cases():
    """Each with what its instruction is about, where it is slow; else with None."""
    half = torch.bfloat16
    mask = torch.rand(130, 130, device="cuda") < 0.7
    strided = [x.transpose(2, 3).contiguous().transpose(2, 3) for x in qkv()]
    yield "f32", qkv(dtype=torch.float32), {}, "cast q, k and v"
    yield "wide", qkv(dim=264), {}, "more heads"
    yield "odd dims", qkv(dim=36), {}, None
    yield "strides", strided, {}, None
    yield "strides of v", [*qkv()[:2], strided[2]], {}, None
    yield "mask", qkv(), {"mask": mask}, None
    yield "bias", qkv(), {"bias": torch.zeros(130, 130, device="cuda", dtype=half)}, None
    yield "ALiBi", qkv(), {"alibi": [0.1, 0.2, 0.3, 0.4]}, None
    yield "soft-cap", qkv(), {"softcap": 20.0}, None
    yield "dropout", qkv(), {"dropout": 0.1, "seed": 1}, None
    yield "negative scale", qkv(), {"scale": -0.1}, None
    yield "scale by length", qkv(), {"scale": "sqrt_dk*ssmax(0.43)", "causal": True}, None
    yield "statistics", qkv(), {"softcap": 20.0, "stats": "full"}, None
    yield "statistics of wide heads", qkv(dim=256), {"stats": "full"}, None


def test_slowness_is_said_with_what_to_change():
    for name, inputs, arguments, advice in slow_cases():
        inputs = [x.detach().requires_grad_() for x in inputs]
        plans = [rootdk.explain_plan(*inputs, backward=back, **{"stats": None, **arguments}) for back in (False, True)]
        out = []

        def forward():
            found = rootdk.attention(*inputs, **arguments)
            out[:] = found if isinstance(found, tuple) else (found,)

        for which, plan, call in (
            ("forward", plans[0], forward),
            ("backward", plans[1], lambda: out[0].sum().backward()),
        ):
            words = slow_words(call)
            slow = plan.startswith(f"slow: {which} runs without tensor cores")
            assert slow == ("kernel: plain" in plan) == (advice is not None), (name, plan)
            if which == "backward" and arguments.get("stats") == "full":
                assert len(words) <= 1  # asked of forward alone here
                continue
            assert len(words) == slow, (name, which, words, plan)
            if slow:
                assert (
                    words[0].startswith(plan.split("\n")[0].removeprefix("slow: ")) and "docs/cuda.md" not in words[0]
                ), (name, words)
                assert advice in words[0], (name, words)


def test_every_way_in_speaks_of_slowness():
    q, k, v = qkv(dtype=torch.float32)
    slow = rootdk.explain_plan(q, k, v).startswith("slow: ")
    for name, way in WAYS.items():
        assert len(slow_words(lambda: way(q, k, v))) == slow, name
        found = slow_words(lambda: [way(q, k, v) for _ in range(3)])
        assert len(found) == slow and all("forward" in x for x in found), name
    quiet = [x.bfloat16() for x in (q, k, v)]
    if rootdk.explain_plan(*quiet).startswith("slow: "):
        return  # a card without a fast kernel
    inputs = [x.requires_grad_() for x in quiet]
    os.environ["ROOTDK_SLOW"] = "error"
    try:
        for way in WAYS.values():
            way(*inputs).sum().backward()  # the gradient of a sum has strides of 0: no reason to be slow
            way(*inputs).transpose(1, 2).flatten(2).float().square().mean().backward()
        if slow:
            for way in WAYS.values():
                raises(rootdk.SlowKernelWarning, "cast q, k and v", lambda way=way: way(q, k, v))
        slow = rootdk.explain_plan(*quiet, dropout=0.5, backward=True).startswith("slow: ")
        out = rootdk.attention(*inputs, dropout=0.5)
        if slow:
            raises(rootdk.SlowKernelWarning, "backward", lambda: out.sum().backward())
        os.environ["ROOTDK_SLOW"] = "ignore"
        assert slow_words(lambda: rootdk.attention(q, k, v)) == []
    finally:
        del os.environ["ROOTDK_SLOW"]


def test_the_gradient_of_a_sum_is_that_of_ones():
    for dim in (64, 100, 12):
        inputs = qkv(dim=dim, grad=True)
        want = torch.autograd.grad(rootdk.attention(*inputs), inputs, torch.ones_like(inputs[0]))
        for ours, exact in zip(torch.autograd.grad(rootdk.attention(*inputs).sum(), inputs), want):
            assert torch.equal(ours, exact), dim


def test_every_device_is_asked_about_itself():
    for device in range(torch.cuda.device_count()):
        assert _cuda.missing(device, lambda: torch.cuda.device(device)) == rootdk.torch._gpu_missing(device)
        q, k, v = (x.to(device) for x in qkv())
        assert torch.cuda.get_device_name(device) in rootdk.explain_plan(q, k, v)
        assert rootdk.torch.scaled_dot_product_attention(q, k, v).device == q.device


def test_qk_norm():
    q, k, v = qkv(dtype=torch.float32)
    unit = [x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k)]
    assert torch.allclose(rootdk.attention(q, k, v, qk_norm="rms"), rootdk.attention(*unit, v), atol=1e-5)


def test_empty():
    q, k, v = (
        torch.zeros(s, device="cuda", dtype=torch.bfloat16) for s in ((0, 2, 8, 16), (0, 2, 8, 16), (0, 2, 8, 16))
    )
    assert rootdk.attention(q, k, v).shape == (0, 2, 8, 16)
    q, k = torch.zeros(1, 2, 8, 16, device="cuda"), torch.zeros(1, 2, 0, 16, device="cuda")
    assert torch.equal(rootdk.attention(q, k, k), q)


def test_what_is_wrong_is_said():
    q, k, v = qkv()
    raises(ValueError, "k: lies on cpu, but q on cuda:0", lambda: rootdk.attention(q, k.cpu(), v))
    raises(
        ValueError, "mask: lies on cpu", lambda: rootdk.attention(q, k, v, mask=torch.ones(130, 130, dtype=torch.bool))
    )
    raises(ValueError, "q: dtype is f64, but on a GPU", lambda: rootdk.attention(q.double(), k.double(), v.double()))
    raises(ValueError, "k: ", lambda: rootdk.attention(q, k.float(), v))
    raises(TypeError, "q: dtype is torch.int32", lambda: rootdk.attention(q.int(), k.int(), v.int()))
    raises(ValueError, "k: dim_qk is 32, but q has 64", lambda: rootdk.attention(q, k[..., :32], v))
    raises(ValueError, "k: lies on cpu", lambda: torch.ops.rootdk.attention(q, k.cpu(), v))
    raises(ValueError, "key_lengths", lambda: rootdk.attention(q, k, v, key_lengths=[1, 2, 3]))
    raises(ValueError, "scale", lambda: rootdk.attention(q, k, v, scale="no such rule"))
    raises(TypeError, "k: ndarray", lambda: rootdk.attention(q, np.zeros((2, 4, 130, 64), np.float32), v))
    raises(ValueError, "diagonal: sideways", lambda: rootdk.attention(q, k, v, causal=True, diagonal="sideways"))
    assert torch.equal(rootdk.attention(q, k, v), rootdk.attention(q, k, v))  # and nothing is broken by it


def test_arrays_of_others():
    q, k, v = qkv(dtype=torch.float16)
    want = rootdk.attention(q, k, v, causal=True)
    for name in ("cupy", "jax"):
        try:
            module = __import__(name)
        except ImportError:
            continue
        if name == "jax" and module.default_backend() != "gpu":
            continue
        xp = module.numpy if name == "jax" else module
        arrays = [xp.from_dlpack(x) for x in (q, k, v)]
        out, stats = rootdk.attention(*arrays, causal=True, stats=StatsOptions("full", rows=["entropy"]))
        assert type(out) is type(arrays[0]) and out.dtype == arrays[0].dtype and tuple(out.shape) == tuple(want.shape)
        assert torch.allclose(torch.from_dlpack(out).float(), want.float(), atol=2.0**-10)
        assert stats.entropy.shape == (2, 4) and type(stats.rows.entropy) is type(out)
        assert np.allclose(
            torch.from_dlpack(stats.rows.entropy).double().mean(-1).cpu(), stats.entropy * 129 / 130, rtol=1e-4
        )
        assert torch.equal(torch.from_dlpack(rootdk.attention(*arrays, causal=True)), want)
        normed = torch.from_dlpack(rootdk.attention(*arrays, qk_norm="rms"))
        assert torch.allclose(normed.float(), rootdk.attention(q, k, v, qk_norm="rms").float(), atol=2.0**-9)
        mask = xp.asarray(np.tril(np.ones((130, 130), bool)))
        assert torch.allclose(
            torch.from_dlpack(rootdk.attention(*arrays, mask=mask)).float(), want.float(), atol=2.0**-10
        )
        assert "kernel: " in rootdk.explain_plan(*arrays)
        host = np.zeros((2, 4, 130, 64), np.float16)
        raises(ValueError, "k: does not lie on a CUDA device", lambda: rootdk.attention(arrays[0], host, arrays[2]))
        raises(ValueError, "k: dim_qk is 32", lambda: rootdk.attention(arrays[0], arrays[1][..., :32], arrays[2]))
    if "cupy" in sys.modules:
        stream = sys.modules["cupy"].cuda.Stream(non_blocking=True)
        with stream:
            out = rootdk.attention(*(sys.modules["cupy"].from_dlpack(x) for x in (q, k, v)), causal=True)
        stream.synchronize()
        assert torch.equal(torch.from_dlpack(out), want)


def test_another_thread_than_the_first():
    q, k, v = qkv()
    want, found = rootdk.attention(q, k, v), []
    thread = threading.Thread(target=lambda: found.append(rootdk.attention(q, k, v, stats="basic")))
    thread.start()
    thread.join()
    assert torch.equal(found[0][0], want) and found[0][1].raw_max.shape == (2, 4)


def test_causes_are_those_of_the_finite_rows():
    for dtype, dim, lengths in (
        (torch.bfloat16, 128, None),
        (torch.bfloat16, 64, [1300, 700]),
        (torch.float16, 65, None),
        (torch.float32, 36, [0, 5]),
        (torch.float32, 257, None),
        (torch.bfloat16, 1028, None),
    ):
        q, k, v = qkv(batch=2, heads=4, heads_kv=2, len_q=700, len_kv=1300, dim=dim, dtype=dtype, seed=5)
        k = k + torch.arange(dim, device="cuda", dtype=dtype) / 4  # means of many sigmas
        k[0, 1, 4] += 100  # a key unlike the others
        for damaged in (False, True):
            if damaged:
                q[0, 1, 17, 3], q[1, 0, 650:660, dim - 1], k[0, 0, 600, 0], k[1, 1, 2, dim - 1] = (
                    torch.nan,
                    -torch.inf,
                    torch.inf,
                    torch.nan,
                )
                k[1, 0, 650] = 6e4  # the row in the middle, about which sums would be
                k[1, 0, 650, 0] = torch.inf
                if dtype != torch.float16:
                    q[1, 3, 99, 1] = k[0, 0, 1200, 2] = 1e30  # its square is beyond f32
            _, stats = rootdk.attention(q, k, v, key_lengths=lengths, stats="full")
            for b in range(2):
                for h in range(4):
                    rows, keys = q[b, h].double(), k[b, h // 2, : None if lengths is None else lengths[b]].double()
                    rows, keys = rows[rows.isfinite().all(-1)], keys[keys.isfinite().all(-1)]
                    mean = keys.mean(0) if len(keys) else keys.new_zeros(dim)
                    # queries that see no key do not count
                    root = rows.square().mean().sqrt() if lengths is None or lengths[b] else 0.0
                    want = (root, (keys - mean).square().mean().sqrt() if len(keys) else 0.0, mean.norm())
                    found = (stats.sigma_q[b, h], stats.sigma_k[b, h], stats.key_mean_norm[b, h])
                    # Squares are within 64 roundings of f32, as in tests/cuda/sweep.cc, and their roots within half of
                    # that.
                    assert np.allclose(found, [float(x) for x in want], rtol=32 * 2.0**-24), (
                        dtype,
                        dim,
                        damaged,
                        b,
                        h,
                        found,
                        want,
                    )


def test_the_last_tiles_may_be_divided():
    """On a card of 132 multiprocessors a few tiles are left for a last round; a row has the same bits in a tile of its
    own as in any other."""
    slopes = [2.0 ** -(h % 8) for h in range(23)]
    for batch, length, dim, options in (
        (2, 1100, 128, {}),
        (2, 1100, 64, {}),
        (2, 1100, 256, {}),
        (6, 500, 64, {}),
        (2, 1100, 128, {"softcap": 20.0}),
        (2, 1100, 128, {"alibi": slopes}),
    ):
        q, k, v = qkv(batch=batch, heads=23, len_q=length, dim=dim, seed=7)
        out, stats = rootdk.attention(q, k, v, stats="basic", **options)
        for b in range(batch):
            alone, its = rootdk.attention(q[b : b + 1], k[b : b + 1], v[b : b + 1], stats="basic", **options)
            assert torch.equal(out[b : b + 1], alone) and np.array_equal(stats.raw_max[b : b + 1], its.raw_max), (
                length,
                dim,
                options,
                b,
            )
        s = q[-1, -1].double() @ k[-1, -1].double().mT / dim**0.5
        if "softcap" in options:
            s = options["softcap"] * torch.tanh(s / options["softcap"])
        elif options:
            place = torch.arange(length, device="cuda")
            s = s - slopes[-1] * (place[:, None] - place).abs()
        want = torch.softmax(s, -1) @ v[-1, -1].double()
        # P and the output are rounded to bf16: half a unit of 2⁻⁸ each, of what P·V and the output are at most.
        assert float((out[-1, -1] - want).abs().max()) <= 2.0**-7 * float(v[-1, -1].abs().max()), (length, dim, options)


def test_tiles_beside_sampled_rows_may_be_divided():
    # rounds enough for sampled rows to get clusters
    q, k, v = qkv(batch=4, heads=16, len_q=4096, len_kv=300, dim=128, seed=8)
    want, full = rootdk.attention(q, k, v, stats="full")
    out, sampled = rootdk.attention(q, k, v, stats=StatsOptions("full", sample=8))
    rows = torch.arange(4096, device="cuda") // 64 % 8 == 0
    assert torch.equal(out[:, :, rows], want[:, :, rows])  # the same kernel
    assert torch.equal(out[:, :, ~rows], rootdk.attention(q, k, v)[:, :, ~rows])  # and the other one
    assert (sampled.rows_sampled == 512).all() and np.array_equal(sampled.raw_max, full.raw_max)


def test_statistics_by_the_block_are_those_of_rows():
    q, k, v = qkv(batch=3, heads=4, len_q=1000, len_kv=200, seed=3)
    lengths = [200, 1, 0]  # heads whose rows all count, are all short, see nothing
    _, full = rootdk.attention(q, k, v, key_lengths=lengths, stats="full")
    for options in ("basic", StatsOptions("full", sample=4, sample_offset=1, first_query=37)):
        _, stats = rootdk.attention(q, k, v, key_lengths=lengths, stats=options)
        for name in ("rows_masked", "rows_short", "rows_not_finite", "raw_max", "score_max"):
            assert np.array_equal(stats[name], full[name]), (name, stats[name], full[name])
        for name in ("mean_p_max", "mean_lse"):
            assert np.allclose(stats[name], full[name], rtol=1e-6, equal_nan=True), name
    assert (
        (full.rows_masked[2] == 1000).all() and (full.rows_short[1] == 1000).all() and (stats.row_count == 1000).all()
    )
    blocks = (37 + np.arange(1000)) // 64 % 4 == 1
    assert (stats.rows_sampled[0] == blocks.sum()).all()


def test_a_plan_says_what_will_run():
    q, k, v = qkv(dim=128)
    words = rootdk.explain_plan(q, k, v, causal=True)
    assert "forward in bf16" in words and "kernel: " in words and "sm_" in words
    assert "backward" in rootdk.explain_plan(q, k, v, backward=True)
    assert "plain" in rootdk.explain_plan(q.float(), k.float(), v.float())


class Counted:
    """How often something in _cuda was called."""

    def __init__(self, name):
        self.name, self.count = name, 0

    def __enter__(self):
        self.real = getattr(_cuda, self.name)

        def counting(*args, **kwargs):
            self.count += 1
            return self.real(*args, **kwargs)

        setattr(_cuda, self.name, counting)
        return self

    def __exit__(self, *exception):
        setattr(_cuda, self.name, self.real)


class Layer(torch.nn.Module):
    def __init__(self, heads=4, dim=64, causal=True):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.project = torch.nn.Linear(heads * dim, 3 * heads * dim)
        self.out = torch.nn.Linear(heads * dim, heads * dim)

    def forward(self, x):
        batch, length, _ = x.shape
        self.q, self.k, v = (
            y.view(batch, length, self.heads, -1).transpose(1, 2) for y in self.project(x).chunk(3, -1)
        )
        return x + self.out(
            F.scaled_dot_product_attention(self.q, self.k, v, is_causal=self.causal).transpose(1, 2).flatten(2)
        )


def small_model(dtype=torch.bfloat16, causal=True):
    torch.manual_seed(0)
    return torch.nn.Sequential(*(Layer(causal=causal) for _ in range(2))).cuda().to(dtype)


def test_watch_takes_statistics_from_the_fused_call():
    model = small_model()
    x = torch.randn(2, 200, 256, device="cuda", dtype=torch.bfloat16)
    want = model(x)
    want.float().square().mean().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with Counted("forward") as calls, Counted("backward") as back, rootdk.watch(model, rows=256) as w:
        out = model(x)
        out.float().square().mean().backward()
    fast = _cuda.is_fast(
        Problem(), *(rootdk.torch._view("x", y, y) for y in (model[0].q.detach().contiguous(),) * 3), 0
    )
    assert (calls.count, back.count) == ((2, 2) if fast else (0, 0))
    # Both kernels round P and the output to bf16: two units of that on the way to the loss, through two layers.
    assert float((out - want).abs().max()) <= 2.0**-6 * float(want.abs().max())
    for ours, theirs in zip((p.grad for p in model.parameters()), gradients):
        assert float((ours - theirs).abs().max()) <= 2.0**-5 * float(theirs.abs().max())
    assert w.layers == ["0", "1"]
    hidden = torch.ones(200, 200, dtype=torch.bool, device="cuda").triu(1)
    s = (model[0].q.double() @ model[0].k.double().mT / 8).masked_fill(hidden, -torch.inf)
    p = torch.softmax(s, -1)
    rows = [r for r in w.to_dicts() if r["layer"] == "0"]
    entropy = torch.special.entr(p).sum(-1)[:, :, 1:].mean((0, 2)).tolist()
    for head, r in enumerate(rows):
        assert abs(r["raw_max"] - float(s[:, head].max())) <= 1e-4 * abs(r["raw_max"])
        assert abs(r["entropy"] - entropy[head]) <= 1e-3 * entropy[head]
        assert abs(r["mean_p_max"] - float(p.amax(-1)[:, head, 1:].mean())) <= 1e-3
        assert np.isfinite(
            [r[name] for name in ("sigma_q", "alignment", *(("d_scores", "d_q", "d_k") if fast else ()))]
        ).all()


def test_watch_samples_rows_and_keeps_maxima_exact():
    model = small_model(causal=False).eval()
    x = torch.randn(1, 2048, 256, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad(), rootdk.watch(model, rows=128) as w:
        model(x)
    s = model[1].q.double() @ model[1].k.double().mT / 8
    entropy = torch.special.entr(torch.softmax(s, -1)).sum(-1).mean((0, 2))
    for head, r in enumerate(r for r in w.to_dicts() if r["layer"] == "1"):
        assert abs(r["raw_max"] - float(s[:, head].max())) <= 1e-4 * abs(r["raw_max"])
        assert abs(r["entropy"] - float(entropy[head])) <= 0.02 * float(entropy[head])


def test_watch_waits_for_nothing_while_the_model_runs():
    model = small_model()
    x = torch.randn(4, 512, 256, device="cuda", dtype=torch.bfloat16)
    with rootdk.watch(model) as w:
        model(x).float().sum().backward()  # warm
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            busy = torch.cuda.Event()
            torch.cuda._sleep(200_000_000)
            model(x).float().sum().backward()
            busy.record()
            waited = busy.query()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        fast = bool(look._fast) and all(look._fast.values())
        assert not waited or not fast
        assert w.step == 1 and {r["step"] for r in w.to_dicts()} == {0, 1}


def test_watch_falls_back_beside_the_models_own_kernel():
    model = small_model(dtype=torch.float32).eval()  # no fast kernel takes f32
    x = torch.randn(2, 100, 256, device="cuda")
    want = model(x)
    with Counted("forward") as calls, rootdk.watch(model, rows=100) as w:
        out = model(x)
        out.square().mean().backward()
    assert calls.count == 0 and torch.equal(out, want)
    s = model[0].q.double() @ model[0].k.double().mT / 8
    hidden = torch.ones(100, 100, dtype=torch.bool, device="cuda").triu(1)
    raw = s.masked_fill(hidden, -torch.inf).amax((0, 2, 3)).tolist()
    found = [r["raw_max"] for r in w.to_dicts() if r["layer"] == "0"]
    assert np.allclose(found, raw, rtol=1e-4)
    model = small_model()
    x = x.bfloat16()
    want = model(x)
    with Counted("forward") as calls, rootdk.watch(model, beside=True):
        assert torch.equal(model(x), want) and calls.count == 0


def test_watch_under_a_checkpoint():
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(torch.nn.Module):
        def __init__(self, reentrant):
            super().__init__()
            self.layers, self.reentrant = small_model(), reentrant

        def forward(self, x):
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=self.reentrant)
            return x

    for reentrant in (False, True):
        model = Checkpointed(reentrant)
        x = torch.randn(2, 130, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        model(x).float().square().mean().backward()
        want = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        with rootdk.watch(model) as w:
            model(x).float().square().mean().backward()
        for ours, theirs in zip((p.grad for p in model.parameters()), want):
            assert float((ours - theirs).abs().max()) <= 2.0**-5 * float(theirs.abs().max())
        assert w.layers == ["layers.0", "layers.1"] and len(w.to_dicts()) == 8


def test_watch_on_transformers():
    try:
        from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel
    except ImportError:
        return
    torch.manual_seed(0)
    ids = torch.randint(0, 97, (2, 150), device="cuda")
    gpt = (
        GPT2LMHeadModel(
            GPT2Config(
                vocab_size=97,
                n_positions=256,
                n_embd=256,
                n_layer=2,
                n_head=4,
                attn_pdrop=0.0,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
            )
        )
        .cuda()
        .bfloat16()
        .train()
    )
    bert = (
        BertModel(
            BertConfig(
                vocab_size=97,
                hidden_size=256,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=512,
                max_position_embeddings=256,
            )
        )
        .cuda()
        .bfloat16()
        .eval()
    )
    with torch.no_grad():
        want = gpt(ids).logits
    with Counted("forward") as calls, rootdk.watch(gpt) as w:
        out = gpt(ids, labels=ids)
        out.loss.backward()
    assert len(w.layers) == 2 and len(w.to_dicts()) == 8 and calls.count in (0, 2)
    assert float((out.logits - want).abs().max()) <= 2.0**-5 * float(want.abs().max())
    assert all(np.isfinite(r["entropy"]) and r["raw_max"] > -1e3 for r in w.to_dicts())
    padded = torch.ones_like(ids)
    padded[1, 100:] = 0
    for mask in (None, padded):
        with torch.no_grad():
            want = bert(ids, attention_mask=mask).last_hidden_state
            with rootdk.watch(bert) as w:
                out = bert(ids, attention_mask=mask).last_hidden_state
        assert len(w.layers) == 2 and np.isfinite([r["entropy"] for r in w.to_dicts()]).all()
        assert float((out - want)[0].abs().max()) <= 2.0**-5 * float(want.abs().max())


def main() -> int:
    failed = 0
    for name, test in list(globals().items()):
        if name.startswith("test_") and isinstance(test, types.FunctionType):
            try:
                test()
                print("ok  ", name, flush=True)
            except Exception as error:
                failed += 1
                print("FAIL", name, type(error).__name__, str(error)[:400], flush=True)
                if os.environ.get("ROOTDK_TEST_TRACE"):
                    import traceback

                    traceback.print_exc()
    print(f"{failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(main() != 0)
