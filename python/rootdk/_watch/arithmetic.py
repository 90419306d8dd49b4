"""What sums, products, masks and casts leave of what is known of a tensor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Optional, Sequence

import torch
from torch import Tensor

from . import einsum, sinks
from .mixing import Mixing
from .products import REWRITTEN, Held, Lost, Note, Scaled, number_of
from .shapes import Found, moved_note
from .zeros import after_exponentials, after_weights, is_sum_of, sum_of

Factor = Callable[[float], Optional[float]]  # what a multiplication or division by that number multiplies with

OTHERS = "its exponentials are divided by what may not be their sum"
_DIVIDED = ("exp", "product", "weights")
_DIVISORS = ("total", "mass", "product")
_SUMS = ("total", "inverse", "lse")
_BY_KEY = ("scores", "exp", "weights")


class Arithmetic(Mixing):
    """The steps that change elements one by one. Each is called with a function's arguments and its result."""

    def times(self, args: Any, kwargs: Any, out: Any) -> Found:
        return self._arithmetic(args, kwargs, out, lambda b: b)

    def over(self, args: Any, kwargs: Any, out: Any) -> Found:
        return self._arithmetic(args, kwargs, out, lambda b: 1 / b if b else None)

    def _arithmetic(self, args: Any, kwargs: Any, out: Any, number: Factor) -> Found:
        a, b = two_of(args, kwargs)
        if not isinstance(out, Tensor):
            return None
        over = number(2.0) != 2.0
        one, other = self.memory.get(a), self.memory.get(b)
        if isinstance(one, Note) and one.stage == "inverse" and isinstance(other, Note) and not over:
            a, b, one, other = b, a, other, one
        if isinstance(one, Note) and isinstance(other, Note):
            if one.stage in _DIVIDED and other.stage in (_DIVISORS if over else ("inverse",)):
                return self._divided(one, other, b, out)
            if one.stage == other.stage == "scores" and not over:
                self.memory.set(out, _of_several(one))
                return None
        if over and isinstance(b, Tensor) and isinstance(other, Note):
            if other.stage in ("total", "mass") and not isinstance(one, Note):
                self.memory.set(out, other.but(stage="inverse"))
            return None
        if over and isinstance(b, Tensor) and _may_be_sum(b, a, one):
            if isinstance(one, Note):
                return self._divided(one, None, b, out)
            self._lose(out, replace(one, stage="weights", shape=tuple(out.shape)))
            return None
        if not isinstance(one, Note) and isinstance(other, Note):
            a, b, one = b, a, other
        if isinstance(one, Note):
            self._scores_times(one, a, b, out, number)
        elif isinstance(one, Lost) or isinstance(other, Lost):
            self.same(args, kwargs, out)
        elif isinstance(a, Tensor):
            self._remember_number(a, b, one, out, number)
        return None

    def _divided(self, one: Note, other: Optional[Note], b: Tensor, out: Tensor) -> Found:
        """Exponentials, their product with values, or weights, by b, of which something may be known."""
        if one.stage == "exp" and other is not None and one.held.row == other.held.key != one.held.key:
            one = turned(one) or one
        held, total = one.held, None if other is None or other.stage == "product" else other.held
        if total is None and is_sum_of(held, b):
            total = held
        elif held is not total and "product" in (one.stage, other and other.stage):
            if total is None or total.unclear or not is_softmax_of(held, total):
                _one_owed(held, total)
                return None  # features that a kernel makes, say; exponentials are owed by themselves
        one = one.but(held=_with_sum(held, total))
        if one.stage == "product":
            return self._report(one)
        if one.stage == "weights":
            one = one.but(held=after_weights(one, out))
        self.memory.set(out, one.but(stage="weights"))
        self._owe(one, out.shape)
        return None

    def _scores_times(self, note: Note, a: Tensor, b: Any, out: Tensor, number: Factor) -> None:
        if note.stage == "exp" and isinstance(b, Tensor) and b.ndim and not _per_row(b, a, note.key):
            self._changed(note, a, out)
            return
        if out.shape != a.shape:
            return
        if note.stage == "log" and number_of(b) != 1.0:
            note = note.but(
                held=note.held.next(unclear=note.held.unclear or "the logarithm of its weights was multiplied")
            )
        if note.stage != "scores":
            self._pass_on(note, a, out)
            return
        value = number_of(b, may_wait=True)
        if value is not None:
            self.memory.set(out, note.plain().times(number(value)))
        elif isinstance(b, Tensor) and _per_row(b, a, note.key) and note.held.q is not None:
            # A number per head or row, such as a learned temperature: as well the query's.
            held, straight = note.held, note.row == a.ndim - 2 and note.key == a.ndim - 1
            if straight and a.shape[:-2] == held.lead and note.cap is None and held.q is not None:
                with torch.no_grad():
                    wide = b.detach()
                    q = held.q.detach() * (wide if number(2.0) == 2.0 else 1 / wide)
                self.memory.set(out, note.but(held=held.next(q=q, bare=None, shift=None)))
            else:
                self.memory.set(out, note.times(None))
        else:
            self.memory.set(out, note)  # a mask of ones and zeros

    def _times_by_einsum(self, equation: str, tensors: Sequence[Tensor], out: Any) -> bool:
        """Scores, exponentials or weights times other tensors, element by element: the result has their axes."""
        read = einsum.letters(equation, tuple(x.ndim for x in tensors))
        notes = [self.memory.get(x) for x in tensors]
        known = [i for i, note in enumerate(notes) if isinstance(note, Note) and note.stage in _BY_KEY]
        if read is None or len(known) != 1 or not isinstance(out, Tensor):
            return False
        note, x, names = notes[known[0]], tensors[known[0]], read[0][known[0]]
        if sorted(names) != sorted(read[1]):
            return False
        order = [names.index(name) for name in read[1]]
        moved = note if order == [*range(x.ndim)] else moved_note(note, x, order)
        if moved is None:
            return False
        if note.stage == "exp":
            back = out.permute([read[1].index(name) for name in names])
            moved = moved.but(held=after_exponentials(note, back))
        elif note.stage == "scores":  # times a mask of ones and zeros, or a number for each row
            masks = any(names[note.key] in other for i, other in enumerate(read[0]) if i != known[0])
            moved = moved.plain() if masks else moved.plain().times(None)
        self.memory.set(out, moved)
        return True

    def _remember_number(self, a: Tensor, b: Any, note: Any, out: Tensor, number: Factor) -> None:
        """Of q or k, perhaps, before they are multiplied."""
        known = note if isinstance(note, Scaled) else Scaled()
        value = number_of(b)
        if value is not None and a.ndim >= 2:
            factor = number(value)
            if factor is not None and out.is_floating_point() and not known.part:
                self.memory.set(out, replace(known, number=known.number * factor))
        elif isinstance(note, Scaled) and isinstance(b, Tensor) and out.shape == a.shape:
            self.memory.set(out, replace(note, part=note.part or note.number != 1.0))

    def plus(self, args: Any, kwargs: Any, out: Any) -> Found:
        self._sum(args, kwargs, out, 1.0)
        return None

    def minus(self, args: Any, kwargs: Any, out: Any) -> Found:
        self._sum(args, kwargs, out, -1.0)
        return None

    def _sum(self, args: Any, kwargs: Any, out: Any, sign: float) -> None:
        a, b = two_of(args, kwargs)
        if not isinstance(out, Tensor):
            return
        one, other = self.memory.get(a), self.memory.get(b)
        alpha = number_of(kwargs.get("alpha", 1))
        if out is a and isinstance(one, Scaled) and one != other:
            self.memory.pop(a)  # no multiple of what it was
        if isinstance(one, Scaled) and isinstance(other, Scaled):
            if one.part == other.part and one.number == other.number and out.shape == a.shape and alpha == 1:
                self.memory.set(out, replace(one, part=False))
            return
        if isinstance(one, Note) and isinstance(other, Note) and one.stage == "scores":
            if other.stage == "lse" and sign < 0:
                self.memory.set(out, one.but(stage="log", held=_with_sum(saw(one, a), other.held)))
                return
            if other.stage == "scores" and alpha == 1:
                both = _both(one, other, a, b, sign)
                if both is not None:
                    self.memory.set(out, both)
                    return
        if not isinstance(one, Note):
            if isinstance(one, Lost) or isinstance(other, Lost):
                self.same(args, kwargs, out)
                return
            a, b, one = b, a, other
            if isinstance(one, Note) and sign < 0:  # something minus scores
                one = one.times(-1.0)
        if not isinstance(one, Note):
            return
        if one.stage == "total":
            sinks.add_number(one.held, a, b, other if a is args[0] else None, sign * (alpha or 0.0))
        if one.stage == "exp":
            self._changed(one, a, out)
            return
        if out.shape != a.shape:
            return
        if one.stage == "scores":
            held = one.held
            if isinstance(b, Tensor) and a is args[0] and alpha == 1 and _per_row(b, a, one.key):
                first = held.shift is None and (held.sink is None or held.bare is not None)
                shift = -sign * b.detach() if first else None
                one = one.but(held=held.next(shift=shift, bare=held.bare if first else None))
            else:
                one = one.plain()
        self._pass_on(one, a, out)

    def tanh(self, args: Any, kwargs: Any, out: Any) -> Found:
        x = args[0] if args else kwargs.get("input")
        note = self.memory.get(x)
        if isinstance(note, Note) and isinstance(out, Tensor):
            if note.stage == "scores" and note.cap is None:
                self.memory.set(out, note.but(cap=1.0))
            else:
                self.memory.pop(out)
        return None

    def negative(self, args: Any, kwargs: Any, out: Any) -> Found:
        x = args[0] if args else kwargs.get("input")
        note = self.memory.get(x)
        if isinstance(note, Note) and note.stage == "scores" and isinstance(out, Tensor):
            self._scores_times(note, x, -1.0, out, lambda b: b)
        elif isinstance(note, Scaled) and isinstance(out, Tensor):
            self.memory.set(out, note)  # half of a rotated query
        return None

    def inverse(self, args: Any, kwargs: Any, out: Any) -> Found:
        note = self.memory.get(args[0]) if args else None
        if isinstance(note, Note) and note.stage in ("total", "mass") and isinstance(out, Tensor):
            self.memory.set(out, note.but(stage="inverse"))
        return None

    def same(self, args: Any, kwargs: Any, out: Any) -> Found:
        """Masks, casts, dropout: the same thing afterwards, element by element."""
        if not isinstance(out, Tensor) or not out.is_floating_point():
            return None
        for x in (*args[:3], *kwargs.values()):
            note = self.memory.get(x)
            if note is not None and x.shape == out.shape:
                if isinstance(note, Note) and note.stage == "scores":
                    note = note.plain()
                self._pass_on(note, x, out)
                return None
        return None

    def dropped(self, args: Any, kwargs: Any, out: Any) -> Found:
        """Dropout. Of exponentials it changes the sum."""
        x = args[0] if args else kwargs.get("input")
        note = self.memory.get(x)
        if isinstance(note, Note) and note.stage == "exp":
            self._changed(note, x, out)
            return None
        return self.cast(args, kwargs, out)

    def cast(self, args: Any, kwargs: Any, out: Any) -> Found:
        x = args[0] if args else kwargs.get("input")
        note = self.memory.get(x)
        if note is None or not isinstance(out, Tensor) or out is x:
            return None
        if out.shape == x.shape and out.is_floating_point():
            self.memory.set(out, note)
        return None

    def overwritten(self, args: Any, kwargs: Any, out: Any) -> Found:
        if args:
            self.memory.pop(args[0])
        return None

    def masked(self, args: Any, kwargs: Any, out: Any) -> Found:
        """Of q or k this would not leave what was known."""
        known = [x for x in (*args[:3], *kwargs.values()) if isinstance(self.memory.get(x), (Note, Lost))]
        if not known:
            return None
        note = self.memory.get(known[0])
        if isinstance(note, Note) and note.stage == "exp":
            self._changed(note, known[0], out)
            return None
        if isinstance(note, Note) and note.stage in _SUMS and isinstance(out, Tensor):
            before = known[0] if out is not known[0] else sum_of(note.held) if note.stage == "total" else None
            self.memory.pop(out)
            if before is not None and _same_sum(before, out):
                self.memory.set(out, note)
            return None
        for other in (self.memory.get(x) for x in known[1:]):
            if isinstance(note, Note) and note.stage == "scores" and not note.like(other) and isinstance(out, Tensor):
                self.memory.set(out, _of_several(note))
                return None
        return self.same((known[0],), {}, out)

    def _changed(self, note: Note, x: Tensor, out: Any) -> None:
        """Exponentials, element by element."""
        if isinstance(out, Tensor) and out.is_floating_point() and out.ndim >= x.ndim:
            more = out.ndim - x.ndim
            row = None if note.row is None else note.row + more
            self.memory.set(out, note.but(held=after_exponentials(note, out), row=row, key=note.key + more))

    def _pass_on(self, note: Any, x: Tensor, out: Tensor) -> None:
        if out is x and self.memory.get(x) is note:
            return
        self.memory.set(out, note)


