"""Masks that hide by a large negative number where others write −inf: −100 (Swin), −1e4, −1e9, the lowest finite
number.

Softmax gives such keys nothing, but to statistics they are scores like others: one of them makes a spread of 1e9. What
tells a mask from a bias is the gap: between the numbers that a bias adds and those that hide lies a range, wider than
all that the bias spans, in which there is nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Optional

import torch
from torch import Tensor

_GAP = 64.0  # e^−64: nothing, beside scores that differ by less than this
_HIDES = -50.0  # a bias may raise one key far above the others; what hides is far below 0
_NO_SCORE = -5000.0
_FAR = -1000.0  # a bias that goes further down than this is worth a word
_MOST_BINS = 1 << 16
_NOTHING = 30.0  # e^−30 of each of a million keys is still below a unit in f32's last place


class Found(NamedTuple):
    """What a mask hides by numbers: those up to `below`. None where all are added (or are −inf); then those up to
    `near`, if there are any, may hide all the same."""

    below: Optional[float] = None
    near: Optional[float] = None


def hidden_below(bias: Tensor, highest: float = _HIDES) -> Found:
    """In a mask of any shape. Numbers are split at the middle of their range, as long as a gap of at least half of it
    lies there: masks that were added to each other hide by sums."""
    if not bias.is_floating_point() or not bias.numel():
        return Found()
    found: Optional[float] = None
    values = bias.detach().to(torch.promote_types(bias.dtype, torch.float32))
    values = values.masked_fill(~torch.isfinite(values), math.nan)
    while True:
        high = float(values.nan_to_num(-math.inf).max())
        low = float(values.nan_to_num(math.inf).min())
        if not high - low >= _GAP:
            return Found(found)
        middle = low + (high - low) / 2
        upper = values > middle
        top = float(torch.where(upper, -math.inf, values).nan_to_num(-math.inf).max())
        bottom = float(torch.where(upper, values, math.inf).min())
        if bottom - top < max(_GAP, (high - low) / 2) or top > highest:
            return Found(found, _below_a_gap(values, low, high) if found is None else None)
        found = top
        values = torch.where(upper, values, math.nan)


def _below_a_gap(values: Tensor, low: float, high: float) -> Optional[float]:
    """Where biases reach so far down that the gap between them and what hides is not half of the range any more."""
    bins = int(2 * min(high - low, _GAP * _MOST_BINS) / _GAP)
    if low > _FAR or bins >= _MOST_BINS:
        return None
    empty = (torch.histc(values[~values.isnan()], bins, low, high) == 0).tolist()
    at = next((i for i in range(bins - 1) if empty[i] and empty[i + 1]), None)
    if at is None:
        return None
    top = float(values.masked_fill(~(values < low + (at + 1) * (high - low) / bins), -math.inf).max())
    return top if top <= _FAR else None


def hides_surely(bias: Tensor, below: float, query: Tensor, key: Tensor, scale: float) -> bool:
    """Whether numbers up to `below` leave a key without any weight whatever the scores are: |c·q·k| ≤ c·‖q‖·‖k‖. Not
    where a row is hidden altogether: there such a mask gives the mean of V, −inf zero."""
    hidden = bias.detach() <= below
    if bool(hidden.logical_or(bias.detach() == -math.inf).all(-1).any()):
        return False
    with torch.no_grad():
        largest = [float(torch.linalg.vector_norm(x.detach().float(), dim=-1).max()) for x in (query, key)]
        added = bias.detach().float()
        least = float(added.masked_fill(hidden | ~torch.isfinite(added), math.inf).min())
    return least - below - 2 * abs(scale) * largest[0] * largest[1] > _NOTHING


def hidden_scores(scores: Tensor, before: Optional[Tensor]) -> tuple[Optional[Tensor], int, Optional[float]]:
    """Of scores that were written out, with what they were before masks and biases: which are hidden by a number, None
    if none is, how many, and if none, below which they may be. Where nobody knows what they were before, only what no
    score is counts."""
    added = scores.detach() if before is None else scores.detach() - before.detach()
    found = hidden_below(added, _HIDES if before is not None else _NO_SCORE)
    if found.below is None:
        return None, 0, None if before is None else found.near
    hidden = outweighed(scores.detach(), added <= found.below)
    count = int(hidden.sum())
    return hidden if count else None, count, None


def outweighed(scores: Tensor, hidden: Tensor, gone: Optional[Tensor] = None) -> Tensor:
    """Of keys that a number would hide, those that lie far below the largest of their row that it leaves, or whose
    whole row it hides. `gone`: where a key is hidden by something else."""
    others = hidden if gone is None else hidden | gone
    top = scores.masked_fill(others, -math.inf).max(-1, keepdim=True).values
    return hidden & ((scores < top - _NOTHING) | (top == -math.inf))
