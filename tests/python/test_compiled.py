"""The operator's kernels in C++: the same bits as by way of Python, whatever the strides, sizes and gradients; who gets
to them; and that nothing in their packed arguments brings them down."""

from __future__ import annotations

import contextlib
import gc
import math
import threading

import numpy as np
import pytest
import rootdk
import rootdk.torch as rt
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rootdk import _compiled, _direct, _kernels
from rootdk._description import Description
from rootdk._masks import PER_ITEM
from rootdk._structure import Structure
from torch.utils._python_dispatch import TorchDispatchMode

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


@contextlib.contextmanager
def by_python():
    """Without the library, as where it was not built."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (_kernels, _direct):
            patch.setattr(module, "has_compiled_operator", False)
        yield


class Operators(TorchDispatchMode):
    """The names of rootdk's operators that are reached."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "rootdk":
            self.seen.append(func._schema.name.split("::")[1])
        return func(*args, **(kwargs or {}))


def same_bits(a, b):
    assert (a is None) == (b is None)
    if a is None:
        return
    assert a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride()
    a, b = (x.detach().contiguous().view(torch.uint8) if x.numel() else x for x in (a, b))
    assert torch.equal(a, b)


def test_the_package_has_them():
    assert _compiled.has_compiled_operator, _compiled._LIBRARY


# The same bits --------------------------------------------------------------------------------------------------------
LAYOUTS = {
    "[batch, heads, length, dim]": lambda x: x.clone(),
    "[batch, length, heads, dim]": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "dims outside": lambda x: x.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0),
    "every other": lambda x: torch.stack([x, x.new_zeros(x.shape)], -1).flatten(-2)[..., ::2],
    "a slice": lambda x: torch.nn.functional.pad(x, (1, 2, 1, 1))[:, :, 1:-1, 1:-2],
    "one head for all": lambda x: x[:, :1].expand_as(x),
    "one batch item for all": lambda x: x[:1].expand_as(x),
}


@st.composite
def problems(draw):
    """Tensors and arguments of rt.attention, and which of the tensors learn."""
    size = lambda *choices: draw(st.sampled_from(choices))
    batch, heads_kv, group = size(1, 2, 3), size(1, 2), size(1, 1, 2)
    len_q, len_kv, dim, dim_v = size(1, 3, 8, 17, 70), size(1, 4, 8, 33, 130), size(1, 4, 16, 40), size(1, 4, 16, 24)
    heads, dtype = heads_kv * group, draw(st.sampled_from(DTYPES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    random = lambda *shape, dtype=torch.float32: torch.randn(*shape, generator=generator).to(dtype)
    layout = lambda: LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))]
    tensors = {
        "q": layout()(random(batch, heads, len_q, dim, dtype=dtype)),
        "k": layout()(random(batch, heads_kv, len_kv, dim, dtype=dtype)),
        "v": layout()(random(batch, heads_kv, len_kv, dim_v, dtype=dtype)),
    }
    if draw(st.integers(0, 9)) == 0:
        tensors["k"] = tensors["k"].clone()
        tensors["k"][0, 0, 0, 0] = math.nan
    shape = [size(1, full) for full in (batch, heads, len_q, len_kv)]
    kind = size("none", "none", "mask", "bias")
    arguments = {}
    if kind == "mask":
        arguments["mask"] = layout()(random(*shape) > -0.7)
    if kind == "bias":
        tensors["bias"] = layout()(random(*shape, dtype=size(torch.float32, dtype)))
    scale = size("rule", "rule", "factor", "heads", "length")
    if scale == "factor":
        arguments["scale"] = 0.3
    elif scale == "heads":
        tensors["scale"] = random(heads, dtype=size(torch.float32, torch.float64)).abs()
    elif scale == "length" and kind == "none":
        arguments["scale"] = "sqrt_dk*ssmax(0.43)"
    if draw(st.booleans()):
        tensors["sink"] = random(2 * heads)[::2]
    if draw(st.booleans()):
        arguments |= dict(causal=True, diagonal=size("bottom_right", "top_left", 2))
    if draw(st.integers(0, 3)) == 0:
        arguments["window"] = (size(None, 0, 3), size(None, 0, 5))
    if draw(st.integers(0, 3)) == 0:
        arguments["key_lengths"] = [draw(st.integers(0, len_kv)) for _ in range(batch)]
        arguments["key_starts"] = [draw(st.integers(0, len_kv)) for _ in range(batch)]
        arguments["query_lengths"] = [draw(st.integers(0, len_q)) for _ in range(batch)]
    elif draw(st.integers(0, 3)) == 0:
        ends = [(draw(st.integers(0, len_q)), draw(st.integers(0, len_kv))) for _ in range(batch)]
        each = [[0, q, len_q] for q, _ in ends], [[0, kv, len_kv] for _, kv in ends]
        arguments["documents"] = each if draw(st.booleans()) else (each[0][0], each[1][0])
    if draw(st.integers(0, 3)) == 0:
        arguments["alibi"] = [0.25 * (h + 1) for h in range(heads)]
    if draw(st.integers(0, 3)) == 0:
        arguments["softcap"] = 1.5
    if draw(st.integers(0, 3)) == 0:
        arguments |= dict(dropout=0.4, seed=size(9, torch.tensor(-3)))
    return tensors, arguments, [name for name in tensors if draw(st.booleans())], draw(st.booleans())


