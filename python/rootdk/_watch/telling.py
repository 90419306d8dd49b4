"""What is told of a softmax when its weights meet values, and what is owed until then."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Optional, Sequence

from torch import Tensor

from .heads import Hints
from .learned import is_learned
from .products import EXPONENTIALS_LEFT, WEIGHTS_LEFT, Lost, Note, Owed, plain_data, written
from .shapes import Found, Shapes


class Telling(Shapes):
    """`owes` hears of every softmax over followed scores: it must be told, or named."""

    def __init__(self, hints: Hints, heads: Optional[int] = None, owes: Callable[[Owed], None] = lambda owed: None):
        super().__init__()
        self.hints, self.heads, self.owes = hints, heads, owes

    def _report(self, note: Note) -> Found:
        saw, owed = note.held.scores, note.held.owed
        found = written(note, self.hints, self.heads)
        if owed is not None and found is not None:
            owed.told = True
        note.held.let_go()
        if isinstance(found, str) and saw is not None:
            return f"softmax over {[*saw.shape]}", found
        return None if isinstance(found, str) else found

    def _owe(self, note: Note, shape: Sequence[int], why: str = WEIGHTS_LEFT) -> None:
        """From here on these scores must be told, or named. Of two axes only where queries and keys are both made by
        layers: a table may be one side of a classifier's."""
        held = note.held
        if held.owed is not None:
            held.owed.why = why
            return
        rows = len(shape) > 3 or note.row is None or shape[note.row] > 1
        if (len(shape) > 2 or held.of_layers) and rows and shape[note.key] > 1 and not is_learned(held.k):
            held.owed = Owed(shape, why)
            self.owes(held.owed)

    def _owe_division(self, note: Note) -> None:
        """exp(scores), which are to be divided by their sum. Of a product with what a layer has learned, nobody knows
        yet whether they are its features."""
        held = note.held
        if held.scores is not None and not is_learned(held.q):
            self._owe(note.but(row=held.row, key=held.key), held.scores.shape, EXPONENTIALS_LEFT)

    def _lose(self, out: Tensor, lost: Lost) -> None:
        """What softmax went over is not known; as weights it must be named."""
        owed = None
        if lost.stage == "weights" and not lost.learned and plain_data(out):
            owed = Owed(lost.shape, lost.why)
            self.owes(owed)
        self.memory.set(out, replace(lost, owed=owed))


def like_scores(shape: Sequence[int], key: int) -> bool:
    """Whether scores that were not followed, with keys on that axis, may be of several queries: the first other axis is
    taken for the batch's."""
    others = [size for axis, size in enumerate(shape) if axis != key]
    return len(shape) > 2 and shape[key] > 1 and (len(shape) > 3 or others[-1] > 1)
