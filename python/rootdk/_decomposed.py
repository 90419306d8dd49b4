"""The attention operator written out in plain torch operations, for what fused kernels cannot do: tangents, and
derivatives of any order under torch.func. It means the same, argument by argument, and takes memory for scores [batch,
heads, len_q, len_kv].

What is hidden leaves no trace: numbers that are not finite are taken out before the products (0 · NaN would be NaN) and
given back to the rows that see them, as NaN in all of the row.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Optional, Sequence

import numpy as np
import torch
from torch import Tensor

from . import _core
from ._description import Description, Problem
from ._problem import StatsOptions
from ._structure import Structure

_STAND_INS = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.float16: np.float16,
    torch.bfloat16: np.float16,
}
_NAMES = {torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16"}
_FAR = 2**42  # farther than any two positions can be apart


def decomposed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: Optional[Tensor] = None,
    mask: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    sink: Optional[Tensor] = None,
    seed: Optional[Tensor] = None,
    numbers: Optional[Sequence[int]] = None,
    reals: Optional[Sequence[float]] = None,
    tag: int = 0,
) -> tuple[Tensor, Tensor]:
    """(output, lse) of the operator's arguments; nobody hears of statistics."""
    description = Description.unpacked(numbers, reals)
    places, softcap, alibi, dropout = (
        description.structure,
        description.softcap,
        description.alibi,
        description.dropout,
    )
    _check(q, k, v, scale, mask, bias, sink, description)
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    heads, len_q, len_kv, group = q.shape[1], q.shape[2], k.shape[2], q.shape[1] // max(k.shape[1], 1)

    def per_head(values: Tensor) -> Tensor:
        """As the engine reads them: in f32."""
        return values.float().to(device=q.device, dtype=wide).reshape(1, heads, 1, 1)

    begin, end, position = _seen(places, len_q, len_kv, q.device)
    j = torch.arange(len_kv, device=q.device)
    visible = ((j >= begin.unsqueeze(-1)) & (j < end.unsqueeze(-1))).unsqueeze(1)
    if bias is not None:
        visible = visible & (bias != -math.inf)
    if mask is not None:
        visible = visible & mask
    q, q_bad, dtype = *_finite(q.to(wide)), q.dtype
    # Of keys that nobody sees not even tangents count.
    k, k_bad = _finite(_for_query_heads(k.to(wide), group), visible.any(-2))
    v, v_bad = _finite(_for_query_heads(v.to(wide), group), visible.any(-2))
    if scale is not None:
        c: Any = per_head(scale)
    elif description.factor is not None:
        c = description.factor
    else:
        c = _factors(description.rule, q.shape[3], len_q, len_kv, places)
        c = torch.as_tensor(c, device=q.device, dtype=wide).unsqueeze(-1) if isinstance(c, np.ndarray) else c
    s = (q @ k.transpose(-1, -2)) * c
    nan = torch.full((), math.nan, dtype=wide, device=q.device)
    s = s + torch.where(q_bad.unsqueeze(-1) | k_bad.unsqueeze(-2), nan, torch.zeros_like(nan))
    if softcap is not None:
        cap = float(np.float32(softcap))
        s = cap * torch.tanh(s / cap)
    if alibi is not None:
        slopes = torch.tensor(alibi, dtype=torch.float32, device=q.device)
        s = s - per_head(slopes) * (position.unsqueeze(-1) - j).abs().unsqueeze(1).to(wide)
    if bias is not None:
        s = s + bias.to(wide)
    p, lse = _softmax(s, visible.expand(s.shape), None if sink is None else per_head(sink))
    p = p * torch.where(visible & v_bad.unsqueeze(-2), nan, torch.ones_like(nan))
    if dropout > 0:
        p = p * _kept(p, dropout, description.seed if seed is None else seed)
    return (p @ v).to(dtype), lse


