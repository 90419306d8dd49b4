"""What joins the sum of a softmax that is written out: Σ exp(s) + b has a sink of score ln b."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .products import Held, Note, number_of
from .zeros import GUARD

UNCLEAR = "more than a number for each head was added to the sum of its exponentials"
_NOTHING = 2.0**-24  # of a sum: less than f32 can show


def add_number(held: Held, total: Tensor, b: Any, note: Any, factor: float) -> None:
    """A sink of score ln b (softmax1 has b = 1, or e^−max where the maximum was taken from s), or a guard against 0.
    `note` is what is known of b."""
    value = number_of(b, may_wait=True)
    if isinstance(note, Note) or factor <= 0 or value is None and not isinstance(b, Tensor):
        held.unclear = UNCLEAR
        return
    with torch.no_grad():
        more = b.detach().double() if value is None else total.new_tensor(value, dtype=torch.float64)
        counts = factor * more > _NOTHING * total.detach()
        if held.hidden is not None:  # a row that is hidden as a whole has no sum
            counts = counts & (total.detach() != 0)
        if bool(counts.any()):
            little = (factor * more <= GUARD * total.detach()) | (total.detach() == 0)
            add_score(held, total, (factor * more).log(), value is not None and bool(little.all()))


@torch.no_grad()
def add_score(held: Held, total: Tensor, sink: Tensor, guards: bool = False) -> None:
    """A sink of that score beside scores from which the row's maximum was taken. It is the same for all rows of a head,
    but for rounding. Otherwise it is no sink: where a softmax is computed in blocks, other keys' sum is added.
    `guards`: it takes so little of any row that it may be there to keep the sum from 0."""
    saw = held.scores
    if saw is None:
        return
    kept = [1 if axis == held.key else size for axis, size in enumerate(saw.shape)]
    gone = [size for axis, size in enumerate(saw.shape) if axis != held.key]
    sink = sink.detach().double()
    if [*total.shape] == kept and sink.ndim <= len(kept):
        sink = sink.expand(kept)
    elif [*total.shape] == gone and sink.ndim <= len(gone):
        sink = sink.expand(gone).unsqueeze(held.key)
    else:
        held.unclear = "what was added to the sum of its exponentials could not be followed"
        return
    score = sink if held.shift is None else sink + held.shift.detach()
    # b = exp(z − m): z − m is rounded, exp is off by a unit or two, and so is b's share of the sum.
    off = torch.finfo(total.dtype).eps * (4 + sink.abs())
    first = score if held.row is None else score.narrow(held.row, 0, 1)
    if held.added is not None or not bool(((score - first).abs() <= off).all()):
        held.unclear = held.unclear if guards else UNCLEAR
        return
    held.added = sink
