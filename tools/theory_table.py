#!/usr/bin/env python3
"""Writes tests/data/theory_table.inc: what softmax makes of n Gaussian scores of spread σ. Needs mpmath and numpy.

usage: tools/theory_table.py > tests/data/theory_table.inc      (about two minutes)

Deliberately not the library's way. The library uses integrands that are all positive; here are the plain forms, whose
cancellation 40 digits can afford:
  E ln Z = ∫ (e^{−t} − φⁿ) dx,  t = e^x,  φ = E[e^{−v}],  a_k = E[v^k e^{−v}],  v = e^{x+s},
  E Σp² = n ∫ a₂ φ^{n−1} dx,  E Σp³ = n/2 ∫ a₃ φ^{n−1} dx,
  E (Σp²)² = n/6 ∫ a₄ φ^{n−1} dx + n(n−1)/6 ∫ a₂² φ^{n−2} dx,
  E H = E ln Z − σ²(1 − E Σp²),  E tr J = 1 − E Σp²,  E ‖J‖² = E Σp² − 2 E Σp³ + E (Σp²)².
Sums over a lattice of step 0.1 (error e^{−π²/0.1}, 43 digits), as integers of 160 fractional bits.

p_max needs only four digits: in double, on Gauss–Legendre panels with their integration matrix.
"""

from operator import mul

import mpmath as mp
import numpy as np

KEYS = [2, 3, 16, 1024, 65536, 1 << 20]
SIGMAS = ["0.01", "0.1", "0.39", "0.4", "0.5", "1", "2", "4", "5.25", "8", "22.6", "64"]

mp.mp.dps = 45
BITS = 160
STEP = mp.mpf(1) / 10
BOTTOM, TOP = -1000, 55  # kernels live between y = −100 and 5.5, in steps


def fixed(value):
    return int(mp.ldexp(value, BITS))


def real(value, times=1):
    return mp.ldexp(mp.mpf(value), -BITS * times)


def kernels(y):
    """e^{−v} and v^k e^{−v}, k = 2, 3, 4."""
    v = mp.exp(y)
    f = mp.exp(-v)
    return f, v**2 * f, v**3 * f, v**4 * f


def averages_wide(sigma):
    """φ, a₂, a₃, a₄ at every x of the lattice. Step 0.1 resolves a Gaussian of σ ≥ 0.5."""
    reach = int(mp.ceil(14 * sigma / STEP))
    weights = [
        fixed(STEP / (sigma * mp.sqrt(2 * mp.pi)) * mp.exp(-((j * STEP / sigma) ** 2) / 2))
        for j in range(-reach, reach + 1)
    ]
    below = [0]
    for w in weights:
        below.append(below[-1] + w)
    tables = [[fixed(k) for k in column] for column in zip(*(kernels(y * STEP) for y in range(BOTTOM, TOP + 1)))]
    for x in range(BOTTOM - reach, TOP + reach + 1):
        # s = y − x, so weight index y − x + reach
        first, last = max(BOTTOM, x - reach), min(TOP, x + reach)
        if last < first:
            continue
        part = weights[first - x + reach : last - x + reach + 1]
        sums = [sum(map(mul, part, t[first - BOTTOM : last - BOTTOM + 1])) for t in tables]
        ones = below[first - x + reach] if first == BOTTOM else 0
        yield x * STEP, real(sums[0], 2) + real(ones), real(sums[1], 2), real(sums[2], 2), real(sums[3], 2)


def averages_narrow(sigma):
    """The same with the lattice laid over the Gaussian, in steps of 0.4σ (error e^{−2π²/0.16}, 53 digits)."""
    step = mp.mpf("0.4")
    nodes = [(sigma * j * step, step / mp.sqrt(2 * mp.pi) * mp.exp(-((j * step) ** 2) / 2)) for j in range(-35, 36)]
    for x in range(BOTTOM, TOP + 60):
        sums = [mp.mpf(0)] * 4
        for s, w in nodes:
            sums = [a + w * k for a, k in zip(sums, kernels(x * STEP + s))]
        yield (x * STEP, *sums)


