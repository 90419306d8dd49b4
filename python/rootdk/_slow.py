"""Slowness is said: what a GPU computes without tensor cores gets a warning, once for each reason."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from typing import Any, Callable, Hashable

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_MOST = 4096  # problems to remember

_why: dict[Hashable, str] = {}  # of a problem; "" where a fast kernel takes it
_said: set[str] = set()
_lock = threading.Lock()


class SlowKernelWarning(RuntimeWarning):
    """A GPU computes a problem without tensor cores, since no fast kernel takes it. The message says which pass, why,
    and what to change.

    ROOTDK_SLOW=error in the environment raises it, ROOTDK_SLOW=ignore is silent; both can change at any time.
    """


def mind(problem: Hashable, ask: Callable[[], str]) -> None:
    """Warns where `ask` has something to say about a problem. It is asked once for each."""
    why = _why.get(problem)
    if why is None:
        if len(_why) >= _MOST:
            _why.clear()
        why = _why[problem] = ask()
    if why:
        say(why)


def say(why: str) -> None:
    wish = os.environ.get("ROOTDK_SLOW", "warn") or "warn"
    if wish not in ("warn", "error", "ignore"):
        raise ValueError(f'ROOTDK_SLOW: "{wish}", but "warn", "error" or "ignore" is wanted')
    if wish == "error":
        raise SlowKernelWarning(why)
    if wish == "ignore":
        return
    with _lock:
        if why in _said:
            return
        _said.add(why)
    warnings.warn(
        f"{why} (ROOTDK_SLOW=error raises this, ROOTDK_SLOW=ignore is silent)",
        SlowKernelWarning,
        stacklevel=_callers_level(),
    )


def _callers_level() -> int:
    """The frame that called rootdk, as warn counts them from say(): beyond this package and torch's dispatch."""
    torch = sys.modules.get("torch")
    own = (_PACKAGE, os.path.dirname(torch.__file__) + os.sep) if torch is not None and torch.__file__ else (_PACKAGE,)
    frame: Any = sys._getframe(1)
    level = 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(own):
        frame, level = frame.f_back, level + 1
    return level
