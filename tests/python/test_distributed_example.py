"""examples/context_parallel learns the same over four ranks as on one."""

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

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "context_parallel" / "train.py"


def losses(*launcher):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, *launcher, str(EXAMPLE), "--steps", "40", "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


LEAVING = """
import os
import torch, torch.distributed as dist
os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
{before}
dist.init_process_group("gloo")
{after}
def threads():
    names = (open(f"/proc/self/task/{{task}}/comm").read().strip() for task in os.listdir("/proc/self/task"))
    return [name for name in names if "gloo" in name]
assert threads()
dist.destroy_process_group()
print(threads())
"""
IMPORTS = "import rootdk.distributed as rd"
LIVES = {
    "an optimizer": (IMPORTS, "torch.optim.AdamW(torch.nn.Linear(2, 2).parameters())"),
    "imported late": ("", IMPORTS),
    "a graph": (IMPORTS, "x = torch.ones(1, 1, 3, 8, requires_grad=True); out = rd.attention(x, x, x, way='ring')"),
}


@pytest.mark.skipif(sys.platform != "linux", reason="looks for threads in /proc")
@pytest.mark.parametrize("what", LIVES)
def test_no_thread_outlives_the_group(what):
    """What an optimizer imports would keep the group, and gloo's threads would see the process end around them; so
    would what is imported while there is a group, and what autograd keeps for a backward that never comes."""
    program = LEAVING.format(before=LIVES[what][0], after=LIVES[what][1])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.strip() == "[]", done.stdout + done.stderr[-2000:]


def test_four_ranks_learn_what_one_learns():
    running = losses(), losses("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4")
    said = [process.communicate(timeout=300) for process in running]
    assert all(process.returncode == 0 for process in running), [err[-2000:] for _, err in said]
    one, four = (json.loads(out.splitlines()[-1]) for out, _ in said)
    assert len(one) == len(four) == 40
    assert one[0] > 3.4 and one[-1] < 1.0, "it learns: guessing costs ln 32 = 3.47"
    # Sums of the same numbers in another order: a first loss is off by roundings of its own size. After that, Adam
    # turns an error of 2^-24 of a gradient into one of 2^-24 of a step of the learning rate, 1e-2, for each weight;
    # forty steps of that are 2^-24 · 0.4 a weight, and the loss moves by a gradient's length, some 10² in all, times as
    # much.
    assert abs(one[0] - four[0]) <= 8 * 2.0**-24 * one[0]
    assert max(abs(a - b) / a for a, b in zip(one, four)) < 1e-4
