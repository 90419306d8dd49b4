"""torch.func, torch.vmap and forward-mode differentiation: of the functions, of the bare operator and of watched
models. The engine's own forward and backward, which other tests hold against differences, are what derivatives are held
against: ⟨w, J t⟩ = ⟨Jᵀw, t⟩."""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings

import pytest
import rootdk
import rootdk.torch as rt
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from rootdk import QkNorm, _kernels
from rootdk._description import Description
from rootdk._structure import Structure
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

F64 = torch.float64
NAN = float("nan")


def draw(*shape, dtype=F64, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def qkv(batch=2, heads=2, heads_kv=2, len_q=5, len_kv=5, dim=4, dim_v=3, dtype=F64):
    return (
        draw(batch, heads, len_q, dim, dtype=dtype, seed=1),
        draw(batch, heads_kv, len_kv, dim, dtype=dtype, seed=2),
        draw(batch, heads_kv, len_kv, dim_v, dtype=dtype, seed=3),
    )


def leaves(x):
    return torch.utils._pytree.tree_leaves(x)


def assert_close(found, wanted, tolerance=1e-12):
    found, wanted = leaves(found), leaves(wanted)
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def dot(a, b):
    return sum(float((x.double() * y.double()).sum()) for x, y in zip(a, b))


@st.composite
def problems(data):
    """(function of what is learned → (out, lse), what is learned)."""
    seed = data(st.integers(0, 2**20))
    batch, heads_kv, group = data(st.integers(1, 2)), data(st.integers(1, 2)), data(st.integers(1, 2))
    len_q, len_kv, heads = data(st.integers(1, 6)), data(st.integers(1, 6)), heads_kv * group
    learned = {
        "q": draw(batch, heads, len_q, 4, seed=seed) * data(st.sampled_from([1.0, 5.0])),
        "k": draw(batch, heads_kv, len_kv, 4, seed=seed + 1),
        "v": draw(batch, heads_kv, len_kv, 3, seed=seed + 2),
    }
    given = {}
    counts = False
    scale = data(
        st.sampled_from(
            [
                "default",
                "number",
                "tensor",
                "none",
                "dk(2)",
                "sqrt_dk*ssmax(0.43)",
                "entropy_invariant",
                "sqrt_dk*llama4",
                "yarn(4)*ssmax(0.3, 0.2)",
            ]
        )
    )
    if scale == "number":
        given["scale"] = 0.3
    elif scale == "tensor":
        learned["scale"] = draw(heads, seed=seed + 3).float().to(F64)  # the engine reads f32
    elif scale != "default":
        given["scale"], counts = scale, "ssmax" in scale or "entropy" in scale
    if data(st.booleans()):
        given["causal"] = True
    given["diagonal"] = data(st.sampled_from(["bottom_right", "top_left", -1, 2, 9000]))
    if data(st.booleans()):
        given["window"] = data(st.sampled_from([(1, -1), (0, 1), (-1, 0), 2, (None, 3)]))
    if data(st.booleans()):
        given["key_lengths"] = [data(st.integers(0, len_kv)) for _ in range(batch)]
        if data(st.booleans()):
            given["diagonal"] = "last_key"
    if data(st.booleans()):
        given["key_starts"] = [data(st.integers(0, len_kv)) for _ in range(batch)]
    if data(st.booleans()):
        given["query_lengths"] = [data(st.integers(0, len_q)) for _ in range(batch)]
    if given["diagonal"] != "last_key" and data(st.booleans()):
        cut = lambda length: sorted([0, data(st.integers(0, length)), data(st.integers(0, length))])
        each = data(st.booleans())
        given["documents"] = tuple([cut(n) for _ in range(batch)] if each else cut(n) for n in (len_q, len_kv))
    if not counts and data(st.booleans()):
        shape = data(st.sampled_from([(len_q, len_kv), (batch, 1, 1, len_kv), (heads, len_q, 1)]))
        given["mask"] = torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < 0.7
    if not counts and data(st.booleans()):
        shape = data(st.sampled_from([(len_q, len_kv), (batch, heads, len_q, len_kv), (1, heads, 1, len_kv)]))
        learned["bias"] = draw(*shape, seed=seed + 4)
        if data(st.booleans()):
            learned["bias"][..., 0] = -torch.inf
    if data(st.booleans()):
        given["alibi"] = [0.5 / (h + 1) for h in range(heads)]
    if data(st.booleans()):
        given["softcap"] = 1.5
    if data(st.booleans()):
        learned["sink"] = draw(heads, seed=seed + 5).float().to(F64)
    if data(st.booleans()):
        given["dropout"], given["seed"] = 0.4, data(st.sampled_from([0, 7, 2**40 + 3]))
    return (lambda values: rt.attention(return_lse=True, **dict(zip(learned, values)), **given)), list(learned.values())


@settings(max_examples=120, deadline=None)
@given(problems())
def test_derivatives_are_those_of_the_engine(problem):
    f, inputs = problem
    tangents = [draw(*x.shape, seed=50 + n) for n, x in enumerate(inputs)]
    given = [x.clone().requires_grad_() for x in inputs]
    out, lse = f(given)
    primal, moved = jvp(lambda *x: f(x), tuple(inputs), tuple(tangents))
    assert_close(primal, (out.detach(), lse.detach()))
    seen = torch.isfinite(lse.detach())
    weights = draw(*out.shape, seed=98), torch.where(seen, draw(*lse.shape, seed=99), 0.0)
    # The engine keeps a scale's gradient and a sink's in f32.
    engine = torch.autograd.grad([out, lse], given, list(weights), allow_unused=True)
    engine = [torch.zeros_like(x) if g is None else g for g, x in zip(engine, inputs)]
    narrow = [x.ndim == 1 for x in inputs]
    assert all(torch.isfinite(x).all() for x in moved)
    bound = 1e-11 * (1 + sum(float(g.norm()) for g in engine)) + sum(
        2e-6 * (1 + float(g.norm())) for g, n in zip(engine, narrow) if n
    )
    assert abs(dot(weights, moved) - dot(engine, tangents)) <= bound
    (_, pull) = vjp(lambda *x: f(x), *inputs)
    for found, wanted, is_narrow in zip(pull(weights), engine, narrow):
        assert_close(found, wanted, 1e-5 if is_narrow else 1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_narrow_types_have_the_engine_s_values(dtype):
    q, k, v = qkv(heads=4, dtype=dtype, len_q=40, len_kv=40, dim=16, dim_v=16)
    call = lambda q: rootdk.attention(q, k, v, causal=True, softcap=4.0, sink=0.5)
    wanted = call(q)
    found, moved = jvp(call, (q,), (torch.ones_like(q),))
    assert found.dtype == moved.dtype == dtype
    torch.testing.assert_close(found, wanted, rtol=2 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)


TOP_LEFT, _ = Description(Structure(causal=True, diagonal="top_left")).packed()
CALLS = {
    "attention": lambda q, k, v: rootdk.attention(q, k, v, causal=True, diagonal="top_left"),
    "sdpa": lambda q, k, v: rt.scaled_dot_product_attention(q, k, v, is_causal=True),
    "operator": lambda q, k, v: torch.ops.rootdk.attention(q, k, v, numbers=TOP_LEFT)[0],
}


@pytest.fixture(params=CALLS)
def call(request):
    return CALLS[request.param]


def theirs(q, k, v):
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def plain(q, k, v):
    hidden = torch.ones(q.shape[2], k.shape[2]).triu(1) > 0
    e = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf).exp()
    return (e / e.sum(-1, keepdim=True)) @ v


def duals(f, inputs, tangents):
    with forward_ad.dual_level():
        out = f(*(forward_ad.make_dual(x, t) for x, t in zip(inputs, tangents)))
        return tuple(x.clone() for x in forward_ad.unpack_dual(out))


def gradient_of_tangents(f, inputs, tangents):
    learned = [x.clone().requires_grad_() for x in inputs]
    return torch.autograd.grad(duals(f, learned, tangents)[1].square().sum(), learned)


def item(f):
    """f for one batch item."""
    return lambda *x: f(*(y[None] for y in x))[0]


TRANSFORMS = {
    "jvp": lambda f, x, t: jvp(f, x, t),
    "dual tensors": duals,
    "dual tensors that require grad": gradient_of_tangents,
    "jvp of jvp": lambda f, x, t: jvp(lambda *x: jvp(f, x, t)[1], x, t),
    "vjp": lambda f, x, t: vjp(f, *x)[1](t[2]),
    "grad": lambda f, x, t: grad(lambda *x: f(*x).square().sum(), (0, 1, 2))(*x),
    "jacrev": lambda f, x, t: jacrev(f, (0, 1, 2))(*x),
    "jacfwd": lambda f, x, t: jacfwd(f, (0, 1, 2))(*x),
    "hessian": lambda f, x, t: hessian(lambda *x: f(*x).square().sum(), (0, 1, 2))(*x),
    "vmap": lambda f, x, t: vmap(item(f))(*x),
    "vmap of vmap": lambda f, x, t: vmap(vmap(lambda *x: f(*(y[None, None] for y in x))[0, 0]))(*x),
    "vmap of one": lambda f, x, t: vmap(lambda k: f(x[0], k, x[2]), in_dims=-1, out_dims=1)(
        torch.stack([x[1], 2 * x[1]], -1)
    ),
    "vmap of grad": lambda f, x, t: vmap(grad(lambda *x: item(f)(*x).square().sum(), (0, 1, 2)))(*x),
    "grad of vmap": lambda f, x, t: grad(lambda *x: vmap(item(f))(*x).square().sum(), (0, 1, 2))(*x),
    "jvp of vmap": lambda f, x, t: jvp(lambda *x: vmap(item(f))(*x), x, t),
    "jacobian, vectorized": lambda f, x, t: torch.autograd.functional.jacobian(f, x, vectorize=True),
    "functionalize": lambda f, x, t: torch.func.functionalize(f)(*x),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_agree_with_pytorch_s_attention(call, transform):
    inputs = qkv(len_q=3, len_kv=4, dim_v=4)
    tangents = tuple(draw(*x.shape, seed=9 + n) for n, x in enumerate((*inputs[:2], theirs(*inputs))))
    if transform != "vjp":
        tangents = (*tangents[:2], draw(*inputs[2].shape, seed=20))
    # PyTorch's softmax fails when its tangents are differentiated: "modified by an inplace operation".
    reference = plain if transform == "dual tensors that require grad" else theirs
    assert_close(
        TRANSFORMS[transform](call, inputs, tangents), TRANSFORMS[transform](reference, inputs, tangents), 1e-11
    )


def test_backward_through_vmap(call):
    inputs = [x.requires_grad_() for x in qkv()]
    found = torch.autograd.grad(vmap(item(call))(*inputs).square().sum(), inputs)
    assert_close(found, torch.autograd.grad(theirs(*inputs).square().sum(), inputs))


def test_torch_compile_of_a_gradient():
    q, k, v = qkv(dtype=torch.float32)
    f = grad(lambda q: rootdk.attention(q, k, v, causal=True).square().sum())
    torch._dynamo.reset()
    assert_close(torch.compile(f, backend="aot_eager")(q), f(q), 1e-6)


# Hidden and empty -----------------------------------------------------------------------------------------------------
def test_rows_that_see_nothing_are_zero_and_stay_so():
    q, k, v = qkv(len_q=3, len_kv=4)
    mask = torch.ones(3, 4, dtype=torch.bool)
    mask[1] = False
    call = lambda *x: rt.attention(*x, mask=mask, return_lse=True)
    (out, lse), moved = jvp(call, (q, k, v), (q, k, v))
    assert (out[:, :, 1] == 0).all() and (lse[:, :, 1] == -torch.inf).all()
    assert all((x[:, :, 1] == 0).all() and torch.isfinite(x).all() and x.abs().sum() > 0 for x in moved)
    d_q, d_k, d_v = grad(lambda *x: call(*x)[0].square().sum(), (0, 1, 2))(q, k, v)
    assert (d_q[:, :, 1] == 0).all() and all(torch.isfinite(x).all() for x in (d_q, d_k, d_v))
    d_lse = grad(lambda q: torch.where(mask.any(-1), call(q, k, v)[1], 0.0).sum())(q)
    assert (d_lse[:, :, 1] == 0).all() and torch.isfinite(d_lse).all()
    empty = jvp(lambda q: rt.attention(q, k[:, :, :0], v[:, :, :0], sink=torch.ones(2), return_lse=True), (q,), (q,))
    assert (
        (empty[0][0] == 0).all() and (empty[0][1] == 1).all() and (empty[1][0] == 0).all() and (empty[1][1] == 0).all()
    )


@pytest.mark.parametrize("bad", [NAN, torch.inf])
@pytest.mark.parametrize("how", ["key_lengths", "mask", "bias", "causal"])
def test_nothing_hidden_gets_out(bad, how):
    """Key 4 is hidden from all queries; for "causal" from all but the last, whose gradient is not asked for."""
    q, k, v = qkv()
    arguments = {
        "key_lengths": dict(key_lengths=[4, 4]),
        "mask": dict(mask=torch.arange(5) < 4),
        "bias": dict(bias=torch.zeros(5, dtype=F64).masked_fill(torch.arange(5) == 4, -torch.inf)),
        "causal": dict(causal=True),
    }[how]
    rows = 4 if how == "causal" else 5
    call = lambda *x: rootdk.attention(*x, **arguments)[:, :, :rows]
    first = lambda f, *x: (
        *jvp(f, x, (q, x[1].nan_to_num(0, 0, 0), x[2].nan_to_num(0, 0, 0))),
        grad(lambda *x: f(*x).square().sum(), (0, 1, 2))(*x),
    )
    poisoned = [x.clone() for x in (k, v)]
    for x in poisoned:
        x[:, :, 4, 1] = bad
        x[:, :, 4, 0] = 0.0
    clean = [x.clone() for x in poisoned]
    for x in clean:
        x[:, :, 4] = 0.0
    found, wanted = first(call, q, *poisoned), first(call, q, *clean)
    if how != "causal":  # a tangent there is as hidden
        tangents = [torch.where(torch.arange(5)[:, None] == 4, bad, x) for x in (k, v)]
        assert_close(jvp(call, (q, k, v), (q, *tangents)), jvp(call, (q, k, v), (q, k, v)))
    if how == "causal":  # the last query's gradient is 0 · NaN: nobody can tell
        found[2][0][:, :, 4], wanted[2][0][:, :, 4] = 0, 0
        for n in (1, 2):
            found[2][n][:, :, 4], wanted[2][n][:, :, 4] = 0, 0
        found, wanted = (*found[:2], found[2][:1]), (*wanted[:2], wanted[2][:1])
    assert_close(found, wanted)


def test_what_is_seen_and_not_finite_is_nan():
    q, k, v = qkv()
    for name, place in (("q", (0, 0, 2)), ("k", (0, 0, 3)), ("v", (0, 0, 3))):
        inputs = dict(q=q.clone(), k=k.clone(), v=v.clone())
        inputs[name][(*place, 1)] = NAN
        values = tuple(inputs.values())
        out, moved = jvp(lambda *x: rootdk.attention(*x, causal=True), values, (q, k, v))
        rows = [2] if name == "q" else [3, 4]
        for x in (out, moved):
            assert torch.isnan(x[0, 0, rows]).all() and torch.isfinite(x[1]).all() and torch.isfinite(x[0, 1]).all(), (
                name
            )
            assert torch.isfinite(x[0, 0, [i for i in range(5) if i not in rows]]).all(), name
        gradient = grad(lambda q: rootdk.attention(q, *values[1:], causal=True)[0, 0, rows[0]].sum())(values[0])
        assert torch.isnan(gradient[0, 0, rows[0]]).sum() >= 3, name


# Other arguments ------------------------------------------------------------------------------------------------------
def test_norms_and_gains():
    q, k, v = qkv()
    gain = draw(4, seed=7)

    def ours(q, k, gain):
        return rootdk.attention(q, k, v, qk_norm=QkNorm("rms", q_gain=gain, k_gain=gain), scale=None)

    def written_out(q, k, gain):
        q, k = (x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * gain for x in (q, k))
        return torch.softmax(q @ k.mT / 2, -1) @ v

    inputs, tangents = (q, k, gain), (k, q, draw(4, seed=8))
    assert_close(jvp(ours, inputs, tangents), jvp(written_out, inputs, tangents))


@pytest.mark.parametrize("seed", [3, torch.tensor(3), torch.tensor([-5])], ids=str)
def test_a_given_seed_drops_the_same(seed):
    q, k, v = qkv(heads=3, heads_kv=1, len_q=9, len_kv=11)
    tensor = seed if isinstance(seed, torch.Tensor) else None
    numbers, reals = Description(dropout=0.3, seed=seed if tensor is None else 0).packed()
    call = lambda *x: torch.ops.rootdk.attention(*x, seed=tensor, numbers=numbers, reals=reals)[0]
    found, moved = jvp(call, (q, k, v), (q * 0, k * 0, v))  # linear in v
    assert_close((found, moved), (call(q, k, v), call(q, k, v)))


def test_dropout_without_a_seed_follows_vmap_s_randomness():
    q, k, v = (x[0] for x in qkv(len_q=30, len_kv=30))
    call = lambda q, k, v: rootdk.attention(q[None], k[None], v[None], dropout=0.5)[0]
    three = [x.expand(3, *x.shape) for x in (q, k, v)]
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(call)(*three)
    same = vmap(call, randomness="same")(*three)
    assert torch.equal(same[0], same[1]) and torch.equal(same[1], same[2])
    different = vmap(call, randomness="different")(*three)
    assert not torch.equal(different[0], different[1]) and not torch.equal(different[1], different[2])
    torch.manual_seed(4)
    once, moved = jvp(lambda v: rootdk.attention(q[None], k[None], v[None], dropout=0.5), (v,), (v,))
    torch.manual_seed(4)
    assert_close((once, moved), (rootdk.attention(q[None], k[None], v[None], dropout=0.5),) * 2)


# vmap with the fused kernel -------------------------------------------------------------------------------------------
MAPPED = {  # arguments, and along which axis they are mapped
    "mask for all": (lambda: dict(mask=draw(2, 1, 5, 5) > -0.5), {}),
    "mask for every item": (lambda: dict(mask=draw(1, 1, 5, 5) > -0.5), {}),
    "mapped mask": (lambda: dict(mask=draw(5, 3, 5) > -0.5), dict(mask=1)),
    "mapped mask with a batch": (lambda: dict(mask=draw(2, 1, 3, 1, 5) > -0.5), dict(mask=2)),
    "mapped bias": (lambda: dict(bias=draw(3, 2, 5, 1)), dict(bias=0)),
    "bias and lengths": (lambda: dict(bias=draw(2, 2, 5, 5), key_lengths=[2, 4], diagonal="last_key", causal=True), {}),
    "padding": (lambda: dict(key_starts=[1, 0], query_lengths=[5, 3], causal=True), {}),
    "documents of every item": (lambda: dict(documents=[[0, 2, 5], [0, 4]], causal=True), {}),
    "documents and window": (lambda: dict(documents=[0, 2, 5], window=(1, -1), scale="sqrt_dk*ssmax(0.4)"), {}),
    "mapped scale": (lambda: dict(scale=draw(3, 2)), dict(scale=0)),
    "mapped sink": (lambda: dict(sink=draw(2, 3)), dict(sink=1)),
    "sink for all": (lambda: dict(sink=draw(2), softcap=2.0, alibi=[0.5, 0.25]), {}),
    "dropout": (lambda: dict(dropout=0.4, seed=5), {}),
}


@pytest.mark.parametrize("case", MAPPED)
@pytest.mark.parametrize("axes", [(0, 0, 0), (2, None, None), (None, 1, -1)], ids=str)
def test_a_mapped_axis_is_one_call_after_the_other(case, axes, monkeypatch):
    arguments, where = MAPPED[case][0](), MAPPED[case][1]
    inputs = [x if axis is None else torch.stack([x, 2 * x, -x], axis) for x, axis in zip(qkv(), axes)]
    names = list(arguments)

    def call(q, k, v, *values):
        return rt.attention(q, k, v, return_lse=True, **dict(zip(names, values)))

    def take(x, axis, i):
        return x if axis is None else x.select(axis, i)

    all_axes, values = (*axes, *(where.get(name) for name in names)), (*inputs, *arguments.values())
    wanted = [call(*(take(x, axis, i) for x, axis in zip(values, all_axes))) for i in range(3)]
    calls = []
    inner = _kernels._compiled  # what a kernel asks first
    monkeypatch.setattr(_kernels, "_compiled", lambda *x: calls.append(1) or inner(*x))
    found = vmap(call, in_dims=all_axes)(*values)
    assert_close(found, tuple(torch.stack(x) for x in zip(*wanted)))
    assert len(calls) == (3 if case in ("mapped scale", "mapped sink", "dropout") else 1)


class Block(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.qkv = kind, torch.nn.Linear(8, 24, dtype=F64)
        self.out = torch.nn.Linear(8, 8, dtype=F64)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        if self.kind == "rootdk":
            y = rt.scaled_dot_product_attention(q, k, v, is_causal=True)
        elif self.kind == "F":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            s = (q @ k.transpose(-2, -1)) * 0.5
            y = torch.softmax(s.masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1) > 0, -torch.inf), -1) @ v
        return x + self.out(y.transpose(1, 2).flatten(2))


def model(kind, seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(Block(kind), Block(kind))


def per_sample_gradients(net, x):
    parameters = dict(net.named_parameters())
    loss = lambda parameters, x: functional_call(net, parameters, (x[None],)).square().sum()
    return vmap(grad(loss), in_dims=(None, 0))({name: p.detach() for name, p in parameters.items()}, x)


def ensemble(kind, x):
    nets = [model(kind, seed) for seed in range(3)]
    parameters, buffers = stack_module_state(nets)
    base = copy.deepcopy(nets[0])
    return vmap(lambda p, b: functional_call(base, (p, b), (x,)))(parameters, buffers)


MODEL_TRANSFORMS = {
    "jvp": lambda net, x: jvp(net, (x,), (x,)),
    "grad": lambda net, x: grad(lambda x: net(x).square().sum())(x),
    "vmap": lambda net, x: vmap(lambda x: net(x[None])[0])(x),
    "per-sample gradients": per_sample_gradients,
    "hessian": lambda net, x: hessian(lambda x: net(x).square().sum())(x[:1, :2]),
    "dual tensors": lambda net, x: duals(net, (x,), (x,)),
}


@pytest.mark.parametrize("transform", MODEL_TRANSFORMS)
@pytest.mark.parametrize("kind", ["F", "written out", "rootdk"])
def test_a_watched_model_can_be_transformed(kind, transform):
    net, x = model(kind).requires_grad_(transform == "per-sample gradients"), draw(2, 4, 8, seed=11)
    with sdpa_kernel(SDPBackend.MATH):  # PyTorch's fused one has no tangents
        wanted = MODEL_TRANSFORMS[transform](model("F").requires_grad_(False), x)
    with sdpa_kernel(SDPBackend.MATH), rootdk.watch(net) as w:
        found = MODEL_TRANSFORMS[transform](net, x)
        assert [*w.unseen] == ([] if kind == "rootdk" else ["0", "1"]) and w.layers == []
        assert all("inside a transform of torch.func" in why for why in w.unseen.values())
        net(x)
        assert_close(found, wanted, 1e-10)
    # The plain call is seen; those inside the transform stay named.
    assert w.layers == [*w.unseen] == ([] if kind == "rootdk" else ["0", "1"])


class Heads(torch.nn.Module):
    def __init__(self, need_weights):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True, dtype=F64)
        self.need_weights = need_weights

    def forward(self, x):
        return self.attention(x, x, x, need_weights=self.need_weights)[0]


@pytest.mark.parametrize("transform", MODEL_TRANSFORMS)
def test_watched_multi_head_attention_can_be_transformed(transform):
    net = torch.nn.Sequential(Heads(True), Heads(False)).requires_grad_(transform == "per-sample gradients")
    x = draw(2, 4, 8, seed=11)
    with sdpa_kernel(SDPBackend.MATH):
        wanted = MODEL_TRANSFORMS[transform](net, x)
        with rootdk.watch(net) as w:
            assert_close(MODEL_TRANSFORMS[transform](net, x), wanted)
    assert [*w.unseen] == ["0.attention", "1.attention"] and "torch.func" in w.unseen["0.attention"]


class Router(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.score, self.experts = torch.nn.Linear(8, 4, dtype=F64), torch.nn.Linear(8, 32, dtype=F64)
        self.heat = torch.nn.Parameter(torch.tensor(2.0, dtype=F64))

    def forward(self, x):
        shares = torch.softmax(self.score(x) / self.heat, -1)
        return x + (shares[..., None] * self.experts(x).unflatten(-1, (4, 8))).sum(-2)


@pytest.mark.parametrize("transform", [*MODEL_TRANSFORMS, "ensemble"])
def test_what_is_no_attention_is_not_named_under_transforms(transform):
    """Of an ensemble, `heat` is one number for each model, which nobody can read."""
    torch.manual_seed(0)
    nets = [torch.nn.Sequential(Router(), Router()) for _ in range(2)]
    names, x = [name for name, _ in nets[0].named_parameters()], draw(2, 4, 8, seed=11)
    with rootdk.watch(nets[0]) as w:
        if transform == "ensemble":
            parameters = {name: torch.stack([dict(n.named_parameters())[name] for n in nets]) for name in names}
            found = vmap(lambda p: functional_call(nets[0], p, (x,)))(parameters)
            assert_close(found, torch.stack([net(x) for net in nets]))
        else:
            MODEL_TRANSFORMS[transform](nets[0].requires_grad_(transform == "per-sample gradients"), x)
    assert not w.unseen and w.layers == []


def test_what_is_recorded_is_the_model_alone():
    from torch.fx.experimental.proxy_tensor import make_fx

    net, x = model("written out"), draw(2, 4, 8, seed=11)
    for f in (net, grad(lambda x: net(x).square().sum())):
        wanted = make_fx(f)(x).code
        with rootdk.watch(net):
            assert make_fx(f)(x).code == wanted


@pytest.mark.parametrize("kind", ["F", "rootdk"])
def test_ensembles(kind):
    x = draw(2, 4, 8, seed=11)
    wanted = torch.stack([model("F", seed)(x) for seed in range(3)])
    assert_close(ensemble(kind, x), wanted)
    with rootdk.watch():
        assert_close(ensemble(kind, x), wanted)


# Refusals -------------------------------------------------------------------------------------------------------------
def test_transformed_says_whether_numbers_can_be_looked_at():
    x = torch.ones(3)
    found = []
    look = lambda x: found.append(rt.transformed(None, x)) or x.sum()
    look(x)
    for f in (grad(look), vmap(look, out_dims=0), lambda x: jvp(look, (x,), (x,)), lambda x: duals(look, (x,), (x,))):
        f(x)
    assert found == [False, True, True, True, True]
    assert torch.compile(lambda x: x + rt.transformed(x), backend="eager", fullgraph=True)(x).sum() == 3


def test_a_second_derivative_by_autograd_says_who_has_it():
    q, k, v = (x.requires_grad_() for x in qkv())
    (first,) = torch.autograd.grad(rootdk.attention(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(
        NotImplementedError, match=r"attention: its gradient cannot be differentiated by autograd; torch\.func"
    ):
        torch.autograd.grad(first.sum(), q)
    out = rootdk.attention(q, k, v)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="cannot be differentiated"):
        torch.autograd.grad(out, q, forward_ad.make_dual(torch.ones_like(out), torch.ones_like(out)))


@pytest.mark.parametrize("transform", ["jvp", "vmap", "dual tensors", "grad"])
def test_statistics_are_refused_under_transforms(transform):
    inputs = qkv()
    with pytest.raises(NotImplementedError, match="stats: not known under torch.func"):
        TRANSFORMS[transform](lambda q, k, v: rootdk.attention(q, k, v, stats="full")[0], inputs, inputs)
    assert not rt._collectors


@pytest.mark.parametrize(
    "name, value", [("alibi", torch.ones(2)), ("softcap", torch.tensor(2.0)), ("dropout", torch.tensor(0.5))]
)
def test_what_is_taken_as_a_number_is_not_silently_constant(name, value):
    q, k, v = qkv()
    with pytest.raises(ValueError, match=f"{name}: a tensor that torch.func, vmap or a tangent"):
        jvp(lambda x: rootdk.attention(q, k, v, **{name: x}), (value,), (value,))
    with pytest.raises(ValueError, match=f"{name}: requires grad"):
        rootdk.attention(q, k, v, **{name: value.clone().requires_grad_()})
    with torch.no_grad():
        rootdk.attention(q, k, v, **{name: value.clone().requires_grad_()})


def test_mapped_lengths_are_refused_in_words():
    q, k, v = qkv()
    with pytest.raises(ValueError, match="key_lengths: a tensor that torch.func, vmap"):
        vmap(lambda n: rootdk.attention(q, k, v, key_lengths=n))(torch.tensor([[1, 2], [3, 4]]))


BAD = [
    (dict(k=draw(2, 2, 5, 3)), "k: dim_qk is 3"),
    (dict(v=draw(2, 2, 4, 3)), "v: len_kv is 4|v"),
    (dict(k=draw(2, 3, 5, 4)), "heads"),
    (dict(k=draw(2, 2, 5, 4).float()), "k: dtype is f32"),
    (dict(mask=torch.ones(3, 5, dtype=torch.bool)), "mask|allowed"),
    (dict(bias=draw(2, 5, 4)), "bias"),
    (dict(scale=torch.ones(3)), r"scale: shape is \[3\]"),
    (dict(sink=torch.ones(3)), r"sink: shape is \[3\]"),
    (dict(key_lengths=[1, 9]), "key_lengths"),
    (dict(key_lengths=[1]), "key_lengths"),
    (dict(documents=[0, 9]), "documents"),
    (dict(softcap=-1.0), "soft_cap|softcap"),
    (dict(dropout=1.5), "dropout"),
    (dict(alibi=[1.0]), "alibi"),
    (dict(scale="sqrt"), "scale"),
    (dict(diagonal="middle"), "diagonal"),
    (dict(diagonal="last_key", causal=True), "last_key"),
    (dict(scale="sqrt_dk*ssmax(0.4)", mask=torch.ones(5, 5, dtype=torch.bool)), "ssmax counts"),
    (dict(mask=draw(5, 5)), "mask"),
]


@pytest.mark.parametrize("change, words", BAD, ids=[str(n) for n in range(len(BAD))])
def test_what_is_wrong_is_said_under_transforms_too(change, words):
    arguments = dict(zip("qkv", qkv())) | change
    q = arguments.pop("q")
    with pytest.raises(ValueError, match=words):
        jvp(lambda q: rootdk.attention(q, **arguments), (q,), (q,))


# The first call -------------------------------------------------------------------------------------------------------
def test_the_first_call_does_not_import_the_compiler():
    text = """
import sys, torch
assert "torch._dynamo" not in sys.modules
import rootdk, rootdk.torch
q = torch.randn(1, 2, 8, 16, requires_grad=True)
rootdk.attention(q, q, q, causal=True, stats="full")[0].sum().backward()
rootdk.torch.scaled_dot_product_attention(q, q, q, dropout_p=0.1).sum().backward()
torch.func.vmap(lambda q: rootdk.attention(q, q, q))(torch.randn(3, 1, 2, 8, 16))
assert "torch._dynamo" not in sys.modules, "imported"
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    if "line 3" in done.stderr:
        pytest.skip("torch itself imports it")
    assert done.returncode == 0, done.stderr


def test_nothing_warns_of_a_missing_rule():
    q, k, v = qkv()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vmap(item(CALLS["attention"]))(q, k, v)
        torch.autograd.functional.jacobian(CALLS["attention"], (q, k, v), vectorize=True)
