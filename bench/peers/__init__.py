"""One file per competitor. Each has

versions() -> {name: version}
prepare(case, inputs, options) -> a Task, or None where the competitor has no such thing

and does nothing in a timed call that a user of it could do once before.
"""

from dataclasses import dataclass
from typing import Callable


@dataclass
class Task:
    call: Callable[[int], object]  # call(i) computes on the i-th cache, counted round
    outputs: Callable[[], dict]  # of the last call: "o", or "d_q", "d_k", "d_v", as [batch, heads, length, dim] in f32
    how: str  # which of its ways the competitor takes, for the report
    work: float | None = None  # flops or bytes of one call, where the case does not say
    caches: list | None = None  # the (k, v) that calls read in turn, where they are not those of the inputs
