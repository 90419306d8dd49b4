"""One step after another from a product to softmax and on to the second product: what each torch function makes of a tensor
that is known."""
from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import torch
from torch import Tensor

from . import einsum
from .heads import Hints
from .mixing import Mixing
from .products import Held, Lost, Note, Owed, Scaled, number_of, plain_data, written
from .shapes import Found, axis_of

Factor = Callable[[float], Optional[float]]  # what a multiplication or division by that number multiplies with


class Trail(Mixing):
    """What is known of the tensors of one thread. Each step is called with a function's arguments and its result. `owes` is told of
    every softmax over followed scores."""

    def __init__(self, hints: Hints, heads: Optional[int] = None, owes: Callable[[Owed], None] = lambda owed: None):
        super().__init__()
        self.hints, self.heads, self.owes = hints, heads, owes

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
        axes = [{a.ndim - 1}, {max(b.ndim - 2, 0)}]
        found = self._times_values(sides, axes, out)
        if found is None and not any(self._mixed_by_product(x, *axis, out) for x, axis in zip(sides, axes)):
            self._product_of_two(a, b, out)
        return found

    def rmatmul(self, args: Any, kwargs: Any, out: Any) -> Found:
        return self.matmul(args[1::-1], kwargs, out)

    def baddbmm(self, args: Any, kwargs: Any, out: Any) -> Found:
        names = ("input", "batch1", "batch2")
        sides = [args[i] if i < len(args) else kwargs.get(name) for i, name in enumerate(names)]
        found = self._times_values(sides[1:], [{2}, {1}], out)
        if found is None:
            self._product_of_two(sides[1], sides[2], out)
            note = self.memory.get(out)
            if isinstance(note, Note):
                alpha = number_of(kwargs.get("alpha", 1), may_wait=True)
                self.memory.set(out, note.times(alpha))
        return found

    def einsum(self, args: Any, kwargs: Any, out: Any) -> Found:
        read = einsum.operands_of(args)
        if read is None or not all(isinstance(x, Tensor) for x in read[1]):
            return None
        equation, tensors = read
        if len(tensors) == 1:
            self._permuted_by(equation, tensors[0], out)
            return None
        axes = [{*einsum.summed_axes(equation, tensors, i)} for i in range(len(tensors))]
        found = self._times_values(tensors, axes, out, lambda x: einsum.has_own_axis(equation, tensors, x))
        if found is not None or self._mixed_by_einsum(equation, tensors, out) or len(tensors) != 2:
            return found
        a, b = tensors
        product = einsum.product_of(equation, a, b) if self._may_be_product(a, b, out) else None
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
        learned = torch.nn.Parameter
        if a.ndim == 2 and any(isinstance(x, learned) or isinstance(x._base, learned) for x in (a, b)):
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
        return (all(plain_data(x) for x in (out, a, b)) and out.ndim >= 2 and out.numel() > 0 and out.is_floating_point()
                and out is not a and out is not b
                and not any(isinstance(note := self.memory.get(x), Note) and note.stage != "scores" for x in (a, b)))

    def _forget_operands(self, sides: Sequence[Tensor]) -> None:
        """Scores that are multiplied are none: with their notes, a chain of products would keep every link of it."""
        for x in sides:
            if isinstance(self.memory.get(x), Note):
                self.memory.pop(x)

    def _times_values(self, sides: Sequence[Any], axes: Sequence[set[int]], out: Any,
                      own: Optional[Callable[[Tensor], bool]] = None) -> Found:
        """If one side holds weights and the sum goes over their keys. `own`: whether a side has an axis that is nobody else's,
        as weights have their queries; those of a router have not."""
        for x, summed in zip(sides, axes):
            note = self.memory.get(x)
            if isinstance(note, Note) and note.key in summed:
                if note.stage == "weights":
                    return self._report(note)
                if note.stage == "exp" and isinstance(out, Tensor):
                    note.held.multiplied = True
                    self._owe_division(note)
                    self.memory.set(out, note.but(stage="product"))
            elif isinstance(note, Note) and note.stage == "weights" and note.row in summed and note.held.owed is not None:
                note.held.owed.why = "it goes over queries, and its weights are summed over keys, or the other way round"
            elif isinstance(note, Lost) and not note.scores and (note.key is None or note.key in summed) and all(y.ndim > 2 for y in sides):
                self.memory.pop(x)
                if own is None or own(x):
                    return f"softmax over {list(note.shape)}", note.why
        return None

    def _report(self, note: Note) -> Found:
        found, owed = written(note, self.hints, self.heads), note.held.owed
        if isinstance(found, str):
            if owed is not None:
                owed.told = True
            found = (f"softmax over {[] if owed is None else [*owed.shape]}", found)
        elif found is not None and owed is not None:
            owed.told = True
        note.held.let_go()
        return found

    def _owe(self, note: Note, shape: Sequence[int]) -> None:
        """From here on these scores must be told, or named."""
        if len(shape) > 2 and note.held.owed is None and shape[note.key] > 1 and (len(shape) > 3 or note.row is None or shape[note.row] > 1):
            note.held.owed = Owed(shape)
            self.owes(note.held.owed)

    def _owe_division(self, note: Note) -> None:
        """exp(scores) with its sum and its product with values: what is left to see is that one is divided by the other."""
        if note.held.summed and note.held.multiplied and note.held.scores is not None:
            self._owe(note.but(row=note.held.row, key=note.held.key), note.held.scores.shape)

    # Softmax ----------------------------------------------------------------------------------------------------------
    def softmax(self, args: Any, kwargs: Any, out: Any) -> Found:
        return self._softmax(args, kwargs, out, "weights")

    def log_softmax(self, args: Any, kwargs: Any, out: Any) -> Found:
        return self._softmax(args, kwargs, out, "log")

    def _softmax(self, args: Any, kwargs: Any, out: Any, stage: str) -> Found:
        x = args[0] if args else kwargs.get("input")
        if not isinstance(out, Tensor) or not isinstance(x, Tensor) or out is x:
            self.memory.pop(x)
            return None
        axis = axis_of(args[1] if len(args) > 1 else kwargs.get("dim"), x.ndim)
        note = self.memory.get(x)
        if isinstance(note, Note) and note.stage == "scores" and axis is not None:
            over = _over(note, axis)
            if over is not None:
                saw = over.but(stage=stage, held=_saw(over, x))
                self.memory.set(out, saw)
                if stage == "weights":
                    self._owe(saw, x.shape)
            elif stage == "weights":  # over heads, say
                self.memory.set(out, Lost(tuple(x.shape), None, "it goes over neither keys nor queries"))
            return None
        if isinstance(note, Lost) and note.scores and stage == "weights":
            return f"softmax over {list(x.shape)}", note.why
        like_scores = x.ndim > 2 and x.shape[-1] > 1 and (x.shape[-2] > 1 or x.ndim > 3)
        if axis == x.ndim - 1 and like_scores and stage == "weights":
            self.memory.set(out, Lost(tuple(x.shape), axis))
        return None

    def exp(self, args: Any, kwargs: Any, out: Any) -> Found:
        x = args[0] if args else kwargs.get("input")
        note = self.memory.get(x)
        if isinstance(note, Note) and isinstance(out, Tensor):
            if note.stage == "log":
                self.memory.set(out, note.but(stage="weights"))
                self._owe(note, out.shape)
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
        if isinstance(note, Note) and note.stage == "exp" and isinstance(out, Tensor) and _reduces(args, kwargs, note, x):
            note.held.summed = True
            self.memory.set(out, note.but(stage="total"))
            self._owe_division(note)
        return None

    def logsumexp(self, args: Any, kwargs: Any, out: Any) -> Found:
        x = args[0] if args else kwargs.get("input")
        note = self.memory.get(x)
        if isinstance(note, Note) and note.stage == "scores" and isinstance(out, Tensor) and _reduces(args, kwargs, note, x):
            self.memory.set(out, note.but(stage="lse", held=_saw(note, x)))
        return None

    def logaddexp(self, args: Any, kwargs: Any, out: Any) -> Found:
        """A sink that joins the logarithm of the sum."""
        a, b = _two(args, kwargs)
        if not isinstance(self.memory.get(a), Note):
            a, b = b, a
        note = self.memory.get(a)
        if isinstance(note, Note) and note.stage == "lse" and isinstance(out, Tensor) and isinstance(b, Tensor):
            _add(note.held, a, b.detach())
            self.memory.set(out, note)
        return None

    # Arithmetic -------------------------------------------------------------------------------------------------------
    def times(self, args: Any, kwargs: Any, out: Any) -> Found:
        return self._arithmetic(args, kwargs, out, lambda b: b)

    def over(self, args: Any, kwargs: Any, out: Any) -> Found:
        return self._arithmetic(args, kwargs, out, lambda b: 1 / b if b else None)

    def _arithmetic(self, args: Any, kwargs: Any, out: Any, number: Factor) -> Found:
        a, b = _two(args, kwargs)
        if not isinstance(out, Tensor):
            return None
        over = number(2.0) != 2.0
        one, other = self.memory.get(a), self.memory.get(b)
        if isinstance(one, Note) and one.stage == "inverse" and isinstance(other, Note) and not over:
            a, b, one, other = b, a, other, one
        if isinstance(one, Note) and one.stage in ("exp", "product") and isinstance(other, Note) and other.held is one.held:
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
        if out is a and isinstance(one, Scaled) and one != other:
            self.memory.pop(a)  # no multiple of what it was
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
            if isinstance(one, Lost) or isinstance(other, Lost):
                self.same(args, kwargs, out)
                return
            a, b, one = b, a, other
            if isinstance(one, Note) and sign < 0:  # something minus scores
                one = one.times(-1.0)
        if not isinstance(one, Note):
            return
        if one.stage == "total":
            _add_to_total(one.held, a, b, other if a is args[0] else None, sign * (alpha or 0.0))
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


