"""Equations of torch.einsum, read as products of q and k."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Optional, Sequence

from torch import Tensor

Letters = tuple[str, ...]


@lru_cache(maxsize=256)
def letters(equation: str, axes: tuple[int, ...]) -> Optional[tuple[tuple[Letters, ...], Letters]]:
    """Each operand's axes and the result's, one name per axis; those of an ellipsis are counted from the right. None
    where a letter comes twice in an operand."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    operands = []
    widest = 0
    for part, count in zip(left.split(","), axes):
        head, dots, tail = part.partition("...")
        free = count - len(head) - len(tail)
        if free < 0 or (free and not dots) or len({*head, *tail}) != len(head) + len(tail):
            return None
        widest = max(widest, free)
        operands.append((*head, *(f".{i}" for i in range(free, 0, -1)), *tail))
    if len(operands) != len(axes):
        return None
    dotted = tuple(f".{i}" for i in range(widest, 0, -1))
    if arrow:
        head, dots, tail = right.partition("...")
        return tuple(operands), (*head, *(dotted if dots else ()), *tail)
    names = [name for operand in operands for name in operand if name[0] != "."]
    return tuple(operands), (*dotted, *sorted(name for name in set(names) if names.count(name) == 1))


def operands_of(args: Sequence[Any]) -> Optional[tuple[str, list[Any]]]:
    if not args or not isinstance(args[0], str):
        return None
    given = args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
    return args[0], list(given)


def product_of(equation: str, a: Tensor, b: Tensor) -> Optional[tuple[Tensor, Tensor, Optional[int], int]]:
    """If this may be q·kᵀ: q [*lead, len_q, dim], k [*lead, dim, len_kv], and the result's axes of queries and keys.
    Which is which, softmax decides later; the result's first is taken for the queries'. Where each query has keys of
    its own (local attention), queries are among the lead axes."""
    read = letters(equation, (a.ndim, b.ndim))
    if read is None:
        return None
    (one, other), result = read
    summed = [x for x in one if x in other and x not in result]
    mine, yours = [x for x in result if x not in other], [x for x in result if x not in one]
    if len(summed) != 1 or {*one, *other} != {*result, summed[0]}:
        return None
    if not mine or not yours:
        return _own_keys(a, one, b, other, result, summed[0])
    if len(yours) > 1 and len(mine) == 1:  # a group of query heads is in b
        one, other, a, b, mine, yours = other, one, b, a, yours, mine
    if len(yours) > 1:
        return None
    column, row = yours[0], mine[-1]
    if len(mine) == 1 and result.index(row) > result.index(column):
        one, other, a, b, row, column = other, one, b, a, column, row
    lead = [x for x in result if x not in (row, column)]
    return (
        _arrange(a, one, [*lead, row, summed[0]]),
        _arrange(b, other, [*lead, summed[0], column]),
        result.index(row),
        result.index(column),
    )


def _own_keys(
    a: Tensor, one: Letters, b: Tensor, other: Letters, result: Letters, dim: str
) -> Optional[tuple[Tensor, Tensor, Optional[int], int]]:
    """The larger side has one axis that the other has not: q [*lead, 1, dim], k [*lead, dim, len_kv]."""
    if len(one) > len(other):
        a, one, b, other = b, other, a, one
    columns = [x for x in result if x not in one]
    lead = [x for x in result if x in one]
    if len(columns) != 1 or {*lead} != {*one} - {dim} or not {*lead} <= {*other}:
        return None
    q, k = _arrange(a, one, [*lead, dim]).unsqueeze(-2), _arrange(b, other, [*lead, dim, columns[0]])
    return q, k, None, result.index(columns[0])


def _arrange(x: Tensor, names: Letters, wanted: Sequence[str]) -> Tensor:
    x = x.permute(*(names.index(name) for name in wanted if name in names))
    for axis, name in enumerate(wanted):
        if name not in names:
            x = x.unsqueeze(axis)
    return x


def summed_axes(equation: str, tensors: Sequence[Tensor], at: int) -> list[int]:
    """The axes of operand `at` that are summed against another operand."""
    read = letters(equation, tuple(x.ndim for x in tensors))
    if read is None:
        return []
    operands, result = read
    others = {name for i, operand in enumerate(operands) if i != at for name in operand}
    return [axis for axis, name in enumerate(operands[at]) if name in others and name not in result]


def has_own_axis(equation: str, tensors: Sequence[Tensor], x: Tensor) -> bool:
    """Whether the result has an axis of x that no other operand has."""
    read = letters(equation, tuple(y.ndim for y in tensors))
    if read is None:
        return False
    operands, result = read
    at = next(i for i, y in enumerate(tensors) if y is x)
    others = {name for i, operand in enumerate(operands) if i != at for name in operand}
    return any(name in result and name not in others for name in operands[at])