def found(tensors, arguments, learned, with_lse):
    """Output, logsumexp, and the gradients that are wanted."""
    inputs = {name: x.detach().requires_grad_(name in learned) for name, x in tensors.items()}
    q, k, v = (inputs.pop(name) for name in "qkv")
    inputs |= {"q": q, "k": k, "v": v}
    more = {name: x for name, x in inputs.items() if name not in "qkv"}
    out, lse = rt.attention(q, k, v, **more, **arguments, return_lse=True)
    results = {"out": out, "lse": lse}
    if learned:
        above = torch.linspace(-1, 1, out.numel()).reshape(out.shape).to(out.dtype)
        loss = (out * above).sum() + (lse.masked_fill(~lse.isfinite(), 0).sum() if with_lse else 0)
        results |= dict(zip(learned, torch.autograd.grad(loss, [inputs[name] for name in learned])))
    return results


@settings(max_examples=250, suppress_health_check=list(HealthCheck))
@given(problems())
def test_both_ways_have_the_same_bits(problem):
    with Operators() as operators:
        here = found(*problem)
    assert "fused" in operators.seen and ("fused_backward" in operators.seen) == bool(problem[2])
    with by_python(), Operators() as operators:
        there = found(*problem)
    assert not [name for name in operators.seen if name.startswith("fused")]
    assert here.keys() == there.keys()
    for name in here:
        same_bits(here[name], there[name])


@pytest.mark.parametrize("sizes", [(0, 2, 3, 4, 8), (1, 0, 3, 4, 8), (1, 2, 0, 4, 8), (1, 2, 3, 0, 8)], ids=str)
@pytest.mark.parametrize("learns", [False, True])
def test_nothing_is_attended_to_nothing(sizes, learns):
    batch, heads, len_q, len_kv, dim = sizes
    q = torch.randn(batch, heads, len_q, dim)
    k, v = torch.randn(batch, heads, len_kv, dim), torch.randn(batch, heads, len_kv, dim)
    bias = torch.randn(1, heads, len_q, len_kv)
    problem = {"q": q, "k": k, "v": v, "bias": bias}, {}, ["q", "k", "v", "bias"] if learns else [], learns
    here = found(*problem)
    with by_python():
        there = found(*problem)
    for name in here:
        same_bits(here[name], there[name])
    assert here["out"].shape == (batch, heads, len_q, dim) and not here["out"].any()


@pytest.mark.parametrize("sizes", [(1, 2, 600, 700, 64), (2, 16, 1, 5000, 32)], ids=str)
def test_large_problems_have_the_same_bits(sizes):
    """Workspaces of more than what a thread keeps, and keys in several parts."""
    batch, heads, len_q, len_kv, dim = sizes
    torch.manual_seed(3)
    q, k, v = (torch.randn(batch, heads, length, dim) for length in (len_q, len_kv, len_kv))
    problem = {"q": q, "k": k, "v": v}, dict(causal=True), ["q", "k", "v"], True
    here = found(*problem)
    with by_python():
        there = found(*problem)
    for name in here:
        same_bits(here[name], there[name])


def test_threads_do_not_meet():
    """Each has a workspace of its own; sizes go up and down in it."""
    torch.manual_seed(0)
    inputs = [[torch.randn(1, 2, n, 8 * m) for _ in range(3)] for n, m in ((3, 1), (90, 8), (17, 2), (1, 4), (300, 3))]
    wanted = [found(dict(zip("qkv", x)), {}, ["q", "k", "v"], True) for x in inputs]
    wrong = []

    def work(first):
        try:
            for i in range(60):
                place = (first + i) % len(inputs)
                result = found(dict(zip("qkv", inputs[place])), {}, ["q", "k", "v"], True)
                for name in result:
                    same_bits(result[name], wanted[place][name])
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]


