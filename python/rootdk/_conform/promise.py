"""What an attention function is said to compute, and what was found when one looked."""

from __future__ import annotations

import dataclasses
from typing import Any, Sequence, Union

import numpy as np

Window = Union[int, str, Sequence[Union[int, None]], None]


@dataclasses.dataclass(frozen=True)
class Promise:
    """What a function is said to compute. None: nothing was promised."""

    scale: str | float | None = "sqrt_dk"  #: "sqrt_dk", "none", "dk", or a number
    softcap: float | str | None = "none"
    causal: str | None = "none"  #: "none", "top_left", "bottom_right"
    #: "none"; W as transformers' sliding_window counts: the query's own key and W − 1 before it (where both sides are
    #: seen, W on each side); or (left, right) as FlashAttention counts: keys before and after the query's own, -1 or
    #: None for unbounded
    window: Window = "none"
    sink: str | Sequence[float] | None = "none"  #: or the score of each head's sink
    alibi: str | Sequence[float] | None = "none"  #: "standard" (2^(−8h/H), as in the paper), or the slope of each head
    mask: str | None = "true_shows"  #: or "true_hides"
    bias: str | None = "after_scale"  #: a float mask is added to the scores as they are; or "before_scale", "ignored"
    gqa: str | None = "blocked"  #: query head h reads key head h // group; or "interleaved"
    masked_rows: str | None = "zero"  #: what a query that sees nothing gets; or "nan", "mean"
    precision: str | None = "full"  #: products and sums of products; or what was found
    deterministic: str | None = "yes"  #: the same call gives the same output
    dims: str | None = "all"  #: every component of q and k counts alike
    heads: str | None = "own"  #: each head reads its own K and V, mask and bias
    batch: str | None = "own"  #: each batch item reads its own q, K and V, mask and bias
    large_scores: str | None = "right"  #: exp neither overflows nor loses all
    values: str | None = "right"  #: random batches agree with the same in double

    def __post_init__(self) -> None:
        for name, wanted in (
            ("scale", ("sqrt_dk", "none", "dk")),
            ("alibi", ("none", "standard")),
            ("softcap", ("none",)),
            ("window", ("none",)),
            ("sink", ("none",)),
            ("causal", ("none", "top_left", "bottom_right")),
        ):
            value = getattr(self, name)
            if isinstance(value, str) and value not in wanted:
                listed = ", ".join(f'"{w}"' for w in wanted) + ("" if name == "causal" else " or numbers")
                raise ValueError(f'promise.{name}: "{value}", but {listed} is wanted')
        if isinstance(self.window, int) and self.window < 1:
            raise ValueError(f"promise.window: {self.window}, but at least 1 is wanted: a query's own key counts")
        if self.window is not None and not isinstance(self.window, (int, str)) and len(self.window) != 2:
            raise ValueError(f"promise.window: {len(self.window)} numbers, but W or (left, right) is wanted")


@dataclasses.dataclass(frozen=True)
class Finding:
    property: str
    found: str
    promised: str
    ok: bool | None  #: None: nothing was promised, or it could not be found out
    detail: str = ""


def compare(name: str, found: Any, promised: Any, detail: str = "") -> Finding:
    if promised is None:
        return Finding(name, str(found), "", None, detail)
    return Finding(name, str(found), str(promised), str(found) == str(promised), detail)


def standard_slopes(heads: int) -> list[float]:
    """ALiBi's: 2^(−8h/H) for H a power of two; otherwise those of the next smaller power, then every other one of twice
    as many."""
    whole = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (h + 1) / whole) for h in range(whole)]
    return slopes + [2.0 ** (-4.0 * (2 * h + 1) / whole) for h in range(heads - whole)]


def listed(numbers: Any, digits: int = 4) -> str:
    return ", ".join(f"{float(x):.{digits}g}" for x in np.ravel(numbers))
