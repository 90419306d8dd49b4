"""What the ranks of test_distributed.py do: started once for each number of ranks, by fork or by torchrun, they run
all tasks that they are given and say what they found, a line of JSON each.

usage: distributed_worker.py RANKS=TASK,TASK… …      or under torchrun: distributed_worker.py TASK,TASK…"""

from __future__ import annotations

import dataclasses
import datetime
import gc
import importlib
import json
import multiprocessing
import os
import socket
import sys
import traceback
import weakref

import numpy as np
import rootdk.distributed as rd
import rootdk.torch
import torch
import torch.distributed as dist
from distributed_problems import UNIT, Case
from rootdk._structure import Structure
from rootdk.distributed._call import pairs_of, tiles_of
from rootdk.distributed._plan import Model
from rootdk.distributed._sight import Sight
from rootdk.distributed._team import Team
from torch.utils._python_dispatch import TorchDispatchMode

WAYS = ("ring", "all_gather", "heads", "two_levels")
#: without those that rows merged over ranks leave out
CAUSES = ("sigma_q", "sigma_k", "key_mean_norm", "alignment", "scale")


def all_ranks(x):
    """The sum over ranks."""
    x = x.detach().double().clone()
    dist.all_reduce(x)
    return x


def nodes(ranks):
    return rd.Machine(ranks_per_node=2 if ranks % 2 == 0 and ranks > 2 else 1)


def attend(case, rank, way):
    tensors, arguments = case.local(rank)
    out, lse = rd.attention(*tensors, **arguments, way=way, machine=nodes(case.ranks), return_lse=True, timeout=20)[:2]
    total = (out * case.part(case.d_out, rank)).sum()
    if case.d_lse is not None:
        part = case.part(case.d_lse, rank)
        total = total + torch.where(torch.isfinite(lse), lse * part.to(lse), torch.zeros_like(lse)).sum()
    total.backward()
    return out, tensors, arguments


def compared(case, rank, way):
    """Ratios of errors to what is allowed, by name."""
    out, (q, k, v), arguments = attend(case, rank, way)
    exact, plain = case.expected
    allowed = case.floors(exact)
    found = {"o": (out.detach(), case.q_layout, 2), "dq": (q.grad, case.q_layout, 2),
             "dk": (k.grad, case.k_layout, 2), "dv": (v.grad, case.k_layout, 2)}  # fmt: skip
    ratios = {}

    def ratio(name, ours, want, theirs):
        if want.numel() == 0:
            return
        assert ours.shape == want.shape, (name, ours.shape, want.shape)
        off = float((ours.double() - want).abs().max())
        bad = float((theirs - want).abs().nan_to_num(torch.inf).max())
        may = allowed[name] + (2 * bad if np.isfinite(bad) else 0.0)
        ratios[name] = off / may if may else float(off > 0)
        assert np.isfinite(off), f"{name} is not finite"

    if way in ("ring", "two_levels") and case.dtype in (torch.float16, torch.bfloat16) and case.len_q * case.len_kv:
        # Merging costs no digits: partial outputs are float32, and what comes of them is rounded once.
        want, unit = case.part(exact["o"], rank), UNIT[case.dtype]
        wide = allowed["o"] - unit * float(exact["o"].abs().max())
        smallest = 2.0**-25 if case.dtype == torch.float16 else 0.0  # half of what lies between subnormal numbers
        off = (
            ((out.detach().double() - want).abs() / (unit * want.abs() + wide + smallest)).max() if want.numel() else 0
        )
        ratios["o, rounded once"] = float(off)
    for name, (ours, layout, _) in found.items():
        ratio(name, ours, case.part(exact[name], rank, layout), case.part(plain[name], rank, layout))
    for name, tensor in (("dsink", arguments.get("sink")), ("dscale", arguments.get("scale"))):
        if isinstance(tensor, torch.Tensor):
            ratio(name, all_ranks(tensor.grad), exact[name], plain[name])
    if case.bias is not None:
        ours = arguments["bias"].grad
        if case.bias.shape[2] > 1:
            ratio("dbias", ours, case.part(exact["dbias"], rank), case.part(plain["dbias"], rank))
        else:
            ratio("dbias", all_ranks(ours), exact["dbias"], plain["dbias"])
    return ratios


