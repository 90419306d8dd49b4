"""rootdk.explain and rootdk.rules: what the command shows, as objects."""
from __future__ import annotations

import dataclasses
import json
from typing import Any, Sequence

from . import _core


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


def explain(scores: Sequence[float] | None = None, *, dk: int | None = None, q: Sequence[float] | None = None,
            keys: Sequence[Sequence[float]] | None = None, rules: Sequence[str] = ("none", "sqrt_dk", "dk"),
            gradient: Sequence[float] | None = None) -> Explanation:
    """One row of scores, step by step: what each rule divides by, softmax, and the gradient that gets through.

    Either the scores q·k with the dk they came from, or q and its keys.

    >>> import rootdk
    >>> found = rootdk.explain([14, 10, 12], dk=64)
    >>> [round(p, 3) for p in found.rules[1]["softmax"]]
    [0.419, 0.254, 0.326]
    """
    if scores is not None and dk is None:
        raise ValueError("dk: missing; scores alone do not say what d_k was")
    text, words, conclusion = _core.explain([float(s) for s in scores] if scores is not None else [], int(dk or 0),
                                            [float(x) for x in q] if q is not None else [],
                                            [[float(x) for x in key] for key in keys] if keys is not None else [], list(rules),
                                            [float(g) for g in gradient] if gradient is not None else [])
    return Explanation(words, conclusion, json.loads(text))


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
