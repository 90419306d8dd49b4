"""rootdk.conform: what an attention function really computes, found out from outside.

The inputs are constructed so that the answer can be read off the output. With V the identity, the output *is* the
probabilities, and the logarithm of the ratio of two of them is the difference of two scores: so the scale, a cap and a
bias can be measured, whatever else the function does. Random batches, held against double, then show what nobody
thought of constructing.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from typing import Any, Callable, Sequence

from .findings import findings
from .probe import Probe
from .promise import Finding, Promise

__all__ = ["Conformance", "Finding", "Promise", "conform"]


@dataclasses.dataclass(frozen=True)
class Conformance:
    """What was found; `ok` if nothing contradicts the promise. `str()` is a table."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return all(finding.ok is not False for finding in self.findings)

    @property
    def wrong(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.ok is False)

    def __getitem__(self, name: str) -> Finding:
        for finding in self.findings:
            if finding.property == name:
                return finding
        raise KeyError(name)

    def raise_if_wrong(self) -> None:
        if not self.ok:
            raise AssertionError(
                "; ".join(f"{f.property}: {f.found}, but {f.promised} was promised" for f in self.wrong)
            )

    def __str__(self) -> str:
        rows = [("", "property", "found", "promised", "")]
        rows += [
            ({True: "ok", False: "WRONG", None: "-"}[f.ok], f.property, f.found, f.promised, f.detail)
            for f in self.findings
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        lines = ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[4]]).rstrip() for row in rows]
        unseen = [f.property for f in self.findings if f.ok is None and f.promised]
        end = f"{len(self.wrong)} of {len(self.findings)} are not as promised."
        if self.ok:
            end = (
                f"What could be seen is as promised; not {', '.join(unseen)}."
                if unseen
                else "Everything is as promised."
            )
        return "\n".join([*lines, end])

    __repr__ = __str__


def conform(
    function: Callable[..., Any],
    promise: Promise | None = None,
    *,
    framework: str | None = None,
    dtype: str = "float32",
    layout: str = "bhld",
    dims: Sequence[int] = (32, 64, 128),
    heads: int = 4,
    heads_kv: int | None = 2,
    longest: int = 128,
    mask: str | None = None,
    seed: int = 0,
) -> Conformance:
    """Probes ``function(q, k, v)`` with constructed inputs and random batches, and says what it computes.

    framework  "torch" or "numpy": what the function takes; without it, what the function accepts
    layout     "bhld" or "blhd": the order of batch, heads, length and dim
    dims       head dims to try; a scale that does not follow d_k shows only with two or more
    heads      query heads; ``heads_kv`` fewer are tried for grouped heads (None: not tried)
    longest    sequence length up to which a window would be seen
    mask       name of the argument that takes a mask, if there is one
    seed       of the random batches

    >>> import numpy as np, rootdk
    >>> def mine(q, k, v):
    ...     s = q @ k.swapaxes(-1, -2) / q.shape[-1]          # meant to be √d_k
    ...     p = np.exp(s - s.max(-1, keepdims=True))
    ...     return p / p.sum(-1, keepdims=True) @ v
    >>> rootdk.conform(mine, heads_kv=None)["scale"].found
    '1/d_k'
    """
    if promise is not None and not isinstance(promise, Promise):
        raise TypeError(f"promise: {type(promise).__name__}, but a Promise is wanted")
    promise = promise or Promise()
    if mask is not None and (names := _arguments(function)) is not None and mask not in names:
        raise ValueError(f'mask: the function has no argument called "{mask}"; it has {", ".join(names)}')
    if framework is None:
        guesses = (
            ["numpy"]
            if "torch" not in sys.modules
            else ["torch", "numpy"]
            if _from_torch(function)
            else ["numpy", "torch"]
        )
        for guess in guesses:
            found = conform(
                function,
                promise,
                framework=guess,
                dtype=dtype,
                layout=layout,
                dims=dims,
                heads=heads,
                heads_kv=heads_kv,
                longest=longest,
                mask=mask,
                seed=seed,
            )
            if found.findings[0].property != "call":
                return found
        return found
    if framework not in ("torch", "numpy"):
        raise ValueError(f'framework: "{framework}", but "torch" or "numpy" is wanted')
    if dtype not in ("float64", "float32", "float16", "bfloat16"):
        raise ValueError(f'dtype: "{dtype}", but "float64", "float32", "float16" or "bfloat16" is wanted')
    if dtype == "bfloat16" and framework == "numpy":
        raise ValueError("dtype: numpy has no bfloat16")
    if layout not in ("bhld", "blhd"):
        raise ValueError(f'layout: "{layout}", but "bhld" or "blhd" is wanted')
    for name, value, least in (("heads", heads, 1), ("longest", longest, 4), *(("dims", dim, 2) for dim in dims)):
        if value < least:
            raise ValueError(f"{name}: {value}, but at least {least} is wanted")
    if not dims:
        raise ValueError("dims: none, but at least one is wanted")
    if heads_kv is not None and (heads_kv < 1 or heads % heads_kv):
        raise ValueError(f"heads_kv: {heads_kv}, but a divisor of heads, {heads}, is wanted")
    probe = Probe(function, framework, dtype, layout, mask, heads)
    return Conformance(tuple(findings(probe, promise, list(dims), heads_kv, longest, seed)))


def _arguments(function: Callable[..., Any]) -> list[str] | None:
    """None where it does not say, or takes any."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return None if any(p.kind is p.VAR_KEYWORD for p in parameters) else [p.name for p in parameters]


def _from_torch(function: Any) -> bool:
    import torch

    if isinstance(function, torch.nn.Module):
        return True
    names = getattr(getattr(function, "__code__", None), "co_names", ())
    module = getattr(function, "__module__", "") or ""
    scope = getattr(function, "__globals__", {})
    return (
        module.split(".")[0] == "torch"
        or module == "rootdk.torch"
        or any(
            scope.get(name) is torch or getattr(scope.get(name), "__name__", "").startswith("torch") for name in names
        )
        or not module
    )
