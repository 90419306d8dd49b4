"""What QK-clip wants of a core attention: each head's largest logit, as Megatron-LM keeps it and as TransformerEngine
returns it. Plain modules with their arguments; neither package is imported.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Iterable, NamedTuple, Optional, Union

import torch
from torch import Tensor

from ._flash.arguments import Said, cumulative, spans_of, tensor
from ._flash.attend import Result, dense, packed
from ._problem import StatsOptions, flag, real

__all__ = ["DotProductAttention", "TEDotProductAttention", "reduce_max_logits"]

_STATS = StatsOptions("basic", rows=["score_max"])


def _leave(**given: Any) -> None:
    """Arguments that would change the result in a way that is not computed here."""
    for name, value in given.items():
        if value is not None and value is not False:
            raise NotImplementedError(f"{name}: not computed here; leave it at its default")


class _Seen(NamedTuple):
    """What a mask type says."""

    causal: bool
    diagonal: str  #: where causal masks and windows stand
    masked: bool  #: a mask tensor counts
    padding: bool  #: and it is of tokens


_TYPES = {
    "no_mask": _Seen(False, "bottom_right", False, False),
    "padding": _Seen(False, "bottom_right", True, True),
    "causal": _Seen(True, "top_left", False, False),
    "padding_causal": _Seen(True, "top_left", True, True),
    "causal_bottom_right": _Seen(True, "bottom_right", False, False),
    "padding_causal_bottom_right": _Seen(True, "bottom_right", True, True),
    "arbitrary": _Seen(False, "bottom_right", True, False),
}


def _seen(attn_mask_type: Any) -> _Seen:
    """Of a name, or of Megatron's enum."""
    name = str(getattr(attn_mask_type, "name", attn_mask_type)).replace(",", "_")
    name = {"causal_padding": "padding_causal"}.get(name, name)
    if name not in _TYPES:
        raise ValueError(f"attn_mask_type: {name}, but one of {', '.join(_TYPES)} is wanted")
    return _TYPES[name]


def _allowed(mask: Any, seen: _Seen, len_q: int, len_kv: int) -> Optional[Tensor]:
    """True where it lets through. There True hides; padding of keys is that of queries, too, where both are the same
    tokens."""
    if not seen.masked or mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.ndim != 4:
        came = f"{mask.dtype} {list(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(
            f"attention_mask: {came}, but booleans [batch, 1, len_q or 1, len_kv], True to hide, are wanted"
        )
    hidden: Tensor = mask
    if seen.padding and hidden.shape[2] == 1 and len_q == len_kv > 1:
        hidden = hidden | hidden.transpose(2, 3)
    return ~hidden


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Any, bias: Optional[Tensor], seen: _Seen, said: Said
) -> tuple[Tensor, Tensor]:
    """[batch, length, heads, dim] → (output, largest logit of each head)."""
    more: dict[str, Any] = dict(diagonal=seen.diagonal)
    allowed = _allowed(mask, seen, q.shape[1], k.shape[1])
    if allowed is not None:
        more["mask"] = allowed
    if bias is not None:
        more["bias"] = bias
    return _with_maximum(dense(q, k, v, said, _STATS, **more))


def _attend_packed(q: Tensor, k: Tensor, v: Tensor, params: Any, seen: _Seen, said: Said) -> tuple[Tensor, Tensor]:
    """[total, heads, dim]; `params` has cu_seqlens_q and cu_seqlens_kv."""
    for name in ("cu_seqlens_q_padded", "cu_seqlens_kv_padded"):
        if getattr(params, name, None) is not None:
            raise NotImplementedError(f"{name}: sequences with room between them are not computed here")
    for name in ("cu_seqlens_q", "cu_seqlens_kv"):
        tensor(name, getattr(params, name), "(batch_size + 1)")
    if seen.diagonal == "top_left" and not torch.equal(params.cu_seqlens_q, params.cu_seqlens_kv):
        raise NotImplementedError(
            "attn_mask_type: a causal diagonal at the top left wants cu_seqlens_kv as cu_seqlens_q"
        )
    q_ends = cumulative("cu_seqlens_q", params.cu_seqlens_q, q.shape[0])
    k_ends = cumulative("cu_seqlens_kv", params.cu_seqlens_kv, k.shape[0])
    return _with_maximum(packed(q, k, v, spans_of(q_ends, k_ends), said, _STATS))


