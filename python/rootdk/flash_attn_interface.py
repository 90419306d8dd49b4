"""FlashAttention 3's functions, with their arguments, layouts and results, computed by rootdk: on the CPU too, and in
float32 too. `s_aux`, a sink for each query head, is vLLM's.

A row that sees nothing has a logsumexp of −inf. What is for the speed of FlashAttention's kernels alone (num_splits,
pack_gqa, sm_margin) is checked and changes nothing.
"""

from __future__ import annotations

from typing import Any, Optional, Union

import torch
from torch import Tensor

from rootdk._flash.arguments import Said, cumulative, hints, parts, refuse, said, spans_of, tensor
from rootdk._flash.attend import Result, dense, packed
from rootdk._flash.cache import Cache, Rotary, with_cache
from rootdk._problem import flag, whole

__all__ = [
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "get_scheduler_metadata",
]

Returned = Union[Tensor, "tuple[Tensor, Tensor]"]
_BATCH, _PACKED = "(batch_size, seqlen, nheads, headdim)", "(total, nheads, headdim)"


def _returned(result: Result, options: Said) -> Returned:
    return (result.out, result.lse) if options.probabilities else result.out


def _with_qv(q: Tensor, k: Tensor, v: Tensor, qv: Any, options: Any, shape: str) -> tuple[Tensor, Tensor]:
    """q·k + qv·v is one product of longer vectors."""
    if qv is None:
        return q, k
    qv = tensor("qv", qv, shape)
    if qv.shape != (*q.shape[:-1], v.shape[-1]):
        raise ValueError(f"qv: {list(qv.shape)}, but {[*q.shape[:-1], v.shape[-1]]} is wanted")
    return torch.cat((q, qv), -1), torch.cat((k, v), -1)


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    qv: Optional[Tensor] = None,
    q_descale: Optional[Tensor] = None,
    k_descale: Optional[Tensor] = None,
    v_descale: Optional[Tensor] = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: Optional[bool] = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
    s_aux: Optional[Tensor] = None,
) -> Returned:
    """q is (batch_size, seqlen, nheads, headdim). With return_attn_probs (out, lse (batch_size, nheads, seqlen))."""
    refuse(q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, attention_chunk=attention_chunk)
    hints(num_splits=num_splits, pack_gqa=pack_gqa, sm_margin=sm_margin)
    options = said(
        softmax_scale,
        causal,
        window_size,
        softcap,
        s_aux=s_aux,
        return_attn_probs=return_attn_probs,
        deterministic=deterministic,
    )
    q, k, v = (tensor(name, x, _BATCH) for name, x in (("q", q), ("k", k), ("v", v)))
    q, k = _with_qv(q, k, v, qv, options, _BATCH)
    return _returned(dense(q, k, v, options), options)


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    q_descale: Optional[Tensor] = None,
    k_descale: Optional[Tensor] = None,
    v_descale: Optional[Tensor] = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
    num_heads_q: Optional[int] = None,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
    s_aux: Optional[Tensor] = None,
) -> Returned:
    """qkv is (batch_size, seqlen, 3, nheads, headdim), or, with num_heads_q, (batch_size, seqlen, nheads_q +
    2·nheads_k, headdim)."""
    if isinstance(qkv, Tensor) and qkv.ndim == 4:
        if num_heads_q is None:
            raise ValueError("num_heads_q: None, but qkv has 4 axes, so it is wanted")
        others = qkv.shape[2] - whole("num_heads_q", num_heads_q)
        if others < 2 or others % 2:
            raise ValueError(
                f"num_heads_q: {num_heads_q}, but that leaves {others} of {qkv.shape[2]} heads for k and v"
            )
        q, k, v = qkv.split([num_heads_q, others // 2, others // 2], 2)
    else:
        q, k, v = parts("qkv", qkv, "(batch_size, seqlen, 3, nheads, headdim)", 3, 2)
    return flash_attn_func(
        q,
        k,
        v,
        softmax_scale,
        causal,
        None,
        q_descale,
        k_descale,
        v_descale,
        window_size,
        attention_chunk,
        softcap,
        deterministic=deterministic,
        sm_margin=sm_margin,
        return_attn_probs=return_attn_probs,
        s_aux=s_aux,
    )


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Optional[Tensor] = None,
    seqused_k: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    qv: Optional[Tensor] = None,
    q_descale: Optional[Tensor] = None,
    k_descale: Optional[Tensor] = None,
    v_descale: Optional[Tensor] = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: Optional[bool] = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
    s_aux: Optional[Tensor] = None,
) -> Returned:
    """q is (total_q, nheads, headdim). Of each sequence the first seqused_q queries and seqused_k keys count; the other
    rows are 0. With return_attn_probs (out, lse (nheads, total_q))."""
    refuse(q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, attention_chunk=attention_chunk)
    hints(num_splits=num_splits, pack_gqa=pack_gqa, sm_margin=sm_margin)
    options = said(
        softmax_scale,
        causal,
        window_size,
        softcap,
        s_aux=s_aux,
        return_attn_probs=return_attn_probs,
        deterministic=deterministic,
    )
    q, k, v = (tensor(name, x, _PACKED) for name, x in (("q", q), ("k", k), ("v", v)))
    q_ends = cumulative("cu_seqlens_q", cu_seqlens_q, q.shape[0], max_seqlen_q, "max_seqlen_q")
    k_ends = cumulative("cu_seqlens_k", cu_seqlens_k, k.shape[0], max_seqlen_k, "max_seqlen_k")
    if len(k_ends) != len(q_ends):
        raise ValueError(f"cu_seqlens_k: {len(k_ends) - 1} sequences, but cu_seqlens_q has {len(q_ends) - 1}")
    spans = spans_of(q_ends, k_ends, seqused_q, seqused_k)
    q, k = _with_qv(q, k, v, qv, options, _PACKED)
    return _returned(packed(q, k, v, spans, options), options)


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Optional[Tensor] = None,
    v: Optional[Tensor] = None,
    qv: Optional[Tensor] = None,
    rotary_cos: Optional[Tensor] = None,
    rotary_sin: Optional[Tensor] = None,
    cache_seqlens: Union[int, Tensor, None] = None,
    cache_batch_idx: Optional[Tensor] = None,
    cache_leftpad: Optional[Tensor] = None,
    page_table: Optional[Tensor] = None,
    cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k_new: Optional[Tensor] = None,
    max_seqlen_q: Optional[int] = None,
    rotary_seqlens: Optional[Tensor] = None,
    q_descale: Optional[Tensor] = None,
    k_descale: Optional[Tensor] = None,
    v_descale: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Optional[Tensor] = None,
    num_splits: int = 0,
    pack_gqa: Optional[bool] = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
    s_aux: Optional[Tensor] = None,
) -> Union[Tensor, tuple[Tensor, ...]]:
    """k and v are written to the cache in place after the cache_seqlens that are there, then q attends to all of it; no
    gradients, as there. With cu_seqlens_q, q is (total_q, nheads, headdim). With return_softmax_lse (out, lse, and two
    empty tensors for the parts of splits)."""
    refuse(q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, attention_chunk=attention_chunk)
    refuse(scheduler_metadata=scheduler_metadata)
    hints(num_splits=num_splits, pack_gqa=pack_gqa, sm_margin=sm_margin)
    shape = _BATCH if cu_seqlens_q is None else _PACKED
    q = tensor("q", q, shape)
    if qv is not None and tensor("qv", qv, shape).shape[:-1] != q.shape[:-1]:
        raise ValueError(f"qv: {list(qv.shape)}, but q is {list(q.shape)}")
    options = said(softmax_scale, causal, window_size, softcap, s_aux=s_aux)
    batch = (
        q.shape[0] if cu_seqlens_q is None else tensor("cu_seqlens_q", cu_seqlens_q, "(batch_size + 1)").shape[0] - 1
    )
    cache = Cache.of(k_cache, v_cache, batch, cache_seqlens, cache_batch_idx, cache_leftpad, page_table, "page_table")
    result = with_cache(
        q,
        cache,
        k,
        v,
        Rotary.of(rotary_cos, rotary_sin, rotary_interleaved, q.shape[-1]),
        options,
        known=cache_seqlens is not None,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k_new=cu_seqlens_k_new,
        max_seqlen_q=max_seqlen_q,
        rotary_seqlens=rotary_seqlens,
        qv=qv,
    )
    nothing = torch.empty(0, device=q.device)
    if flag("return_softmax_lse", return_softmax_lse):
        return result.out, result.lse, nothing, nothing
    return result.out


