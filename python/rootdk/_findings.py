"""What each property of an attention function looks like from outside, and how it compares with what was promised."""
from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, Sequence

import numpy as np

from ._probe import Array, Probe, Refused


@dataclasses.dataclass(frozen=True)
class Promise:
    """What a function is said to compute. None: nothing was promised."""

    scale: str | float | None = "sqrt_dk"  #: "sqrt_dk", "none", "dk", or a number
    softcap: float | str | None = "none"
    causal: str | None = "none"  #: "none", "top_left", "bottom_right"
    window: int | str | None = "none"  #: keys to the left of the query's own
    sink: str | Sequence[float] | None = "none"  #: or the score of each head's sink
    mask: str | None = "true_shows"  #: or "true_hides"
    bias: str | None = "after_scale"  #: a float mask is added to the scores as they are; or "before_scale", "ignored"
    gqa: str | None = "blocked"  #: query head h reads key head h // group; or "interleaved"
    masked_rows: str | None = "zero"  #: what a query that sees nothing gets; or "nan", "mean"
    precision: str | None = "full"  #: products and sums of products; or what was found


@dataclasses.dataclass(frozen=True)
class Finding:
    property: str
    found: str
    promised: str
    ok: bool | None  #: None: nothing was promised, or it could not be found out
    detail: str = ""


def findings(probe: Probe, promise: Promise, dims: list[int], heads_kv: int | None, longest: int) -> list[Finding]:
    found: list[Finding] = []
    dim = dims[0]
    try:
        causal, window, seen = _visibility(probe, dim, longest)
    except Refused as refused:
        return [Finding("call", "refused", "an output", False, str(refused))]
    found.append(_compare("causal", causal, promise.causal, seen))
    found.append(_compare("window", window, promise.window))

    scales: dict[int, float] = {}
    first: dict[int, float] = {}  # of head 0
    varied = normalised = None
    for d in dims:
        try:
            per_head, normalised = _scale(probe, d)
        except Refused as refused:
            found.append(Finding("dim", f"{d} is refused", "", None, str(refused)))
            continue
        scales[d], first[d] = float(np.median(per_head)), float(per_head[0])
        if np.ptp(per_head) > _tolerance(probe) * max(abs(scales[d]), 1e-30):
            varied = per_head
    found.append(_scale_finding(probe, scales, promise.scale, varied, normalised))
    c = first.get(dim)

    if c and math.isfinite(c):
        found.append(_softcap(probe, dim, c, promise.softcap))
    found.append(_sink(probe, dim, promise.sink))
    if heads_kv is not None:
        found.append(_gqa(probe, dim, heads_kv, promise.gqa))
    if probe.mask_name is not None:
        found.extend(_mask(probe, dim, c, promise))
    found.append(_masked_rows(probe, dim, causal, promise.masked_rows))
    if c and math.isfinite(c):
        found.append(_precision(probe, max(first), first[max(first)], promise.precision))
    return found


def _compare(name: str, found: Any, promised: Any, detail: str = "") -> Finding:
    if promised is None:
        return Finding(name, str(found), "", None, detail)
    return Finding(name, str(found), str(promised), str(found) == str(promised), detail)


def _tolerance(probe: Probe) -> float:
    """Of a scale: it is read from ln p of differences near 1, with p and two scores rounded to the dtype, each off by less than a
    unit or so of its own size, which is at most 4; a sum of squares of that, with room for a sloppy exp."""
    return 64 * probe.unit


def _visibility(probe: Probe, dim: int, longest: int) -> tuple[str, str, str]:
    """All scores are 0, so every visible key has the same probability."""

    def seen(len_q: int, len_kv: int) -> Array:
        zero = np.zeros((1, probe.heads, len_q, dim))
        return probe.probabilities(zero, np.zeros((1, probe.heads, len_kv, dim)))

    square = seen(longest, longest)
    if not np.isfinite(square).all():
        return "not finite", "unknown", "zero scores give NaN"
    visible = square[0] > 0
    if not all(((square[h] > 0) == visible).all() for h in range(probe.heads)):
        return "differs between heads", "unknown", ""
    i, j = np.indices(visible.shape)
    hidden_after = not (visible & (j > i)).any()
    left = np.max(np.where(visible, i - j, 0))
    right = np.max(np.where(visible, j - i, 0))
    if not (visible == ((i - j <= left) & (j - i <= right))).all():
        return "another mask", "unknown", f"{int(visible.sum())} of {visible.size} pairs are visible"
    window = "none" if left == longest - 1 else str(int(left))
    if not hidden_after:
        return "none", window if right == longest - 1 else f"{int(left)}, {int(right)} to the right", ""
    if right < 0:
        return "another mask", window, ""
    try:
        wide = seen(3, 7)[0] > 0
    except Refused as refused:
        return "square only", window, str(refused)
    i, j = np.indices(wide.shape)
    for name, offset in (("top_left", 0), ("bottom_right", 4)):
        if (wide == ((j <= i + offset) & (i + offset - j <= left))).all():
            return name, window, ""
    return "another alignment", window, f"{int(wide.sum())} of 21 pairs are visible with 3 queries and 7 keys"


