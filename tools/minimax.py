#!/usr/bin/env python3
"""Derives the polynomials of src/cpu/vector_math-inl.h. Needs numpy.

exp2: 2^f on [-1/2, 1/2] as 1 + f·r(f). The constant term is exactly 1, because the online softmax multiplies rows that
did not change by exp2(0) and that must be exactly 1 (the bits of a row may not depend on its neighbours). r is the
minimax polynomial for the relative error of the whole, found by Lawson's iteratively reweighted least squares on a
Chebyshev grid; its coefficients are then rounded to f32 one at a time, from the lowest up, the others refitted.
The errors printed are of f32 Horner evaluation with fused multiply-adds.
"""

import numpy as np


def lawson(basis, target, weight, steps=4000):
    """Minimises max |weight·(basis·x − target)| over x."""
    w = np.ones(len(target)) / len(target)
    best, best_error = None, np.inf
    for _ in range(steps):
        root = np.sqrt(w) * weight
        x = np.linalg.lstsq(basis * root[:, None], target * root, rcond=None)[0]
        error = np.abs(weight * (basis @ x - target))
        if error.max() < best_error:
            best, best_error = x, error.max()
        w *= error / error.max() + 1e-3
        w /= w.sum()
    return best


def exp2_coefficients(degree):
    f = 0.5 * np.cos(np.pi * (np.arange(2000) + 0.5) / 2000)
    weight = f / np.exp2(f)
    target = np.expm1(f * np.log(2)) / f
    known = []
    basis = f[:, None] ** np.arange(degree)
    for i in range(degree):
        rest = lawson(basis[:, i:], target - basis[:, :i] @ np.array(known, dtype=float), weight, 1500)
        known.append(float(np.float32(rest[0])))
    return [1.0] + known


def exp2_error(c):
    f = np.linspace(-0.5, 0.5, 2_000_001).astype(np.float32)
    p = np.full_like(f, np.float32(c[-1]))
    for a in c[-2::-1]:  # a fused multiply-add: exact product and sum in double, one rounding
        p = (p.astype(np.float64) * f + np.float64(np.float32(a))).astype(np.float32)
    exact = np.exp2(f.astype(np.float64))
    return np.max(np.abs(p / exact - 1))


if __name__ == "__main__":
    for degree in (5, 6):
        c = exp2_coefficients(degree)
        print(f"exp2, degree {degree}: largest relative error in f32 {exp2_error(c):.3g}")
        for i, a in enumerate(c):
            print(f"  c{i} = {float(np.float32(a)).hex()}  // {a:.9g}")
