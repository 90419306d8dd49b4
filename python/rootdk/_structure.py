"""What masks say in numbers: causal, diagonal, window, documents, and what each batch item has of its own. One concept
for the engine's problem (_description.py packs it), for the operators of torch, which take it as numbers, and for what
is written out in torch, which asks the engine what a row sees."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Optional, Sequence

import numpy as np
import numpy.typing as npt

from . import _core
from ._masks import PER_ITEM
from ._problem import Window, diagonal_of, documents_of, flag, wholes, window_of

KINDS = ("bottom_right", "top_left", "last_key", "at")
_UNBOUNDED = -1
_ABSENT = -1
_FIXED, _LISTS = 7, 2 + len(PER_ITEM)
_AT_FIRST = (0, 0, 0, 0, _UNBOUNDED, _UNBOUNDED, 0, *(_ABSENT,) * _LISTS)  # nothing hidden
_PLACES = {field.name: place for place, field in enumerate(PER_ITEM)}

Numbers = Optional[tuple[int, ...]]


class Structure(NamedTuple):
    causal: bool = False
    diagonal: str = "bottom_right"
    offset: int = 0  #: for "at"
    window: Optional[tuple[Optional[int], Optional[int]]] = None
    q_starts: Numbers = None  #: of documents; both or none
    kv_starts: Numbers = None
    items: int = 0  #: if not 0, they are [items, documents + 1], row by row: each batch item has its own
    per_item: tuple[Numbers, ...] = (None,) * len(PER_ITEM)  #: in the order of rootdk/masks.def; each [batch]

    @staticmethod
    def of(
        causal: bool = False,
        diagonal: str | int = "bottom_right",
        window: Window = None,
        documents: Any = None,
        **per_item: Any,
    ) -> Structure:
        """From the arguments of rootdk.attention."""
        kind, offset = diagonal_of(diagonal)
        if kind not in KINDS:
            raise ValueError(f'diagonal: {kind}, but "bottom_right", "top_left", "last_key" or a number is wanted')
        q_starts, kv_starts, items = documents_of(documents)
        structure = Structure(flag("causal", causal), kind, offset, window_of(window), q_starts, kv_starts, items)
        numbers = {name: None if values is None else tuple(wholes(name, values)) for name, values in per_item.items()}
        return structure.each(numbers)

    def each(self, numbers: Mapping[str, Numbers]) -> Structure:
        """With these per batch item."""
        if not numbers:
            return self
        found = list(self.per_item)
        for name, values in numbers.items():
            found[_PLACES[name]] = values
        return self._replace(per_item=tuple(found))

    @property
    def key_starts(self) -> Numbers:
        return self.per_item[_PLACES["key_starts"]]

    @property
    def key_lengths(self) -> Numbers:
        return self.per_item[_PLACES["key_lengths"]]

    @property
    def query_lengths(self) -> Numbers:
        return self.per_item[_PLACES["query_lengths"]]

    @property
    def by_item(self) -> bool:
        """Whether batch items have numbers of their own."""
        return any(values is not None for values in self.per_item)

    @property
    def pads_queries(self) -> bool:
        """Whether rows may be padding."""
        return any(values is not None and field.axis == "q" for field, values in zip(PER_ITEM, self.per_item))

    def packed(self, whole: bool = False) -> list[int]:
        """As numbers; those at the end that are as at first are left out, unless others follow."""
        if not whole and self == Structure():
            return []
        left, right = self.window or (None, None)
        numbers = [
            int(self.causal),
            KINDS.index(self.diagonal),
            self.offset,
            int(self.window is not None),
            _UNBOUNDED if left is None else left,
            _UNBOUNDED if right is None else right,
            self.items,
        ]
        lists = (self.q_starts, self.kv_starts, *self.per_item)
        if whole or any(values is not None for values in lists):
            for values in lists:
                numbers += [_ABSENT] if values is None else [len(values), *values]
        elif self.window is None:
            return numbers[:3]
        return numbers

    @staticmethod
    def unpacked(numbers: Sequence[int]) -> tuple[Structure, list[int]]:
        """And what follows it."""
        rest = [*numbers, *_AT_FIRST[len(numbers) :]]
        causal, kind, offset, bounded, left, right, items = rest[:_FIXED]
        window = (None if left == _UNBOUNDED else left, None if right == _UNBOUNDED else right) if bounded else None
        lists: list[Numbers] = []
        rest = rest[_FIXED:]
        for _ in range(_LISTS):
            count = rest[0]
            lists.append(None if count == _ABSENT else tuple(rest[1 : 1 + count]))
            rest = rest[1 + max(count, 0) :]
        q_starts, kv_starts, *per_item = lists
        structure = Structure(bool(causal), KINDS[kind], offset, window, q_starts, kv_starts, items, tuple(per_item))
        return structure, rest

    def repeated(self, times: int) -> Structure:
        """Of a batch that is so many of this one, after each other."""

        def more(values: Numbers) -> Numbers:
            return None if values is None else values * times

        each = self.items > 0
        return self._replace(
            q_starts=more(self.q_starts) if each else self.q_starts,
            kv_starts=more(self.kv_starts) if each else self.kv_starts,
            items=self.items * times,
            per_item=tuple(map(more, self.per_item)),
        )

    def batch(self) -> int:
        """How many batch items it tells apart; 1 where they are alike."""
        return next((len(values) for values in self.per_item if values is not None), max(self.items, 1))

    def visible(self, len_q: int, len_kv: int) -> Visible:
        """What each query sees, by the engine's own rule."""
        ranges = np.empty((self.batch(), len_q, 4), np.int64)
        _core.visible_keys(_core.Spec([0, *self.packed()], [], [], []), *ranges.shape[:2], len_kv, ranges)
        return Visible(*(ranges[..., column] for column in range(4)))


def further(arguments: dict[str, Any]) -> dict[str, Any]:
    """Takes out what the table of masks has and a signature does not name."""
    return {name: arguments.pop(name) for name in tuple(arguments) if name in _PLACES}


class Visible(NamedTuple):
    """Each [batch, len_q], where batch is 1 if items are alike."""

    begin: npt.NDArray[np.int64]  #: the first key
    end: npt.NDArray[np.int64]  #: one past the last
    position: npt.NDArray[np.int64]  #: of the query among the keys
    is_query: npt.NDArray[np.int64]  #: 0: it is padding
