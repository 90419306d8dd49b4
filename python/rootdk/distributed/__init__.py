"""One attention over many ranks, forward and backward, and its statistics: over torch.distributed, nothing of our own
below it. docs/python/distributed.md."""

from __future__ import annotations

from ._attention import attention
from ._audit import audit
from ._faults import RankError
from ._layout import Layout
from ._plan import Cost, Machine, Plan, Sizes, plan
from ._sight import Sight
from ._statistics import RankStats, merge
from ._team import Count, counting

__all__ = [
    "Cost",
    "Count",
    "Layout",
    "Machine",
    "Plan",
    "RankError",
    "RankStats",
    "Sight",
    "Sizes",
    "attention",
    "audit",
    "counting",
    "merge",
    "plan",
]