def expectations(sigma):
    sums = {n: [mp.mpf(0)] * 5 for n in KEYS}
    wide = sigma >= 0.5
    for x, phi, a2, a3, a4 in averages_wide(sigma) if wide else averages_narrow(sigma):
        e = mp.exp(-mp.exp(x))
        for n in KEYS:
            p = phi ** (n - 2)
            q = p * phi
            terms = (e - q * phi, n * a2 * q, n * a3 * q / 2, n * a4 * q / 6, n * (n - 1) * a2**2 * p / 6)
            sums[n] = [a + t for a, t in zip(sums[n], terms)]
    for n in KEYS:
        log_z, p2, p3, p4, pairs = (STEP * s for s in sums[n])
        yield n, (log_z - sigma**2 * (1 - p2), log_z, p2, 1 - p2, p2 - 2 * p3 + p4 + pairs)


def p_max(sigma, n, order=16):
    """n ∫∫ v e^{−v} w(s) (1 − D)^{n−1} ds dx, D = P(u > s) + ∫_{u<s} w(u)(1 − e^{−e^{x+u}}) du."""
    z, weight = np.polynomial.legendre.leggauss(order)
    # cumulative[i, j]: weight of node j in the integral from −1 to node i
    basis = np.linalg.inv(np.polynomial.legendre.legvander(z, order - 1))
    integrals = [np.polynomial.legendre.legint(c, lbnd=-1) for c in basis.T]
    cumulative = np.array([[np.polynomial.legendre.legval(t, c) for c in integrals] for t in z])
    reach, total = 10 * sigma, 0.0
    for x in np.arange(-np.log(n) - reach - 25, reach + 5, 0.2):
        low, high = max(-reach, -np.log(n) - 30 - x), min(reach, 4.5 - x)
        if high <= low:
            continue
        panels = int(np.ceil((high - low) / min(1.0, sigma / 2)))
        edges = np.linspace(low, high, panels + 1)
        half = (edges[1] - edges[0]) / 2
        s = (edges[:-1] + half)[:, None] + half * z
        w = np.exp(-0.5 * (s / sigma) ** 2) / (sigma * np.sqrt(2 * np.pi))
        v = np.exp(x + s)
        g = -w * np.expm1(-v)
        start = np.concatenate([[0], np.cumsum(half * (g @ weight))[:-1]])
        d = 0.5 * erfc(s / sigma / np.sqrt(2)) + start[:, None] + half * (g @ cumulative.T)
        total += half * np.sum((w * v * np.exp(-v) * np.exp((n - 1) * np.log1p(-np.minimum(d, 1 - 1e-16)))) @ weight)
    return n * 0.2 * total


def erfc(t):
    """erfc for arrays, from the continued fraction beyond 2 and erf = 2/√π·e^{−t²}·Σ (2t²)^k t/(2k+1)!! within."""
    a = np.abs(t)
    small, big = np.minimum(a, 2), np.maximum(a, 2)
    series, term = np.zeros_like(a), small.copy()
    for k in range(60):
        series += term
        term = term * 2 * small**2 / (2 * k + 3)
    inner = 1 - 2 / np.sqrt(np.pi) * np.exp(-(small**2)) * series
    f = big.copy()
    for k in range(120, 0, -1):
        f = big + k / 2 / f
    outer = np.exp(-(big**2)) / np.sqrt(np.pi) / f
    value = np.where(a <= 2, inner, outer)
    return np.where(t < 0, 2 - value, value)


if __name__ == "__main__":
    print("// Written by tools/theory_table.py with mpmath; do not edit.")
    print("// keys, sigma, entropy, log_z, sum_p2, trace_j, frobenius_j, p_max")
    for text in SIGMAS:
        sigma = mp.mpf(float(text))  # the double that the test will use
        for n, values in expectations(sigma):
            numbers = ", ".join(mp.nstr(v, 17) for v in values)
            print(f"{{{n}, {text}, {numbers}, {p_max(float(text), n):.10g}}},", flush=True)
