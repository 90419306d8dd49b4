"""The operator torch.ops.rootdk.attention: its schema, its gradients, and what transforms make of it. Most calls do not
come here (_direct.py).

Fused kernels (in C++, or _kernels.py) compute values and first derivatives. Where torch.func differentiates, or a
tangent rides on an input, the operator is written out in plain torch operations (_decomposed.py), which can be
differentiated in any way; where torch.vmap maps it, the mapped axis becomes part of the batch.
"""

from __future__ import annotations

import functools
import operator
import sys
from typing import Any, Callable, Optional, Sequence

import torch
from torch import Tensor
from torch._C import _functorch
from torch.autograd import forward_ad

from ._decomposed import decomposed
from ._description import Description
from ._kernels import (
    _collectors,
    attention_kernel,
    attention_shapes,
    backward_kernel,
    backward_shapes,
    fused_backward_shapes,
    register,
    unregister,
)

_MORE = "Tensor? scale{0}, Tensor? mask{0}, Tensor? bias{0}, Tensor? sink{0}, Tensor? seed{0}"
_TENSORS = f"Tensor q, Tensor k, Tensor v, {_MORE}"
_SCHEMA = f"({_TENSORS.format('=None')}, SymInt[]? numbers=None, float[]? reals=None, SymInt tag=0) -> (Tensor, Tensor)"
_RETURNED = "Tensor d_out, Tensor? d_lse, Tensor out, Tensor lse"
_BACKWARD_SCHEMA = (
    f"({_RETURNED}, {_TENSORS.format('')}, SymInt[]? numbers, float[]? reals, int wanted, SymInt tag=0) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_DEFAULTS: tuple[Any, ...] = attention_kernel.__defaults__ or ()
# Where they stand in the schema, after q, k and v.
_SCALE, _MASK, _BIAS, _SINK, _SEED, _NUMBERS, _REALS, _TAG = range(3, 11)
_LEARNED = (0, 1, 2, _SCALE, _BIAS, _SINK)  # in the order of GRADIENTS
_DIFFERENTIATES = (_functorch.TransformType.Grad, _functorch.TransformType.Jvp)
_ONCE = (
    "attention: its gradient cannot be differentiated by autograd; torch.func (grad of grad, hessian, jvp) can, with "
    "memory for len_q × len_kv scores"
)


def _all_arguments(given: tuple[Any, ...]) -> tuple[Any, ...]:
    """The dispatcher leaves out trailing arguments at their defaults."""
    return (*given, *_DEFAULTS[len(given) - 3 :])


# Transforms -----------------------------------------------------------------------------------------------------------
def transformed(*tensors: Any) -> bool:
    """Whether torch.func or torch.vmap is at work on one of these, or a tangent rides on it: then nobody can look at
    the numbers. Under torch.compile, which cannot trace the question, False."""
    if torch.compiler.is_compiling():
        return False
    return any(_functorch.is_functorch_wrapped_tensor(x) or _has_tangent(x) for x in tensors if isinstance(x, Tensor))


def _has_tangent(x: Tensor) -> bool:
    return forward_ad.unpack_dual(x).tangent is not None


def _differentiates() -> bool:
    """Whether the innermost transform of torch.func is one that differentiates."""
    top = _functorch.peek_interpreter_stack()
    return top is not None and top.key() in _DIFFERENTIATES


def learns(inputs: tuple[Any, ...]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs)


# Autograd -------------------------------------------------------------------------------------------------------------
def _below(op: Any, keys: Any, inputs: tuple[Any, ...]) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return op.redispatch(keys & torch._C._after_autograd_keyset, *inputs)


def _autograd(keys: Any, *inputs: Any) -> Any:
    if _differentiates() or any(_has_tangent(x) for x in inputs if isinstance(x, Tensor)):
        return decomposed(*inputs)
    if learns(inputs):
        return _Fused.apply(keys, *inputs)  # type: ignore[no-untyped-call]
    return _below(torch.ops.rootdk.attention.default, keys, inputs)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, keys: Any, *inputs: Any) -> Any:
        output = _below(torch.ops.rootdk.attention.default, keys, inputs)
        *tensors, numbers, reals, tag = _all_arguments(inputs)
        ctx.save_for_backward(*output, *tensors)
        ctx.numbers, ctx.reals, ctx.count = numbers, reals, len(inputs)
        ctx.collector = _collectors.get(tag)  # which is listed for the time of this call only
        ctx.set_materialize_grads(False)
        return output

    @staticmethod
    def backward(ctx: Any, d_out: Optional[Tensor], d_lse: Optional[Tensor]) -> Any:
        if d_out is None and d_lse is None:
            return (None,) * (1 + ctx.count)
        tag = 0 if ctx.collector is None else register(ctx.collector)
        try:
            found = gradients_of(ctx, ctx.needs_input_grad[1:], torch.ops.rootdk.attention_backward, d_out, d_lse, tag)
        finally:
            unregister(tag)
        return (None, *found[: ctx.count])


