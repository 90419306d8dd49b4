"""The run that explodes does so, is seen, and recovers."""

from __future__ import annotations

import pathlib
import sys

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples" / "python"))
from exploding_run import svg, train


def test_explodes_and_recovers(seed=1):
    """The tutorial runs seed 0."""
    plain, clipped, normed = train(seed=seed), train(seed=seed, clip_from=100), train(seed=seed, norm=True)
    # Uniform guessing costs ln 16 = 2.77; a run that has learned to copy costs next to nothing.
    assert plain.losses[-1] > 1.0 and max(plain.largest) > 500
    assert clipped.losses[-1] < plain.losses[-1] / 4 and clipped.largest[-1] < 60
    assert normed.losses[-1] < 0.2 and max(normed.largest) < 50
    # |q| = |k| = √8 after the norm, so a score cannot pass √8.
    assert max(normed.largest) <= 8**0.5 * (1 + 1e-5)
    assert plain.losses[99] == clipped.losses[99]  # the same run until it is mended
    frozen = [event for event in plain.watch.alarms if event.what == "trace_j"]
    assert {event.layer for event in frozen} == {"attention.0", "attention.1"} and len(frozen) == 2
    assert all(event.cause == "growth" and event.step < 80 for event in frozen)
    assert normed.watch.alarms == []
    assert "<polyline" in svg({"a": plain, "b": clipped})
