"""What is known of tensors on their way from one product to the next: q·kᵀ and all that has happened to it since.

A product's tensors are kept in the form q [*lead, len_q, dim], k [*lead, dim, len_kv], whose lead axes broadcast to the
scores'. Scores may have their axes anywhere; a Note says where the queries' and the keys' are, and the others, in
order, are lead.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass
from typing import Any, Callable, Optional, Sequence, Union

import torch
from torch import Tensor

from .heads import Hints, Made, Split, of_two, split_by, split_of, tells


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
    doubt: Optional[str] = None  #: why heads may be others than these


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


WEIGHTS_LEFT = "its weights were not followed to a product with values"
EXPONENTIALS_LEFT = "its exponentials were not followed to a division by their sum"


class Owed:
    """A softmax that looks like attention. It is told when its weights meet values, and named if they never do."""

    __slots__ = ("shape", "why", "told")

    def __init__(self, shape: Sequence[int], why: str = WEIGHTS_LEFT):
        self.shape, self.why = tuple(shape), why
        self.told = False


_KEPT = ("q", "k", "scores", "bare")
REWRITTEN = "its queries, keys or scores were changed in place before its weights met values"


def state_of(x: Optional[Tensor]) -> Any:
    """What changes when x is changed in place: its version, or its sum where inference mode counts none."""
    if x is None:
        return None
    if not x.is_inference():
        return x._version
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        return None
    return x.sum(dtype=torch.float32)


def _same_state(state: Any, x: Tensor) -> bool:
    now = state_of(x)
    if not isinstance(state, Tensor):
        return bool(now == state)
    return now is None or bool(torch.isclose(now, state, rtol=0.0, atol=0.0, equal_nan=True))


class Held:
    """The tensors of one product, shared by all notes on what came of it, so that they can be let go at once."""

    __slots__ = (
        "product",
        "q",
        "k",
        "since",
        "lead",
        "batch",
        "made",
        "of_layers",
        "prescale",
        "scores",
        "row",
        "key",
        "bare",
        "sink",
        "sink_first",
        "shift",
        "added",
        "hidden",
        "twice",
        "unclear",
        "owed",
        "before",
    )

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        lead: Sequence[int],
        batch: Optional[int] = None,
        prescale: float = 1.0,
        made: Optional[Made] = None,
        of_layers: bool = False,
    ):
        self.product = object()  # the same for all that came of it
        self.q: Optional[Tensor] = q
        self.k: Optional[Tensor] = k
        self.since: dict[str, Any] = {"q": state_of(q), "k": state_of(k)}  # of tensors that are kept
        self.lead, self.batch, self.prescale, self.made = tuple(lead), batch, prescale, made
        self.of_layers = of_layers  # whether q and k are both what layers gave
        self.scores: Optional[Tensor] = None  # as softmax saw them, axes at `row` and `key`
        self.row: Optional[int] = None
        self.key = -1
        self.bare: Optional[Tensor] = None  # scores before a sink's column came to them
        self.sink: Optional[Tensor] = None
        self.sink_first = False
        self.shift: Optional[Tensor] = None  # what was taken from each row
        self.added: Optional[Tensor] = None  # the logarithm of what was added to the sum of exp(scores): a sink, too
        self.hidden: Optional[Tensor] = None  # where exp(scores) or weights were made 0 before their sum was taken
        self.twice = False  # whether there are two tensors of these scores, with a part of their gradient each
        self.unclear: Optional[str] = None  # why these scores cannot be told, though softmax has seen them
        self.owed: Optional[Owed] = None  # since softmax
        self.before: tuple[Held, ...] = ()  # what this came from

    def next(self, **changes: Any) -> Held:
        out = Held.__new__(Held)
        for name in Held.__slots__:
            setattr(out, name, getattr(self, name))
        for name, value in changes.items():
            setattr(out, name, value)
        if ("q" in changes or "k" in changes) and self.changed("q", "k"):
            out.unclear = out.unclear or REWRITTEN
        kept = [name for name in changes if name in _KEPT]
        if kept:
            out.since = {**self.since, **{name: state_of(changes[name]) for name in kept}}
        out.before = (self,)
        return out

    def turned(self) -> Optional[Held]:
        """The same product with keys for queries and queries for keys; None where either is gone."""
        if self.q is None or self.k is None or self.row is None:
            return None
        q, k = self.k.transpose(-1, -2), self.q.transpose(-1, -2)
        return self.next(q=q, k=k, row=self.key, key=self.row)

    def changed(self, *names: str) -> bool:
        """Whether one of these tensors was changed in place since it is kept."""
        return any(
            not _same_state(state, getattr(self, name)) for name in names if (state := self.since.get(name)) is not None
        )

    def same_scores(self, other: Held) -> bool:
        """Whether the other's softmax is over what this one's is."""
        return self is other or self.hidden is other.hidden and self._scores_of(other)

    def hides_more_than(self, other: Held) -> bool:
        """Whether the other's softmax is over what this one's is, and over keys that are hidden here."""
        a, b = self.hidden, other.hidden
        return a is not None and (b is None or not bool((b & ~a).any())) and self._scores_of(other)

    def _scores_of(self, other: Held) -> bool:
        a, b = self.scores, other.scores
        if self.product is not other.product or self.key != other.key or a is None or b is None:
            return False
        if self.changed("scores") or other.changed("scores"):
            return False
        return a is b or a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)

    def let_go(self) -> None:
        left = [self]
        while left:
            at = left.pop()
            left += at.before
            at.q = at.k = at.scores = at.bare = at.sink = at.shift = at.added = at.hidden = None
            at.since = {}
            at.before = ()


class Note:
    """What a tensor is. Stages: scores, exp (of scores), total (of exp), inverse (of the total), lse, log (of weights),
    weights, mass (their sum), product (of exp and values)."""

    __slots__ = ("held", "stage", "row", "key", "factor", "cap", "split")

    def __init__(
        self,
        held: Held,
        stage: str,
        row: Optional[int],
        key: int,
        factor: Optional[float] = 1.0,
        cap: Optional[float] = None,
        split: Optional[tuple[int, int]] = None,
    ):
        self.held, self.stage, self.row, self.key = held, stage, row, key  # row: None where one query's axis is gone
        self.factor, self.cap, self.split = factor, cap, split

    def but(self, **changes: Any) -> Note:
        out = Note.__new__(Note)
        for name in Note.__slots__:
            setattr(out, name, changes[name] if name in changes else getattr(self, name))
        return out

    def like(self, other: Any) -> bool:
        """Whether other scores come of the same product in the same way, but for masks."""
        return (
            isinstance(other, Note)
            and (self.stage, self.factor, self.cap) == (other.stage, other.factor, other.cap)
            and self.held.product is other.held.product
        )

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
    """Softmax's output over scores that were not followed, its logarithm, or such scores themselves; `key` is the axis
    of it that softmax went over, if still known."""

    shape: tuple[int, ...]
    key: Optional[int]
    why: str = "its scores were not followed from a product"
    stage: str = "weights"  # scores: softmax is still to come; log
    learned: bool = False  # a router's or a classifier's, unless they meet values
    owed: Optional[Owed] = None


def number_of(x: Any, may_wait: bool = False) -> Optional[float]:
    """A number, or a tensor of one; that of a GPU only if one may wait for it."""
    if isinstance(x, (int, float)) and not isinstance(x, bool):
        return float(x)
    if isinstance(x, Tensor) and x.ndim == 0 and x.dtype != torch.bool and not x.is_complex():
        if x.device.type == "cpu" or (may_wait and x.is_cuda and not torch.cuda.is_current_stream_capturing()):
            try:
                number = float(x.detach())
            except RuntimeError:  # it is mapped by a transform: one for each item
                return None
            return number if math.isfinite(number) else None
    return None


def plain_data(x: Any) -> bool:
    """Whether this tensor is what it looks like: no wrapper (fake, distributed, nested, ...), with numbers in it."""
    if not isinstance(x, Tensor):
        return False
    kind = type(x)
    return (
        (kind is Tensor or kind is torch.nn.Parameter or kind.__torch_dispatch__ is Tensor.__torch_dispatch__)
        and x.device.type != "meta"
        and not x.is_nested
    )


def written(note: Note, hints: Hints, heads: Optional[int]) -> Union[Written, str, None]:
    """In words, why it cannot be told. None where its tensors were let go: it has been told before."""
    held = note.held
    q, k, saw = held.q, held.k, held.scores
    if q is None or k is None or saw is None:
        return None
    if held.unclear is not None:
        return held.unclear
    if held.changed(*_KEPT):
        return REWRITTEN
    len_q, len_kv = q.shape[-2], k.shape[-1]
    row, key = held.row, held.key
    lead = tuple(saw.shape[axis] for axis in range(saw.ndim) if axis not in (row, key))
    if heads is not None and math.prod(held.lead) % heads == 0:
        found: Optional[Split] = Split(math.prod(held.lead) // heads, heads, sure=True)
    elif held.made is not None and tells(held.made):
        found = split_by(held.made, q.shape[-1], hints)
    elif len(lead) == 2 and lead != held.lead:
        found = of_two(lead, q.shape[-1], hints)
    elif len(lead) != 2 and note.split is not None:
        found = of_two(note.split, q.shape[-1], hints)
    else:
        found = split_of(held.lead, k, q.shape[-1], len_q, held.batch, hints)
    if found is None:
        return f"which of the axes {[*held.lead]} are heads is not known"
    split = found
    if split.batch * split.heads != math.prod(held.lead) or math.prod(lead) != math.prod(held.lead):
        return f"scores {[*saw.shape]} are not those of the product any more"
    sink_first = held.sink_first

    def arranged(x: Tensor) -> Tensor:
        order = [axis for axis in range(x.ndim) if axis not in (row, key)] + ([] if row is None else [row]) + [key]
        x = x.permute(order)
        x = x.unsqueeze(-2) if row is None else x
        return split.arrange(x.reshape(*held.lead, *x.shape[-2:]), held.lead)

    def per_head(x: Tensor) -> Tensor:
        x = arranged(x)
        if x.shape[-1] != len_kv:
            x = x[..., 1:] if sink_first else x[..., :len_kv]
        return x

    def per_row(x: Tensor) -> Tensor:
        """One number per row, as [batch, heads, len_q, 1]."""
        return arranged(x.detach().expand([1 if axis == key else size for axis, size in enumerate(saw.shape)]))

    with torch.no_grad():
        wide_q, wide_k = split.arrange(q.detach(), held.lead), split.arrange(k.detach(), held.lead)
    hooked = saw if held.bare is None else held.bare
    hooked = hooked.detach() if held.twice else hooked
    scores = per_head(hooked)
    if held.bare is None and held.shift is not None:
        scores = scores + per_row(held.shift)
    if held.hidden is not None:
        scores = scores.masked_fill(per_head(held.hidden), -math.inf)
    sink = held.sink
    if sink is not None:
        if held.bare is None:  # something happened to both since
            sink = saw.narrow(key, 0 if sink_first else saw.shape[key] - 1, 1)
        sink = per_row(sink)
    if held.added is not None:
        also = per_row(held.added if held.shift is None else held.added + held.shift.detach()).to(scores.dtype)
        sink = also if sink is None else torch.logaddexp(sink, also)
    return Written(wide_q, wide_k, note.factor, held.prescale, note.cap, scores, sink, hooked, per_head, split.doubt)
