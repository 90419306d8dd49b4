"""Scaled dot-product attention that can be seen into.

>>> import numpy as np, rootdk
>>> rng = np.random.default_rng(0)
>>> q, k, v = (rng.standard_normal((1, 2, 256, 64), dtype=np.float32) for _ in range(3))
>>> out, stats = rootdk.attention(q, k, v, causal=True, stats="full")
>>> stats
Stats(full, batch 1 × heads 2): max score 4.08, sigma 1.00 of critical 3.03, entropy 4.11, p_max 0.10
"""

from __future__ import annotations

import importlib as _importlib
import importlib.util as _util
import typing as _t

from . import theory
from ._attention import QkNorm, StatsOptions, attention, explain_plan
from ._audit import Audit, audit
from ._conform.conform import Conformance, Finding, Promise, conform
from ._core import version as __version__
from ._lab import Explanation, Rule, explain, rules
from ._slow import SlowKernelWarning
from ._stats import GradientStats, Judgement, Stats
from ._watch.alarm import Alarm, Event

if _t.TYPE_CHECKING:
    from . import distributed as distributed
    from . import flash_attn as flash_attn
    from . import flash_attn_interface as flash_attn_interface
    from . import loggers as loggers
    from . import megatron as megatron
    from . import torch as torch
    from ._watch.clip import Projections
    from ._watch.watch import Watch

    watch = Watch

# What needs torch is imported when it is asked for.
_MODULES = ("torch", "distributed", "flash_attn", "flash_attn_interface", "loggers", "megatron")
_NEEDS_TORCH = {"Projections": "_watch.clip", "Watch": "_watch.watch", "watch": "_watch.watch"}
_NEEDS_TORCH |= {name: name for name in _MODULES}


def __getattr__(name: str) -> _t.Any:
    if name not in _NEEDS_TORCH:
        raise AttributeError(f"module 'rootdk' has no attribute {name!r}")
    try:
        module = _importlib.import_module(f"rootdk.{_NEEDS_TORCH[name]}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(f"rootdk.{name} needs torch, which is not installed") from None
    return module if name in _MODULES else getattr(module, "Watch" if name == "watch" else name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_NEEDS_TORCH})


__all__ = [
    "Alarm",
    "Audit",
    "Conformance",
    "Event",
    "Explanation",
    "Finding",
    "GradientStats",
    "Judgement",
    "Promise",
    "QkNorm",
    "Rule",
    "SlowKernelWarning",
    "Stats",
    "StatsOptions",
    "attention",
    "audit",
    "conform",
    "explain",
    "explain_plan",
    "rules",
    "theory",
    "__version__",
]
if _util.find_spec("torch") is not None:
    __all__ += ["Projections", "Watch", "watch"]
