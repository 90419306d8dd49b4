"""Under torch.autocast every way in gives the dtype that PyTorch's own attention gives, and its values. On a GPU:
test_cuda.py."""

from __future__ import annotations

import pytest
import rootdk
import rootdk.torch as rt
import torch
import torch.nn.functional as F
from rootdk._watch import transformers as _transformers

SHAPE = (2, 4, 40, 16)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(3)


def draw(dtype=torch.float32, grad=False):
    return [torch.randn(SHAPE).to(dtype).requires_grad_(grad) for _ in range(3)]


def by_transformers(q, k, v, bias=None):
    module = torch.nn.Module()
    module.is_causal = False
    return _transformers._transformers_attention(module, q, k, v, bias)[0].transpose(1, 2)


WAYS = {
    "rootdk.attention": lambda q, k, v, bias=None: rootdk.attention(q, k, v, bias=bias),
    "rootdk.torch.attention": lambda q, k, v, bias=None: rt.attention(q, k, v, bias=bias, stats="basic")[0],
    "scaled_dot_product_attention": lambda q, k, v, bias=None: rt.scaled_dot_product_attention(q, k, v, attn_mask=bias),
    "the operator": lambda q, k, v, bias=None: torch.ops.rootdk.attention(q, k, v, None, None, bias)[0],
    "transformers": by_transformers,
}
each_way = pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))


def near(ours, theirs, exact, dtype):
    """No worse than twice theirs, plus what nobody avoids: P and the result rounded to the dtype."""
    unit = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-22, torch.float64: 2.0**-50}[dtype]
    return float((ours.double() - exact).abs().max()) <= 2 * float(
        (theirs.double() - exact).abs().max()
    ) + 2 * unit * float(exact.abs().max())


@each_way
@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("with_bias", [False, True])
def test_as_pytorch(way, narrow, given, with_bias):
    q, k, v = draw(given)
    bias = torch.randn(1, 4, 40, 40).to(given) if with_bias else None
    with torch.autocast("cpu", dtype=narrow):
        ours, theirs = way(q, k, v, bias), F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    assert ours.dtype == theirs.dtype == (given if given == torch.float64 else narrow)
    wide = [x if given == torch.float64 else x.to(narrow) for x in (q, k, v)]
    exact = F.scaled_dot_product_attention(
        *(x.double() for x in wide), attn_mask=None if bias is None else bias.to(wide[0].dtype).double()
    )
    assert near(ours, theirs, exact, ours.dtype)


@each_way
def test_gradients_have_the_dtype_of_the_inputs(way):
    inputs = [*draw(grad=True), torch.randn(1, 4, 40, 40, requires_grad=True)]
    with torch.autocast("cpu"):
        out = way(*inputs)
        assert out.dtype == torch.bfloat16
        d_o = torch.randn_like(out)
    ours = torch.autograd.grad(out, inputs, d_o)
    with torch.autocast("cpu"):
        theirs = torch.autograd.grad(F.scaled_dot_product_attention(*inputs[:3], attn_mask=inputs[3]), inputs, d_o)
    wide = [x.detach().bfloat16().double().requires_grad_() for x in inputs]
    exact = torch.autograd.grad(F.scaled_dot_product_attention(*wide[:3], attn_mask=wide[3]), wide, d_o.double())
    for x, y, e in zip(ours, theirs, exact):
        assert x.dtype == torch.float32 == y.dtype
        assert near(x, y, e, torch.bfloat16)


@each_way
def test_regions_that_are_off_or_nested(way):
    q, k, v = draw()
    plain = way(q, k, v)
    assert plain.dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.autocast("cpu", enabled=False):
            assert torch.equal(way(q, k, v), plain)
        with torch.autocast("cpu", dtype=torch.float16):
            assert way(q, k, v).dtype == torch.float16
        narrow = way(q, k, v)
        assert narrow.dtype == torch.bfloat16
        assert torch.equal(narrow, way(*(x.bfloat16() for x in (q, k, v))))
    assert torch.equal(way(q, k, v), plain)


def test_mixed_dtypes_are_one_afterwards():
    q, k, v = draw()
    with torch.autocast("cpu"):
        want = rt.scaled_dot_product_attention(q, k, v)
        assert torch.equal(rt.scaled_dot_product_attention(q, k.bfloat16(), v), want)
        assert torch.equal(rootdk.attention(q.bfloat16(), k, v), want)
        for call in (rt.scaled_dot_product_attention, F.scaled_dot_product_attention):
            with pytest.raises(RuntimeError, match="same dtype"):
                call(q.double(), k, v)
        mask = torch.rand(40, 40) < 0.8
        assert torch.equal(
            rt.scaled_dot_product_attention(q, k, v, attn_mask=mask), rootdk.attention(q, k, v, mask=mask)
        )


def test_scales_and_sinks_stay_as_they_are():
    q, k, v = draw()
    scale = torch.tensor([0.1, 0.2, 0.3, 0.4], requires_grad=True)
    sink = torch.tensor([0.3, 1.1, -0.7, 0.2], requires_grad=True)
    with torch.autocast("cpu"):
        out, lse = rt.attention(q, k, v, scale=scale, sink=sink, return_lse=True)
    want, want_lse = rt.attention(*(x.bfloat16() for x in (q, k, v)), scale=scale, sink=sink, return_lse=True)
    assert torch.equal(out, want) and torch.equal(lse, want_lse) and lse.dtype == torch.float32
    (out.float().sum() + lse.sum()).backward()
    assert scale.grad.dtype == sink.grad.dtype == torch.float32


@pytest.mark.parametrize("backend", ["aot_eager", "eager"])
def test_compiled(backend):
    q, k, v = draw(grad=True)

    def inside(q, k, v):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (
                rootdk.attention(q, k, v, causal=True),
                rt.scaled_dot_product_attention(q, k, v),
                F.scaled_dot_product_attention(q, k, v),
            )

    compiled = torch.compile(inside, fullgraph=True, backend=backend)
    ours, sdpa, theirs = compiled(q, k, v)
    assert ours.dtype == sdpa.dtype == theirs.dtype == torch.bfloat16
    for x, want in zip((ours, sdpa), inside(q, k, v)):
        assert torch.equal(x, want)
    for gradient in torch.autograd.grad(ours.float().sum(), (q, k, v)):
        assert gradient.dtype == torch.float32

    def outside(q, k, v):
        return rootdk.attention(q, k, v)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(torch.compile(outside, fullgraph=True, backend=backend)(q, k, v), outside(q, k, v))


def test_a_plan_is_that_of_the_cast():
    q, k, v = draw()
    assert rootdk.explain_plan(q, k, v).startswith("forward in f32")
    with torch.autocast("cpu"):
        assert rootdk.explain_plan(q, k, v, bias=torch.zeros(40, 40)).startswith("forward in bf16")


def test_a_watch_sees_what_was_computed():
    q, k, v = draw(grad=True)
    with torch.autocast("cpu"):
        want = F.scaled_dot_product_attention(q, k, v)
        with rootdk.watch() as w:
            out = F.scaled_dot_product_attention(q, k, v)
    assert out.dtype == want.dtype == torch.bfloat16 and w.stats("attention").raw_max.shape == (1, 4)
    out.float().sum().backward()
    assert q.grad.dtype == torch.float32
