"""What a watch sees of a model: its calls of torch functions, and attention that is written out, followed from product to
product."""
from __future__ import annotations

import threading
from typing import Any, Callable, Optional, Protocol

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

_SDPA = torch.nn.functional.scaled_dot_product_attention
_PRODUCTS = {torch.matmul, Tensor.matmul, Tensor.__matmul__}
_SOFTMAX = {torch.softmax, Tensor.softmax, torch.nn.functional.softmax}
_TIMES = {torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, Tensor.mul_, Tensor.__imul__, torch.multiply}
_OVER = {torch.div, Tensor.div, Tensor.__truediv__, Tensor.div_, Tensor.__itruediv__, torch.true_divide}
_PLAIN = {Tensor.contiguous, Tensor.clone, Tensor.to, Tensor.float, torch.clone}


import dataclasses


@dataclasses.dataclass
class Written:
    q: Tensor
    k: Tensor
    factor: float
    prescale: float
    cap: Optional[float]
    scores: Tensor
    sink: Optional[Tensor]
    hooked: Tensor


class Looker(Protocol):
    """Who wants to know."""

    @property
    def looking(self) -> bool: ...

    def sdpa(self, func: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor: ...

    def written_out(self, found: Written) -> None: ...


class Product:
    """q·kᵀ, times a factor so far; `k` is already transposed."""

    __slots__ = ("q", "k", "factor", "added")

    def __init__(self, q: Tensor, k: Tensor, factor: float = 1.0, added: bool = False):
        self.q, self.k, self.factor, self.added = q, k, factor, added


_inside = threading.local()  # .watch: whose nn.MultiheadAttention this thread is in
_inside_lock, _inside_count = threading.Lock(), [0]


def _seen(*args: Any, **kwargs: Any) -> Tensor:
    watch: Optional[Looker] = getattr(_inside, "watch", None)
    return _SDPA(*args, **kwargs) if watch is None else watch.sdpa(_SDPA, *args, **kwargs)


class Follow(TorchFunctionMode):
    def __init__(self, watch: Looker):
        super().__init__()
        self.watch = watch
        self.products: Any = WeakTensorKeyDictionary()  # tensor → Product
        self.weights: Any = WeakTensorKeyDictionary()  # softmax's output → (Product, scores)

    def __enter__(self) -> Follow:
        TorchFunctionMode.__enter__(self)
        return self

    def __exit__(self, *exception: Any) -> None:
        TorchFunctionMode.__exit__(self, *exception)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.watch.looking:
            return func(*args, **kwargs)
        if func is _SDPA:
            return self.watch.sdpa(func, *args, **kwargs)
        if func is torch.nn.functional.multi_head_attention_forward:
            return self._inside(func, args, kwargs)
        factors = _factors(func, args, kwargs)
        out = func(*args, **kwargs)
        if factors is not None:
            found = self.weights.pop(factors[0], None)
            if found is not None:
                product, scores = found
                self.watch.written_out(Written(product.q, product.k, product.factor, 1.0, None, scores, None, scores))
            elif (product := _product(*factors)) is not None:
                self.products[out] = product
            return out
        if (self.products or self.weights) and args and isinstance(out, Tensor) and out.ndim == 4:
            self._follow(func, args, kwargs, out)
        return out

    def _inside(self, func: Any, args: Any, kwargs: Any) -> Any:
        """nn.MultiheadAttention is one function to a mode, which is off inside of it; what that calls by name is what can be
        seen. Other threads call by that name, too."""
        outer = getattr(_inside, "watch", None)
        with _inside_lock:
            _inside_count[0] += 1
            torch.nn.functional.scaled_dot_product_attention = _seen
        _inside.watch = self.watch
        try:
            return func(*args, **kwargs)
        finally:
            _inside.watch = outer
            with _inside_lock:
                _inside_count[0] -= 1
                if _inside_count[0] == 0:
                    torch.nn.functional.scaled_dot_product_attention = _SDPA

    def _follow(self, func: Any, args: Any, kwargs: Any, out: Tensor) -> None:
        source = next((x for x in args[:2] if isinstance(x, Tensor) and x.shape == out.shape
                       and (x in self.products or x in self.weights)), None)
        if source is None:
            return
        product = self.products.get(source)
        if product is None:  # dropout or a cast between softmax and the second product
            if out is not source:
                self.weights[out] = self.weights[source]
            return
        if func in _SOFTMAX:
            dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
            if dim in (-1, 3):
                self.weights[out] = (product, source)
            return
        factor, added = product.factor, product.added
        if func in _TIMES or func in _OVER:
            other = next((x for x in (*args[:2], kwargs.get("other")) if x is not source and x is not None), None)
            number = _number(other)
            if number is None or added:
                added = True
            else:
                factor = factor * number if func in _TIMES else factor / number
        elif out.dtype == source.dtype and func not in _PLAIN:
            added = True
        self.products[out] = Product(product.q, product.k, factor, added)


def _factors(func: Any, args: Any, kwargs: Any) -> Optional[tuple[Tensor, Tensor, Optional[str]]]:
    """The two sides of a product of 4-D tensors, and the equation if it is written as one."""
    equation = None
    if func is torch.einsum:
        if not args or not isinstance(args[0], str):
            return None
        equation, args = args[0], args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
    elif func not in _PRODUCTS:
        return None
    sides = [*args, *(kwargs[name] for name in ("other", "tensor2") if name in kwargs)]
    if len(sides) != 2 or not all(isinstance(x, Tensor) and x.ndim == 4 for x in sides):
        return None
    return sides[0], sides[1], equation


def _product(a: Tensor, b: Tensor, equation: Optional[str]) -> Optional[Product]:
    """If this may be q·kᵀ: q as [batch, heads, len_q, dim], k as [batch, heads, dim, len_kv]."""
    if equation is None:
        return Product(a, b) if a.shape[:2] == b.shape[:2] and b.shape[-1] > 1 else None
    sides, _, result = equation.replace(" ", "").partition("->")
    one, _, other = sides.partition(",")
    summed = [x for x in one if x in other and x not in result]
    if len(result) != 4 or len(one) != 4 or len(other) != 4 or len(summed) != 1 or "." in equation:
        return None
    batch, heads, row, column = tuple(result)
    if row in other:  # keys first
        one, other, a, b = other, one, b, a
    if {*one} != {batch, heads, row, summed[0]} or {*other} != {batch, heads, column, summed[0]}:
        return None
    return Product(a.permute(*(one.index(x) for x in (batch, heads, row, summed[0]))),
                   b.permute(*(other.index(x) for x in (batch, heads, summed[0], column))))


def _number(x: Any) -> Optional[float]:
    if isinstance(x, (int, float)) and not isinstance(x, bool):
        return float(x)
    if isinstance(x, Tensor) and x.numel() == 1 and not x.requires_grad:
        return float(x)
    return None