def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def grown(step, warm, count):
    """Bytes by which the process is larger after so many steps."""
    for _ in range(warm):
        step()
    before = resident()
    for _ in range(count):
        step()
    return resident() - before


def test_no_memory_stays_behind():
    q, k, v = (torch.randn(1, 4, 64, 32, requires_grad=True) for _ in range(3))
    mask, numbers = torch.ones(1, 1, 64, 64, dtype=torch.bool), dict(key_lengths=[60], alibi=[0.1] * 4, scale=0.2)

    def step():
        rt.attention(q, k, v, mask=mask, **numbers).sum().backward()
        with contextlib.suppress(ValueError):
            rt.attention(q, k, v, mask=mask, sink=torch.full((4,), math.nan), **numbers)

    assert grown(step, 200, 2000) < 4e6  # a copy of a mask that stayed would be 8 MB, of an input or gradient 64


def test_no_large_workspace_stays_behind():
    q, k, v = (torch.randn(1, 2, length, 64, requires_grad=True) for length in (64, 4000, 4000))
    # of 150 MB and more
    assert grown(lambda: torch.autograd.grad(rt.attention(q, k, v).sum(), (q, k, v)), 10, 30) < 3e7


EVERY = [
    dict(scale=0.3),
    dict(scale="none"),
    dict(scale=[0.5, 0.1]),
    dict(causal=True),
    dict(causal=True, diagonal=-1),
    dict(window=(1, 0)),
    dict(key_starts=[2]),
    dict(key_lengths=[3]),
    dict(query_lengths=[3]),
    dict(documents=[0, 2, 5]),
    dict(mask=np.tri(5, dtype=bool)),
    dict(bias=np.arange(25, dtype=np.float32).reshape(5, 5) / 25),
    dict(alibi=[0.5, 0.25]),
    dict(softcap=0.7),
    dict(sink=0.5),
    dict(qk_norm="rms"),
    dict(dropout=0.4, seed=3),
]


@pytest.mark.parametrize("arguments", EVERY, ids=lambda arguments: next(iter(arguments)))
def test_every_argument_means_what_it_means_for_numpy(arguments, inputs):
    wanted = rootdk.attention(*(x.numpy() for x in inputs), **arguments)
    of_torch = {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in arguments.items()}
    for way in (rootdk.attention, rt.attention):
        for learns in (False, True):
            out = way(*(x.clone().requires_grad_(learns) for x in inputs), **of_torch).detach().numpy()
            # QK-norm is torch's own there: a rounding of f32 more for each of q and k, of outputs of size 1.
            np.testing.assert_allclose(out, wanted, rtol=0, atol=4 * 2**-23 if "qk_norm" in arguments else 0)
    assert not np.array_equal(wanted, rootdk.attention(*(x.numpy() for x in inputs)))


# Layouts --------------------------------------------------------------------------------------------------------------
def joined(x):
    """[batch, length, heads, dim] in memory."""
    return x.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("way", [rt.attention, rt.scaled_dot_product_attention])
def test_outputs_and_gradients_lie_as_what_came(way):
    heads_inside = [torch.randn(2, 5, 3, 8).transpose(1, 2) for _ in range(3)]
    plain = [torch.randn(2, 3, 5, 8) for _ in range(3)]
    for q, k, v in (heads_inside, plain, [plain[0], heads_inside[1], plain[2]]):
        assert joined(way(q, k, v)) == joined(q)
        inputs = [x.detach().requires_grad_() for x in (q, k, v)]
        out = way(*inputs)
        assert joined(out) == joined(q)
        for x, gradient in zip(inputs, torch.autograd.grad(out.square().sum(), inputs)):
            assert joined(gradient) == joined(x) and (joined(x) or gradient.is_contiguous())


# Who gets there -------------------------------------------------------------------------------------------------------
def reached(call):
    with Operators() as operators:
        call()
    return operators.seen


@pytest.fixture
def inputs():
    torch.manual_seed(1)
    return [torch.randn(1, 2, 5, 8) for _ in range(3)]


