"""What the scores should have been: closed forms and quadrature.

>>> from rootdk import theory
>>> theory.dot_product_variance(64)
64.0
>>> round(theory.critical_sigma(1024), 3)
3.723
>>> round(theory.gaussian_softmax(sigma=8.0, keys=1024, dim_qk=64).entropy, 3)
0.915
"""

from __future__ import annotations

import dataclasses
from typing import Any, Sequence

import numpy as np
import numpy.typing as npt

from ._core import theory as _theory
from ._problem import flag, listed, real, whole

Array = npt.NDArray[np.float64]


def dot_product_variance(
    dim_qk: int, *, mean_q: float = 0, variance_q: float = 1, mean_k: float = 0, variance_k: float = 1
) -> float:
    """Var(q·k) for independent components: d for unit variances and mean 0."""
    return _theory.dot_product_variance(
        whole("dim_qk", dim_qk),
        real("mean_q", mean_q),
        real("variance_q", variance_q),
        real("mean_k", mean_k),
        real("variance_k", variance_k),
    )


def unit_variance_divisor(
    dim_qk: int, *, mean_q: float = 0, variance_q: float = 1, mean_k: float = 0, variance_k: float = 1
) -> float:
    """The c for which q·k / c has variance 1: √d for unit variances.

    >>> from rootdk import theory
    >>> theory.unit_variance_divisor(64)
    8.0
    """
    return _theory.unit_variance_divisor(
        whole("dim_qk", dim_qk),
        real("mean_q", mean_q),
        real("variance_q", variance_q),
        real("mean_k", mean_k),
        real("variance_k", variance_k),
    )


def critical_sigma(keys: float) -> float:
    """√(2 ln n): the spread beyond which a few keys take everything."""
    return _theory.critical_sigma(real("keys", keys))


@dataclasses.dataclass(frozen=True)
class GaussianSoftmax:
    """Expectations over rows."""

    entropy: float
    log_z: float
    sum_p2: float
    trace_j: float
    frobenius_j: float
    p_max: float


def gaussian_softmax(sigma: float, keys: float, dim_qk: int | None = None) -> GaussianSoftmax:
    """What softmax makes of n Gaussian scores of spread sigma. With dim_qk, rows have the spread of their own ‖q‖, as
    real ones do."""
    return GaussianSoftmax(
        **_theory.gaussian_softmax(
            real("sigma", sigma), real("keys", keys), None if dim_qk is None else whole("dim_qk", dim_qk)
        )
    )


@dataclasses.dataclass(frozen=True)
class SoftmaxRow:
    exponentials: Array
    sum: float
    probabilities: Array
    complements: Array
    log_z: float
    mean_score: float
    entropy: float
    p_max: float
    sum_p2: float
    trace_j: float
    frobenius_j: float


def softmax_row(scores: Sequence[float]) -> SoftmaxRow:
    """Softmax of one row in double, step by step.

    >>> from rootdk import theory
    >>> theory.softmax_row([14, 10, 12]).probabilities.round(3).tolist()
    [0.867, 0.016, 0.117]
    """
    return SoftmaxRow(**_theory.softmax_row([real("scores", s) for s in listed("scores", scores, "numbers")]))


@dataclasses.dataclass(frozen=True)
class ScoreMoments:
    mean: float
    second_moment: float
    total_variance: float
    within_row_variance: float


def _array(name: str, values: Any) -> Array:
    if hasattr(values, "detach"):  # torch
        values = values.detach().cpu().double()
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
            what = type(values).__name__ if array.ndim == 0 else f"an array of {array.dtype.name}"
            raise TypeError(f"{what}, but an array of real numbers is wanted")
        return np.ascontiguousarray(array, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None


def _matrix(name: str, values: Any) -> Array:
    array = _array(name, values)
    if array.ndim != 2:
        raise ValueError(f"{name}: {array.ndim} axes, but the 2 of a matrix are wanted")
    return array


def score_moments(q: Any, k: Any) -> ScoreMoments:
    """Mean and variance of all q·k of q [len_q, dim] and k [len_kv, dim], without computing one of them."""
    q, k = _matrix("q", q), _matrix("k", k)
    if q.shape[1] != k.shape[1]:
        raise ValueError(f"k: dim_qk is {k.shape[1]}, but q has {q.shape[1]}")
    return ScoreMoments(**_theory.score_moments(q, k, q.shape[1]))


@dataclasses.dataclass(frozen=True)
class HeadTheory:
    """Means and variances are of q·k, before the scale; sigma is of the score, after it."""

    mean: float
    within_row_variance: float
    total_variance: float
    divisor: float  #: gives this head unit variance
    divisor_over_sqrt_dim: float  #: 1 where the familiar √d_k is right
    sigma: float
    effective_rank: float
    sigma_q: float
    sigma_k: float
    query_mean_norm: float
    key_mean_norm: float
    alignment: float


def head(
    w_q: Any,
    w_k: Any,
    *,
    b_q: Any = None,
    b_k: Any = None,
    scale: float | None = None,
    rotary: Any = None,
    interleaved: bool = False,
    context: int = 4096,
) -> HeadTheory:
    """From the weights of a head, each [dim_qk, width], to the variance of its scores for isotropic inputs.

    scale is what the model multiplies q·k with, 1/√dim_qk if not given; rotary has radians per position, one for each
    pair.
    """
    w_q, w_k = _matrix("w_q", w_q), _matrix("w_k", w_k)
    dim = w_q.shape[0]
    if w_k.shape[0] != dim:
        raise ValueError(f"w_k: dim_qk is {w_k.shape[0]}, but w_q has {dim}")

    def vector(name: str, values: Any) -> Array | None:
        return None if values is None else _array(name, values).ravel()

    return HeadTheory(
        **_theory.head(
            w_q,
            w_k,
            vector("b_q", b_q),
            vector("b_k", b_k),
            dim,
            dim**-0.5 if scale is None else real("scale", scale),
            vector("rotary", rotary),
            flag("interleaved", interleaved),
            whole("context", context),
        )
    )


def stein_ratio(*, score_within_row_variance: float, mean_score: float, sum_p2: float) -> float:
    """1 if the measured scores are Gaussian; NaN where that cannot be said."""
    return _theory.stein_ratio(
        real("score_within_row_variance", score_within_row_variance),
        real("mean_score", mean_score),
        real("sum_p2", sum_p2),
    )
