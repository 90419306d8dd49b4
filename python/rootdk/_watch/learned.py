"""Which axes of a tensor count what was learned: a linear layer's features, a router's experts, a classifier's classes.
A softmax over such an axis is not over positions. Heads are such features that have an axis of their own, or share one
with the batch, in the order in which they were joined. What happens to a tensor on the way is followed by its axes
alone.

This is apart from what is known of q, k and scores: a query has come from a linear layer as well as a router's scores
have, and neither fact may change the other.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Iterable, NamedTuple, Optional, Sequence

import torch
from torch import Tensor

from . import einsum
from .dims import dims_of
from .factors import Factor, Factors, is_learned_only, regrouped, resized
from .products import Memory

Axes = tuple[int, ...]
Known = dict[int, Factors]  #: by axis; those that are left out are of nothing that was learned


class Piece(NamedTuple):
    """Which features of an axis that was cut along them, or that is gone."""

    first: int
    size: int
    of: int


class Marks(NamedTuple):
    axes: Known
    piece: Optional[Piece] = None


_NOTHING = Marks({})


class Learned(Memory):
    """Those axes, by tensor. Each rule is called with a function's arguments and its result. What a rule does not
    know has none: its softmax is named."""

    __slots__ = ()

    def axes(self, x: Any) -> Axes:
        """Those of nothing else."""
        return tuple(axis for axis, factors in self.marks(x).axes.items() if is_learned_only(factors))

    def marks(self, x: Any) -> Marks:
        return self.get(x) or _NOTHING

    def factors(self, x: Tensor, axis: int) -> Optional[Factors]:
        """None where nothing is known of x."""
        axes = self.marks(x).axes
        return axes.get(axis, (Factor(x.shape[axis], False),)) if axes else None

    def put(self, x: Any, axes: Iterable[int]) -> None:
        """Instead of what was known of x, which may be a result in place."""
        if isinstance(x, Tensor):
            self._put(x, {axis: (Factor(x.shape[axis], True),) for axis in axes})

    def _put(self, x: Any, axes: Known, piece: Optional[Piece] = None) -> None:
        if not isinstance(x, Tensor):
            return
        kept = {axis: factors for axis, factors in axes.items() if any(f.learned is not False for f in factors)}
        if kept and (x.is_floating_point() or x.is_complex()):
            self.set(x, Marks(kept, piece))
        else:
            self.pop(x)

    # Element by element -----------------------------------------------------------------------------------------------
    def elementwise(self, args: Any, kwargs: Any, out: Any) -> None:
        """Sums, products, masks, noise: an axis is learned if it is in any operand that is not spread along it."""
        known = self._known(args, kwargs)
        if known and isinstance(out, Tensor) and (len(known) > 1 or known[0] is not out):
            axes: Known = {}
            for x in reversed(known):
                axes |= self._spread(x, out)
            pieces = {self.marks(x).piece for x in known}
            self._put(out, axes, pieces.pop() if len(pieces) == 1 else None)

    def overwritten(self, args: Any, kwargs: Any, out: Any) -> None:
        self.pop(args[0] if args else None)
        self.elementwise(args[1:2], {}, out)

    def _spread(self, x: Any, out: Tensor) -> Known:
        """x's axes in a result to which it was broadcast."""
        axes = self.marks(x).axes
        if not axes or x.shape == out.shape:
            return axes
        more = out.ndim - x.ndim
        return {
            axis + more: factors
            for axis, factors in axes.items()
            if axis + more >= 0 and x.shape[axis] == out.shape[axis + more]
        }

    def _known(self, args: Any, kwargs: Any) -> list[Any]:
        """Those arguments of which something may be known, in short: most calls have none."""
        return [x for x in (*args, *kwargs.values()) if id(x) in self.notes]

    # Axes that stay where they are ------------------------------------------------------------------------------------
    def along(self, args: Any, kwargs: Any, out: Any) -> None:
        """Some of an axis's elements, or in another order, or more of them: topk, sort, gather, interpolate."""
        known = self._known(args, kwargs)  # scatter has its own and its source's
        for y in (out if isinstance(out, (tuple, list)) else (out,)) if known else ():
            if isinstance(y, Tensor):
                axes: Known = {}
                for x in reversed(known):
                    axes |= self._grown(x, y)
                self._put(y, axes)

    def _grown(self, x: Any, y: Tensor) -> Known:
        axes = self.marks(x).axes
        more = y.ndim - x.ndim if axes else 0  # repeat may put axes before
        if more < 0:
            return {}
        return {
            axis + more: resized(factors, y.shape[axis + more])
            for axis, factors in axes.items()
            if not x.shape[axis] == 1 < y.shape[axis + more]
        }

    def divided(self, args: Any, kwargs: Any, out: Any) -> None:
        """chunk and split: each part is of the features that follow the part before."""
        x, dims = _input(args, kwargs), _argument(args, kwargs, 2, "dim", 0)
        known = self.marks(x)
        cut = _dims(dims, x.ndim) if known.axes else None
        if cut is None or not isinstance(out, (tuple, list)):
            return
        first = 0
        for y in out:
            self._put(y, *_part(known, x, cut[0], first, y.shape[cut[0]]))
            first += y.shape[cut[0]]

    def narrowed(self, args: Any, kwargs: Any, out: Any) -> None:
        x = _input(args, kwargs)
        dims, first = (_argument(args, kwargs, at, name) for at, name in ((1, "dim"), (2, "start")))
        known = self.marks(x)
        cut = _dims(dims, x.ndim) if known.axes else None
        if cut is not None and isinstance(out, Tensor):
            self._put(out, *_part(known, x, cut[0], first, out.shape[cut[0]]))

    def reduced(self, args: Any, kwargs: Any, out: Any) -> None:
        """A sum, mean or maximum over some axes."""
        x, dims = _input(args, kwargs), dims_of(args, kwargs)
        out = out[0] if isinstance(out, tuple) and out else out
        axes = self.marks(x).axes
        if not axes or not isinstance(out, Tensor):
            return
        if isinstance(dims, Tensor):
            self.elementwise(args, kwargs, out)  # the larger of two
            return
        gone = _dims(dims, x.ndim)
        if gone is not None and out.ndim == x.ndim:
            self._put(out, {axis: factors for axis, factors in axes.items() if axis not in gone})
        elif gone is not None and out.ndim == x.ndim - len(gone):
            self._put(out, _without(axes, gone))

    def paired(self, args: Any, kwargs: Any, out: Any) -> None:
        """Complex numbers from a last axis of two, and back."""
        x = _input(args, kwargs)
        if isinstance(out, Tensor):
            kept = min(x.ndim, out.ndim)
            self._put(out, {axis: factors for axis, factors in self.marks(x).axes.items() if axis < kept})

    # Axes that move ---------------------------------------------------------------------------------------------------
    def permuted(self, x: Tensor, order: Sequence[int], out: Any) -> None:
        if out is not x:
            known = self.marks(x)
            self._put(out, {order.index(axis): factors for axis, factors in known.axes.items()}, known.piece)

    def reshaped(self, args: Any, kwargs: Any, out: Any) -> None:
        x = _input(args, kwargs)
        known = self.marks(x)
        if not known.axes or not isinstance(out, Tensor) or out is x:
            return
        if x.numel() != out.numel():
            self._put(out, self._spread(x, out), known.piece)
        elif x.numel():
            before = [known.axes.get(axis, (Factor(size, False),)) for axis, size in enumerate(x.shape)]
            self._put(out, dict(enumerate(regrouped(before, out.shape))), known.piece)

    def indexed(self, args: Any, kwargs: Any, out: Any) -> None:
        x = _input(args, kwargs)
        known = self.marks(x)
        if not known.axes or not isinstance(out, Tensor) or len(args) < 2 or out is x:
            return
        came = _came_from(args[1], x.ndim)
        if came is None or len(came) != out.ndim:
            return
        axes, learned, piece = Known(), {*self.axes(x)}, known.piece
        for axis, sources in enumerate(came):
            if len(sources) == 1 and sources[0] in known.axes:
                axes[axis] = resized(known.axes[sources[0]], out.shape[axis])
            elif sources and {*sources} <= learned:
                axes[axis] = (Factor(out.shape[axis], True),)
        for axis, first in _firsts(args[1], x).items():
            if axis in learned:
                left = [out.shape[to] for to, sources in enumerate(came) if sources == (axis,)]
                piece = Piece(first, left[0] if left else 1, x.shape[axis])
        self._put(out, axes, piece)

    def selected(self, args: Any, kwargs: Any, out: Any) -> None:
        """select and unbind: one axis goes."""
        x = _input(args, kwargs)
        known = self.marks(x)
        gone = _dims(dims_of(args, kwargs, 1, 0), x.ndim) if known.axes else None
        if gone is None:
            return
        several = isinstance(out, (tuple, list))
        first = 0 if several else _argument(args, kwargs, 2, "index")
        for at, y in enumerate(out if several else (out,), first):
            axes, piece = _part(known, x, gone[0], at % x.shape[gone[0]], 1)
            self._put(y, _without(axes, gone), piece)

    def contracted(self, args: Any, kwargs: Any, out: Any) -> None:
        """einsum: what the weights of a layer bring."""
        read = einsum.operands_of(args)
        tensors = read[1] if read is not None else []
        weights = [i for i, x in enumerate(tensors) if is_learned(x)]
        if read is None or not 0 < len(weights) < len(tensors) or not isinstance(out, Tensor):
            return
        names = einsum.letters(read[0], tuple(x.ndim for x in tensors))
        if names is not None:
            theirs = {name for i, axes in enumerate(names[0]) if i not in weights for name in axes}
            self.put(out, [axis for axis, name in enumerate(names[1]) if name not in theirs])

    # Several tensors --------------------------------------------------------------------------------------------------
    def joined(self, args: Any, kwargs: Any, out: Any) -> None:
        """cat: what is learned in all of them. Along another axis than they were cut from, all features in turn make
        heads of what was cut."""
        tensors = _argument(args, kwargs, 0, "tensors", ())
        dims = dims_of(args, kwargs, 1, 0)
        if not isinstance(out, Tensor) or not isinstance(tensors, (tuple, list)):
            return
        tensors = [x for x in tensors if isinstance(x, Tensor) and x.ndim == out.ndim]
        axes, along = self._common(tensors), _dims(dims, out.ndim)
        if axes and along is not None:
            old = axes.pop(along[0], None)
            if old is not None and is_learned_only(old):
                axes[along[0]] = (Factor(out.shape[along[0]], True),)
            else:
                sizes = {x.shape[along[0]] for x in tensors}
                inner = old or (Factor(sizes.pop(), False),) if len(sizes) == 1 else ()
                axes[along[0]] = self._in_turn(tensors, axes, inner, out.shape[along[0]])
        self._put(out, axes)

    def stacked(self, args: Any, kwargs: Any, out: Any) -> None:
        """stack: the new axis counts what was called in turn, or all features in turn."""
        tensors = _argument(args, kwargs, 0, "tensors", ())
        if isinstance(out, Tensor) and isinstance(tensors, (tuple, list)):
            at = _dims(dims_of(args, kwargs, 1, 0), out.ndim) or (0,)
            axes = {axis + (axis >= at[0]): factors for axis, factors in self._common(tensors).items()}
            if axes:
                axes[at[0]] = self._in_turn(tensors, axes, (), out.shape[at[0]])
            self._put(out, axes)

    def _in_turn(self, tensors: Sequence[Tensor], axes: Known, inner: Factors, size: int) -> Factors:
        """The axis along which these lie, each with `inner` on it (none: not alike)."""
        pieces = [self.marks(x).piece for x in tensors]
        count = len(tensors)
        if None not in pieces and (inner or size == count) and _are_all(pieces):
            return (Factor(count, True), *inner)
        if sum(map(is_learned_only, axes.values())) > 1:  # heads have an axis already
            return (Factor(size, False),)
        return (Factor(count, None), *inner) if inner or size == count else (Factor(size, None),)

    def _common(self, tensors: Sequence[Tensor]) -> Known:
        each = [
            {axis: (Factor(size, True),) for axis, size in enumerate(x.shape)} if is_learned(x) else self.marks(x).axes
            for x in tensors
        ]
        axes = dict(each[0]) if each else {}
        for other in each[1:]:
            axes = {axis: _either(factors, other[axis]) for axis, factors in axes.items() if axis in other}
        return axes


