"""What sums, products, masks and casts leave of what is known of a tensor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Optional

import torch
from torch import Tensor

from . import sinks
from .mixing import Mixing
from .products import Held, Lost, Note, Scaled, number_of
from .shapes import Found

Factor = Callable[[float], Optional[float]]  # what a multiplication or division by that number multiplies with


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
        related = isinstance(one, Note) and isinstance(other, Note) and other.held is one.held
        if related and one.stage in ("exp", "product"):
            if other.stage == ("total" if over else "inverse"):
                if one.stage == "product":
                    return self._report(one)
                self.memory.set(out, one.but(stage="weights"))
                self._owe(one, out.shape)
            return None
        if over and isinstance(b, Tensor) and isinstance(other, Note):
            if other.stage == "total":
                self.memory.set(out, other.but(stage="inverse"))
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

    def _scores_times(self, note: Note, a: Tensor, b: Any, out: Tensor, number: Factor) -> None:
        if out.shape != a.shape:
            return
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
            if other.stage == "lse" and sign < 0 and one.held in other.held.before:
                self.memory.set(out, one.but(stage="log", held=other.held))
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
        if isinstance(note, Note) and note.stage == "total" and isinstance(out, Tensor):
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
        x = next((x for x in (*args[:3], *kwargs.values()) if isinstance(self.memory.get(x), (Note, Lost))), None)
        return None if x is None else self.same((x,), {}, out)

    def _pass_on(self, note: Any, x: Tensor, out: Tensor) -> None:
        if out is x and self.memory.get(x) is note:
            return
        self.memory.set(out, note)


def two_of(args: Any, kwargs: Any) -> tuple[Any, Any]:
    a = args[0] if args else kwargs.get("input")
    return a, args[1] if len(args) > 1 else kwargs.get("other")


def _per_row(b: Tensor, a: Tensor, key: int) -> bool:
    """Whether b, broadcast to a, is one number for each row of a."""
    if not b.is_floating_point() or b.ndim > a.ndim:
        return False
    axis = key - (a.ndim - b.ndim)
    return axis < 0 or (b.shape[axis] == 1 and a.shape[key] > 1)


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
    held = Held(q, k, x.lead, x.batch, x.prescale, x.made)
    held.before = (x, y)
    return one.but(held=held)
