"""Which weights make a layer's queries and keys, and how QK-clip shrinks them."""
from __future__ import annotations

import dataclasses
from typing import Any, Optional, Sequence

import torch
from torch import Tensor


@dataclasses.dataclass
class Projections:
    """Views into a layer's parameters, heads first: weights [heads, dim, …], biases [heads, dim]. Under QK-norm weights do not
    reach the scores, so its gains [dim] or [heads, dim] are what shrinks."""

    w_q: Optional[Tensor] = None
    b_q: Optional[Tensor] = None
    w_k: Optional[Tensor] = None
    b_k: Optional[Tensor] = None
    q_gain: Optional[Tensor] = None
    k_gain: Optional[Tensor] = None


_PAIRS = (("q_proj", "k_proj"), ("query", "key"), ("q", "k"), ("q_lin", "k_lin"), ("to_q", "to_k"), ("wq", "wk"),
          ("linear_q", "linear_k"))


def projections_of(module: torch.nn.Module, label: str, heads: int) -> Projections:
    """By the names that models use. Raises ValueError where none is known."""
    gains = [getattr(getattr(module, name, None), "weight", None) for name in ("q_norm", "k_norm")]
    if isinstance(gains[0], Tensor) and isinstance(gains[1], Tensor):
        return Projections(q_gain=gains[0], k_gain=gains[1])
    for q, k in _PAIRS:
        one, other = getattr(module, q, None), getattr(module, k, None)
        if isinstance(one, torch.nn.Linear) and isinstance(other, torch.nn.Linear):
            return _linear(one.weight, one.bias, other.weight, other.bias, heads)
    if isinstance(module, torch.nn.MultiheadAttention):
        width = module.embed_dim
        b = module.in_proj_bias
        biases = (None, None) if b is None else (b[:width], b[width : 2 * width])
        if module.in_proj_weight is not None:
            return _linear(module.in_proj_weight[:width], biases[0], module.in_proj_weight[width : 2 * width], biases[1], heads)
        return _linear(module.q_proj_weight, biases[0], module.k_proj_weight, biases[1], heads)
    packed = getattr(module, "c_attn", None)  # GPT-2: transposed, q k v side by side
    if packed is not None and isinstance(getattr(packed, "weight", None), Tensor):
        weight, bias = packed.weight, packed.bias
        width = weight.shape[1] // 3
        return _linear(weight[:, :width].T, bias[:width], weight[:, width : 2 * width].T, bias[width : 2 * width], heads)
    packed = getattr(module, "qkv", None)  # vision transformers: q, k, v one below the other
    if isinstance(packed, torch.nn.Linear) and packed.weight.shape[0] % 3 == 0:
        weight, bias = packed.weight, packed.bias
        width = weight.shape[0] // 3
        halves = (None, None) if bias is None else (bias[:width], bias[width : 2 * width])
        return _linear(weight[:width], halves[0], weight[width : 2 * width], halves[1], heads)
    raise ValueError(f"qk_clip: {label} ({type(module).__name__}) has no projections of a name that is known; pass projections=")


def _linear(w_q: Tensor, b_q: Optional[Tensor], w_k: Tensor, b_k: Optional[Tensor], heads: int) -> Projections:
    dim = w_q.shape[0] // heads
    if dim * heads != w_q.shape[0] or w_k.shape[0] % dim:
        raise ValueError(f"qk_clip: {w_q.shape[0]} rows of W_q do not make {heads} heads")

    def cut(x: Optional[Tensor]) -> Optional[Tensor]:
        return None if x is None else x.detach().unflatten(0, (x.shape[0] // dim, dim))

    return Projections(cut(w_q), cut(b_q), cut(w_k), cut(b_k))


def clip_projections(p: Projections, factors: Sequence[float], alpha: float) -> None:
    """The side of the queries by γ^α and that of the keys by γ^(1−α); where query heads share a key head, queries take all of it.
    In place."""
    if p.q_gain is not None and p.k_gain is not None:
        queries, keys = [p.q_gain], [p.k_gain]
        if p.q_gain.ndim == 1 or p.k_gain.ndim == 1:  # one gain for all heads: the worst head decides
            with torch.no_grad():
                p.q_gain.mul_(min(factors) ** alpha)
                p.k_gain.mul_(min(factors) ** (1 - alpha))
            return
    elif p.w_q is not None:
        queries, keys = [x for x in (p.w_q, p.b_q) if x is not None], [x for x in (p.w_k, p.b_k) if x is not None]
    else:
        raise ValueError("projections: w_q, or q_gain and k_gain, are wanted")
    own_keys = bool(keys) and all(x.shape[0] == len(factors) for x in keys)
    for side, power in ((queries, alpha if own_keys else 1.0), (keys if own_keys else [], 1 - alpha)):
        for x in side:
            if x.shape[0] != len(factors):
                raise ValueError(f"projections: {x.shape[0]} heads, but {len(factors)} were watched")
            gamma = torch.tensor([f**power for f in factors], dtype=x.dtype, device=x.device)
            with torch.no_grad():
                x.mul_(gamma.reshape(-1, *([1] * (x.ndim - 1))))