def _seen(places: Structure, len_q: int, len_kv: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The first key that each query sees, one past the last, and its place among the keys: [batch, len_q], where batch
    is 1 if items are alike. Of lists the engine is asked; without them it is arithmetic on the device, so that sizes
    may be a compiler's symbols and a graph that is captured holds no copy from the host."""
    if places.by_item or places.q_starts is not None:
        begin, end, position, _ = (torch.tensor(x, device=device) for x in places.visible(int(len_q), int(len_kv)))
        return begin, end, position
    step = {"bottom_right": len_kv - len_q, "at": places.offset}.get(places.diagonal, 0)
    position = torch.arange(len_q, device=device).unsqueeze(0) + step
    begin, end = torch.zeros_like(position), torch.zeros_like(position) + len_kv
    if places.causal:
        end = torch.minimum(end, position + 1)
    if places.window is not None:
        left, right = (_FAR if side is None else min(side, _FAR) for side in places.window)
        begin, end = torch.maximum(begin, position - left), torch.minimum(end, position + right + 1)
    return begin, end, position


def _finite(x: Tensor, seen: Optional[Tensor] = None) -> tuple[Tensor, Tensor]:
    """x with 0 for what is not finite and in rows that are not seen; and which rows had what is not finite."""
    fine = torch.isfinite(x)
    kept = fine if seen is None else fine & seen.unsqueeze(-1)
    return torch.where(kept, x, torch.zeros((), dtype=x.dtype, device=x.device)), ~fine.all(-1)


def _for_query_heads(x: Tensor, group: int) -> Tensor:
    """Key heads, repeated for the query heads that read them."""
    return x if group == 1 else x.repeat_interleave(group, 1)


def _softmax(s: Tensor, visible: Tensor, sink: Optional[Tensor]) -> tuple[Tensor, Tensor]:
    """Probabilities, 0 where hidden, and the logsumexp, −inf where a row sees nothing."""
    if s.shape[-1] == 0:
        rows = s.new_zeros(s.shape[:-1])
        return s, rows - math.inf if sink is None else rows + sink.squeeze(-1)
    s = s.masked_fill(~visible, -math.inf)
    shift = s.detach().amax(-1, keepdim=True)
    if sink is not None:
        shift = torch.maximum(shift, sink.detach())
    shift = torch.where(torch.isfinite(shift), shift, torch.zeros_like(shift))
    e = torch.exp(s - shift)
    total = e.sum(-1, keepdim=True)
    if sink is not None:
        total = total + torch.exp(sink - shift)
    nothing = total == 0
    total = torch.where(nothing, torch.ones_like(total), total)
    p = (e / total).masked_fill(~visible, 0.0)
    return p, (shift + torch.log(total)).masked_fill(nothing, -math.inf).squeeze(-1)


# What the engine is asked ---------------------------------------------------------------------------------------------
def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: Optional[Tensor],
    mask: Optional[Tensor],
    bias: Optional[Tensor],
    sink: Optional[Tensor],
    description: Description,
) -> None:
    """Lets the engine refuse what it would refuse, by arrays of these shapes that have no memory. Values of tensors are
    not known here."""
    named = {"q": q, "k": k, "v": v, "mask": mask, "bias": bias}
    tensors = {name: x for name, x in named.items() if x is not None}
    wanted = _NAMES.get(q.dtype, q.dtype)
    for name, x in tensors.items():
        if x.ndim != 4:
            raise ValueError(f"{name}: {x.ndim} axes, but the 4 of [batch, heads, length, dim] are wanted")
    for name, x in (("k", k), ("v", v)):
        if x.dtype != q.dtype:
            raise ValueError(f"{name}: dtype is {_NAMES.get(x.dtype, x.dtype)}, but {wanted} is wanted")
    if bias is not None and bias.dtype not in (torch.float32, q.dtype):
        raise ValueError(f"bias: dtype is {_NAMES.get(bias.dtype, bias.dtype)}, but f32 or {wanted} is wanted")
    heads = q.shape[1]
    for name, values in (("scale", scale), ("sink", sink)):
        if values is not None and values.shape != (heads,):
            raise ValueError(
                f"{name}: shape is {list(values.shape)}, but one value for each of {heads} query heads is wanted"
            )
    if not all(isinstance(size, int) for x in tensors.values() for size in x.shape):
        return  # sizes that a compiler does not know yet

    def stand_in(x: Tensor) -> Any:
        return np.broadcast_to(np.zeros((), np.bool_ if x.dtype == torch.bool else _STAND_INS[x.dtype]), tuple(x.shape))

    if mask is not None and mask.dtype != torch.bool:
        raise ValueError(f"mask: dtype is {_NAMES.get(mask.dtype, mask.dtype)}, but bool is wanted")
    problem = Problem(
        description,
        [] if scale is None else [1.0] * heads,
        [] if sink is None else [0.0] * heads,
        None if mask is None else stand_in(mask),
        None if bias is None else stand_in(bias),
    )
    _core.explain_plan(problem.spec(), stand_in(q), stand_in(k), stand_in(v), False)


