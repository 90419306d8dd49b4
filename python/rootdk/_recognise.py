"""A mask of booleans as the numbers it came from: padding on either side, packed documents, a diagonal, a window.

A guess is made from what each row sees, then held against all of the mask; what does not agree stays a mask.
"""

from __future__ import annotations

import threading
from typing import Any, Iterator, NamedTuple, Optional

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from ._structure import Structure

Rows = npt.NDArray[np.int64]  #: [batch, len_q]


class _Seen(NamedTuple):
    """What the rows of a mask see, where that is one piece of keys."""

    begin: Rows
    end: Rows  #: one past the last key
    any: npt.NDArray[np.bool_]
    len_kv: int


_known: WeakIdKeyDictionary = WeakIdKeyDictionary()
_lock = threading.Lock()


def recognised(mask: Tensor) -> Optional[Structure]:
    """Of a mask [batch, 1, len_q, len_kv] on the CPU, or None. It is looked at once, while it lives and nobody writes
    to it: all layers of a model have the same."""
    if mask.dtype != torch.bool or mask.device.type != "cpu" or mask.ndim != 4 or mask.shape[1] != 1:
        return None
    if mask.is_inference():  # nobody counts what is written to these
        return _looked_at(mask)
    whole = mask if mask._base is None else mask._base  # a model may cut the same mask again in each layer
    key = (mask.shape, mask.stride(), mask.storage_offset(), mask._version)
    with _lock:
        kept = _known.setdefault(whole, {})
        if key not in kept:
            kept[key] = _looked_at(mask)
        found: Optional[Structure] = kept[key]
        return found


def _looked_at(mask: Tensor) -> Optional[Structure]:
    seen = _rows(mask)
    if seen is None:
        return None
    for guess in _guesses(seen):
        if _agrees(guess, seen):
            return guess
    return None


def _rows(mask: Tensor) -> Optional[_Seen]:
    table: npt.NDArray[np.bool_] = mask[:, 0].numpy()
    if not table.size:
        return None
    seen: npt.NDArray[np.bool_] = np.asarray(table.any(-1))
    begin = np.where(seen, table.argmax(-1), 0)
    end = np.where(seen, table.shape[-1] - table[..., ::-1].argmax(-1), 0)
    if (table.sum(-1, dtype=np.int64) != end - begin).any():
        return None
    return _Seen(begin.astype(np.int64), end.astype(np.int64), seen, table.shape[-1])


def _agrees(guess: Structure, seen: _Seen) -> bool:
    len_q = seen.begin.shape[1]
    begin, end, *_ = guess.visible(len_q, seen.len_kv)
    same = (begin == seen.begin) & (end == seen.end)
    return bool(np.where(seen.any, same, end <= begin).all())


# Guesses --------------------------------------------------------------------------------------------------------------
def _guesses(seen: _Seen) -> Iterator[Structure]:
    """The one with fewest words first."""
    for documents in (False, True):
        first = _with_places(seen, documents)
        if first is None:
            continue
        yield first
        if not first.causal:  # which nothing but rows without keys may show
            yield first._replace(causal=True, offset=max(seen.len_kv - seen.begin.shape[1], 0))
        query_lengths = _last(seen.any)
        if (query_lengths < seen.begin.shape[1]).any():
            yield first.each({"query_lengths": tuple(query_lengths.tolist())})


def _with_places(seen: _Seen, documents: bool) -> Optional[Structure]:
    starts = _per_item(seen.begin, seen.any, np.minimum, seen.len_kv)
    ends = _per_item(seen.end, seen.any, np.maximum, 0)
    low, high = starts[:, None], ends[:, None]
    position = np.arange(seen.begin.shape[1])[None]
    guess = Structure(diagonal="at").each(
        {
            "key_starts": tuple(starts.tolist()) if starts.any() else None,
            "key_lengths": tuple(ends.tolist()) if (ends < seen.len_kv).any() else None,
        }
    )
    if documents:
        if seen.begin.shape[1] != seen.len_kv:
            return None
        lists = [_document_starts(seen, i) for i in range(len(seen.begin))]
        most = max(map(len, lists))
        flat = tuple(x for row in lists for x in (*row, *[seen.len_kv] * (most - len(row))))
        guess = guess._replace(q_starts=flat, kv_starts=flat, items=len(lists))
        low, high, position, _ = guess.visible(seen.len_kv, seen.len_kv)
    return guess._replace(**_diagonal_and_window(seen, position, low, high))


def _diagonal_and_window(seen: _Seen, position: Rows, low: Rows, high: Rows) -> dict[str, Any]:
    """From rows that neither begin nor end where all could: how far after its position, and before, a query sees. A
    bound on the right by r is the diagonal of a causal mask that stands r farther on."""
    ahead = (seen.end - 1 - position)[seen.any & (seen.end < high)]
    behind = (position - seen.begin)[seen.any & (seen.begin > low)]
    offset = int(ahead.max()) if ahead.size else max(0, -int(behind.max())) if behind.size else 0
    left = int(behind.max()) + offset if behind.size else None
    if left is not None and left < 0:
        left = None  # and it will not agree
    return dict(causal=bool(ahead.size), offset=offset, window=None if left is None else (left, None))


def _document_starts(seen: _Seen, item: int) -> list[int]:
    """Where a row sees nothing before itself, or nothing of what the row before it saw; and the end."""
    begin, end, there = seen.begin[item], seen.end[item], seen.any[item]
    here = np.arange(len(begin))
    fresh = there & (begin == here)
    fresh |= ~there & np.concatenate(([False], there[:-1]))  # padding after the last one
    both_ways = there & (end > here + 1)
    if both_ways.any():
        fresh &= np.concatenate(([True], begin[1:] >= end[:-1])) | ~there
    starts = [0, *(int(i) for i in np.flatnonzero(fresh) if i > 0)]
    return [*starts, len(begin)]


def _per_item(values: Rows, there: npt.NDArray[np.bool_], best: np.ufunc, otherwise: int) -> Rows:
    found: Rows = best.reduce(values, axis=1, where=there, initial=otherwise)
    return np.where(there.any(1), found, 0)


def _last(there: npt.NDArray[np.bool_]) -> Rows:
    """One past the last row that sees anything."""
    found: Rows = np.where(there.any(1), there.shape[1] - there[:, ::-1].argmax(1), 0)
    return found