def flash_attn_combine(
    out_partial: Tensor, lse_partial: Tensor, out: Optional[Tensor] = None, out_dtype: Optional[torch.dtype] = None
) -> tuple[Tensor, Tensor]:
    """From attention to parts of the keys, (num_splits, batch_size, seqlen, nheads, headdim) with logsumexps without
    the last axis, to that to all of them."""
    out_partial = tensor("out_partial", out_partial, "(num_splits, batch_size, seqlen, nheads, headdim)")
    lse_partial = tensor("lse_partial", lse_partial, "(num_splits, batch_size, seqlen, nheads)")
    if lse_partial.shape != out_partial.shape[:-1]:
        raise ValueError(f"lse_partial: {list(lse_partial.shape)}, but {list(out_partial.shape[:-1])} is wanted")
    lse = torch.logsumexp(lse_partial, 0)
    shares = torch.where(lse == -torch.inf, 0, torch.exp(lse_partial - lse))
    whole_one = (out_partial * shares[..., None]).sum(0).to(out_dtype or out_partial.dtype)
    if out is None:
        return whole_one, lse
    if out.shape != whole_one.shape or out.dtype != whole_one.dtype:
        raise ValueError(f"out: {out.dtype} {list(out.shape)}, but {whole_one.dtype} {list(whole_one.shape)} is wanted")
    return out.copy_(whole_one), lse


def get_scheduler_metadata(*_: Any, **__: Any) -> None:
    """None: nothing here is scheduled beforehand."""