def gradients_of(
    ctx: Any, needed: Sequence[bool], backward: Callable[..., Sequence[Tensor]], d_out: Optional[Tensor], *rest: Any
) -> list[Optional[Tensor]]:
    """Of the operator's arguments, None where none is wanted; `backward` finds all six, or those that are wanted."""
    out, lse, *tensors = ctx.saved_tensors
    if d_out is None:
        d_out = torch.zeros_like(out)
    d_lse, *tag = rest
    places = {bit: place for bit, place in enumerate(_LEARNED) if place < len(needed) and needed[place]}
    wanted = sum(1 << bit for bit in places)
    found = backward(d_out, d_lse, out, lse, *tensors, ctx.numbers, ctx.reals, wanted, *tag)
    if len(found) != len(places):
        found = [found[bit] for bit in places]
    gradients: list[Optional[Tensor]] = [None] * (_TAG + 1)
    for place, gradient in zip(places.values(), found):
        x = tensors[place]
        if gradient.dtype != x.dtype or gradient.device != x.device:
            gradient = gradient.to(device=x.device, dtype=x.dtype)
        gradients[place] = gradient
    return gradients


def _backward_autograd(keys: Any, *inputs: Any) -> Any:
    if any(_has_tangent(x) for x in inputs if isinstance(x, Tensor)) or _differentiates() and learns(inputs):
        raise NotImplementedError(_ONCE)
    if learns(inputs):
        return _Once.apply(keys, *inputs)  # type: ignore[no-untyped-call]
    return _below(torch.ops.rootdk.attention_backward.default, keys, inputs)


class _Once(torch.autograd.Function):
    """Gradients that say why they have none themselves."""

    @staticmethod
    def forward(ctx: Any, keys: Any, *inputs: Any) -> Any:
        return _below(torch.ops.rootdk.attention_backward.default, keys, inputs)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(_ONCE)


# Autocast -------------------------------------------------------------------------------------------------------------
def _keys(*names: str) -> Any:
    sets = (torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)) for name in names)
    return functools.reduce(operator.or_, sets)


_AUTOCAST = _keys("AutocastCPU", "AutocastCUDA")


def under_autocast(*tensors: Optional[Tensor]) -> tuple[Optional[Tensor], ...]:
    """As torch's autocast gives their arguments to its own attention: what is floating and not float64 in autocast's
    dtype. The first one's device counts."""
    kind = tensors[0].device.type if isinstance(tensors[0], Tensor) else ""
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)

    def cast(x: Optional[Tensor]) -> Optional[Tensor]:
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.dtype == torch.float64 or x.device.type != kind:
            return x
        return x.to(dtype)

    return tuple(cast(x) for x in tensors)


def _autocast(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: Optional[Tensor] = None,
    mask: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    *rest: Any,
) -> Any:
    """register_autocast would have one dtype for ever, and cast scales and sinks as well."""
    q, k, v, bias = under_autocast(q, k, v, bias)  # type: ignore[assignment]
    with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
        return torch.ops.rootdk.attention(q, k, v, scale, mask, bias, *rest)


# vmap -----------------------------------------------------------------------------------------------------------------
_BATCHED = _keys("FuncTorchBatched")


def _mapped(rule: Callable[..., tuple[Tensor, ...]]) -> Callable[..., Any]:
    """A kernel for tensors with a mapped axis, from a rule for what is under them: it takes the size of that axis,
    where each input has it (None: nowhere), and the inputs, and gives results that have it first."""

    def kernel(*inputs: Any) -> Any:
        top = _functorch.peek_interpreter_stack()
        level, size = top.level(), _functorch.CVmapInterpreterPtr(top).batchSize()
        pairs = [_functorch._unwrap_batched(x, level) if isinstance(x, Tensor) else (x, None) for x in inputs]
        with torch._C._ExcludeDispatchKeyGuard(_BATCHED):
            results = rule(size, [axis for _, axis in pairs], [x for x, _ in pairs])
        return tuple(_functorch._add_batch_dim(x, 0, level) for x in results)

    return kernel


