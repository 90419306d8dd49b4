"""rootdk.attention on numpy arrays: right, zero copy, and never a crash on what is hostile."""

from __future__ import annotations

import copy
import importlib.util
import inspect
import json
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
import rootdk
from conftest import plain, tolerance
from hypothesis import given, settings
from hypothesis import strategies as st
from rootdk import QkNorm, Stats, StatsOptions, _core


def draw(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


@st.composite
def problems(data):
    rng = np.random.default_rng(data(st.integers(0, 2**32 - 1)))
    batch, heads_kv, group = data(st.integers(0, 2)), data(st.integers(1, 3)), data(st.integers(1, 3))
    len_q, len_kv = data(st.integers(0, 70)), data(st.integers(0, 70))
    dim, dim_v = data(st.integers(1, 40)), data(st.integers(1, 40))
    dtype = data(st.sampled_from([np.float32, np.float64]))
    size = data(st.sampled_from([0.1, 1.0, 5.0]))
    heads = heads_kv * group
    q = draw(rng, batch, heads, len_q, dim, dtype=dtype) * dtype(size)
    k, v = draw(rng, batch, heads_kv, len_kv, dim, dtype=dtype), draw(rng, batch, heads_kv, len_kv, dim_v, dtype=dtype)
    arguments, expected = {}, {}
    visible = np.ones((1, 1, len_q, len_kv), bool)
    i, j = np.indices((len_q, len_kv))
    where = data(st.sampled_from(["bottom_right", "top_left", 3]))
    offset = {"bottom_right": len_kv - len_q, "top_left": 0}.get(where, where)
    if data(st.booleans()):
        arguments["causal"], arguments["diagonal"] = True, where
        visible = visible & (j <= i + offset)
    if data(st.booleans()):
        left, right = data(st.integers(0, 20)), data(st.none() | st.integers(0, 20))
        arguments["window"], arguments["diagonal"] = (left, right), where
        visible = visible & (i + offset - j <= left) & ((j - i - offset <= right) if right is not None else True)
    if data(st.booleans()):
        lengths = [data(st.integers(0, len_kv)) for _ in range(batch)]
        arguments["key_lengths"] = lengths
        visible = visible & (j < np.array(lengths).reshape(batch, 1, 1, 1))
    if data(st.booleans()):
        mask = rng.random((1, heads, len_q, 1) if data(st.booleans()) else (len_q, len_kv)) < 0.7
        arguments["mask"] = mask
        visible = visible & mask
    if data(st.booleans()):
        bias = draw(rng, len_q, len_kv, dtype=dtype)
        arguments["bias"] = expected["bias"] = bias
    if data(st.booleans()):
        arguments["softcap"] = expected["cap"] = data(st.sampled_from([1.0, 4.0, 30.0]))
    if data(st.booleans()):
        arguments["sink"] = expected["sink"] = draw(rng, heads).tolist()
    if data(st.booleans()):
        scale = data(st.sampled_from([1.0, 0.3, "heads"]))
        arguments["scale"] = expected["scale"] = (
            np.abs(draw(rng, heads)).astype(np.float32) if scale == "heads" else scale
        )
    return q, k, v, arguments, dict(expected, visible=visible)


@settings(max_examples=150, deadline=None)
@given(problems())
def test_agrees_with_attention_written_out_in_double(problem):
    q, k, v, arguments, expected = problem
    out, stats = rootdk.attention(q, k, v, stats="full", **arguments)
    exact, scores, p = plain(q, k, v, **expected)
    assert out.shape == exact.shape and out.dtype == q.dtype
    bound = tolerance(q, k, v, expected.get("scale")) * (
        1 + 4 * float(np.abs(expected.get("bias", np.zeros(1))).max(initial=0))
    )
    assert np.abs(out - exact).max(initial=0) <= bound
    assert stats.score_max.shape == (q.shape[0], q.shape[1])
    if scores.size:
        largest = scores.max((-1, -2))
        seen = np.isfinite(largest)
        np.testing.assert_allclose(stats.score_max[seen], largest[seen], rtol=1e-5, atol=1e-5)
        assert (stats.score_max[~seen] == -np.inf).all()
    rows_seen = np.isfinite(scores).sum(-1) if scores.shape[-1] else np.zeros(scores.shape[:-1], int)
    assert (stats.rows_masked == (rows_seen == 0).sum(-1)).all()
    assert (stats.row_count == q.shape[2]).all()


@settings(max_examples=40, deadline=None)
@given(problems())
def test_the_output_does_not_depend_on_statistics(problem):
    q, k, v, arguments, _ = problem
    outs = [rootdk.attention(q, k, v, **arguments)] + [
        rootdk.attention(q, k, v, stats=level, **arguments)[0] for level in ("basic", "full")
    ]
    assert all(np.array_equal(outs[0], out, equal_nan=True) for out in outs)


def test_statistics_are_those_of_the_materialised_scores(rng):
    q, k, v = draw(rng, 2, 3, 65, 16), draw(rng, 2, 3, 90, 16), draw(rng, 2, 3, 90, 8)
    out, stats = rootdk.attention(q, k, v, stats=StatsOptions("full", rows=True, key_mass=True))
    _, s, p = plain(q, k, v)
    with np.errstate(divide="ignore"):
        entropy = -(p * np.log(p)).sum(-1)
    # Means of f32 numbers, each off by a few units in the last place.
    close = dict(rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(stats.entropy, entropy.mean(-1), **close)
    np.testing.assert_allclose(stats.rows.entropy, entropy, **close)
    np.testing.assert_allclose(stats.score_sigma, np.sqrt(s.var(-1, ddof=1).mean(-1)), **close)
    np.testing.assert_allclose(stats.mean_p_max, p.max(-1).mean(-1), **close)
    np.testing.assert_allclose(stats.trace_j, (1 - (p * p).sum(-1)).mean(-1), **close)
    np.testing.assert_allclose(stats.key_mass, p.sum(-2), **close)
    np.testing.assert_allclose(stats.rows.lse, np.log(np.exp(s).sum(-1)), **close)
    assert (stats.rows.score_argmax == s.argmax(-1)).all()
    assert (
        stats.raw_max_query * 1.0 == np.array([[np.unravel_index(h.argmax(), h.shape)[0] for h in b] for b in s])
    ).all()


def test_scales_by_name_are_those_of_the_engine(rng):
    q, k, v = (draw(rng, 1, 2, 9, 16) for _ in range(3))
    for name, c in (("sqrt_dk", 0.25), ("none", 1.0), ("dk", 1 / 16), ("dk(4)", 4 / 16)):
        assert np.array_equal(rootdk.attention(q, k, v, scale=name), rootdk.attention(q, k, v, scale=c)), name
    with pytest.raises(ValueError, match="sqrt_dk"):
        rootdk.attention(q, k, v, scale="sqrt")


@pytest.mark.parametrize("kind", ["rms", "layer", "l2"])
def test_qk_norm_is_a_norm_before_the_product(rng, kind):
    q, k, v = (draw(rng, 1, 2, 9, 16) for _ in range(3))
    gain = np.abs(draw(rng, 2, 16))

    def norm(x, g):
        x = x.astype(np.float64)
        x = x - x.mean(-1, keepdims=True) if kind == "layer" else x
        m = (x * x).sum(-1, keepdims=True) if kind == "l2" else (x * x).mean(-1, keepdims=True)
        return x / np.sqrt(m + 1e-6) * (1 if g is None else g[:, None, :])

    found = rootdk.attention(q, k, v, qk_norm=QkNorm(kind, q_gain=gain))
    exact = plain(norm(q, gain), norm(k, None), v)[0]
    assert np.abs(found - exact).max() < 2e-6  # f32 q and k of size up to 4, rounded once more than plain's


def test_documents_see_only_themselves(rng):
    q, k, v = (draw(rng, 1, 2, 20, 8) for _ in range(3))
    packed = rootdk.attention(q, k, v, causal=True, documents=[0, 7, 20])
    for a, b in ((0, 7), (7, 20)):
        alone = rootdk.attention(*(x[:, :, a:b] for x in (q, k, v)), causal=True)
        # The same arithmetic in other blocks.
        assert np.abs(packed[:, :, a:b] - alone).max() <= 2 * tolerance(q, k, v)


def test_numpy_s_true_is_true(rng):
    q, k, v = (draw(rng, 1, 1, 5, 4) for _ in range(3))
    for said in (True, False):
        told = np.int64(said) > 0  # as a comparison gives it
        assert np.array_equal(rootdk.attention(q, k, v, causal=told), rootdk.attention(q, k, v, causal=said))


def test_dropout_is_the_seed_s(rng):
    q, k, v = (draw(rng, 1, 2, 40, 8) for _ in range(3))
    a, b, c = (rootdk.attention(q, k, v, dropout=0.5, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(a, b) and not np.array_equal(a, c)
    assert not np.array_equal(rootdk.attention(q, k, v, dropout=0.5), rootdk.attention(q, k, v, dropout=0.5))


# Memory ---------------------------------------------------------------------------------------------------------------
def views(x):
    yield "transposed", np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    yield "reversed", np.ascontiguousarray(x[:, :, ::-1, ::-1])[:, :, ::-1, ::-1]
    wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
    wide[..., ::2] = x
    yield "every second", wide[..., ::2]
    yield "negative heads", np.ascontiguousarray(x[:, ::-1])[:, ::-1]
    yield "fortran", np.asfortranarray(x)
    frozen = x.copy()
    frozen.flags.writeable = False
    yield "read only", frozen


def test_any_strides_give_the_same_bits(rng):
    q, k, v = (draw(rng, 2, 3, 17, 8) for _ in range(3))
    expected = rootdk.attention(q, k, v)
    for (name, a), (_, b), (_, c) in zip(views(q), views(k), views(v)):
        assert np.array_equal(rootdk.attention(a, b, c), expected), name


def test_a_repeated_axis_is_read_once(rng):
    q, k, v = (draw(rng, 1, 4, 9, 8) for _ in range(3))
    one = np.broadcast_to(k[:, :1], k.shape)
    assert np.array_equal(rootdk.attention(q, one, v), rootdk.attention(q, one.copy(), v))


class Foreign:
    """Another framework's array: nothing but DLPack."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __dlpack__(self, **arguments):
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_anything_with_dlpack_will_do(rng):
    q, k, v = (draw(rng, 1, 2, 9, 8) for _ in range(3))
    out = rootdk.attention(Foreign(q), Foreign(k), Foreign(v))
    assert np.array_equal(np.from_dlpack(out), rootdk.attention(q, k, v))


class Namespaced(Foreign):
    """The same with the array API's way back, as jax has it."""

    def __array_namespace__(self):
        class Namespace:
            @staticmethod
            def from_dlpack(x):
                return Namespaced(np.from_dlpack(x))

        return Namespace

    def __getitem__(self, index):
        return Namespaced(self.array[index])


def test_what_has_a_namespace_comes_back_as_itself(rng):
    q, k, v = (Namespaced(draw(rng, 1, 2, 9, 8)) for _ in range(3))
    out, stats = rootdk.attention(q, k, v, qk_norm="rms", stats=StatsOptions("full", rows=["entropy"]))
    expected = rootdk.attention(q.array, k.array, v.array, qk_norm="rms", stats=StatsOptions("full", rows=["entropy"]))
    assert isinstance(out, Namespaced) and np.array_equal(out.array, expected[0])
    assert isinstance(stats.rows.entropy, Namespaced) and np.array_equal(
        stats.rows.entropy.array, expected[1].rows.entropy
    )


def test_jax_arrays_come_back_as_jax_arrays(rng):
    jax = pytest.importorskip("jax.numpy")
    q, k, v = (jax.asarray(draw(rng, 1, 2, 9, 8)) for _ in range(3))
    out = rootdk.attention(q, k, v)
    assert isinstance(out, type(q)) and np.allclose(out, plain(*(np.asarray(x) for x in (q, k, v)))[0], atol=1e-5)


@pytest.mark.parametrize("how", ["jit", "grad", "vmap"])
@pytest.mark.parametrize("name", ["q", "v", "bias", "scale", "sink", "alibi", "key_lengths", "qk_norm", "documents"])
def test_what_jax_traces_is_refused_in_words(how, name):
    jax = pytest.importorskip("jax")
    x = jax.numpy.ones((3, 2, 2, 4))
    values = {
        "q": x,
        "v": x,
        "bias": jax.numpy.zeros((3, 2)),
        "key_lengths": jax.numpy.ones((3, 3)),
        "qk_norm": jax.numpy.ones((3, 4)),
        "documents": jax.numpy.ones((3, 2)),
    }
    value = values.get(name, jax.numpy.ones((3, 2)))

    def call(value):
        value = value[None] if how == "vmap" and name in ("q", "v") else value
        arguments = dict(q=x, k=x, v=x) | {
            name: QkNorm("rms", q_gain=value) if name == "qk_norm" else [0, value] if name == "documents" else value
        }
        with pytest.raises(TypeError, match=f"{name}: traced by jax .* jax.pure_callback"):
            rootdk.explain_plan(**arguments)
        return rootdk.attention(**arguments).sum()

    with pytest.raises(TypeError, match=f"{name}: traced by jax .* jax.pure_callback"):
        getattr(jax, how)(call)(value)


def test_jax_reaches_us_through_a_callback(rng):
    jax = pytest.importorskip("jax")
    x = jax.numpy.asarray(draw(rng, 1, 2, 9, 8))
    call = jax.jit(
        lambda x: jax.pure_callback(
            lambda x: rootdk.attention(*(np.asarray(x),) * 3), jax.ShapeDtypeStruct(x.shape, x.dtype), x
        )
    )
    assert np.array_equal(call(x), rootdk.attention(*(np.asarray(x),) * 3))


def test_an_array_that_cannot_be_read_is_refused_without_a_c_name(rng):
    class Shy(Foreign):
        def __dlpack__(self, **_):
            raise RuntimeError("not now")

    x = draw(rng, 1, 2, 9, 8)
    with pytest.raises(TypeError, match="k: Shy, but an array that can be read is wanted"):
        rootdk.attention(x, Shy(x), x)


@pytest.mark.parametrize("shape", [(0, 2, 5, 5, 4, 4), (1, 2, 0, 5, 4, 4), (1, 2, 5, 0, 4, 4), (2, 0, 3, 3, 4, 4)])
def test_zero_sizes(shape):
    batch, heads, len_q, len_kv, dim, dim_v = shape
    out, stats = rootdk.attention(
        np.zeros((batch, heads, len_q, dim), np.float32),
        np.zeros((batch, heads, len_kv, dim), np.float32),
        np.ones((batch, heads, len_kv, dim_v), np.float32),
        stats="full",
    )
    assert out.shape == (batch, heads, len_q, dim_v) and (out == 0).all()
    assert stats.entropy.shape == (batch, heads)


# Refusals -------------------------------------------------------------------------------------------------------------
Q = np.zeros((1, 2, 3, 4), np.float32)
BAD = [
    (dict(q=None), TypeError, "q: NoneType"),
    (dict(q=[[1.0]]), TypeError, "q: list"),
    (dict(k="k"), TypeError, "k: str"),
    (dict(v=3), TypeError, "v: int"),
    (dict(q=Q[0]), ValueError, "q: 3 axes"),
    (dict(k=Q[0]), ValueError, "k: 3 axes"),
    (dict(q=Q.astype(np.int32)), TypeError, "q: dtype is int32"),
    (dict(q=Q.astype(complex)), TypeError, "q: dtype is complex128"),
    (dict(k=Q.astype(np.float64)), ValueError, "k: dtype is f64"),
    (dict(v=Q.astype(np.float16)), ValueError, "v: dtype is f16"),
    (dict(k=Q.astype(np.int64)), ValueError, "k: dtype"),
    (dict(k=np.zeros((1, 2, 3, 5), np.float32)), ValueError, "k: dim_qk is 5"),
    (dict(k=np.zeros((1, 3, 3, 4), np.float32), v=np.zeros((1, 3, 3, 4), np.float32)), ValueError, "heads"),
    (dict(v=np.zeros((1, 2, 9, 4), np.float32)), ValueError, "v:"),
    (dict(k=np.zeros((2, 2, 3, 4), np.float32)), ValueError, "batch"),
    (dict(q=Q.astype(">f4")), (TypeError, ValueError), "q:"),
    (dict(mask=Q), ValueError, "mask|allowed"),
    (dict(mask=np.ones((7, 7), bool)), ValueError, "allowed|mask"),
    (dict(mask=[True]), TypeError, "mask: list"),
    (dict(bias=np.ones((3, 3), np.float64)), ValueError, "bias"),
    (dict(bias=np.ones((1,) * 5, np.float32)), ValueError, "bias: 5 axes"),
    (dict(scale=float("nan")), ValueError, "scale"),
    (dict(scale=[1.0]), ValueError, "scale: 1 values"),
    (dict(scale=""), ValueError, 'scale: "" is not known'),
    (dict(scale=True), TypeError, "scale: bool"),
    (dict(scale=object()), TypeError, "scale: object"),
    (dict(causal=1), TypeError, "causal: int"),
    (dict(causal="top_left"), TypeError, "causal: str"),
    (dict(diagonal="top"), ValueError, "diagonal: top"),
    (dict(diagonal=2**70), ValueError, "diagonal"),
    (dict(window=(1, 2, 3)), ValueError, "window: 3 numbers"),
    (dict(window=-1), ValueError, "window"),
    (dict(window=1.5), TypeError, "window: float"),
    (dict(key_lengths=[1, 2]), ValueError, "key_lengths"),
    (dict(key_lengths=[-1]), ValueError, "key_lengths"),
    (dict(key_lengths=3), TypeError, "key_lengths"),
    (dict(documents=[1, 3]), ValueError, "begins with 1|starts"),
    (dict(documents=[0, 9]), ValueError, "9"),
    (dict(softcap=0), ValueError, "^softcap: 0"),
    (dict(softcap="50"), TypeError, "softcap: str"),
    (dict(sink=[1.0]), ValueError, "sink: 1 values"),
    (dict(sink=float("inf")), ValueError, "sink"),
    (dict(alibi=[1.0, float("nan")]), ValueError, "alibi"),
    (dict(qk_norm="batch"), ValueError, "qk_norm"),
    (dict(qk_norm=3), TypeError, "qk_norm: int"),
    (dict(qk_norm=QkNorm(q_gain=[1.0])), ValueError, "qk_norm: gain of q"),
    (dict(dropout=1.5), ValueError, "dropout"),
    (dict(dropout=-0.1), ValueError, "dropout"),
    (dict(seed=-1, dropout=0.1), ValueError, "seed: -1"),
    (dict(seed=1.5, dropout=0.1), TypeError, "seed: float"),
    (dict(stats="all"), ValueError, 'stats: "all"'),
    (dict(stats=True), TypeError, "stats: bool"),
    (dict(stats=StatsOptions("full", rows=["entropi"])), ValueError, "entropi"),
    (dict(stats=StatsOptions("basic", rows=["entropy"])), ValueError, "entropy"),
    (dict(stats=StatsOptions("full", sample=0)), ValueError, "sample"),
    (dict(stats=StatsOptions("some")), ValueError, "level"),
]


@pytest.mark.parametrize("change, error, words", BAD, ids=[str(next(iter(b[0]))) + str(n) for n, b in enumerate(BAD)])
def test_what_is_wrong_is_said_in_one_line(change, error, words):
    arguments = dict(q=Q, k=Q, v=Q) | change
    q, k, v = (arguments.pop(name) for name in "qkv")
    with pytest.raises(error, match=words) as caught:
        rootdk.attention(q, k, v, **arguments)
    assert "\n" not in str(caught.value)


def test_unknown_arguments_are_refused():
    with pytest.raises(TypeError):
        rootdk.attention(Q, Q, Q, is_causal=True)


# Statistics as objects ------------------------------------------------------------------------------------------------
def test_statistics_travel_as_json_and_merge(rng):
    q, k, v = (draw(rng, 3, 2, 70, 8) for _ in range(3))
    whole = rootdk.attention(q, k, v, stats="full")[1].over_batch()
    parts = [rootdk.attention(q[b : b + 1], k[b : b + 1], v[b : b + 1], stats="full")[1] for b in range(3)]
    merged = Stats.from_json(parts[0].to_json()).merge(parts[1]).merge(parts[2])
    for name, values in merged.to_dict().items():
        np.testing.assert_allclose(values, whole[name], rtol=1e-12, err_msg=name)
    assert json.loads(whole.to_json())["heads"] == 2
    with pytest.raises(TypeError, match="other: int"):
        whole.merge(3)
    with pytest.raises(ValueError):
        whole.merge(rootdk.attention(q, k, v, stats="basic")[1])
    with pytest.raises(ValueError):
        Stats.from_json("{}")


def test_what_is_not_there_is_said(rng):
    stats = rootdk.attention(Q, Q, Q, stats="basic")[1]
    with pytest.raises(AttributeError, match="full"):
        stats.entropy
    with pytest.raises(ValueError, match="rows=True"):
        stats.rows
    with pytest.raises(ValueError, match="key_mass=True"):
        stats.key_mass
    assert "basic" in repr(stats) and "<table>" in stats._repr_html_()
    full = rootdk.attention(Q, Q, Q, stats=StatsOptions("full", rows=["entropy"]))[1]
    with pytest.raises(AttributeError, match="p_max"):
        full.rows.p_max
    assert full.rows.entropy.shape == (1, 2, 3)
    assert "entropy" in dir(full)


def test_what_stats_have_is_what_they_say_they_have():
    asked = StatsOptions("full", rows=True, key_mass=True)
    for stats, there in (
        (rootdk.attention(Q, Q, Q, stats="full")[1], False),
        (rootdk.attention(Q, Q, Q, stats=asked)[1], True),
        (rootdk.attention(Q, Q, Q, stats="basic")[1], False),
    ):
        for name in ("rows", "key_mass"):
            assert hasattr(stats, name) is there and (name in dir(stats)) is there
            assert getattr(stats, name, None) is (stats[name] if there else None)
        members = dict(inspect.getmembers(stats))
        assert set(stats.names) <= set(members) == set(dir(stats))
        assert np.array_equal(stats["row_count"], stats.row_count) and np.array_equal(
            stats.to_dict()["row_count"], stats.row_count
        )
        assert "rows" not in stats.names and "rows" not in stats.to_dict() and "row_count" in stats.names
    for name, words in (("rows", "rows=True.*row_count"), ("key_mass", "key_mass=True")):
        with pytest.raises(AttributeError, match=words):
            getattr(stats, name)
        with pytest.raises(KeyError, match=words):
            stats[name]


@pytest.mark.parametrize(
    "again", [lambda x: pickle.loads(pickle.dumps(x)), copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"]
)
def test_statistics_are_copied_and_pickled_whole(again, rng):
    q, k = draw(rng, 2, 2, 70, 8), draw(rng, 2, 2, 70, 8)
    q[0, 0, 3] = np.nan
    whole = StatsOptions("full", rows=True, key_mass=True, gaps=True, by_keys=True)
    for options in ("basic", "full", whole):
        stats = rootdk.attention(q, k, k, causal=True, stats=options)[1]
        other = again(stats)
        assert type(other) is Stats and other is not stats and other.to_json() == stats.to_json()
        assert other.over_batch().to_json() == stats.over_batch().to_json()
        assert hasattr(other, "rows") == hasattr(stats, "rows") and hasattr(other, "key_mass") == hasattr(
            stats, "key_mass"
        )
    assert list(other.rows) == list(stats.rows)
    for name in stats.rows:
        assert np.array_equal(other.rows[name], stats.rows[name], equal_nan=True), name
    assert np.array_equal(other.key_mass, stats.key_mass, equal_nan=True)
    assert (other.key_mass is stats.key_mass) == (again is copy.copy)
    judged = stats.judge_head(1)
    assert again(judged) == judged
    gradients = rootdk.GradientStats.from_json(
        rootdk.GradientStats(_core.gradient_stats(1, 1, [(1.0, 2.0, 3.0, 4.0, 5.0)])).to_json()
    )
    assert (
        again(gradients).to_json() == gradients.to_json()
        and {"d_q", "d_scores"} <= dict(inspect.getmembers(gradients)).keys()
    )


# Names and meanings from elsewhere ------------------------------------------------------------------------------------
NAMES = {
    "is_causal": r'is_causal is PyTorch\'s name; here it is causal \(bottom-right unless diagonal="top_left"\)',
    "dropout_p": "dropout_p is PyTorch's name; here it is dropout",
    "attn_mask": "attn_mask is PyTorch's name; here it is mask .* or bias",
    "enable_gqa": "enable_gqa is PyTorch's name; here it is always so",
    "softmax_scale": "FlashAttention's name; here it is scale",
    "window_size": "FlashAttention's name; here it is window",
    "attention_mask": "transformers' name; here it is mask",
    "causl": "no argument is called causl; did you mean causal?",
    "soft_cap": "did you mean softcap?",
    "key_length": "did you mean key_lengths?",
    "Scale": "did you mean scale?",
    "colour": "no argument is called colour; there are alibi, bias, causal",
    "return_lse": "rootdk.torch.attention",
}


@pytest.mark.parametrize("name", NAMES)
def test_names_from_elsewhere_are_translated(name):
    for function in (rootdk.attention, rootdk.explain_plan):
        with pytest.raises(TypeError, match=f"^{function.__name__}: .*{NAMES[name]}"):
            function(Q, Q, Q, **{name: True})
    if importlib.util.find_spec("torch") and name != "return_lse":
        import torch
        from rootdk.torch import attention

        for function in (rootdk.attention, attention):
            with pytest.raises(TypeError, match=f"^attention: .*{NAMES[name]}"):
                function(*(torch.from_numpy(Q),) * 3, **{name: True})


def test_no_scale_and_no_window_mean_what_they_mean_elsewhere(rng):
    q, k, v = (draw(rng, 1, 2, 9, 8) for _ in range(3))
    makers = [lambda x: x]
    if importlib.util.find_spec("torch"):
        import torch

        makers.append(torch.from_numpy)
    for make in makers:
        inputs = [make(x) for x in (q, k, v)]
        call = lambda **arguments: np.asarray(rootdk.attention(*inputs, **arguments))
        assert np.array_equal(call(scale=None), call())
        for one, other in (
            ((-1, -1), (None, None)),
            ((-1, 0), (None, 0)),
            ((2, -1), (2, None)),
            ([1, -1], (1, None)),
            ((-1, -1), None),
        ):
            assert np.array_equal(call(window=one), call(window=other)), one
        assert not np.array_equal(call(window=(-1, 0)), call())
        assert rootdk.explain_plan(*inputs, scale=None, window=(-1, -1)) == rootdk.explain_plan(
            *inputs, window=(None, None)
        )
        for bad in (-1, (-2, 0), (0, -3), np.int64(-1)):
            with pytest.raises(ValueError, match="window: -[123], but a side is a number from 0"):
                call(window=bad)
            with pytest.raises(ValueError, match="window: -[123]"):
                rootdk.explain_plan(*inputs, window=bad)


def test_heads_are_judged(rng):
    q, k, v = (draw(rng, 1, 2, 64, 16) for _ in range(3))
    q[:, 1] *= 40
    soft, frozen = rootdk.attention(q, k, v, stats="full")[1].judge()[0]
    assert soft.verdict == "soft" and frozen.verdict == "frozen" and frozen.fix
    assert rootdk.attention(q, k, v, stats="full")[1].judge_head(1) == frozen


def test_a_plan_is_explained(rng):
    q = draw(rng, 1, 2, 64, 16)
    assert "fused" in rootdk.explain_plan(q, q, q, causal=True)
    assert "reference" in rootdk.explain_plan(*(q.astype(np.float64),) * 3)


# Threads, forks and Ctrl-C --------------------------------------------------------------------------------------------
def test_many_threads_get_the_same_bits(rng):
    q, k, v = (draw(rng, 1, 4, 200, 32) for _ in range(3))
    expected = rootdk.attention(q, k, v)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(rootdk.attention(q, k, v, stats="full")[0])) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and all(np.array_equal(out, expected) for out in found)


def run(code, **options):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120, **options
    )


def test_a_fork_computes():
    done = run("""
        import os, numpy as np, rootdk
        x = np.random.default_rng(0).standard_normal((2, 4, 300, 32)).astype(np.float32)
        expected = rootdk.attention(x, x, x)
        child = os.fork()
        if child == 0:
            os._exit(0 if np.array_equal(rootdk.attention(x, x, x), expected) else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert np.array_equal(rootdk.attention(x, x, x), expected)
        print("both")
    """)
    assert done.stdout == "both\n", done.stderr


def test_the_interpreter_is_free_meanwhile():
    done = run("""
        import threading, time, numpy as np, rootdk
        x = np.zeros((1, 8, 3000, 64), np.float32)
        ticks, stop = [], threading.Event()
        def tick():
            while not stop.is_set():
                ticks.append(time.perf_counter()); time.sleep(0.001)
        thread = threading.Thread(target=tick); thread.start()
        start = time.perf_counter(); rootdk.attention(x, x, x); end = time.perf_counter()
        stop.set(); thread.join()
        inside = [t for t in ticks if start < t < end]
        print(len(inside) > 3)
    """)
    assert done.stdout == "True\n", done.stderr


def test_ctrl_c_is_heard_during_a_long_call():
    # f64 runs in the reference kernel: this would take minutes.
    code = """
        import numpy as np, rootdk, signal
        signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background start with it ignored
        x = np.zeros((4, 64, 2000, 64), np.float64)
        print("ready", flush=True)
        try:
            rootdk.attention(x, x, x)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    start = time.monotonic()
    assert process.communicate(timeout=60)[0] == "interrupted\n"
    assert time.monotonic() - start < 30


def test_in_parts_or_whole_the_bits_are_the_same(rng):
    """4e9 operations make a part: this problem has several, its halves have their own."""
    q, k, v = (draw(rng, 2, 4, 1024, 256) for _ in range(3))
    mask = rng.random((2, 1, 1024, 1024)) < 0.5
    arguments = dict(scale=[0.1, 0.2, 0.05, 0.07], sink=[0.0, 1.0, 2.0, 3.0], key_lengths=[1000, 700], mask=mask)
    out, stats = rootdk.attention(q, k, v, stats="full", **arguments)
    for b in range(2):
        for h in range(4):
            alone, its = rootdk.attention(
                q[b : b + 1, h : h + 1],
                k[b : b + 1, h : h + 1],
                v[b : b + 1, h : h + 1],
                scale=[arguments["scale"][h]],
                sink=[float(h)],
                key_lengths=[arguments["key_lengths"][b]],
                mask=mask[b : b + 1],
                stats="full",
            )
            assert np.array_equal(out[b, h], alone[0, 0])
            assert stats.entropy[b, h] == its.entropy[0, 0] and stats.raw_max[b, h] == its.raw_max[0, 0]


# Padding --------------------------------------------------------------------------------------------------------------
def test_padding_is_what_cutting_it_off_gives(rng):
    q, k, v = (rng.standard_normal((3, heads, 9, 8), dtype=np.float32) for heads in (4, 2, 2))
    starts, lengths, queries = [0, 3, 2], [9, 9, 7], [9, 9, 7]
    out, stats = rootdk.attention(
        q,
        k,
        v,
        causal=True,
        diagonal="top_left",
        key_starts=starts,
        key_lengths=lengths,
        query_lengths=queries,
        stats="full",
    )
    for b, (start, end) in enumerate(zip(starts, lengths)):
        item = slice(b, b + 1), slice(None), slice(start, end)
        want, alone = rootdk.attention(q[item], k[item], v[item], causal=True, diagonal="top_left", stats="full")
        np.testing.assert_allclose(out[b, :, start:end], want[0], rtol=1e-5, atol=1e-6)
        assert not out[b, :, :start].any() and not out[b, :, end:].any()
        for name in ("entropy", "score_total_variance", "mean_p_max"):
            np.testing.assert_allclose(
                np.asarray(getattr(stats, name))[b], np.asarray(getattr(alone, name))[0], rtol=1e-4
            )
        assert (np.asarray(stats.row_count)[b] == queries[b]).all()


def test_documents_of_every_item(rng):
    q, k, v = (rng.standard_normal((2, 2, 7, 4), dtype=np.float32) for _ in range(3))
    out = rootdk.attention(q, k, v, causal=True, documents=[[0, 3, 7], [0, 5]])
    for b, starts in enumerate([[0, 3, 7], [0, 5]]):
        want = rootdk.attention(q[b : b + 1], k[b : b + 1], v[b : b + 1], causal=True, documents=starts)
        np.testing.assert_array_equal(out[b], want[0])