def _with_maximum(result: Result) -> tuple[Tensor, Tensor]:
    """Over the batch and the queries; −inf for a head that sees nothing, NaN where there is one. A tensor on q's
    device, which nobody waits for."""
    rows = result.rows["score_max"].detach().float()
    heads_first = rows if rows.ndim == 2 else rows.transpose(0, 1).flatten(1)
    if not heads_first.shape[1]:
        return result.out, heads_first.new_full(heads_first.shape[:1], -torch.inf)
    return result.out, heads_first.amax(1)


class DotProductAttention(torch.nn.Module):
    """Megatron's core_attention, with its arguments: q [len_q, batch, heads, dim] → [len_q, batch, heads · dim].

    `current_max_attn_logits` [heads of this rank] is the largest logit (after the scale, the bias and the mask) since
    it was None: what Megatron's clip_qk reads, reduces, and sets to None. `config` is a TransformerConfig, or anything
    with its attributes. Packed sequences come as packed_seq_params of the format thd.
    """

    softmax_offset: Optional[Tensor]
    current_max_attn_logits: Optional[Tensor]

    def __init__(
        self,
        config: Any,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str = "self",
        attention_dropout: Optional[float] = None,
        softmax_scale: Optional[float] = None,
        k_channels: Optional[int] = None,
        v_channels: Optional[int] = None,
        cp_comm_type: Optional[str] = None,
        pg_collection: Any = None,
        **others: Any,
    ):
        super().__init__()
        _leave(**others)
        if getattr(config, "context_parallel_size", 1) != 1:
            raise NotImplementedError(f"config.context_parallel_size: {config.context_parallel_size}, but 1 is wanted")
        self.config, self.layer_number = config, max(1, layer_number)
        self.attn_mask_type, self.attention_type = attn_mask_type, attention_type
        _seen(attn_mask_type)
        self.softmax_scale = None if softmax_scale is None else real("softmax_scale", softmax_scale)
        self.dropout = real(
            "attention_dropout", config.attention_dropout if attention_dropout is None else attention_dropout
        )
        self.window = _window_of(config, self.layer_number)
        tp = pg_collection.tp.size() if pg_collection is not None else getattr(config, "tensor_model_parallel_size", 1)
        _softmax(self, getattr(config, "softmax_type", "vanilla"), config.num_attention_heads // tp)
        self.current_max_attn_logits = None

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Optional[Tensor],
        attn_mask_type: Any = None,
        attention_bias: Optional[Tensor] = None,
        packed_seq_params: Any = None,
    ) -> Tensor:
        seen = _seen(self.attn_mask_type if attn_mask_type is None else attn_mask_type)
        said = Said(
            self.softmax_scale,
            seen.causal,
            self.window,
            dropout=self.dropout if self.training else 0.0,
            sink=self.softmax_offset,
        )
        if packed_seq_params is not None:
            if attention_bias is not None:
                raise NotImplementedError("attention_bias: none is computed for packed sequences")
            out, largest = _attend_packed(query, key, value, packed_seq_params, seen, said)
        else:
            q, k, v = (x.transpose(0, 1) for x in (query, key, value))
            out, largest = _attend(q, k, v, attention_mask, attention_bias, seen, said)
            out = out.transpose(0, 1)
        known = self.current_max_attn_logits
        self.current_max_attn_logits = largest if known is None else torch.maximum(known, largest)
        return out.flatten(-2)


def _window_of(config: Any, layer: int) -> tuple[int, int]:
    """As Megatron's is_layer_window_attention: by every so many layers, or a list of which."""
    window, skip = getattr(config, "window_size", None), getattr(config, "window_attn_skip_freq", None)
    if not window:
        return -1, -1
    if skip is None:
        here = True
    else:
        here = layer % skip != 0 if isinstance(skip, int) else bool(skip[layer - 1])
    return (int(window[0]), int(window[1])) if here else (-1, -1)


def _softmax(module: Any, kind: str, heads: int) -> None:
    """A sink: 0 where a softmax is off by one, a parameter where it learns."""
    if kind not in ("vanilla", "off-by-one", "learnable"):
        raise ValueError(f"softmax_type: {kind}, but vanilla, off-by-one or learnable is wanted")
    if kind == "learnable":
        module.register_parameter("softmax_offset", torch.nn.Parameter(torch.zeros(heads)))
    else:
        module.register_buffer("softmax_offset", None if kind == "vanilla" else torch.zeros(heads), persistent=False)


