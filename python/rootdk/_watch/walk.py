"""A call of a torch function, and what it makes known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..torch import transformed
from .products import Written
from .steps import Trail
from .torch_names import RULES, Step

if TYPE_CHECKING:
    from .follow import Looker

_EXP_ = {Tensor.exp_, torch.exp_, torch.ops.aten.exp_.default}

TRANSFORMED = "inside a transform of torch.func"


def in_transform(*tensors: Any) -> bool:
    """Whether a transform of torch.func runs, or a tangent rides on one of these: what is attention can be followed
    then, but nobody can look at the numbers, not even at those of a tensor from outside."""
    return torch._C._functorch.peek_interpreter_stack() is not None or transformed(*tensors)


def walk(trail: Trail, looker: Looker, step: Step, func: Any, args: Any, kwargs: Any) -> Any:
    """Calls the function, notes what it did to what is known, and tells the looker what was found."""
    if step is Trail.exp and func in _EXP_ and args:
        trail.before_exp_(args[0])
    out = func(*args, **kwargs)
    try:
        found = step(trail, args, kwargs, out)
    except Exception as error:  # the model goes on, whatever this is
        found = ("a step between two products", f"that could not be followed ({type(error).__name__}: {error})")
    rule = RULES.get(func) if trail.learned.notes or step is Trail.einsum else None
    if rule is not None:
        try:
            rule(trail.learned, args, kwargs, out)
        except Exception:  # nothing is known of its axes then, and a softmax over them is named
            trail.learned.pop(out)
    if found is None:
        return out
    if isinstance(found, Written) and in_transform(found.q, found.k, found.scores):
        looker.missed("attention that is written out", TRANSFORMED)
    elif isinstance(found, Written):
        looker.written_out(found)
    else:
        looker.missed(*found)
    return out