def _one_by_one(op: Any, size: int, axes: list[Optional[int]], inputs: list[Any]) -> tuple[Tensor, ...]:
    if size == 0:
        raise ValueError("attention: vmap over an axis of size 0")
    each = [op(*(x if axis is None else x.select(axis, i) for x, axis in zip(inputs, axes))) for i in range(size)]
    return tuple(torch.stack(results) for results in zip(*each))


def _attention_mapped(size: int, axes: list[Optional[int]], inputs: list[Any]) -> tuple[Tensor, ...]:
    inputs, axes = list(_all_arguments(tuple(inputs))), axes + [None] * (_TAG + 1 - len(axes))
    description = Description.unpacked(inputs[_NUMBERS], inputs[_REALS])
    inputs[_TAG] = 0  # whose statistics would they be?
    op = torch.ops.rootdk.attention
    tables = [place for place in (_MASK, _BIAS) if inputs[place] is not None]
    well_formed = all(inputs[place].ndim == 4 + (axes[place] is not None) for place in (0, 1, 2, *tables))
    # Which probabilities are dropped depends on the place in the batch; scales and sinks are there once for all of it.
    if description.dropout > 0 or axes[_SCALE] is not None or axes[_SINK] is not None or not well_formed:
        return _one_by_one(op, size, axes, inputs)
    batch = _in_front(inputs[0], axes[0], size).shape[1]
    for place in (0, 1, 2):
        inputs[place] = _in_front(inputs[place], axes[place], size).flatten(0, 1)
    for place in tables:
        if axes[place] is None and inputs[place].shape[0] == 1:
            continue
        table = _in_front(inputs[place], axes[place], size)
        inputs[place] = table.expand(size, batch, *table.shape[2:]).flatten(0, 1)
    inputs[_NUMBERS], _ = description._replace(structure=description.structure.repeated(size)).packed()
    return tuple(x.unflatten(0, (size, batch)) for x in op(*inputs))


def _in_front(x: Tensor, axis: Optional[int], size: int) -> Tensor:
    return x.unsqueeze(0).expand(size, *x.shape) if axis is None else x.movedim(axis, 0)


def _backward_mapped(size: int, axes: list[Optional[int]], inputs: list[Any]) -> tuple[Tensor, ...]:
    return _one_by_one(torch.ops.rootdk.attention_backward, size, axes, inputs)


# Registration ---------------------------------------------------------------------------------------------------------
def _untraced(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Not for torch.compile to look into. What torch has for this imports its compiler, and that takes seconds: here
    only if it is there."""
    hidden: list[Callable[..., Any]] = []

    @functools.wraps(kernel)
    def call(*inputs: Any) -> Any:
        if not hidden and (disable := getattr(sys.modules.get("torch._dynamo"), "disable", None)) is not None:
            hidden.append(disable(kernel))
        return (hidden[0] if hidden else kernel)(*inputs)

    return call


_library = torch.library.Library("rootdk", "FRAGMENT")
for _name, _schema, _kernel, _shapes, _gradient, _vmap in (
    ("attention", _SCHEMA, attention_kernel, attention_shapes, _autograd, _attention_mapped),
    ("attention_backward", _BACKWARD_SCHEMA, backward_kernel, backward_shapes, _backward_autograd, _backward_mapped),
):
    _library.define(_name + _schema, tags=(torch.Tag.pt2_compliant_tag,))
    for _key in ("CPU", "CUDA"):
        _library.impl(_name, _untraced(_kernel), _key)
    torch.library.register_fake(f"rootdk::{_name}", _shapes, lib=_library)
    _library.impl(_name, _gradient, "Autograd", with_keyset=True)
    _library.impl(_name, _mapped(_vmap), "FuncTorchBatched")
for _key in ("AutocastCPU", "AutocastCUDA"):
    _library.impl("attention", _autocast, _key)
# The same without gradients, statistics and transforms: their kernels are in C++ (python/src/torch).
_FUSED = (
    (f"fused{_SCHEMA}", attention_shapes),
    (f"fused_backward{_BACKWARD_SCHEMA.split(' -> ')[0]} -> Tensor[]", fused_backward_shapes),
)
for _schema, _fake in _FUSED:
    _schema = _schema.replace("SymInt[]", "int[]").replace(", SymInt tag=0", "")
    _library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.register_fake(f"rootdk::{_schema.split('(')[0]}", _fake, lib=_library)
