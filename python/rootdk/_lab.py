"""rootdk.explain and rootdk.rules: what the command shows, as objects."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Sequence

from . import _core
from ._problem import listed, real, text, whole


class Explanation:
    """One row of scores under each rule. `str()` is what `rootdk explain` prints, `data` what it writes with --json."""

    def __init__(self, text: str, conclusion: str, data: dict[str, Any]):
        self._text = text
        self.conclusion = conclusion
        self.data = data

    @property
    def rules(self) -> list[dict[str, Any]]:
        """One entry per rule: its name, divisor, scores, softmax and gradients (docs/results-json.md)."""
        rules: list[dict[str, Any]] = self.data["rules"]
        return rules

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Explanation({self.conclusion})"


def explain(
    scores: Sequence[float] | None = None,
    *,
    dk: int | None = None,
    q: Sequence[float] | None = None,
    keys: Sequence[Sequence[float]] | None = None,
    rules: Sequence[str] = ("none", "sqrt_dk", "dk"),
    gradient: Sequence[float] | None = None,
) -> Explanation:
    """One row of scores, step by step: what each rule divides by, softmax, and the gradient that gets through.

    Either the scores q·k with the dk they came from, or q and its keys.

    >>> import rootdk
    >>> found = rootdk.explain([14, 10, 12], dk=64)
    >>> [round(p, 3) for p in found.rules[1]["softmax"]]
    [0.419, 0.254, 0.326]
    """
    if scores is not None and dk is None:
        raise ValueError("dk: missing; scores alone do not say what d_k was")
    vectors = [] if keys is None else listed("keys", keys, "vectors")
    names = [text("rules", rule) for rule in listed("rules", rules, "names")]
    found, words, conclusion = _core.explain(
        [] if scores is None else _numbers("scores", scores),
        0 if dk is None else whole("dk", dk),
        [] if q is None else _numbers("q", q),
        [_numbers(f"keys[{i}]", vector) for i, vector in enumerate(vectors)],
        names,
        [] if gradient is None else _numbers("gradient", gradient),
    )
    return Explanation(words, conclusion, json.loads(found))


def _numbers(name: str, values: Any) -> list[float]:
    return [real(name, value) for value in listed(name, values, "numbers")]


@dataclasses.dataclass(frozen=True)
class Rule:
    name: str
    parameters: str
    formula: str
    source: str
    in_registry: bool  #: may be used as `scale`
    where: str


def rules() -> list[Rule]:
    """Everything that sets or bounds the scores, with formula and source.

    >>> import rootdk
    >>> [rule.name for rule in rootdk.rules()][:3]
    ['none', 'sqrt_dk', 'dk']
    """
    return [Rule(**rule) for rule in json.loads(_core.rules())["rules"]]