def _scale(probe: Probe, dim: int) -> tuple[Array, bool]:
    """The slope of the score at 0, per head, with what a cap would do to it extrapolated away; and whether the size of q counts
    at all."""

    def gap(x: float, size: float = 1.0) -> Array:
        # The last two keys are the ones compared: a window of two still sees them.
        return probe.gaps([0.0, x], dim, size)[:, 1]

    x = 2.0**-10
    while x < 2.0**40 and not (np.abs(gap(x)) > 0.25).all():
        x *= 2
    if x >= 2.0**40:
        return np.zeros(probe.heads), False
    one, half = gap(x) / x, gap(x / 2) / (x / 2)
    normalised = bool(np.allclose(gap(x / 2), gap(x), rtol=1e-2))
    return (4 * half - one) / 3, normalised


def _scale_finding(probe: Probe, scales: dict[int, float], promised: str | float | None, varied: Array | None,
                   normalised: bool | None) -> Finding:
    if not scales:
        return Finding("scale", "unknown", "" if promised is None else str(promised), None)
    tolerance = _tolerance(probe)

    def follows(rule: Callable[[int], float]) -> bool:
        return all(abs(c - rule(d)) <= tolerance * rule(d) for d, c in scales.items())

    rules: dict[str, Callable[[int], float]] = {"sqrt_dk": lambda d: d**-0.5, "none": lambda d: 1.0, "dk": lambda d: 1.0 / d,
                                                "1/√d_k twice": lambda d: 1.0 / d, "d_k^(-1/4)": lambda d: d**-0.25}
    shown = {"sqrt_dk": "1/√d_k", "none": "1", "dk": "1/d_k"}
    measured = ", ".join(f"{c:.6g} at d_k {d}" for d, c in scales.items())
    values = list(scales.values())
    found = next((shown.get(name, name) for name, rule in rules.items() if follows(rule)), None)
    if normalised:
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
        if promised not in ("sqrt_dk", "none", "dk"):
            raise ValueError(f'promise.scale: "{promised}", but "sqrt_dk", "none", "dk" or a number is wanted')
        ok = follows(rules[promised]) and varied is None and not normalised
        return Finding("scale", found, shown[promised], ok, measured)
    ok = follows(lambda d: float(promised)) and varied is None and not normalised
    return Finding("scale", found, f"{float(promised):.6g}", ok, measured)


