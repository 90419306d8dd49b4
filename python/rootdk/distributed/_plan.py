"""What attention over ranks costs, in each of the ways it can be done: the one place that has the formulas. Plain
numbers, no torch; docs/python/distributed.md shows the same.

Let rank r hold Nq_r queries and Nk_r keys, P ranks; B batch items, Hq and Hk heads of queries and keys, Dk and Dv the
dimensions of q·k and of v; e bytes an element and w bytes of what partial results are kept in: 4, and 8 where e is 8.
n(r, c) is the number of visible pairs of a query on rank r and a key on rank c.

  flops    forward   F = 2·(Dk + Dv)·B·Hq a pair: q·k and p·v
           backward  2·(3·Dk + 2·Dv)·B·Hq a pair: q·k again, dp = do·v, dv = p·do, dq = ds·k, dk = ds·q
  sizes    kv_c  = B·Hk·Nk_c·(Dk + Dv)·e    K and V of rank c
           dkv_c = B·Hk·Nk_c·(Dk + Dv)·w    their gradients, partial sums
  needs    rank r needs rank c if n(r, c) > 0 (of all batch items together), or r = c
           hops(c) = max over r that need c of (r − c) mod P      how far c has to travel along the ring
           others(c) = number of r ≠ c that need c

  ring        K and V of c go to c+1, c+2, … hops(c) times; one message each.
              Backward: the same again, and dK and dV go along, then home in one more message where hops(c) > 0.
                forward   Σ_c hops(c)·kv_c                                      Σ_c hops(c) messages
                backward  Σ_c hops(c)·kv_c + (hops(c) + 1)·dkv_c [hops > 0]     Σ_c 2·hops(c) + 1 [hops > 0]
  all_gather  K and V of c go to all that need them, at once, and again for backward; dK and dV come back.
                forward   Σ_c others(c)·kv_c                                    Σ_c others(c)
                backward  Σ_c others(c)·(kv_c + dkv_c)                          2·Σ_c others(c)
  heads       rank j computes query heads ⌊j·Hq/P⌋ to ⌊(j+1)·Hq/P⌋, hq_j of them, which read hk_j heads of keys, for the
              whole sequence. Every rank r sends every other j
                forward   B·e·(Nq_r·hq_j·Dk + Nk_r·hk_j·(Dk + Dv))              q, k and v of these heads, there
                          B·e·Nq_j·hq_r·Dv                                      the output, back
                backward  B·e·Nq_r·hq_j·Dv there; B·e·(Nq_j·hq_r·Dk + Nk_j·hk_r·(Dk + Dv)) back: do; dq, dk and dv
              one message each that is not empty. A logsumexp that is asked for adds B·w·Nq·hq to o and to do.
  two_levels  G ranks a node, which divides P: heads among the G of a node, each with the node's tokens; then the ring
              over nodes, P/G of them, for the heads that each rank then has; then heads back.

  time     A message of b bytes takes latency + b/bandwidth of its link: inside a node or between nodes. Flops are done
           at flops a second; at flops_wide where 16-bit inputs are computed in float32, which ring and two_levels do,
           and the backward of all_gather: what other ranks add to is not rounded before. (Not so on a rank whose
           documents lie whole on it, which is not counted here.) ring a step at a time, all ranks together: Σ_s max
           over r of max(compute of step s, message of step
                        s)
           the others   max over r of (messages sent one after another, or received, whichever takes longer), then
                        max over r of compute: nothing is hidden
  memory   Beyond q, k, v and the gradient of the output, the most at a time on any rank, forward or backward:
           _memory.py counts results, what is kept for backward, messages and copies. For all heads of all ranks alike,
           in elements of K and V of a rank (KV), of q and of o, with c = w where 16-bit inputs are computed in float32
           ring         backward: 2·KV·e + (Q + KV)·(w + c) + 3·KV·w + O·e, and (Q + 2·O + KV)·w where c > e
           all_gather   backward, of G·KV gathered: (e + 2·c + w)·G·KV, and G·KV·w where c > e
           heads        backward: no more than 5·(Q + KV)·e + Q·e + KV·w + 3·O·e
  efficiency  ideal/time with ideal = all flops / (P · flops a second of a rank)
"""

from __future__ import annotations

import dataclasses
from typing import Callable, Optional, Sequence

import numpy as np
import numpy.typing as npt

