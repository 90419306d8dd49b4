"""Which axes of scores are the batch, which are heads, and which are positions, as the windows of local attention are.

Scores [*lead, len_q, len_kv] do not say so themselves. How q and k were made does: heads are features that lie on axes
of their own, or were joined with the batch in one order or the other. Where that is not known, what the module was
given and how many heads it says it has may tell, but not always surely.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Callable, Iterable, Optional, Sequence

from torch import Tensor

from . import einsum
from .factors import Factor, Factors

if TYPE_CHECKING:
    from .learned import Learned

Made = tuple[Factors, ...]  #: of each lead axis, what it is made of

#: What modules and their configs call the number of query heads.
NAMES = (
    "num_heads",
    "n_heads",
    "n_head",
    "num_head",
    "nhead",
    "heads",
    "num_attention_heads",
    "n_attn_heads",
    "attention_heads",
)


@dataclasses.dataclass(frozen=True)
class Hints:
    """What is known of the module that is running."""

    tensors: Callable[[], Iterable[Tensor]] = tuple  #: what it was called with
    heads: Callable[[], Iterable[int]] = tuple  #: how many heads it says it has


def counts_of(module: object) -> list[int]:
    """How many heads a module says it has."""
    owners = (module, getattr(module, "config", None))
    found = (getattr(owner, name, None) for owner in owners for name in NAMES)
    return [count for count in found if isinstance(count, int) and not isinstance(count, bool) and count > 0]


@dataclasses.dataclass(frozen=True)
class Split:
    """How lead axes are arranged as [batch, heads]."""

    batch: int
    heads: int
    sizes: Optional[tuple[int, ...]] = None  #: of lead axes that are unfolded first; None: none are
    axes: Optional[tuple[int, ...]] = None  #: that are heads, after unfolding; None: as they lie
    sure: bool = False  #: whether more than sizes tells so

    def arrange(self, x: Tensor, lead: Sequence[int]) -> Tensor:
        """x [*lead, rows, columns] → [batch, heads, rows, columns]."""
        rest = x.shape[-2:]
        x = x.expand(*lead, *rest)
        if self.sizes is not None:
            x = x.reshape(*self.sizes, *rest)
        if self.axes is not None:
            x = x.permute(*self._order(x.ndim - 2), x.ndim - 2, x.ndim - 1)
        return x.reshape(self.batch, self.heads, *rest)

    def put_back(self, x: Tensor, lead: Sequence[int]) -> Tensor:
        """x [batch, heads, rows, columns] → [*lead, rows, columns]."""
        rest = x.shape[-2:]
        sizes = tuple(lead) if self.sizes is None else self.sizes
        if self.axes is not None:
            order = self._order(len(sizes))
            x = x.reshape(*(sizes[axis] for axis in order), *rest)
            x = x.permute(*(order.index(axis) for axis in range(len(sizes))), x.ndim - 2, x.ndim - 1)
        return x.reshape(*lead, *rest)

    def _order(self, count: int) -> list[int]:
        assert self.axes is not None
        return [*(axis for axis in range(count) if axis not in self.axes), *self.axes]

    @property
    def doubt(self) -> Optional[str]:
        """Why heads may be others than these, where that makes a difference."""
        if self.sure or self.batch == 1 == self.heads:
            return None
        return f"that its scores are of {self.heads} heads, {self.batch} times, is a guess by sizes"


# How they were made ---------------------------------------------------------------------------------------------------
def made_by_product(learned: Learned, sides: Sequence[Tensor], lead: Sequence[int]) -> Optional[Made]:
    """Of a product whose sides' axes, but for the last two, broadcast to these."""
    places = [[axis if (axis := at - len(lead) + x.ndim - 2) >= 0 else None for at in range(len(lead))] for x in sides]
    return _made(learned, sides, places, lead)


def made_by_einsum(
    learned: Learned, equation: str, sides: Sequence[Tensor], lead: Sequence[int], row: Optional[int], key: int
) -> Optional[Made]:
    read = einsum.letters(equation, tuple(x.ndim for x in sides))
    if read is None:
        return None
    names = [name for at, name in enumerate(read[1]) if at not in (row, key)]
    places = [[axes.index(name) if name in axes else None for name in names] for axes in read[0]]
    return _made(learned, sides, places, lead)


def _made(
    learned: Learned, sides: Sequence[Tensor], places: Sequence[Sequence[Optional[int]]], lead: Sequence[int]
) -> Optional[Made]:
    if not learned.notes:
        return None
    out = []
    for at, size in enumerate(lead):
        found = {
            factors
            for x, axes in zip(sides, places)
            if (axis := axes[at]) is not None and x.shape[axis] == size
            if (factors := learned.factors(x, axis)) is not None
        }
        telling = {factors for factors in found if any(factor.learned for factor in factors)} or {
            factors for factors in found if all(factor.learned is False for factor in factors)
        }
        out.append(telling.pop() if len(telling) == 1 else (Factor(size, None),))
    known = any(learned.marks(x).axes for x in sides)
    return tuple(out) if known else None


def tells(made: Optional[Made]) -> bool:
    """Whether that says more than that nothing of it was learned: one layer for all heads learns none of them."""
    return made is not None and any(factor.learned is not False for factors in made for factor in factors)


