"""Attention of the queries here with some of all keys at a time: results and gradients that grow with every part."""

from __future__ import annotations

from typing import Any, Optional, Sequence

import numpy as np
import torch
from torch import Tensor

from .._problem import StatsOptions
from ._call import Box, Call, Collected, Segment, described, of_heads, table_of, wide_dtype, widened
from ._layout import Piece
from ._rows import RowTable, read_rows

_NONE = float("-inf")
_ROWS = StatsOptions("full", rows=True, causes=False)


def _all_heads(call: Call, q: Tensor, k: Tensor) -> Sequence[Segment]:
    if call.heads is not None:
        return call.heads
    return (Segment(slice(0, q.shape[1]), slice(0, k.shape[1])),)


class Outputs:
    """(o, lse) over the keys so far. o is kept wide, lse in double: what merging costs is below what a call rounds."""

    def __init__(self, call: Call, q: Tensor, dim_v: int, queries: Sequence[Piece], scale: Optional[Tensor],
                 bias: Optional[Tensor]):  # fmt: skip
        self.call, self.queries, self.scale = call, queries, scale
        self.bias = None if bias is None else widened(bias, call.wide)
        self.q = widened(q, call.wide)
        self.dtype = q.dtype
        batch, heads, length, _ = q.shape
        self.out = torch.zeros((batch, heads, length, dim_v), dtype=wide_dtype(q), device=q.device)
        self.lse = torch.full((batch, heads, length), _NONE, dtype=torch.float64, device=q.device)
        self.rows = RowTable(batch, heads, length, q.device) if call.stats is not None else None
        self.blind: Optional[Tensor] = None  #: rows that see no key, where there is a sink: lse does not tell them

    def add(self, k: Tensor, v: Tensor, keys: Sequence[Piece]) -> None:
        """k and v lie one piece after the other."""
        k, v = widened(k, self.call.wide), widened(v, self.call.wide)
        numbers: Optional[Tensor] = None
        if self.rows is not None:
            runs = [np.arange(begin, end) for begin, end in keys]
            numbers = torch.from_numpy(np.concatenate(runs) if runs else np.zeros(0, np.int64)).to(k.device)
        for items, tile in self.call.tiles(self.q.shape[0], self.queries, keys):
            structure = self.call.local(tile, items)
            rows, columns = slice(tile.q0, tile.q1), slice(tile.k0, tile.k1)
            for heads in _all_heads(self.call, self.q, k):
                box = Box(_ROWS) if self.rows is not None else None
                with Collected(box) as tag:
                    numbers_of, reals = described(self.call, structure, of_heads(self.call.alibi, heads.q))
                    out, lse = torch.ops.rootdk.attention(
                        self.q[items, heads.q, rows],
                        k[items, heads.kv, columns],
                        v[items, heads.kv, columns],
                        None if self.scale is None else self.scale[heads.q],
                        table_of(self.call.mask, items, heads.q, tile),
                        table_of(self.bias, items, heads.q, tile),
                        None,
                        None,
                        numbers_of,
                        reals,
                        tag,
                    )
                where = (items, heads.q, rows)
                self._merge(where, out, lse)
                if self.rows is not None and box is not None and box.stats is not None and numbers is not None:
                    self.rows.add(where, read_rows(box.stats.rows, lse, numbers[columns]))

    def _merge(self, where: tuple[slice, slice, slice], out: Tensor, lse: Tensor) -> None:
        old, new = self.lse[where], lse.double()
        total = torch.logaddexp(old, new)
        for part, so_far in ((old, True), (new, False)):
            share = torch.where(part == _NONE, torch.zeros_like(part), torch.exp(part - total))
            share = share.to(self.out.dtype).unsqueeze(-1)
            if so_far:
                self.out[where] *= share
            else:
                self.out[where] += out * share
        self.lse[where] = total

    def finish(self, sink: Optional[Tensor]) -> tuple[Tensor, Tensor]:
        """With the sink, which belongs to no rank's keys."""
        if sink is not None:
            self.blind = self.lse == _NONE
            z = sink.detach().to(self.lse)[None, :, None]
            total = torch.logaddexp(self.lse, z)
            share = torch.where(self.lse == _NONE, torch.zeros_like(total), torch.exp(self.lse - total))
            self.out *= share.to(self.out.dtype).unsqueeze(-1)
            self.lse = total
            if self.rows is not None:
                self.rows.with_sink(sink)
        return self.out.to(self.dtype), self.lse.to(self.out.dtype)


