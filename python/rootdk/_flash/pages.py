"""Keys and values in pages: which page of a pool holds the next tokens of which sequence."""

from __future__ import annotations

import itertools
from typing import Any, Sequence

import torch
from torch import Tensor

from .arguments import tensor


class Pages:
    """`table` is (batch_size, pages of a sequence), `pool` (pages, page size, heads, dim)."""

    def __init__(self, name: str, table: Any, pool: Tensor):
        self.name, self.table = name, tensor(name, table, "(batch_size, max_num_blocks_per_seq)")
        if self.table.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"{name}: dtype is {self.table.dtype}, but torch.int32 is wanted")
        self.count, self.size = pool.shape[0], pool.shape[1]

    def capacity(self) -> int:
        return self.table.shape[1] * self.size

    def check(self, lengths: Sequence[int]) -> None:
        """That the pages of so many tokens a sequence are pages of the pool."""
        if len(lengths) != self.table.shape[0]:
            raise ValueError(f"{self.name}: {self.table.shape[0]} sequences, but there are {len(lengths)}")
        for i, (row, length) in enumerate(zip(self.table.tolist(), lengths)):
            needed = -(-length // self.size)
            if needed > len(row):
                raise ValueError(
                    f"{self.name}: sequence {i} has {length} tokens, but its {len(row)} pages hold {self.capacity()}"
                )
            for page in row[:needed]:
                if not 0 <= page < self.count:
                    raise ValueError(f"{self.name}: page {page} of sequence {i}, but there are {self.count} pages")

    def places(self, items: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(page, place in it) of tokens."""
        pages = self.table[items, torch.div(positions, self.size, rounding_mode="floor")].long()
        return pages, positions % self.size

    def read(self, pool: Tensor, lengths: Sequence[int]) -> Tensor:
        """[batch, longest, heads, dim]; what lies behind a sequence's length is any page's."""
        longest = max(lengths, default=0)
        table = self.table[:, : -(-longest // self.size)].long()
        needed = torch.tensor([-(-length // self.size) for length in lengths], device=table.device)
        inside = torch.arange(table.shape[1], device=table.device) < needed[:, None]
        return pool[torch.where(inside, table, 0)].flatten(1, 2)[:, :longest]

    def end_to_end(self, k: Tensor, v: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Tensor, list[int]]:
        """Keys and values [total, heads, dim], and where each sequence starts, and the end."""
        self.check(lengths)
        starts = [0, *itertools.accumulate(lengths)]
        k, v = (torch.cat([row[:n] for row, n in zip(self.read(x, lengths), lengths)]) for x in (k, v))
        return k, v, starts
