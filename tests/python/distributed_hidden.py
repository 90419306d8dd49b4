"""What masks hide, filled with what is not finite and with the largest numbers, over ranks: nothing may be another than
with zeros there, and its gradients are zeros."""

from __future__ import annotations

import rootdk.distributed as rd
import torch
from distributed_problems import Case
from distributed_worker import WAYS, nodes


class Filled(Case):
    """A problem with one filling of all that nothing sees: rows of K and V that no query of their group sees, rows of
    Q, dO and, unless a sink passes it on, dLSE that see no key, and elements of a bias at pairs that nobody sees."""

    def __init__(self, seed, ranks, poison):
        super().__init__(seed, ranks)
        if self.d_lse is None:
            self.d_lse = torch.zeros(self.batch, self.heads, self.len_q, dtype=self.dtype)
        group = self.heads // self.heads_kv
        visible = self.written_out[0].expand(self.batch, self.heads, self.len_q, self.len_kv)
        self.blind = ~visible.any(-1)
        self.unseen = ~visible.any(2).unflatten(1, (self.heads_kv, group)).any(2)
        g = torch.Generator().manual_seed(seed)
        largest = torch.finfo(self.dtype).max
        values = torch.tensor([torch.nan, torch.inf, -torch.inf, largest, -largest], dtype=self.dtype)
        if not poison:
            values = torch.zeros_like(values)

        def fill(x, where):
            x[where] = values[torch.randint(5, x.shape, generator=g)][where]

        for x, where in ((self.q, self.blind), (self.d_out, self.blind), (self.k, self.unseen), (self.v, self.unseen)):
            fill(x, where)
        if "sink" not in self.arguments:
            fill(self.d_lse, self.blind)
        if self.bias is not None:
            shared = [axis for axis, size in enumerate(self.bias.shape) if size == 1]
            fill(self.bias, ~(visible.any(shared, keepdim=True) if shared else visible))

    def _mask(self, rng):
        super()._mask(rng)
        lengths = [("query_lengths", self.len_q), ("key_lengths", self.len_kv)]
        for name, most in rng.choice([lengths[:1], lengths[1:], lengths]):
            self.arguments.setdefault(name, [rng.randint(most // 2, most) for _ in range(self.batch)])
        if "key_starts" in self.arguments and "key_lengths" in self.arguments:
            pairs = zip(self.arguments["key_starts"], self.arguments["key_lengths"])
            self.arguments["key_starts"] = [min(pair) for pair in pairs]

    def _scores(self, rng):
        super()._scores(rng)
        if rng.random() < 0.5:
            self.arguments.setdefault("sink", [rng.uniform(-2, 3) for _ in range(self.heads)])

    @property
    def hides(self):
        return bool(self.blind.any() or self.unseen.any())


def results(case, rank, way):
    tensors, arguments = case.local(rank)
    out, lse = rd.attention(*tensors, **arguments, way=way, machine=nodes(case.ranks), return_lse=True, timeout=20)
    gradients = [case.part(x, rank) for x in (case.d_out, case.d_lse.to(lse.dtype))]
    torch.autograd.backward((out, lse), gradients)
    found = dict(zip(("dq", "dk", "dv"), (x.grad for x in tensors)), o=out.detach(), lse=lse.detach())
    learned = {name: arguments.get(name) for name in ("sink", "scale", "bias")}
    return found | {f"d{name}": x.grad for name, x in learned.items() if isinstance(x, torch.Tensor)}


def hidden(rank, ranks, count):
    """What differs, and how many problems hide something, by way."""
    differ, compared = [], dict.fromkeys(WAYS, 0)
    for seed in range(500, 500 + int(count)):
        clean, poisoned = (Filled(seed, ranks, poison) for poison in (False, True))
        if not clean.hides:
            continue
        blind = clean.part(clean.blind, rank)
        unseen = clean.part(clean.unseen, rank, clean.k_layout)
        for way in WAYS:
            try:
                ours, other = (results(case, rank, way) for case in (clean, poisoned))
            except ValueError:  # that this way cannot, on all ranks
                continue
            compared[way] += 1
            differ += [f"{way}: {name}: {clean}" for name in ours if not torch.equal(ours[name], other[name])]
            for name, where in (("o", blind), ("dq", blind), ("dk", unseen), ("dv", unseen)):
                if other[name][where].count_nonzero():
                    differ.append(f"{way}: {name} is not 0 where it is hidden: {clean}")
    return {"differ": differ, "compared": compared}
