"""What qk_clip needs to know of other processes: maxima over ranks, and which rows and heads of a sharded parameter are
here."""

from __future__ import annotations

import hashlib
from typing import Any, Iterable, Optional, Union

import numpy as np
import torch
from torch import Tensor


class Ranks:
    """The processes that clip together: those of `group`, by default all there are, with False this one alone."""

    def __init__(self, group: Union[None, bool, Any], model: torch.nn.Module):
        import torch.distributed as dist

        if group is True or (group is not None and group is not False and not hasattr(group, "rank")):
            raise TypeError(f"group: {group!r}, but a process group, None or False is wanted")
        there = dist.is_available() and dist.is_initialized()
        self.group = None if group is None or group is False else group
        self.world = dist.get_world_size() if there else 1
        self.ranks = [dist.get_rank()] if there else [0]
        if there and group is not False:
            self.ranks = dist.get_process_group_ranks(self.group if self.group is not None else dist.group.WORLD)
            if dist.get_rank() not in self.ranks:
                raise ValueError(f"group: has ranks {self.ranks}, but this is rank {dist.get_rank()}")
            backend = str(dist.get_backend(self.group))
            on_cpu = any(name in backend for name in ("gloo", "mpi", "cpu"))
            first = next(model.parameters(), None)
            self.device = torch.device("cpu") if on_cpu or first is None else first.device

    @property
    def alone(self) -> bool:
        return len(self.ranks) < 2

    def maximum(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Of each number over all ranks, by one all_reduce; none may be NaN."""
        if self.alone:
            return values
        import torch.distributed as dist

        packed = torch.from_numpy(np.array(values, np.float64)).to(self.device)
        dist.all_reduce(packed, op=dist.ReduceOp.MAX, group=self.group)
        return np.asarray(packed.cpu().numpy())

    def same(self, what: object) -> bool:
        """Whether all ranks say the same."""
        digest = float(int.from_bytes(hashlib.sha256(repr(what).encode()).digest()[:6], "big"))  # exact in a double
        most, least = self.maximum(np.array([digest, -digest]))
        return bool(most == -least)

    def gather(self, what: Any) -> list[Any]:
        if self.alone:
            return [what]
        import torch.distributed as dist

        out: list[Any] = [None] * len(self.ranks)
        dist.all_gather_object(out, what, group=self.group)
        return out

    def together(self, failed: Optional[BaseException], what: str) -> None:
        """Raises on all ranks if one has failed."""
        if self.alone:
            if failed is not None:
                raise failed
            return
        where = self.maximum(np.array([float(failed is not None)]))[0]
        if failed is not None:
            raise failed
        if where:
            raise RuntimeError(f"qk_clip: {what} on another rank, so nothing was changed on this one either")


# Shards ---------------------------------------------------------------------------------------------------------------
def _mesh(x: Tensor) -> Optional[Any]:
    """Of a DTensor; None for an ordinary one."""
    return x.device_mesh if hasattr(x, "device_mesh") and hasattr(x, "placements") else None


def _placements(x: Tensor) -> tuple[Any, ...]:
    return tuple(getattr(x, "placements"))  # noqa: B009, a DTensor has them


def local(x: Tensor) -> Tensor:
    """What is here of it, in place."""
    return getattr(x, "_local_tensor", x).detach() if _mesh(x) is not None else x.detach()


def is_fsdp(module: torch.nn.Module) -> bool:
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)


def _is_shard(placement: Any, axis: int) -> bool:
    return getattr(placement, "dim", None) == axis  # Shard and its kin; Replicate and Partial have none


def _is_strided(placement: Any) -> bool:
    """FSDP's shard of what tensor parallelism has sharded before."""
    return hasattr(placement, "split_factor")


class Heads:
    """Of all heads of a layer, those that this rank computes."""

    def __init__(self, module: torch.nn.Module, here: int, fsdp: bool):
        """fsdp: whether fully_shard manages the module's parameters."""
        self.here, self.start, self.all = here, 0, here
        sure, unsure = set(), set()  # (size, this rank's place) of what splits heads; names of parameters sharded twice
        for name, x in module.named_parameters():
            mesh = _mesh(x)
            if mesh is None:
                continue
            shards = [dim for dim, p in enumerate(_placements(x)) if hasattr(p, "dim") and mesh.size(dim) > 1]
            if fsdp and not any(_is_strided(p) for p in _placements(x)):
                # One shard is gathered before anything is computed. Of two, one may split heads or the inputs of a row.
                unsure |= {name} if len(shards) > 1 else set()
                continue
            dims = [dim for dim in shards if _is_shard(_placements(x)[dim], 0) and not _is_strided(_placements(x)[dim])]
            if len(dims) > 1:
                unsure.add(name)
            elif dims:
                sure.add((mesh.size(dims[0]), mesh.get_local_rank(dims[0])))
        if len(sure) > 1 or (unsure and not sure):
            raise ValueError(
                f"its parameters are sharded in several ways ({', '.join(sorted(unsure)) or len(sure)}), "
                "and which of them splits heads is not known"
            )
        for size, rank in sure:
            self.all, self.start = here * size, here * rank

    @property
    def split(self) -> bool:
        return self.all != self.here


def rows_here(x: Tensor, axis: int, name: str) -> slice:
    """The rows along the axis that are on this rank."""
    mesh = _mesh(x)
    count = int(x.shape[axis])
    if mesh is None:
        return slice(0, count)
    start, stop = 0, count
    order = sorted(range(mesh.ndim), key=lambda dim: _is_strided(_placements(x)[dim]))  # tensor parallelism first
    for dim in order:
        placement = _placements(x)[dim]
        if type(placement).__name__ == "Partial" or getattr(placement, "reduce_op", None) is not None:
            raise ValueError(f"{name} is a sum over ranks that nobody has made yet (Partial)")
        if _is_shard(placement, axis):
            each = -(-(stop - start) // mesh.size(dim))  # as torch.chunk does it
            rank = mesh.get_local_rank(dim)
            start, stop = min(start + rank * each, stop), min(start + (rank + 1) * each, stop)
    if int(local(x).shape[axis]) != stop - start:
        raise ValueError(
            f"{name} has {local(x).shape[axis]} rows here, but {stop - start} are expected of {_placements(x)}"
        )
    return slice(start, stop)


def reaches(x: Tensor, ranks: Ranks) -> bool:
    """Whether all who hold a part of it clip together."""
    mesh = _mesh(x)
    if mesh is None:
        return True
    holders: Iterable[int] = mesh.mesh.flatten().tolist()
    return set(holders) <= set(ranks.ranks)
