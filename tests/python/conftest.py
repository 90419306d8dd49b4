"""What the tests share: a plain attention in double to hold results against."""

from __future__ import annotations

import importlib.util
import os
import shutil

import numpy as np
import pytest
from hypothesis import settings

# What cannot even be imported without torch.
TORCH = [
    f"test_{name}.py"
    for name in (
        "torch",
        "sdpa",
        "func",
        "autocast",
        "flash_attn",
        "cuda",
        "watch",
        "watch_places",
        "heads",
        "follow",
        "follow_mixed",
        "follow_models",
        "follow_softmax",
        "transformers",
        "models",
        "loggers",
        "masks",
        "megatron",
        "provider",
        "provider_ranks",
        "varlen",
        "clip",
        "clip_ranks",
        "distributed",
        "distributed_audit",
        "distributed_example",
        "distributed_faults",
        "distributed_plan",
        "distributed_team",
        "alarm",
        "audit_model",
        "audit_embeddings",
    )
]
collect_ignore = [] if importlib.util.find_spec("torch") else TORCH


# The same problems every time, unless one wants to go looking for others.
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("default" if os.environ.get("ROOTDK_TEST_RANDOM") else "same")


def no_columns():
    """The environment of a command whose output is compared: as wide as for a pipe, whatever this process has in
    COLUMNS."""
    return {name: value for name, value in os.environ.items() if name != "COLUMNS"}


def plain(q, k, v, *, scale=None, visible=None, bias=None, cap=None, sink=None):
    """(output, scores, probabilities) in double. `visible` and `bias` broadcast to [batch, heads, len_q, len_kv]."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat(group, 1), v.repeat(group, 1)
    c = q.shape[-1] ** -0.5 if scale is None else scale
    s = q @ k.swapaxes(-1, -2) * (np.asarray(c, np.float64)[None, :, None, None] if np.ndim(c) else c)
    if cap:
        s = cap * np.tanh(s / cap)
    if bias is not None:
        s = s + bias
    if visible is not None:
        s = np.where(visible, s, -np.inf)
    z = np.full(q.shape[1], -np.inf) if sink is None else np.broadcast_to(np.asarray(sink, np.float64), q.shape[1])
    z = z[None, :, None, None]
    m = np.maximum(s.max(-1, keepdims=True, initial=-np.inf), z)
    m = np.where(np.isfinite(m), m, 0)
    e = np.exp(s - m)
    total = e.sum(-1, keepdims=True) + np.exp(z - m)
    p = np.where(total > 0, e / np.where(total > 0, total, 1), 0)
    return p @ v, s, p


def tolerance(q, k, v, scale=None):
    """How far an f32 result may be from the exact one. A score is a sum of dim products: off by u·A for each level of
    the sum, with A no less than c·Σ|q||k|. exp turns that into a relative error of p, and o has roundings of its own:
    u·(2 + A)·max|v| a level. Sums of up to 70 keys and 40 dims are at most 8 levels deep in lanes of 4 or more; and the
    result is rounded to its own type once."""
    c = q.shape[-1] ** -0.5 if scale is None else float(np.max(np.abs(scale)))
    a = c * (np.abs(q).max() * np.abs(k).max() * q.shape[-1]) if q.size and k.size else 0
    u = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[
        str(q.dtype).rsplit(".", 1)[-1]
    ]
    wide = min(u, 2.0**-24)
    largest = float(np.abs(v).max()) if v.size else 0
    return (wide * (2 + a) * 8 + u) * largest + 1e-300


def gradient_tolerance(q, k, v, scale=None, unit=2.0**-24):
    """How far gradients of Σ w·o + Σ lse may be from the exact ones, where |w| is at most 1 and o is stored with this
    unit: dP is at most dim·max|v| and P at most 1, each off by u·(2 + A)·8 as above and by the unit; dS, which has
    both, times c·max|k| is added up over up to 40 queries or keys, whose roundings have either sign: √40 of them, 4 for
    the heads that share a key included."""
    c = q.shape[-1] ** -0.5 if scale is None else abs(scale)
    largest = max(float(abs(x).max()) if x.size else 0.0 for x in (q, k, v))
    a = c * q.shape[-1] * largest**2
    each = (2.0**-24 * 8 * (2 + a) + 2 * unit) * (1 + q.shape[-1] * largest)
    return each * max(1.0, c * largest) * 4


@pytest.fixture
def compiler(monkeypatch):
    """For what torch compiles by itself. ./run python hides compilers, as the package's users have none, and says here
    where they are."""
    monkeypatch.setenv("PATH", os.environ.get("ROOTDK_TEST_PATH", os.environ["PATH"]))
    if not shutil.which("g++"):
        pytest.skip("there is no compiler")


@pytest.fixture
def rng():
    return np.random.default_rng(7)
