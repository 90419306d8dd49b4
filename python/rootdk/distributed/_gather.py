"""All-gather: every rank gets the K and V of all ranks whose keys its queries see, at once, and works on them in one
go. Where few heads of keys serve many of queries that is cheap. They are not kept for backward, which asks again."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

import torch
from torch import Tensor

from ._call import Call
from ._layout import Piece, joined
from ._partial import Outputs, begin, end, keep
from ._plan import needs
from ._rows import RowTable
from ._team import Form, Team, packed, receive_buffer, unpacked


class Gathered:
    """K and V of all ranks that this one needs, in the order of the sequence."""

    def __init__(self, call: Call, team: Team, k: Tensor, v: Tensor):
        self.call, self.team = call, team
        self.need = needs(call.pairs(k.shape[0]))
        self.sources = [c for c in range(team.size) if self.need[team.rank, c]]
        self.targets = [r for r in range(team.size) if self.need[r, team.rank]]
        self.pieces: tuple[Piece, ...] = joined(piece for c in self.sources for piece in call.k_layout.pieces[c])
        self.layout = call.k_layout.among(self.sources)
        self.k_shape, self.v_shape = k.shape, v.shape

    def forms(self, rank: int, dtype: torch.dtype) -> tuple[Form, Form]:
        n = self.call.k_layout.lengths[rank]
        return ((*self.k_shape[:2], n, self.k_shape[3]), dtype), ((*self.v_shape[:2], n, self.v_shape[3]), dtype)

    def places(self, rank: int) -> list[tuple[slice, slice]]:
        """Where the pieces of a rank lie: there, and among all that are gathered."""
        return self.layout.places(self.sources.index(rank))

    def gather(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        flat = packed([k, v])
        coming = {c: receive_buffer(k, self.forms(c, k.dtype)) for c in self.sources if c != self.team.rank}
        self.team.post("keys and values", [(r, flat) for r in self.targets], list(coming.items())).wait()
        length = sum(end - begin for begin, end in self.pieces)
        all_k = k.new_empty((*k.shape[:2], length, k.shape[3]))
        all_v = v.new_empty((*v.shape[:2], length, v.shape[3]))
        for c in self.sources:
            part = [k, v] if c == self.team.rank else unpacked(coming.pop(c), self.forms(c, k.dtype))
            for there, here in self.places(c):
                for whole, piece in zip((all_k, all_v), part):
                    whole[:, :, here] = piece[:, :, there]
        return all_k, all_v

    def scatter(self, d_k: Tensor, d_v: Tensor) -> list[Tensor]:
        """The sums over ranks of gradients of the keys here, added in the order of ranks."""
        wide = d_k.dtype
        sends, own = [], None
        for c in self.sources:
            part = [torch.cat([x[:, :, here] for _, here in self.places(c)] or [x[:, :, :0]], 2) for x in (d_k, d_v)]
            if c == self.team.rank:
                own = part
            else:
                sends.append((c, packed(part)))
        coming = {r: receive_buffer(d_k, self.forms(self.team.rank, wide)) for r in self.targets if r != self.team.rank}
        self.team.post("gradients of keys and values", sends, list(coming.items())).wait()
        assert own is not None
        parts = [own if r == self.team.rank else unpacked(coming[r], self.forms(self.team.rank, wide))
                 for r in self.targets]  # fmt: skip
        out = [x.clone() for x in parts[0]]
        for part in parts[1:]:
            for total, x in zip(out, part):
                total += x
        return out


class GatherAttention(torch.autograd.Function):
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
        gathered = Gathered(call, team, k, v)
        # All visible keys of a query lie in one of the pieces, so nothing of a row is rounded before it is complete,
        # unless a sink comes after the call.
        narrow = dataclasses.replace(call, wide=call.wide and sink is not None)
        outputs = Outputs(narrow, q.detach(), v.shape[3], call.q_layout.pieces[team.rank], scale, bias)
        outputs.add(*gathered.gather(k.detach(), v.detach()), gathered.pieces)
        if outputs.rows is not None:
            rows.append(outputs.rows)
        return keep(ctx, outputs, (q, k, v, scale, bias, sink), call, team)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out: Optional[Tensor], d_lse: Optional[Tensor]) -> Any:
        with ctx.team.telling():
            saved = ctx.saved_tensors
            k, v = saved[1:3]
            gathered = Gathered(ctx.call, ctx.team, k, v)
            gradients = begin(ctx, saved, d_out, d_lse)
            d_k, d_v = gathered.scatter(*gradients.add(*gathered.gather(k, v), gathered.pieces))
            return end(ctx, saved, gradients, d_k, d_v)
