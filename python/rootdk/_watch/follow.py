"""What a watch sees of a model: its calls of torch functions, and attention that is written out, followed from product
to product."""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, Any, Callable, Optional, Protocol, Sequence

import numpy
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from . import fused, inside_mha
from .heads import Hints
from .products import Owed, Written, plain_data
from .steps import Trail
from .torch_names import STARTS, STEPS
from .walk import TRANSFORMED, in_transform, walk

__all__ = ["Follow", "Looker", "Written"]

_SDPA = torch._C._nn.scaled_dot_product_attention  # what a mode is given, whatever goes by its public name
_MHA = torch.nn.functional.multi_head_attention_forward
_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops.HigherOrderOperator)
_ATTENTION = re.compile(r"attention|attn|fmha")
_MOST_OWED = 64


class Looker(Protocol):
    """Who wants to know."""

    @property
    def looking(self) -> bool: ...

    def sdpa(
        self,
        func: Callable[..., Tensor],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Optional[Tensor] = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: Optional[float] = None,
        enable_gqa: bool = False,
        *,
        prescale: float = 1.0,
    ) -> Tensor: ...

    def written_out(self, found: Written) -> None: ...

    def missed(self, what: str, why: str) -> None:
        """Something that looks like attention and could not be followed; each time."""

    def miss_here(self) -> Optional[Callable[[str, str], None]]:
        """`missed` for what turns out only later, in the name of the module that is running now; None where nobody
        wants to know."""

    def batch_hint(self) -> Sequence[Tensor]:
        """What the module that is running was given, to tell batch from heads where they are one axis."""

    def heads_hint(self) -> Sequence[int]:
        """How many heads it says it has, to tell them from positions."""


class Follow(TorchFunctionMode):
    """Sees one thread's calls. While a graph is compiled or traced, it is as if it were not there."""

    def __init__(self, looker: Looker):
        super().__init__()
        self.looker = looker
        self.trail = Trail(Hints(looker.batch_hint, looker.heads_hint), owes=self._owes)
        self._owed: list[tuple[Owed, Callable[[str, str], None]]] = []

    if TYPE_CHECKING:  # dynamo breaks graphs only under modes that enter and leave in the usual way

        def __enter__(self) -> Follow: ...

        def __exit__(self, *exception: Any) -> None: ...

    def forget(self, finished: bool = True) -> None:
        """Lets go of what was not followed to its end, and names it, if it came to its end."""
        owed, self._owed = self._owed, []
        for each, miss in owed if finished else ():
            if not each.told:
                miss(f"softmax over {[*each.shape]}", each.why)
        self.trail.memory.notes.clear()
        self.trail.learned.notes.clear()

    def _owes(self, owed: Owed) -> None:
        miss = self.looker.miss_here()
        if miss is None:
            return
        if len(self._owed) >= _MOST_OWED:  # a watch without a model may never come to the end of a step
            untold = [(each, name) for each, name in self._owed if not each.told]
            for each, name in untold[: -_MOST_OWED // 2]:
                name(f"softmax over {[*each.shape]}", each.why)
            self._owed = untold[-_MOST_OWED // 2 :]
        self._owed.append((owed, miss))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():  # dynamo traces these lines, and must find nothing but the call
            if args and isinstance(args[0], numpy.ndarray):
                return _of_numpy(func.__name__, args)
            # methods in Python, into whose super() it cannot follow
            if getattr(func, "__module__", "") == "torch._tensor":
                return getattr(args[0], func.__name__)(*args[1:], **kwargs)
            return func(*args, **kwargs)
        step = STEPS.get(func)
        if step is None and func is not _SDPA and func is not _MHA:
            if isinstance(func, _OPERATORS) and self.looker.looking:
                self._operator(func)
            return func(*args, **kwargs)
        trail = self.trail
        if (
            (step is not None and step not in STARTS and not trail.memory.notes and not trail.learned.notes)
            or not self.looker.looking
            or _recorded()
        ):
            return func(*args, **kwargs)
        if step is not None:
            return walk(trail, self.looker, step, func, args, kwargs)
        if func is _SDPA:
            return self._sdpa(args, kwargs)
        if in_transform(*args, *kwargs.values()):
            self.looker.missed("nn.MultiheadAttention", TRANSFORMED)
            return func(*args, **kwargs)
        return inside_mha.call(self.looker, func, args, kwargs)

    def _sdpa(self, args: Any, kwargs: Any) -> Any:
        sides = [args[i] if i < len(args) else kwargs.get(name) for i, name in enumerate(("query", "key", "value"))]
        if not all(plain_data(x) for x in sides):
            nested = any(isinstance(x, Tensor) and x.is_nested for x in sides)
            kinds = {"nested tensors"} if nested else {type(x).__name__ for x in sides} - {"Tensor"}
            self.looker.missed(
                "scaled_dot_product_attention", f"of {', '.join(sorted(kinds)) or 'tensors without data'}"
            )
            return _SDPA(*args, **kwargs)
        if in_transform(*args, *kwargs.values()):
            self.looker.missed("scaled_dot_product_attention", TRANSFORMED)
            return _SDPA(*args, **kwargs)
        return fused.call(self.looker, self.trail, _SDPA, args, kwargs)

    def _operator(self, func: Any) -> None:
        """Operators that compute attention as a whole: flex_attention, a library's own, and what a compiled graph
        calls."""
        name = (
            func.name() if isinstance(func, torch._ops.OpOverload) else getattr(func, "_qualified_op_name", str(func))
        )
        namespace, _, name = name.rpartition("::")
        name = name.split(".")[0]
        if _ATTENTION.search(name) and namespace != "rootdk" and "backward" not in name:
            self.looker.missed(
                name, "an operator that computes attention as a whole, called from a compiled graph or by a library"
            )


#: Python's operators whose method of tensors has another name, and those whose operands come the other way round.
_OTHERWISE = {"div": "truediv", "floor_divide": "floordiv", "remainder": "mod"}
_REVERSED = {
    "__rdiv__": "truediv",
    "__rsub__": "sub",
    "__rpow__": "pow",
    "__rfloordiv__": "floordiv",
    "__rmod__": "mod",
    "__rmatmul__": "matmul",
}


def _of_numpy(name: str, args: Any) -> Any:
    """Dynamo takes numpy's operators for methods of tensors wherever a mode is open, even one that does nothing, and
    then finds that arrays have no such method. It traces these lines: they ask no more of a name than whether it is a
    key."""
    if name in _REVERSED:
        return getattr(operator, _REVERSED[name])(args[1], args[0])
    return getattr(operator, _OTHERWISE.get(name, name))(*args)


def _recorded() -> bool:
    """Whether torch.jit or torch.fx records the calls: tensors are not what they seem, and nothing may be added."""
    proxies = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY)
    return proxies is not None or torch._C._get_tracing_state() is not None


# Dynamo may look through these lines while it traces a model, but must not compile them, or what they call, as a
# function of their own, which it does with what runs between two graphs: it takes one property's getter for another's
# there, reads a dtype as a shape, and guards on which tensor it was.
_frames = torch._C._dynamo.eval_frame
if hasattr(_frames, "set_code_exec_strategy"):  # torch._dynamo.eval_frame.skip_code, without importing the compiler
    _frames.set_code_exec_strategy(
        Follow.__torch_function__.__code__,
        _frames._FrameExecStrategy(_frames._FrameAction.SKIP, _frames._FrameAction.SKIP),
    )
