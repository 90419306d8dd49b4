"""The processes of test_clip_ranks.py: python clip_worker.py WORLD CASE,CASE… Prints a line of JSON for each rank. They
are forked after the imports, which take longer than all the rest."""

from __future__ import annotations

import datetime
import json
import multiprocessing
import os
import socket
import sys
import warnings

import rootdk
import torch
import torch.distributed as dist
import torch.nn.functional as F
from rootdk._watch.clip import Clipper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Norm(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = torch.nn.Parameter(0.1 * torch.randn(dim))

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:]) * (1 + self.weight)


class Attention(torch.nn.Module):
    def __init__(self, norm=False):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (torch.nn.Linear(16, 16) for _ in range(3))
        self.o_proj = torch.nn.Linear(16, 16)
        self.head_dim = 4
        if norm:
            self.q_norm, self.k_norm = Norm(4), Norm(4)

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (-1, 4)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        if hasattr(self, "q_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        return self.o_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))


class Packed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(16, 48)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (4, 4)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)


class Model(torch.nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


def made(*layers):
    model = Model(*layers)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.mul_(6)
    return model


def whole(model):
    """All parameters, gathered."""
    return {
        name: (p.full_tensor() if hasattr(p, "full_tensor") else p).detach().clone()
        for name, p in model.named_parameters()
    }


def peaks(w):
    return {layer: w.stats(layer).raw_max[0].astype(float).tolist() for layer in w.layers}


def lists(state):
    return {name: p.flatten().tolist() for name, p in state.items()}


def looked(model, x):
    with rootdk.watch(model) as w:
        model(x)
    return w


def data_parallel(rank, wrap):
    """Each rank sees another batch: weights must stay the same, and the worst batch decides."""
    model = made(Attention(), Attention(norm=True), torch.nn.Identity())
    before = whole(model)
    if wrap == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    elif wrap == "fsdp":
        for layer in model.layers[:2]:
            fully_shard(layer)
        fully_shard(model)
    x = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(rank)) * (1 + rank)
    with rootdk.watch(model) as w, warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        with torch.no_grad():
            model(x)
        first = peaks(w)
        factors = w.qk_clip(tau=0.5)
        with torch.no_grad():
            model(x)
        second = peaks(w)
        again = w.qk_clip(tau=1e6)
    return {
        "first": first,
        "second": second,
        "factors": factors,
        "again": again,
        "before": lists(before),
        "after": lists(whole(model)),
    }


def tensor_parallel(rank, norm, data=1):
    """Heads 0 and 1 on one rank, 2 and 3 on the other; with `data` also FSDP over that."""
    plain = made(Attention(norm=norm))
    before = whole(plain)
    mesh = init_device_mesh(
        "cpu", (data, 2) if data > 1 else (2,), mesh_dim_names=("dp", "tp") if data > 1 else ("tp",)
    )
    model = made(Attention(norm=norm))
    model.load_state_dict(plain.state_dict())
    tp = mesh["tp"] if data > 1 else mesh
    parallelize_module(
        model,
        tp,
        {f"layers.0.{name}": ColwiseParallel() for name in ("q_proj", "k_proj", "v_proj")}
        | {"layers.0.o_proj": RowwiseParallel()},
    )
    if data > 1:
        fully_shard(model, mesh=mesh["dp"])
    batch = mesh["dp"].get_local_rank() if data > 1 else 0
    x = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(100 + batch))
    alone = peaks(looked(plain, x))["layers.0"]
    with rootdk.watch(model) as w, torch.no_grad():
        model(x)
        first = peaks(w)["layers.0"]
        factors = w.qk_clip(tau=0.5)["layers.0"]
        model(x)
        second = peaks(w)["layers.0"]
    return {
        "alone": alone,
        "first": first,
        "second": second,
        "factors": factors,
        "before": lists(before),
        "after": lists(whole(model)),
    }