def _two(args: Any, kwargs: Any) -> tuple[Any, Any]:
    a = args[0] if args else kwargs.get("input")
    return a, args[1] if len(args) > 1 else kwargs.get("other")


def _saw(note: Note, x: Tensor) -> Held:
    return note.held.next(scores=x, row=note.row, key=note.key)


def _add_to_total(held: Held, total: Tensor, b: Any, note: Any, factor: float) -> None:
    """Σ exp(s) + b: a sink of score ln b (softmax1 has b = 1, or e^−max where the maximum was taken from s), or a guard against 0."""
    value = number_of(b, may_wait=True)
    if isinstance(note, Note) or factor <= 0 or value is None and not isinstance(b, Tensor):
        held.unclear = "more than a number was added to the sum of its exponentials"
        return
    with torch.no_grad():
        more = (b.detach() if value is None else torch.as_tensor(value, dtype=total.dtype, device=total.device)) * factor
        if not bool((more > _NOTHING * total.detach()).any()):
            return
        _add(held, total, more.log())


_NOTHING = 2.0**-24  # of a sum: less than f32 can show


@torch.no_grad()
def _add(held: Held, total: Tensor, sink: Tensor) -> None:
    """A sink of that score beside what the row's maximum left of the others. One number for a head, or it is something else: the sum over
    other keys, where a softmax is computed in blocks."""
    saw = held.scores
    if saw is None:
        return
    kept = [1 if axis == held.key else size for axis, size in enumerate(saw.shape)]
    gone = [size for axis, size in enumerate(saw.shape) if axis != held.key]
    sink = sink.detach()
    if [*total.shape] == kept and sink.ndim <= len(kept):
        sink = sink.expand(kept)
    elif [*total.shape] == gone and sink.ndim <= len(gone):
        sink = sink.expand(gone).unsqueeze(held.key)
    else:
        held.unclear = "what was added to the sum of its exponentials could not be followed"
        return
    score = sink if held.shift is None else sink + held.shift.detach()
    rows = score if held.row is None else score.transpose(held.row, -1)
    spread = (rows.amax(-1) - rows.amin(-1)).nan_to_num(nan=0.0)
    if held.added is not None or held.unclear is None and bool((spread > _ROUNDING * score.abs().amax().clamp(min=1.0)).any()):
        held.unclear = "more than a number was added to the sum of its exponentials"
        return
    held.added = sink


_ROUNDING = 1e-2  # of exp and ln, of scores in f16 or bf16


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
    held = Held(q, k, x.lead, x.batch, x.prescale)
    held.before = (x, y)
    return one.but(held=held)


def _reduces(args: Any, kwargs: Any, note: Note, x: Tensor) -> bool:
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    if isinstance(dim, (list, tuple)) and len(dim) == 1:
        dim = dim[0]
    return axis_of(dim, x.ndim) == note.key