class TEDotProductAttention(torch.nn.Module):
    """TransformerEngine's DotProductAttention, with its arguments: with return_max_logit a call returns (output,
    max_logit [heads]), the largest of mask(Q·Kᵀ · scale + bias). What would change the result and is not computed is
    refused; what is for parallelism or for speed alone changes nothing."""

    softmax_offset: Optional[Tensor]

    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: Union[int, tuple[int, int]],
        num_gqa_groups: Optional[int] = None,
        attention_dropout: float = 0.0,
        qkv_format: str = "sbhd",
        attn_mask_type: str = "causal",
        window_size: Optional[tuple[int, int]] = None,
        bottom_right_diagonal: Optional[bool] = None,
        sequence_parallel: bool = False,
        tp_size: int = 1,
        get_rng_state_tracker: Any = None,
        tp_group: Any = None,
        layer_number: Optional[int] = None,
        attention_type: str = "self",
        cp_group: Any = None,
        cp_global_ranks: Any = None,
        cp_stream: Any = None,
        cp_comm_type: str = "p2p",
        softmax_scale: Optional[float] = None,
        softmax_type: str = "vanilla",
        return_max_logit: Optional[bool] = False,
        name: Optional[str] = None,
    ):
        super().__init__()
        _leave(cp_group=cp_group)
        if qkv_format not in _LAYOUTS:
            raise ValueError(f"qkv_format: {qkv_format}, but sbhd, bshd or thd is wanted")
        _seen(attn_mask_type)
        self.num_attention_heads, self.kv_channels = num_attention_heads, kv_channels
        self.num_gqa_groups = num_attention_heads if num_gqa_groups is None else num_gqa_groups
        self.dropout = real("attention_dropout", attention_dropout)
        self.qkv_format, self.attn_mask_type, self.window_size = qkv_format, attn_mask_type, window_size
        self.softmax_scale = None if softmax_scale is None else real("softmax_scale", softmax_scale)
        self.bottom_right_diagonal = bottom_right_diagonal
        self.return_max_logit = flag("return_max_logit", return_max_logit or False)
        _softmax(self, softmax_type, num_attention_heads // tp_size)

    def forward(
        self,
        query_layer: Tensor,
        key_layer: Tensor,
        value_layer: Tensor,
        attention_mask: Optional[Tensor] = None,
        qkv_format: Optional[str] = None,
        cu_seqlens_q: Optional[Tensor] = None,
        cu_seqlens_kv: Optional[Tensor] = None,
        cu_seqlens_q_padded: Optional[Tensor] = None,
        cu_seqlens_kv_padded: Optional[Tensor] = None,
        max_seqlen_q: Optional[int] = None,
        max_seqlen_kv: Optional[int] = None,
        attn_mask_type: Optional[str] = None,
        window_size: Optional[tuple[int, int]] = None,
        bottom_right_diagonal: Optional[bool] = None,
        checkpoint_core_attention: bool = False,
        core_attention_bias_type: Optional[str] = None,
        core_attention_bias: Optional[Tensor] = None,
        alibi_slopes: Optional[Tensor] = None,
        fast_zero_fill: bool = True,
        inference_params: Any = None,
        pad_between_seqs: Optional[bool] = None,
        fp8_output: Optional[bool] = False,
        bf16_backward: Optional[bool] = False,
        num_splits: Optional[int] = 1,
        **others: Any,
    ) -> Union[Tensor, tuple[Tensor, Tensor]]:
        layout = self.qkv_format if qkv_format is None else qkv_format
        if layout not in _LAYOUTS:
            raise ValueError(f"qkv_format: {layout}, but sbhd, bshd or thd is wanted")
        _leave(alibi_slopes=alibi_slopes, inference_params=inference_params, pad_between_seqs=pad_between_seqs)
        _leave(fp8_output=fp8_output, bf16_backward=bf16_backward, **others)
        kind = self.attn_mask_type if attn_mask_type is None else attn_mask_type
        seen = _seen(kind)
        low = self.bottom_right_diagonal if bottom_right_diagonal is None else bottom_right_diagonal
        if low is not None:
            seen = seen._replace(diagonal="bottom_right" if flag("bottom_right_diagonal", low) else "top_left")
        window = self.window_size if window_size is None else window_size
        said = Said(
            self.softmax_scale,
            seen.causal,
            (-1, -1) if window is None else (int(window[0]), int(window[1])),
            dropout=self.dropout if self.training else 0.0,
            sink=self.softmax_offset,
        )
        bias = _bias(core_attention_bias_type, core_attention_bias, said.scale, query_layer.shape[-1])
        if layout == "thd":
            if bias is not None:
                raise NotImplementedError("core_attention_bias: none is computed for packed sequences")
            ends = _Ends(cu_seqlens_q, cu_seqlens_kv, cu_seqlens_q_padded, cu_seqlens_kv_padded)
            out, largest = _attend_packed(query_layer, key_layer, value_layer, ends, seen, said)
        else:
            turn = layout == "sbhd"
            q, k, v = (x.transpose(0, 1) if turn else x for x in (query_layer, key_layer, value_layer))
            if seen.padding and attention_mask is None:
                if cu_seqlens_q is None or cu_seqlens_kv is None:
                    raise ValueError(
                        f"attention_mask: None, but attn_mask_type is {kind}; a mask or cu_seqlens_q and cu_seqlens_kv "
                        "are wanted"
                    )
                attention_mask = _hidden(cu_seqlens_q, cu_seqlens_kv, q, k, seen, said)
                seen, said = _TYPES["arbitrary"], dataclasses.replace(said, causal=False, window=(-1, -1))
            out, largest = _attend(q, k, v, attention_mask, bias, seen, said)
            out = out.transpose(0, 1) if turn else out
        out = out.flatten(-2)
        return (out, largest) if self.return_max_logit else out


_LAYOUTS = ("sbhd", "bshd", "thd")


class _Ends(NamedTuple):
    cu_seqlens_q: Optional[Tensor]
    cu_seqlens_kv: Optional[Tensor]
    cu_seqlens_q_padded: Optional[Tensor] = None
    cu_seqlens_kv_padded: Optional[Tensor] = None


def _bias(kind: Optional[str], bias: Optional[Tensor], scale: Optional[float], dim: int) -> Optional[Tensor]:
    """What is added after the scale. Without a kind a bias is such a one."""
    if kind not in (None, "no_bias", "pre_scale_bias", "post_scale_bias"):
        raise NotImplementedError(
            f"core_attention_bias_type: {kind}, but no_bias, pre_scale_bias or post_scale_bias is computed here"
        )
    if (kind == "no_bias" and bias is not None) or (kind not in (None, "no_bias") and bias is None):
        there = "none" if bias is None else "one"
        raise ValueError(f"core_attention_bias_type: {kind}, but core_attention_bias is {there}")
    if bias is None or kind != "pre_scale_bias":
        return bias
    return bias * (dim**-0.5 if scale is None else scale)


def _hidden(cu_seqlens_q: Tensor, cu_seqlens_kv: Tensor, q: Tensor, k: Tensor, seen: _Seen, said: Said) -> Tensor:
    """The mask [batch, 1, len_q, len_kv] of sequences so long, padded on the right: a diagonal at the bottom right
    stands at the end of each. Nobody waits for the lengths."""
    lengths = []
    for name, ends in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_kv", cu_seqlens_kv)):
        if ends.shape != (q.shape[0] + 1,):
            raise ValueError(f"{name}: {list(ends.shape)}, but [{q.shape[0] + 1}] is wanted")
        lengths.append(ends.diff().to(q.device)[:, None, None, None])
    i, j = (torch.arange(x.shape[1], device=q.device) for x in (q, k))
    row, column = i[:, None], j[None]
    hidden = (row >= lengths[0]) | (column >= lengths[1])
    place = row + (lengths[1] - lengths[0] if seen.diagonal == "bottom_right" else 0)
    left, right = said.window
    if said.causal:
        right = 0
    if left >= 0:
        hidden = hidden | (column < place - left)
    return hidden | (column > place + right) if right >= 0 else hidden


def reduce_max_logits(modules: Iterable[Any], group: Any = None) -> float:
    """The largest logits of all layers over all ranks of a group, by one all-reduce: current_max_attn_logits of each
    module (or of its core_attention) is that of all ranks afterwards. Returns the largest of all; −inf where nothing
    was computed yet. Every rank must call, with the same layers."""
    cores = [getattr(module, "core_attention", module) for module in modules]
    known = [core for core in cores if core.current_max_attn_logits is not None]
    if not known:
        return -float("inf")
    flat = torch.cat([core.current_max_attn_logits for core in known])
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(flat, op=torch.distributed.ReduceOp.MAX, group=group)
    sizes = [core.current_max_attn_logits.numel() for core in known]
    for core, part in zip(known, flat.split(sizes)):
        core.current_max_attn_logits = part
    return float(flat.max())