class Gradients:
    """Of what is here, over the keys so far. `out` and `lse` are those over all keys, so that every call sees the
    probabilities as they are in the end."""

    def __init__(self, call: Call, q: Tensor, out: Tensor, lse: Tensor, d_out: Tensor, d_lse: Optional[Tensor],
                 queries: Sequence[Piece], scale: Optional[Tensor], bias: Optional[Tensor],
                 wanted: Sequence[bool]):  # fmt: skip
        """wanted: of q, k, v, scale, bias."""
        self.call, self.queries, self.scale, self.wanted = call, queries, scale, wanted
        self.bias = None if bias is None else widened(bias, call.wide)
        self.q, self.out, self.d_out = (widened(x, call.wide) for x in (q, out, d_out))
        self.lse, self.d_lse = lse, d_lse
        self.wide = wide_dtype(q)
        self.d_q = torch.zeros(q.shape, dtype=self.wide, device=q.device)
        self.d_scale = None if scale is None else torch.zeros(scale.shape, dtype=torch.float32, device=q.device)
        self.d_bias = None if bias is None else torch.zeros(bias.shape, dtype=self.wide, device=q.device)

    def add(self, k: Tensor, v: Tensor, keys: Sequence[Piece]) -> tuple[Tensor, Tensor]:
        """Returns what the queries here give to dK and dV of these, wide."""
        d_k = torch.zeros(k.shape, dtype=self.wide, device=k.device)
        d_v = torch.zeros(v.shape, dtype=self.wide, device=v.device)
        k, v = widened(k, self.call.wide), widened(v, self.call.wide)
        wanted = [*self.wanted[:3], self.wanted[3] and self.scale is not None,
                  self.wanted[4] and self.bias is not None, False]  # fmt: skip
        for items, tile in self.call.tiles(self.q.shape[0], self.queries, keys):
            structure = self.call.local(tile, items)
            rows, columns = slice(tile.q0, tile.q1), slice(tile.k0, tile.k1)
            for heads in _all_heads(self.call, self.q, k):
                where, there = (items, heads.q, rows), (items, heads.kv, columns)
                bias = table_of(self.bias, items, heads.q, tile)
                found = torch.ops.rootdk.attention_backward(
                    self.d_out[where],
                    None if self.d_lse is None else self.d_lse[where],
                    self.out[where],
                    self.lse[where],
                    self.q[where],
                    k[there],
                    v[there],
                    None if self.scale is None else self.scale[heads.q],
                    table_of(self.call.mask, items, heads.q, tile),
                    bias,
                    None,
                    None,
                    *described(self.call, structure, of_heads(self.call.alibi, heads.q)),
                    sum(1 << bit for bit, one in enumerate(wanted) if one),
                )
                self._take(found, wanted, where, d_k[there], d_v[there], heads.q)
                if wanted[4] and self.d_bias is not None:
                    part = table_of(self.d_bias, items, heads.q, tile)
                    assert part is not None
                    part += found[4]
        return d_k, d_v

    def _take(self, found: Any, wanted: Sequence[bool], where: Any, d_k: Tensor, d_v: Tensor, heads: slice) -> None:
        if wanted[0]:
            self.d_q[where] += found[0]
        if wanted[1]:
            d_k += found[1]
        if wanted[2]:
            d_v += found[2]
        if wanted[3] and self.d_scale is not None:
            self.d_scale[heads] += found[3]

    def of_sink(self, sink: Tensor, blind: Tensor) -> Tensor:
        """Σ over rows of −p·D, with p = e^{z − lse} and D = dO·O − dLSE. Rows that see no key have an lse, but
        no output, and nobody looks at what is in dO there."""
        d = (self.d_out.double() * self.out.double()).sum(-1).masked_fill_(blind, 0)
        if self.d_lse is not None:
            d = d - self.d_lse.double()
        lse = self.lse.double()
        p = torch.where(lse == _NONE, torch.zeros_like(lse), torch.exp(sink.detach().to(lse)[None, :, None] - lse))
        return -(p * d).sum((0, 2))


# What both ways that share rows out keep for backward, and what they make of it ---------------------------------------
Saved = tuple[Any, ...]  #: ctx.saved_tensors, read once in a backward: q, k, v, scale, bias, sink, out, lse, blind


def keep(ctx: Any, outputs: Outputs, saved: Sequence[Optional[Tensor]], call: Call, team: Any) -> tuple[Tensor, Tensor]:
    """saved: q, k, v, scale, bias, sink. The results, which backward needs as well."""
    out, lse = outputs.finish(saved[5])
    ctx.save_for_backward(*saved, out, lse, outputs.blind)
    ctx.call, ctx.team = call, team
    ctx.set_materialize_grads(False)
    return out, lse


def begin(ctx: Any, saved: Saved, d_out: Optional[Tensor], d_lse: Optional[Tensor]) -> Gradients:
    q, _, _, scale, bias, _, out, lse, _ = saved
    d_out = torch.zeros_like(out) if d_out is None else d_out
    # dK and dV travel on all ranks alike, whoever wants them.
    wanted = [ctx.needs_input_grad[0], True, True, ctx.needs_input_grad[3], ctx.needs_input_grad[4]]
    queries = ctx.call.q_layout.pieces[ctx.team.rank]
    return Gradients(ctx.call, q, out, lse, d_out, d_lse, queries, scale, bias, wanted)


def end(ctx: Any, saved: Saved, gradients: Gradients, d_k: Tensor, d_v: Tensor) -> tuple[Optional[Tensor], ...]:
    """Of every argument of the autograd function: q, k, v, scale, bias, sink, call, team, rows."""
    q, k, v, scale, bias, sink, _, _, blind = saved
    return (
        gradients.d_q.to(q.dtype),
        d_k.to(k.dtype),
        d_v.to(v.dtype),
        None if gradients.d_scale is None else gradients.d_scale.to(scale),
        None if gradients.d_bias is None else gradients.d_bias.to(bias),
        gradients.of_sink(sink, blind).to(sink) if sink is not None and ctx.needs_input_grad[5] else None,
        None,
        None,
        None,
    )
