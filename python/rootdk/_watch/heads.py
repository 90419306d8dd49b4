"""Which axes of scores are the batch, which are heads, and which are positions, as the windows of local attention are.

Scores [*lead, len_q, len_kv] do not say so themselves. What the module that computes them was given does, and how many
heads it says it has.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Callable, Iterable, Optional, Sequence

from torch import Tensor

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
    inner: Optional[int] = None  #: heads that are folded into the first axis
    axes: Optional[tuple[int, ...]] = None  #: that are heads, after unfolding; None: as they lie

    def arrange(self, x: Tensor, lead: Sequence[int]) -> Tensor:
        """x [*lead, rows, columns] → [batch, heads, rows, columns]."""
        rest = x.shape[-2:]
        x = x.expand(*lead, *rest)
        if self.inner is not None:
            x = x.unflatten(0, (-1, self.inner))
        if self.axes is not None:
            others = [axis for axis in range(x.ndim - 2) if axis not in self.axes]
            x = x.permute(*others, *self.axes, x.ndim - 2, x.ndim - 1)
        return x.reshape(self.batch, self.heads, *rest)


def split_of(
    lead: Sequence[int], k: Tensor, dim: int, len_q: int, batch: Optional[int], hints: Hints
) -> Optional[Split]:
    """Of scores whose lead axes are these. `batch`: where a reshape has joined it with heads. None if nothing tells."""
    lead = tuple(lead)
    if not lead:
        return Split(1, 1)
    if len(lead) == 1:
        found = batch if batch is not None else batch_of(lead[0], len_q, hints.tensors())
        return Split(lead[0], 1) if found is None or found < 1 or lead[0] % found else Split(found, lead[0] // found)
    if len(lead) == 2:
        return _windows(lead, dim, len_q, hints) or Split(*lead)
    if len(lead) == 3 and k.ndim == 5 and any(k.shape[axis] == 1 or k.stride(axis) == 0 for axis in (1, 2)):
        return Split(lead[0], lead[1] * lead[2])  # [batch, heads_kv, group] or [batch, group, heads_kv]
    for known in (set(hints.heads()), _by_width(dim, hints)):
        axes: list[tuple[int, ...]] = [(i,) for i in range(1, len(lead)) if lead[i] in known]
        if not axes:  # [heads_kv, group]
            axes = [(i, i + 1) for i in range(1, len(lead) - 1) if lead[i] * lead[i + 1] in known]
        if len(axes) == 1:
            heads = math.prod(lead[i] for i in axes[0])
            return Split(math.prod(lead) // heads, heads, axes=axes[0])
    return None


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
            return Split(given * lead[1], inner, inner, (1,)) if inner == 1 or inner in heads else None
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
