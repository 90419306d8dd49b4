"""Who sees whom: causal masks, windows, sinks, and rows that see nothing."""

from __future__ import annotations

import dataclasses
import math
from typing import Sequence

import numpy as np

from .probe import Array, Probe, Refused
from .promise import Finding, Window, compare, listed
from .score_law import Position


@dataclasses.dataclass(frozen=True)
class Sight:
    """Which keys a query sees, where no mask is given."""

    causal: str = "none"  # as in Promise, or words for what is no causal mask
    left: int | None = None  # keys before and after the query's own; None: all that were tried
    right: int | None = None
    alignment: str | None = "top_left"  # None: only as many queries as keys are taken
    detail: str = ""
    known: bool = True  # False: visible is what no causal mask and no window describes


def sight(probe: Probe, dim: int, longest: int, where: Position, c: Array | None) -> Sight:
    """All scores are 0, or what ALiBi adds is taken away by q·k, so that no visible key is too improbable to be
    seen."""

    def seen(len_q: int, len_kv: int) -> Array:
        q = np.zeros((1, probe.heads, len_q, dim))
        k = np.zeros((1, probe.heads, len_kv, dim))
        if where.none or c is None or not c.all():
            return probe.probabilities(q, k)
        axis = probe.axis.get(dim, 0)
        q[..., axis] = 1.0
        k[..., axis] = -where.slopes[:, None] / c[:, None] * np.arange(len_kv)
        # keys before the query, and keys after it
        return np.fmax(probe.probabilities(q, k), probe.probabilities(q, -k))

    square = seen(longest, longest)
    if not np.isfinite(square).all():
        return Sight("not finite", detail="zero scores give NaN", known=False)
    visible = square[0] > 0
    i, j = np.indices(visible.shape)
    left, right = int(np.max(np.where(visible, i - j, 0))), int(np.max(np.where(visible, j - i, 0)))
    alike = all(((square[h] > 0) == visible).all() for h in range(probe.heads))
    if not alike or not (visible == ((i - j <= left) & (j - i <= right))).all():
        return Sight(*_another_mask(square, alike), known=False)
    causal = right == 0 and longest > 1
    before = None if left == longest - 1 else left
    after = None if right == longest - 1 or causal else right
    if not causal and before is None and after is None:
        return Sight()
    # More keys than queries tell the alignment: as few as show both ends of the band.
    n = 3 if causal else min(longest, left + 2 if before is not None else 3)
    try:
        wide = seen(n, n + 4)[0] > 0
    except Refused as refused:
        return Sight("square only" if causal else "none", before, after, None, str(refused))
    i, j = np.indices(wide.shape)
    for name, offset in (("top_left", 0), ("bottom_right", 4)):
        if (wide == ((j - i - offset <= right) & (i + offset - j <= left))).all():
            return Sight(name if causal else "none", before, after, name)
    return Sight(
        "another alignment",
        before,
        after,
        None,
        f"{int(wide.sum())} of {wide.size} pairs are visible with {n} queries and {n + 4} keys",
        known=False,
    )


def _another_mask(p: Array, alike: bool) -> tuple[str, None, None, None, str]:
    """Words for a pattern that no causal mask and no window makes; p is [heads, query, key] at equal scores."""
    n = p.shape[-1]
    mass, counts = p.sum(-1), (p > 0).sum(-1)
    shown: Array = p[p > 0]
    share = float((p > 0).mean())
    if np.ptp(mass) > 1e-2 and np.allclose(shown, shown[0], rtol=1e-2) and abs(shown[0] * n * share - 1) < 0.1:
        return (
            "dropout",
            None,
            None,
            None,
            f"{1 - share:.2f} of the probabilities are 0 and the others larger by "
            f"{shown[0] * n:.2f}, the same ones in every call",
        )
    few = int(counts.max())
    if few < n and (counts == np.minimum(few, np.arange(1, n + 1))).all() or (counts == few).all():
        return f"only {few} keys", None, None, None, f"each query reads {few} keys: only those with the largest scores?"
    if not alike:
        return "differs between heads", None, None, None, "visible pairs by head: " + listed(counts.sum(-1), 6)
    return "another mask", None, None, None, f"{int(counts[0].sum())} of {n * n} pairs are visible"


