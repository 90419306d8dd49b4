"""The torch operator: schema, fake kernel, gradients of everything learned, torch.compile; refusals."""

from __future__ import annotations

import numpy as np
import pytest
import rootdk
import rootdk.torch as rt
import torch
from conftest import plain
from rootdk import QkNorm, StatsOptions
from rootdk._description import Description
from rootdk._structure import Structure

F64 = torch.float64


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(5)


def draw(*shape, dtype=torch.float32, grad=False):
    return torch.randn(*shape, dtype=dtype).requires_grad_(grad)


def qkv(heads=2, heads_kv=2, len_q=3, len_kv=4, dim=4, dim_v=3, dtype=F64, grad=True):
    return (
        draw(1, heads, len_q, dim, dtype=dtype, grad=grad),
        draw(1, heads_kv, len_kv, dim, dtype=dtype, grad=grad),
        draw(1, heads_kv, len_kv, dim_v, dtype=dtype, grad=grad),
    )


ARGUMENTS = [
    dict(),
    dict(causal=True),
    dict(causal=True, diagonal="top_left", window=(1, None)),
    dict(softcap=1.5),
    dict(sink=0.5),
    dict(scale="sqrt_dk*ssmax(0.43)"),
    dict(alibi=[0.5, 0.25]),
    dict(key_lengths=[3]),
    dict(key_starts=[2], query_lengths=[2]),
    dict(key_starts=[1], key_lengths=[3], query_lengths=[2], causal=True, diagonal="last_key"),
    dict(documents=([0, 1, 3], [0, 2, 4])),
    dict(documents=([[0, 1, 3]], [[0, 2, 4]]), causal=True),
    dict(dropout=0.4, seed=9),
    dict(qk_norm="rms", scale=1.0),
    dict(qk_norm=QkNorm("layer", q_gain=[1.0, 2.0, 0.5, 1.5])),
]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
def test_gradients_of_q_k_v(arguments):
    assert torch.autograd.gradcheck(lambda q, k, v: rootdk.attention(q, k, v, **arguments), qkv())


def test_gradients_with_shared_key_heads():
    assert torch.autograd.gradcheck(lambda q, k, v: rootdk.attention(q, k, v, causal=True), qkv(heads=4, heads_kv=2))


@pytest.mark.parametrize("shape", [(1, 2, 3, 4), (1, 3, 4), (3, 4), (1, 1, 1, 4), (1, 2, 3, 1)])
def test_gradients_of_a_bias_are_summed_where_it_is_repeated(shape):
    bias = draw(*shape, dtype=F64, grad=True)
    if len(shape) == 3:
        bias = draw(2, 3, 4, dtype=F64, grad=True)
    assert torch.autograd.gradcheck(lambda q, k, v, b: rootdk.attention(q, k, v, bias=b), (*qkv(), bias))


def test_gradients_of_scale_sink_and_lse():
    # Scale and sink are f32 inside, so steps of 2^-10 from multiples of it: exact. A difference of that size is off by
    # its square.
    scale = torch.tensor([0.5, 0.25], dtype=F64, requires_grad=True)
    sink = torch.tensor([0.5, -0.25], dtype=F64, requires_grad=True)
    q, k, v = (x.detach() for x in qkv())
    assert torch.autograd.gradcheck(
        lambda c, z: rt.attention(q, k, v, scale=c, sink=z, return_lse=True), (scale, sink), eps=2**-10, atol=1e-5
    )
    assert torch.autograd.gradcheck(lambda q, k, v: rt.attention(q, k, v, return_lse=True), qkv())


def test_gradients_of_norm_gains():
    gain = draw(2, 4, dtype=F64, grad=True)
    q, k, v = (x.detach() for x in qkv())
    assert torch.autograd.gradcheck(lambda g: rootdk.attention(q, k, v, qk_norm=QkNorm("rms", q_gain=g)), (gain,))


def test_one_learned_scale_for_all_heads():
    c = torch.tensor(0.5, requires_grad=True)
    q, k, v = (x.detach().float() for x in qkv())
    rootdk.attention(q, k, v, scale=c).square().sum().backward()
    other = torch.tensor(0.5, requires_grad=True)
    torch.nn.functional.scaled_dot_product_attention(q * other, k, v, scale=1.0).square().sum().backward()
    torch.testing.assert_close(c.grad, other.grad, rtol=1e-4, atol=1e-6)


