"""The ring: K and V of every rank travel from rank to rank, as far as anybody needs them, while the kernel works on
those that came before. Backward sends them round again, with the gradients that they gather on the way."""

from __future__ import annotations

from typing import Any, Iterator, Optional

import torch
from torch import Tensor

from ._call import Call, wide_dtype
from ._partial import Gradients, Outputs, begin, end, keep
from ._plan import hops, needs
from ._rows import RowTable
from ._team import Form, Pending, Team, packed, receive_buffer, unpacked

_KV, _D_KV = "keys and values on their way round", "gradients of keys and values on their way round"


class Round:
    """One way round for the keys and values of all ranks."""

    def __init__(self, call: Call, team: Team, k: Tensor, v: Tensor):
        self.call, self.team, self.k, self.v = call, team, k, v
        self.far = hops(needs(call.pairs(k.shape[0])))  # of the keys of each rank
        self.next, self.previous = (team.rank + 1) % team.size, (team.rank - 1) % team.size

    def forms(self, chunk: int, dtype: torch.dtype) -> tuple[Form, Form]:
        """Of K and V of a rank."""
        n = self.call.k_layout.lengths[chunk]
        k, v = self.k, self.v
        return ((*k.shape[:2], n, k.shape[3]), dtype), ((*v.shape[:2], n, v.shape[3]), dtype)

    def steps(self) -> Iterator[tuple[int, int, Optional[list[Tensor]]]]:
        """(step, whose keys, K and V, or None where they do not come this far). The next ones are on their way while
        the caller works on these."""
        flat: Optional[Tensor] = packed([self.k, self.v])
        for step in range(max(self.far) + 1):
            chunk, arriving = self.at(step), self.at(step + 1)
            sends = [(self.next, flat)] if flat is not None and self.far[chunk] > step else []
            coming: Optional[Tensor] = None
            if self.far[arriving] > step:
                coming = receive_buffer(self.k, self.forms(arriving, self.k.dtype))
            pending = self.team.post(_KV, sends, [] if coming is None else [(self.previous, coming)])
            yield step, chunk, None if flat is None else unpacked(flat, self.forms(chunk, self.k.dtype))
            pending.wait()
            flat = coming

    def at(self, step: int) -> int:
        """Whose keys are here in a step."""
        return (self.team.rank - step) % self.team.size


class RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: Optional[Tensor],
        bias: Optional[Tensor],
        sink: Optional[Tensor],
        call: Call,
        team: Team,
        rows: list[RowTable],
    ) -> Any:
        outputs = Outputs(call, q.detach(), v.shape[3], call.q_layout.pieces[team.rank], scale, bias)
        for _, chunk, kv in Round(call, team, k, v).steps():
            if kv is not None:
                outputs.add(kv[0], kv[1], call.k_layout.pieces[chunk])
        if outputs.rows is not None:
            rows.append(outputs.rows)
        return keep(ctx, outputs, (q, k, v, scale, bias, sink), call, team)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out: Optional[Tensor], d_lse: Optional[Tensor]) -> Any:
        with ctx.team.telling():
            saved = ctx.saved_tensors
            gradients = begin(ctx, saved, d_out, d_lse)
            d_k, d_v = _backward_round(Round(ctx.call, ctx.team, *saved[1:3]), gradients)
            return end(ctx, saved, gradients, d_k, d_v)


def _backward_round(ring: Round, gradients: Gradients) -> list[Tensor]:
    """dK and dV of the keys here. Each sum begins on the rank that holds the keys and grows in the order in which they
    travel, so it has the same bits every time."""
    team, far, wide = ring.team, ring.far, wide_dtype(ring.k)
    coming: Optional[Tensor] = None  # the sum of the keys that are here in the next step
    home: Optional[Tensor] = None
    pending = Pending(team, _D_KV, [], [])
    for step, chunk, kv in ring.steps():
        total: Optional[Tensor] = None
        if kv is not None:
            total = packed(gradients.add(kv[0], kv[1], ring.call.k_layout.pieces[chunk])).view(wide)
        pending.wait()
        if total is not None and coming is not None:
            total = coming.view(wide) + total
        coming = None
        sends, receives = [], []
        if total is not None:
            if far[chunk] > step:
                sends.append((ring.next, total.view(torch.uint8)))
            elif step > 0:
                sends.append((chunk, total.view(torch.uint8)))
            else:
                home = total.view(torch.uint8)
        arriving = ring.at(step + 1)
        if far[arriving] > step:
            coming = receive_buffer(ring.k, ring.forms(arriving, wide))
            receives.append((ring.previous, coming))
        if far[team.rank] == step > 0:
            home = receive_buffer(ring.k, ring.forms(team.rank, wide))
            receives.append(((team.rank + step) % team.size, home))
        pending = team.post(_D_KV, sends, receives)
    pending.wait()
    assert home is not None
    return unpacked(home, ring.forms(team.rank, wide))
