"""How much of a ring's transfer its kernels hide, on one card: one of four ranks as rootdk.distributed runs it, forward
and backward, where what comes from a neighbour is a copy on a second stream. From the host's pinned memory that is
about as fast as 400 Gb/s between nodes (PCIe), from the card's own faster than any link; of what a rank sends at the
same time nothing is copied.

A row is the ring with nothing to wait for (kernels, and merging what they give), the copies alone, both as the ring
orders them, and the share of the copies' time that is hidden: (alone + copies − both) / copies, the median of paired
rounds and their quartiles. Beside it stands what the model of rootdk.distributed.plan expects of a card and a link that
are as fast as these two were: a step takes as long as its kernel or its copy, whichever is longer. Few tokens have
kernels that are shorter than a copy, and cannot hide it all.

Before they are timed, rows of the results are held against attention in f64, all of them to the bit against those
without copies (so that no kernel reads what has not come yet), and bytes against the plan. Timed are CUDA graphs: what
the device does, not how fast Python enqueues it.

usage: ./run gpu-python bench/cuda/ring.py [OUT.json [ROWS]]       ROWS: names, with wildcards, separated by |
COMMIT=… says what is measured where git does not. Without a GPU the checks run on a few tokens and nothing is timed.
"""

import itertools
import json
import math
import os
import pathlib
import statistics
import sys

import rootdk.torch
import run
import torch
from rootdk._structure import Structure
from rootdk.distributed import Layout, Machine, Sight, Sizes, plan
from rootdk.distributed._call import Call
from rootdk.distributed._partial import Gradients, Outputs
from rootdk.distributed._ring import _KV, Round, _backward_round
from rootdk.distributed._team import packed, unpacked

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
import machine

RANKS, RANK = 4, 0  # of a ring; the one that is here
HEADS, KEY_HEADS, DIM = 32, 8, 128
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROUNDS = 31
#: tokens of each rank, by what parts of a result are kept in: the inputs' dtype, or f32, which is computed in f32
TOKENS = {"bf16": (1024, 2048, 4096, 8192, 16384), "f32": (2048, 4096)} if DEVICE == "cuda" else {"bf16": (48,)}
PASSES = ("forward", "backward")


class Link:
    """The wire: copies on a stream of their own, out of memory that is pinned on the host or lies on the card. They
    begin when what was enqueued before them is done, as NCCL's transfers do."""

    def __init__(self, name, pinned):
        self.name, self.pinned = name, pinned
        self.stream = torch.cuda.Stream() if DEVICE == "cuda" else None

    def source(self, x):
        """A tensor, to be copied from."""
        return x.cpu().pin_memory() if self.pinned and DEVICE == "cuda" else x

    def copy(self, source, target):
        """What to wait for."""
        if self.stream is None:
            target.copy_(source)
            return None
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            target.copy_(source, non_blocking=True)
            return self.stream.record_event()


class Arrivals:
    """What a ring waits for; the stream does, not the host."""

    def __init__(self, events):
        self.events = [event for event in events if event is not None]

    def wait(self):
        for event in self.events:
            torch.cuda.current_stream().wait_event(event)


class Neighbour:
    """Stands in for a rank's team: K and V are copied in the order in which they would come, sums of gradients are
    zeros, since nobody else adds to them. Without a link nothing comes."""

    rank, size = RANK, RANKS

    def __init__(self, parts, zeros=None, link=None):
        """parts: packed K and V of each rank; both lie where the link copies from."""
        self.parts, self.zeros, self.link = parts, zeros, link
        self.copied = []  # from where
        self.steps = 0

    def post(self, what, sends, receives, counted=True):
        if self.link is None:
            return Arrivals([])
        events = []
        for _, target in receives:
            source = self._next() if what == _KV else self.zeros[: target.numel()]
            events.append(self.link.copy(source, target))
            self.copied.append(source)
        return Arrivals(events)

    def _next(self):
        self.steps += 1
        return self.parts[(RANK - self.steps) % RANKS]


class Still(Round):
    """A ring where all keys lie already."""

    def steps(self):
        packed([self.k, self.v])  # as a ring does that sends them
        for step in range(max(self.far) + 1):
            chunk = self.at(step)
            yield step, chunk, unpacked(self.team.parts[chunk], self.forms(chunk, self.k.dtype))


