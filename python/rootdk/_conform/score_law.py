"""How a score follows from q and k, read off probabilities: components, ALiBi, scale, soft-cap, large scores."""

from __future__ import annotations

import dataclasses
import math
from typing import Callable, Sequence

import numpy as np
import numpy.typing as npt

from .probe import Array, Probe, log_ratio
from .promise import Finding, compare, listed, standard_slopes


def scale_tolerance(probe: Probe) -> float:
    """Of a scale: it is read from ln p of differences near 1, with p and two scores rounded to the dtype, each off by
    less than a unit or so of its own size, which is at most 4; a sum of squares of that, with room for a sloppy exp."""
    return 64 * probe.unit


@dataclasses.dataclass(frozen=True)
class Position:
    """What is added to a score because of where its key stands."""

    slopes: Array  # of ALiBi, [heads]; 0 without
    step: Array  # what the last of two keys has over the one before it: the slope, if it is ALiBi
    error: float = 0.0  # how far a slope may be off
    by_key: bool = False  # + slope·j, also after the query
    alignment: str = "bottom_right"
    known: bool = True

    @property
    def none(self) -> bool:
        return self.known and not self.slopes.any()


def position(probe: Probe, dim: int, promised: str | Sequence[float] | None) -> tuple[Position, Finding]:
    """All scores are 0: what is left of ln p is what the position adds."""
    n = 4 if probe.deepest <= 8 else 8
    zero = np.zeros((1, probe.heads, n, dim))
    p = probe.probabilities(zero, zero)
    added = np.log(p) - np.log(np.diagonal(p, axis1=1, axis2=2))[..., None]  # [heads, query, key]; own key: 0
    added = np.where((p > 0) & np.isfinite(added), added, np.nan)
    i, j = np.indices((n, n))
    none = Position(np.zeros(probe.heads), np.zeros(probe.heads))
    # Two probabilities and two scores are rounded to the dtype, a few times over on the way; a slope is read over n − 1
    # keys.
    room = 16 * probe.unit * np.maximum(1.0, np.nan_to_num(np.abs(added)))
    fine = 2 * room[:, -1].max(-1) / (n - 1)  # [heads]
    if not (np.abs(added) > room).any():
        return none, compare(
            "alibi", "none", promised if promised is None or isinstance(promised, str) else listed(promised)
        )
    far = [
        next(((added[h, -1, a] / (n - 1 - a)) for a in range(n - 1) if not np.isnan(added[h, -1, a])), 0.0)
        for h in range(probe.heads)
    ]
    slopes = -np.asarray(far)
    after = j > i
    for by_key in (False, True):
        law = -slopes[:, None, None] * ((i - j) if by_key else np.abs(i - j))
        if not (np.abs(added - law) > room + fine[:, None, None] * np.abs(i - j)).any():
            break
    else:
        return dataclasses.replace(none, step=probe.gaps([0.0, 0.0], dim)[:, 1], known=False), Finding(
            "alibi",
            "another bias by position",
            "" if promised is None else str(promised),
            None if promised is None else False,
            "last query, head 0: " + listed(added[0, -1]),
        )
    both = not np.isnan(added[:, after]).all()
    alignment = "bottom_right"
    if both and not by_key:
        wide = log_ratio(probe.probabilities(np.zeros((1, probe.heads, 3, dim)), np.zeros((1, probe.heads, 7, dim))))
        alignment = (
            "bottom_right"
            if wide[np.argmax(np.abs(slopes)), 0, 1] * slopes[np.argmax(np.abs(slopes))] > 0
            else "top_left"
        )
    standard = np.asarray(standard_slopes(probe.heads))
    close = np.abs(slopes - standard) <= fine
    found = f"slopes {listed(standard)} (standard)" if close.all() else f"slopes {listed(slopes + 0.0)}"
    detail = "a bias that falls with the distance of a key" + (", or grows with its position" if by_key else "")
    law_found = Position(slopes, slopes, float(fine.max()), by_key, alignment)
    if close.all():
        law_found = dataclasses.replace(law_found, slopes=standard, step=standard, error=0.0)
    if promised is None:
        return law_found, Finding("alibi", found, "", None, detail)
    if isinstance(promised, str):
        ok = promised == "standard" and bool(close.all())
        return law_found, Finding("alibi", found, promised, ok, detail)
    wanted = np.broadcast_to(np.asarray(promised, dtype=np.float64), slopes.shape)
    ok = bool((np.abs(slopes - wanted) <= fine).all())
    digits = 4 if ok or listed(wanted) != listed(slopes) else 12
    found = found if digits == 4 else f"slopes {listed(slopes, digits)}"
    return (dataclasses.replace(law_found, slopes=wanted, step=wanted, error=0.0) if ok else law_found), Finding(
        "alibi", found, listed(wanted, digits), ok, detail
    )


