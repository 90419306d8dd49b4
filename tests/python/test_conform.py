"""Deliberately wrong attention functions: each fault is found, and nothing else is."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import rootdk
from rootdk import Promise


def softmax(s):
    with np.errstate(invalid="ignore"):
        shift = s.max(-1, keepdims=True)
        e = np.exp(s - np.where(np.isfinite(shift), shift, 0))
        return e / e.sum(-1, keepdims=True)


@dataclasses.dataclass
class Plain:
    """Attention in numpy, with a place for every fault."""

    scale: object = "sqrt_dk"
    cap: float | None = None
    causal: str | None = None
    window: int | None = None
    sink: object = None
    gqa: str = "blocked"
    polarity: str = "true_shows"
    bias_first: bool = False
    masked: str = "zero"
    rounded: int | None = None  # bits that inputs keep
    clip: float | None = None

    def __call__(self, q, k, v, mask=None):
        d, heads = q.shape[-1], q.shape[1]
        group = heads // k.shape[1]
        if group > 1:
            order = np.arange(heads) // group if self.gqa == "blocked" else np.arange(heads) % k.shape[1]
            k, v = k[:, order], v[:, order]
        if self.rounded is not None:
            q, k = (keep_bits(x, self.rounded) for x in (q, k))
        named = {"sqrt_dk": d**-0.5, "none": 1.0, "dk": 1.0 / d}
        c = named[self.scale] if isinstance(self.scale, str) else np.asarray(self.scale, np.float32)
        if isinstance(c, np.ndarray) and c.ndim:
            c = c[None, :, None, None]
        s = (q @ k.swapaxes(-1, -2)) * np.float32(c)
        i, j = np.indices(s.shape[-2:])
        offset = s.shape[-1] - s.shape[-2] if self.causal == "bottom_right" else 0
        hidden = np.zeros(s.shape[-2:], bool)
        if self.causal:
            hidden |= j > i + offset
        if self.window is not None:
            hidden |= i + offset - j > self.window
        if self.cap:
            s = self.cap * np.tanh(s / self.cap)
        if self.clip:
            s = np.clip(s, -self.clip, self.clip)
        if mask is not None and mask.dtype == bool:
            hidden = hidden | (~mask if self.polarity == "true_shows" else mask)
        elif mask is not None:
            s = s + (mask * np.float32(d**-0.5) if self.bias_first else mask)
        s = np.where(hidden, -np.inf, s)
        if self.sink is not None:
            z = np.broadcast_to(np.asarray(self.sink, s.dtype), (heads,))[None, :, None, None]
            p = softmax(np.concatenate([s, np.broadcast_to(z, (*s.shape[:-1], 1))], -1))[..., :-1]
        else:
            p = softmax(s)
        if self.masked == "zero":
            p = np.where(np.isnan(p), 0, p)
        elif self.masked == "mean":
            p = np.where(np.isnan(p), 1 / s.shape[-1], p)
        return (p @ v).astype(q.dtype)


def keep_bits(x, bits):
    mantissa, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.round(mantissa * 2.0 ** (bits + 1)) / 2.0 ** (bits + 1), exponent).astype(x.dtype)


FAULTS = [
    ("scale", Plain(scale="none"), "1"),
    ("scale", Plain(scale="dk"), "1/d_k"),
    ("scale", Plain(scale=0.125), "0.125 whatever d_k is (1/√64)"),
    ("scale", Plain(scale=[0.1, 0.2, 0.3, 0.4]), "one per head: 0.1, 0.2, 0.3, 0.4"),
    ("softcap", Plain(cap=50.0), "50"),
    ("softcap", Plain(cap=5.0), "5"),
    ("softcap", Plain(clip=30.0), "another bound"),
    ("causal", Plain(causal="top_left"), "top_left"),
    ("causal", Plain(causal="bottom_right"), "bottom_right"),
    ("window", Plain(window=7), "8"),
    ("sink", Plain(sink=0.0), "scores 0.000, 0.000, 0.000, 0.000 (softmax off by one)"),
    ("sink", Plain(sink=[0.5, 1.0, -1.0, 2.0]), "scores 0.500, 1.000, -1.000, 2.000"),
    ("gqa", Plain(gqa="interleaved"), "interleaved"),
    ("mask", Plain(polarity="true_hides"), "true_hides"),
    ("bias", Plain(bias_first=True), "before_scale"),
    ("masked_rows", Plain(masked="nan"), "nan"),
    ("masked_rows", Plain(masked="mean"), "mean"),
    ("precision", Plain(rounded=10), "products keep fewer than 21 bits"),
]


@pytest.mark.parametrize("name, function, found", FAULTS, ids=lambda x: None if isinstance(x, Plain) else str(x))
def test_each_fault_is_found_and_no_other(name, function, found):
    result = rootdk.conform(function, mask="mask")
    wrong = [finding.property for finding in result.wrong]
    assert result[name].found.startswith(found), result
    assert wrong == [name], result
    with pytest.raises(AssertionError, match=name):
        result.raise_if_wrong()


def test_what_is_as_promised_is_right():
    result = rootdk.conform(Plain(), mask="mask")
    assert result.ok and "as promised" in str(result), result
    assert all(finding.ok for finding in result.findings), result


@pytest.mark.parametrize(
    "promise, function",
    [
        (Promise(scale=0.3), Plain(scale=0.3)),
        (Promise(scale="none", softcap=20.0), Plain(scale="none", cap=20.0)),
        (Promise(causal="bottom_right", window=6), Plain(causal="bottom_right", window=5)),
        (Promise(sink=[0.25, 0.5, 0.75, 1.0]), Plain(sink=[0.25, 0.5, 0.75, 1.0])),
        (Promise(gqa="interleaved"), Plain(gqa="interleaved")),
    ],
)
def test_promises_are_kept(promise, function):
    assert rootdk.conform(function, promise, mask="mask").ok, rootdk.conform(function, promise, mask="mask")


@pytest.mark.parametrize("cap", [2.0, 15.0, 30.0, 100.0, 500.0])
@pytest.mark.parametrize("scale", [1.0, 0.125, 1.7])
def test_a_cap_is_measured_to_a_percent_whatever_the_scale(cap, scale):
    found = float(rootdk.conform(Plain(cap=cap, scale=scale), Promise(scale=scale))["softcap"].found)
    assert abs(found / cap - 1) < 0.01


def test_double_precision_is_measured_in_double():
    # One part in a million: within rounding in f32, far beyond it in f64 (the f32 factor in Plain is off by 6e-8 of
    # it).
    slightly = Plain(scale=0.125 * (1 + 1e-6))
    assert rootdk.conform(slightly, Promise(scale=0.125)).ok
    assert [f.property for f in rootdk.conform(slightly, Promise(scale=0.125), dtype="float64").wrong] == ["scale"]


def test_an_error_is_a_finding():
    def broken(q, k, v):
        raise RuntimeError("no such kernel")

    result = rootdk.conform(broken)
    assert not result.ok and "no such kernel" in str(result)

    assert "but [" in str(rootdk.conform(lambda q, k, v: q[..., :1])["call"].detail)


def test_arguments_are_checked():
    for wrong in (
        dict(framework="mxnet"),
        dict(dtype="int8"),
        dict(layout="hbld"),
        dict(framework="numpy", dtype="bfloat16"),
    ):
        with pytest.raises(ValueError):
            rootdk.conform(Plain(), **wrong)


def test_layout_may_be_length_first():
    def swapped(q, k, v):
        return Plain()(*(x.swapaxes(1, 2) for x in (q, k, v))).swapaxes(1, 2)

    assert rootdk.conform(swapped, layout="blhd").ok


def test_what_was_not_seen_is_said():
    def one_at_a_time(q, k, v):
        if len(q) > 1:
            raise RuntimeError("one at a time")
        return Plain()(q, k, v)

    result = rootdk.conform(one_at_a_time)
    assert result["batch"].ok is None and "one at a time" in result["batch"].detail
    assert "not batch" in str(result) and "Everything" not in str(result), result
    alone = rootdk.conform(Plain(causal="top_left", window=0), Promise(causal="top_left", window=1))
    assert alone.ok and alone["scale"].found == "unknown" and alone["values"].found == "not compared", alone


def test_outputs_that_say_nothing_are_one_finding():
    for function, words in ((lambda q, k, v: q * np.float32(np.nan), "not finite"), (lambda q, k, v: 0 * q, "all 0")):
        result = rootdk.conform(function)
        assert [f.property for f in result.wrong] == ["values"] and result["values"].found == words, result
    assert (
        rootdk.conform(lambda q, k, v: v.mean(2, keepdims=True) + 0 * q, heads_kv=None)["scale"].found
        == "0: q·k does not count"
    )


def test_dropout_is_found_before_anything_else():
    rng = np.random.default_rng(3)

    def dropped(q, k, v, rate=0.1, draw=lambda shape: rng.random(shape)):
        p = softmax(q @ k.swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5))
        return (np.where(draw(p.shape) < rate, 0, p / (1 - rate)) @ v).astype(q.dtype)

    result = rootdk.conform(dropped, heads_kv=None)
    assert [f.property for f in result.wrong] == ["deterministic"], result
    assert (
        result["deterministic"].found == "no: dropout of about 0.10 is on"
        and result["the rest"].found == "not looked at"
    )
    assert not rootdk.conform(lambda q, k, v: dropped(q, k, v, 0.01), heads_kv=None).ok
    # The same ones dropped in every call: two calls agree.
    fixed = rootdk.conform(
        lambda q, k, v: dropped(q, k, v, 0.2, lambda shape: np.random.default_rng(5).random(shape)), heads_kv=None
    )
    assert [f.property for f in fixed.wrong] == ["values"] and fixed["values"].found == "dropout is on", fixed
    noisy = rootdk.conform(lambda q, k, v: Plain()(q, k, v) + rng.normal(size=q.shape) * 0.01)
    assert noisy["deterministic"].found == "no"


def test_rounding_in_another_order_each_time_is_no_dropout():
    rng = np.random.default_rng(3)

    def shuffled(q, k, v):
        order = rng.permutation(k.shape[2])
        return Plain()(q, k[:, :, order], v[:, :, order])

    assert rootdk.conform(shuffled).ok


def windowed(left, right, causal):
    """Keys before and after the query's own, as FlashAttention counts, the last query on the last key."""

    def function(q, k, v):
        s = q @ k.swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5)
        i, j = np.indices(s.shape[-2:])
        i = i + s.shape[-1] - s.shape[-2]
        hidden = (i - j > left) | (j - i > (0 if causal else right))
        p = softmax(np.where(hidden, -np.inf, s))
        return (np.where(np.isnan(p), 0, p) @ v).astype(q.dtype)

    return function