def statistics(case, rank, way):
    """What differs from the statistics of one rank."""
    tensors, arguments = case.local(rank)
    with torch.no_grad():
        _, mine = rd.attention(*tensors, **arguments, way=way, machine=nodes(case.ranks), stats="full")
        ours = rd.merge({"it": mine})["it"]
    one = case.of_one_rank
    wrong = []
    # A score is off by u·(2 + A); what is made of scores is off by that share of itself, or of how far they spread.
    spread = float(np.nanmax([np.abs(one.raw_max[np.isfinite(one.raw_max)]).max(initial=1.0),
                              np.abs(one.raw_min[np.isfinite(one.raw_min)]).max(initial=1.0)]))  # fmt: skip
    share = 2.0**-24 * (2 + spread * case.dim) * (1 + case.ranks)
    for name in one.names:
        if name in CAUSES:
            continue
        a, b = np.asarray(ours[name], float), np.asarray(one[name], float)
        size = np.maximum(1.0, np.abs(b)) * max(1.0, spread)
        if name.startswith("median"):  # to within a bin: 1/16 of a logit, 3/64 of ln tr J, 1/512
            size = size / share * 0.07
        off = ~np.isclose(a, b, rtol=0, atol=share * size, equal_nan=True)
        if name.endswith(("max_query", "max_key")):  # where two keys are as good as equal, either
            continue
        if off.any():
            wrong.append(f"{name}: {a.tolist()}, but one rank has {b.tolist()}")
    for place in ("raw", "score"):
        wrong += _places(ours, one, place)
    return wrong


def _places(ours, one, place):
    """Maxima stand where one rank finds them, unless another score is as large within rounding and was taken."""
    a, b = (np.stack([x[f"{place}_max_query"], x[f"{place}_max_key"]]) for x in (ours, one))
    largest = [np.asarray(x[f"{place}_max"]) for x in (ours, one)]
    if ((a == b).all(0) | (largest[0] != largest[1])).all():
        return []
    return [f"{place}_max is at {a.tolist()}, but one rank has it at {b.tolist()}"]


def problems(rank, ranks, seeds):
    """Every way that can, the ones that cannot refused in a line."""
    worst, failures, computed, refused = {}, [], 0, 0
    for seed in seeds:
        case = Case(seed, ranks)
        for way in WAYS:
            try:
                ratios = compared(case, rank, way)
                differ = statistics(case, rank, way)
            except ValueError as error:
                refused += 1
                if f"way: {way} cannot" not in str(error) and "two_levels wants nodes" not in str(error):
                    failures.append(f"{way}: {case}: {traceback.format_exc()[-900:]}")
                continue
            except Exception:
                failures.append(f"{way}: {case}: {traceback.format_exc()[-1500:]}")
                if "RankError" in failures[-1]:
                    return {"worst": worst, "failures": failures, "computed": computed, "refused": refused}
                continue
            computed += 1
            for name, ratio in ratios.items():
                worst[name] = max(worst.get(name, 0.0), ratio)
                if ratio > 1:
                    failures.append(f"{way}: {name} is {ratio:.3g} times as far off as it may be: {case}")
            failures += [f"{way}: {text}: {case}" for text in differ]
    return {"worst": worst, "failures": failures, "computed": computed, "refused": refused}


def run_problems(rank, ranks, first="0", count="6"):
    return problems(rank, ranks, range(int(first), int(first) + int(count)))


def bits(rank, ranks):
    """Two runs of the same."""
    out = {}
    for way in WAYS:
        case = Case(3, ranks)
        case.arguments = dict(causal=True, sink=[0.5] * case.heads)
        case.bias = case.mask = None
        runs = []
        for _ in range(2):
            try:
                o, tensors, _ = attend(case, rank, way)
            except ValueError:
                break
            runs.append([o.detach(), *(x.grad for x in tensors)])
        if runs:
            out[way] = all(torch.equal(a, b) for a, b in zip(*runs))
    return out


