"""Attention over ranks: outputs, gradients and statistics as one rank has them, the bytes that the plan says, memory
that falls with ranks, the same bits every time, and one line where something does not fit."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import torch

if not torch.distributed.is_available():
    pytest.skip("torch was built without distributed", allow_module_level=True)

HERE = pathlib.Path(__file__).parent
WORLDS = (1, 2, 4, 8)
SEEDS = {1: 4, 2: 10, 4: 8, 8: 4}


def said_by(command, timeout=300, **variables):
    """The JSON that each rank says."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **variables}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=timeout, env=environment)
    found = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("JSON ")]
    assert done.returncode == 0 and found, done.stderr[-3000:]
    assert not any("failed" in one for one in found), [one.get("failed") for one in found]
    return found


@functools.cache
def everybody():
    commands = []
    for world in WORLDS:
        count = SEEDS[world]
        tasks = [f"problems:{10 * world}:{count}", "bits", f"traffic:{count}", "halves", "memory"]
        tasks += ["stats", "chosen", "watch", "one_row", "short_documents"]
        tasks += [f"hidden:{2 * SEEDS[world]}"] if world < 8 else []
        if world == 4:
            tasks += [
                "refusals",
                "collectives",
                "packed:137:2041:89",
                "checkpoints",
                "fetched",
                "compiled",
                "different_gradients",
            ]
        commands.append(f"{world}={','.join(tasks)}")
    return said_by([str(HERE / "distributed_worker.py"), *commands])


def ranks(world):
    return [one for one in everybody() if one["ranks"] == world]


def checked(found, least):
    for one in found:
        assert one["failures"] == []
        assert one["computed"] >= least


@pytest.mark.parametrize("world", WORLDS)
def test_one_row_of_a_mask_or_bias_is_that_of_all_queries(world):
    for one in ranks(world):
        assert one["one_row"]["failures"] == []
        assert len(one["one_row"]["worst"]) == (16 if world > 2 else 12)
        assert max(one["one_row"]["worst"].values()) <= 1, one["one_row"]


def problems(world):
    return [next(found for name, found in one.items() if name.startswith("problems")) for one in ranks(world)]


@pytest.mark.parametrize("world", WORLDS)
def test_random_problems_are_as_on_one_rank(world):
    checked(problems(world), 2 * SEEDS[world])


def test_the_bounds_say_something():
    for name in ("o", "dq", "dk", "dv"):
        assert max(one["worst"].get(name, 0) for world in WORLDS for one in problems(world)) > 0.01, name


@pytest.mark.parametrize("world", WORLDS)
def test_the_same_bits_every_time(world):
    for one in ranks(world):
        assert set(one["bits"]) == {"ring", "all_gather", "heads", "two_levels"} and all(one["bits"].values())


@pytest.mark.parametrize("world", WORLDS)
def test_where_nothing_is_merged_nothing_is_widened(world):
    """Packed documents that lie whole on a rank have the bits that the engine gives them in 16 bits, backward too."""
    for one in ranks(world):
        assert one["short_documents"] == {"differ": [], "widened": False}


@pytest.mark.parametrize("world", WORLDS[:-1])
def test_what_masks_hide_changes_nothing(world):
    for one in ranks(world):
        found = next(found for name, found in one.items() if name.startswith("hidden"))
        assert found["differ"] == []
        assert min(n for way, n in found["compared"].items() if way != "two_levels" or world > 2) > SEEDS[world] / 2


def test_a_checkpoint_changes_no_bit():
    for one in ranks(4):
        assert len(one["checkpoints"]) == 16
        assert all(map(all, one["checkpoints"].values())), one["checkpoints"]


def test_backward_asks_once_for_what_forward_kept():
    for one in ranks(4):
        assert one["fetched"] == dict.fromkeys(("ring", "all_gather", "heads", "two_levels"), 1)


def test_a_compiled_caller_is_served_and_nothing_here_is_traced():
    for one in ranks(4):
        assert one["compiled"] == {"same": True, "warnings": 0}


def test_ranks_may_want_gradients_of_different_tensors():
    for one in ranks(4):
        assert len(one["different_gradients"]) == 4 and all(one["different_gradients"].values())


def traffic(one):
    return next(found for name, found in one.items() if name.startswith("traffic"))


