"""What a process has in memory while attention over ranks runs, beside what the plan says: the engine's own workspace
is in it, and every copy. Run with MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ set, so that what is freed goes
back."""

from __future__ import annotations

import gc
import pathlib

import rootdk.distributed as rd
import torch

HEADS, TOKENS, DIM = 64, 512, 32
STATUS, REFERENCES = pathlib.Path("/proc/self/status"), pathlib.Path("/proc/self/clear_refs")


def bytes_of(field):
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def resident(rank, ranks, ways, machine):
    """By dtype and way: the most bytes beyond q, k, v and do, forward and backward; and the plan's."""
    layout, sight = rd.Layout.zigzag(TOKENS, ranks), rd.Sight.all(TOKENS, TOKENS, causal=True)
    out = {}
    for dtype in (torch.float32, torch.bfloat16):
        planned = rd.plan(rd.Sizes(1, HEADS, HEADS, DIM, DIM, dtype.itemsize), layout, sight=sight, machine=machine)
        for way in ways:
            for held in (rd.Layout.even(8 * ranks, ranks), layout):  # the first time more than tensors is made
                q, k, v, d_out = (torch.randn(1, HEADS, held.lengths[rank], DIM).to(dtype) for _ in range(4))
                tensors = [x.requires_grad_() for x in (q, k, v)]
                gc.collect()
                REFERENCES.write_text("5")  # the peak begins anew
                before = bytes_of("VmRSS")
                result = rd.attention(*tensors, causal=True, layout=held, way=way, machine=machine)
                result.backward(d_out)
                peak = bytes_of("VmHWM") - before
                del result, tensors, q, k, v, d_out
            out[f"{str(dtype)[6:]}, {way}"] = [peak, planned.costs[way].memory]
    return out
