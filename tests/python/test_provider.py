"""rootdk in PyTorch's registry of flash attention."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytest
import rootdk.torch
import torch
import torch.nn.functional as F
from conftest import gradient_tolerance, plain, tolerance

registry = torch.nn.attention
if not hasattr(registry, "register_flash_attention_impl"):
    pytest.skip("this torch has no such registry", allow_module_level=True)


@pytest.fixture
def active(monkeypatch):
    """The calls that reached rootdk's kernel, while it is active."""
    calls = []
    inner = rootdk.torch._provider._forward

    def forward(*args, **more):
        calls.append(args[0].shape)
        return inner(*args, **more)

    monkeypatch.setattr(rootdk.torch._provider, "_forward", forward)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        registry.activate_flash_attention_impl("ROOTDK")
    yield calls
    if registry.current_flash_attention_impl() is not None:
        registry.restore_flash_attention_impl()


def draw(seed, dtype=torch.float32):
    rng = np.random.default_rng(seed)
    batch, heads, dim = int(rng.integers(1, 3)), int(rng.integers(1, 4)), int(rng.choice([8, 20, 32]))
    g = torch.Generator().manual_seed(seed)
    len_q, len_kv = int(rng.integers(1, 40)), int(rng.integers(1, 40))
    shapes = [(batch, n, heads, dim) for n in (len_q, len_kv, len_kv)]
    x = [torch.randn(shape, generator=g).to(dtype).transpose(1, 2).requires_grad_() for shape in shapes]
    more, visible, bias = {}, None, None
    kind = rng.integers(4)
    if kind == 1:
        more, visible = dict(is_causal=True), np.tril(np.ones((len_q, len_kv), bool))
    if kind == 2:
        visible = rng.random((batch, 1, len_q, len_kv)) < 0.7
        visible[..., 0] = True
        more = dict(attn_mask=torch.tensor(visible))
    if kind == 3:
        bias = rng.standard_normal((len_q, len_kv)).astype(np.float32)
        more = dict(attn_mask=torch.tensor(bias).to(dtype))
        bias = more["attn_mask"].float().numpy()
    scale = [None, 0.3][rng.integers(2)]
    return x, more | dict(scale=scale), dict(scale=scale, visible=visible, bias=bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("seed", range(12))
def test_what_flash_gets_is_computed_here(active, seed, dtype):
    (q, k, v), more, said = draw(seed, dtype)
    out = F.scaled_dot_product_attention(q, k, v, **more)
    assert active == [q.shape]
    arrays = [x.detach().float().numpy() for x in (q, k, v)]
    unit = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}[dtype]
    exact, _, _ = plain(*arrays, **said)
    limit = tolerance(*arrays, said["scale"]) + unit * np.abs(arrays[2]).max()
    assert np.abs(out.detach().float().numpy() - exact).max() <= limit
    w = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)).clamp(-1, 1).to(dtype)
    found = torch.autograd.grad((out * w).sum(), (q, k, v))
    twins = [x.detach().double().requires_grad_() for x in (q, k, v)]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        mask = more.get("attn_mask")
        mask = mask.double() if mask is not None and mask.is_floating_point() else mask
        wanted = F.scaled_dot_product_attention(*twins, **more | (dict(attn_mask=mask) if mask is not None else {}))
    wanted = torch.autograd.grad((wanted * w.double()).sum(), twins)
    limit = gradient_tolerance(*arrays, said["scale"], unit)
    for a, b in zip(found, wanted):
        assert (a.double() - b).abs().max() <= limit + unit * float(b.abs().max())


def test_it_is_there_when_asked_for_and_gone_when_given_back(active):
    x = torch.randn(1, 2, 9, 16)
    assert registry.current_flash_attention_impl() == "ROOTDK"
    F.scaled_dot_product_attention(x, x, x)
    assert len(active) == 1
    registry.restore_flash_attention_impl()
    before = F.scaled_dot_product_attention(x, x, x)
    assert len(active) == 1 and registry.current_flash_attention_impl() is None
    registry.activate_flash_attention_impl("ROOTDK")
    registry.activate_flash_attention_impl("ROOTDK")  # which gives the first one back
    F.scaled_dot_product_attention(x, x, x)
    assert len(active) == 2
    registry.restore_flash_attention_impl()
    assert torch.equal(F.scaled_dot_product_attention(x, x, x), before) and len(active) == 2


