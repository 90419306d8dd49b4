"""Which axes of a tensor count what was learned: a linear layer's features, a router's experts, a classifier's classes.
A softmax over such an axis is not over positions. What happens to a tensor on the way is followed by its axes alone.

This is apart from what is known of q, k and scores: a query has come from a linear layer as well as a router's scores
have, and neither fact may change the other.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Optional, Sequence

import torch
from torch import Tensor

from .dims import dims_of
from .products import Memory

Axes = tuple[int, ...]


class Learned(Memory):
    """Those axes, by tensor. Each rule is called with a function's arguments and its result. What a rule does not
    know has none: its softmax is named."""

    __slots__ = ()

    def axes(self, x: Any) -> Axes:
        return self.get(x) or ()

    def put(self, x: Any, axes: Iterable[int]) -> None:
        """Instead of what was known of x, which may be a result in place."""
        if isinstance(x, Tensor):
            kept = tuple(axes)
            if kept and x.is_floating_point():
                self.set(x, kept)
            else:
                self.pop(x)

    # Element by element -----------------------------------------------------------------------------------------------
    def elementwise(self, args: Any, kwargs: Any, out: Any) -> None:
        """Sums, products, masks, noise: an axis is learned if it is in any operand that is not spread along it."""
        known = self._known(args, kwargs)
        if known and isinstance(out, Tensor) and (len(known) > 1 or known[0] is not out):
            self.put(out, {axis for x in known for axis in self._spread(x, out)})

    def overwritten(self, args: Any, kwargs: Any, out: Any) -> None:
        self.pop(args[0] if args else None)
        self.elementwise(args[1:2], {}, out)

    def _spread(self, x: Any, out: Tensor) -> Axes:
        """x's axes in a result to which it was broadcast."""
        axes = self.axes(x)
        if not axes or x.shape == out.shape:
            return axes
        more = out.ndim - x.ndim
        return tuple(axis + more for axis in axes if axis + more >= 0 and x.shape[axis] == out.shape[axis + more])

    def _known(self, args: Any, kwargs: Any) -> list[Any]:
        """Those arguments of which something may be known, in short: most calls have none."""
        return [x for x in (*args, *kwargs.values()) if id(x) in self.notes]

    # Axes that stay where they are ------------------------------------------------------------------------------------
    def along(self, args: Any, kwargs: Any, out: Any) -> None:
        """Some of an axis's elements, or in another order, or more of them: topk, sort, gather, interpolate."""
        known = self._known(args, kwargs)  # scatter has its own and its source's
        for y in (out if isinstance(out, (tuple, list)) else (out,)) if known else ():
            if isinstance(y, Tensor):
                self.put(y, {axis for x in known for axis in self._grown(x, y)})

    def _grown(self, x: Any, y: Tensor) -> list[int]:
        axes = self.axes(x)
        more = y.ndim - x.ndim if axes else 0  # repeat may put axes before
        at = [(axis, axis + more) for axis in axes] if more >= 0 else []
        return [to for axis, to in at if not x.shape[axis] == 1 < y.shape[to]]

    def reduced(self, args: Any, kwargs: Any, out: Any) -> None:
        """A sum, mean or maximum over some axes."""
        x, dims = _input(args, kwargs), dims_of(args, kwargs)
        out = out[0] if isinstance(out, tuple) and out else out
        axes = self.axes(x)
        if not axes or not isinstance(out, Tensor):
            return
        if isinstance(dims, Tensor):
            self.elementwise(args, kwargs, out)  # the larger of two
            return
        gone = _dims(dims, x.ndim)
        if gone is not None and out.ndim == x.ndim:
            self.put(out, [axis for axis in axes if axis not in gone])
        elif gone is not None and out.ndim == x.ndim - len(gone):
            self.put(out, _without(axes, gone))

    # Axes that move ---------------------------------------------------------------------------------------------------
    def permuted(self, x: Tensor, order: Sequence[int], out: Any) -> None:
        if out is not x:
            self.put(out, [order.index(axis) for axis in self.axes(x)])

    def reshaped(self, args: Any, kwargs: Any, out: Any) -> None:
        x = _input(args, kwargs)
        if not self.axes(x) or not isinstance(out, Tensor) or out is x:
            return
        same = x.numel() == out.numel()
        self.put(out, regrouped(self.axes(x), x.shape, out.shape) if same else self._spread(x, out))

    def indexed(self, args: Any, kwargs: Any, out: Any) -> None:
        x = _input(args, kwargs)
        if self.axes(x) and isinstance(out, Tensor) and len(args) > 1 and out is not x:
            came = _came_from(args[1], x.ndim)
            if came is not None and len(came) == out.ndim:
                learned = {*self.axes(x)}
                self.put(out, [axis for axis, sources in enumerate(came) if sources and {*sources} <= learned])

    def selected(self, args: Any, kwargs: Any, out: Any) -> None:
        """select and unbind: one axis goes."""
        x = _input(args, kwargs)
        gone = _dims(dims_of(args, kwargs, 1, 0), x.ndim) if self.axes(x) else None
        for y in out if isinstance(out, (tuple, list)) else (out,):
            if gone is not None:
                self.put(y, _without(self.axes(x), gone))

    # Several tensors --------------------------------------------------------------------------------------------------
    def joined(self, args: Any, kwargs: Any, out: Any) -> None:
        """cat: what is learned in all of them."""
        tensors = _argument(args, kwargs, 0, "tensors", ())
        if isinstance(out, Tensor) and isinstance(tensors, (tuple, list)):
            self.put(out, self._common([x for x in tensors if isinstance(x, Tensor) and x.ndim == out.ndim]))

    def stacked(self, args: Any, kwargs: Any, out: Any) -> None:
        """stack: the new axis counts no more than what was called in turn."""
        tensors = _argument(args, kwargs, 0, "tensors", ())
        if isinstance(out, Tensor) and isinstance(tensors, (tuple, list)):
            at = _dims(dims_of(args, kwargs, 1, 0), out.ndim) or (0,)
            self.put(out, [axis + (axis >= at[0]) for axis in self._common(tensors)])

    def _common(self, tensors: Sequence[Tensor]) -> set[int]:
        each = [{*range(x.ndim)} if is_learned(x) else {*self.axes(x)} for x in tensors]
        return set.intersection(*each) if each else set()