def traffic(rank, ranks, count):
    """What the plan says of bytes, beside what was sent."""
    found = []
    for seed in range(int(count)):
        case = Case(seed, ranks)
        pairs = _pairs(case)
        lse = seed % 2 == 1
        sizes = rd.Sizes(case.batch, case.heads, case.heads_kv, case.dim, case.dim_v, case.q.element_size(), lse)
        model = Model(sizes, case.q_layout, case.k_layout, pairs, nodes(ranks))
        costs = model.costs()
        for way in WAYS:
            cost = costs[way]
            if cost.refused:
                continue
            try:
                with rd.counting() as count, torch.enable_grad():
                    tensors, arguments = case.local(rank)
                    out = rd.attention(*tensors, **arguments, way=way, machine=nodes(ranks), return_lse=lse)
                    forward = dataclasses.replace(count)
                    (out[0] if lse else out).sum().backward()
            except ValueError:
                continue
            sent = [forward.bytes, count.bytes - forward.bytes]
            found.append([f"{way}, bytes, {case}", sent, [cost.sent_forward[rank], cost.sent_backward[rank]]])
            total = torch.tensor([forward.messages, count.messages - forward.messages])
            dist.all_reduce(total)
            found.append([f"{way}, messages, {case}", total.tolist(), [cost.messages_forward, cost.messages_backward]])
    return found


def one_row(rank, ranks):
    """A mask or a bias with one row for all queries, of some heads or of all: in every way."""
    worst, failures = {}, []
    for table in ("mask", "bias"):
        for heads in (1, None):
            case = Case(3, ranks)
            case.arguments, case.mask, case.bias = dict(causal=True), None, None
            shape = (case.batch, heads or case.heads, 1, case.len_kv)
            drawn = torch.randn(shape, generator=torch.Generator().manual_seed(4))
            setattr(case, table, drawn > -1 if table == "mask" else drawn.to(case.dtype))
            for way in WAYS[: 4 if ranks > 2 else 3]:
                ratios = compared(case, rank, way)
                worst[f"{table} of {heads}, {way}"] = max(ratios.values(), default=0.0)
                failures += [f"{way}, {table}: {text}" for text in statistics(case, rank, way)]
    return {"worst": worst, "failures": failures}


def packed(rank, ranks, *lengths):
    """Documents of these lengths, as the schedule deals them out, in every way that can: a result may be off from that
    in double by twice as much as float32 on one rank is, and by what merging rounds."""
    case = Case(0, ranks)
    case.batch, case.heads, case.heads_kv, case.dim, case.dim_v = 1, 4, 2, 8, 8
    case.dtype, case.table = torch.float32, None
    starts = np.cumsum([0, *map(int, lengths)]).tolist()
    case.len_q = case.len_kv = starts[-1]
    case.layout = case.q_layout = case.k_layout = rd.Layout.dealt(starts, ranks)
    case._tensors()
    worst, failures = {}, []
    for causal in (True, False):
        case.arguments = dict(causal=causal, documents=starts)
        vars(case).pop("of_one_rank", None)
        exact, plain = (on_one_rank(case, dtype) for dtype in (torch.float64, torch.float32))
        length = [float(x.detach().norm(dim=-1).max()) for x in (case.q, case.k)]
        scores = 2 + case.dim**-0.5 * length[0] * length[1]  # no larger sum of products than lengths allow
        for way in WAYS:
            out, tensors, _ = attend(case, rank, way)
            name = f"{way}, causal {causal}"
            for ours, a, b in zip([out.detach(), *(x.grad for x in tensors)], exact, plain):
                bad, largest = float((b - a).abs().max()), float(a.abs().max())
                off = float((ours.double() - case.part(a, rank)).abs().max()) if ours.numel() else 0.0
                ratio = off / (2 * bad + (1 + ranks) * scores * 2.0**-24 * largest)
                worst[name] = max(worst.get(name, 0.0), ratio)
            failures += [f"{name}: {text}" for text in statistics(case, rank, way)]
    return {"worst": worst, "failures": failures}


def on_one_rank(case, dtype):
    """The output and gradients, in double."""
    tensors = [x.detach().to(dtype).requires_grad_() for x in (case.q, case.k, case.v)]
    out, lse = rootdk.torch.attention(*tensors, **case.arguments, return_lse=True)
    total = (out * case.d_out.to(dtype)).sum()
    if case.d_lse is not None:
        total = total + (lse * case.d_lse.to(dtype)).sum()
    total.backward()
    return [x.double() for x in (out.detach(), *(x.grad for x in tensors))]