def test_calls_without_gradients_reach_nothing_else(inputs):
    for way in (rootdk.attention, rt.attention, rt.scaled_dot_product_attention):
        assert reached(lambda: way(*inputs)) == ["fused"]
        learned = [x.clone().requires_grad_() for x in inputs]
        for quiet in (torch.no_grad, torch.inference_mode):
            with quiet():
                assert reached(lambda: way(*learned)) == ["fused"]
                assert not way(*learned).requires_grad
    assert reached(lambda: rt.attention(*inputs, bias=torch.zeros(5, 5), sink=1.0, window=2)) == ["fused"]


@pytest.mark.parametrize("learned", range(1, 8))
@pytest.mark.parametrize("way", [rootdk.attention, rt.attention, rt.scaled_dot_product_attention])
def test_calls_with_gradients_take_one_way_down_and_one_up(way, learned, inputs):
    gradients = []
    for context, wanted in ((contextlib.nullcontext(), "fused"), (by_python(), "attention")):
        some = [x.clone().requires_grad_(bool(learned >> place & 1)) for place, x in enumerate(inputs)]
        with context:
            assert reached(lambda: way(*some).square().sum().backward()) == [wanted, f"{wanted}_backward"]
        gradients.append([x.grad for x in some])
    assert [x is not None for x in gradients[0]] == [bool(learned >> place & 1) for place in range(3)]
    for here, there in zip(*gradients):
        same_bits(here, there)


def test_gradients_of_what_comes_beside_take_the_same_way(inputs):
    sink = torch.zeros(2, requires_grad=True)
    assert reached(lambda: rt.attention(*inputs, sink=sink).sum().backward()) == ["fused", "fused_backward"]
    assert sink.grad is not None and sink.grad.abs().min() > 0


def test_whoever_listens_or_is_called_for_long_takes_the_other_way(inputs, monkeypatch):
    assert reached(lambda: rootdk.attention(*inputs, stats="basic")) == ["attention"]
    monkeypatch.setattr(_kernels, "_LONG", 5 * inputs[0].numel() - 1)
    assert reached(lambda: rt.scaled_dot_product_attention(*inputs)) == ["attention"]
    learned = [x.clone().requires_grad_() for x in inputs]
    assert reached(lambda: rootdk.attention(*learned).sum().backward()) == ["attention", "attention_backward"]
    monkeypatch.setattr(_kernels, "_LONG", 5 * inputs[0].numel())
    assert reached(lambda: rt.scaled_dot_product_attention(*inputs)) == ["fused"]


def test_autocast_is_followed(inputs):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for way in (rootdk.attention, rt.scaled_dot_product_attention):
            assert way(*inputs).dtype == torch.bfloat16


def test_subclasses_are_asked(inputs):
    class Loud(torch.Tensor):
        heard = 0

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            Loud.heard += 1
            return super().__torch_function__(func, types, args, kwargs or {})

    for way in (rootdk.attention, rt.scaled_dot_product_attention):
        Loud.heard = 0
        assert isinstance(way(inputs[0].as_subclass(Loud), *inputs[1:]), Loud) and Loud.heard


def test_what_pytorch_refuses_is_not_computed():
    """The engine would compute the first, whose heads share keys without enable_gqa."""
    q, k, v = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    for way in (rt.scaled_dot_product_attention, torch.nn.functional.scaled_dot_product_attention):
        for bad in ((q, k, v), (q, q[..., :4], q), (q, q.double(), q)):
            for learns in (False, True):
                with pytest.raises(RuntimeError):
                    way(*(x.detach().requires_grad_(learns) for x in bad))
        assert way(q[:, :, :0], q, q).shape == (1, 4, 0, 8)
    shared = rt.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert torch.equal(shared, rootdk.attention(q, k, v))


@pytest.mark.parametrize("shape", [(5, 5), (1, 5), (2, 5, 5), (1, 1, 5, 5), (1, 2, 1, 5), (1, 2, 5, 5)], ids=str)
def test_masks_of_any_shape_go_there(shape, inputs):
    learned = [x.clone().requires_grad_() for x in inputs]
    theirs = torch.nn.functional.scaled_dot_product_attention
    for mask in (torch.rand(shape) < 0.7, torch.randn(shape)):
        with Operators() as operators:
            out = rt.scaled_dot_product_attention(*inputs, mask, scale=0.4)
            found = torch.autograd.grad(rt.scaled_dot_product_attention(*learned, mask, scale=0.4).sum(), learned)
        assert operators.seen == ["fused", "fused", "fused_backward"]
        wanted = theirs(*inputs, mask, scale=0.4)
        if mask.dtype == torch.bool:  # a row that sees nothing is 0 here
            wanted = wanted.masked_fill(~mask.expand(1, 2, 5, 5).any(-1, keepdim=True), 0)
        torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-6)
        if mask.dtype != torch.bool:
            expected = torch.autograd.grad(theirs(*learned, mask, scale=0.4).sum(), learned)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(5, 4), (3, 5, 5), (1, 3, 5, 5)], ids=str)