def is_learned(x: Optional[Tensor]) -> bool:
    """Whether it is a parameter, or a view of one."""
    return isinstance(x, torch.nn.Parameter) or x is not None and isinstance(x._base, torch.nn.Parameter)


def regrouped(axes: Sequence[int], before: Sequence[int], after: Sequence[int]) -> Axes:
    """After a reshape, the axes that are made of those axes only. Axes of one element are nobody's."""
    if 0 in before or 0 in after:
        return ()
    ours, theirs = ([axis for axis, size in enumerate(shape) if size > 1] for shape in (before, after))
    out: list[int] = []
    i = j = 0
    while i < len(ours) and j < len(theirs):
        one, other, a, b = i, j, before[ours[i]], after[theirs[j]]
        i, j = i + 1, j + 1
        while a != b:  # joined or divided
            if a < b:
                a, i = a * before[ours[i]], i + 1
            else:
                b, j = b * after[theirs[j]], j + 1
        if all(axis in axes for axis in ours[one:i]):
            out += theirs[other:j]
    return tuple(out)


def _came_from(index: Any, ndim: int) -> Optional[list[Axes]]:
    """Of x[index], for each axis those of x that it came from."""
    items = list(index) if isinstance(index, tuple) else [index]
    items = [torch.tensor(item) if isinstance(item, list) else item for item in items]
    taken = sum(_taken(item) for item in items)
    if Ellipsis not in [item for item in items if not isinstance(item, Tensor)]:
        items.append(Ellipsis)
    out: list[Axes] = []
    picked: list[int] = []  # by tensors
    places: list[int] = []  # in the result, of each such tensor
    width = at = 0
    for item in items:
        if item is None:
            out.append(())
        elif item is Ellipsis:
            out += [(axis,) for axis in range(at, at + ndim - taken)]
            at += ndim - taken
        elif isinstance(item, slice):
            out.append((at,))
            at += 1
        elif isinstance(item, Tensor):
            places.append(len(out))
            picked += range(at, at + _taken(item))
            width = max(width, 1 if item.dtype == torch.bool else item.ndim)
            at += _taken(item)
        elif isinstance(item, int) and not isinstance(item, bool):
            at += 1
        else:
            return None
    if places:
        first = places[0] if places[0] == places[-1] else 0  # apart from each other, their axes come first
        out[first:first] = [tuple(picked)] * width
    return out


