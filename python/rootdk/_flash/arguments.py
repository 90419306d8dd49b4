"""Arguments as FlashAttention's functions take them, checked once and put into the engine's words."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Optional

from torch import Tensor

from .._problem import flag, real, whole, wholes


@dataclasses.dataclass(frozen=True)
class Said:
    """What a call says beside its tensors and lengths."""

    scale: Optional[float] = None
    causal: bool = False
    window: tuple[int, int] = (-1, -1)
    softcap: Optional[float] = None
    slopes: Optional[Tensor] = None  #: [heads], or [batch, heads]
    dropout: float = 0.0
    sink: Optional[Tensor] = None  #: [heads]
    probabilities: bool = False  #: S_dmask wanted

    @property
    def local(self) -> bool:
        return self.causal or self.window != (-1, -1)

    @property
    def shows_dropped(self) -> bool:
        return self.probabilities and self.dropout > 0

    def fits(self, heads: int, batch: int) -> None:
        """That there is a sink for each head, and a slope."""
        if self.slopes is not None and self.slopes.shape not in ((heads,), (batch, heads)):
            raise ValueError(f"alibi_slopes: {list(self.slopes.shape)}, but ({heads},) or ({batch}, {heads}) is wanted")
        if self.sink is not None and self.sink.shape != (heads,):
            raise ValueError(f"s_aux: {list(self.sink.shape)}, but ({heads},) is wanted")


def said(
    softmax_scale: Any,
    causal: Any,
    window_size: Any,
    softcap: Any,
    alibi_slopes: Any = None,
    dropout_p: Any = 0.0,
    s_aux: Any = None,
    return_attn_probs: Any = False,
    deterministic: Any = False,
) -> Said:
    """`deterministic` changes nothing: the order of additions never depends on the schedule here."""
    flag("deterministic", deterministic)
    dropout = real("dropout_p", dropout_p)
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout_p: {dropout}, but a probability from 0 and below 1 is wanted")
    cap = real("softcap", softcap)
    _floating("alibi_slopes", alibi_slopes, "(nheads,) or (batch_size, nheads)", (1, 2))
    _floating("s_aux", s_aux, "(nheads,)", (1,))
    return Said(
        None if softmax_scale is None else real("softmax_scale", softmax_scale),
        flag("causal", causal),
        _window(window_size),
        cap if cap > 0 else None,
        alibi_slopes,
        dropout,
        s_aux,
        flag("return_attn_probs", return_attn_probs),
    )


def _floating(name: str, x: Any, shape: str, axes: tuple[int, ...]) -> None:
    if x is not None and not (isinstance(x, Tensor) and x.is_floating_point() and x.ndim in axes):
        came = f"{x.dtype} of {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"{name}: {came}, but a floating tensor {shape} is wanted")


def _window(size: Any) -> tuple[int, int]:
    if not isinstance(size, (tuple, list)) or len(size) != 2:
        raise ValueError(f"window_size: {size}, but (left, right) is wanted")
    left, right = (whole("window_size", -1 if side is None else side) for side in size)
    if min(left, right) < -1:
        raise ValueError(f"window_size: {min(left, right)}, but a side is a number from 0, or -1 for unbounded")
    return left, right


def tensor(name: str, x: Any, shape: str) -> Tensor:
    """With as many axes as the shape names."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: {type(x).__name__}, but a tensor {shape} is wanted")
    if x.ndim != shape.count(",") + 1:
        raise ValueError(f"{name}: {list(x.shape)}, but {shape} is wanted")
    return x


def parts(name: str, x: Any, shape: str, count: int, axis: int) -> tuple[Tensor, ...]:
    """The q, k and v that lie in one tensor."""
    whole_one = tensor(name, x, shape)
    if whole_one.shape[axis] != count:
        raise ValueError(f"{name}: {list(whole_one.shape)}, but {shape} is wanted")
    return tuple(whole_one.unbind(axis))


def refuse(**given: Any) -> None:
    """Arguments that would change the result in a way that is not computed here."""
    for name, value in given.items():
        if value is not None and (isinstance(value, Tensor) or value != 0):
            raise NotImplementedError(f"{name}: {_MEANING[name]}; leave it at its default")


_MEANING = {
    "q_descale": "scales of fp8, which rootdk does not compute in",
    "k_descale": "scales of fp8, which rootdk does not compute in",
    "v_descale": "scales of fp8, which rootdk does not compute in",
    "attention_chunk": "rootdk has no attention in chunks",
    "scheduler_metadata": "it is of FlashAttention's own kernels; get_scheduler_metadata here gives None",
}


def hints(**given: Any) -> None:
    """What would be for speed alone elsewhere: whole numbers, or None."""
    for name, value in given.items():
        if value is not None and not isinstance(value, bool):
            whole(name, value)


class Span(NamedTuple):
    """One sequence: its queries and its keys, as they lie among all."""

    q: int
    q_end: int
    k: int
    k_end: int


def cumulative(name: str, starts: Any, total: int, most: Any = None, whose: str = "") -> list[int]:
    """cu_seqlens as numbers; `most` is max_seqlen, and `whose` its name."""
    values = wholes(name, tensor(name, starts, "(batch_size + 1)"))
    if len(values) < 1 or any(a > b for a, b in zip(values, values[1:])) or values[0] < 0:
        raise ValueError(f"{name}: {_short(values)}, but sums of lengths from 0 on are wanted")
    if values[-1] > total:
        raise ValueError(f"{name}: ends at {values[-1]}, but there are {total} tokens")
    longest = max((b - a for a, b in zip(values, values[1:])), default=0)
    if most is not None and whole(whose, most) < longest:
        raise ValueError(f"{whose}: {whole(whose, most)}, but {name} has a sequence of {longest}")
    return values


def lengths(name: str, values: Any, count: int, most: list[int]) -> list[int]:
    """One for each sequence, at most as long as it can be."""
    given = wholes(name, tensor(name, values, "(batch_size)"))
    if len(given) != count:
        raise ValueError(f"{name}: {len(given)} lengths, but there are {count} sequences")
    for value, limit in zip(given, most):
        if not 0 <= value <= limit:
            raise ValueError(f"{name}: {value}, but from 0 to {limit} fits")
    return given


def spans_of(q_ends: list[int], k_ends: list[int], seqused_q: Any = None, seqused_k: Any = None) -> list[Span]:
    """Sequences, of which only the first tokens may be used."""

    def used(name: str, values: Any, ends: list[int]) -> list[int]:
        whole_ones = [b - a for a, b in zip(ends, ends[1:])]
        return whole_ones if values is None else lengths(name, values, len(whole_ones), whole_ones)

    counts = zip(used("seqused_q", seqused_q, q_ends), used("seqused_k", seqused_k, k_ends))
    return [Span(q, q + q_count, k, k + k_count) for q, k, (q_count, k_count) in zip(q_ends, k_ends, counts)]


def _short(values: list[int]) -> str:
    return str(values if len(values) <= 6 else [*values[:6], "…"])
