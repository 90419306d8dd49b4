"""rootdk in PyTorch's registry of flash attention: `torch.nn.attention.activate_flash_attention_impl("ROOTDK")`.

It is listed when rootdk.torch is imported and does nothing until it is activated. Then F.scaled_dot_product_attention
computes here whatever PyTorch sends to its flash kernels, on the CPU and on CUDA devices that rootdk reaches; so does
every step of the ring that PyTorch's context parallel makes of such a call. restore_flash_attention_impl() gives
everything back.
"""

from __future__ import annotations

import warnings
from typing import Any, Optional

import torch
import torch.nn.attention
from torch import Tensor

from . import _cuda
from ._description import Description, Packed
from ._structure import Structure

NAME = "ROOTDK"


def _arguments(
    query: Tensor, key: Tensor, is_causal: bool, attn_mask: Optional[Tensor], scale: Optional[float]
) -> tuple[Packed, Optional[Tensor]]:
    """(what is computed, in numbers; bias). PyTorch has made a mask of booleans a bias of 0 and −inf."""
    bias = attn_mask
    if bias is not None:
        bias = bias.reshape((1,) * (4 - bias.ndim) + tuple(bias.shape))
    return Description(Structure(causal=is_causal, diagonal="top_left"), factor=scale).packed(), bias


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Optional[Tensor] = None,
    scale: Optional[float] = None,
) -> tuple[Tensor, Tensor]:
    if dropout_p:
        raise RuntimeError(f"dropout_p: {dropout_p}, but PyTorch sends no dropout to flash attention on the CPU")
    (numbers, reals), bias = _arguments(query, key, is_causal, attn_mask, scale)
    out, lse = torch.ops.rootdk.attention(query, key, value, bias=bias, numbers=numbers, reals=reals)
    return _like(out, query), _rows_first(lse)


def _backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Optional[Tensor] = None,
    scale: Optional[float] = None,
) -> tuple[Tensor, ...]:
    (numbers, reals), bias = _arguments(query, key, is_causal, attn_mask, scale)
    wanted = 0b111  # of q, k and v
    found = torch.ops.rootdk.attention_backward(
        grad_out,
        None,
        out,
        logsumexp,
        query,
        key,
        value,
        None,
        None,
        bias,
        None,
        None,
        numbers,
        reals,
        wanted,
    )
    return tuple(_rows_first(x) for x in found[:3])


def _ring_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: Optional[float] = None,
) -> tuple[Any, ...]:
    """CUDA's operator, which is that of context parallel, too: output, logsumexp, and what only PyTorch's own kernel
    needs for backward."""
    if dropout_p or return_debug_mask:
        what = "dropout_p" if dropout_p else "return_debug_mask"
        raise RuntimeError(f"{what}: rootdk's flash attention has no dropout; {NAME} can be given back for this call")
    (numbers, reals), _ = _arguments(query, key, is_causal, None, scale)
    out, lse = torch.ops.rootdk.attention(query, key, value, numbers=numbers, reals=reals)
    state = torch.empty(2, dtype=torch.uint64, device=query.device)
    unused = torch.empty((), dtype=torch.uint64, device=query.device)
    lengths = (None, None, query.shape[2], key.shape[2])
    return _like(out, query), lse, *lengths, state, unused, query.new_empty(0)


def _ring_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Optional[Tensor],
    cum_seq_k: Optional[Tensor],
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Optional[Tensor],
    philox_offset: Optional[Tensor],
    *,
    scale: Optional[float] = None,
) -> tuple[Tensor, ...]:
    """`out` and `logsumexp` may be those over more keys than these: so a ring has them."""
    found = _backward(grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, scale=scale)
    return tuple(_like(gradient, x) for gradient, x in zip(found, (query, key, value)))


def _like(x: Tensor, like: Tensor) -> Tensor:
    return _laid_out(x, torch.empty_like(like, device="meta").stride())


def _rows_first(x: Tensor) -> Tensor:
    """In the memory that PyTorch's compiler expects of its own kernel: heads after the length."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _laid_out(x: Tensor, stride: tuple[int, ...]) -> Tensor:
    return x if x.stride() == stride else torch.empty_strided(x.shape, stride, dtype=x.dtype, device=x.device).copy_(x)


class Active:
    """What is overridden, until it is removed."""

    def __init__(self) -> None:
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():  # that something is overridden is what was asked for
            warnings.filterwarnings("ignore", "Warning only once for all operators")
            library.impl("_scaled_dot_product_flash_attention_for_cpu", _forward, "CPU")
            library.impl("_scaled_dot_product_flash_attention_for_cpu_backward", _backward, "CPU")
            devices = ["CPU"]
            if torch.cuda.is_available() and not _cuda.missing():
                devices.append("CUDA")
            for device in devices:
                library.impl("_scaled_dot_product_flash_attention", _ring_forward, device)
                library.impl("_scaled_dot_product_flash_attention_backward", _ring_backward, device)
        self._library: Optional[torch.library.Library] = library

    def remove(self) -> None:
        if self._library is not None:
            self._library._destroy()
            self._library = None


if hasattr(torch.nn.attention, "register_flash_attention_impl"):
    torch.nn.attention.register_flash_attention_impl(NAME, register_fn=Active)
