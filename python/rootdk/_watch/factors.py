"""What an axis is made of, the outermost first: batch · heads is not heads · batch. A factor is of what was learned
(features, and heads, which are some of them) or of all else (the batch, positions)."""

from __future__ import annotations

import math
from typing import NamedTuple, Optional, Sequence


class Factor(NamedTuple):
    size: int
    learned: Optional[bool]  #: None: nothing tells


Factors = tuple[Factor, ...]


def simplified(factors: Sequence[Factor]) -> Factors:
    """Neighbours of one kind are one. Two of which nothing is known are not."""
    out: list[Factor] = []
    for factor in factors:
        if out and out[-1].learned == factor.learned is not None:
            factor = Factor(out.pop().size * factor.size, factor.learned)
        if factor.size > 1:
            out.append(factor)
    return tuple(out)


def is_learned_only(factors: Factors) -> bool:
    return bool(factors) and all(factor.learned for factor in factors)


def resized(factors: Factors, size: int) -> Factors:
    """Of some elements of an axis, or more of them. Of several factors nobody knows which are left."""
    if math.prod(factor.size for factor in factors) == size:
        return factors
    return (Factor(size, factors[0].learned if len(factors) == 1 else None),)


def regrouped(before: Sequence[Factors], after: Sequence[int]) -> list[Factors]:
    """Of the axes that a reshape makes of these."""
    left = [factor for factors in before for factor in factors if factor.size > 1]
    out: list[Factors] = []
    for size in after:
        axis: list[Factor] = []
        while size > 1 and left:
            factor = left.pop(0)
            taken = math.gcd(factor.size, size)
            if taken < min(factor.size, size):  # divided across: the rest is of no kind
                kinds = {other.learned for other in (*axis, factor, *left)}
                kind = kinds.pop() if len(kinds) == 1 else None
                return [*out, *((Factor(n, kind),) for n in after[len(out) :])]
            axis.append(Factor(taken, factor.learned))
            size //= taken
            if taken < factor.size:
                left.insert(0, Factor(factor.size // taken, factor.learned))
        out.append(simplified(axis))
    return out