def test_masks_that_do_not_fit_are_refused_as_pytorch_does(shape, inputs):
    for way in (rt.scaled_dot_product_attention, torch.nn.functional.scaled_dot_product_attention):
        with pytest.raises(RuntimeError):
            way(*inputs, torch.zeros(shape))


def test_a_tensor_that_changes_before_backward_is_noticed(inputs):
    for way in (rootdk.attention, rt.scaled_dot_product_attention):
        learned = [x.clone().requires_grad_() for x in inputs]
        other = learned[1] * 1
        out = way(learned[0], other, learned[2])
        with torch.no_grad():
            other.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_gradients_can_be_batched(inputs):
    learned = [x.double().requires_grad_() for x in inputs]
    for results in (rt.attention(*learned, return_lse=True), rt.attention(*learned, return_lse=True, sink=0.5)):
        for result in results:
            above = torch.randn(3, *result.shape, dtype=result.dtype)
            grad = lambda d, **more: torch.autograd.grad(
                result, learned, d, retain_graph=True, allow_unused=True, **more
            )
            batched, each = grad(above, is_grads_batched=True), [grad(d) for d in above]
            for x, *y in zip(batched, *each):
                assert torch.equal(x, torch.stack(y))


# The operators themselves ---------------------------------------------------------------------------------------------
ARGUMENTS = [
    {},
    dict(structure=Structure(causal=True, diagonal="top_left"), factor=0.5),
    dict(structure=Structure.of(window=(1, None), key_lengths=[3]), alibi=(0.5, 0.25), dropout=0.25, seed=3),
]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
def test_they_are_well_formed(arguments, inputs):
    numbers, reals = Description(**arguments).packed()
    others = (None, torch.rand(1, 1, 5, 5) < 0.8, torch.randn(1, 2, 1, 5), torch.randn(2), None)
    utilities = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.rootdk.fused.default, (*inputs, *others, numbers, reals), test_utils=utilities)
    out, lse = torch.ops.rootdk.fused(*inputs, *others, numbers, reals)
    for wanted in (1, 2 | 4, 1 | 2 | 4 | 16 | 32):
        torch.library.opcheck(
            torch.ops.rootdk.fused_backward.default,
            (torch.randn_like(out), None, out, lse, *inputs, *others, numbers, reals, wanted),
            test_utils=utilities,
        )


WRONG = [
    (dict(q=torch.zeros(2, 5, 8)), "q: 3 axes"),
    (dict(k=torch.zeros(1, 2, 5, 4)), "k: dim_qk is 4"),
    (dict(k=torch.zeros(1, 2, 5, 8, dtype=torch.float64)), "k: dtype is f64"),
    (dict(v=torch.zeros(1, 2, 5, 8, dtype=torch.int32)), "v: its dtype"),
    (dict(v=torch.zeros(1, 2, 4, 8)), "v: len_kv is 4"),
    (dict(scale=torch.ones(3)), r"scale: shape is \[3\]"),
    (dict(scale=torch.ones(2, dtype=torch.float64)), "scale: float32"),
    (dict(sink=torch.ones(2, 1)), r"sink: shape is \[2, 1\]"),
    (dict(sink=torch.tensor([1.0, math.nan])), "sink: value nan of head 1"),
    (dict(mask=torch.zeros(1, 2, 5, 5)), "mask: dtype is f32"),
    (dict(mask=torch.zeros(5, 5, dtype=torch.bool)), "mask: 2 axes"),
    (dict(bias=torch.zeros(1, 2, 5, 4)), "bias: shape is"),
    (dict(seed=torch.zeros(2, dtype=torch.int64)), "seed: 2 elements"),
    (dict(seed=torch.zeros(1)), "seed: 1 elements"),
    (dict(numbers=[0, 1, 9]), "diagonal: kind 9"),
    (dict(numbers=[0, 0, 0, 0, 1, -5, 3]), "window: left -5"),
    (dict(numbers=[0, 0, 0, 0, 0, 0, 0, 0, 7, 1]), "numbers: 1 are left, but 7 are wanted"),
    (dict(numbers=[0, 0, 0, 0, 0, 0, 0, 0, -2]), "numbers: 0 are left, but -2 are wanted"),
    (dict(numbers=[0, 0, 0, 0, 0, 0, 0, 0, *(-1,) * 5, ord("?")]), r"scale: .*\?"),
    (dict(reals=[1.0]), "reals: 1, but at least 5"),
    (dict(reals=[1.0, math.inf, 0.0, 0.0, 0.0]), "scale: inf"),
    (dict(reals=[0.0, 0.0, 1.0, -1.0, 0.0]), "softcap: -1"),
    (dict(reals=[0.0, 0.0, 0.0, 0.0, 1.0]), "dropout: 1"),
    (dict(reals=[0.0, 0.0, 0.0, 0.0, 0.0, 1.0]), "alibi: 1 values"),
]


