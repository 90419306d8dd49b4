"""What is known of tensors on their way from one product to the next: q·kᵀ and all that has happened to it since.

A product's tensors are kept in the form q [*lead, len_q, dim], k [*lead, dim, len_kv], whose lead axes broadcast to the scores'.
Scores may have their axes anywhere; a Note says where the queries' and the keys' are, and the others, in order, are lead.
"""
from __future__ import annotations

import math
import weakref
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Optional, Sequence

import torch
from torch import Tensor


@dataclass
class Written:
    """Attention that somebody has written out."""

    q: Tensor  #: [batch, heads, len_q, dim], as multiplied
    k: Tensor  #: [batch, heads, dim, len_kv]
    factor: Optional[float]  #: raw = factor · q@k is the score before cap and bias; None where that is not known
    prescale: float  #: what q or k was multiplied with before the product: the model's own scale is factor · prescale
    cap: Optional[float]  #: of cap · tanh(raw / cap)
    scores: Tensor  #: [batch, heads, len_q, len_kv], as softmax saw them, without a sink's column
    sink: Optional[Tensor]  #: the score of a concatenated sink, [batch, heads, len_q, 1] or what broadcasts to it
    hooked: Tensor  #: its gradient is that of the scores
    per_head: Callable[[Tensor], Tensor]  #: brings a gradient of `hooked` into the scores' shape


class Memory:
    """Notes on tensors that are alive, by identity. It keeps no tensor, and a note goes with its tensor."""

    __slots__ = ("notes",)

    def __init__(self) -> None:
        self.notes: dict[int, tuple[weakref.ref[Tensor], Any]] = {}

    def __len__(self) -> int:
        return len(self.notes)

    def get(self, x: Any) -> Any:
        found = self.notes.get(id(x))
        return found[1] if found is not None and found[0]() is x else None

    def set(self, x: Tensor, note: Any) -> None:
        key, notes = id(x), self.notes

        def gone(ref: weakref.ref[Tensor]) -> None:
            found = notes.get(key)
            if found is not None and found[0] is ref:
                del notes[key]

        notes[key] = (weakref.ref(x, gone), note)

    def pop(self, x: Any) -> None:
        if self.get(x) is not None:
            del self.notes[id(x)]


@dataclass(frozen=True)
class Scaled:
    """A tensor that may become q or k: what it was multiplied with, and which of its axes is batch · heads."""

    number: float = 1.0
    part: bool = False  # one of the two terms of a rotary embedding: the sum of both is scaled again
    folded: Optional[tuple[int, int]] = None  # (axis, batch)


class Held:
    """The tensors of one product, shared by all notes on what came of it, so that they can be let go at once."""

    __slots__ = ("q", "k", "lead", "batch", "prescale", "scores", "row", "key", "bare", "sink", "sink_first", "shift",
                 "summed", "multiplied", "before")

    def __init__(self, q: Tensor, k: Tensor, lead: Sequence[int], batch: Optional[int] = None, prescale: float = 1.0):
        self.q: Optional[Tensor] = q
        self.k: Optional[Tensor] = k
        self.lead, self.batch, self.prescale = tuple(lead), batch, prescale
        self.scores: Optional[Tensor] = None  # as softmax saw them, axes at `row` and `key`
        self.row: Optional[int] = None
        self.key = -1
        self.bare: Optional[Tensor] = None  # scores before a sink's column came to them
        self.sink: Optional[Tensor] = None
        self.sink_first = False
        self.shift: Optional[Tensor] = None  # what was taken from each row
        self.summed = self.multiplied = False  # of exp(scores): whether its sum, its product with values was seen
        self.before: tuple[Held, ...] = ()  # what this came from

    def next(self, **changes: Any) -> Held:
        out = Held.__new__(Held)
        for name in Held.__slots__:
            setattr(out, name, getattr(self, name))
        for name, value in changes.items():
            setattr(out, name, value)
        out.before = (self,)
        return out

    def let_go(self) -> None:
        left = [self]
        while left:
            at = left.pop()
            left += at.before
            at.q = at.k = at.scores = at.bare = at.sink = at.shift = None
            at.before = ()


class Note:
    """What a tensor is. Stages: scores, exp (of scores), total (of exp), inverse (of the total), lse, log (of weights), weights."""

    __slots__ = ("held", "stage", "row", "key", "factor", "cap", "split")

    def __init__(self, held: Held, stage: str, row: Optional[int], key: int, factor: Optional[float] = 1.0,
                 cap: Optional[float] = None, split: Optional[tuple[int, int]] = None):
        self.held, self.stage, self.row, self.key = held, stage, row, key  # row: None where one query's axis is gone
        self.factor, self.cap, self.split = factor, cap, split

    def but(self, **changes: Any) -> Note:
        out = Note.__new__(Note)
        for name in Note.__slots__:
            setattr(out, name, changes[name] if name in changes else getattr(self, name))
        return out

    def plain(self) -> Note:
        """After something that was not done to the scores without their sink, nor to what was taken from each row."""
        held = self.held
        return self if held.bare is None and held.shift is None else self.but(held=held.next(bare=None, shift=None))

    def times(self, number: Optional[float]) -> Note:
        """cap · tanh(raw / cap) times a number is the same with raw and cap times that number."""
        factor = None if self.factor is None or number is None else self.factor * number
        cap = None if self.cap is None or number is None else abs(self.cap * number)
        return self.but(factor=factor, cap=cap)


@dataclass(frozen=True)
class Lost:
    """Softmax's output over scores that were not followed; `key` is the axis of it that softmax went over, if still known."""

    shape: tuple[int, ...]
    key: Optional[int]


