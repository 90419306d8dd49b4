"""A rank that is killed, stopped, stalls or raises: every other one says so within its timeout and three seconds."""

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
]


@pytest.fixture(scope="module")
def told():
    """Two at the same time: they mostly wait."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(SCRIPT), str(TIMEOUT), *(":".join(map(str, case)) for case in CASES)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return {case: json.loads(line) for case, line in zip(CASES, done.stdout.splitlines())}


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(map(str, case)))
def test_everybody_hears_of_it_in_time(told, case):
    world, victim, kind, _ = case
    raises = kind.startswith("raise")
    said = {one["rank"]: one for one in told[case]}
    assert set(said) == {rank for rank in range(world) if raises or rank != victim}
    for rank, one in said.items():
        assert one["after"] is not None, f"rank {rank} hangs"
        assert one["after"] <= TIMEOUT + 3, one
        assert one["steps"] >= 2, "it worked before"
        if rank != victim:
            assert one["error"].startswith("RankError") and victim in one["ranks"], one
            if raises:
                assert "slope" in one["error"] or "alibi" in one["error"] or "Slip" in one["error"], one