def short_documents(rank, ranks):
    """Where documents lie whole on a rank, what differs from the engine's own results for them, and whether 16-bit
    numbers were widened."""
    lengths = [5] * (17 * ranks + 3)
    starts = np.cumsum([0, *lengths]).tolist()
    layout = rd.Layout.dealt(starts, ranks)
    held = set(layout.positions(rank).tolist())
    own = np.cumsum([0, *(n for n, begin in zip(lengths, starts) if begin in held)]).tolist()
    g = torch.Generator().manual_seed(rank)
    q, k, v, d_out = (torch.randn(1, 2, own[-1], 8, generator=g).bfloat16() for _ in range(4))
    assert own[-1] == layout.lengths[rank], "no document is cut"
    runs, widened = [], []
    for call in (lambda *x: rd.attention(*x, causal=True, documents=starts, layout=layout, way="all_gather"),
                 lambda *x: rootdk.torch.attention(*x, causal=True, documents=own)):  # fmt: skip
        tensors = [x.clone().requires_grad_() for x in (q, k, v)]
        out = call(*tensors)
        widened.append(hasattr(out.grad_fn, "call") and out.grad_fn.call.wide)
        out.backward(d_out)
        runs.append([out.detach(), *(x.grad for x in tensors)])
    return {
        "differ": [name for name, a, b in zip(("o", "dq", "dk", "dv"), *runs) if not torch.equal(a, b)],
        "widened": any(widened),
    }


def halves(rank, ranks):
    """What is sent forward of float32, and of bfloat16."""
    found = {}
    for way in WAYS:
        sent = []
        for dtype in (torch.float32, torch.bfloat16):
            q, k, v = (torch.randn(1, heads, 5, 8).to(dtype) for heads in (8, 4, 4))
            with rd.counting() as count, torch.no_grad():
                rd.attention(q, k, v, causal=True, way=way, machine=nodes(ranks))
            sent.append(count.bytes)
        found[way] = sent
    return found


def _pairs(case):
    """Of the structure that all ranks know: key lengths are not part of who needs whom."""
    a = case.arguments
    structure = Structure.of(**{name: a.get(name) for name in ("window", "key_lengths", "query_lengths", "documents")},
                             causal=a["causal"], diagonal=a.get("diagonal", "bottom_right"))  # fmt: skip
    own = structure.items > 0 or structure.diagonal == "last_key"
    items = range(case.batch) if own else range(1)
    return sum(Sight.of(structure, case.len_q, case.len_kv, b).pairs(case.q_layout, case.k_layout) for b in items)


class Memory(TorchDispatchMode):
    """Bytes of the tensors that operators have made, and the most there were at a time."""

    def __init__(self):
        super().__init__()
        self.now = self.most = 0
        self.known = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(x, torch.Tensor):
                storage = x.untyped_storage()
                key = storage._cdata
                if key not in self.known:
                    self.known[key] = storage.nbytes()
                    self.now += storage.nbytes()
                    self.most = max(self.most, self.now)
                    weakref.finalize(storage, self._gone, key)
        return out

    def _gone(self, key):
        self.now -= self.known.pop(key, 0)


def memory(rank, ranks):
    """Peak of what is allocated beside the inputs, forward and backward, by dtype and way."""
    layout = rd.Layout.zigzag(1024, ranks)
    out = {}
    for dtype in (torch.float32, torch.bfloat16):
        for way in ("ring", "heads", "all_gather"):
            tensors = [torch.randn(1, 8, layout.lengths[rank], 16, dtype=dtype, requires_grad=True) for _ in range(3)]
            gc.collect()
            with Memory() as watched:
                result = rd.attention(*tensors, causal=True, layout=layout, way=way)
                result.sum().backward()
            out[f"{str(dtype)[6:]}, {way}"] = watched.most
            del result
    return out