class Share:
    """What one rank has to compute, and what comes to it."""

    def __init__(self, tokens, causal, wide):
        self.tokens, self.causal = tokens, causal
        total = tokens * RANKS
        self.layout = Layout.zigzag(total, RANKS) if causal else Layout.even(total, RANKS)
        self.call = Call(self.layout, self.layout, Structure(causal=causal), wide=wide)
        self.pieces = self.layout.pieces[RANK]

        def drawn(heads):
            return torch.randn(1, heads, tokens, DIM, device=DEVICE, dtype=torch.bfloat16)

        self.q, self.d_out = drawn(HEADS), drawn(HEADS)
        self.kv = [(drawn(KEY_HEADS), drawn(KEY_HEADS)) for _ in range(RANKS)]
        self.parts = [packed(kv) for kv in self.kv]
        self._lying = {}
        self.out, self.lse = self.forward(self.still())

    def still(self):
        return Still(self.call, Neighbour(self.parts), *self.kv[RANK])

    def ring(self, link):
        if link.name not in self._lying:  # sums of gradients have 4 bytes an element, K and V 2
            zeros = torch.zeros(2 * self.parts[0].numel(), device=DEVICE, dtype=torch.uint8)
            self._lying[link.name] = [link.source(part) for part in self.parts], link.source(zeros)
        return Round(self.call, Neighbour(*self._lying[link.name], link), *self.kv[RANK])

    def forward(self, ring):
        """As RingAttention.forward does it."""
        outputs = Outputs(self.call, self.q, DIM, self.pieces, None, None)
        for _, chunk, kv in ring.steps():
            outputs.add(*kv, self.layout.pieces[chunk])
        return outputs.finish(None)

    def backward(self, ring):
        """As RingAttention.backward does it; (dq,), since dk and dv lack what others add."""
        wanted = [True, True, True, False, False]
        gradients = Gradients(self.call, self.q, self.out, self.lse, self.d_out, None, self.pieces, None, None, wanted)
        _backward_round(ring, gradients)
        return (gradients.d_q,)

    def compute(self, which, ring):
        return self.forward(ring) if which == "forward" else self.backward(ring)

    def copies(self, link, sources):
        """These alone, one after another."""
        targets = [torch.empty(x.numel(), dtype=torch.uint8, device=DEVICE) for x in sources]

        def copy():
            Arrivals([link.copy(source, target) for source, target in zip(sources, targets)]).wait()

        return copy

    def exact(self, rows):
        """(out, dq) in f64 of some queries, by head and place here."""
        keys, values = (torch.cat(x, 2)[0] for x in zip(*self.kv))
        places = torch.cat([torch.from_numpy(self.layout.positions(rank)) for rank in range(RANKS)]).to(DEVICE)
        own = self.layout.positions(RANK)
        out, d_q = [], []
        for h, i in rows:
            k, v = (x[h * KEY_HEADS // HEADS].double() for x in (keys, values))
            q, d_o = (x[0, h, i].double() for x in (self.q, self.d_out))
            s = (k @ q) / math.sqrt(DIM)
            if self.causal:
                s = s.masked_fill(places > int(own[i]), -math.inf)
            p = torch.softmax(s, 0)
            out.append(p @ v)
            d_q.append(k.T @ (p * (v @ d_o - d_o @ out[-1])) / math.sqrt(DIM))
        return torch.stack(out), torch.stack(d_q)

    def error(self, which, found):
        """The relative error of some rows: bf16 leaves a few 1e-3, of gradients up to 1e-2."""
        generator = torch.Generator().manual_seed(3)
        rows = [
            tuple(int(torch.randint(n, (1,), generator=generator)) for n in (HEADS, self.tokens)) for _ in range(24)
        ]
        want = self.exact(rows)[PASSES.index(which)]
        got = torch.stack([found[0][0, h, i] for h, i in rows]).double()
        return float((got - want).norm() / want.norm())

    def planned(self, **rates):
        sizes = Sizes(1, HEADS, KEY_HEADS, DIM, DIM, 2)
        sight = Sight.all(self.layout.total, self.layout.total, causal=self.causal)
        like = Machine(ranks_per_node=RANKS, latency=0.0, **rates)
        return plan(sizes, self.layout, sight=sight, machine=like).costs["ring"]

    def bytes(self, which):
        """That each rank sends, and gets."""
        return getattr(self.planned(), f"sent_{which}")[RANK]

    def expected(self, which, alone, copies):
        """Seconds that a ring takes by the plan, where its kernels and its copies take so many by themselves."""
        flops = getattr(self.planned(), f"flops_{which}")[RANK]
        cost = self.planned(flops=flops / alone, link=self.bytes(which) / copies)
        return getattr(cost, f"seconds_{which}")


def hidden(alone, copies, both):
    """The share of the copies' time that does not add to that of the kernels."""
    return (alone + copies - both) / copies


def checked(share, which, links):
    """What is to be timed, by name, and the error of its results; raises where anything is wrong."""
    want = share.compute(which, share.still())
    error = share.error(which, want)
    if not error < (1e-2 if which == "forward" else 2e-2):
        raise AssertionError(f"the relative error is {error:.2e}")
    contestants = {"alone": lambda: share.compute(which, share.still())}
    for link in links:
        ring = share.ring(link)
        found = share.compute(which, ring)
        if not all(torch.equal(a, b) for a, b in zip(found, want)):
            raise AssertionError(f"{link.name}: the ring's results are not those of a ring without copies")
        sources = ring.team.copied
        came, planned = sum(x.numel() for x in sources), share.bytes(which)
        if came != planned:
            raise AssertionError(f"{link.name}: {came} bytes were copied, but the plan has {planned}")
        contestants[f"copies, {link.name}"] = share.copies(link, sources)
        contestants[f"both, {link.name}"] = lambda link=link: share.compute(which, share.ring(link))
    return contestants, error


def row_of(share, which, link, times):
    """times: lists of ms, by contestant."""
    rounds = [times["alone"], times[f"copies, {link}"], times[f"both, {link}"]]
    low, median, high = statistics.quantiles([hidden(*one) for one in zip(*rounds)], n=4)
    alone, copies, both = (statistics.median(x) for x in rounds)
    expected = 1e3 * share.expected(which, alone / 1e3, copies / 1e3)
    return {
        "link": link,
        "ms": {"alone": alone, "copies": copies, "both": both, "expected": expected},
        "bytes": share.bytes(which),
        "hidden": {"lower quartile": low, "median": median, "upper quartile": high},
        "expected hidden": hidden(alone, copies, expected),
    }


def text_of(name, row):
    ms, share = row["ms"], row["hidden"]
    return (
        f"{name:38s} {row['link']:5s} alone {ms['alone']:8.3f}  copies {ms['copies']:7.3f} "
        f"({row['bytes'] / ms['copies'] / 1e6:5.0f} GB/s)  both {ms['both']:8.3f} ms, {ms['expected']:8.3f} expected; "
        f"hidden {100 * share['median']:4.0f} % ({100 * share['lower quartile']:.0f} – "
        f"{100 * share['upper quartile']:.0f}), {100 * row['expected hidden']:.0f} expected"
    )


def timed(contestants):
    """ms of each round, and whether of graphs."""
    try:
        return run.timed(contestants, ROUNDS, warm=0.3), True
    except RuntimeError as problem:  # what cannot be captured is queued without gaps
        print(f"not captured: {str(problem).splitlines()[0][:100]}")
        return run.timed(contestants, ROUNDS, warm=0.3, capture=False), False


def described():
    if "COMMIT" in os.environ:
        machine.commit = lambda: os.environ["COMMIT"]
    out = machine.describe() | {"torch": torch.__version__, "rootdk": rootdk.__version__}
    if DEVICE == "cuda":
        out |= {"card": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return out | {"ranks": RANKS, "heads": HEADS, "key_heads": KEY_HEADS, "dim": DIM, "dtype": "bf16", "rounds": ROUNDS}


@torch.no_grad()
def main():
    pattern = sys.argv[2] if len(sys.argv) > 2 else "*"
    torch.manual_seed(1)
    links = [Link("host", pinned=True), Link("card", pinned=False)]
    result = described() | {"rows": []}
    print(", ".join(str(result[name]) for name in ("card", "cpu", "commit") if result.get(name)))
    for parts, causal in itertools.product(TOKENS, (False, True)):
        for tokens in TOKENS[parts]:
            names = {which: f"{which} {tokens} {'causal' if causal else 'full'}, {parts} parts" for which in PASSES}
            if not any(run.wanted(name, pattern) for name in names.values()):
                continue
            share = Share(tokens, causal, wide=parts == "f32")
            for which, name in names.items():
                if not run.wanted(name, pattern):
                    continue
                contestants, error = checked(share, which, links)
                if DEVICE == "cpu":
                    for contestant in contestants.values():
                        contestant()
                    print(f"{name}: as it should be, {error:.1e} off; not timed, without a GPU", flush=True)
                    continue
                times, captured = timed(contestants)
                for link in links:
                    row = row_of(share, which, link.name, times)
                    print(text_of(name, row), flush=True)
                    result["rows"].append({"row": name, **row, "relative_error": error, "captured": captured})
                if len(sys.argv) > 1:  # after each, since a lease may end
                    with open(sys.argv[1], "w") as out:
                        json.dump(result, out, indent=1)


if __name__ == "__main__":
    main()