def refused(rank, kind):
    """(what was raised, whether anything changed)"""
    model = made(Attention(), Attention())
    clipper, group, tau = Clipper(), None, 0.5
    if kind == "unknown here":
        if rank == 1:
            model.layers[1].mixer = model.layers[1].q_proj
            del model.layers[1].q_proj
    elif kind == "fails here":
        if rank == 1:
            model.layers[1].k_proj.weight = torch.nn.Parameter(torch.randn(16, 1).expand(16, 16))
    elif kind == "pipeline":
        if rank == 1:
            del model.layers[1]
    elif kind == "tau":
        tau += rank
    elif kind == "alone":
        fully_shard(model)
        group = False
    elif kind == "packed":
        model = made(Packed(), Packed())
        parallelize_module(
            model, init_device_mesh("cpu", (2,)), {f"layers.{i}.qkv": ColwiseParallel() for i in range(2)}
        )
    elif kind == "fsdp1":
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    before = {
        name: (p.to_local() if hasattr(p, "to_local") else p).detach().clone() for name, p in model.named_parameters()
    }
    heads = 2 if kind == "packed" or (kind == "heads" and rank == 1) else 4
    for number in range(1 if kind == "pipeline" and rank == 1 else 2):
        clipper.observe(0, f"layers.{number}", f"layers.{number}", [3.0] * heads)
    raised = ""
    try:
        clipper.clip(model, tau, 0.5, group=group)
    except (ValueError, RuntimeError) as error:
        raised = f"{type(error).__name__}: {error}"
    after = {name: (p.to_local() if hasattr(p, "to_local") else p).detach() for name, p in model.named_parameters()}
    return {"raised": raised, "unchanged": all(torch.equal(before[name], after[name]) for name in before)}


def not_seen(rank):
    """Rank 1 has never seen layer 1, rank 0 not layer 0 since the last call; a head of rank 1 is not finite."""
    model = made(Attention(), Attention())
    clipper = Clipper()
    clipper.observe(0, "layers.0", "layers.0", [0.1] * 4)
    if rank == 0:
        clipper.observe(0, "layers.1", "layers.1", [2.0, 0.1, 0.1, 8.0])
    first = clipper.clip(model, 1.0, 0.5)
    if rank == 1:
        clipper.observe(1, "layers.0", "layers.0", [float("nan"), 4.0, 0.1, float("inf")])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        second = clipper.clip(model, 1.0, 0.5)
    return {"first": first, "second": second, "told": [str(t.message) for t in told], "after": lists(whole(model))}


def small_group(rank):
    """Two of several ranks clip together."""
    group = dist.new_group([0, 2])
    model = made(Attention())
    clipper = Clipper()
    clipper.observe(0, "layers.0", "layers.0", [2.0 * (1 + rank)] * 4)
    factors = clipper.clip(model, 1.0, 0.5, group=group if rank in (0, 2) else False)
    return {"factors": factors}


CASES = {
    "ddp": lambda rank: data_parallel(rank, "ddp"),
    "plain": lambda rank: data_parallel(rank, ""),
    "fsdp": lambda rank: data_parallel(rank, "fsdp"),
    "tp": lambda rank: tensor_parallel(rank, False),
    "tp-norm": lambda rank: tensor_parallel(rank, True),
    "fsdp+tp": lambda rank: tensor_parallel(rank, False, data=2),
    "not-seen": not_seen,
    "small-group": small_group,
}


def work(rank, world, port, cases, said):
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world), GLOO_SOCKET_IFNAME="lo"
    )
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=datetime.timedelta(seconds=60))
    found = {}
    for name in cases:
        torch.manual_seed(0)
        found[name] = refused(rank, name[8:]) if name.startswith("refused:") else CASES[name](rank)
    dist.barrier()
    said.send(found)
    said.close()
    os._exit(0)  # gloo's threads need not be waited for


def main():
    world, cases = int(sys.argv[1]), sys.argv[2].split(",")
    torch.set_num_threads(1)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    forked = multiprocessing.get_context("fork")
    pipes = [forked.Pipe(duplex=False) for _ in range(world)]
    workers = [
        forked.Process(target=work, args=(rank, world, port, cases, pipes[rank][1]), daemon=True)
        for rank in range(world)
    ]
    for worker in workers:
        worker.start()
    for _, theirs in pipes:
        theirs.close()
    for mine, _ in pipes:
        print("JSON " + json.dumps(mine.recv()), flush=True)


if __name__ == "__main__":
    main()
