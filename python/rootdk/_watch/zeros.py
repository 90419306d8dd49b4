"""Masks that make exponentials or weights zero where others add −inf to scores, so that the keys they hide get no share
of the sum."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from .products import Held, Note

CHANGED = "its exponentials or weights were changed by more than a mask of zeros before they were divided by their sum"
GUARD = 1e-3  # of a weight: what a number that keeps a sum from 0 may take away
_BY_NUMBER = 1e3  # below the largest score
_NOTHING = 2.0**-24  # of a row's largest: less than f32 can show


@torch.no_grad()
def after_exponentials(note: Note, e: Tensor) -> Held:
    """e was made of exp(scores)."""
    held, e_as_seen = note.held, _as_seen(note, e)
    if e_as_seen is None or held.scores is None:
        return held.next(unclear=held.unclear or CHANGED)
    return _masked(held, _exponentials(held), e_as_seen, 0.0)


@torch.no_grad()
def after_weights(note: Note, p: Tensor) -> Held:
    """p was made of softmax(scores), and divided by its sum."""
    held, p_as_seen = note.held, _as_seen(note, p)
    if p_as_seen is None or held.scores is None or held.added is not None:
        return held.next(unclear=held.unclear or CHANGED)
    wide = torch.promote_types(held.scores.dtype, torch.float32)
    before, gone = held.scores.detach().to(wide).softmax(held.key), p_as_seen == 0
    kept = before.masked_fill(gone, 0)
    return _masked(held, torch.where(gone, before, kept / kept.sum(held.key, keepdim=True)), p_as_seen, GUARD)


@torch.no_grad()
def is_sum_of(held: Held, b: Tensor) -> bool:
    """Whether b is the sum of exp(scores), row by row, whatever it was made with."""
    if held.scores is None or held.unclear is not None or not b.is_floating_point():
        return False
    if held.added is not None or b.numel() * held.scores.shape[held.key] != held.scores.numel():
        return False
    total = sum_of(held)
    assert total is not None
    near = max(8 * torch.finfo(b.dtype).eps, GUARD)
    return torch.allclose(b.detach().reshape(total.shape).to(total.dtype), total, near, 0.0)


@torch.no_grad()
def sum_of(held: Held) -> Optional[Tensor]:
    """The sum of exp(scores), if nothing was added to it."""
    if held.scores is None or held.added is not None:
        return None
    return _exponentials(held).sum(held.key, keepdim=True)


def _exponentials(held: Held) -> Tensor:
    assert held.scores is not None
    e = held.scores.detach().exp()
    return e if held.hidden is None else e.masked_fill(held.hidden, 0)


def _as_seen(note: Note, x: Tensor) -> Optional[Tensor]:
    """In the shape of the scores that softmax saw, of which lead axes may have been joined or divided since."""
    held = note.held
    if held.scores is None or x.numel() != held.scores.numel():
        return None
    shape = held.scores.shape
    if x.shape == shape and (note.row, note.key) == (held.row, held.key):
        return x.detach()
    last = all(n.row == axes - 2 and n.key == axes - 1 for n, axes in ((note, x.ndim), (held, len(shape))))
    return x.detach().reshape(shape) if last and x.shape[-2:] == shape[-2:] else None


def _masked(held: Held, before: Tensor, after: Tensor, guard: float) -> Held:
    """Keys are hidden where nothing is left of something. Where there was nothing before, nobody knows, unless a number
    hides them as well."""
    assert held.scores is not None
    before = before.to(after.dtype)
    zero = after == 0
    near = max(8 * torch.finfo(after.dtype).eps, guard) * before.abs() + _NOTHING * before.amax(held.key, keepdim=True)
    same = ((after - before).abs() <= near) | (after == before) | (after.isnan() & before.isnan())
    if not bool((zero | same).all()):
        return held.next(unclear=held.unclear or CHANGED)
    hidden = zero & (before != 0)
    if not bool(hidden.any()):
        return held
    scores = held.scores.detach()
    nothing = zero & (before == 0) & (scores > scores.amax(held.key, keepdim=True) - _BY_NUMBER)
    if held.hidden is not None:
        nothing &= ~held.hidden
        hidden |= held.hidden
    if bool(nothing.any()):
        return held.next(unclear="a mask of zeros came to exponentials or weights of which some were 0 before")
    return held.next(hidden=hidden)
