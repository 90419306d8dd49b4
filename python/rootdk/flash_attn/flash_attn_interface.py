"""FlashAttention 2's functions, with their arguments, layouts and results, computed by rootdk: on the CPU too, and in
float32 too. `s_aux` is ours: a sink for each query head.

Imports are absolute, so that the package also works under the name `flash_attn`.
"""

from __future__ import annotations

from typing import Any, Optional, Union

import torch
from torch import Tensor

from rootdk._flash.arguments import Said, cumulative, hints, parts, said, spans_of, tensor
from rootdk._flash.attend import Result, dense, packed
from rootdk._flash.cache import Cache, Rotary, with_cache
from rootdk._flash.pages import Pages

Returned = Union[Tensor, "tuple[Tensor, Tensor, Tensor]"]
_BATCH, _PACKED = "(batch_size, seqlen, nheads, headdim)", "(total, nheads, headdim)"


def _returned(result: Result, options: Said) -> Returned:
    """A row that sees nothing has a logsumexp of +inf in FlashAttention 2."""
    if not options.probabilities:
        return result.out
    return result.out, _unseen(result.lse), result.probabilities


def _unseen(lse: Tensor) -> Tensor:
    return lse.masked_fill(lse == -torch.inf, torch.inf)


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    s_aux: Optional[Tensor] = None,
) -> Returned:
    """q is (batch_size, seqlen, nheads, headdim). With return_attn_probs (out, lse (batch_size, nheads, seqlen),
    S_dmask), the last one empty without dropout."""
    options = said(
        softmax_scale, causal, window_size, softcap, alibi_slopes, dropout_p, s_aux, return_attn_probs, deterministic
    )
    q, k, v = (tensor(name, x, _BATCH) for name, x in (("q", q), ("k", k), ("v", v)))
    return _returned(dense(q, k, v, options), options)


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    s_aux: Optional[Tensor] = None,
) -> Returned:
    """kv is (batch_size, seqlen, 2, nheads_k, headdim); the rest as in flash_attn_func."""
    k, v = parts("kv", kv, "(batch_size, seqlen, 2, nheads_k, headdim)", 2, 2)
    return flash_attn_func(
        q,
        k,
        v,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
        s_aux,
    )


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    s_aux: Optional[Tensor] = None,
) -> Returned:
    """qkv is (batch_size, seqlen, 3, nheads, headdim); the rest as in flash_attn_func."""
    q, k, v = parts("qkv", qkv, "(batch_size, seqlen, 3, nheads, headdim)", 3, 2)
    return flash_attn_func(
        q,
        k,
        v,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
        s_aux,
    )


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Optional[Tensor] = None,
    s_aux: Optional[Tensor] = None,
) -> Returned:
    """q is (total_q, nheads, headdim), k and v (total_k, nheads_k, headdim), or (num_blocks, page_block_size, nheads_k,
    headdim) with a block_table. With return_attn_probs (out, lse (nheads, total_q), S_dmask)."""
    options = said(
        softmax_scale, causal, window_size, softcap, alibi_slopes, dropout_p, s_aux, return_attn_probs, deterministic
    )
    q = tensor("q", q, _PACKED)
    q_ends = cumulative("cu_seqlens_q", cu_seqlens_q, q.shape[0], max_seqlen_q, "max_seqlen_q")
    if block_table is None:
        k, v = tensor("k", k, _PACKED), tensor("v", v, _PACKED)
        k_ends = cumulative("cu_seqlens_k", cu_seqlens_k, k.shape[0], max_seqlen_k, "max_seqlen_k")
    else:
        k, v, k_ends = _from_pages(k, v, block_table, cu_seqlens_k, max_seqlen_k)
    if len(k_ends) != len(q_ends):
        raise ValueError(f"cu_seqlens_k: {len(k_ends) - 1} sequences, but cu_seqlens_q has {len(q_ends) - 1}")
    return _returned(packed(q, k, v, spans_of(q_ends, k_ends), options), options)


def _from_pages(k: Tensor, v: Tensor, table: Tensor, ends: Tensor, most: Any) -> tuple[Tensor, Tensor, list[int]]:
    """Keys and values of a pool of pages, end to end."""
    shape = "(num_blocks, page_block_size, nheads_k, headdim)"
    pages = Pages("block_table", table, tensor("k", k, shape))
    k_ends = cumulative("cu_seqlens_k", ends, pages.capacity() * pages.table.shape[0], most, "max_seqlen_k")
    counts = [b - a for a, b in zip(k_ends, k_ends[1:])]
    return pages.end_to_end(k, tensor("v", v, shape), counts)


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    s_aux: Optional[Tensor] = None,
) -> Returned:
    """kv is (total_k, 2, nheads_k, headdim); the rest as in flash_attn_varlen_func."""
    k, v = parts("kv", kv, "(total_k, 2, nheads_k, headdim)", 2, 1)
    return flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
        s_aux=s_aux,
    )


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    s_aux: Optional[Tensor] = None,
) -> Returned:
    """qkv is (total, 3, nheads, headdim); the rest as in flash_attn_varlen_func."""
    q, k, v = parts("qkv", qkv, "(total, 3, nheads, headdim)", 3, 1)
    starts = tensor("cu_seqlens", cu_seqlens, "(batch_size + 1)")
    return flash_attn_varlen_func(
        q,
        k,
        v,
        starts,
        starts,
        max_seqlen,
        max_seqlen,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
        s_aux=s_aux,
    )


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Optional[Tensor] = None,
    v: Optional[Tensor] = None,
    rotary_cos: Optional[Tensor] = None,
    rotary_sin: Optional[Tensor] = None,
    cache_seqlens: Union[int, Tensor, None] = None,
    cache_batch_idx: Optional[Tensor] = None,
    cache_leftpad: Optional[Tensor] = None,
    block_table: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Optional[Tensor] = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    s_aux: Optional[Tensor] = None,
) -> Union[Tensor, tuple[Tensor, Tensor]]:
    """k and v are written to the cache in place after the cache_seqlens that are there, then q attends to all of it; no
    gradients, as there. Pages may have any size."""
    hints(num_splits=num_splits)
    q = tensor("q", q, _BATCH)
    options = said(softmax_scale, causal, window_size, softcap, alibi_slopes, s_aux=s_aux)
    cache = Cache.of(
        k_cache, v_cache, q.shape[0], cache_seqlens, cache_batch_idx, cache_leftpad, block_table, "block_table"
    )
    rotary = Rotary.of(rotary_cos, rotary_sin, rotary_interleaved, q.shape[3])
    result = with_cache(q, cache, k, v, rotary, options, known=cache_seqlens is not None)
    return (result.out, _unseen(result.lse)) if return_softmax_lse else result.out