def components(probe: Probe, dim: int, where: Position) -> Array:
    """How much each component of q and k counts, relative to the most: [dim]. Two keys, one of them 0 and one all ones,
    and a query with nothing but one component; all alike in every head, so that it does not matter which head reads
    which."""

    def moved(q: Array, x: float) -> Array:
        queries = np.zeros((1, probe.heads, 2, dim))
        queries[:] = q
        k = np.zeros((1, probe.heads, 2, dim))
        k[:, :, 1] = x
        gap: Array = log_ratio(probe.probabilities(queries, k)[:, -1])[:, 1] - where.step
        return gap

    x = 2.0**-12
    while x < 2.0**40 and not (np.abs(moved(np.ones(dim), x)) > 0.25).any():
        x *= 2
    if x >= 2.0**40:
        return np.zeros(dim)
    each = np.stack([moved(component, x * dim) for component in np.eye(dim)])  # [dim, heads]
    each = np.where(np.isfinite(each), each, 0.0)
    strongest = each[:, np.abs(each).max(0).argmax()]
    most: float = np.abs(strongest).max()
    return strongest / most if most > 0 else np.zeros(dim)


def dims_finding(probe: Probe, weights: dict[int, Array], promised: str | None) -> Finding:
    """Rounding to the dtype moves ln p by a few units; what counts less than half is not counted."""
    if not any(weight.any() for weight in weights.values()):
        return Finding("dims", "unknown", promised or "", None)
    for dim, weight in weights.items():
        counts = np.abs(weight) > 0.5
        if not counts.all():
            return compare("dims", ignored_words(counts), promised, f"at d_k {dim}")
        if np.ptp(np.abs(weight)) > 4 * scale_tolerance(probe) + 0.01 or (weight < 0).any() != (weight < 0).all():
            return compare(
                "dims", "not all alike", promised, f"at d_k {dim} components count {listed(weight[:8], 3)}, …"
            )
    return compare("dims", "all", promised)


def ignored_words(counts: npt.NDArray[np.bool_]) -> str:
    used = np.flatnonzero(counts)
    n = len(counts)
    if (used == np.arange(len(used))).all():
        return f"only the first {len(used)} of {n} count"
    if (used == np.arange(n - len(used), n)).all():
        return f"only the last {len(used)} of {n} count"
    if len(used) > 1 and (np.diff(used) == used[1] - used[0]).all() and used[1] - used[0] > 1:
        return f"only every {used[1] - used[0]}th of {n} counts, from component {used[0]}"
    return f"{n - len(used)} of {n} are ignored"