def statistics_of_rows_and_heads(rank, ranks):
    """Data parallel statistics: every rank has other rows of the same heads."""
    g = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(2 * ranks, 3, 20, 8, generator=g) for _ in range(3))
    own = slice(2 * rank, 2 * rank + 2)
    _, mine = rootdk.torch.attention(q[own], k[own], v[own], stats="full")
    _, one = rootdk.torch.attention(q, k, v, stats="full")
    with_names = rd.merge({"a": mine.over_batch(), **({"only on 1": mine.over_batch()} if rank == 1 else {})})
    whole = one.over_batch()
    heads = rd.Layout.even(3, ranks).pieces[rank]
    first, last = heads[0] if heads else (0, 0)
    part = None
    if first < last:
        _, part = rootdk.torch.attention(q[:, first:last], k[:, first:last], v[:, first:last], stats="full")
        part = part.over_batch()
    split = rd.merge({"b": rd.RankStats(part, first, 3)})["b"]
    near = {name: bool(np.allclose(with_names["a"][name], whole[name], rtol=1e-12, atol=1e-12, equal_nan=True))
            for name in whole.names}  # fmt: skip
    return {"rows": near, "names": sorted(with_names), "heads": split.to_json() == whole.to_json()}


def collectives(rank, ranks):
    """How many exchanges of packets each step's statistics of 24 layers take, and how many there are of other kinds."""
    q = torch.randn(1, 4, 8, 8)
    _, mine = rd.attention(q, q, q, stats="full", way="ring")
    gather, post, counts = Team.gather_packets, Team.post, []

    def gathered(team, packet):
        counts[-1][0] += 1
        return gather(team, packet)

    def posted(team, what, *arguments, **named):
        counts[-1][1] += what not in ("checks", "which call this is")
        return post(team, what, *arguments, **named)

    Team.gather_packets, Team.post = gathered, posted
    try:
        for _ in range(3):
            counts.append([0, 0])
            rd.merge({f"layer {i}": mine for i in range(24)})
    finally:
        Team.gather_packets, Team.post = gather, post
    return counts


def refusals(rank, ranks):
    """What each rank is told when rank 1 passes something else, or something wrong."""
    q = torch.randn(1, 4, 5, 8)
    odd = rank == 1
    calls = {
        "dim": lambda: rd.attention(q, q[..., :6] if odd else q, q),
        "dtype": lambda: rd.attention(*([q.half()] * 3 if odd else [q] * 3)),
        "heads": lambda: rd.attention(*([q[:, :2]] * 3 if odd else [q] * 3)),
        "causal": lambda: rd.attention(q, q, q, causal=odd),
        "layout": lambda: rd.attention(q, q, q, layout="diagonal" if odd else "contiguous"),
        "zigzag": lambda: rd.attention(*([q[:, :, :2]] * 3 if odd else [q] * 3), layout="zigzag"),
        "dropout": lambda: rd.attention(q, q, q, dropout=0.1),
        "name": lambda: rd.attention(q, q, q, is_causal=True),
        "gaps": lambda: rd.attention(q, q, q, stats=rootdk.StatsOptions(gaps=True)),
        "ring": lambda: rd.attention(q, q, q, scale="ssmax(1)", way="ring"),
        "rows": lambda: rd.attention(q, q, q, mask=torch.ones(1, 1, 5 if odd else 1, 20) > 0, way="heads"),
        "timeout": lambda: rd.attention(q, q, q, timeout=0 if odd else 20),
        "gradients": lambda: rd.attention(q.clone().requires_grad_(odd), q, q),
        "documents": lambda: rd.attention(q, q, q, documents=[0, 3, 999]),
        "mask's keys": lambda: rd.attention(q, q, q, mask=torch.ones(1, 1, 5, 19 if odd else 20) > 0, way="ring"),
        "bias's keys": lambda: rd.attention(q, q, q, bias=torch.zeros(1, 1, 5, 21 if odd else 20), way="ring"),
        "bias's rows": lambda: rd.attention(q, q, q, bias=torch.zeros(1, 1, 4 if odd else 5, 20), way="ring"),
        "mask's heads": lambda: rd.attention(q, q, q, mask=torch.ones(1, 2 if odd else 4, 5, 20) > 0),
        "all ranks' keys": lambda: rd.attention(q, q, q, mask=torch.ones(1, 1, 5, 19) > 0, way="ring"),
    }
    said = {}
    for name, call in calls.items():
        with rd.counting() as count:
            try:
                call()
                said[name] = ["", count.bytes]
            except Exception as error:
                said[name] = [f"{type(error).__name__}: {error}", count.bytes]
    said["and then it works"] = [str(list(rd.attention(q, q, q, causal=True).shape)), 0]
    return said