def _softcap(probe: Probe, dim: int, c: float, promised: float | str | None) -> Finding:
    """Far out, a cap makes the score grow more slowly: the slope between S and S − step is compared with 1."""
    slopes: list[tuple[float, float, float]] = []
    top = 1024.0 if probe.unit < 1e-6 else 64.0
    # Powers of two and sums of two of them are exact in every dtype, so that rounded inputs are not taken for a cap.
    most = math.floor(math.log2((8.0 if probe.deepest > 8 else 4.0) / abs(c)))
    for m in range(math.ceil(math.log2(2 / abs(c))), math.floor(math.log2(top / abs(c))) + 1):
        j = min(m - 1, most)
        gap = float(probe.gaps([2.0**m - 2.0**j, 2.0**m], dim, 2.0 ** max(0, m // 2))[0, 1])
        slopes.append((abs(c) * 2.0**m, abs(c) * 2.0**j, gap / (c * 2.0**j)))
    # A score of size s is rounded by unit·s, a few times over; that is all a slope may be off by.
    bent = [(s, step, slope) for s, step, slope in slopes if slope < 1 - max(1e-3, 16 * probe.unit * s / step)]
    if not bent:
        return _cap_finding("none", promised, f"scores grow evenly up to {top:g}")
    s, step, slope = next((b for b in bent if b[2] < 0.9), bent[-1])
    low, high = s / 50, s * 100
    for _ in range(200):
        cap = math.sqrt(low * high)
        predicted = cap * (math.tanh(s / cap) - math.tanh((s - step) / cap)) / step
        low, high = (cap, high) if predicted < slope else (low, cap)
    cap = math.sqrt(low * high)

    def bend(s: float, step: float) -> float:
        return cap * (math.tanh(s / cap) - math.tanh((s - step) / cap)) / step

    fits = all(abs(bend(s, step) - slope) <= max(0.01, 64 * probe.unit * s / step) for s, step, slope in slopes)
    if not fits:
        return _cap_finding("another bound", promised, f"scores flatten out near {cap:.3g}, but not as tanh")
    return _cap_finding(cap, promised, "")


def _cap_finding(found: float | str, promised: float | str | None, detail: str) -> Finding:
    text = found if isinstance(found, str) else f"{found:.4g}"
    if promised is None:
        return Finding("softcap", text, "", None, detail)
    if isinstance(found, str) or isinstance(promised, str):
        return Finding("softcap", text, str(promised), text == str(promised), detail)
    return Finding("softcap", text, f"{promised:g}", abs(found - promised) <= 0.01 * promised, detail)


def _sink(probe: Probe, dim: int, promised: str | Sequence[float] | None) -> Finding:
    """All scores are 0: n visible keys keep n/(n + e^z) of the probability."""
    n = 4
    zero = np.zeros((1, probe.heads, n, dim))
    kept = probe.probabilities(zero, zero)[:, -1]
    seen = (kept > 0).sum(-1)
    mass = kept.sum(-1)
    lost = 1 - mass
    if (np.abs(lost) <= 8 * probe.unit).all():
        found, scores = "none", None
    elif (lost < -8 * probe.unit).any() or (mass <= 0).any():
        return Finding("sink", "probabilities sum to " + ", ".join(f"{m:.4g}" for m in mass),
                       "" if promised is None else str(promised), None if promised is None else False)
    else:
        with np.errstate(divide="ignore"):
            scores = np.log(seen * np.maximum(lost, 0) / mass).round(6) + 0.0  # no -0
        off_by_one = " (softmax off by one)" if np.abs(scores).max() < 1e-3 else ""
        found = "scores " + ", ".join(f"{z:.3f}" for z in scores) + off_by_one
    if promised is None:
        return Finding("sink", found, "", None)
    if isinstance(promised, str) or scores is None:
        return Finding("sink", found, str(promised), isinstance(promised, str) and found == promised)
    wanted = np.broadcast_to(np.asarray(promised, dtype=np.float64), scores.shape)
    return Finding("sink", found, ", ".join(f"{z:g}" for z in wanted), bool(np.abs(scores - wanted).max() <= 0.01))


def _gqa(probe: Probe, dim: int, heads_kv: int, promised: str | None) -> Finding:
    """Every key head's values are its own number, so the output names the head that was read."""
    q = np.zeros((1, probe.heads, 4, dim))
    k = np.zeros((1, heads_kv, 4, dim))
    v = np.zeros((1, heads_kv, 4, dim)) + np.arange(1.0, heads_kv + 1)[None, :, None, None]
    try:
        read = probe(q, k, v)[0, :, -1, 0]
    except Refused as refused:
        return Finding("gqa", "refused", "" if promised is None else promised, None, str(refused))
    read = read / (probe(q, np.zeros((1, probe.heads, 4, dim)), np.ones((1, probe.heads, 4, dim)))[0, :, -1, 0])
    h = np.arange(probe.heads)
    if np.allclose(read - 1, h // (probe.heads // heads_kv), atol=1e-2):
        found = "blocked"
    elif np.allclose(read - 1, h % heads_kv, atol=1e-2):
        found = "interleaved"
    else:
        found = "heads " + ", ".join(f"{r - 1:.3g}" for r in read)
    return _compare("gqa", found, promised)


def _mask(probe: Probe, dim: int, c: float | None, promise: Promise) -> list[Finding]:
    out = []
    zero = np.zeros((1, probe.heads, 4, dim))
    shows = np.zeros((1, 1, 4, 4), dtype=bool)
    shows[..., 1] = True
    try:
        p = probe.probabilities(zero, zero, shows)[0, -1]
        found = "true_shows" if p[1] > 0 and p[[0, 2, 3]].max() == 0 else "true_hides" if p[1] == 0 and p[0] > 0 else "ignored"
        if found == "ignored" and not np.allclose(p, p[0], rtol=1e-2):
            found = "added to the scores"
        out.append(_compare("mask", found, promise.mask, "" if found != "ignored" else "p = " + ", ".join(f"{x:.3g}" for x in p)))
    except Refused as refused:
        out.append(Finding("mask", "bool is refused", promise.mask or "", None, str(refused)))
    bias = np.zeros((1, 1, 4, 4))
    bias[..., 2] = -1.0
    try:
        p = probe.probabilities(zero, zero, bias)[0, -1]
        with np.errstate(divide="ignore", invalid="ignore"):
            added = float(np.log(p[2] / p[1]))
        if abs(added + 1) < 0.02:
            found = "after_scale"
        elif c and abs(added + c) < 0.02 * abs(c):
            found = "before_scale"
        elif abs(added) < 0.01:
            found = "ignored"
        elif p[2] == 0:
            found = "taken for a boolean"
        else:
            found = f"adds {added:.3g} for -1"
        out.append(_compare("bias", found, promise.bias))
    except Refused as refused:
        out.append(Finding("bias", "refused", promise.bias or "", None, str(refused)))
    return out


def _masked_rows(probe: Probe, dim: int, causal: str, promised: str | None) -> Finding:
    """By a mask that hides everything, or, bottom-right, by more queries than keys."""
    name = "masked_rows"
    try:
        if probe.mask_name is not None:
            zero = np.zeros((1, probe.heads, 4, dim))
            v = zero + np.array([1.0, 2.0, 4.0, 9.0])[None, None, :, None]
            nothing = np.zeros((1, 1, 4, 4), dtype=bool)
            shows = np.zeros((1, 1, 4, 4), dtype=bool)
            shows[..., 1] = True
            if probe.probabilities(zero, zero, shows)[0, -1, 0] > 0:  # a function of the other polarity
                nothing = ~nothing
            row = probe(zero, zero, v, nothing)[0, 0, -1, 0]
        elif causal == "bottom_right":
            v = np.zeros((1, probe.heads, 2, dim)) + np.array([3.0, 5.0])[None, None, :, None]
            row = probe(np.zeros((1, probe.heads, 5, dim)), np.zeros((1, probe.heads, 2, dim)), v)[0, 0, 0, 0]
        else:
            return Finding(name, "cannot be made", promised or "", None)
    except Refused as refused:
        return Finding(name, "refused", promised or "", None, str(refused))
    found = "nan" if math.isnan(row) else "zero" if row == 0 else "mean" if abs(row - 4) < 0.05 else f"{row:.4g}"
    return _compare(name, found, promised)


def _precision(probe: Probe, dim: int, c: float, promised: str | None) -> Finding:
    """Inputs that only differ in their last bits, and a sum that only survives in a wider type than the dtype."""
    bits = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}[probe.dtype]
    # Keys 1 and 1 + 2^-kept, q so large that the scores differ by 1: rounding the inputs to fewer bits makes them equal. A
    # function may scale q first and round that, half a unit in the last place of each product; two bits less are beyond it.
    finest = bits - 2 if bits > 10 else bits
    lost = None
    for kept in (finest, 10, 7):
        if kept > finest:
            continue
        size = 2.0 ** round(math.log2(2.0**kept / abs(c)))  # a power of two: every product is exact
        q = np.zeros((1, probe.heads, 2, dim))
        k = np.zeros((1, probe.heads, 2, dim))
        q[..., 0] = size
        # The other component takes away what both have in common: the scores stay small, and only the product must be exact.
        q[..., 1] = -size
        k[..., 0, 0] = 1.0
        k[..., 1, 0] = 1.0 + 2.0**-kept
        k[..., 1] = 1.0
        p = probe.probabilities(q, k)[0, -1]
        with np.errstate(divide="ignore", invalid="ignore"):
            difference = float(np.log(p[1] / p[0])) / (c * size * 2.0**-kept)
        if not abs(difference - 1) < 0.25:
            lost = kept
    if lost is not None:
        return _compare("precision", f"products keep fewer than {lost} bits", promised, f"of the {bits} that {probe.dtype} has")
    if bits > 10:
        return _compare("precision", "full", promised)
    # 1 and many small ones: in a narrow sum they vanish one by one.
    small = 2.0 ** -(bits + 2)
    q = np.zeros((1, probe.heads, 2, dim))
    k = np.zeros((1, probe.heads, 2, dim))
    size = min(1.0 / (abs(c) * (dim - 2) * small), 2.0**10)
    q[..., :] = size
    q[..., -1] = -size
    k[..., 0] = 1.0
    k[..., -1] = 1.0
    k[:, :, 1, 1:-1] = small
    p = probe.probabilities(q, k)[0, -1]
    wanted = c * size * (dim - 2) * small
    measured = float(np.log(p[1] / p[0]))
    if abs(measured - wanted) > 0.25 * abs(wanted):
        return _compare("precision", f"sums in {probe.dtype}", promised,
                        f"small terms add up to {measured / wanted:.2f} of what they should")
    return _compare("precision", "full", promised)