def packed(**arguments):
    """What the operator takes beside its tensors."""
    return dict(zip(("numbers", "reals"), Description(**arguments).packed()))


OPERATOR_ARGUMENTS = [
    {},
    dict(structure=Structure(causal=True)),
    dict(softcap=2.0, factor=0.5),
    dict(rule="sqrt_dk*ssmax(0.43)", structure=Structure(causal=True, diagonal="top_left")),
    dict(structure=Structure.of(window=[1, -1])),
    dict(alibi=(0.5, 0.5)),
    dict(dropout=0.25, seed=4),
    dict(structure=Structure.of(key_starts=[1], key_lengths=[3], diagonal="last_key", causal=True)),
]


@pytest.mark.parametrize("arguments", OPERATOR_ARGUMENTS, ids=str)
def test_the_operator_is_well_formed(arguments):
    torch.library.opcheck(torch.ops.rootdk.attention.default, qkv(dtype=torch.float32), packed(**arguments))


def test_the_operator_is_well_formed_with_everything_learned():
    learned = dict(
        scale=draw(2, grad=True),
        bias=draw(1, 2, 3, 4, grad=True),
        sink=draw(2, grad=True),
        mask=torch.rand(1, 1, 3, 4) < 0.8,
    )
    torch.library.opcheck(torch.ops.rootdk.attention.default, qkv(dtype=torch.float32), learned)


@pytest.mark.parametrize("dynamic, backend", [(False, "aot_eager"), (True, "aot_eager"), (False, "inductor")])
def test_it_compiles_into_one_graph(request, dynamic, backend):
    if backend == "inductor":
        request.getfixturevalue("compiler")

    def loss(q, k, v, c):
        return (rootdk.attention(q * 2, k, v, causal=True, scale=c) + 1).square().mean()

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, dynamic=dynamic, backend=backend)
    for length in (5, 9) if backend == "aot_eager" else (5,):
        one, two = [], []
        for f, gradients in ((loss, one), (compiled, two)):
            torch.manual_seed(length)
            q, k, v = qkv(len_q=length, len_kv=length, dtype=torch.float32)
            c = torch.tensor([0.5, 0.3], requires_grad=True)
            f(q, k, v, c).backward()
            gradients += [x.grad for x in (q, k, v, c)]
        for a, b in zip(one, two):
            # Inductor fuses the square and the mean around the operator: sums of 30 numbers in another order.
            torch.testing.assert_close(
                a, b, rtol=0 if backend == "aot_eager" else 1e-5, atol=0 if backend == "aot_eager" else 1e-6
            )