from . import _memory
from ._layout import Layout
from ._sight import Sight

Array = npt.NDArray[np.int64]
WAYS = ("ring", "all_gather", "heads", "two_levels")


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of the whole problem, but for lengths."""

    batch: int = 1
    heads_q: int = 1
    heads_kv: int = 1
    dim_qk: int = 64
    dim_v: int = 64
    element: int = 2  #: bytes: e
    lse: bool = False  #: the logsumexp is wanted as well
    wide_parts: bool = True  #: partial results of 16-bit inputs are computed in float32

    @property
    def wide(self) -> int:
        """Bytes that partial results are kept in: w."""
        return 8 if self.element == 8 else 4

    def kv(self, keys: int, element: int) -> int:
        return self.batch * self.heads_kv * keys * (self.dim_qk + self.dim_v) * element


@dataclasses.dataclass(frozen=True)
class Machine:
    """What ranks and their links can do. The defaults are of an H200 node with 400 Gb/s between nodes to each GPU."""

    flops: float = 500e12  #: a second, of one rank
    ranks_per_node: int = 8
    link: float = 450e9  #: bytes a second, one way, inside a node
    latency: float = 5e-6  #: seconds a message
    link_between: float = 50e9  #: between nodes, for each rank
    latency_between: float = 10e-6
    memory: Optional[float] = None  #: bytes that a rank has beyond q, k, v and do; None: enough
    #: flops where parts of 16-bit inputs are computed in float32 (an H200 has 67e12 by its data sheet, an eighth of
    #: what is assumed of its tensor cores); None: the same
    flops_wide: Optional[float] = None

    def seconds(self, source: int, target: int, size: float) -> float:
        if size == 0:
            return 0.0
        if source // self.ranks_per_node == target // self.ranks_per_node:
            return self.latency + size / self.link
        return self.latency_between + size / self.link_between


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes that rank r sends to rank t, [r, t], and in how many messages."""

    bytes: Array
    messages: Array

    @staticmethod
    def none(ranks: int) -> Traffic:
        return Traffic(np.zeros((ranks, ranks), np.int64), np.zeros((ranks, ranks), np.int64))

    def send(self, source: int, target: int, size: int) -> None:
        if source != target and size > 0:
            self.bytes[source, target] += size
            self.messages[source, target] += 1

    def seconds(self, machine: Machine) -> float:
        """Messages of a rank one after another, in both directions at a time."""
        node = np.arange(len(self.bytes)) // machine.ranks_per_node
        near = node[:, None] == node[None, :]
        rate = np.where(near, machine.link, machine.link_between)
        each = self.messages * np.where(near, machine.latency, machine.latency_between) + self.bytes / rate
        return float(max(each.sum(0).max(initial=0.0), each.sum(1).max(initial=0.0)))


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of one way. Arrays are per rank."""

    way: str
    refused: str = ""  #: why it cannot be; then nothing else is known
    sent_forward: tuple[int, ...] = ()  #: bytes
    sent_backward: tuple[int, ...] = ()
    messages_forward: int = 0  #: of all ranks
    messages_backward: int = 0
    flops_forward: tuple[float, ...] = ()
    flops_backward: tuple[float, ...] = ()
    seconds_forward: float = 0.0
    seconds_backward: float = 0.0
    memory: int = 0  #: bytes, of the rank that needs most
    efficiency: float = 0.0

    @property
    def seconds(self) -> float:
        return self.seconds_forward + self.seconds_backward


def head_range(heads: int, ranks: int, rank: int) -> tuple[int, int]:
    """Query heads of a rank when heads travel."""
    return rank * heads // ranks, (rank + 1) * heads // ranks


def key_head_range(heads_q: int, heads_kv: int, ranks: int, rank: int) -> tuple[int, int]:
    """Heads of keys that these read."""
    first, last = head_range(heads_q, ranks, rank)
    group = heads_q // heads_kv if heads_kv else 1
    return (first // group, -(-last // group)) if first < last else (0, 0)


def needs(pairs: Array) -> npt.NDArray[np.bool_]:
    """[r, c]: whether rank r needs keys of rank c."""
    return np.asarray((pairs > 0) | np.eye(len(pairs), dtype=bool))


def hops(need: npt.NDArray[np.bool_]) -> tuple[int, ...]:
    """How far along the ring the keys of each rank have to travel."""
    place = np.arange(len(need))
    away = (place[:, None] - place[None, :]) % max(len(need), 1)
    return tuple(np.where(need, away, 0).max(0, initial=0).tolist())


def ring_traffic(sizes: Sizes, k: Layout, far: Sequence[int]) -> tuple[Traffic, Traffic]:
    forward, backward = Traffic.none(k.ranks), Traffic.none(k.ranks)
    for c, keys in enumerate(k.lengths):
        kv, d_kv = sizes.kv(keys, sizes.element), sizes.kv(keys, sizes.wide)
        for step in range(far[c]):
            here, there = (c + step) % k.ranks, (c + step + 1) % k.ranks
            forward.send(here, there, kv)
            backward.send(here, there, kv)
            backward.send(here, there, d_kv)
        backward.send((c + far[c]) % k.ranks, c, d_kv)
    return forward, backward


def gather_traffic(sizes: Sizes, k: Layout, need: npt.NDArray[np.bool_]) -> tuple[Traffic, Traffic]:
    forward, backward = Traffic.none(k.ranks), Traffic.none(k.ranks)
    for c, keys in enumerate(k.lengths):
        for r in range(k.ranks):
            if need[r, c]:
                forward.send(c, r, sizes.kv(keys, sizes.element))
                backward.send(c, r, sizes.kv(keys, sizes.element))
                backward.send(r, c, sizes.kv(keys, sizes.wide))
    return forward, backward


def heads_traffic(sizes: Sizes, q: Layout, k: Layout) -> tuple[Traffic, Traffic]:
    forward, backward = Traffic.none(q.ranks), Traffic.none(q.ranks)
    b, e = sizes.batch, sizes.element
    row = e * sizes.dim_v + (sizes.wide if sizes.lse else 0)  # of outputs
    for j in range(q.ranks):  # who computes
        first, last = head_range(sizes.heads_q, q.ranks, j)
        k_first, k_last = key_head_range(sizes.heads_q, sizes.heads_kv, q.ranks, j)
        for r in range(q.ranks):  # whose tokens
            rows, keys = q.lengths[r] * (last - first), k.lengths[r] * (k_last - k_first)
            there = b * e * (rows * sizes.dim_qk + keys * (sizes.dim_qk + sizes.dim_v))
            forward.send(r, j, there)
            forward.send(j, r, b * rows * row)
            backward.send(r, j, b * rows * row)
            backward.send(j, r, there)
    return forward, backward


def _ring_seconds(sizes: Sizes, k: Layout, far: Sequence[int], compute: npt.NDArray[np.float64], machine: Machine,
                  backward: bool) -> float:  # fmt: skip
    """compute: seconds [r, c]."""
    total, ranks = 0.0, k.ranks
    sent = [sizes.kv(n, sizes.element) + (sizes.kv(n, sizes.wide) if backward else 0) for n in k.lengths]
    for step in range(max(far) + 1 if far else 0):
        slowest = 0.0
        for r in range(ranks):
            c = (r - step) % ranks
            if far[c] >= step:
                moving = machine.seconds(r, (r + 1) % ranks, float(sent[c])) if far[c] > step else 0.0
                slowest = max(slowest, float(compute[r, c]), moving)
        total += slowest
    if backward and any(far):
        total += max(
            machine.seconds((c + far[c]) % ranks, c, float(sizes.kv(n, sizes.wide)))
            for c, n in enumerate(k.lengths)
            if far[c]
        )
    return total


class Model:
    """The cost of every way for one problem on one machine. `pairs` is [ranks of queries, ranks of keys], of all batch
    items on average."""

    def __init__(self, sizes: Sizes, q: Layout, k: Layout, pairs: Array, machine: Optional[Machine] = None):
        self.sizes, self.q, self.k, self.pairs = sizes, q, k, pairs
        self.machine = machine or Machine()
        self.ranks = q.ranks
        self.need = needs(pairs)
        self.far = hops(self.need)
        s = sizes
        self.flops = (
            2.0 * (s.dim_qk + s.dim_v) * s.batch * s.heads_q,
            2.0 * (3 * s.dim_qk + 2 * s.dim_v) * s.batch * s.heads_q,
        )  # a pair: forward, backward
        m = self.machine
        widens = s.wide_parts and s.element < s.wide and m.flops_wide is not None
        self.wide_rate = m.flops_wide if widens and m.flops_wide is not None else m.flops

    def costs(self) -> dict[str, Cost]:
        makers: dict[str, Callable[[], Cost]] = {
            "ring": self.ring,
            "all_gather": self.all_gather,
            "heads": self.heads,
            "two_levels": self.two_levels,
        }
        return {way: make() for way, make in makers.items()}

    def ring(self) -> Cost:
        traffic = ring_traffic(self.sizes, self.k, self.far)
        times = [
            _ring_seconds(
                self.sizes,
                self.k,
                self.far,
                np.asarray(self.pairs * f / self.wide_rate, np.float64),
                self.machine,
                back,
            )
            for f, back in zip(self.flops, (False, True))
        ]
        work = self.pairs.sum(1)
        longest, travels = (_longest(self.q), _longest(self.k)), any(self.far)
        return self._cost("ring", traffic, times, work, max(_memory.ring(self.sizes, *longest, travels)))

    def all_gather(self) -> Cost:
        traffic = gather_traffic(self.sizes, self.k, self.need)
        work = self.pairs.sum(1)
        rates = (self.machine.flops, self.wide_rate)
        gathered = max(sum(n for n, need in zip(self.k.lengths, row) if need) for row in self.need)
        memory = max(_memory.all_gather(self.sizes, _longest(self.q), _longest(self.k), gathered))
        return self._cost("all_gather", traffic, self._times(traffic, work, rates), work, memory)

    def heads(self) -> Cost:
        traffic = heads_traffic(self.sizes, self.q, self.k)
        work = self._by_heads(self.ranks) * int(self.pairs.sum())
        times = self._times(traffic, work, (self.machine.flops,) * 2)
        longest = (_longest(self.q), _longest(self.k))
        memory = max(
            max(_memory.heads(self.sizes, part, self.ranks, *longest, self.q.total, self.k.total))
            for part in self._parts(self.ranks)
        )
        return self._cost("heads", traffic, times, work, memory)

    def two_levels(self) -> Cost:
        size, m = self.machine.ranks_per_node, self.machine
        if size < 2 or self.ranks % size or self.ranks == size:
            return Cost("two_levels", refused=f"{self.ranks} ranks are not several nodes of {size}, more than 1 each")
        forward, backward = Traffic.none(self.ranks), Traffic.none(self.ranks)
        q, k = self.q.over(size), self.k.over(size)
        nodes = self.ranks // size
        pairs = self.pairs.reshape(nodes, size, nodes, size).sum((1, 3))
        far = hops(needs(pairs))
        times, work = [0.0, 0.0], np.zeros(self.ranks)
        for node in range(nodes):
            own = slice(node * size, (node + 1) * size)
            inside = heads_traffic(self.sizes, _part(self.q, own), _part(self.k, own))
            for place, (total, part) in enumerate(zip((forward, backward), inside)):
                total.bytes[own, own] += part.bytes
                total.messages[own, own] += part.messages
                times[place] = max(times[place], part.seconds(m))
        slowest = [0.0, 0.0]
        for j, share in enumerate(self._by_heads(size)):
            sizes = self._of_heads(size, j)
            column = slice(j, self.ranks, size)
            ring = ring_traffic(sizes, k, far)
            for place, (total, part) in enumerate(zip((forward, backward), ring)):
                total.bytes[column, column] += part.bytes
                total.messages[column, column] += part.messages
                between = dataclasses.replace(m, ranks_per_node=1)
                compute = pairs * (share * self.flops[place] / self.wide_rate)
                slowest[place] = max(slowest[place], _ring_seconds(sizes, k, far, compute, between, place == 1))
            work[column] = pairs.sum(1) * share
        times = [a + b for a, b in zip(times, slowest)]
        lengths = (_longest(self.q), _longest(self.k), _longest(q), _longest(k))
        memory = max(max(_memory.two_levels(self.sizes, part, size, *lengths)) for part in self._parts(size))
        return self._cost("two_levels", (forward, backward), times, work, memory)

    # Parts of these -----------------------------------------------------------------------------------------------
    def _of_heads(self, ranks: int, rank: int) -> Sizes:
        s = self.sizes
        first, last = head_range(s.heads_q, ranks, rank)
        k_first, k_last = key_head_range(s.heads_q, s.heads_kv, ranks, rank)
        return dataclasses.replace(s, heads_q=last - first, heads_kv=k_last - k_first)

    def _by_heads(self, ranks: int) -> npt.NDArray[np.float64]:
        """The share of all heads that each computes."""
        ends = [head_range(self.sizes.heads_q, ranks, j) for j in range(ranks)]
        return np.array([last - first for first, last in ends]) / max(self.sizes.heads_q, 1)

    def _parts(self, ranks: int) -> set[Sizes]:
        return {self._of_heads(ranks, j) for j in range(ranks)}

    def _times(self, traffic: tuple[Traffic, Traffic], work: npt.NDArray[np.float64],
               rates: tuple[float, float]) -> list[float]:  # fmt: skip
        slowest = float(work.max(initial=0))
        return [t.seconds(self.machine) + slowest * f / rate for t, f, rate in zip(traffic, self.flops, rates)]

    def _cost(
        self,
        way: str,
        traffic: tuple[Traffic, Traffic],
        times: Sequence[float],
        work: npt.NDArray[np.float64],
        memory: int,
    ) -> Cost:
        forward, backward = traffic
        ideal = float(self.pairs.sum()) * sum(self.flops) / (self.ranks * self.machine.flops)
        seconds = times[0] + times[1]
        return Cost(
            way,
            sent_forward=tuple(forward.bytes.sum(1).tolist()),
            sent_backward=tuple(backward.bytes.sum(1).tolist()),
            messages_forward=int(forward.messages.sum()),
            messages_backward=int(backward.messages.sum()),
            flops_forward=tuple((work * self.flops[0]).tolist()),
            flops_backward=tuple((work * self.flops[1]).tolist()),
            seconds_forward=times[0],
            seconds_backward=times[1],
            memory=memory,
            efficiency=ideal / seconds if seconds > 0 else 1.0,
        )


def _longest(layout: Layout) -> int:
    return max(layout.lengths, default=0)


def _part(layout: Layout, own: slice) -> Layout:
    """Some of its ranks, as if there were no others: lengths only."""
    return Layout.contiguous(layout.lengths[own])


@dataclasses.dataclass(frozen=True)
class Plan:
    """Every way with its cost, and the one that is taken."""

    costs: dict[str, Cost]
    way: str
    why: str

    def __str__(self) -> str:
        lines = ["way          time      forward   backward  sent a rank, forward/backward  memory    efficiency"]
        for cost in self.costs.values():
            mark = "*" if cost.way == self.way else " "
            if cost.refused:
                lines.append(f"{mark} {cost.way:<10} {cost.refused}")
                continue
            sent = f"{_bytes(max(cost.sent_forward))} / {_bytes(max(cost.sent_backward))}"
            lines.append(
                f"{mark} {cost.way:<10} {_time(cost.seconds):<9} {_time(cost.seconds_forward):<9} "
                f"{_time(cost.seconds_backward):<9} {sent:<30} {_bytes(cost.memory):<9} {100 * cost.efficiency:.0f} %"
            )
        return "\n".join([*lines, f"{self.way}: {self.why}"])


def choose(costs: dict[str, Cost], machine: Machine, forward_only: bool = False) -> Plan:
    """The fastest of those that can be and whose memory there is; of equal ones the first."""
    possible = [cost for cost in costs.values() if not cost.refused]
    if not possible:
        raise ValueError("way: none can compute this: " + "; ".join(f"{c.way}: {c.refused}" for c in costs.values()))
    fitting = [cost for cost in possible if machine.memory is None or cost.memory <= machine.memory]
    if not fitting:
        least = min(possible, key=lambda cost: cost.memory)
        return Plan(costs, least.way, f"none fits into {_bytes(int(machine.memory or 0))}, and this takes least memory")
    best = min(fitting, key=lambda cost: cost.seconds_forward if forward_only else cost.seconds)
    others = "fastest that fits" if len(fitting) < len(possible) else "fastest"
    return Plan(costs, best.way, others if len(possible) > 1 else "the only one that can compute this")


def plan(
    sizes: Sizes,
    q: Layout,
    k: Optional[Layout] = None,
    *,
    sight: Optional[Sight] = None,
    machine: Optional[Machine] = None,
) -> Plan:
    """For queries and keys laid out like this (keys as queries, if not said), and what they see of each other."""
    k = q if k is None else k
    machine = machine or Machine()
    if sight is None:
        sight = Sight.all(q.total, k.total)
    return choose(Model(sizes, q, k, sight.pairs(q, k), machine).costs(), machine)


def _bytes(n: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} TB"


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
