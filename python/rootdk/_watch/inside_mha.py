"""Inside of nn.MultiheadAttention, where modes for functions are off.

What it calls by name can be seen by that name (F.scaled_dot_product_attention, without weights), and what it writes out
(with weights) as operators, by a mode for those that lasts as long as the call.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Optional

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .heads import Hints
from .steps import Trail
from .torch_names import STEPS
from .walk import walk

if TYPE_CHECKING:
    from .follow import Looker

_here = threading.local()  # .looker: whose nn.MultiheadAttention this thread is in
_lock, _count = threading.Lock(), [0]
_before: list[Any] = []  # what went by that name: PyTorch's function, or what somebody has put there


def _seen(*args: Any, **kwargs: Any) -> Tensor:
    looker: Optional[Looker] = getattr(_here, "looker", None)
    function = _before[0]
    # What is not PyTorch's own is left to do what it does.
    if looker is None or function is not torch._C._nn.scaled_dot_product_attention:
        return function(*args, **kwargs)  # type: ignore[no-any-return]
    return looker.sdpa(function, *args, **kwargs)


def call(looker: Looker, func: Any, args: Any, kwargs: Any) -> Any:
    """F.multi_head_attention_forward, looked into."""
    if kwargs.get("need_weights", args[15] if len(args) > 15 else True):
        heads = kwargs.get("num_heads", args[4] if len(args) > 4 else None)
        with Operators(looker, heads):
            return func(*args, **kwargs)
    outer = getattr(_here, "looker", None)
    with _lock:  # other threads call by that name, too
        _count[0] += 1
        if _count[0] == 1:
            _before[:] = [torch.nn.functional.scaled_dot_product_attention]
            torch.nn.functional.scaled_dot_product_attention = _seen
    _here.looker = looker
    try:
        return func(*args, **kwargs)
    finally:
        _here.looker = outer
        with _lock:
            _count[0] -= 1
            if _count[0] == 0:
                torch.nn.functional.scaled_dot_product_attention = _before[0]


class Operators(TorchDispatchMode):
    """Follows attention that is written out, operator by operator."""

    def __init__(self, looker: Looker, heads: Optional[int]):
        super().__init__()  # type: ignore[no-untyped-call]
        self.looker = looker
        self.trail = Trail(Hints(), heads)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        step = STEPS.get(func)
        if step is None:
            return func(*args, **(kwargs or {}))
        return walk(self.trail, self.looker, step, func, args, kwargs or {})