def test_pytorch_s_signature_compiles():
    q, k, v = (x.detach() for x in qkv(dtype=torch.float32))
    torch._dynamo.reset()
    f = torch.compile(
        lambda q, k, v: rt.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.5),
        fullgraph=True,
        backend="aot_eager",
    )
    assert torch.equal(f(q, k, v), rt.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_the_output_is_like_q(dtype):
    q, k, v = (x.detach().to(dtype) for x in qkv(heads=4, heads_kv=2, dim=16, dim_v=16))
    out = rootdk.attention(q, k, v)
    exact = plain(*(x.double().numpy() for x in (q, k, v)))[0]
    assert out.dtype == dtype and out.shape == exact.shape
    # One rounding of an output of size below 4, and f32 sums of 4 numbers.
    unit = max(torch.finfo(dtype).eps, 2.0**-23 if dtype != F64 else 0)
    assert np.abs(out.double().numpy() - exact).max() <= 4 * unit


def test_no_strides_are_too_odd():
    q, k, v = (x.detach() for x in qkv(heads=3, heads_kv=3, len_q=7, len_kv=7, dim=8, dim_v=8, dtype=torch.float32))
    expected = rootdk.attention(q, k, v)
    odd = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    assert torch.equal(rootdk.attention(*odd), expected)
    packed = torch.stack([q, k, v], dim=-1)
    assert torch.equal(rootdk.attention(*packed.unbind(-1)), expected)
    one = k[:, :1].expand_as(k)
    assert torch.equal(rootdk.attention(q, one, v), rootdk.attention(q, one.contiguous(), v))


def test_statistics_and_gradients_together():
    q, k, v = qkv(len_q=70, len_kv=70, dim=8, dtype=torch.float32)
    out, stats = rootdk.attention(q, k, v, stats=StatsOptions("full", rows=True))
    out.sum().backward()
    assert q.grad is not None and stats.entropy.shape == (1, 2)
    assert torch.equal(stats.rows.lse, rt.attention(q, k, v, return_lse=True)[1].detach())
    assert isinstance(stats.rows.entropy, torch.Tensor)
    assert not rt._collectors


def test_dropout_follows_torch_s_generator():
    q, k, v = (x.detach() for x in qkv(len_q=30, len_kv=30))
    torch.manual_seed(1)
    a = rootdk.attention(q, k, v, dropout=0.5)
    b = rootdk.attention(q, k, v, dropout=0.5)
    torch.manual_seed(1)
    assert torch.equal(rootdk.attention(q, k, v, dropout=0.5), a) and not torch.equal(a, b)


def test_a_seed_may_be_a_tensor():
    for seed in (torch.tensor(7), torch.tensor([7]), torch.tensor([[7]])):
        inputs = qkv()
        twins = [x.detach().clone().requires_grad_() for x in inputs]
        out, want = rootdk.attention(*inputs, dropout=0.4, seed=seed), rootdk.attention(*twins, dropout=0.4, seed=7)
        assert torch.equal(out, want)
        (out.square().sum() + want.square().sum()).backward()
        assert all(torch.equal(x.grad, y.grad) for x, y in zip(inputs, twins))
    q, k, v = (x.detach() for x in qkv())
    big = rootdk.attention(q, k, v, dropout=0.4, seed=torch.tensor(-1))  # bits, as a GPU reads them
    assert torch.equal(big, torch.ops.rootdk.attention(q, k, v, seed=torch.tensor(-1), **packed(dropout=0.4))[0])
    torch.library.opcheck(
        torch.ops.rootdk.attention.default, tuple(qkv()), packed(dropout=0.25) | dict(seed=torch.tensor(4))
    )


def test_a_seed_that_changes_before_backward_is_noticed():
    seed = torch.tensor(7)
    out = rootdk.attention(*qkv(), dropout=0.4, seed=seed)
    seed += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_dropout_under_a_checkpoint_is_the_same_again():
    from torch.utils.checkpoint import checkpoint

    gradients = []
    for again in (False, True):
        torch.manual_seed(2)
        inputs = qkv(len_q=20, len_kv=20)
        call = lambda *x: rootdk.attention(*x, dropout=0.5)
        out = checkpoint(call, *inputs, use_reentrant=False) if again else call(*inputs)
        out.square().sum().backward()
        gradients.append([x.grad for x in inputs])
    assert all(torch.equal(a, b) for a, b in zip(*gradients))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_dropout_without_a_seed_compiles_into_one_graph(request, backend):
    if backend == "inductor":
        request.getfixturevalue("compiler")

    def f(q, k, v):
        return rootdk.attention(q, k, v, dropout=0.5), rt.scaled_dot_product_attention(q, k, v, dropout_p=0.5)

    torch._dynamo.reset()
    q, k, v = qkv(len_q=30, len_kv=30, dtype=torch.float32)
    compiled = torch.compile(f, fullgraph=True, backend=backend)
    torch.manual_seed(1)
    one, other = compiled(q, k, v)
    assert not torch.equal(one, other) and not torch.equal(one, compiled(q, k, v)[0])
    torch.manual_seed(1)
    assert torch.equal(one, compiled(q, k, v)[0])
    if backend == "aot_eager":  # inductor has a generator of its own
        torch.manual_seed(1)
        assert torch.equal(one, f(q, k, v)[0])
    # Backward drops what forward dropped: the output is linear in v, so v·dV is the sum of what it came from.
    (d_v,) = torch.autograd.grad(one.sum(), v)
    torch.testing.assert_close((d_v * v).sum(), one.sum())


X = torch.zeros(1, 2, 3, 4)
BAD = [
    (dict(k=np.zeros((1, 2, 3, 4), np.float32)), TypeError, "k: ndarray"),
    (dict(q=np.zeros((1, 2, 3, 4), np.float32)), TypeError, "q: ndarray"),
    (dict(q=X.int()), TypeError, "q: dtype is torch.int32"),
    (dict(k=X.double()), ValueError, "k: dtype is f64"),
    (dict(k=X.to("meta")), ValueError, "k: lies on meta"),
    (dict(q=X[0]), ValueError, "q: 3 axes"),
    (dict(v=X[0]), ValueError, "v: 3 axes"),
    (dict(k=torch.zeros(1, 2, 3, 5)), ValueError, "k: dim_qk is 5"),
    (dict(q=X.to_sparse()), TypeError, "q: layout"),
    (dict(mask=X), ValueError, "mask|allowed"),
    (dict(mask=np.ones((3, 3), bool)), TypeError, "mask: ndarray"),
    (dict(bias=X.double()), ValueError, "bias"),
    (dict(scale=torch.ones(3)), ValueError, r"scale: shape is \[3\]"),
    (dict(sink=torch.ones(3)), ValueError, r"sink: shape is \[3\]"),
    (dict(window=-2), ValueError, "window: -2"),
    (dict(seed=-1, dropout=0.5), ValueError, "seed"),
    (dict(seed=torch.tensor([1, 2]), dropout=0.5), ValueError, "seed: 2 elements of torch.int64, but one"),
    (
        dict(seed=torch.tensor(1.0), dropout=0.5),
        ValueError,
        "seed: 1 elements of torch.float32, but one of torch.int64",
    ),
    (
        dict(seed=torch.zeros(1, dtype=torch.int64, device="meta"), dropout=0.5),
        ValueError,
        "seed: lies on meta, but q on cpu",
    ),
    (dict(alibi=[1.0]), ValueError, "alibi"),
    (dict(stats="all"), ValueError, "stats"),
    (dict(q=torch.zeros(1, 2, 3, 4, dtype=torch.complex64)), TypeError, "complex64"),
]


@pytest.mark.parametrize("change, error, words", BAD, ids=[str(next(iter(b[0]))) + str(n) for n, b in enumerate(BAD)])
def test_what_is_wrong_is_said(change, error, words):
    arguments = dict(q=X, k=X, v=X) | change
    q, k, v = (arguments.pop(name) for name in "qkv")
    with pytest.raises(error, match=words):
        rootdk.attention(q, k, v, **arguments)
    assert not rt._collectors


def test_a_tensor_that_learns_does_not_slip_through_numpy():
    """numpy cannot carry gradients: either torch does the work, or it is refused."""
    x, learns = np.zeros((1, 2, 3, 4), np.float32), draw(1, 2, 3, 4, grad=True)
    for q, k, v in ((x, learns, x), (learns, x, x), (x, x, learns)):
        with pytest.raises(TypeError, match="torch"):
            rootdk.attention(q, k, v)
    for name, values in (("bias", draw(3, 3, grad=True)), ("scale", draw(2, grad=True)), ("sink", draw(2, grad=True))):
        with pytest.raises(TypeError, match=name):
            rootdk.attention(x, x, x, **{name: values})
    with pytest.raises(TypeError, match="mask"):
        rootdk.attention(x, x, x, mask=torch.ones(3, 3, dtype=torch.bool))
    out = rootdk.attention(learns, learns, learns)
    assert out.requires_grad


def test_a_second_derivative_is_refused_not_wrong():
    q, k, v = qkv()
    (gradient,) = torch.autograd.grad(rootdk.attention(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(gradient.sum(), q)


def test_conform_finds_pytorch_s_own_attention_right():
    found = rootdk.conform(torch.nn.functional.scaled_dot_product_attention, mask="attn_mask", heads_kv=None)
    assert found.ok, found
    grouped = rootdk.conform(
        lambda q, k, v: rt.scaled_dot_product_attention(q, k, v, enable_gqa=True, is_causal=True),
        rootdk.Promise(causal="top_left"),
        framework="torch",
    )
    assert grouped.ok and grouped["gqa"].ok, grouped
    ours = rootdk.conform(
        lambda q, k, v, mask=None: rootdk.attention(q, k, v, causal=True, softcap=30.0, sink=1.0, mask=mask),
        rootdk.Promise(causal="bottom_right", softcap=30.0, sink=[1.0], bias=None),
        framework="torch",
        mask="mask",
    )
    assert ours.ok, ours


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_conform_finds_narrow_sums(dtype):
    def narrow(q, k, v):
        s = torch.zeros(*q.shape[:3], k.shape[2], dtype=torch.bfloat16)
        for d in range(q.shape[-1]):
            s = s + (q[..., d : d + 1] * k[..., d][:, :, None, :]).bfloat16()
        return torch.softmax(s.float() * q.shape[-1] ** -0.5, -1).to(v.dtype) @ v

    found = rootdk.conform(narrow, framework="torch", dtype=dtype, heads_kv=None)
    assert found["precision"].ok is False, found
