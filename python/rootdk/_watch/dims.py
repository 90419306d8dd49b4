"""Which axes a torch function goes over: `dim`, which may also be called `axis`."""

from __future__ import annotations

from typing import Any


def dims_of(args: Any, kwargs: Any, at: int = 1, default: Any = None) -> Any:
    """As they were given."""
    return args[at] if len(args) > at else kwargs.get("dim", kwargs.get("axis", default))


def unsaid(ndim: int) -> int:
    """What softmax goes over where nothing is given."""
    return 0 if ndim in (0, 1, 3) else 1
