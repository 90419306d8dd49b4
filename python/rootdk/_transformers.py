"""rootdk as an attention implementation of Hugging Face transformers."""
from __future__ import annotations

import contextlib
from typing import Any, Optional

import torch
from torch import Tensor

from . import torch as rootdk_torch
from ._eyes import call_here


def register_with_transformers() -> bool:
    """Afterwards `attn_implementation="rootdk"` computes attention here, with soft-caps and sinks, watched or not."""
    try:
        from transformers import AttentionInterface
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
    except ImportError:
        return False
    AttentionInterface.register("rootdk", _transformers_attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register("rootdk", sdpa_mask)
    return True


def _transformers_attention(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Optional[Tensor],
                            dropout: float = 0.0, scaling: Optional[float] = None, is_causal: Optional[bool] = None,
                            softcap: Optional[float] = None, s_aux: Optional[Tensor] = None,
                            position_bias: Optional[Tensor] = None, **_: Any) -> tuple[Tensor, None]:
    if query.device.type not in ("cpu", "cuda"):
        raise ValueError(f'attn_implementation="rootdk": tensors lie on {query.device}, but it computes on the CPU and on CUDA devices; '
                         '"sdpa" can be watched as well')
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    # A prompt without a mask stands at the start of its cache, a single query at its end.
    causal = bool(causal) and attention_mask is None and query.shape[2] > 1
    mask = bias = None
    if attention_mask is not None:
        table = attention_mask[..., : key.shape[2]]
        mask, bias = (table, None) if table.dtype == torch.bool else (None, table)
    if position_bias is not None:
        extra = position_bias[..., : key.shape[2]]
        bias = extra if bias is None else bias + extra
    sink = None if s_aux is None else s_aux.to(torch.float32)
    query, key, value, bias = rootdk_torch.under_autocast(query, key, value, bias)  # type: ignore[assignment]
    seed, seed_tensor = rootdk_torch.seeds(query, dropout)
    call = None if torch.compiler.is_compiling() else call_here()
    if call is not None:
        call.dtype = rootdk_torch._NAMES.get(query.dtype, "f32")
    with contextlib.nullcontext(0) if call is None else call.listed() as tag:
        out, _lse = torch.ops.rootdk.attention(query, key, value, None, mask, bias, sink, "sqrt_dk", scaling, softcap, causal,
                                               "top_left", 0, None, None, None, None, None, dropout, seed, tag, seed_tensor)
    return out.transpose(1, 2).contiguous(), None
