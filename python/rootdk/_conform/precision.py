"""How many bits of its inputs, probabilities and sums a function keeps."""

from __future__ import annotations

import math

import numpy as np

from .probe import BITS, Array, Probe, Refused, keep_bits, log_ratio
from .promise import Finding, compare

NAMES = {8: "bfloat16", 11: "float16 or TF32", 24: "float32"}


def kept_bits(probe: Probe, dim: int, rng: np.random.Generator) -> tuple[int, str]:
    """How many bits the output has, and of what; without knowing anything of the function. A number that was rounded to
    bfloat16 on its way out has zeros after its eighth bit; among a hundred numbers that is no accident."""
    n = min(dim, 7)
    q, k = (rng.standard_normal((1, probe.heads, n, dim)) for _ in range(2))
    full = probe.probabilities(q, k)
    p = full[(full > 0) & (full < 1)]
    # Rounded before they are divided by their sum, it is the ratio to the largest, e^0, that has few bits, but for the
    # roundings of the division and the output; where those are no finer than what is looked for, it cannot be told.
    ratio = full / full.max(-1, keepdims=True)
    ratio = ratio[(ratio > 0) & (ratio < 1)]
    v = rng.standard_normal((1, probe.heads, 1, dim))
    out = probe(q[:, :, :1], k[:, :, :1], v)
    own = BITS[probe.dtype]
    for bits, name in NAMES.items():
        if bits >= own:
            break
        if p.size >= 8 and (keep_bits(p, bits) == p).all():
            return bits, f"probabilities or outputs are rounded to {name}"
        if (
            8 * probe.unit < 2.0**-bits / 8
            and ratio.size >= 8
            and (np.abs(keep_bits(ratio, bits) - ratio) <= 8 * probe.unit * ratio).all()
        ):
            return bits, f"probabilities are rounded to {name} before they are divided by their sum"
        if np.isfinite(out).all() and (keep_bits(out, bits) == out).all():
            return bits, f"values are rounded to {name}"
    return own, ""


def precision(probe: Probe, dim: int, c: float, rows: bool, promised: str | None) -> tuple[Finding, int | None]:
    """Inputs that only differ in their last bits, and sums that only survive in a wider type than the dtype; and how
    many bits may be relied on, None if sums are so narrow that no tolerance can be derived."""
    bits = BITS[probe.dtype] - 1
    # Keys 1 and 1 + 2^-kept, q so large that the scores differ by 1: rounding the inputs to fewer bits makes them
    # equal. A function may scale q first and round that, half a unit in the last place of each product; two bits less
    # are beyond it.
    finest = bits - 2 if bits > 10 else bits
    lost = None
    for kept in (finest, 21, 10, 7):
        if kept > finest:
            continue
        size = 2.0 ** round(math.log2(2.0**kept / abs(c)))  # a power of two: every product is exact
        q = np.zeros((1, probe.heads, 2, dim))
        k = np.zeros((1, probe.heads, 2, dim))
        q[..., 0] = size
        # The other component takes away what both have in common: the scores stay small, and only the product must be
        # exact.
        q[..., 1] = -size
        k[..., 0, 0] = 1.0
        k[..., 1, 0] = 1.0 + 2.0**-kept
        k[..., 1] = 1.0
        difference = _moved(probe, q, k) / (c * size * 2.0**-kept)
        if not abs(difference - 1) < 0.25:
            lost = kept
    if lost is not None:
        return (
            compare(
                "precision", f"products keep fewer than {lost} bits", promised, f"of the {bits} that {probe.dtype} has"
            ),
            {50: 24, 21: 11, 10: 8}.get(lost),
        )
    if bits > 10:
        return compare("precision", "full", promised), bits + 1
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
    wanted = c * size * (dim - 2) * small
    measured = _moved(probe, q, k)
    if not abs(measured - wanted) <= 0.25 * abs(wanted):
        return compare(
            "precision",
            f"sums in {probe.dtype}",
            promised,
            f"small terms of q·k add up to {measured / wanted:.2f} of what they should",
        ), None
    if rows and (share := _summed(probe, dim, 4 << bits)) is not None and share < 0.75:
        return compare(
            "precision",
            f"sums in {probe.dtype}",
            promised,
            f"{4 << bits} equal probabilities of value 1 add up to {share:.2f}",
        ), None
    return compare("precision", "full", promised), bits + 1


def _moved(probe: Probe, q: Array, k: Array) -> float:
    """How much further than where both keys are equal the second one is, in head 0."""
    gap = log_ratio(probe.probabilities(q, k)[0, -1])[1] - log_ratio(probe.probabilities(q, 0 * k)[0, -1])[1]
    return float(gap)


def _summed(probe: Probe, dim: int, keys: int) -> float | None:
    """What one query gets that sees many keys of the same score, all of value 1."""
    zero = np.zeros((1, probe.heads, keys, dim))
    try:
        return float(probe(zero[:, :, :1], zero, zero + 1.0)[0, 0, 0, 0])
    except Refused:
        return None
