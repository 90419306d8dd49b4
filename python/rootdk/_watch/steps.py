"""One step after another from a product to softmax and on to the second product: what each torch function makes of a
tensor that is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Optional, Sequence

from torch import Tensor

from . import einsum, sinks
from .arithmetic import Arithmetic, saw, turned, two_of
from .dims import dims_of, unsaid
from .heads import made_by_einsum, made_by_product
from .learned import is_learned
from .products import Held, Lost, Note, Scaled, number_of, plain_data
from .shapes import Found, axis_of
from .telling import like_scores
from .zeros import is_sum_of

OVER_SCORES = "it was written over its own scores"


class Trail(Arithmetic):
    """What is known of the tensors of one thread. Each step is called with a function's arguments and its result."""

    def scaled(self, *tensors: Any) -> float:
        """What these were multiplied with."""
        number = 1.0
        for x in tensors:
            note = self.memory.get(x)
            if isinstance(note, Scaled) and not note.part:
                number *= note.number
        return number

    def passed(self, args: Any, kwargs: Any, out: Any) -> Found:
        """What leaves neither scores nor weights; it may leave learned axes."""
        return None

    # Products ---------------------------------------------------------------------------------------------------------
    def matmul(self, args: Any, kwargs: Any, out: Any) -> Found:
        sides = [*args, *(kwargs[name] for name in ("input", "other", "tensor2", "mat2") if name in kwargs)][:2]
        if len(sides) != 2 or not isinstance(out, Tensor) or not all(isinstance(x, Tensor) for x in sides):
            return None
        a, b = sides
        axes = (a.ndim - 1, max(b.ndim - 2, 0))
        found = self._times_values(sides, [{axis} for axis in axes], out)
        if found is None and not any(self._mixed_by_product(x, axis, out) for x, axis in zip(sides, axes)):
            self._product_of_two(a, b, out)
        return found

    def addmm(self, args: Any, kwargs: Any, out: Any) -> Found:
        """Of a layer."""
        if isinstance(out, Tensor):
            self.learned.put(out, (out.ndim - 1,))
        return None

    def of_layer(self, out: Any) -> None:
        """What a layer gave whose product was computed out of sight, as tensor parallel layers compute it."""
        if plain_data(out) and not self.learned.marks(out).axes:
            self.learned.put(out, (out.ndim - 1,))

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
            return self._summed_by(equation, tensors[0], out)
        axes = [{*einsum.summed_axes(equation, tensors, i)} for i in range(len(tensors))]
        found = self._times_values(tensors, axes, out, lambda x: einsum.has_own_axis(equation, tensors, x))
        if found is not None or self._mixed_by_einsum(equation, tensors, out):
            return found
        if self._times_by_einsum(equation, tensors, out) or len(tensors) != 2:
            return None
        a, b = tensors
        product = einsum.product_of(equation, a, b) if self._may_be_product(a, b, out) else None
        if product is not None:
            q, k, row, key = product
            lead = [out.shape[i] for i in range(out.ndim) if i not in (row, key)]
            made = made_by_einsum(self.learned, equation, tensors, lead, row, key)
            held = Held(q, k, lead, None, self.scaled(*tensors), made, self._of_layers(tensors))
            self._forget_operands(tensors)
            self.memory.set(out, Note(held, "scores", row, key))
        return None

    def _product_of_two(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        if not self._may_be_product(a, b, out) or a.ndim < 2 or b.ndim < 2:
            return
        if (b.ndim == 2) != (a.ndim == 2) or a.ndim == 2 and (is_learned(a) or is_learned(b)):
            # a layer's weights, on either side
            table = a.ndim == 2 and (b.ndim > 2 or is_learned(a))
            self.learned.put(out, (out.ndim - (2 if table else 1),))
            return
        batch = None
        for x in (a, b):
            note = self.memory.get(x)
            if isinstance(note, Scaled) and note.folded is not None and note.folded[0] == 0 and x.ndim == 3:
                batch = note.folded[1]
        made = made_by_product(self.learned, (a, b), out.shape[:-2])
        held = Held(a, b, out.shape[:-2], batch, self.scaled(a, b), made, self._of_layers((a, b)))
        self._forget_operands((a, b))
        self.memory.set(out, Note(held, "scores", out.ndim - 2, out.ndim - 1))

    def _of_layers(self, sides: Sequence[Tensor]) -> bool:
        return all(self.learned.marks(x).axes for x in sides)

    def _may_be_product(self, a: Tensor, b: Tensor, out: Any) -> bool:
        return (
            all(plain_data(x) for x in (out, a, b))
            and out.ndim >= 2
            and out.numel() > 0
            and out.is_floating_point()
            and out is not a
            and out is not b
            and not any(isinstance(note := self.memory.get(x), Note) and note.stage != "scores" for x in (a, b))
        )

    def _forget_operands(self, sides: Sequence[Tensor]) -> None:
        """Scores that are multiplied are none: with their notes, a chain of products would keep every link of it."""
        for x in sides:
            if isinstance(self.memory.get(x), Note):
                self.memory.pop(x)

    def _times_values(
        self, sides: Sequence[Any], axes: Sequence[set[int]], out: Any, own: Optional[Callable[[Tensor], bool]] = None
    ) -> Found:
        """If one side holds weights and the sum goes over their keys. `own`: whether a side has an axis that is nobody
        else's, as weights have their queries; those of a router have not."""
        for x, summed in zip(sides, axes):
            note = self.memory.get(x)
            if isinstance(note, Note) and note.key in summed:
                if note.stage == "weights":
                    return self._report(note)
                if note.stage == "exp" and isinstance(out, Tensor):
                    self._weighed(note, out)
            elif isinstance(note, Note) and note.stage == "exp" and note.row in summed:
                over = turned(note)
                if over is not None and isinstance(out, Tensor):
                    self._weighed(over, out)
            elif isinstance(note, Note) and note.stage == "weights" and note.row in summed:
                if note.held.owed is not None:
                    note.held.owed.why = "it goes over queries, and its weights are summed over keys, or vice versa"
            elif (
                isinstance(note, Lost)
                and note.stage == "weights"
                and (note.key is None or note.key in summed)
                and all(y.ndim > 2 for y in sides)
            ):
                self.memory.pop(x)
                if note.owed is not None:
                    note.owed.told = True
                if own is None or own(x):
                    return f"softmax over {list(note.shape)}", note.why
        return None

    def _weighed(self, note: Note, out: Tensor) -> None:
        """Exponentials times values; times ones, that is their sum."""
        self.memory.set(out, note.but(stage="product"))
        self._is_total(note, out)

    def _is_total(self, note: Note, out: Any) -> None:
        if isinstance(out, Tensor) and is_sum_of(note.held, out):
            self.memory.set(out, note.but(stage="total"))

    def part(self, args: Any, kwargs: Any, out: Any) -> Found:
        """Of a product with values that have a column of ones."""
        super().part(args, kwargs, out)
        note = self.memory.get(out)
        if isinstance(note, Note) and note.stage == "product":
            self._is_total(note, out)
        return None

    # Softmax ----------------------------------------------------------------------------------------------------------
    def softmax(self, args: Any, kwargs: Any, out: Any) -> Found:
        return self._softmax(args, kwargs, out, "weights")

    def log_softmax(self, args: Any, kwargs: Any, out: Any) -> Found:
        return self._softmax(args, kwargs, out, "log")

    def softmin(self, args: Any, kwargs: Any, out: Any) -> Found:
        return self._softmax(args, kwargs, out, "weights", unclear="it is F.softmin")

    def gumbel_softmax(self, args: Any, kwargs: Any, out: Any) -> Found:
        logits = args[0] if args else kwargs.get("logits")
        dim = dims_of(args, kwargs, 4, -1)
        return self._softmax((logits, dim), {}, out, "weights", unclear="it is F.gumbel_softmax, which draws noise")

    def masked_softmax(self, args: Any, kwargs: Any, out: Any) -> Found:
        dim = dims_of(args, kwargs, 2)
        x = args[0] if args else kwargs.get("input")
        why = "its mask is an argument of torch._masked_softmax"
        return self._softmax((x, -1 if dim is None else dim), {}, out, "weights", unclear=why)

    def sparse_softmax(self, args: Any, kwargs: Any, out: Any) -> Found:
        return self._softmax(args, kwargs, out, "weights", unclear="it is of sparse tensors")

    def _softmax(self, args: Any, kwargs: Any, out: Any, stage: str, unclear: Optional[str] = None) -> Found:
        """`unclear`: why it cannot be told, though its scores were followed."""
        x = args[0] if args else kwargs.get("input")
        if not isinstance(out, Tensor) or not isinstance(x, Tensor):
            return None
        dim = dims_of(args, kwargs)
        axis = unsaid(x.ndim) if dim is None else axis_of(dim, x.ndim)
        note = self.memory.get(x)
        if out is x:
            self.memory.pop(x)
            unclear = unclear or OVER_SCORES
        if isinstance(note, Note) and note.stage == "scores" and axis is not None:
            over = _over(note, axis)
            if over is not None:
                held = saw(over, x)
                seen = over.but(stage=stage, held=held if unclear is None else held.next(unclear=unclear))
                self.memory.set(out, seen)
                if stage == "weights":
                    self._owe(seen, x.shape)
            else:  # over heads, say
                self._lose(out, Lost(tuple(x.shape), None, "it goes over neither keys nor queries", stage))
            return None
        if isinstance(note, Lost) and note.stage == "scores" and stage == "weights":
            return f"softmax over {list(x.shape)}", note.why
        if axis is not None and like_scores(x.shape, axis):
            axes = self.learned.axes(x)
            learned = is_learned(x) or axis in axes or dim is None and bool(axes)
            self._lose(out, Lost(tuple(x.shape), axis, stage=stage, learned=learned))
        return None

    def exp(self, args: Any, kwargs: Any, out: Any) -> Found:
        x = args[0] if args else kwargs.get("input")
        note = self.memory.get(x)
        if isinstance(note, Note) and isinstance(out, Tensor):
            if note.stage == "log":
                self.memory.set(out, note.but(stage="weights"))
                self._owe(note, out.shape)
            elif note.stage == "scores":
                self._exponentials(note, x, out, OVER_SCORES if out is x else None)
            elif note.stage == "exp" and out is x:  # before_exp_ knows
                self._owe_division(note)
        elif isinstance(note, Lost) and isinstance(out, Tensor):
            if note.stage == "log":
                self._lose(out, replace(note, stage="weights"))
            elif note.stage == "scores":
                self.memory.set(out, replace(note, stage="exp"))
        return None

    def exp2(self, args: Any, kwargs: Any, out: Any) -> Found:
        return self._powers(args[0] if args else kwargs.get("input"), out, "it is written out with powers of two")

    def expm1(self, args: Any, kwargs: Any, out: Any) -> Found:
        return self._powers(args[0] if args else kwargs.get("input"), out, "it is written out with expm1")

    def power(self, args: Any, kwargs: Any, out: Any) -> Found:
        x = args[1] if len(args) > 1 else kwargs.get("exponent")
        return self._powers(x, out, "it is written out with powers")

    def rpower(self, args: Any, kwargs: Any, out: Any) -> Found:
        return self._powers(args[0], out, "it is written out with powers")

    def _powers(self, x: Any, out: Any, unclear: str) -> Found:
        note = self.memory.get(x)
        if isinstance(note, Note) and note.stage == "scores" and isinstance(out, Tensor):
            self._exponentials(note, x, out, unclear)
        return None

    def _exponentials(self, note: Note, x: Tensor, out: Tensor, unclear: Optional[str]) -> None:
        held = saw(note, x)
        seen = note.but(stage="exp", held=held if unclear is None else held.next(unclear=unclear))
        self.memory.set(out, seen)
        self._owe_division(seen)

    def before_exp_(self, x: Any) -> None:
        """Scores are about to turn into their exponentials in place: those that softmax saw must be kept apart."""
        note = self.memory.get(x)
        if isinstance(note, Note) and note.stage == "scores":
            self.memory.set(x, note.but(stage="exp", held=saw(note, x.detach().clone())))

    def sum(self, args: Any, kwargs: Any, out: Any) -> Found:
        note = self._over_keys(args[0] if args else kwargs.get("input"), dims_of(args, kwargs))
        if note is not None and isinstance(out, Tensor):
            self.memory.set(out, note.but(stage="total" if note.stage == "exp" else "mass"))
        return None

    def normalized(self, args: Any, kwargs: Any, out: Any) -> Found:
        """By F.normalize(p=1)."""
        note = self._over_keys(args[0] if args else kwargs.get("input"), dims_of(args, kwargs, 2, 1))
        p = args[1] if len(args) > 1 else kwargs.get("p", 2.0)
        return self._divided(note, note, out, out) if note is not None and isinstance(out, Tensor) and p == 1 else None

    def _summed_by(self, equation: str, x: Tensor, out: Any) -> Found:
        """By einsum of one tensor."""
        read = einsum.letters(equation, (x.ndim,))
        gone = [axis for axis, name in enumerate(read[0][0]) if name not in read[1]] if read is not None else []
        return self.sum((x, gone[0]), {}, out) if len(gone) == 1 else None

    def _over_keys(self, x: Any, dims: Any) -> Optional[Note]:
        """Exponentials or weights that are summed over that axis, if it is the keys'. Exponentials have not said which
        of two axes that is before."""
        note = self.memory.get(x)
        if not isinstance(note, Note) or note.stage not in ("exp", "weights"):
            return None
        if _is_key(dims, note, x):
            return note
        over = turned(note) if note.stage == "exp" else None
        return over if over is not None and _is_key(dims, over, x) else None

    def logarithm(self, args: Any, kwargs: Any, out: Any) -> Found:
        """Of a sum of exponentials."""
        note = self.memory.get(args[0] if args else kwargs.get("input"))
        if isinstance(note, Note) and note.stage == "total" and isinstance(out, Tensor):
            self.memory.set(out, note.but(stage="lse"))
        return None

    def logsumexp(self, args: Any, kwargs: Any, out: Any) -> Found:
        x = args[0] if args else kwargs.get("input")
        note = self.memory.get(x)
        if (
            isinstance(note, Note)
            and note.stage == "scores"
            and isinstance(out, Tensor)
            and _is_key(dims_of(args, kwargs), note, x)
        ):
            self.memory.set(out, note.but(stage="lse", held=saw(note, x)))
        return None

    def logaddexp(self, args: Any, kwargs: Any, out: Any) -> Found:
        """A sink that joins the logarithm of the sum."""
        a, b = two_of(args, kwargs)
        if not isinstance(self.memory.get(a), Note):
            a, b = b, a
        note = self.memory.get(a)
        if isinstance(note, Note) and note.stage == "lse" and isinstance(out, Tensor) and isinstance(b, Tensor):
            sinks.add_score(note.held, a, b.detach())
            self.memory.set(out, note)
        return None


def _over(note: Note, axis: int) -> Optional[Note]:
    """These scores for a softmax over that axis; if it is the one taken for the queries', it is the keys'."""
    if axis == note.key:
        return note
    if axis != note.row or note.held.q is None or note.held.k is None:
        return None
    held = note.held.next(q=note.held.k.transpose(-1, -2), k=note.held.q.transpose(-1, -2))
    return note.but(held=held, row=note.key, key=note.row)


def _is_key(dims: Any, note: Note, x: Tensor) -> bool:
    if isinstance(dims, (list, tuple)) and len(dims) == 1:
        dims = dims[0]
    return axis_of(dims, x.ndim) == note.key