def chosen(rank, ranks):
    """Without a way, what a length rule leaves; alone in a group of its own."""
    q = torch.randn(1, 4, 5, 8)
    own = dist.new_group([0, 1]) if ranks > 1 else None
    out = {"ssmax": list(rd.attention(q, q, q, scale="ssmax(1)").shape)}
    if rank < 2 and own is not None:
        a = rd.attention(q, q, q, group=own, way="ring")
        out["group"] = list(a.shape)
    known = tiles_of.cache_info().misses, pairs_of.cache_info().misses
    rd.attention(q, q, q, scale="ssmax(1)")
    out["schedule is made once"] = known == (tiles_of.cache_info().misses, pairs_of.cache_info().misses)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out["autocast"] = str(rd.attention(q, q, q, way="ring").dtype)
    return out


def watch(rank, ranks):
    return importlib.import_module("distributed_watch").watch(rank, ranks)


def resident(rank, ranks):
    return importlib.import_module("distributed_memory").resident(
        rank, ranks, WAYS[: 4 if ranks > 2 else 3], nodes(ranks)
    )


def elsewhere(module, name):
    """A task of another module, which wants this one."""
    return lambda *arguments: getattr(importlib.import_module(module), name)(*arguments)


TASKS = {
    "problems": run_problems,
    "bits": bits,
    "traffic": traffic,
    "one_row": one_row,
    "packed": packed,
    "short_documents": short_documents,
    "halves": halves,
    "memory": memory,
    "resident": resident,
    "stats": statistics_of_rows_and_heads,
    "collectives": collectives,
    "refusals": refusals,
    "chosen": chosen,
    "watch": watch,
    "hidden": elsewhere("distributed_hidden", "hidden"),
    "checkpoints": elsewhere("distributed_backward", "checkpoints"),
    "compiled": elsewhere("distributed_backward", "compiled"),
    "fetched": elsewhere("distributed_backward", "fetched"),
    "different_gradients": elsewhere("distributed_backward", "different_gradients"),
}


def tasks_of(text, rank, ranks):
    found = {}
    for task in text.split(","):
        name, *numbers = task.split(":")
        found[task] = TASKS[name](rank, ranks, *numbers)
    return found


def begin(rank, ranks, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks),
                      GLOO_SOCKET_IFNAME="lo")  # fmt: skip
    dist.init_process_group("gloo", rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=100))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def work(rank, ranks, port, text, said):
    begin(rank, ranks, port)
    try:
        found = tasks_of(text, rank, ranks)
    except Exception:
        found = {"failed": traceback.format_exc()}
    said.send(found)
    said.close()
    dist.barrier()
    os._exit(0)  # gloo's threads need not be waited for


def main():
    torch.set_num_threads(1)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        dist.init_process_group("gloo")
        rank, ranks = dist.get_rank(), dist.get_world_size()
        found = tasks_of(sys.argv[1], rank, ranks)
        everything = [None] * ranks
        dist.all_gather_object(everything, found)
        if rank == 0:
            print("".join("JSON " + json.dumps(one) + "\n" for one in everything), flush=True)
        dist.destroy_process_group()
        return
    if any(task in argument for argument in sys.argv[1:] for task in ("memory", "checkpoints", "compiled")):
        importlib.import_module("torch._dynamo")  # a dispatch mode and a checkpoint do so, on every rank
    if any("watch" in argument for argument in sys.argv[1:]):
        importlib.import_module("distributed_watch")
    for argument in sys.argv[1:]:
        ranks, tasks = argument.split("=")
        run(int(ranks), tasks)


def run(ranks, tasks):
    forked, port = multiprocessing.get_context("fork"), free_port()
    pipes = [forked.Pipe(duplex=False) for _ in range(ranks)]
    workers = [
        forked.Process(target=work, args=(rank, ranks, port, tasks, pipes[rank][1]), daemon=True)
        for rank in range(ranks)
    ]
    for worker in workers:
        worker.start()
    for _, theirs in pipes:
        theirs.close()
    for mine, _ in pipes:
        print("JSON " + json.dumps({"ranks": ranks, **mine.recv()}), flush=True)


if __name__ == "__main__":
    main()