def saw(note: Note, x: Tensor) -> Held:
    """The product whose scores softmax sees as x."""
    return note.held.next(scores=x, row=note.row, key=note.key)


def turned(note: Note) -> Optional[Note]:
    """Exponentials of which it turns out that their rows are what was taken for keys."""
    held = note.held.turned()
    return None if held is None or note.row is None else note.but(held=held, row=note.key, key=note.row)


@torch.no_grad()
def _same_sum(before: Tensor, after: Tensor) -> bool:
    """Whether what came of a sum by row differs from it only where that was 0, or no number."""
    if before.numel() != after.numel() or not after.is_floating_point():
        return False
    before = before.reshape(after.shape)
    none = (before == 0) | ~torch.isfinite(before)
    return bool((none | ((after - before).abs() <= 8 * torch.finfo(after.dtype).eps * before.abs())).all())


def is_softmax_of(held: Held, total: Held) -> bool:
    """Whether exponentials divided by that total are softmax's weights, some of which may have been masked since."""
    return held.same_scores(total) or held.hides_more_than(total)


def _with_sum(held: Held, total: Optional[Held]) -> Held:
    """Exponentials, with what is known of the sum that they are divided by."""
    _one_owed(held, total)
    if total is not None and is_softmax_of(held, total):
        total = total if held.scores is total.scores else total.next(twice=True)
        return total if held.unclear is None else held.next(unclear=held.unclear, owed=held.owed or total.owed)
    why = OTHERS if total is None or not (held.changed("scores") or total.changed("scores")) else REWRITTEN
    return held.next(unclear=held.unclear or why, owed=held.owed or (None if total is None else total.owed))


