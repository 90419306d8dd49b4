"""Backward over ranks where autograd does more than call it: checkpoints that compute forward again, saved tensors that
are fetched from elsewhere, compiled callers, and ranks that want gradients of different tensors."""

from __future__ import annotations

import warnings

import rootdk.distributed as rd
import torch
from distributed_worker import WAYS, nodes
from torch.utils.checkpoint import checkpoint


def drawn(rank, heads):
    g = torch.Generator().manual_seed(rank)
    return [torch.randn(1, heads, 6, 8, generator=g) for _ in range(3)]


def checkpoints(rank, ranks):
    """By what a checkpoint holds, number of heads and way: whether output and gradients are those without one, to the
    bit, in both kinds of checkpoint."""
    contents = {"attention": lambda out: out, "more after": torch.sin}
    found = {}
    for heads in (4, 1):  # one head: most ranks have none where heads travel
        for way in WAYS[: 4 if ranks > 2 else 3]:
            for content, then in contents.items():

                def call(q, k, v, way=way, then=then):
                    return then(rd.attention(q, k, v, causal=True, way=way, machine=nodes(ranks), timeout=10))

                runs = []
                for kind in (None, True, False):
                    tensors = [x.requires_grad_() for x in drawn(rank, heads)]
                    out = call(*tensors) if kind is None else checkpoint(call, *tensors, use_reentrant=kind)
                    out.square().sum().backward()
                    runs.append([out.detach(), *(x.grad for x in tensors)])
                plain, *others = runs
                found[f"{content}, {heads} heads, {way}"] = [all(map(torch.equal, plain, x)) for x in others]
    return found


def fetched(rank, ranks):
    """How often a backward asks for each tensor that forward kept, by way."""
    most = {}
    for way in WAYS[: 4 if ranks > 2 else 3]:
        counts = []

        def pack(x, counts=counts):
            counts.append(0)
            return len(counts) - 1, x

        def unpack(kept, counts=counts):
            counts[kept[0]] += 1
            return kept[1]

        q, k, v = (x.requires_grad_() for x in drawn(rank, 4))
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            out = rd.attention(q, k, v, causal=True, way=way, machine=nodes(ranks), timeout=10)
        out.sum().backward()
        most[way] = max(counts)
    return most


def compiled(rank, ranks):
    """Whether a compiled caller gets the same, twice, and how often torch.compile said that it does not know how to
    trace something."""

    def call(q, k, v):
        return rd.attention(q, k, v, causal=True, way="ring", timeout=60) * 2

    runs = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for function in (call, torch.compile(call, backend="eager"), torch.compile(call, backend="eager")):
            tensors = [x.requires_grad_() for x in drawn(rank, 4)]
            out = function(*tensors)
            out.sum().backward()
            runs.append([out.detach(), *(x.grad for x in tensors)])
    unknown = sum("Dynamo" in str(one.message) for one in said)
    return {"same": all(all(map(torch.equal, runs[0], one)) for one in runs[1:]), "warnings": unknown}


def different_gradients(rank, ranks):
    """What rank 0 wants of the sink, rank 1 of v and others of q, beside what they get where all want everything."""
    names = {0: ("sink",), 1: ("v",)}.get(rank, ("q",))
    found = {}
    for way in WAYS[: 4 if ranks > 2 else 3]:
        gradients = []
        for wanted in (("q", "k", "v", "sink"), names):
            tensors = dict(zip("qkv", drawn(rank, 4)), sink=torch.full((4,), 0.5))
            for name in wanted:
                tensors[name].requires_grad_()
            out = rd.attention(**tensors, causal=True, way=way, machine=nodes(ranks), timeout=4)
            out.square().sum().backward()
            gradients.append([tensors[name].grad for name in names])
            unwanted = [name for name in tensors if name not in wanted and tensors[name].grad is not None]
            assert not unwanted, unwanted
        found[way] = all(map(torch.equal, *gradients))
    return found