def window_finding(found: Sight, promised: Window) -> Finding:
    """A causal window of W is the query's own key and W − 1 before it, as transformers counts; two sides are (left,
    right)."""
    if not found.known and found.left is None:
        return Finding("window", "unknown", "" if promised is None else window_words(promised), None)
    causal = found.causal != "none"
    left, right = found.left, found.right
    one_sided = causal or right is None
    if left is None and (causal or right is None):
        text, detail = "none", ""
    elif one_sided:
        assert left is not None
        text = str(left + 1)
        detail = (
            f"a query sees its own key and {left} before it: transformers' sliding_window={left + 1}, FlashAttention's "
            f"({left}, {0 if causal else -1})"
        )
    else:
        text = window_words((left, right))
        before = "all" if left is None else left
        detail = f"{before} keys before a query's own and {right} after it, as FlashAttention counts"
    if promised is None:
        return Finding("window", text, "", None, detail)
    if isinstance(promised, str):
        ok = text == promised
    elif isinstance(promised, int):
        ok = left == promised - 1 if one_sided else left == right == promised
        off = None if left is None or not one_sided else left + 1 - promised
        if off in (1, -1):
            detail = f"one key {'more' if off == 1 else 'fewer'} than promised; " + detail
    else:
        wanted = tuple(None if side is None or side < 0 else int(side) for side in promised)
        ok = left == wanted[0] and (causal or right == wanted[1])
    return Finding("window", text, window_words(promised), ok, detail)


def window_words(window: Window) -> str:
    if window is None or isinstance(window, (int, str)):
        return str(window)
    return "({}, {})".format(*(-1 if side is None else side for side in window))


def sink(
    probe: Probe, dim: int, where: Position, promised: str | Sequence[float] | None
) -> tuple[Array | None, Finding]:
    """All scores are 0 but for what ALiBi adds: visible keys keep n/(n + e^z) of the probability, n = Σ e^added. The
    scores of the sinks are None where there is none, NaN where the sums are no sink's."""
    n = 4
    zero = np.zeros((1, probe.heads, n, dim))
    kept = probe.probabilities(zero, zero)[:, -1]
    added = -where.slopes[:, None] * np.arange(n - 1, -1, -1)
    seen = np.where(kept > 0, np.exp(added), 0.0).sum(-1)
    mass = kept.sum(-1)
    lost = 1 - mass
    promise_words = "" if promised is None else promised if isinstance(promised, str) else listed(promised)
    if (np.abs(lost) <= 8 * probe.unit).all():
        return None, Finding("sink", "none", promise_words, None if promised is None else promise_words == "none")
    if (lost < -8 * probe.unit).any() or (mass <= 0).any() or not np.isfinite(mass).all():
        return np.full(probe.heads, np.nan), Finding(
            "sink", "probabilities sum to " + listed(mass), promise_words, None if promised is None else False
        )
    scores = np.log(seen * np.maximum(lost, 0) / mass).round(6) + 0.0  # no -0
    off_by_one = " (softmax off by one)" if np.abs(scores).max() < 1e-3 else ""
    found = "scores " + ", ".join(f"{z:.3f}" for z in scores) + off_by_one
    if promised is None or isinstance(promised, str):
        return scores, Finding("sink", found, promise_words, None if promised is None else False)
    wanted = np.broadcast_to(np.asarray(promised, dtype=np.float64), scores.shape)
    # The mass is rounded to the dtype, and e^z is what is missing from it.
    room = max(0.01, 16 * probe.unit * float(np.max(np.exp(-wanted) + 1)) * n)
    ok = bool(np.abs(scores - wanted).max() <= room)
    return wanted if ok else scores, Finding("sink", found, listed(wanted), ok)


def masked_rows(probe: Probe, dim: int, found: Sight, mask: str, promised: str | None) -> Finding:
    """By a mask that hides everything, or, bottom-right, by more queries than keys."""
    name = "masked_rows"
    try:
        if probe.mask_name is not None:
            zero = np.zeros((1, probe.heads, 4, dim))
            v = zero + np.array([1.0, 2.0, 4.0, 9.0])[None, None, :, None]
            row = probe(zero, zero, v, np.full((1, 1, 4, 4), mask == "true_hides"))[0, 0, -1, 0]
        elif found.causal == "bottom_right":
            v = np.zeros((1, probe.heads, 2, dim)) + np.array([3.0, 5.0])[None, None, :, None]
            row = probe(np.zeros((1, probe.heads, 5, dim)), np.zeros((1, probe.heads, 2, dim)), v)[0, 0, 0, 0]
        else:
            return Finding(name, "cannot be made", promised or "", None)
    except Refused as refused:
        return Finding(name, "refused", promised or "", None, str(refused))
    given = "nan" if math.isnan(row) else "zero" if row == 0 else "mean" if abs(row - 4) < 0.05 else f"{row:.4g}"
    return compare(name, given, promised)