@pytest.mark.parametrize("world", WORLDS)
def test_every_byte_is_in_the_plan(world):
    for one in ranks(world):
        assert len(traffic(one)) >= 4 * SEEDS[world]
        for what, sent, planned in traffic(one):
            assert sent == planned, what
    assert world == 1 or any(sum(sent) for one in ranks(world) for _, sent, _ in traffic(one))


@pytest.mark.parametrize("world", WORLDS[1:])
def test_16_bit_numbers_travel_as_they_are(world):
    """What is widened for computing is widened where it is computed."""
    for way in ("ring", "all_gather", "heads", "two_levels"):
        sent = [one["halves"][way] for one in ranks(world)]
        assert all(wide == 2 * narrow for wide, narrow in sent) and sum(wide for wide, _ in sent) > 0, (way, sent)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_memory_falls_with_ranks(dtype):
    """With twice the ranks each needs half, and what does not fall: nothing that counts. A quarter more for what is in
    transit."""

    def most(way, world):
        return max(one["memory"][f"{dtype}, {way}"] for one in ranks(world))

    for world in WORLDS[1:]:
        assert most("heads", world) * world <= 1.25 * most("heads", 1), world
    for world in WORLDS[2:]:  # of the ring's half, since one rank sends nothing
        assert most("ring", world) * world <= 1.25 * 2 * most("ring", 2), world
    assert most("all_gather", 8) > 1.5 * most("ring", 8), "the measure sees what is gathered"


@functools.cache
def resident():
    """By number of ranks, the most of any rank, and what the plan says."""
    found = said_by([str(HERE / "distributed_worker.py"), "2=resident", "4=resident"],
                    MALLOC_MMAP_THRESHOLD_="16384", MALLOC_TRIM_THRESHOLD_="0")  # fmt: skip
    out = {}
    for one in found:
        for name, (peak, planned) in one["resident"].items():
            before = out.setdefault(one["ranks"], {}).setdefault(name, [0, planned])
            before[0] = max(before[0], peak)
    return out


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("world", [2, 4])
def test_the_plan_says_how_much_memory_it_takes(world):
    """Forward and backward, the engine's workspace included: never less than is there, and not twice as much."""
    for name, (peak, planned) in resident()[world].items():
        assert peak <= planned <= 2 * peak, (name, peak, planned)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_takes_half_with_twice_the_ranks():
    """But for the engine's workspace and its thread, 6.3 MB of 25.3 in float32, which are the same for any share."""
    two, four = resident()[2], resident()[4]
    for name in (f"{dtype}, {way}" for dtype in ("float32", "bfloat16") for way in ("ring", "heads")):
        assert 2 * four[name][0] <= two[name][0] + (7 << 20), name


@pytest.mark.parametrize("world", WORLDS)
def test_statistics_merge_over_rows_and_heads(world):
    for one in ranks(world):
        found = one["stats"]
        assert all(found["rows"].values()), [name for name, same in found["rows"].items() if not same]
        assert found["heads"], "heads beside each other are those of one rank, to the bit"
        assert found["names"] == (["a", "only on 1"] if world > 1 else ["a"])


def test_statistics_of_a_step_are_one_collective():
    """Of 24 layers; one more in the first step, whose packets outgrow what was known to suffice."""
    for one in ranks(4):
        first, *others = one["collectives"]
        assert first in ([1, 0], [2, 0]) and others == [[1, 0]] * 2


@pytest.mark.parametrize("world", WORLDS)
def test_a_watch_sees_what_all_ranks_compute(world):
    """Scores of 8 components of about 1 are off by some roundings; a merge of rows rounds a few times more."""
    for one in ranks(world):
        found = dict(one["watch"])
        found.pop("what one raises")
        alone = found.pop("alone")
        assert len(found) == (11 if world == 4 else 4)
        for name, seen in found.items():
            ours, wanted = seen if isinstance(seen, list) else (seen, alone)
            for column in alone:
                assert np.allclose(ours[column], wanted[column], rtol=2.0**-18, atol=0), (name, column, ours, wanted)


@pytest.mark.parametrize("world", WORLDS[1:])
def test_all_ranks_hear_of_what_a_watch_does_not_know_on_one(world):
    for rank, one in enumerate(ranks(world)):
        text, after = one["watch"]["what one raises"]
        words = "ValueError: over_ranks: a: its heads are nowhere"
        assert text == (words if rank == 1 else f"RankError: rank 1: {words}") and after < 5


