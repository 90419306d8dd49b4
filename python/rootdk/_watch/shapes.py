"""What views, permutations and parts of a tensor leave of what is known of it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Optional, Sequence, Union

from torch import Tensor

from . import einsum
from .learned import Learned
from .products import Lost, Memory, Note, Scaled, Written

Found = Union[Written, tuple[str, str], None]  #: attention, or what looks like it and why it was not followed

#: stages at which a tensor's place among others no longer matters
_TOKENS = ("total", "mass", "inverse", "lse", "product")


class Shapes:
    """The steps that move elements and change none. Each is called with a function's arguments and its result."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.learned = Learned()
        self.doubt: Optional[str] = None  #: about the fused call that is being shown to a looker

    def reshape(self, args: Any, kwargs: Any, out: Any) -> Found:
        x = args[0] if args else kwargs.get("input")
        if not isinstance(x, Tensor) or not isinstance(out, Tensor) or out is x:
            return None
        note = self.memory.get(x)
        if isinstance(note, Note):
            if note.stage in _TOKENS:
                self.memory.set(out, note)
            elif (moved := _reshaped(note, x, out)) is not None:
                self.memory.set(out, moved)
            else:
                self.loose(args, kwargs, out)
            return None
        if isinstance(note, Lost):
            kept = note.key == x.ndim - 1 and x.shape[-1] == out.shape[-1]
            self.memory.set(out, replace(note, key=out.ndim - 1 if kept else None))
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
        if isinstance(x, Tensor) and len(dims) == 2:
            a, b = (axis_of(dim, x.ndim) for dim in dims)
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
        if isinstance(x, Tensor):
            order = [axis_of(dim, x.ndim) for dim in dims]
            if None not in order:
                self._permuted(x, order, out)
        return None

    def movedim(self, args: Any, kwargs: Any, out: Any) -> Found:
        x = args[0] if args else kwargs.get("input")
        ends = [*args[1:3], *(kwargs[name] for name in ("source", "destination") if name in kwargs)]
        if isinstance(x, Tensor) and len(ends) == 2:
            source, to = ([dim % x.ndim for dim in ([end] if isinstance(end, int) else end)] for end in ends)
            order = [axis for axis in range(x.ndim) if axis not in source]
            for at, axis in sorted(zip(to, source)):
                order.insert(at, axis)
            self._permuted(x, order, out)
        return None

    def _permuted_by(self, equation: str, x: Tensor, out: Any) -> None:
        """einsum of one tensor, which is how some write permute."""
        read = einsum.letters(equation, (x.ndim,))
        if read is not None and sorted(read[0][0]) == sorted(read[1]):
            self._permuted(x, [read[0][0].index(name) for name in read[1]], out)

    def _permuted(self, x: Tensor, order: Sequence[Any], out: Any) -> None:
        note = self.memory.get(x)
        self.learned.permuted(x, order, out)
        if not isinstance(out, Tensor) or note is None or out is x:
            return
        if isinstance(note, Note):
            moved = moved_note(note, x, order)
            if moved is not None:
                self.memory.set(out, moved)
        elif isinstance(note, Lost):
            self.memory.set(out, replace(note, key=None if note.key is None else order.index(note.key)))
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
            else:
                self.memory.set(out, note if note.folded is None else Scaled(note.number, note.part))
        elif isinstance(note, Lost):
            self.memory.set(out, replace(note, key=note.key if out.ndim == x.ndim else None))
        elif note.stage in _TOKENS:
            if out.numel() == x.numel() or note.stage == "product":
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
        """Weights whose keys are somewhere else now: they can only be named. Queries and keys are multiples of the same
        number wherever they lie."""
        note = self.memory.get(args[0] if args else kwargs.get("input"))
        if isinstance(note, Lost) and isinstance(out, Tensor):
            self.memory.set(out, replace(note, key=None))
        elif isinstance(note, Scaled) and isinstance(out, Tensor):
            self.memory.set(out, Scaled(note.number, note.part))
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
        axis = axis_of(args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis", 0)), out.ndim)
        for i, note in enumerate(notes):
            sink = tensors[1 - i]
            if isinstance(note, Note) and note.stage == "scores" and axis == note.key and sink.shape[axis] == 1:
                if not isinstance(notes[1 - i], (Note, Lost)) and note.held.sink is None and note.held.shift is None:
                    held = note.held.next(bare=tensors[i], sink=sink, sink_first=i == 1)
                    self.memory.set(out, note.but(held=held))
        return None


def axis_of(dim: Any, ndim: int) -> Optional[int]:
    return dim % ndim if isinstance(dim, int) and ndim and -ndim <= dim < ndim else None


def _reshaped(note: Note, x: Tensor, out: Tensor) -> Optional[Note]:
    """Lead axes may be joined and divided; queries and keys stay last."""
    note = note.plain()
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


def moved_note(note: Note, x: Tensor, order: Sequence[int]) -> Optional[Note]:
    """If lead axes change places, those of q and k do, too."""
    if note.stage in _TOKENS:
        return note
    row = None if note.row is None else order.index(note.row)
    key = order.index(note.key)
    held = note.plain().held
    leads = [axis for axis in range(x.ndim) if axis not in (note.row, note.key)]
    moved = [leads.index(axis) for axis in order if axis not in (note.row, note.key)]
    if moved != sorted(moved) and note.stage == "scores":
        sizes = tuple(x.shape[axis] for axis in leads)
        if sizes != held.lead or held.q is None or held.k is None:
            return None
        n = len(sizes)
        if held.q.ndim != n + 2 or held.k.ndim != n + 2:
            return None
        held = held.next(
            q=held.q.permute(*moved, n, n + 1),
            k=held.k.permute(*moved, n, n + 1),
            lead=tuple(sizes[i] for i in moved),
            made=None if held.made is None else tuple(held.made[i] for i in moved),
            batch=None,
        )
    split = note.split if moved == sorted(moved) else None
    return note.but(held=held, row=row, key=key, split=split)


def _folded(before: Sequence[int], after: Sequence[int]) -> Optional[tuple[int, int]]:
    """Where a reshape joins batch and heads: (axis, batch)."""
    before, after = tuple(before), tuple(after)
    for at in (0, 1):
        joined = (*before[:at], math.prod(before[at : at + 2]), *before[at + 2 :])
        if len(before) == len(after) + 1 >= 4 and after == joined:
            return at, before[at]
    if len(before) == len(after) == 3 and before[0] == after[0] and after[1] > before[1] > 0 == after[1] % before[1]:
        return 1, before[1]  # [len, batch, heads · dim] → [len, batch · heads, dim]
    return None