def is_learned(x: Optional[Tensor]) -> bool:
    """Whether it is a parameter, or a view of one."""
    return isinstance(x, torch.nn.Parameter) or x is not None and isinstance(x._base, torch.nn.Parameter)


def _either(one: Factors, other: Factors) -> Factors:
    """Of two tensors' axis of that place, whose sizes may differ where they are joined."""
    if one == other or is_learned_only(one) and is_learned_only(other):
        return one
    return (Factor(math.prod(factor.size for factor in one), None),)


def _part(known: Marks, x: Tensor, axis: int, first: int, size: int) -> tuple[Known, Optional[Piece]]:
    """Of x cut along an axis."""
    factors = known.axes.get(axis)
    if factors is None:
        return known.axes, known.piece
    piece = Piece(first, size, x.shape[axis]) if is_learned_only(factors) else known.piece
    return {**known.axes, axis: resized(factors, size)}, piece


def _are_all(pieces: Sequence[Any]) -> bool:
    """Whether these are all features of an axis, in order, in parts of one size."""
    size, of = pieces[0].size, pieces[0].of
    return pieces == [Piece(at * size, size, of) for at in range(len(pieces))] and size * len(pieces) == of


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


def _firsts(index: Any, x: Tensor) -> dict[int, int]:
    """Of x[index], where axes of which a part is taken begin. Only where all before them are taken one by one."""
    items = list(index) if isinstance(index, tuple) else [index]
    out: dict[int, int] = {}
    at = 0
    for number, item in enumerate(items):
        if item is Ellipsis:
            at = x.ndim - sum(map(_taken, items[number + 1 :]))
            continue
        if isinstance(item, slice) and item != slice(None) and item.step in (None, 1):
            out[at] = item.indices(x.shape[at])[0]
        elif isinstance(item, int) and not isinstance(item, bool):
            out[at] = item % x.shape[at]
        at += _taken(item)
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


def _without(axes: Known, gone: Sequence[int]) -> Known:
    return {axis - sum(each < axis for each in gone): axes[axis] for axis in axes if axis not in gone}


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
    "scatter_add scatter_add_ index_add index_add_ index_copy index_copy_ masked_scatter "
    "roll flip pad constant_pad_nd cumsum repeat repeat_interleave tile slice interpolate upsample avg_pool1d "
    "avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d adaptive_avg_pool1d adaptive_avg_pool2d "
    "adaptive_avg_pool3d grid_sample",
    Learned.divided: "chunk split tensor_split",
    Learned.narrowed: "narrow",
    Learned.paired: "view_as_complex view_as_real",
    Learned.reduced: "sum mean amax amin max min logsumexp special.logsumexp median",
    Learned.reshaped: "view reshape unflatten flatten unsqueeze squeeze view_as reshape_as _unsafe_view expand "
    "expand_as ravel broadcast_to",
    Learned.indexed: "__getitem__",
    Learned.contracted: "einsum",
    Learned.selected: "select unbind",
    Learned.joined: "cat concat concatenate",
    Learned.stacked: "stack",
}
