"""What a module's own forward makes of its projections, where no name tells: their outputs are replaced by random
numbers, and what arrives at the first product of queries and keys says which rows it came from, and whether a factor
would arrive, too."""

from __future__ import annotations

import copy
from typing import Any, Optional

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_SDPA = torch.nn.functional.scaled_dot_product_attention
_PRODUCTS = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm}
_BATCH, _LENGTH = 2, 3


class _Arrived(Exception):
    """With queries and keys; nothing after the product is computed."""


class _Says(torch.nn.Module):
    """In a linear layer's place: gives the same for every input."""

    def __init__(self, what: Tensor):
        super().__init__()
        self.what = what

    def forward(self, x: Tensor) -> Tensor:
        return self.what


class _Catch(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _SDPA:
            named = dict(zip(("query", "key"), args), **kwargs)
            raise _Arrived(named["query"], named["key"])
        if func in _PRODUCTS and len(args) == 2:
            raise _Arrived(args[0], args[1].transpose(-1, -2))
        with torch._C.DisableTorchFunction():  # no watch is to see this
            return func(*args, **kwargs)


def _arrives(module: torch.nn.Module, said: dict[str, Tensor], inputs: int) -> Optional[tuple[Tensor, Tensor]]:
    """Queries and keys [batch, heads, length, dim]. None where forward needs more than its input. No parameter of
    another linear layer is used, so that shards need not be gathered."""
    device = next(iter(said.values())).device
    probe = module.__class__.__new__(module.__class__)
    for name, value in module.__dict__.items():  # what forward may write to, such as a cache, is not the module's own
        probe.__dict__[name] = copy.copy(value) if isinstance(value, (list, dict, set)) else value
    probe.__dict__["_buffers"] = {name: None if x is None else x.clone() for name, x in module._buffers.items()}
    children: dict[str, Any] = {}
    for name, child in module._modules.items():
        if name in said:
            child = _Says(said[name])
        elif isinstance(child, torch.nn.Linear):
            child = _Says(torch.zeros(_BATCH, _LENGTH, child.out_features, device=device))
        children[name] = child
    probe.__dict__["_modules"] = children
    try:
        with torch.random.fork_rng(devices=[]), _Catch():
            type(probe).forward(probe, torch.zeros(_BATCH, _LENGTH, inputs, device=device))
    except _Arrived as arrived:
        q, k = (_four(side) for side in arrived.args)
        return None if q is None or k is None else (q, k)
    except Exception:
        return None
    return None


def _four(side: Any) -> Optional[Tensor]:
    if not isinstance(side, Tensor) or side.ndim not in (3, 4) or side.shape[0] % _BATCH or side.shape[-2] != _LENGTH:
        return None
    return side if side.ndim == 4 else side.unflatten(0, (_BATCH, -1))  # heads were folded into the batch


def _random(rows: int, seed: int, device: torch.device) -> Tensor:
    return torch.randn(_BATCH, _LENGTH, rows, generator=torch.Generator().manual_seed(seed)).to(device)


def passes_factors(module: torch.nn.Module, rows: dict[str, int], inputs: int, device: torch.device) -> Optional[bool]:
    """Whether queries double when the layers' outputs do, and keys, too, where there are two layers. None where that
    cannot be tried."""
    with torch.inference_mode(False), torch.no_grad():
        said = {name: _random(count, seed, device) for seed, (name, count) in enumerate(rows.items())}
        once = _arrives(module, said, inputs)
        twice = _arrives(module, {name: 2 * y for name, y in said.items()}, inputs)
        if once is None or twice is None:
            return None
        return all(_is_double(a, b) for a, b in list(zip(once, twice))[: len(rows)])


def _is_double(a: Tensor, b: Tensor) -> bool:
    a, b = a.detach(), b.detach()
    return a.shape == b.shape and float((2 * a - b).abs().max()) <= 1e-3 * float(a.abs().max())


def rows_of(
    module: torch.nn.Module, name: str, rows: int, inputs: int, heads: int, device: torch.device
) -> Optional[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Of a packed layer: whether row r is of head h's queries, and of its keys, as two tables [heads, rows]. None where
    that cannot be tried, or where factors would not arrive."""
    with torch.inference_mode(False), torch.enable_grad():
        y = _random(rows, 0, device).requires_grad_()
        once, twice = _arrives(module, {name: y}, inputs), _arrives(module, {name: 2 * y}, inputs)
        if once is None or twice is None or not all(_is_double(a, b) for a, b in zip(once, twice)):
            return None
        tables = []
        for side in once:
            if not side.requires_grad or not side.shape[1] or heads % side.shape[1]:
                return None
            mine = []
            for head in range(side.shape[1]):
                weights = torch.randn(side[:, head].shape, generator=torch.Generator().manual_seed(head)).to(side)
                (gradient,) = torch.autograd.grad((side[:, head] * weights).sum(), y, retain_graph=True)
                mine.append((gradient != 0).any(0).any(0).cpu().numpy())
            tables.append(np.stack(mine).repeat(heads // side.shape[1], 0))
    return tables[0], tables[1]