def test_import_lists_it_and_changes_nothing():
    """In a process of its own, where nothing was given back before."""
    code = "import rootdk.torch, torch.nn.attention as a; print('ROOTDK' in a.list_flash_attention_impls(), "
    code += "a.current_flash_attention_impl())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True None\n"


def test_a_causal_call_is_top_left_and_its_backward_is_ours(active, monkeypatch):
    """PyTorch's own backward would find the same from the same logsumexp."""
    backward, inner = [], rootdk.torch._provider._backward
    monkeypatch.setattr(rootdk.torch._provider, "_backward", lambda *a, **m: backward.append(1) or inner(*a, **m))
    registry.activate_flash_attention_impl("ROOTDK")  # which takes the function from the module
    q, k = torch.randn(1, 2, 3, 8, requires_grad=True), torch.randn(1, 2, 9, 8)
    F.scaled_dot_product_attention(q, k, k, is_causal=True).sum().backward()
    assert backward == [1] and active == [q.shape]
    hidden = torch.ones(3, 9, dtype=torch.bool).triu(1)
    wanted = (q @ k.mT * 8**-0.5).masked_fill(hidden, float("-inf")).softmax(-1) @ k
    torch.testing.assert_close(F.scaled_dot_product_attention(q, k, k, is_causal=True), wanted)


def test_what_pytorch_does_not_send_to_flash(active):
    x = torch.randn(1, 2, 9, 16)
    F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
    F.scaled_dot_product_attention(x, x, x[..., :8])
    F.scaled_dot_product_attention(x[0], x[0], x[0])
    F.scaled_dot_product_attention(x, x, x, attn_mask=torch.zeros(9, 9, requires_grad=True))
    assert not active
    F.scaled_dot_product_attention(x, x[:, :1], x[:, :1], enable_gqa=True)
    assert len(active) == 1
    flash = torch.ops.aten  # called by hand, dropout is not left out in silence
    for says, call in {
        "dropout_p: 0.5": lambda: flash._scaled_dot_product_flash_attention_for_cpu(x, x, x, 0.5),
        "dropout_p": lambda: flash._scaled_dot_product_flash_attention(x, x, x, 0.5),
        "return_debug_mask": lambda: flash._scaled_dot_product_flash_attention(x, x, x, 0.0, False, True),
    }.items():
        with pytest.raises(RuntimeError, match=f"^{says}"):
            call()


def test_the_operator_of_context_parallel_is_the_same_attention(active):
    """With its own backward, to which the scale and the diagonal are said again."""
    g = torch.Generator().manual_seed(0)
    x = [torch.randn(2, 3, 9, 16, generator=g, requires_grad=True) for _ in range(3)]
    for said in (dict(is_causal=True), dict(scale=0.3), dict(is_causal=True, scale=0.3)):
        ring = torch.ops.aten._scaled_dot_product_flash_attention(*x, **said)
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*x, **said)
        assert torch.equal(ring[0], flash[0]) and torch.equal(ring[1], flash[1])
        found, wanted = (torch.autograd.grad(out[0].square().sum(), x) for out in (ring, flash))
        assert all(map(torch.equal, found, wanted))


def test_a_layer_of_torch_trains(active):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    x, w = torch.randn(2, 2, 11, 32)
    (layer(x) * w).sum().backward()
    ours = layer.self_attn.in_proj_weight.grad.clone()
    assert len(active) == 1
    registry.restore_flash_attention_impl()
    layer.zero_grad()
    (layer(x) * w).sum().backward()
    theirs = layer.self_attn.in_proj_weight.grad
    # Both are right to f32's rounding of sums of 2·11·64 terms.
    assert (ours - theirs).abs().max() <= 2.0**-24 * 2 * 11 * 64 * theirs.abs().max()


def test_memory_is_laid_out_as_a_compiler_was_told(active):
    """By torch's own fake kernels, whose strides its graphs rely on."""
    q, k, v = (torch.randn(2, 9, 3, 16).transpose(1, 2) for _ in range(3))
    told = [x.to("meta") for x in (q, k, v)]
    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    for given in ((q, k, v), (q.contiguous(), k, v)):
        real, fake = forward(*given), forward(*(x.to("meta") for x in given))
        assert [x.stride() for x in real] == [x.stride() for x in fake]
        real = backward(torch.ones_like(q), *given, *real, 0.0, False)
        assert [x.stride() for x in real] == [x.stride() for x in backward(told[0], *told, *fake, 0.0, False)]
