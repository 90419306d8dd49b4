"""Whether all ranks mean the same, found out before any data moves: one small packet from everybody to everybody."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
from typing import Any, Mapping, Optional

import torch
from torch import Tensor

from ._faults import RankError
from ._team import Team

_TEXT = 64  # words of 8 bytes
_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
#: of a packet, in order; all but the lengths have to be the same everywhere
_NUMBERS = ("batch", "heads_q", "heads_kv", "len_q", "len_kv", "dim_qk", "dim_v", "dtype")
_OWNER = {"batch": "q", "heads_q": "q", "heads_kv": "k", "dim_qk": "q", "dim_v": "v", "dtype": "q"}


@dataclasses.dataclass(frozen=True)
class Agreed:
    """Lengths of every rank, whether tables have one row for the queries of all of them, and the keys that each rank's
    mask and bias are of."""

    len_q: tuple[int, ...]
    len_kv: tuple[int, ...]
    one_row: bool
    keys: tuple[tuple[int, ...], tuple[int, ...]]


def numbers_of(q: Tensor, k: Tensor, v: Tensor) -> list[int]:
    return [*q.shape[:2], k.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3], _DTYPES.index(q.dtype)]


def check_shapes(q: Any, k: Any, v: Any) -> None:
    """Of this rank."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: {type(x).__name__}, but a torch tensor is wanted")
        if x.ndim != 4:
            raise ValueError(f"{name}: {x.ndim} axes, but the 4 of [batch, heads, length, dim] are wanted")
        if x.dtype not in _DTYPES:
            raise TypeError(f"{name}: dtype is {x.dtype}, but float32, float16, bfloat16 or float64 is wanted")
        if x.dtype != q.dtype:
            raise TypeError(f"{name}: dtype is {x.dtype}, but q has {q.dtype}")
        if x.device != q.device:
            raise ValueError(f"{name}: lies on {x.device}, but q on {q.device}")
        if x.shape[0] != q.shape[0]:
            raise ValueError(f"{name}: batch is {x.shape[0]}, but q has {q.shape[0]}")
    if k.shape[3] != q.shape[3]:
        raise ValueError(f"k: dim_qk is {k.shape[3]}, but q has {q.shape[3]}")
    for axis, name in ((1, "heads_kv"), (2, "len_kv")):
        if v.shape[axis] != k.shape[axis]:
            raise ValueError(f"v: {name} is {v.shape[axis]}, but k has {k.shape[axis]}")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(f"k: heads_kv is {k.shape[1]}, which does not divide q's {q.shape[1]} heads")


def agree(team: Team, tensors: Optional[tuple[Tensor, Tensor, Tensor]], arguments: Mapping[str, Any],
          failed: Optional[Exception], *, like: Any = None, rows: int = 0,
          keys: tuple[int, int] = (0, 0)) -> Agreed:  # fmt: skip
    """Raises on all ranks if one has failed, or means something else; the one that has failed raises its own error.
    arguments: by name, the same names on all ranks, whatever has a repr. like: a tensor where packets may lie, if it is
    one. rows: of tables, 1 for one row, 2 for a row of each query, 0 if that is the same here. keys: of the mask and of
    the bias; whether they are right, no rank knows before it has the lengths of all."""
    names = sorted(arguments)
    words = [int(failed is not None), *([0] * len(_NUMBERS))]
    if failed is None and tensors is not None:
        words[1:] = numbers_of(*tensors)
    words += [_digest(arguments[name]) for name in names] + [rows, *keys]
    text = f"{type(failed).__name__}: {failed}" if failed is not None else ""
    packet = torch.tensor([*words, *_words(text)], dtype=torch.int64)
    if team.size > 1:
        table = team.gather_packets(packet.to(team.packet_device(like))).tolist()
    else:
        table = [packet.tolist()]
    if failed is not None:
        raise failed
    said = {rank: _text(row[-_TEXT:]) for rank, row in enumerate(table) if row[0]}
    if said:
        raise RankError("; ".join(f"rank {rank}: {text}" for rank, text in said.items()), tuple(said))
    for place, name in enumerate([*_NUMBERS, *names], 1):
        if not name.startswith("len_"):
            _same(name, [row[place] for row in table], place <= len(_NUMBERS))
    at = {name: place for place, name in enumerate(_NUMBERS, 1)}
    of_tables, of_mask, of_bias = zip(*(row[-_TEXT - 3 : -_TEXT] for row in table))
    len_q, len_kv = (tuple(row[at[name]] for row in table) for name in ("len_q", "len_kv"))
    return Agreed(len_q, len_kv, max(of_tables) == 1, (of_mask, of_bias))


def _same(name: str, values: list[int], number: bool) -> None:
    """What most ranks say is taken for right; where they are equally many, what the lowest one says."""
    most, _ = collections.Counter(values).most_common(1)[0]
    others = tuple(rank for rank, value in enumerate(values) if value != most)
    if not others:
        return
    rank = others[0]
    where = ", ".join(map(str, others))
    if not number:
        raise RankError(f"rank {where}: {name} is another than on rank {values.index(most)}", others)

    def shown(value: int) -> str:
        return str(_DTYPES[value]) if name == "dtype" else str(value)

    here, there = shown(values[rank]), shown(most)
    raise RankError(f"rank {where}: {_OWNER[name]}: {name} is {here}, but {there} on rank {values.index(most)}", others)


def _digest(value: Any) -> int:
    return int.from_bytes(hashlib.sha256(repr(value).encode()).digest()[:7], "big")


def _words(text: str) -> list[int]:
    raw = text.encode()[: 8 * _TEXT].ljust(8 * _TEXT, b"\0")
    return [int.from_bytes(raw[i : i + 8], "little", signed=True) for i in range(0, len(raw), 8)]


def _text(words: list[int]) -> str:
    raw = b"".join(word.to_bytes(8, "little", signed=True) for word in words)
    return raw.rstrip(b"\0").decode(errors="replace")