def number_of(x: Any, may_wait: bool = False) -> Optional[float]:
    """A number, or a tensor of one; that of a GPU only if one may wait for it."""
    if isinstance(x, (int, float)) and not isinstance(x, bool):
        return float(x)
    if isinstance(x, Tensor) and x.ndim == 0 and x.dtype != torch.bool and not x.is_complex():
        if x.device.type == "cpu" or (may_wait and x.is_cuda and not torch.cuda.is_current_stream_capturing()):
            number = float(x.detach())
            return number if math.isfinite(number) else None
    return None


def plain_data(x: Any) -> bool:
    """Whether this tensor is what it looks like: no wrapper (fake, distributed, nested, ...), with numbers in it."""
    if not isinstance(x, Tensor):
        return False
    kind = type(x)
    return ((kind is Tensor or kind is torch.nn.Parameter or kind.__torch_dispatch__ is Tensor.__torch_dispatch__)
            and x.device.type != "meta" and not x.is_nested)


def batch_of(count: int, len_q: int, hints: Iterable[Tensor]) -> Optional[int]:
    """Of scores [count, len_q, len_kv] with heads folded into the batch: the batch, from what the module that computes them was
    given."""
    for x in hints:
        shape = tuple(x.shape)
        first, second = shape[0] if shape else 0, shape[1] if len(shape) > 1 else 0
        if len(shape) == 4 and first and first * second == count:  # [batch, heads, len, dim]
            return first
        if len(shape) == 4 and first and second * shape[2] == len_q and count % first == 0:  # an image
            return first
        if len(shape) == 3 and first and second == len_q and count % first == 0:  # [batch, len, width]
            return first
        if len(shape) == 3 and first == len_q and second and count % second == 0:  # [len, batch, width]
            return second
        if len(shape) == 2 and first and second == len_q and not x.is_floating_point() and count % first == 0:  # token ids
            return first
        if len(shape) == 2 and first == len_q and x.is_floating_point():  # [len, width]
            return 1
    return None


def split_lead(lead: Sequence[int], k: Tensor, batch: Optional[int], len_q: int,
               hints: Callable[[], Iterable[Tensor]]) -> tuple[int, int]:
    """(batch, heads) of scores whose lead axes are these."""
    if len(lead) == 2:
        return lead[0], lead[1]
    if len(lead) == 1:
        found = batch if batch is not None else batch_of(lead[0], len_q, hints())
        if found is None or found < 1 or lead[0] % found:
            return lead[0], 1
        return found, lead[0] // found
    if not lead:
        return 1, 1
    if len(lead) == 3 and k.ndim == 5:
        shared = [k.shape[axis] == 1 or k.stride(axis) == 0 for axis in (1, 2)]
        if any(shared):  # [batch, heads_kv, group] or [batch, group, heads_kv]
            return lead[0], lead[1] * lead[2]
    return math.prod(lead[:-1]), lead[-1]


def written(note: Note, hints: Callable[[], Iterable[Tensor]], heads: Optional[int]) -> Optional[Written]:
    held = note.held
    q, k, saw = held.q, held.k, held.scores
    if q is None or k is None or saw is None:
        return None
    len_q, len_kv = q.shape[-2], k.shape[-1]
    row, key = held.row, held.key
    lead = [saw.shape[axis] for axis in range(saw.ndim) if axis not in (row, key)]
    if heads is not None and math.prod(held.lead) % heads == 0:
        split = (math.prod(held.lead) // heads, heads)
    elif len(lead) == 2:
        split = (lead[0], lead[1])
    else:
        split = note.split or split_lead(held.lead, k, held.batch, len_q, hints)
    shape = (*split, len_q, len_kv)
    if math.prod(shape) != math.prod(held.lead) * len_q * len_kv:
        return None
    sink_first = held.sink_first

    def per_head(x: Tensor) -> Tensor:
        order = [axis for axis in range(x.ndim) if axis not in (row, key)] + ([] if row is None else [row]) + [key]
        x = x.permute(order)
        if x.shape[-1] != len_kv:
            x = x[..., 1:] if sink_first else x[..., :len_kv]
        return x.reshape(shape)

    with torch.no_grad():
        wide_q = q.detach().expand(*held.lead, len_q, q.shape[-1]).reshape(*split, len_q, q.shape[-1])
        wide_k = k.detach().expand(*held.lead, k.shape[-2], len_kv).reshape(*split, k.shape[-2], len_kv)
    hooked = saw if held.bare is None else held.bare
    scores = per_head(hooked)
    if held.bare is None and held.shift is not None:
        scores = scores + per_head_rows(held.shift, saw, row, key, split, len_q)
    sink = held.sink
    if sink is not None:
        if held.bare is None:  # something happened to both since
            sink = saw.narrow(key, 0 if sink_first else saw.shape[key] - 1, 1)
        sink = per_head_rows(sink, saw, row, key, split, len_q)
    return Written(wide_q, wide_k, note.factor, held.prescale, note.cap, scores, sink, hooked, per_head)


def per_head_rows(x: Tensor, like: Tensor, row: Optional[int], key: int, split: tuple[int, int], len_q: int) -> Tensor:
    """One number per row of `like`, as [batch, heads, len_q, 1]."""
    shape = [1 if axis == key else size for axis, size in enumerate(like.shape)]
    order = [axis for axis in range(like.ndim) if axis not in (row, key)] + ([] if row is None else [row]) + [key]
    return x.detach().expand(shape).permute(order).reshape(*split, len_q, 1)
