"""What all ranks of a model have seen together: rows that data parallel and context parallel ranks share, heads that
tensor parallel ones do."""

from __future__ import annotations

from typing import Any, Mapping, Optional

import torch

from .._stats import Stats
from ..distributed._statistics import RankStats, merged
from .ranks import Heads, is_fsdp

#: the first of some heads, and how many there are of those that the call was given, on all ranks together
Part = tuple[int, int]


def over_ranks(
    model: Optional[torch.nn.Module],
    last: Mapping[str, Stats],
    called: Mapping[str, str],
    parts: Mapping[str, Part],
    group: Any,
    timeout: float,
) -> dict[str, Stats]:
    """By layer. called: which module computed it; parts: of layers whose heads are known to be some of all."""

    def shares() -> dict[str, RankStats]:
        return {
            label: _share(model, label, stats, called.get(label), parts.get(label, (0, stats.heads)))
            for label, stats in last.items()
        }

    return merged(shares, group, timeout)


def _share(model: Optional[torch.nn.Module], label: str, stats: Stats, name: Optional[str], part: Part) -> RankStats:
    """Context parallel ranks share out the heads that a tensor parallel rank has: the module's parameters say which of
    all those are."""
    first, here = part
    if model is not None and name is not None:
        outer, sharded = model, is_fsdp(model)
        for piece in name.split(".") if name else ():
            outer = getattr(outer, piece)
            sharded = sharded or is_fsdp(outer)
        try:
            heads = Heads(model.get_submodule(name), here, sharded)
        except ValueError as error:
            raise ValueError(f"over_ranks: {label}: {error}") from None
        first, here = heads.start + first, heads.all
    return RankStats(stats, first, here) if here != stats.heads else RankStats(stats)
