"""One step after another from a product to softmax and on to the second product: what each torch function makes of a tensor
that is known."""
from __future__ import annotations

import math
from typing import Any, Callable, Optional, Sequence, Union

import torch
from torch import Tensor

from . import _einsum
from ._products import Held, Lost, Memory, Note, Scaled, Written, number_of, plain_data, written

Missed = tuple[str, str]
Found = Union[Written, Missed, None]


class Trail:
    """What is known of the tensors of one thread. Each step is called with a function's arguments and its result."""

    def __init__(self, hints: Callable[[], Sequence[Tensor]], heads: Optional[int] = None):
        self.memory = Memory()
        self.hints, self.heads = hints, heads

    def scaled(self, *tensors: Any) -> float:
        """What these were multiplied with."""
        number = 1.0
        for x in tensors:
            note = self.memory.get(x)
            if isinstance(note, Scaled) and not note.part:
                number *= note.number
        return number

    # Products ---------------------------------------------------------------------------------------------------------
    def matmul(self, args: Any, kwargs: Any, out: Any) -> Found:
        sides = [*args, *(kwargs[name] for name in ("input", "other", "tensor2", "mat2") if name in kwargs)][:2]
        if len(sides) != 2 or not isinstance(out, Tensor) or not all(isinstance(x, Tensor) for x in sides):
            return None
        a, b = sides
        found = self._times_values(sides, [{a.ndim - 1}, {max(b.ndim - 2, 0)}])
        if found is None:
            self._product_of_two(a, b, out)
        return found

    def rmatmul(self, args: Any, kwargs: Any, out: Any) -> Found:
        return self.matmul(args[1::-1], kwargs, out)

    def baddbmm(self, args: Any, kwargs: Any, out: Any) -> Found:
        names = ("input", "batch1", "batch2")
        sides = [args[i] if i < len(args) else kwargs.get(name) for i, name in enumerate(names)]
        found = self._times_values(sides[1:], [{2}, {1}])
        if found is None:
            self._product_of_two(sides[1], sides[2], out)
            note = self.memory.get(out)
            if isinstance(note, Note):
                alpha = number_of(kwargs.get("alpha", 1), may_wait=True)
                self.memory.set(out, note.times(alpha))
        return found

    def einsum(self, args: Any, kwargs: Any, out: Any) -> Found:
        read = _einsum.operands_of(args)
        if read is None or not all(isinstance(x, Tensor) for x in read[1]):
            return None
        equation, tensors = read
        if len(tensors) == 1:
            self._permuted_by(equation, tensors[0], out)
            return None
        axes = [{*_einsum.summed_axes(equation, tensors, i)} for i in range(len(tensors))]
        found = self._times_values(tensors, axes, lambda x: _einsum.has_own_axis(equation, tensors, x))
        if found is not None or len(tensors) != 2:
            return found
        a, b = tensors
        product = _einsum.product_of(equation, a, b) if self._may_be_product(a, b, out) else None
        if product is not None:
            q, k, row, key = product
            lead = [out.shape[i] for i in range(out.ndim) if i not in (row, key)]
            held = Held(q, k, lead, prescale=self.scaled(*tensors))
            self._forget_operands(tensors)
            self.memory.set(out, Note(held, "scores", row, key))
        return None

    def _product_of_two(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        if not self._may_be_product(a, b, out) or a.ndim < 2 or b.ndim < 2 or (b.ndim == 2) != (a.ndim == 2):
            return
        if a.ndim == 2 and any(isinstance(x, torch.nn.Parameter) or isinstance(x._base, torch.nn.Parameter) for x in (a, b)):
            return  # a layer's weights
        batch = None
        for x in (a, b):
            note = self.memory.get(x)
            if isinstance(note, Scaled) and note.folded is not None and note.folded[0] == 0 and x.ndim == 3:
                batch = note.folded[1]
        held = Held(a, b, out.shape[:-2], batch, self.scaled(a, b))
        self._forget_operands((a, b))
        self.memory.set(out, Note(held, "scores", out.ndim - 2, out.ndim - 1))

    def _may_be_product(self, a: Tensor, b: Tensor, out: Any) -> bool:
        return (plain_data(out) and out.ndim >= 2 and out.numel() > 0 and out.is_floating_point() and plain_data(a) and plain_data(b)
                and out is not a and out is not b
                and not any(isinstance(note := self.memory.get(x), Note) and note.stage != "scores" for x in (a, b)))

    def _forget_operands(self, sides: Sequence[Tensor]) -> None:
        """Scores that are multiplied are none: with their notes, a chain of products would keep every link of it."""
        for x in sides:
            if isinstance(self.memory.get(x), Note):
                self.memory.pop(x)

    def _times_values(self, sides: Sequence[Any], axes: Sequence[set[int]], own: Optional[Callable[[Tensor], bool]] = None) -> Found:
        """If one side holds weights and the sum goes over their keys. `own`: whether a side has an axis that is nobody else's,
        as weights have their queries; those of a router have not."""
        for x, summed in zip(sides, axes):
            note = self.memory.get(x)
            if isinstance(note, Note) and note.key in summed:
                if note.stage == "weights" or (note.stage == "exp" and note.held.summed):
                    return self._report(note)
                if note.stage == "exp":
                    note.held.multiplied = True
            elif isinstance(note, Lost) and (note.key is None or note.key in summed) and all(y.ndim > 2 for y in sides):
                self.memory.pop(x)
                if own is None or own(x):
                    return f"softmax over {list(note.shape)}", "whose scores were not followed from a product"
        return None

    def _report(self, note: Note) -> Found:
        found = written(note, self.hints, self.heads)
        note.held.let_go()
        return found

    # Softmax ----------------------------------------------------------------------------------------------------------
    def softmax(self, args: Any, kwargs: Any, out: Any) -> Found:
        self._softmax(args, kwargs, out, "weights")
        return None

    def log_softmax(self, args: Any, kwargs: Any, out: Any) -> Found:
        self._softmax(args, kwargs, out, "log")
        return None

    def _softmax(self, args: Any, kwargs: Any, out: Any, stage: str) -> None:
        x = args[0] if args else kwargs.get("input")
        if not isinstance(out, Tensor) or not isinstance(x, Tensor) or out is x:
            self.memory.pop(x)
            return
        axis = _axis(args[1] if len(args) > 1 else kwargs.get("dim"), x.ndim)
        note = self.memory.get(x)
        if isinstance(note, Note) and note.stage == "scores" and axis is not None:
            note = _over(note, axis)
            if note is not None:
                self.memory.set(out, note.but(stage=stage, held=_saw(note, x)))
                return
        if axis == x.ndim - 1 and x.ndim > 2 and x.shape[-1] > 1 and (x.shape[-2] > 1 or x.ndim > 3) and stage == "weights":
            self.memory.set(out, Lost(tuple(x.shape), axis))

    def exp(self, args: Any, kwargs: Any, out: Any) -> Found:
        x = args[0] if args else kwargs.get("input")
        note = self.memory.get(x)
        if isinstance(note, Note) and isinstance(out, Tensor):
            if note.stage == "log":
                self.memory.set(out, note.but(stage="weights"))
            elif note.stage == "scores" and out is not x:
                self.memory.set(out, note.but(stage="exp", held=_saw(note, x)))
        return None

    def before_exp_(self, x: Any) -> None:
        """Scores are about to turn into their exponentials in place: those that softmax saw must be kept apart."""
        note = self.memory.get(x)
        if isinstance(note, Note) and note.stage == "scores":
            self.memory.set(x, note.but(stage="exp", held=_saw(note, x.detach().clone())))

    def sum(self, args: Any, kwargs: Any, out: Any) -> Found:
        x = args[0] if args else kwargs.get("input")
        note = self.memory.get(x)
        if isinstance(note, Note) and note.stage == "exp" and isinstance(out, Tensor) and self._reduces(args, kwargs, note, x):
            note.held.summed = True
            self.memory.set(out, note.but(stage="total"))
            if note.held.multiplied:
                return self._report(note)
        return None

    def logsumexp(self, args: Any, kwargs: Any, out: Any) -> Found:
        x = args[0] if args else kwargs.get("input")
        note = self.memory.get(x)
        if isinstance(note, Note) and note.stage == "scores" and isinstance(out, Tensor) and self._reduces(args, kwargs, note, x):
            self.memory.set(out, note.but(stage="lse", held=_saw(note, x)))
        return None

    def _reduces(self, args: Any, kwargs: Any, note: Note, x: Tensor) -> bool:
        dim = args[1] if len(args) > 1 else kwargs.get("dim")
        if isinstance(dim, (list, tuple)) and len(dim) == 1:
            dim = dim[0]
        return _axis(dim, x.ndim) == note.key

    # Arithmetic -------------------------------------------------------------------------------------------------------
    def times(self, args: Any, kwargs: Any, out: Any) -> Found:
        self._arithmetic(args, kwargs, out, lambda a, b: b)
        return None

    def over(self, args: Any, kwargs: Any, out: Any) -> Found:
        self._arithmetic(args, kwargs, out, lambda a, b: 1 / b if b else None)
        return None

    def _arithmetic(self, args: Any, kwargs: Any, out: Any, number: Callable[[int, float], Optional[float]]) -> None:
        a, b = _two(args, kwargs)
        if not isinstance(out, Tensor):
            return
        over = number(0, 2.0) != 2.0
        one, other = self.memory.get(a), self.memory.get(b)
        if isinstance(one, Note) and one.stage == "exp" and isinstance(other, Note) and other.held is one.held:
            if other.stage == ("total" if over else "inverse"):
                self.memory.set(out, one.but(stage="weights"))
            return
        if over and isinstance(b, Tensor) and isinstance(other, Note):
            if other.stage == "total":
                self.memory.set(out, other.but(stage="inverse"))
            return
        if not isinstance(one, Note) and isinstance(other, Note):
            a, b, one = b, a, other
        if isinstance(one, Note):
            self._scores_times(one, a, b, out, number)
        elif isinstance(one, Lost) or isinstance(other, Lost):
            self.same(args, kwargs, out)
        elif isinstance(a, Tensor):
            self._remember_number(a, b, one, out, number)

    def _scores_times(self, note: Note, a: Tensor, b: Any, out: Tensor, number: Callable[[int, float], Optional[float]]) -> None:
        if out.shape != a.shape:
            return
        if note.stage != "scores":
            self._pass_on(note, a, out)
            return
        value = number_of(b, may_wait=True)
        if value is not None:
            if note.held.sink is not None or note.held.shift is not None:
                note = note.but(held=note.held.next(bare=None, shift=None))
            self.memory.set(out, note.times(number(0, value)))
        elif isinstance(b, Tensor) and _per_row(b, a, note.key) and note.held.q is not None:
            # A number per head or row, such as a learned temperature: as well the query's.
            held, straight = note.held, note.row == a.ndim - 2 and note.key == a.ndim - 1
            if straight and a.shape[:-2] == held.lead and note.cap is None and held.q is not None:
                with torch.no_grad():
                    wide = b.detach()
                    q = held.q.detach() * (wide if number(0, 2.0) == 2.0 else 1 / wide)
                self.memory.set(out, note.but(held=held.next(q=q, bare=None, shift=None)))
            else:
                self.memory.set(out, note.times(None))
        else:
            self.memory.set(out, note)  # a mask of ones and zeros

    def _remember_number(self, a: Tensor, b: Any, note: Any, out: Tensor, number: Callable[[int, float], Optional[float]]) -> None:
        """Of q or k, perhaps, before they are multiplied."""
        known = note if isinstance(note, Scaled) else Scaled()
        value = number_of(b)
        if value is not None and a.ndim >= 2:
            factor = number(0, value)
            if factor is not None and out.is_floating_point() and not known.part:
                self.memory.set(out, Scaled(known.number * factor, False, known.folded))
        elif isinstance(note, Scaled) and isinstance(b, Tensor) and out.shape == a.shape:
            self.memory.set(out, Scaled(note.number, True, note.folded))

    def plus(self, args: Any, kwargs: Any, out: Any) -> Found:
        self._sum(args, kwargs, out, 1.0)
        return None

    def minus(self, args: Any, kwargs: Any, out: Any) -> Found:
        self._sum(args, kwargs, out, -1.0)
        return None

    def _sum(self, args: Any, kwargs: Any, out: Any, sign: float) -> None:
        a, b = _two(args, kwargs)
        if not isinstance(out, Tensor):
            return
        one, other = self.memory.get(a), self.memory.get(b)
        alpha = number_of(kwargs.get("alpha", 1))
        if isinstance(one, Scaled) and isinstance(other, Scaled):
            if one.part == other.part and one.number == other.number and out.shape == a.shape and alpha == 1:
                self.memory.set(out, Scaled(one.number, False, one.folded))
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
            a, b, one = b, a, other
            if isinstance(one, Note) and sign < 0:  # something minus scores
                one = one.times(-1.0)
        if not isinstance(one, Note):
            if isinstance(one, Lost):
                self.same(args, kwargs, out)
            return
        if out.shape != a.shape:
            return
        if one.stage == "scores":
            held = one.held
            if isinstance(b, Tensor) and a is args[0] and alpha == 1 and _per_row(b, a, one.key):
                first = held.shift is None and (held.sink is None or held.bare is not None)
                shift = -sign * b.detach() if first else None
                one = one.but(held=held.next(shift=shift, bare=held.bare if first else None))
            elif held.bare is not None or held.shift is not None:
                one = one.but(held=held.next(bare=None, shift=None))
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
            self._scores_times(note, x, -1.0, out, lambda a, b: b)
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
                if isinstance(note, Note) and note.stage == "scores" and (note.held.bare is not None or note.held.shift is not None):
                    note = note.but(held=note.held.next(bare=None, shift=None))
                self._pass_on(note, x, out)
                return None
        return None

    def cast(self, args: Any, kwargs: Any, out: Any) -> Found:
        x = args[0] if args else kwargs.get("input")
        note = self.memory.get(x)
        if note is not None and isinstance(out, Tensor) and out is not x and out.shape == x.shape and out.is_floating_point():
            self.memory.set(out, note)
        return None

    def masked(self, args: Any, kwargs: Any, out: Any) -> Found:
        """Of q or k this would not leave what was known."""
        x = next((x for x in (*args[:3], *kwargs.values()) if isinstance(self.memory.get(x), (Note, Lost))), None)
        return None if x is None else self.same((x,), {}, out)

    def _pass_on(self, note: Any, x: Tensor, out: Tensor) -> None:
        if out is x and self.memory.get(x) is note:
            return
        self.memory.set(out, note)

    # Shapes -----------------------------------------------------------------------------------------------------------
    def reshape(self, args: Any, kwargs: Any, out: Any) -> Found:
        x = args[0] if args else kwargs.get("input")
        if not isinstance(x, Tensor) or not isinstance(out, Tensor) or out is x:
            return None
        note = self.memory.get(x)
        if isinstance(note, Note):
            if note.stage in ("total", "inverse", "lse"):
                self.memory.set(out, note)
            elif (moved := _reshaped(note, x, out)) is not None:
                self.memory.set(out, moved)
            else:
                self.loose(args, kwargs, out)
            return None
        if isinstance(note, Lost):
            kept = note.key == x.ndim - 1 and x.shape[-1] == out.shape[-1]
            self.memory.set(out, Lost(note.shape, out.ndim - 1 if kept else None))
            return None
        folded = _folded(x.shape, out.shape)
        if folded is None and isinstance(note, Scaled) and note.folded is not None and x.shape[:2] == out.shape[:2]:
            folded = note.folded
        if folded is not None or note is not None:
            known = note if note is not None else Scaled()
            self.memory.set(out, Scaled(known.number, known.part, folded))
        return None

    def transpose(self, args: Any, kwargs: Any, out: Any) -> Found:
        x = args[0] if args else kwargs.get("input")
        dims = [*args[1:3], *(kwargs[name] for name in ("dim0", "dim1", "axis0", "axis1") if name in kwargs)]
        if isinstance(x, Tensor) and len(dims) == 2 and self.memory.get(x) is not None:
            a, b = (_axis(dim, x.ndim) for dim in dims)
            if a is not None and b is not None:
                order = [*range(x.ndim)]
                order[a], order[b] = b, a
                self._permuted(x, order, out)
        return None

    def turned(self, args: Any, kwargs: Any, out: Any) -> Found:
        """x.mT, x.T"""
        x = args[0]
        if isinstance(x, Tensor) and x.ndim >= 2:
            self._permuted(x, [*range(x.ndim - 2), x.ndim - 1, x.ndim - 2], out)
        return None

    def permute(self, args: Any, kwargs: Any, out: Any) -> Found:
        x = args[0] if args else kwargs.get("input")
        dims = args[1:] or kwargs.get("dims", ())
        dims = dims[0] if len(dims) == 1 and isinstance(dims[0], (list, tuple)) else dims
        if isinstance(x, Tensor) and self.memory.get(x) is not None:
            order = [_axis(dim, x.ndim) for dim in dims]
            if None not in order:
                self._permuted(x, order, out)
        return None

    def _permuted_by(self, equation: str, x: Tensor, out: Any) -> None:
        """einsum of one tensor, which is how some write permute."""
        read = _einsum.letters(equation, (x.ndim,))
        if read is not None and sorted(read[0][0]) == sorted(read[1]):
            self._permuted(x, [read[0][0].index(name) for name in read[1]], out)

    def _permuted(self, x: Tensor, order: Sequence[Any], out: Any) -> None:
        note = self.memory.get(x)
        if not isinstance(out, Tensor) or note is None or out is x:
            return
        if isinstance(note, Note):
            moved = _moved(note, x, order)
            if moved is not None:
                self.memory.set(out, moved)
        elif isinstance(note, Lost):
            self.memory.set(out, Lost(note.shape, None if note.key is None else order.index(note.key)))
        else:
            folded = None if note.folded is None else (order.index(note.folded[0]), note.folded[1])
            self.memory.set(out, Scaled(note.number, note.part, folded))

    def part(self, args: Any, kwargs: Any, out: Any) -> Found:
        """x[...], narrow, and the like. Of weights the keys may become fewer: a sink's column goes."""
        x = args[0] if args else kwargs.get("input")
        note = self.memory.get(x)
        if note is None or not isinstance(out, Tensor) or out is x:
            return None
        if isinstance(note, Scaled):
            if note.folded is not None and note.folded[0] > 0 and out.ndim == x.ndim - 1 and out.shape == x.shape[1:]:
                self.memory.set(out, Scaled(note.number, note.part, (note.folded[0] - 1, note.folded[1])))
            elif out.ndim == x.ndim and note.folded is None:
                self.memory.set(out, note)
        elif isinstance(note, Lost):
            self.memory.set(out, Lost(note.shape, note.key if out.ndim == x.ndim else None))
        elif note.stage in ("total", "inverse", "lse"):
            if out.numel() == x.numel():
                self.memory.set(out, note)
        elif out.shape == x.shape:
            self.memory.set(out, note)
        elif note.stage in ("weights", "exp") and out.ndim == x.ndim:
            if all(out.shape[axis] == x.shape[axis] for axis in range(x.ndim) if axis != note.key):
                self.memory.set(out, note)
            else:
                self.loose(args, kwargs, out)
        elif out.numel() == x.numel():
            moved = _reshaped(note, x, out)
            if moved is not None:
                self.memory.set(out, moved)
        return None

    def loose(self, args: Any, kwargs: Any, out: Any) -> Found:
        """Weights whose keys are somewhere else now: they can only be named."""
        x = args[0] if args else kwargs.get("input")
        note = self.memory.get(x)
        if isinstance(note, Note) and note.stage == "weights" and note.held.scores is not None:
            note = Lost(tuple(note.held.scores.shape), None)
        if isinstance(note, Lost) and isinstance(out, Tensor):
            self.memory.set(out, Lost(note.shape, None))
        return None

    def parts(self, args: Any, kwargs: Any, out: Any) -> Found:
        """unbind, chunk, split"""
        x = args[0] if args else kwargs.get("input")
        note = self.memory.get(x)
        if note is not None and isinstance(out, (tuple, list)):
            for piece in out:
                self.part((x,), {}, piece)
        return None

    def cat(self, args: Any, kwargs: Any, out: Any) -> Found:
        tensors = args[0] if args else kwargs.get("tensors", ())
        if not isinstance(tensors, (tuple, list)) or not isinstance(out, Tensor):
            return None
        notes = [self.memory.get(x) for x in tensors]
        if all(isinstance(note, Scaled) and not note.part and note.number == notes[0].number for note in notes):
            self.memory.set(out, Scaled(notes[0].number))  # the halves of a rotated query
            return None
        if len(tensors) != 2:
            return None
        axis = _axis(args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis", 0)), out.ndim)
        for i, note in enumerate(notes):
            sink = tensors[1 - i]
            if isinstance(note, Note) and note.stage == "scores" and axis == note.key and sink.shape[axis] == 1:
                if notes[1 - i] is None and note.held.sink is None and note.held.shift is None:
                    held = note.held.next(bare=tensors[i], sink=sink, sink_first=i == 1)
                    self.memory.set(out, note.but(held=held))
        return None


def _axis(dim: Any, ndim: int) -> Optional[int]:
    return dim % ndim if isinstance(dim, int) and ndim and -ndim <= dim < ndim else None


def _two(args: Any, kwargs: Any) -> tuple[Any, Any]:
    a = args[0] if args else kwargs.get("input")
    return a, args[1] if len(args) > 1 else kwargs.get("other")


def _saw(note: Note, x: Tensor) -> Held:
    return note.held.next(scores=x, row=note.row, key=note.key)


def _over(note: Note, axis: int) -> Optional[Note]:
    """These scores for a softmax over that axis; if it is the one taken for the queries', it is the keys'."""
    if axis == note.key:
        return note
    if axis != note.row or note.held.q is None or note.held.k is None:
        return None
    held = note.held.next(q=note.held.k.transpose(-1, -2), k=note.held.q.transpose(-1, -2))
    return note.but(held=held, row=note.key, key=note.row)


def _per_row(b: Tensor, a: Tensor, key: int) -> bool:
    """Whether b, broadcast to a, is one number for each row of a."""
    if not b.is_floating_point() or b.ndim > a.ndim:
        return False
    axis = key - (a.ndim - b.ndim)
    return axis < 0 or (b.shape[axis] == 1 and a.shape[key] > 1)


def _reshaped(note: Note, x: Tensor, out: Tensor) -> Optional[Note]:
    """Lead axes may be joined and divided; queries and keys stay last."""
    if note.held.shift is not None or note.held.bare is not None:
        note = note.but(held=note.held.next(shift=None, bare=None))
    if out.ndim < 1 or out.shape[-1] != x.shape[-1] or note.key != x.ndim - 1 or out.numel() != x.numel():
        return None
    if note.row is None:
        return note.but(key=out.ndim - 1)
    if note.row != x.ndim - 2:
        return None
    if out.ndim >= 2 and out.shape[-2] == x.shape[-2] and math.prod(out.shape[:-2]) == math.prod(x.shape[:-2]):
        split = (out.shape[0], out.shape[1]) if out.ndim == 4 else note.split
        return note.but(row=out.ndim - 2, key=out.ndim - 1, split=split)
    if x.shape[-2] == 1:
        return note.but(row=None, key=out.ndim - 1)
    return None


def _moved(note: Note, x: Tensor, order: Sequence[int]) -> Optional[Note]:
    """If lead axes change places, those of q and k do, too."""
    if note.stage in ("total", "inverse", "lse"):
        return None
    row = None if note.row is None else order.index(note.row)
    key = order.index(note.key)
    held = note.held
    if held.shift is not None or held.bare is not None:
        held = held.next(shift=None, bare=None)
    leads = [axis for axis in range(x.ndim) if axis not in (note.row, note.key)]
    moved = [leads.index(axis) for axis in order if axis not in (note.row, note.key)]
    if moved != sorted(moved) and note.stage == "scores":
        sizes = tuple(x.shape[axis] for axis in leads)
        if sizes != held.lead or held.q is None or held.k is None:
            return None
        n = len(sizes)
        if held.q.ndim != n + 2 or held.k.ndim != n + 2:
            return None
        held = held.next(q=held.q.permute(*moved, n, n + 1), k=held.k.permute(*moved, n, n + 1),
                         lead=tuple(sizes[i] for i in moved), batch=None)
    split = note.split if moved == sorted(moved) else None
    return note.but(held=held, row=row, key=key, split=split)


def _folded(before: Sequence[int], after: Sequence[int]) -> Optional[tuple[int, int]]:
    """Where a reshape joins batch and heads: (axis, batch)."""
    before, after = tuple(before), tuple(after)
    for at in (0, 1):
        if len(before) == len(after) + 1 >= 4 and after == (*before[:at], before[at] * before[at + 1], *before[at + 2 :]):
            return at, before[at]
    if len(before) == len(after) == 3 and before[0] == after[0] and before[1] and after[1] % before[1] == 0 and after[1] != before[1]:
        return 1, before[1]  # [len, batch, heads · dim] → [len, batch · heads, dim]
    return None


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
    prescale = x.prescale if x.prescale == y.prescale else 1.0
    held = Held(q, k, x.lead, x.batch, prescale)
    held.before = (x, y)
    return one.but(held=held)