@pytest.mark.parametrize("change, words", WRONG, ids=[f"{next(iter(w[0]))}{n}" for n, w in enumerate(WRONG)])
def test_what_is_wrong_is_said(change, words, inputs):
    arguments = dict(zip("qkv", inputs)) | change
    with pytest.raises(ValueError, match=words):
        torch.ops.rootdk.fused(**arguments)


def test_what_is_wrong_with_backward_is_said(inputs):
    q, k, v = inputs
    out, lse = torch.ops.rootdk.fused(q, k, v)
    nothing = (None,) * 7
    backward = torch.ops.rootdk.fused_backward
    for arguments, words in (
        ((out[:, :, :3], None, out, lse, q, k, v, *nothing, 7), "d_o: shape is"),
        ((out.double(), None, out, lse, q, k, v, *nothing, 7), "d_o: dtype is f64"),
        ((out, None, out, lse[..., None], q, k, v, *nothing, 7), "lse: 4 axes"),
        ((out, lse.double(), out, lse, q, k, v, *nothing, 7), "d_lse: dtype is f64"),
        ((out, None, out, lse, q, k, v, *nothing, 16), "d_bias: wanted"),
        ((out, None, out, lse, q, k, v, *nothing, 32), "d_sink: wanted"),
    ):
        with pytest.raises(ValueError, match=words):
            backward(*arguments)
    assert backward(out, None, out, lse, q, k, v, *nothing, 0) == []


small = st.integers(-3, 8) | st.sampled_from([2**31, -(2**31), 2**62, -(2**63)])


@settings(max_examples=400, suppress_health_check=list(HealthCheck))
@given(st.lists(small, max_size=24), st.lists(st.floats(width=32), max_size=8))
def test_no_packed_numbers_bring_it_down(numbers, reals):
    torch.manual_seed(2)
    q, k, v = (torch.randn(2, 2, 4, 8) for _ in range(3))
    with contextlib.suppress(ValueError):
        out, lse = torch.ops.rootdk.fused(q, k, v, numbers=numbers, reals=reals)
        (d_v,) = torch.ops.rootdk.fused_backward(out, None, out, lse, q, k, v, *(None,) * 5, numbers, reals, 4)
        assert d_v.shape == v.shape


LISTS = st.none() | st.lists(st.integers(0, 9), max_size=3).map(tuple)
STRUCTURES = st.builds(
    Structure,
    st.booleans(),
    st.sampled_from(["bottom_right", "top_left", "last_key", "at"]),
    st.integers(-9, 9),
    st.none() | st.tuples(st.none() | st.integers(0, 9), st.none() | st.integers(0, 9)),
    LISTS,
    LISTS,
    st.integers(0, 3),
    st.tuples(*(LISTS,) * len(PER_ITEM)),
)
FLOATS = st.none() | st.floats(allow_nan=False)


@given(
    st.builds(
        Description,
        STRUCTURES,
        st.sampled_from(["sqrt_dk", "none", "sqrt_dk*ssmax(0.43)", "nothing of ours", "√"]),
        FLOATS,
        FLOATS,
        st.none() | st.lists(st.floats(allow_nan=False), min_size=1, max_size=3).map(tuple),
        st.floats(0, 1),
        st.integers(0, 2**62),
    )
)
def test_a_description_survives_its_packing(description):
    assert Description.unpacked(*description.packed()) == description


def test_what_is_as_at_first_is_packed_into_nothing():
    assert Description().packed() == (None, None)
    assert Description(Structure(causal=True)).packed() == ([0, 1, 0, 0], None)
    assert np.isnan(Description(factor=math.nan).packed()[1][1])
