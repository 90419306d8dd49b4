"""Heads travel (Ulysses): tokens of all heads become all tokens of some heads, by one exchange there and one back."""

from __future__ import annotations

from typing import Any, Optional, Sequence

import torch
from torch import Tensor

from ._layout import Layout
from ._plan import head_range, key_head_range
from ._team import Form, Team, packed, receive_buffer, unpacked


class Exchange:
    """Between a rank's own tokens and those of the whole team, in the order of the sequence."""

    def __init__(self, team: Team, q: Layout, k: Layout, heads_q: int, heads_kv: int):
        """q, k: what the ranks of the team hold."""
        self.team, self.heads = team, (heads_q, heads_kv)
        self.lengths = (q.lengths, k.lengths)
        self.places = tuple([layout.places(rank) for rank in range(team.size)] for layout in (q, k))

    def range(self, side: int, rank: int) -> slice:
        """Heads of queries (0) or of keys (1) that a rank computes."""
        q, kv = self.heads
        first, last = head_range(q, self.team.size, rank) if side == 0 else key_head_range(q, kv, self.team.size, rank)
        return slice(first, last)

    def _form(self, x: Tensor, side: int, heads: slice, tokens: int) -> Form:
        return (x.shape[0], heads.stop - heads.start, tokens, *x.shape[3:]), x.dtype

    def there(self, what: str, tensors: Sequence[Tensor], sides: Sequence[int]) -> list[Tensor]:
        """Each [batch, heads, tokens here, …] → [batch, heads of this rank, all tokens, …]."""
        me, ranks = self.team.rank, range(self.team.size)
        mine = [x[:, self.range(side, me)] for x, side in zip(tensors, sides)]
        sends = [(j, packed([x[:, self.range(side, j)] for x, side in zip(tensors, sides)])) for j in ranks if j != me]
        forms = {
            r: [self._form(x, s, self.range(s, me), self.lengths[s][r]) for x, s in zip(tensors, sides)] for r in ranks
        }
        coming = {r: receive_buffer(tensors[0], forms[r]) for r in ranks if r != me}
        self.team.post(what, sends, list(coming.items())).wait()
        whole = [
            x.new_empty((x.shape[0], x.shape[1], sum(self.lengths[side]), *x.shape[3:])) for x, side in zip(mine, sides)
        ]
        for r in ranks:
            parts = mine if r == me else unpacked(coming.pop(r), forms[r])
            for x, part, side in zip(whole, parts, sides):
                for own, all_of_them in self.places[side][r]:
                    x[:, :, all_of_them] = part[:, :, own]
        return whole

    def back(self, what: str, tensors: Sequence[Tensor], sides: Sequence[int]) -> list[Tensor]:
        """The other way; heads of keys that several ranks have computed with are added, in the order of ranks."""
        me, ranks = self.team.rank, range(self.team.size)

        def of_rank(r: int) -> list[Tensor]:
            return [
                torch.cat([x[:, :, there] for _, there in self.places[side][r]] or [x[:, :, :0]], 2)
                for x, side in zip(tensors, sides)
            ]

        sends = [(r, packed(of_rank(r))) for r in ranks if r != me]
        forms = {
            j: [self._form(x, s, self.range(s, j), self.lengths[s][me]) for x, s in zip(tensors, sides)] for j in ranks
        }
        coming = {j: receive_buffer(tensors[0], forms[j]) for j in ranks if j != me}
        self.team.post(what, sends, list(coming.items())).wait()
        out = [
            torch.zeros((x.shape[0], self.heads[side], self.lengths[side][me], *x.shape[3:]),
                        dtype=torch.float32 if x.element_size() < 4 and side else x.dtype, device=x.device)
            for x, side in zip(tensors, sides)
        ]  # fmt: skip
        for j in ranks:
            parts = of_rank(me) if j == me else unpacked(coming.pop(j), forms[j])
            for x, part, side in zip(out, parts, sides):
                x[:, self.range(side, j)] += part
        return [x.to(like.dtype) for x, like in zip(out, tensors)]


class ToHeads(torch.autograd.Function):
    """q, k and v. `learned` wants a gradient if any rank's tensors do, so that backward sends here what others wait
    for, whatever wants gradients here."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, learned: Optional[Tensor], exchange: Exchange) -> Any:
        ctx.exchange = exchange
        return tuple(exchange.there("heads of q, k and v", [q, k, v], (0, 1, 1)))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        with ctx.exchange.team.telling():
            found = ctx.exchange.back("gradients of q, k and v", [x.contiguous() for x in gradients], (0, 1, 1))
        return (*found, None, None)


class FromHeads(torch.autograd.Function):
    """The output, and lse where it is asked for, which goes first: its elements are the wider ones."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, lse: Optional[Tensor], exchange: Exchange) -> Any:
        ctx.exchange, ctx.with_lse = exchange, lse is not None
        tensors = [out] if lse is None else [lse, out]
        found = exchange.back("outputs", tensors, (0,) * len(tensors))
        return found[-1] if lse is None else (found[1], found[0])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out: Tensor, d_lse: Optional[Tensor] = None) -> Any:
        tensors = [d_lse, d_out] if ctx.with_lse and d_lse is not None else [d_out]
        with ctx.exchange.team.telling():
            found = ctx.exchange.there("gradients of outputs", tensors, (0,) * len(tensors))
        return found[-1], found[0] if len(found) > 1 else None, None