def _one_owed(held: Held, total: Optional[Held]) -> None:
    """One softmax, written with its exponentials twice."""
    if total is not None and held.owed is not None and total.owed not in (None, held.owed):
        held.owed.told = True
        held.owed = total.owed


def _of_several(note: Note) -> Note:
    return note.but(held=note.held.next(unclear="its scores are those of several products"))


def two_of(args: Any, kwargs: Any) -> tuple[Any, Any]:
    a = args[0] if args else kwargs.get("input")
    return a, args[1] if len(args) > 1 else kwargs.get("other")


def _per_row(b: Tensor, a: Tensor, key: int) -> bool:
    """Whether b, broadcast to a, is one number for each row of a."""
    if not b.is_floating_point() or b.ndim > a.ndim:
        return False
    axis = key - (a.ndim - b.ndim)
    return axis < 0 or (b.shape[axis] == 1 and a.shape[key] > 1)


def _may_be_sum(b: Tensor, a: Any, note: Any) -> bool:
    """A number for each row, by which exponentials or their product with values are divided."""
    if not isinstance(note, (Note, Lost)) or not b.ndim:
        return False
    if isinstance(note, Lost):
        return note.stage == "exp"
    return note.stage == "exp" and _per_row(b, a, note.key) or note.stage == "product" and b.shape[-1] == 1


def _both(one: Note, other: Note, a: Tensor, b: Tensor, sign: float) -> Optional[Note]:
    """The sum of two products is one of longer vectors: content and position, say."""
    x, y = one.held, other.held
    if a.shape != b.shape or (one.row, one.key) != (other.row, other.key) or x.lead != y.lead or one.cap is not None:
        return None
    if other.cap is not None or not one.factor or other.factor is None or x.sink is not None or y.sink is not None:
        return None
    if x.q is None or x.k is None or y.q is None or y.k is None or x.shift is not None or y.shift is not None:
        return None
    with torch.no_grad():

        def wide(t: Tensor) -> Tensor:
            return t.detach().expand(*x.lead, *t.shape[-2:])

        q = torch.cat([wide(x.q), wide(y.q) * (sign * other.factor / one.factor)], -1)
        k = torch.cat([wide(x.k), wide(y.k)], -2)
    held = Held(q, k, x.lead, x.batch, x.prescale, x.made, x.of_layers)
    held.before = (x, y)
    held.unclear = x.unclear or y.unclear or (REWRITTEN if x.changed("q", "k") or y.changed("q", "k") else None)
    return one.but(held=held)
