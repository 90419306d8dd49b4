"""What QK-clip wants of a core attention: each head's largest logit, as Megatron-LM keeps it and as TransformerEngine
returns it. Plain modules with their arguments; neither package is imported.
"""

from __future__ import annotations

from typing import Any, Iterable, NamedTuple, Optional, Union

import torch
from torch import Tensor

from ._flash.arguments import Said, cumulative, spans_of
from ._flash.attend import Result, dense, packed
from ._problem import StatsOptions, flag, real

__all__ = ["DotProductAttention", "TEDotProductAttention", "reduce_max_logits"]

_STATS = StatsOptions("basic", rows=["score_max"])


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
        for name, value in others.items():
            if value is not None:
                raise NotImplementedError(f"{name}: {value}, but core attention here takes None")
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
    """TransformerEngine's DotProductAttention, of its arguments those that change the result: with return_max_logit a
    call returns (output, max_logit [heads]), the largest of mask(Q·Kᵀ · scale + bias)."""

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
        softmax_scale: Optional[float] = None,
        softmax_type: str = "vanilla",
        return_max_logit: bool = False,
    ):
        super().__init__()
        if qkv_format not in ("sbhd", "bshd", "thd"):
            raise ValueError(f"qkv_format: {qkv_format}, but sbhd, bshd or thd is wanted")
        _seen(attn_mask_type)
        self.num_attention_heads, self.kv_channels = num_attention_heads, kv_channels
        self.num_gqa_groups = num_attention_heads if num_gqa_groups is None else num_gqa_groups
        self.dropout = real("attention_dropout", attention_dropout)
        self.qkv_format, self.attn_mask_type, self.window_size = qkv_format, attn_mask_type, window_size
        self.softmax_scale = None if softmax_scale is None else real("softmax_scale", softmax_scale)
        self.return_max_logit = flag("return_max_logit", return_max_logit)
        _softmax(self, softmax_type, num_attention_heads)

    def forward(
        self,
        query_layer: Tensor,
        key_layer: Tensor,
        value_layer: Tensor,
        attention_mask: Optional[Tensor] = None,
        qkv_format: Optional[str] = None,
        cu_seqlens_q: Optional[Tensor] = None,
        cu_seqlens_kv: Optional[Tensor] = None,
        attn_mask_type: Optional[str] = None,
        window_size: Optional[tuple[int, int]] = None,
        core_attention_bias: Optional[Tensor] = None,
    ) -> Union[Tensor, tuple[Tensor, Tensor]]:
        layout = self.qkv_format if qkv_format is None else qkv_format
        seen = _seen(self.attn_mask_type if attn_mask_type is None else attn_mask_type)
        window = self.window_size if window_size is None else window_size
        said = Said(
            self.softmax_scale,
            seen.causal,
            (-1, -1) if window is None else (int(window[0]), int(window[1])),
            dropout=self.dropout if self.training else 0.0,
            sink=self.softmax_offset,
        )
        if layout == "thd":
            ends = _Ends(cu_seqlens_q, cu_seqlens_kv)
            out, largest = _attend_packed(query_layer, key_layer, value_layer, ends, seen, said)
        else:
            turn = layout == "sbhd"
            q, k, v = (x.transpose(0, 1) if turn else x for x in (query_layer, key_layer, value_layer))
            out, largest = _attend(q, k, v, attention_mask, core_attention_bias, seen, said)
            out = out.transpose(0, 1) if turn else out
        out = out.flatten(-2)
        return (out, largest) if self.return_max_logit else out


class _Ends(NamedTuple):
    cu_seqlens_q: Optional[Tensor]
    cu_seqlens_kv: Optional[Tensor]


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
