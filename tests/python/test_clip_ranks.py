"""qk_clip with several processes: data parallel, FSDP2, tensor parallel; what it cannot know it refuses, on all ranks
alike."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

if not torch.distributed.is_available():
    pytest.skip("torch was built without distributed", allow_module_level=True)

WORKER = pathlib.Path(__file__).with_name("clip_worker.py")


def ranks(*cases, world=2):
    """What each rank says of each case: {case: [of rank 0, of rank 1, …]}. Processes are started once for all of
    them."""
    done = subprocess.run(
        [sys.executable, str(WORKER), str(world), ",".join(cases)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    said = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("JSON ")]
    return {case: [one[case] for one in said] for case in cases}


@pytest.fixture(scope="module")
def two():
    return ranks("ddp", "plain", "fsdp", "tp", "tp-norm", "not-seen", *(f"refused:{kind}" for kind in REFUSED))


REFUSED = {
    "unknown here": ("RuntimeError: .*failed on another rank", "ValueError: .*layers.1 .Attention. has no projections"),
    "fails here": ("RuntimeError: .*failed on another rank", "RuntimeError: .*single memory location"),
    "pipeline": ("RuntimeError: .*another rank", "ValueError: .*no module 'layers.1'; pass group="),
    "heads": ("ValueError: .*layers.0 has 2 heads on rank 1, but 4",) * 2,
    "tau": ("ValueError: .*tau and alpha differ",) * 2,
    "alone": ("ValueError: group: layers.0.*sharded over ranks that are not in it",) * 2,
    "packed": ("ValueError: .*layers.0.*side by side",) * 2,
    "fsdp1": ("ValueError: .*q_proj.weight is .*summon_full_params",) * 2,
}


@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_refused_on_all_ranks_and_nothing_changed(two, kind):
    for rank, (said, wanted) in enumerate(zip(two[f"refused:{kind}"], REFUSED[kind])):
        assert said["raised"], f"rank {rank} did not raise"
        assert re.match(wanted, said["raised"]), said["raised"]
        assert said["unchanged"]


def scaled(before, factors):
    """What the weights must have become, by hand."""
    out = {name: np.array(value) for name, value in before.items()}
    for label, factor in factors.items():
        label = label.removeprefix("module.")
        rows = np.repeat(np.sqrt(factor), 4)
        for side in "qk":
            gain = f"{label}.{side}_norm.weight"
            if gain in out:
                out[gain] = (1 + out[gain]) * np.sqrt(min(factor)) - 1
            else:
                out[f"{label}.{side}_proj.weight"] = (
                    out[f"{label}.{side}_proj.weight"].reshape(16, 16) * rows[:, None]
                ).ravel()
                out[f"{label}.{side}_proj.bias"] = out[f"{label}.{side}_proj.bias"] * rows
    return out


@pytest.mark.parametrize("way", ["ddp", "plain", "fsdp"])
def test_the_worst_batch_of_all_ranks_decides(two, way):
    one, other = two[way]
    assert one["after"] == other["after"] and one["before"] == other["before"]
    assert one["factors"] == other["factors"] and len(one["factors"]) == 2
    assert one["again"] == other["again"] == {}
    for label, factor in one["factors"].items():
        worst = np.maximum(one["first"][label], other["first"][label])
        assert (worst > 0.5).all() and one["first"][label] != other["first"][label]
        expected = 0.5 / worst
        if label.endswith("layers.1"):  # one gain for all heads
            expected = np.full(4, expected.min())
        np.testing.assert_allclose(factor, expected, rtol=1e-6)
    first = next(iter(one["factors"]))
    for said in (one, other):  # layer 0 gets what it got
        np.testing.assert_allclose(
            said["second"][first], np.array(said["first"][first]) * one["factors"][first], rtol=1e-4
        )
    wanted = scaled(one["before"], one["factors"])
    for name, value in one["after"].items():
        np.testing.assert_allclose(value, wanted[name.removeprefix("module.")], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("way", ["tp", "tp-norm"])
def test_tensor_parallel_ranks_clip_their_own_heads(two, way):
    said = two[way]
    first, second = (np.concatenate([s[when] for s in said]) for when in ("first", "second"))
    np.testing.assert_allclose(first, said[0]["alone"], rtol=1e-4)  # two heads each
    expected = np.minimum(1, 0.5 / first)
    if way == "tp-norm":
        expected = np.full(4, expected.min())
    for s in said:
        np.testing.assert_allclose(s["factors"], expected, rtol=1e-5)
        wanted = scaled(s["before"], {"layers.0": s["factors"]})
        for name, value in s["after"].items():
            np.testing.assert_allclose(value, wanted[name], rtol=1e-5, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(second, first * expected, rtol=1e-4)


def test_layers_that_a_rank_did_not_see_and_maxima_that_are_not_finite(two):
    for said in two["not-seen"]:
        assert said["first"] == {"layers.1": [0.5, 1, 1, 0.125]}
        assert said["second"] == {"layers.0": [1, 0.25, 1, 1]}
        assert len(said["told"]) == 1 and "layers.0, head 0; layers.0, head 3" in said["told"][0]
    assert two["not-seen"][0]["after"] == two["not-seen"][1]["after"]


@pytest.fixture(scope="module")
def four():
    return ranks("fsdp+tp", "small-group", world=4)


def test_a_group_of_ones_own(four):
    assert [s["factors"]["layers.0"][0] for s in four["small-group"]] == [1 / 6, 1 / 4, 1 / 6, 1 / 8]


def test_fsdp_over_tensor_parallel(four):
    said = four["fsdp+tp"]  # dp × tp: ranks 0 and 1 share a batch, 0 and 2 their heads
    first = np.stack([np.concatenate([said[2 * d]["first"], said[2 * d + 1]["first"]]) for d in range(2)])
    np.testing.assert_allclose(first[0], said[0]["alone"], rtol=1e-4)
    expected = np.minimum(1, 0.5 / first.max(0))
    for s in said:
        np.testing.assert_allclose(s["factors"], expected, rtol=1e-5)
        wanted = scaled(s["before"], {"layers.0": s["factors"]})
        for name, value in s["after"].items():
            np.testing.assert_allclose(value, wanted[name], rtol=1e-5, atol=1e-6, err_msg=name)
