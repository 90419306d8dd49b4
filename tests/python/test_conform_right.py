"""Functions that are right, in every dtype: conform accuses none of them; and torch functions that are wrong in a torch
way."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
import rootdk  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from rootdk import Promise  # noqa: E402

DTYPES = ["float64", "float32", "float16", "bfloat16"]
SMALL = dict(framework="torch", dims=(16, 48), longest=40)


def sdpa(q, k, v, mask=None, **options):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True, **options)


def eager(causal=False, window=None, cap=None, sink=None, q_first=False):
    """As models write it: the products in the dtype, softmax in f32."""

    def function(q, k, v, mask=None):
        group, c = q.shape[1] // k.shape[1], q.shape[-1] ** -0.5
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        s = (q * c) @ k.transpose(-1, -2) if q_first else q @ k.transpose(-1, -2) * c
        s = cap * torch.tanh(s / cap) if cap else s
        i = torch.arange(s.shape[-2])[:, None] + s.shape[-1] - s.shape[-2]
        j = torch.arange(s.shape[-1])
        hidden = (j > i) & causal
        hidden = hidden | (i - j >= window) if window else hidden
        s = s.masked_fill(hidden, float("-inf"))
        if mask is not None:
            s = s.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else s + mask
        wide = torch.float64 if s.dtype == torch.float64 else torch.float32
        if sink is not None:
            s = torch.cat([s, torch.tensor(sink, dtype=s.dtype)[None, :, None, None].expand(*s.shape[:-1], 1)], -1)
        p = torch.nan_to_num(torch.softmax(s, -1, dtype=wide))[..., : k.shape[2]]
        return p.to(v.dtype) @ v

    return function


def ours(**options):
    def function(q, k, v, mask=None):
        boolean = mask is not None and mask.dtype == torch.bool
        return rootdk.attention(q, k, v, mask=mask if boolean else None, bias=None if boolean else mask, **options)

    return function


SLOPES = [0.5, 0.25, 0.125, 2.0**-7]
RIGHT = {
    "sdpa": (sdpa, Promise()),
    "eager": (eager(), Promise()),
    "q scaled first": (eager(q_first=True), Promise()),
    "causal": (eager(causal=True), Promise(causal="bottom_right")),
    "window": (eager(causal=True, window=8), Promise(causal="bottom_right", window=8)),
    "window of two": (eager(causal=True, window=2), Promise(causal="bottom_right", window=2)),
    "soft-cap": (eager(cap=30.0), Promise(softcap=30.0)),
    "sinks": (eager(sink=[0.5, -1.0, 0.0, 2.0]), Promise(sink=[0.5, -1.0, 0.0, 2.0])),
    "ours": (ours(), Promise()),
    "ours with all": (
        ours(causal=True, softcap=20.0, sink=1.0, window=(9, None)),
        Promise(causal="bottom_right", softcap=20.0, sink=[1.0], window=10),
    ),
    "ours with ALiBi": (ours(causal=True, alibi=SLOPES), Promise(causal="bottom_right", alibi=SLOPES)),
    "ours with ALiBi to both sides": (ours(alibi=SLOPES), Promise(alibi=SLOPES)),
    "ours with two sides": (ours(window=(5, 3)), Promise(window=(5, 3))),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_not_accused(name, dtype):
    function, promise = RIGHT[name]
    result = rootdk.conform(function, promise, dtype=dtype, mask="mask", seed=len(name), **SMALL)
    assert result.ok and all(finding.ok for finding in result.findings), result


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_a_mask_and_in_another_layout(dtype):
    def length_first(q, k, v):
        return sdpa(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True).transpose(1, 2)

    for seed in range(3):
        result = rootdk.conform(
            length_first, Promise(causal="top_left"), dtype=dtype, layout="blhd", seed=seed, **SMALL
        )
        assert result.ok and result["values"].ok, result


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_faults_show_in_narrow_dtypes_too(dtype):
    def check(function, name, words):
        result = rootdk.conform(function, dtype=dtype, mask="mask", **SMALL)
        assert [f.property for f in result.wrong] == [name] and words in result[name].found, result

    def top(q, k, v, mask=None):
        s = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(-1, -2) * q.shape[-1] ** -0.5
        return sdpa(q, k, v, (s >= s.topk(min(8, s.shape[-1]), -1).values[..., -1:]) if mask is None else mask)

    check(lambda q, k, v, mask=None: sdpa(q[:1].expand(q.shape), k, v, mask), "batch", "q of item 0 for all")
    check(
        lambda q, k, v, mask=None: sdpa(q, k, v.roll(1, 1) if v.shape[1] == 4 else v, mask),
        "heads",
        "V of heads 3, 0, 1, 2",
    )
    check(
        lambda q, k, v, mask=None: sdpa(q, torch.cat([k[..., :8], 0 * k[..., 8:]], -1), v, mask),
        "dims",
        "only the first 8 of 16",
    )
    check(lambda q, k, v, mask=None: ours(alibi=SLOPES)(q, k, v, mask), "alibi", "slopes 0.")
    result = rootdk.conform(top, dtype=dtype, mask="mask", **SMALL)
    assert [f.property for f in result.wrong] == ["values"], result


def test_sums_in_the_narrow_dtype_are_found_behind_the_probabilities():
    def narrow(q, k, v):
        p = torch.softmax((q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5, -1).to(v.dtype)
        out = torch.zeros_like(q)
        for j in range(k.shape[2]):
            out = out + p[..., j : j + 1] * v[:, :, j : j + 1]
        return out

    result = rootdk.conform(narrow, dtype="bfloat16", heads_kv=None, **SMALL)
    assert [f.property for f in result.wrong] == ["precision"] and result["precision"].found == "sums in bfloat16", (
        result
    )


def test_bfloat16_inside_is_found_outside():
    result = rootdk.conform(lambda q, k, v: sdpa(*(x.bfloat16() for x in (q, k, v))).to(q.dtype), **SMALL)
    assert [f.property for f in result.wrong] == ["precision"] and "rounded to bfloat16" in result["precision"].found, (
        result
    )


def test_a_module_left_in_training_mode():
    class Attention(torch.nn.Module):
        def forward(self, q, k, v):
            return sdpa(q, k, v, dropout_p=0.1 if self.training else 0.0)

    module = Attention()
    assert rootdk.conform(module, **SMALL)["deterministic"].found.startswith("no: dropout of about 0.1")
    assert rootdk.conform(module.eval(), **SMALL).ok


@pytest.mark.parametrize("window", [1, 2, 5, 16])
def test_windows_are_transformers_own(window):
    """A mask that transformers makes for sliding_window = W is a window of W."""
    masking = pytest.importorskip("transformers.masking_utils")
    allowed = masking.sliding_window_causal_mask_function(window)

    def model(q, k, v):
        i = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
        mask = allowed(0, 0, i, torch.arange(k.shape[2]))
        return torch.nan_to_num(sdpa(q, k, v, mask))

    result = rootdk.conform(model, Promise(causal="bottom_right", window=window), **SMALL)
    assert result.ok and result["window"].found == str(window), result
    assert not rootdk.conform(model, Promise(causal="bottom_right", window=window + 1), **SMALL).ok
    # (left, right) as FlashAttention and rootdk.attention count.
    result = rootdk.conform(
        ours(causal=True, window=(window - 1, 0)), Promise(causal="bottom_right", window=window), **SMALL
    )
    assert result.ok and result["window"].found == str(window), result


def test_windows_to_both_sides_are_transformers_own():
    masking = pytest.importorskip("transformers.masking_utils")
    allowed = masking.sliding_window_bidirectional_mask_function(6)

    def model(q, k, v):
        mask = allowed(0, 0, torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2]))
        return torch.nan_to_num(sdpa(q, k, v, mask.expand(q.shape[2], k.shape[2])))

    for promised in (6, (6, 6)):
        result = rootdk.conform(model, Promise(window=promised), **SMALL)
        assert result.ok and result["window"].found == "(6, 6)", result
