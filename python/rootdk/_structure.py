"""What masks say in numbers: causal, diagonal, window, starts, lengths and documents. One concept for the engine's
problem (`into`), for the operators of torch, which take it as numbers (`packed`), and for what is written out in
torch."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Sequence

from ._problem import Window, diagonal_of, documents_of, flag, wholes, window_of

_KINDS = ("bottom_right", "top_left", "last_key", "at")
_UNBOUNDED = -1
_ABSENT = -1
_FIXED, _LISTS = 7, 5
_AT_FIRST = (0, 0, 0, 0, _UNBOUNDED, _UNBOUNDED, 0, *(_ABSENT,) * _LISTS)  # nothing hidden

Numbers = Optional[tuple[int, ...]]


class Structure(NamedTuple):
    causal: bool = False
    diagonal: str = "bottom_right"
    offset: int = 0  #: for "at"
    window: Optional[tuple[Optional[int], Optional[int]]] = None
    key_starts: Numbers = None
    key_lengths: Numbers = None
    query_lengths: Numbers = None
    q_starts: Numbers = None  #: of documents; both or none
    kv_starts: Numbers = None
    items: int = 0  #: if not 0, they are [items, documents + 1], row by row: each batch item has its own

    @staticmethod
    def of(
        causal: bool = False,
        diagonal: str | int = "bottom_right",
        window: Window = None,
        key_starts: Any = None,
        key_lengths: Any = None,
        query_lengths: Any = None,
        documents: Any = None,
    ) -> Structure:
        """From the arguments of rootdk.attention."""
        kind, offset = diagonal_of(diagonal)
        if kind not in _KINDS:
            raise ValueError(f'diagonal: {kind}, but "bottom_right", "top_left", "last_key" or a number is wanted')
        q_starts, kv_starts, items = documents_of(documents)
        return Structure(
            flag("causal", causal),
            kind,
            offset,
            window_of(window),
            _numbers("key_starts", key_starts),
            _numbers("key_lengths", key_lengths),
            _numbers("query_lengths", query_lengths),
            q_starts,
            kv_starts,
            items,
        )

    def into(self, spec: Any) -> None:
        """Into the compiled module's Spec, or that of _cuda."""
        spec.causal = self.causal
        spec.diagonal, spec.diagonal_offset = self.diagonal, self.offset
        if self.window is not None:
            spec.set_window(*self.window)
        if self.key_starts is not None:
            spec.set_key_starts(list(self.key_starts))
        if self.key_lengths is not None:
            spec.set_key_lengths(list(self.key_lengths))
        if self.query_lengths is not None:
            spec.set_query_lengths(list(self.query_lengths))
        if self.q_starts is not None and self.kv_starts is not None:
            spec.set_documents(list(self.q_starts), list(self.kv_starts), self.items)

    def packed(self, whole: bool = False) -> list[int]:
        """As numbers; those at the end that are as at first are left out, unless others follow."""
        if not whole and self == Structure():
            return []
        left, right = self.window or (None, None)
        numbers = [
            int(self.causal),
            _KINDS.index(self.diagonal),
            self.offset,
            int(self.window is not None),
            _UNBOUNDED if left is None else left,
            _UNBOUNDED if right is None else right,
            self.items,
        ]
        lists = (self.key_starts, self.key_lengths, self.query_lengths, self.q_starts, self.kv_starts)
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
        key_starts, key_lengths, query_lengths, q_starts, kv_starts = lists
        return Structure(
            bool(causal),
            _KINDS[kind],
            offset,
            window,
            key_starts,
            key_lengths,
            query_lengths,
            q_starts,
            kv_starts,
            items,
        ), rest

    def repeated(self, times: int) -> Structure:
        """Of a batch that is so many of this one, after each other."""

        def more(values: Numbers) -> Numbers:
            return None if values is None else values * times

        each = self.items > 0
        return self._replace(
            key_starts=more(self.key_starts),
            key_lengths=more(self.key_lengths),
            query_lengths=more(self.query_lengths),
            q_starts=more(self.q_starts) if each else self.q_starts,
            kv_starts=more(self.kv_starts) if each else self.kv_starts,
            items=self.items * times,
        )

    def batch(self) -> int:
        """How many batch items it tells apart; 1 where they are alike."""
        for values in (self.key_starts, self.key_lengths, self.query_lengths):
            if values is not None:
                return len(values)
        return max(self.items, 1)


def _numbers(name: str, values: Any) -> Numbers:
    return None if values is None else tuple(wholes(name, values))