def _taken(item: Any) -> int:
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if isinstance(item, Tensor) and item.dtype == torch.bool else 1


def _input(args: Any, kwargs: Any) -> Any:
    return args[0] if args else kwargs.get("input")


def _argument(args: Any, kwargs: Any, at: int, name: str, default: Any = None) -> Any:
    return args[at] if len(args) > at else kwargs.get(name, default)


def _dims(dims: Any, ndim: int) -> Optional[Axes]:
    dims = (dims,) if isinstance(dims, int) else dims
    if not isinstance(dims, (tuple, list)) or not all(isinstance(dim, int) and -ndim <= dim < ndim for dim in dims):
        return None
    return tuple(dim % ndim for dim in dims)


def _without(axes: Sequence[int], gone: Sequence[int]) -> list[int]:
    return [axis - sum(each < axis for each in gone) for axis in axes if axis not in gone]


Rule = Callable[[Learned, Any, Any, Any], None]

#: What is not here, nor permutes, leaves nothing known.
BY_RULE: dict[Rule, str] = {
    Learned.elementwise: "mul mul_ multiply multiply_ __mul__ __rmul__ __imul__ div div_ divide divide_ true_divide "
    "true_divide_ __truediv__ __itruediv__ __div__ __idiv__ add add_ __add__ __radd__ __iadd__ sub sub_ subtract "
    "subtract_ __sub__ __isub__ __rsub__ rsub tanh tanh_ neg neg_ negative __neg__ masked_fill masked_fill_ where "
    "clamp clamp_ clip clamp_min clamp_max maximum minimum nan_to_num nan_to_num_ tril triu addcmul to float double "
    "half bfloat16 type type_as contiguous clone detach dropout dropout_ feature_dropout alpha_dropout requires_grad_ "
    "_to_copy cpu cuda native_dropout alias softmax special.softmax _softmax _safe_softmax log_softmax "
    "special.log_softmax _log_softmax exp exp_ log log_ log1p abs square sqrt pow __pow__ sigmoid sigmoid_ "
    "special.expit logsigmoid softplus relu relu_ relu6 leaky_relu elu gelu silu mish hardtanh hardtanh_ hardswish "
    "softsign layer_norm rms_norm group_norm batch_norm instance_norm normalize",
    Learned.overwritten: "copy_ zero_ fill_ normal_ uniform_ set_",
    Learned.along: "topk sort msort gather take_along_dim index_select index_fill index_fill_ scatter scatter_ "
    "scatter_add scatter_add_ index_add index_copy masked_scatter roll flip pad constant_pad_nd cumsum "
    "repeat repeat_interleave tile narrow slice chunk split tensor_split interpolate upsample avg_pool1d avg_pool2d "
    "avg_pool3d max_pool1d max_pool2d max_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d "
    "grid_sample",
    Learned.reduced: "sum mean amax amin max min logsumexp special.logsumexp median",
    Learned.reshaped: "view reshape unflatten flatten unsqueeze squeeze view_as reshape_as _unsafe_view expand "
    "expand_as ravel broadcast_to",
    Learned.indexed: "__getitem__",
    Learned.selected: "select unbind",
    Learned.joined: "cat concat concatenate",
    Learned.stacked: "stack",
}