def test_a_way_is_chosen_and_groups_and_autocast_count():
    for rank, one in enumerate(ranks(4)):
        assert one["chosen"]["ssmax"] == [1, 4, 5, 8] and one["chosen"]["autocast"] == "torch.bfloat16"
        assert ("group" in one["chosen"]) == (rank < 2)
        assert one["chosen"]["schedule is made once"]


REFUSED = {
    "dim": ("RankError: rank 1: ValueError: k: dim_qk is 6, but q has 8", "ValueError: k: dim_qk is 6, but q has 8"),
    "dtype": ("RankError: rank 1: q: dtype is torch.float16, but torch.float32 on rank 0",) * 2,
    "heads": ("RankError: rank 1: q: heads_q is 2, but 4 on rank 0",) * 2,
    "causal": ("RankError: rank 1: causal, diagonal, window, lengths or documents is another than on rank 0",) * 2,
    "layout": ("RankError: rank 1: ValueError: layout: 'diagonal'", "ValueError: layout: 'diagonal'"),
    "zigzag": ("ValueError: rank 1: q: length is 2, but the layout has 4 there",) * 2,
    "dropout": ("ValueError: dropout: 0.1, but which probabilities are dropped",) * 2,
    "name": ("TypeError: attention: is_causal is PyTorch's name",) * 2,
    "gaps": ("ValueError: stats: only the level can be chosen over ranks",) * 2,
    "ring": ("ValueError: way: ring cannot compute this; scale: ssmax wants all of a row's keys",) * 2,
    "rows": ("ValueError: way: heads cannot compute this; mask: is of the queries of this rank",) * 2,
    "timeout": ("RankError: rank 1: ValueError: timeout: 0, but seconds", "ValueError: timeout: 0, but seconds"),
    "gradients": ("RankError: rank 1: whether gradients are wanted is another than on rank 0",) * 2,
    "documents": ("ValueError: documents: [0, 3, 999] for q, but ascending starts up to 20 are wanted",) * 2,
    "mask's keys": ("RankError: rank 1: mask: of 19 keys, but 20 are wanted", "ValueError: mask: of 19 keys, but 20"),
    "bias's keys": ("RankError: rank 1: bias: of 21 keys, but 20 are wanted", "ValueError: bias: of 21 keys, but 20"),
    "bias's rows": (
        "RankError: rank 1: ValueError: bias: [1, 1, 4, 20], but [1, 4, 5] and all keys are wanted",
        "ValueError: bias: [1, 1, 4, 20], but [1, 4, 5] and all keys are wanted",
    ),
    "mask's heads": ("RankError: rank 1: ValueError: mask: [1, 2, 5, 20], but", "ValueError: mask: [1, 2, 5, 20], but"),
    "all ranks' keys": ("ValueError: mask: of 19 keys, but 20 are wanted, those of all ranks, or 1",) * 2,
    "and then it works": ("[1, 4, 5, 8]",) * 2,
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_said_before_data_moves(what):
    others, odd = REFUSED[what]
    for rank, one in enumerate(ranks(4)):
        text, sent = one["refusals"][what]
        assert text.startswith(odd if rank == 1 else others) and "\n" not in text
        assert sent == 0


def by_torchrun(world, first, count, timeout=300):
    """What each rank found in so many problems."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    task = f"problems:{first}:{count}"
    found = [one[task] for one in said_by([*torchrun, str(HERE / "distributed_worker.py"), task], timeout)]
    assert len(found) == world
    return found


@pytest.mark.parametrize("world", WORLDS)
def test_torchrun(world):
    checked(by_torchrun(world, first=100 + world, count=2), 4)


def test_packed_documents_of_any_lengths():
    """137, 2,041 and 89 tokens over four ranks: nothing divides anything."""
    for one in ranks(4):
        found = one["packed:137:2041:89"]
        assert found["failures"] == [] and len(found["worst"]) == 8
        assert all(0 < ratio <= 1 for ratio in found["worst"].values()), found["worst"]


def test_what_times_the_ring_on_a_gpu_checks_itself():
    """bench/cuda/ring.py: results, bits and bytes, on a few tokens where there is no GPU."""
    program = HERE.parent.parent / "bench/cuda/ring.py"
    said = subprocess.run(
        [sys.executable, program],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )
    assert said.returncode == 0, said.stderr
    assert said.stdout.count("as it should be") == 4
