"""Models that several ranks share in all ways there are, watched on each, and on one that has it all: what the ranks of
test_distributed.py do for it."""

from __future__ import annotations

import time

import rootdk.distributed as rd
import rootdk.torch
import torch
from clip_worker import Attention, made
from rootdk._watch import over_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

COLUMNS = ("rows_counted", "raw_max", "entropy", "score_sigma", "mean_p_max", "median_p_max", "raw_max_query")


class Watched(torch.nn.Module):
    """Attention of [batch, heads, length, dim] as it comes, over ranks if told how."""

    def forward(self, q, k, v, **how):
        if not how:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return rd.attention(q, k, v, causal=True, **how)


def columns_of(stats):
    return {name: stats[name].tolist() for name in COLUMNS}


def watch(rank, ranks):
    """A model that all ranks share in three ways, watched on each, and on one that has it all."""
    g = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(2 * ranks, 4, 24, 8, generator=g) for _ in range(3))
    model = torch.nn.Sequential()
    model.add_module("attention", Watched())
    layout = rd.Layout.zigzag(24, ranks)
    where, own = torch.from_numpy(layout.positions(rank)), slice(2 * rank, 2 * rank + 2)

    def seen(tensors, watched_by=None, **how):
        with rootdk.watch(model, group=watched_by) as w, torch.no_grad():
            model.attention(*tensors, **how)
        return w

    found = {"alone": columns_of(seen([q, k, v]).stats("attention"))}
    runs = {
        "data": ([x[own] for x in (q, k, v)], {}),
        "context, ring": ([x[:, :, where] for x in (q, k, v)], dict(layout=layout, way="ring")),
        "context, heads": ([x[:, :, where] for x in (q, k, v)], dict(layout=layout, way="heads")),
    }
    for name, (tensors, how) in runs.items():
        found[name] = columns_of(seen(tensors, **how).over_ranks()["attention"])
    with rootdk.watch(model) as w, torch.no_grad():
        for way in ("heads", "ring"):  # which heads were here counts no longer
            tensors, how = runs[f"context, {way}"]
            model.attention(*tensors, **how)
    found["context, heads and then ring"] = columns_of(w.over_ranks()["attention"])
    if ranks == 4:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
        data, group = mesh["outer"].get_local_rank(), mesh["inner"].get_group()
        half = rd.Layout.zigzag(24, 2)
        tokens = torch.from_numpy(half.positions(mesh["inner"].get_local_rank()))
        mine = [x[4 * data : 4 * data + 4][:, :, tokens] for x in (q, k, v)]
        pair = columns_of(seen([x[4 * data : 4 * data + 4] for x in (q, k, v)]).stats("attention"))
        for way in ("ring", "heads"):
            w = seen(mine, layout=half, way=way, group=group)
            found[f"data and context, {way}"] = columns_of(w.over_ranks()["attention"])
            w = seen(mine, watched_by=group, layout=half, way=way, group=group)
            found[f"a group of its own, {way}"] = [columns_of(w.over_ranks()["attention"]), pair]
        found["tensor and data"] = tensor_and_data_parallel(mesh)
        for way in ("heads", "ring"):
            found[f"tensor and context, {way}"] = tensor_and_context_parallel(mesh, way)
    found["what one raises"] = told_of_an_error(rank, model, w)
    return found


def over_heads(mesh, plain, model):
    """The model with heads 0 and 1 on one rank of a pair, 2 and 3 on the other."""
    model.load_state_dict(plain.state_dict())
    columnwise = {f"layers.0.{name}": ColwiseParallel() for name in ("q_proj", "k_proj", "v_proj")}
    parallelize_module(model, mesh["inner"], columnwise | {"layers.0.o_proj": RowwiseParallel()})
    return model


def both(plain, x, model, mine):
    """What ranks see together, and what one sees."""
    with rootdk.watch(plain) as alone, rootdk.watch(model) as w, torch.no_grad():
        plain(x)
        model(mine)
    return [columns_of(w.over_ranks()["layers.0"]), columns_of(alone.stats("layers.0"))]


def tensor_and_data_parallel(mesh):
    """Two pairs, each with other sequences."""
    torch.manual_seed(0)
    plain = made(Attention())
    model = over_heads(mesh, plain, made(Attention()))
    x = torch.randn(4, 9, 16, generator=torch.Generator().manual_seed(7))
    pair = mesh["outer"].get_local_rank()
    return both(plain, x, model, x[2 * pair : 2 * pair + 2])


class InContext(Attention):
    """Of a sequence that lies on several ranks."""

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (-1, 4)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(rd.attention(q, k, v, **self.how).transpose(1, 2).flatten(-2))


def tensor_and_context_parallel(mesh, way):
    """A pair has all heads of some tokens; where heads travel, each rank computes one of its two for all tokens."""
    torch.manual_seed(0)
    plain = made(Attention())
    model = over_heads(mesh, plain, made(InContext()))
    model.layers[0].how = dict(group=mesh["outer"].get_group(), way=way)
    x = torch.randn(2, 10, 16, generator=torch.Generator().manual_seed(7))
    half = mesh["outer"].get_local_rank()
    return both(plain, x, model, x[:, 5 * half : 5 * half + 5])


def told_of_an_error(rank, model, w):
    """Where rank 1 cannot say which heads it has: what each rank is told, and after how many seconds."""
    heads, since = over_ranks.Heads, time.monotonic()

    def lost(*_):
        raise ValueError("its heads are nowhere")

    try:
        over_ranks.Heads = lost if rank == 1 else heads
        rootdk._watch.over_ranks.over_ranks(model, {"a": w.stats("attention")}, {"a": "attention"}, {}, None, 10.0)
    except (ValueError, rd.RankError) as error:
        return [f"{type(error).__name__}: {error}", time.monotonic() - since]
    finally:
        over_ranks.Heads = heads
    return ["", time.monotonic() - since]
