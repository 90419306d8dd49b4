"""What mixes heads, or leaves them alone: linear layers and convolutions on scores and on weights (talking heads).

Mixed weights are still those of one softmax, whose rows are what a watch shows. Mixed scores are no head's product
any more.
"""

from __future__ import annotations

from typing import Any, Optional

from torch import Tensor

from . import einsum
from .products import Lost, Note
from .shapes import Found
from .telling import Telling

MIXED = "heads are mixed before it, so that its rows belong to no head's q·k"


class Mixing(Telling):
    """Steps that sum over heads. Each is called with a function's arguments and its result."""

    def linear(self, args: Any, kwargs: Any, out: Any) -> Found:
        x = args[0] if args else kwargs.get("input")
        note = self.memory.get(x)
        if isinstance(out, Tensor):
            self._made(note, out, out.ndim - 1)
        if isinstance(note, (Note, Lost)) and isinstance(out, Tensor):
            if isinstance(note, Note) and note.stage == "weights" and note.key == x.ndim - 1:
                return self._report(note)  # values that are learned
            self._mix(note, x, x.ndim - 1, out)
        return None

    def convolution(self, args: Any, kwargs: Any, out: Any) -> Found:
        """One of single points, with heads as channels."""
        x = args[0] if args else kwargs.get("input")
        weight = args[1] if len(args) > 1 else kwargs.get("weight")
        note = self.memory.get(x)
        if isinstance(out, Tensor) and isinstance(weight, Tensor):
            self._made(note, out, out.ndim - weight.ndim + 1)
        if isinstance(note, (Note, Lost)) and isinstance(out, Tensor) and isinstance(weight, Tensor):
            if all(size == 1 for size in weight.shape[2:]) and out.ndim == x.ndim:
                self._mix(note, x, x.ndim - weight.ndim + 1, out)
            elif isinstance(note, Note) and note.stage == "scores":
                why = "scores of several keys are mixed before it"
                self.memory.set(out, Lost(tuple(out.shape), None, why, "scores"))
        return None

    def spread_convolution(self, args: Any, kwargs: Any, out: Any) -> Found:
        """A transposed one."""
        weight = args[1] if len(args) > 1 else kwargs.get("weight")
        if isinstance(out, Tensor) and isinstance(weight, Tensor):
            self._made(self.memory.get(args[0] if args else kwargs.get("input")), out, out.ndim - weight.ndim + 1)
        return None

    def _made(self, note: Any, out: Tensor, axis: int) -> None:
        """By a layer, that axis, unless of scores: those are still of queries and keys."""
        if not isinstance(note, (Note, Lost)) or note.stage != "scores":
            self.learned.put(out, (axis,))

    def _mixed_by_product(self, x: Any, axis: int, out: Any) -> bool:
        """Whether a product sums over an axis of scores or weights that is neither their queries' nor their keys'."""
        note = self.memory.get(x)
        if not isinstance(note, Note) or note.stage not in ("scores", "weights") or axis in (note.row, note.key):
            return False
        if note.row is None and note.stage == "scores":
            return False
        self._mix(note, x, axis, out)
        return True

    def _mixed_by_einsum(self, equation: str, tensors: list[Tensor], out: Any) -> bool:
        """The same, wherever the result has its axes."""
        read = einsum.letters(equation, tuple(x.ndim for x in tensors))
        for i, x in enumerate(tensors if read is not None and isinstance(out, Tensor) else ()):
            note = self.memory.get(x)
            if not isinstance(note, Note) or note.stage not in ("scores", "weights") or note.row is None:
                continue
            assert read is not None
            row, key = read[0][i][note.row], read[0][i][note.key]
            result, summed = read[1], einsum.summed_axes(equation, tensors, i)
            if not summed or row not in result or key not in result:
                continue
            if note.stage == "weights":
                self.memory.set(out, note.but(row=result.index(row), key=result.index(key)))
            else:
                self.memory.set(out, Lost(tuple(out.shape), None, MIXED, "scores"))
            return True
        return False

    def _mix(self, note: Any, x: Tensor, axis: int, out: Tensor) -> None:
        """A sum over one axis, which has its place in the result."""
        if isinstance(note, Lost):
            if note.stage == "scores" and out.ndim == x.ndim:
                self.memory.set(out, note)
            return
        if axis in (note.row, note.key) or out.ndim != x.ndim or not _kept(x, out, (note.row, note.key)):
            return
        if note.stage == "weights":
            self.memory.set(out, note)
        elif note.stage == "scores":
            self.memory.set(out, Lost(tuple(out.shape), None, MIXED, "scores"))


def _kept(x: Tensor, out: Tensor, axes: tuple[Optional[int], ...]) -> bool:
    return all(axis is None or x.shape[axis] == out.shape[axis] for axis in axes)
