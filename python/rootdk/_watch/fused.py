"""A fused call as a looker wants it, [batch, heads, length, dim], whichever axes of the model's tensors are heads: in
front of the batch, joined with it, or where they mostly are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Mapping, Optional, Union

from torch import Tensor

from .heads import Hints, Split, batch_of, made_by_product, of_two, split_by, tells
from .products import plain_data

if TYPE_CHECKING:
    from .follow import Looker
    from .learned import Learned
    from .steps import Trail

_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


def call(looker: Looker, trail: Trail, func: Any, args: Any, kwargs: Any) -> Tensor:
    """func is PyTorch's own, which gets its tensors as the model has them."""
    given = {**dict(zip(_NAMES, args)), **kwargs}
    sides = [given[name] for name in _NAMES[:3]]
    prescale = trail.scaled(*sides[:2])
    try:
        split = _split_of(trail.learned, trail.hints, *sides[:2]) if all(map(plain_data, sides)) else None
    except Exception:  # inputs of the module that have no sizes
        split = None
    usual = split is None or isinstance(split, Split) and _is_usual(split, tuple(sides[0].shape[:-2]))
    if isinstance(split, Split) and not usual and not _can_be_arranged(given):
        split = f"queries {[*sides[0].shape]} and keys {[*sides[1].shape]} do not have heads in the same place"
    if isinstance(split, str):
        looker.missed("scaled_dot_product_attention", split)
        return func(*args, **kwargs)  # type: ignore[no-any-return]
    trail.doubt = None if split is None else split.doubt
    try:
        if split is None or usual:
            return looker.sdpa(func, *args, **kwargs, prescale=prescale)
        return _rearranged(looker, func, split, given, prescale)
    finally:
        trail.doubt = None


def _split_of(learned: Learned, hints: Hints, query: Tensor, key: Tensor) -> Union[Split, str, None]:
    """In words, why it is not known. None where there is nothing to split."""
    lead, dim = tuple(query.shape[:-2]), query.shape[-1]
    if not lead or not query.numel():
        return None
    split: Optional[Split]
    made = made_by_product(learned, (query, key), lead)
    if made is not None and tells(made):
        split = split_by(made, dim, hints)
    elif len(lead) == 2:
        split = of_two(lead, dim, hints)
    elif len(lead) == 1 and (batch := batch_of(lead[0], query.shape[-2], hints.tensors())) and lead[0] % batch == 0:
        split = Split(batch, lead[0] // batch, sure=batch == 1 or batch == lead[0] and {*hints.heads()} <= {1})
    else:
        split = Split(math.prod(lead[:-1]), lead[-1], sure=lead[-1] in hints.heads())
    return f"which of the axes {[*lead]} are heads is not known" if split is None else split


def _is_usual(split: Split, lead: tuple[int, ...]) -> bool:
    """Whether heads are the last of the lead axes, and no part of another."""
    last = len(lead if split.sizes is None else split.sizes) - 1
    return split.heads == lead[-1] and (split.axes in (None, (last,)) or split.heads == 1)


def _can_be_arranged(given: Mapping[str, Any]) -> bool:
    query, mask = given["query"], given.get("attn_mask")
    sides = [given["key"], given["value"]]
    if (
        given.get("enable_gqa")
        or any(x.ndim != query.ndim for x in sides)
        or mask is not None
        and mask.ndim > query.ndim
    ):
        return False
    every = [*sides, *([] if mask is None else [mask])]
    return all(size in (1, full) for x in every for size, full in zip(x.shape[-3::-1], query.shape[-3::-1]))


def _rearranged(looker: Looker, func: Any, split: Split, given: dict[str, Any], prescale: float) -> Tensor:
    lead, mask = tuple(given["query"].shape[:-2]), given.get("attn_mask")
    shown = {name: split.arrange(given[name], lead) for name in _NAMES[:3]}
    if mask is not None:
        shown["attn_mask"] = split.arrange(mask, lead) if mask.ndim > 2 else mask
    own: list[Tensor] = []

    def theirs(query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor] = None, **more: Any) -> Tensor:
        own.append(func(*(split.put_back(x, lead) for x in (query, key, value)), attn_mask=mask, **more))
        return split.arrange(own[0], lead)

    out = split.put_back(looker.sdpa(theirs, **{**given, **shown}, prescale=prescale), lead)
    return own[0] if own else out.contiguous()