def _factors(rule: str, dim: int, len_q: int, len_kv: int, places: Structure) -> Any:
    """The rule's factor: a number, or [batch, 1, len_q] where it depends on how long a query's context is."""
    # All that a rule knows of a query is how many keys it sees, and where it stands.
    contexts = ((1, 0), (3, 0), (3, 1 << 20))
    here, alone = (
        [_asked(rule, size, 1, keys, Structure(diagonal="at", offset=place)).item() for keys, place in contexts]
        for size in (dim, 1)
    )
    if len(set(here)) == 1:
        return here[0]
    # The dim and the context are two factors: d_k products less for every score that is asked for.
    by_dim = next(a / b for a, b in zip(here, alone) if b != 0)
    return by_dim * _asked(rule, 1, len_q, len_kv, places)


@functools.lru_cache(64)
def _asked(rule: str, dim: int, len_q: int, len_kv: int, places: Structure) -> Any:
    """[batch, 1, len_q]: the largest score of each query where q·k is 1, which is the factor; 1 where it sees nothing.
    Memory for a number per query."""
    batch = places.batch()
    one = np.zeros(dim)
    one[:1] = 1.0
    problem = Problem(Description(places, rule), stats=StatsOptions("basic", rows=["raw_max"]))
    q, k = np.broadcast_to(one, (batch, 1, len_q, dim)), np.broadcast_to(one, (batch, 1, len_kv, dim))
    v = np.broadcast_to(np.zeros(1), (batch, 1, len_kv, 1))
    out, largest = np.empty((batch, 1, len_q, 1)), np.empty((batch, 1, len_q, 1))
    _core.forward(problem.spec(), q, k, v, out, None, {"raw_max": largest}, None)
    return np.where(largest == -np.inf, 1.0, largest)[..., 0]


# Dropout --------------------------------------------------------------------------------------------------------------
_WORD = 0xFFFFFFFF
_MULTIPLIERS, _WEYL, _ROUNDS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85), 10


def _kept(p: Tensor, dropout: float, seed: int | Tensor) -> Tensor:
    """What each probability is multiplied by, as the engine has it: four neighbouring keys share a call of
    Philox4x32-10 with counter (key / 4, query, head, batch)."""
    batch, heads, len_q, len_kv = p.shape
    rate = float(np.float32(dropout))
    threshold = min(int((1.0 - rate) * 2.0**32), _WORD)

    def axis(size: int, place: int) -> Tensor:
        return torch.arange(size, device=p.device).reshape([-1 if i == place else 1 for i in range(4)])

    if isinstance(seed, Tensor):
        seed = seed.reshape(())
    keys = [seed & _WORD, (seed >> 32) & _WORD]  # of a negative number's bits as well
    words = [axis(-(-len_kv // 4), 3), axis(len_q, 2), axis(heads, 1), axis(batch, 0)]
    for _ in range(_ROUNDS):
        (high0, low0), (high1, low1) = _product(words[0], _MULTIPLIERS[0]), _product(words[2], _MULTIPLIERS[1])
        words = [high1 ^ words[1] ^ keys[0], low1, high0 ^ words[3] ^ keys[1], low0]
        keys = [(key + weyl) & _WORD for key, weyl in zip(keys, _WEYL)]
    kept = torch.stack([word.expand(batch, heads, len_q, -1) for word in words], -1) < threshold
    return kept.flatten(-2)[..., :len_kv].to(p.dtype) / (1.0 - rate)


def _product(word: Tensor, by: int) -> tuple[Tensor, Tensor]:
    """The high and the low half of the product of two 32-bit numbers, by way of numbers that fit into int64."""
    low, high = (word & 0xFFFF) * by, (word >> 16) * by
    return (high + (low >> 16)) >> 16, (((high & 0xFFFF) << 16) + low) & _WORD
