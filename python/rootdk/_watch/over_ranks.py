"""What all ranks of a model have seen together: rows that data parallel and context parallel ranks share, heads that
tensor parallel ones do."""

from __future__ import annotations

from typing import Any, Mapping, Optional

import torch

from .._stats import Stats
from ..distributed._statistics import RankStats, merge
from .ranks import Heads, is_fsdp

Part = tuple[int, int]  #: the first of some heads, and how many there are in all


def over_ranks(
    model: Optional[torch.nn.Module],
    last: Mapping[str, Stats],
    called: Mapping[str, str],
    parts: Mapping[str, Part],
    group: Any,
    timeout: float,
) -> dict[str, Stats]:
    """By layer. called: which module computed it; parts: of layers whose heads are known to be some of all."""
    shares = {label: _share(model, label, stats, called.get(label), parts.get(label)) for label, stats in last.items()}
    return merge(shares, group, timeout=timeout)


def _share(
    model: Optional[torch.nn.Module], label: str, stats: Stats, name: Optional[str], part: Optional[Part]
) -> RankStats:
    if part is not None:
        return RankStats(stats, *part)
    if model is None or name is None:
        return RankStats(stats)
    outer, sharded = model, is_fsdp(model)
    for piece in name.split(".") if name else ():
        outer = getattr(outer, piece)
        sharded = sharded or is_fsdp(outer)
    try:
        heads = Heads(model.get_submodule(name), stats.heads, sharded)
    except ValueError as error:
        raise ValueError(f"over_ranks: {label}: {error}") from None
    return RankStats(stats, heads.start, heads.all) if heads.split else RankStats(stats)
