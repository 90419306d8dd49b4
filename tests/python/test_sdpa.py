"""rootdk.torch.scaled_dot_product_attention against PyTorch's own: the same result, and an error wherever PyTorch
raises one."""

from __future__ import annotations

import warnings

import pytest
import rootdk.torch as rt
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

theirs = torch.nn.functional.scaled_dot_product_attention
ours = rt.scaled_dot_product_attention


FAULTS = [
    "dtype",
    "dim",
    "length",
    "mask",
    "both",
    "axes",
    "int",
    "mask dtype",
    "one axis",
    "batch",
    "heads",
    "empty q",
    "empty k",
    "dropout",
    "scale",
    "not a tensor",
    "too many axes",
    "wide mask",
]


@st.composite
def calls(draw, sound=False):
    """Mostly sound, sometimes not."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    dtype = draw(st.sampled_from([torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16]))
    ndim = draw(st.sampled_from([2, 3, 4, 4, 4, 5]))
    small = st.integers(1, 3)
    batch = [draw(small) for _ in range(max(0, ndim - 3))]
    heads = draw(small)
    gqa = ndim == 4 and draw(st.booleans())
    group = draw(small) if gqa else 1
    len_q, len_kv, dim, dim_v = (draw(st.integers(1, most)) for most in (20, 20, 12, 12))

    def make(h, length, d):
        return torch.randn(*batch, *([h] if ndim > 2 else []), length, d, generator=generator, dtype=torch.float64).to(
            dtype
        )

    q, k, v = make(heads * group, len_q, dim), make(heads, len_kv, dim), make(heads, len_kv, dim_v)
    arguments = {}
    if gqa:
        arguments["enable_gqa"] = True
    kind = draw(st.sampled_from(["none", "none", "causal", "bool", "float", "full"]))
    if kind == "causal":
        arguments["is_causal"] = True
    elif kind == "bool":
        arguments["attn_mask"] = torch.rand(len_q, len_kv, generator=generator) < 0.8
    elif kind == "float":
        shape = (len_q, len_kv) if ndim < 4 else (1, heads * group, 1, len_kv)
        arguments["attn_mask"] = torch.randn(shape, generator=generator).to(dtype)
    elif kind == "full":
        arguments["attn_mask"] = (
            torch.rand(*batch, *([heads * group] if ndim > 2 else []), len_q, len_kv, generator=generator) < 0.5
        )
    if draw(st.booleans()):
        arguments["scale"] = draw(st.sampled_from([0.5, 1.0, 0.01]))
    if draw(st.booleans()) and draw(st.booleans()):
        arguments["dropout_p"] = 0.0
    fault = None if sound else draw(st.sampled_from([None] * 8 + FAULTS))
    if fault == "dtype":
        k = k.to(torch.float32 if dtype != torch.float32 else torch.float64)
    elif fault == "dim":
        k = torch.cat([k, k], -1)
    elif fault == "length":
        v = torch.cat([v, v], -2)
    elif fault == "mask":
        arguments.pop("is_causal", None)
        arguments["attn_mask"] = torch.ones(len_q + 1, len_kv + 2, dtype=torch.bool)
    elif fault == "both":
        arguments["is_causal"], arguments["attn_mask"] = True, torch.ones(len_q, len_kv, dtype=torch.bool)
    elif fault == "axes":
        q = q.flatten(0, -2)[0]
    elif fault == "int":
        q, k, v = q.int(), k.int(), v.int()
    elif fault == "mask dtype":
        arguments.pop("is_causal", None)
        arguments["attn_mask"] = torch.ones(len_q, len_kv, dtype=torch.int64)
    elif fault == "one axis":
        arguments.pop("is_causal", None)
        arguments["attn_mask"] = torch.ones(len_kv, dtype=torch.bool)
    elif fault == "batch" and ndim >= 4:
        k, v = k[:1], v[:1]
    elif fault == "heads" and ndim >= 3:
        k, v = (torch.cat([x, x], -3) for x in (k, v))
    elif fault == "empty q":
        q = q[..., :0, :]
        arguments.pop("attn_mask", None)
    elif fault == "empty k":
        k, v = k[..., :0, :], v[..., :0, :]
        arguments.pop("attn_mask", None)
    elif fault == "dropout":
        arguments["dropout_p"] = draw(st.sampled_from([-0.5, 1.5, 2.0, "0.1", None]))
    elif fault == "scale":
        arguments["scale"] = draw(st.sampled_from(["1", [1.0], 1j]))
    elif fault == "not a tensor":
        k = k.tolist()
    elif fault == "too many axes":
        arguments.pop("is_causal", None)
        arguments["attn_mask"] = torch.ones((1,) * (ndim + 1) + (len_q, len_kv), dtype=torch.bool)
    elif fault == "wide mask":
        arguments.pop("is_causal", None)
        wide = draw(st.sampled_from([torch.float64, torch.float32]))
        arguments["attn_mask"] = torch.randn(len_q, len_kv, generator=generator, dtype=torch.float64).to(wide)
    return q, k, v, arguments


def attempt(f, q, k, v, arguments):
    try:
        return f(q, k, v, **arguments)
    except Exception as error:
        return error


@settings(max_examples=400, deadline=None)
@given(calls())
def test_the_same_result_or_the_same_refusal(call):
    q, k, v, arguments = call
    if isinstance(k, torch.Tensor) and q.ndim == k.ndim == v.ndim and k.shape[-2] != v.shape[-2]:
        # PyTorch's math path refuses this; its fused kernel computes something, and its backward corrupts memory. Ours
        # refuses.
        with pytest.raises(RuntimeError):
            ours(q, k, v, **arguments)
        return
    a, b = attempt(theirs, q, k, v, arguments), attempt(ours, q, k, v, arguments)
    if isinstance(a, Exception):
        assert type(b) is type(a), (a, b)
        return
    assert not isinstance(b, Exception), b
    assert a.shape == b.shape and a.dtype == b.dtype
    if a.numel() == 0:
        return
    # Both may be wrong by what the dtype rounds: two roundings of the output (size below 8), and PyTorch's own narrower
    # sums.
    unit = torch.finfo(q.dtype).eps
    assert torch.equal(a.isnan(), b.isnan())
    assert (a.double() - b.double()).nan_to_num().abs().max() <= 16 * max(
        unit, 2.0**-23 if q.dtype != torch.float64 else unit
    )


@settings(max_examples=60, deadline=None)
@given(calls(sound=True))
def test_the_same_gradients(call):
    q, k, v, arguments = call
    results = []
    for f in (theirs, ours):
        leaves = [x.detach().double().requires_grad_() for x in (q, k, v)]
        given = dict(arguments)
        mask = given.get("attn_mask")
        if mask is not None and mask.is_floating_point():
            given["attn_mask"] = mask.double().requires_grad_()
            leaves.append(given["attn_mask"])
        out = f(*leaves[:3], **given)
        weight = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).reshape(out.shape)
        results.append(torch.autograd.grad((out * weight).sum(), leaves))
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def test_is_causal_is_top_left():
    q, k = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 4, 4)
    v = torch.arange(4.0).reshape(1, 1, 4, 1)
    assert ours(q, k, v, is_causal=True).flatten().tolist() == [0.0, 0.5]


def test_dropout_keeps_the_mean():
    torch.manual_seed(0)
    q, k, v = (torch.randn(4, 4, 64, 8) for _ in range(3))
    v = v.abs()
    outs = torch.stack([ours(q, k, v, dropout_p=0.3).mean() for _ in range(20)])
    # Each mean is over 16 heads of 64 rows of 64 keys: dropout's standard deviation of one is below 1 %, of 20 below
    # 0.25 %.
    assert abs(outs.mean() / ours(q, k, v).mean() - 1) < 0.01
    assert outs.std() > 0


def test_what_is_not_ours_is_said_once():
    rt._warned.clear()
    nested = torch.nested.nested_tensor([torch.randn(2, 3, 4), torch.randn(2, 5, 4)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            attempt(ours, nested, nested, nested, {})
    assert len([w for w in caught if "rootdk" in str(w.message)]) == 1