def split_by(made: Made, dim: int, hints: Hints) -> Optional[Split]:
    """None where it is left open whether a factor is heads."""
    factors = [factor for axis in made for factor in axis]
    heads = math.prod(factor.size for factor in factors if factor.learned)
    unknown = [factor for factor in factors if factor.learned is None and factor.size > 1]
    if unknown:
        counts = {*hints.heads()} | _by_width(dim, hints)
        if heads * math.prod(factor.size for factor in unknown) in counts and len(unknown) == 1:
            heads *= unknown[0].size
            factors = [factor._replace(learned=True) if factor in unknown else factor for factor in factors]
        elif heads not in counts:
            return None
    axes = tuple(at for at, factor in enumerate(factors) if factor.learned)
    sizes = tuple(factor.size for factor in factors)
    return Split(math.prod(sizes) // heads, heads, sizes, axes, sure=True)


# What sizes say -------------------------------------------------------------------------------------------------------
def split_of(
    lead: Sequence[int], k: Tensor, dim: int, len_q: int, batch: Optional[int], hints: Hints
) -> Optional[Split]:
    """Of scores whose lead axes are these. `batch`: where a reshape has joined it with heads. None if nothing tells."""
    lead = tuple(lead)
    if not lead:
        return Split(1, 1, sure=True)
    counts = {*hints.heads()}
    if len(lead) == 1:
        found = batch if batch is not None else batch_of(lead[0], len_q, hints.tensors())
        if found is None or found < 1 or lead[0] % found:
            return Split(lead[0], 1, sure=counts == {1})
        return Split(found, lead[0] // found, sure=found == 1 or found == lead[0] and counts <= {1})
    if len(lead) == 2:
        return _windows(lead, dim, len_q, hints) or of_two(lead, dim, hints)
    if len(lead) == 3 and k.ndim == 5 and any(k.shape[axis] == 1 or k.stride(axis) == 0 for axis in (1, 2)):
        heads = lead[1] * lead[2]
        return Split(lead[0], heads, sure=heads in counts)  # [batch, heads_kv, group] or [batch, group, heads_kv]
    for known in (set(hints.heads()), _by_width(dim, hints)):
        axes: list[tuple[int, ...]] = [(i,) for i in range(1, len(lead)) if lead[i] in known]
        if not axes:  # [heads_kv, group]
            axes = [(i, i + 1) for i in range(1, len(lead) - 1) if lead[i] * lead[i + 1] in known]
        if len(axes) == 1:
            heads = math.prod(lead[i] for i in axes[0])
            return Split(math.prod(lead) // heads, heads, axes=axes[0], sure=lead[0] not in known)
    return None


def of_two(lead: Sequence[int], dim: int, hints: Hints) -> Optional[Split]:
    """[batch, heads], as most have it, unless the module says that the first is heads."""
    counts = {*hints.heads()}
    if counts and lead[1] not in counts and lead[0] in counts and lead[0] > 1:
        return None
    counts |= _by_width(dim, hints)
    return Split(lead[0], lead[1], sure=lead[0] == 1 or lead[1] in counts and lead[0] not in counts)


def _windows(lead: tuple[int, ...], dim: int, len_q: int, hints: Hints) -> Optional[Split]:
    """If the second of two lead axes counts windows, which together are as long as what the module was given; heads are
    then in the first."""
    heads = {*hints.heads()} | _by_width(dim, hints)
    if lead[1] in heads:
        return None
    for x in hints.tensors():
        given, length = _batch_and_length(x, dim)
        if given and length > len_q and length <= lead[1] * len_q < length + len_q and lead[0] % given == 0:
            inner = lead[0] // given
            if inner == 1 or inner in heads:
                return Split(given * lead[1], inner, (given, inner, lead[1]), (1,))
            return None
    return None


def _batch_and_length(x: Tensor, dim: int) -> tuple[int, int]:
    if x.ndim == 3 and x.is_floating_point():  # [batch, len, width]
        return x.shape[0], x.shape[1]
    if x.ndim == 4 and x.shape[-1] == dim:  # [batch, heads, len, dim]
        return x.shape[0], x.shape[2]
    return 0, 0


def _by_width(dim: int, hints: Hints) -> set[int]:
    """How many vectors of `dim` numbers there are in what the module was given."""
    out = set()
    for x in hints.tensors():
        if x.ndim in (2, 3) and x.is_floating_point() and x.shape[-1] % dim == 0:
            out.add(x.shape[-1] // dim)
        elif x.ndim == 4 and x.shape[-1] == dim:  # [batch, heads, len, dim]
            out.add(x.shape[1])
    return out


def batch_of(count: int, len_q: int, hints: Iterable[Tensor]) -> Optional[int]:
    """Of scores [count, len_q, len_kv] with heads folded into the batch: the batch, from what the module that computes
    them was given."""
    for x in hints:
        shape = tuple(x.shape)
        first, second = shape[0] if shape else 0, shape[1] if len(shape) > 1 else 0
        if len(shape) == 4 and first and first * second == count:  # [batch, heads, len, dim]
            return first
        if len(shape) == 4 and first and second * shape[2] == len_q and count % first == 0:  # an image
            return first
        if len(shape) == 3 and first and second == len_q and count % first == 0:  # [batch, len, width]
            return first
        if len(shape) == 3 and first == len_q and second and count % second == 0:  # [len, batch, width]
            return second
        if len(shape) == 2 and first and second == len_q and not x.is_floating_point() and count % first == 0:
            return first  # token ids
        if len(shape) == 2 and first == len_q and x.is_floating_point():  # [len, width]
            return 1
    return None
