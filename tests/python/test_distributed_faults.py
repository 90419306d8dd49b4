"""A rank that is killed, stopped, stalls or raises: every other one says so within its timeout and three seconds,
sooner where it raises; and nobody is named who only heard of it."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch

if not torch.distributed.is_available():
    pytest.skip("torch was built without distributed", allow_module_level=True)

SCRIPT = pathlib.Path(__file__).with_name("distributed_faults.py")
TIMEOUT = 2.0
CASES = [
    (4, 2, "kill", "ring"),
    (4, 1, "kill", "heads"),
    (3, 1, "kill", "all_gather"),
    (4, 1, "kill", "two_levels"),  # two nodes of two ranks
    (4, 1, "stop", "heads"),
    (2, 0, "stop", "all_gather"),  # whose process keeps the ranks' store
    (4, 3, "stall", "two_levels"),
    (3, 1, "die in backward", "ring"),
    (3, 1, "die in backward of heads", "heads"),
    (3, 2, "die in merge", "ring"),
    (3, 2, "raise", "ring"),
    (3, 2, "raise inside", "ring"),
    (3, 0, "raise in backward", "all_gather"),
    (4, 1, "raise inside, leaves", "ring"),
    (4, 0, "raise inside, leaves", "ring"),
    (4, 1, "kill, leaves", "ring"),
    (4, 1, "stop and go on", "ring"),
    (4, 1, "other call", "ring"),
]
PATIENT = 30.0
EARLY = [(4, 1, "raise inside", "ring"), (3, 1, "interrupt inside", "all_gather"), (4, 1, "other call", "heads")]


def said_of(cases, timeout):
    """Two at the same time: they mostly wait."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(SCRIPT), str(timeout), *(":".join(map(str, case)) for case in cases)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return {case: json.loads(line) for case, line in zip(cases, done.stdout.splitlines())}


@pytest.fixture(scope="module")
def told():
    return said_of(CASES, TIMEOUT)


@pytest.fixture(scope="module")
def told_early():
    return said_of(EARLY, PATIENT)


def named(case, one):
    """Whether what a rank says of another is right."""
    _, victim, kind, _ = case
    assert one["error"].startswith("RankError"), one
    if kind == "other call":  # nobody knows which of two calls is the wrong one
        assert "out of step: rank" in one["error"] and "merge" in one["error"] and one["ranks"] == [], one
    elif "leaves" in kind:  # what they wrote goes with the rank that keeps the store
        assert one["ranks"] in ([], [victim]), one
    else:
        assert victim in one["ranks"], one
    if kind.startswith("raise") and one["ranks"]:
        assert "slope" in one["error"] or "alibi" in one["error"] or "Slip" in one["error"], one


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(map(str, case)))
def test_everybody_hears_of_it_in_time(told, case):
    world, victim, kind, _ = case
    said = {one["rank"]: one for one in told[case]}
    speaks = kind.startswith(("raise", "stop and go on", "other call"))
    assert set(said) == {rank for rank in range(world) if speaks or rank != victim}
    since = said[victim]["after"] if kind == "raise inside, leaves" else 0  # one after another hears of it
    for rank, one in said.items():
        assert one["after"] is not None, f"rank {rank} hangs"
        assert one["steps"] >= 2, "it worked before"
        if rank != victim:
            assert one["after"] <= since + TIMEOUT + 3, one
            named(case, one)
    if kind == "stop and go on":
        assert said[victim]["error"].startswith("RankError") and said[victim]["ranks"] == [], "it stopped itself"
    assert victim == 0 or kind == "other call" or any(victim in one["ranks"] for one in said.values())


@pytest.mark.parametrize("case", EARLY, ids=lambda case: " ".join(map(str, case)))
def test_who_waits_hears_at_once_of_what_is_raised(told_early, case):
    """A look a second, one second for the store to answer and one for what others say: not the timeout."""
    for one in told_early[case]:
        assert one["after"] is not None and one["after"] <= 6, one
        if one["rank"] != case[1]:
            named(case, one)
            assert "KeyboardInterrupt" in one["error"] or "interrupt" not in case[2], one