@pytest.mark.parametrize(
    "function, promise, found",
    [
        (windowed(7, 0, True), Promise(causal="bottom_right", window=8), "8"),
        (windowed(7, 0, True), Promise(causal="bottom_right", window=(7, 0)), "8"),
        (windowed(7, 0, True), Promise(causal="bottom_right", window=(7, -1)), "8"),
        (windowed(5, 3, False), Promise(window=(5, 3)), "(5, 3)"),
        (windowed(6, 6, False), Promise(window=6), "(6, 6)"),
        (windowed(9, 1000, False), Promise(window=10), "10"),
        (windowed(1000, 4, False), Promise(window=(None, 4)), "(-1, 4)"),
    ],
)
def test_windows_are_counted_as_transformers_and_flashattention_count(function, promise, found):
    result = rootdk.conform(function, promise, heads_kv=None)
    assert result.ok and result["window"].found == found, result


def test_a_window_off_by_one_is_said_to_be():
    for left, words in ((8, "one key more than promised"), (6, "one key fewer than promised")):
        result = rootdk.conform(windowed(left, 0, True), Promise(causal="bottom_right", window=8), heads_kv=None)
        assert [f.property for f in result.wrong] == ["window"] and result["window"].detail.startswith(words), result
        assert f"sliding_window={left + 1}" in result["window"].detail and f"({left}, 0)" in result["window"].detail