def scale(probe: Probe, dim: int, where: Position, cap: float | None = None) -> tuple[Array, bool]:
    """The slope of the score at 0, per head, with what a cap does to it taken away: exactly if it is known,
    extrapolated from two slopes if not; and whether the size of q counts at all."""

    def gap(x: float) -> Array:
        # The last two keys are the ones compared: a window of two still sees them.
        return np.asarray(probe.gaps([0.0, x], dim)[:, 1] - where.step)

    x = 2.0**-10
    while x < 2.0**40 and not (np.abs(gap(x)) > 0.25).all():
        x *= 2
    if x >= 2.0**40:
        return np.zeros(probe.heads), False
    one, half = gap(x) / x, gap(x / 2) / (x / 2)
    normalised = bool(np.isfinite(gap(x)).all() and np.allclose(gap(x / 2), gap(x), rtol=1e-2))
    if cap is not None:
        return cap * np.arctanh(one * x / cap) / x, normalised
    return (4 * half - one) / 3, normalised


def scale_finding(
    probe: Probe,
    scales: dict[int, float],
    promised: str | float | None,
    varied: Array | None,
    normalised: bool | None,
    slack: float,
) -> Finding:
    """`slack`: what a cap that was measured, not promised, leaves uncertain."""
    if not scales or not all(math.isfinite(c) for c in scales.values()):
        return Finding(
            "scale", "unknown", "" if promised is None else str(promised), None, "no query was seen to read two keys"
        )
    tolerance = scale_tolerance(probe) + slack

    def follows(rule: Callable[[int], float]) -> bool:
        return all(abs(c - rule(d)) <= tolerance * rule(d) for d, c in scales.items())

    rules: dict[str, Callable[[int], float]] = {
        "sqrt_dk": lambda d: d**-0.5,
        "none": lambda d: 1.0,
        "dk": lambda d: 1.0 / d,
        "1/√d_k twice": lambda d: 1.0 / d,
        "d_k^(-1/4)": lambda d: d**-0.25,
    }
    shown = {"sqrt_dk": "1/√d_k", "none": "1", "dk": "1/d_k"}
    measured = ", ".join(f"{c:.6g} at d_k {d}" for d, c in scales.items())
    values = list(scales.values())
    found = next((shown.get(name, name) for name, rule in rules.items() if follows(rule)), None)
    if not any(values):
        found = "0: q·k does not count"
    elif normalised:
        found = "q and k are normalised"
    elif varied is not None:
        found = "one per head: " + ", ".join(f"{c:.4g}" for c in varied)
    elif found is None and len(values) > 1 and np.ptp(values) <= tolerance * abs(values[0]):
        first = next(iter(scales))
        near = min(range(1, 1025), key=lambda d: abs(d**-0.5 - values[0]))
        meant = abs(near**-0.5 - values[0]) <= tolerance * values[0] and near != first
        found = f"{values[0]:.6g} whatever d_k is" + (f" (1/√{near})" if meant else "")
    elif found is None:
        factor = [c * d**0.5 for d, c in scales.items()]
        found = f"{factor[0]:.6g}/√d_k" if np.ptp(factor) <= tolerance * abs(factor[0]) else measured
    if promised is None:
        return Finding("scale", found, "", None, measured)
    if isinstance(promised, str):
        ok = follows(rules[promised]) and varied is None and not normalised
        return Finding("scale", found, shown[promised], ok, measured)
    ok = follows(lambda d: float(promised)) and varied is None and not normalised
    return Finding("scale", found, f"{float(promised):.6g}", ok, measured)


