"""Two hundred random problems over 1, 2, 4 and 8 ranks, in every way that can."""

from __future__ import annotations

import pytest
from test_distributed import HERE, WORLDS, by_torchrun, checked, said_by

PROBLEMS = 200


@pytest.mark.parametrize("world", WORLDS)
def test_outputs_gradients_and_statistics(world):
    found = said_by([str(HERE / "distributed_worker.py"), f"{world}=problems:1000:{PROBLEMS}"], timeout=3600)
    checked([one[f"problems:1000:{PROBLEMS}"] for one in found], 2 * PROBLEMS)
    for name in ("o", "dq", "dk", "dv", "dscale", "dsink", "dbias"):
        assert max(one[f"problems:1000:{PROBLEMS}"]["worst"].get(name, 0) for one in found) > 0.001, name


@pytest.mark.parametrize("world", WORLDS)
def test_as_torchrun_starts_them(world):
    """Two hundred more, shared out among the numbers of ranks."""
    share = PROBLEMS // len(WORLDS)
    checked(by_torchrun(world, 2000 + share * WORLDS.index(world), share, timeout=3600), 2 * share)


def test_every_byte_of_many_problems():
    for world in (2, 4, 8):
        for one in said_by([str(HERE / "distributed_worker.py"), f"{world}=traffic:60"], timeout=3600):
            for what, sent, planned in one["traffic:60"]:
                assert sent == planned, what
