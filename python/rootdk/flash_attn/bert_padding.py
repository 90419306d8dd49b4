"""flash_attn.bert_padding's functions: from padded batches to packed tokens and back."""

from __future__ import annotations

from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor


def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:
    return input[indices]


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """Rows of zeros, and values at the indices."""
    return values.new_zeros((first_axis_dim, *values.shape[1:])).index_put((indices,), values)


def index_first_axis_residual(input: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """The rows, and all that was there."""
    return input[indices], input


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Optional[Tensor] = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """(tokens [total, …], their places in the flattened batch, cu_seqlens, the longest, how many are used of each); the
    masks are [batch, length], not 0 where there is a token."""
    there = attention_mask if unused_mask is None else attention_mask + unused_mask
    counts = there.sum(-1, dtype=torch.int32)
    used = attention_mask.sum(-1, dtype=torch.int32)
    return (*_taken(hidden_states, there, counts), used)


def unpad_input_for_concatenated_sequences(
    hidden_states: Tensor, attention_mask_in_length: Tensor
) -> tuple[Tensor, Tensor, Tensor, int]:
    """The mask's row [2, 3, 0, …] means a sequence of 2, one of 3 after it, and padding."""
    total = attention_mask_in_length.sum(-1, keepdim=True)
    there = torch.arange(attention_mask_in_length.shape[-1], device=total.device) < total
    counts = attention_mask_in_length[attention_mask_in_length != 0].to(torch.int32)
    return _taken(hidden_states, there, counts)


def _taken(x: Tensor, there: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    indices = torch.nonzero(there.flatten()).flatten()
    starts = F.pad(torch.cumsum(counts, 0, dtype=torch.int32), (1, 0))
    return index_first_axis(x.flatten(0, 1), indices), indices, starts, int(counts.max()) if len(counts) else 0


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """[batch, seqlen, …] with zeros where no token was."""
    padded: Any = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return padded.unflatten(0, (batch, seqlen))  # type: ignore[no-any-return]