def test_standard_slopes_are_the_paper_s():
    from rootdk._conform.promise import standard_slopes

    assert standard_slopes(8) == [2.0**-i for i in range(1, 9)]
    # For 6 heads: those of 4, then the first, third of 8.
    assert standard_slopes(6) == [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]


def test_promises_are_checked():
    for wrong in (dict(scale="sqrt"), dict(alibi="yes"), dict(window=0), dict(window=(1, 2, 3)), dict(causal="left")):
        with pytest.raises(ValueError, match="promise." + next(iter(wrong))):
            Promise(**wrong)
    for wrong in (dict(heads=0), dict(heads_kv=3), dict(dims=()), dict(dims=(1,)), dict(longest=1)):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            rootdk.conform(Plain(), **wrong)


def onnx_attention(scale):
    """softmax(c·QKᵀ)V as an ONNX graph, in a session of ONNX Runtime."""
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    from onnx import TensorProto, helper

    shape = [None, None, None, None]
    nodes = [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "kt"], ["raw"]),
        helper.make_node("Mul", ["raw", "c"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["out"]),
    ]
    graph = helper.make_graph(
        nodes,
        "attention",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "qkv"],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, shape)],
        [helper.make_tensor("c", TensorProto.FLOAT, [], [scale])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return lambda q, k, v: session.run(["out"], {"q": q, "k": k, "v": v})[0]


def test_an_onnx_session():
    found = rootdk.conform(onnx_attention(0.125), heads_kv=None)
    assert [f.property for f in found.wrong] == ["scale"] and found["scale"].found == "0.125 whatever d_k is (1/√64)", (
        found
    )
    assert rootdk.conform(onnx_attention(64**-0.5), heads_kv=None, dims=[64]).ok
