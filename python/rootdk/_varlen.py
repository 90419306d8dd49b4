"""Attention over sequences packed end to end, with PyTorch's arguments (torch.nn.attention.varlen) and more to see."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Union

import torch
from torch import Tensor

from ._flash import arguments, attend, pages
from ._problem import StatsOptions, flag


class AuxRequest(NamedTuple):
    """What to return beside the output, each [heads, total_q]; torch's own has the first."""

    lse: bool = False
    max_scores: bool = False  #: the largest score of a row, after the scale; −inf where it sees nothing
    entropy: bool = False  #: of a row's probabilities, in nats
    sigma: bool = False  #: standard deviation of a row's scores (n − 1)


_ROWS = {"max_scores": "score_max", "entropy": "entropy", "sigma": "score_variance"}


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Optional[Tensor],
    max_q: int,
    max_k: int,
    *,
    return_aux: Optional[Any] = None,
    scale: Optional[float] = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Optional[Tensor] = None,
    block_table: Optional[Tensor] = None,
    num_splits: Optional[int] = None,
) -> Union[Tensor, tuple[Tensor, ...]]:
    """query is [total_q, heads, dim], key and value [total_k, heads_kv, dim], or [pages, page size, heads_kv, dim] with
    a block_table; a window of (-1, 0) is causal, and positions count from the end of each sequence.

    Returns the output, and after it what return_aux asks for, in the order of its fields. The output and lse have
    gradients; the others are statistics from the same pass. Any floating dtype, on the CPU too.
    """
    arguments.hints(num_splits=num_splits)
    shape = "(total, heads, dim)"
    query = arguments.tensor("query", query, shape)
    q_ends = arguments.cumulative("cu_seq_q", cu_seq_q, query.shape[0], max_q, "max_q")
    if block_table is not None:
        key, value, k_ends, seqused_k = _from_pages(key, value, block_table, seqused_k, max_k)
    else:
        key, value = arguments.tensor("key", key, shape), arguments.tensor("value", value, shape)
        k_ends = arguments.cumulative("cu_seq_k", cu_seq_k, key.shape[0], max_k, "max_k")
    if len(k_ends) != len(q_ends):
        raise ValueError(f"cu_seq_k: {len(k_ends) - 1} sequences, but cu_seq_q has {len(q_ends) - 1}")
    heads, heads_kv = query.shape[1], key.shape[1]
    if heads != heads_kv and not flag("enable_gqa", enable_gqa):
        raise ValueError(f"enable_gqa: False, but query has {heads} heads and key {heads_kv}")
    said = arguments.said(scale, False, window_size, 0.0)
    spans = arguments.spans_of(q_ends, k_ends, seqused_k=seqused_k)
    wanted = [name for name in AuxRequest._fields if getattr(return_aux, name, False)]
    rows = [_ROWS[name] for name in wanted if name in _ROWS]
    options = StatsOptions("full", rows=rows, causes=False) if rows else None
    result = attend.packed(query, key, value, spans, said, options)
    if not wanted:
        return result.out
    found = {name: result.rows[row] for name, row in _ROWS.items() if row in rows} | {"lse": result.lse}
    if "sigma" in found:
        found["sigma"] = found["sigma"].sqrt()
    return result.out, *(found[name] for name in wanted)


def varlen_attn_out(
    out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Optional[Tensor],
    max_q: int,
    max_k: int,
    *,
    return_aux: Optional[Any] = None,
    scale: Optional[float] = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Optional[Tensor] = None,
    block_table: Optional[Tensor] = None,
    num_splits: Optional[int] = None,
) -> Union[Tensor, tuple[Tensor, ...]]:
    """varlen_attn whose output is written to `out`; no gradients, as there, since `out` may be written over before
    backward. Returns `out`, and after it what return_aux asks for."""
    with torch.no_grad():
        given: Any = query, key, value, cu_seq_q, cu_seq_k, max_q, max_k
        found = varlen_attn(
            *given,
            return_aux=return_aux,
            scale=scale,
            window_size=window_size,
            enable_gqa=enable_gqa,
            seqused_k=seqused_k,
            block_table=block_table,
            num_splits=num_splits,
        )
        result, *asked = found if isinstance(found, tuple) else (found,)
        if not isinstance(out, Tensor) or out.shape != result.shape or out.dtype != result.dtype:
            came = f"{out.dtype} {list(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(f"out: {came}, but {result.dtype} {list(result.shape)} is wanted")
        out.copy_(result)
    return (out, *asked) if asked else out


def _from_pages(
    key: Tensor, value: Tensor, table: Tensor, used: Optional[Tensor], max_k: Any
) -> tuple[Tensor, Tensor, list[int], None]:
    """Keys and values end to end, of so many tokens as are used."""
    if used is None:
        raise ValueError("seqused_k: None, but a block_table needs it")
    read = pages.Pages("block_table", table, arguments.tensor("key", key, "(pages, page size, heads_kv, dim)"))
    count = read.table.shape[0]
    counts = arguments.lengths("seqused_k", used, count, [min(read.capacity(), int(max_k))] * count)
    return *read.end_to_end(key, value, counts), None
