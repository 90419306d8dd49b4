"""Which torch function is which step on the way from product to product."""

from __future__ import annotations

from typing import Any, Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from .learned import BY_RULE, Rule
from .steps import Trail

Step = Callable[[Trail, Any, Any, Any], Any]

_BY_STEP: dict[Step, str] = {
    Trail.matmul: "matmul bmm mm __matmul__ linalg.matmul",
    Trail.rmatmul: "__rmatmul__",
    Trail.baddbmm: "baddbmm baddbmm_",
    Trail.einsum: "einsum",
    Trail.linear: "linear",
    Trail.addmm: "addmm",
    Trail.convolution: "conv1d conv2d conv3d",
    Trail.spread_convolution: "conv_transpose1d conv_transpose2d conv_transpose3d",
    Trail.softmax: "softmax special.softmax _softmax _safe_softmax",
    Trail.log_softmax: "log_softmax special.log_softmax _log_softmax",
    Trail.softmin: "softmin",
    Trail.gumbel_softmax: "gumbel_softmax",
    Trail.masked_softmax: "_masked_softmax",
    Trail.sparse_softmax: "sparse.softmax _sparse_softmax",
    Trail.exp: "exp exp_",
    Trail.exp2: "exp2 exp2_ special.exp2",
    Trail.expm1: "expm1 expm1_ special.expm1",
    Trail.power: "pow float_power",
    Trail.rpower: "__rpow__",
    Trail.sum: "sum",
    Trail.normalized: "normalize",
    Trail.logarithm: "log log_",
    Trail.logsumexp: "logsumexp special.logsumexp",
    Trail.logaddexp: "logaddexp",
    Trail.times: "mul mul_ multiply multiply_ __mul__ __rmul__ __imul__",
    Trail.over: "div div_ divide divide_ true_divide true_divide_ __truediv__ __itruediv__ __div__ __idiv__",
    Trail.plus: "add add_ __add__ __radd__ __iadd__",
    Trail.minus: "sub sub_ subtract subtract_ __sub__ __isub__",
    Trail.tanh: "tanh tanh_",
    Trail.negative: "neg neg_ negative __neg__",
    Trail.inverse: "reciprocal reciprocal_ __rtruediv__ __rdiv__",
    Trail.masked: "masked_fill masked_fill_ where max min clamp clamp_ clip clamp_min clamp_max maximum minimum "
    "nan_to_num nan_to_num_ masked_scatter index_fill tril triu addcmul _unsafe_masked_index",
    Trail.cast: "to float double half bfloat16 type type_as contiguous clone detach requires_grad_ _to_copy cpu cuda "
    "alias",
    Trail.dropped: "dropout dropout_ feature_dropout alpha_dropout native_dropout",
    Trail.overwritten: "copy_ zero_ fill_ normal_ uniform_ set_",
    Trail.reshape: "view reshape unflatten flatten unsqueeze squeeze view_as reshape_as _unsafe_view expand expand_as",
    Trail.transpose: "transpose swapaxes swapdims",
    Trail.turned: "t",
    Trail.permute: "permute",
    Trail.movedim: "movedim moveaxis",
    Trail.part: "__getitem__ narrow select slice",
    Trail.parts: "unbind chunk split tensor_split",
    Trail.loose: "pad constant_pad_nd as_strided roll gather unfold repeat repeat_interleave index_select "
    "take_along_dim",
    Trail.cat: "cat concat concatenate",
}


def _functions(by: Mapping[Any, str]) -> dict[Any, Any]:
    out: dict[Any, Any] = {}
    for step, names in by.items():
        for name in names.split():
            for place in (torch, Tensor, F):
                found: Any = place
                for part in name.split("."):
                    found = getattr(found, part, None)
                if found is not None and not (name.startswith("__") and place is not Tensor):
                    out[found] = step
            packet = getattr(torch.ops.aten, name, None) if not name.startswith("__") and "." not in name else None
            for overload in packet.overloads() if packet is not None else ():
                out[getattr(packet, overload)] = step
    return out


#: function → what it leaves of learned axes
RULES: dict[Any, Rule] = _functions(BY_RULE)
#: function → step
STEPS: dict[Any, Step] = {
    **dict.fromkeys(RULES, Trail.passed),
    **_functions(_BY_STEP),
    **{getattr(Tensor, name).__get__: Trail.turned for name in ("mT", "T")},
}
#: steps that make something known where nothing was
STARTS = {
    Trail.matmul,
    Trail.rmatmul,
    Trail.baddbmm,
    Trail.einsum,
    Trail.linear,
    Trail.convolution,
    Trail.spread_convolution,
    Trail.addmm,
    Trail.softmax,
    Trail.log_softmax,
    Trail.softmin,
    Trail.gumbel_softmax,
    Trail.masked_softmax,
    Trail.sparse_softmax,
    Trail.times,
    Trail.over,
    Trail.reshape,
}
