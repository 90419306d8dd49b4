"""The shortest way to the operator's kernel. Autograd in Python takes longer than a small call: where nothing is at
work on the tensors (no transform, no compiler, no autocast, no subclass, nobody who listens) the kernel in C++ is
called itself, under a Function where something learns. All else goes to torch.ops.rootdk.attention (_operator.py)."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor
from torch._C import _functorch
from torch.autograd import forward_ad

from ._compiled import has_compiled_operator
from ._kernels import attention_kernel, is_long, per_head_numbers
from ._operator import gradients_of, learns

_fused, _fused_backward = torch.ops.rootdk.fused.default, torch.ops.rootdk.fused_backward.default
_DEFAULTS: tuple[Any, ...] = attention_kernel.__defaults__ or ()
_COUNT = 10  # of the operator's arguments, without the tag
_PLAIN = (Tensor, torch.nn.Parameter)


def _undisturbed() -> bool:
    """No compiler, no transform of torch.func, no tangents."""
    return (
        not torch.compiler.is_compiling()
        and forward_ad._current_level < 0
        and _functorch.peek_interpreter_stack() is None
    )


def immediate(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether these may go to the kernel in C++ as they are; what comes with them is asked by others."""
    return (
        has_compiled_operator
        and _undisturbed()
        and type(q) in _PLAIN
        and type(k) in _PLAIN
        and type(v) in _PLAIN
        and q.is_cpu
        and k.is_cpu
        and v.is_cpu
        and not k.is_nested  # it has no length; where another is nested, there is no kernel
        and not torch.is_autocast_enabled("cpu")
        and not is_long(q, k)
    )


def call(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
    """The operator (q, k, v, scale, mask, bias, sink, seed, numbers, reals, tag), by the shortest way there is."""
    scale, mask, bias, sink, seed, numbers, reals, tag = (*rest, *_DEFAULTS[len(rest) :])
    others = (scale, mask, bias, sink, seed)
    if tag or not immediate(q, k, v) or not all(x is None or type(x) in _PLAIN and x.is_cpu for x in others):
        return torch.ops.rootdk.attention.default(q, k, v, *others, numbers, reals, tag)
    if learns((q, k, v, scale, bias, sink)):
        return _Direct.apply(q, k, v, scale, mask, bias, sink, seed, numbers, reals)  # type: ignore[no-untyped-call]
    return _fused(q, k, v, per_head_numbers(scale), mask, bias, per_head_numbers(sink), seed, numbers, reals)


def call_immediately(
    q: Tensor, k: Tensor, v: Tensor, numbers: Optional[list[int]], reals: Optional[list[float]]
) -> Tensor:
    """The output where nothing else comes with q, k and v, which are immediate."""
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return _apply_alone(q, k, v, numbers, reals)
    return _fused(q, k, v, None, None, None, None, None, numbers, reals)[0]  # type: ignore[no-any-return]


class _Direct(torch.autograd.Function):
    """The kernels in C++, and between them what backward needs."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        q, k, v, scale, mask, bias, sink, seed, numbers, reals = inputs
        output = _fused(q, k, v, per_head_numbers(scale), mask, bias, per_head_numbers(sink), seed, numbers, reals)
        ctx.save_for_backward(*output, q, k, v, scale, mask, bias, sink, seed)
        ctx.numbers, ctx.reals = numbers, reals
        ctx.set_materialize_grads(False)
        return output

    @staticmethod
    def backward(ctx: Any, d_out: Optional[Tensor], d_lse: Optional[Tensor]) -> Any:
        if d_out is None and d_lse is None:
            return (None,) * _COUNT
        return tuple(gradients_of(ctx, ctx.needs_input_grad, _backward_directly, d_out, d_lse)[:_COUNT])


class _Alone(torch.autograd.Function):
    """The same where only q, k and v can learn and nobody wants lse: most calls, and what goes in and out costs
    time."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, numbers: Any, reals: Any) -> Tensor:
        out, lse = _fused(q, k, v, None, None, None, None, None, numbers, reals)
        ctx.save_for_backward(out, lse, q, k, v)
        ctx.packed = numbers, reals
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> Any:
        of_q, of_k, of_v, _, _ = ctx.needs_input_grad
        wanted = of_q | of_k << 1 | of_v << 2
        found = _backward_directly(d_out, None, *ctx.saved_tensors, *_NOTHING, *ctx.packed, wanted)
        if wanted == 7:
            return (*found, None, None)
        each = iter(found)
        return (*(next(each) if needed else None for needed in (of_q, of_k, of_v)), None, None)


_NOTHING = (None,) * 5  # scale, mask, bias, sink, seed
# What Function.apply does before it calls this is for torch.func, which is not at work where tensors are immediate.
_apply_alone: Callable[..., Tensor] = super(torch.autograd.Function, _Alone).apply


def _backward_directly(d_out: Tensor, d_lse: Optional[Tensor], *rest: Any) -> Any:
    """Those wanted, by the kernel in C++; or by the operator, which knows what to say to whoever wants to differentiate
    this again, and what to do about transforms."""
    out, lse, q, k, v, scale, mask, bias, sink, *others = rest
    plain = _is_plain(d_out) and (d_lse is None or _is_plain(d_lse))
    if not plain or torch.is_grad_enabled() or not _undisturbed():
        found = torch.ops.rootdk.attention_backward.default(d_out, d_lse, *rest)
        return [gradient for bit, gradient in enumerate(found) if rest[-1] >> bit & 1]
    return _fused_backward(
        d_out, d_lse, out, lse, q, k, v, per_head_numbers(scale), mask, bias, per_head_numbers(sink), *others
    )


def _is_plain(gradient: Tensor) -> bool:
    """And not many in one, as torch.autograd.grad has them for is_grads_batched."""
    return type(gradient) is Tensor and not _functorch.is_legacy_batchedtensor(gradient)
