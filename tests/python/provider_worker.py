"""What the ranks of test_provider_ranks.py do: PyTorch's own context parallel over gloo, its ring computed by rootdk.
Rank 0 says how far from the exact attention each result is, in JSON.

usage: provider_worker.py RANKS"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys

import rootdk.torch
import torch
import torch.distributed as dist
import torch.nn.functional as F
from conftest import gradient_tolerance, tolerance
from distributed_worker import begin, free_port
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import _attention, context_parallel
from torch.distributed.tensor.experimental._attention import _cp_options, context_parallel_unshard, set_rotate_method

OWN = F.scaled_dot_product_attention


def scaled_dot_product_attention(q, k, v, is_causal=False, scale=None):
    """As PyTorch's is on a CUDA device: on the CPU it calls an operator that its context parallel does not know."""
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, is_causal=is_causal, scale=scale)[0]


def on_the_cpu(mesh):
    """What PyTorch says of its own route there."""
    x = torch.randn(1, 2, 4 * dist.get_world_size(), 8)
    try:
        with context_parallel(mesh, buffers=[x], buffer_seq_dims=[2]):
            F.scaled_dot_product_attention(x, x, x, is_causal=True)
    except NotImplementedError as error:
        return str(error)
    return ""


def drawn(dtype, ranks):
    g = torch.Generator().manual_seed(0)
    return [torch.randn(2, 4, 6 * ranks, 8, generator=g).to(dtype) for _ in range(4)]


def compared(mesh, dtype, causal, balanced, method, calls):
    """Ratios of errors to what is allowed, of the output and the three gradients."""
    ranks = dist.get_world_size()
    q, k, v, w = drawn(dtype, ranks)
    set_rotate_method(method)
    _cp_options.enable_load_balance = balanced
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    wanted = OWN(*exact, is_causal=causal, scale=0.3)
    (wanted * w.double()).sum().backward()
    q, k, v, w = (x.clone() for x in (q, k, v, w))
    before = len(calls)
    with context_parallel(mesh, buffers=[q, k, v, w], buffer_seq_dims=[2] * 4):
        for x in (q, k, v):
            x.requires_grad_()
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=0.3)
        (out * w).sum().backward()
        found = [out.detach(), *(x.grad for x in (q, k, v))]
        for x in (q, k, v):
            x.requires_grad_(False)
        found = context_parallel_unshard(mesh, found, [2] * 4)
    # Each part is as far off as one call may be, and stored once; what merges them rounds once a part, in float32.
    q, k, v, _ = (x.float() for x in drawn(dtype, ranks))
    unit = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-24
    allowed = tolerance(q.numpy(), k.numpy(), v.numpy(), 0.3) + unit * float(v.abs().max())
    allowed = [allowed * ranks] + [gradient_tolerance(q.numpy(), k.numpy(), v.numpy(), 0.3, unit) * ranks] * 3
    want = [wanted.detach(), *(x.grad for x in exact)]
    off = [float((a.double() - b).abs().max()) / float(may) for a, b, may in zip(found, want, allowed)]
    return {"off": off, "calls": len(calls) - before}


def work(rank, ranks, port, said):
    begin(rank, ranks, port)
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (ranks,))
    found = {"own": on_the_cpu(mesh)}
    provider, calls = rootdk.torch._provider, []
    for name in ("_ring_forward", "_ring_backward"):
        inner = getattr(provider, name)
        setattr(provider, name, lambda *a, inner=inner, name=name, **m: (calls.append(name), inner(*a, **m))[1])
    torch.nn.attention.activate_flash_attention_impl("ROOTDK")
    F.scaled_dot_product_attention = scaled_dot_product_attention
    for dtype in (torch.float32, torch.bfloat16):
        for causal, balanced in ((True, True), (True, False), (False, False)):
            for method in ("allgather", "alltoall"):
                name = f"{dtype}, causal {causal}, balanced {balanced}, {method}"
                found[name] = compared(mesh, dtype, causal, balanced, method, calls)
    F.scaled_dot_product_attention = OWN
    torch.nn.attention.restore_flash_attention_impl()
    said.send(found)
    dist.barrier()
    os._exit(0)


def main():
    ranks = int(sys.argv[1])
    forked, port = multiprocessing.get_context("fork"), free_port()
    pipes = [forked.Pipe(duplex=False) for _ in range(ranks)]
    for rank in range(ranks):
        forked.Process(target=work, args=(rank, ranks, port, pipes[rank][1]), daemon=True).start()
    for _, theirs in pipes:
        theirs.close()
    for mine, _ in pipes:
        print("JSON " + json.dumps(mine.recv()), flush=True)


if __name__ == "__main__":
    assert _attention is not None
    main()