def softcap(
    probe: Probe, dim: int, c: float, where: Position, promised: float | str | None
) -> tuple[float | None, float, Finding]:
    """Far out, a cap makes the score grow more slowly: the slope between S and S − step is compared with 1. The cap is
    None where there is none, NaN where the bound is another one; with it comes how far it may be off, relatively."""
    slopes: list[tuple[float, float, float]] = []
    top = 1024.0 if probe.unit < 1e-6 else 64.0
    # Powers of two and sums of two of them are exact in every dtype, so that rounded inputs are not taken for a cap.
    most = math.floor(math.log2((8.0 if probe.deepest > 8 else 4.0) / abs(c)))
    for m in range(math.ceil(math.log2(2 / abs(c))), math.floor(math.log2(top / abs(c))) + 1):
        j = min(m - 1, most)
        gap = float(probe.gaps([2.0**m - 2.0**j, 2.0**m], dim, 2.0 ** max(0, m // 2))[0, 1] - where.step[0])
        slopes.append((abs(c) * 2.0**m, abs(c) * 2.0**j, gap / (c * 2.0**j)))
    # A score of size s is rounded by unit·s, a few times over; that is all a slope may be off by.
    bent = [(s, step, slope) for s, step, slope in slopes if slope < 1 - max(1e-3, 16 * probe.unit * s / step)]
    if not bent:
        return None, 0.0, _cap_finding("none", promised, f"scores grow evenly up to {top:g}")
    s, step, slope = next((b for b in bent if b[2] < 0.9), bent[-1])

    def bend(cap: float, s: float, step: float) -> float:
        return cap * (math.tanh(s / cap) - math.tanh((s - step) / cap)) / step

    def cap_of(slope: float) -> float:
        low, high = s / 50, s * 100
        for _ in range(200):
            cap = math.sqrt(low * high)
            low, high = (cap, high) if bend(cap, s, step) < slope else (low, cap)
        return math.sqrt(low * high)

    cap = cap_of(slope)
    # Two probabilities and two scores of about the cap's size are rounded.
    off = 4 * probe.unit * (1 + min(cap, s)) / step
    error = max(0.01, cap_of(slope + off) / cap - 1, 1 - cap_of(slope - off) / cap)

    fits = all(abs(bend(cap, s, step) - slope) <= max(0.01, 64 * probe.unit * s / step) for s, step, slope in slopes)
    if not fits:
        return (
            math.nan,
            0.0,
            _cap_finding("another bound", promised, f"scores flatten out near {cap:.3g}, but not as tanh"),
        )
    finding = _cap_finding(cap, promised, "", error)
    return (float(promised), 0.0, finding) if finding.ok and promised is not None else (cap, error, finding)


def _cap_finding(found: float | str, promised: float | str | None, detail: str, error: float = 0.0) -> Finding:
    text = found if isinstance(found, str) else f"{found:.4g}"
    if promised is None:
        return Finding("softcap", text, "", None, detail)
    if isinstance(found, str) or isinstance(promised, str):
        return Finding("softcap", text, str(promised), text == str(promised), detail)
    return Finding("softcap", text, f"{promised:g}", abs(found - promised) <= error * found, detail)


def large_scores(probe: Probe, dim: int, c: float, where: Position, sink: bool, promised: str | None) -> Finding:
    """Two keys of the same score, however large, share as they do at 0; only a sink has its own say."""
    # Beyond what exp can bear in the dtype (e^709, e^88; e^11 in f16), and within what q·k itself can: 65504 in f16.
    top, most = {"float64": (1024.0, 2.0**40), "float16": (128.0, 2.0**14)}.get(probe.dtype, (256.0, 2.0**40))
    m = math.ceil(math.log2(4 / abs(c)))
    rest = probe.gaps([0.0, 0.0], dim)[:, 1]
    while 2.0**m <= most:
        for sign in (1.0, -1.0):
            gap = probe.gaps([sign * 2.0**m] * 2, dim, 2.0 ** (m // 2))[:, 1]
            if sink and sign * c < 0:
                continue  # all the mass is the sink's
            # Both scores are the same number: whatever they were rounded to, they stay the same, unless ALiBi is added
            # to them.
            if not (np.abs(gap - rest) <= 16 * probe.unit * (1.0 if where.none else abs(c) * 2.0**m)).all():
                s = c * sign * 2.0**m
                words = "overflow" if s > 0 else "underflow"
                return compare(
                    "large_scores",
                    f"{words} from {s:.3g} on",
                    promised,
                    "exp without the row's maximum taken away first?"
                    if not np.isfinite(gap).all()
                    else f"two keys of the same score differ by {listed(np.abs(gap - rest).max())}",
                )
        if abs(c) * 2.0**m >= top:
            break
        m += 1
    return compare("large_scores", "right", promised)
