"""QK-clip: which heads' scores passed tau, what is done about it, and whether it helped. Everything is planned before
anything is changed, and put back if something fails half-way."""

from __future__ import annotations

import dataclasses
import math
import threading
import warnings
from typing import Any, Mapping, Optional, Sequence, Union

import numpy as np
import torch
from torch import Tensor

from .projections import Edit, Found, Projections, find, given
from .ranks import Heads, Ranks, is_fsdp, local, reaches, rows_here

__all__ = ["Clipper", "Projections"]

_SLACK = 1.5  # how far above what was promised a new batch's maximum may be


@dataclasses.dataclass
class _Promise:
    """What a clip said about a layer's heads on this rank; NaN where it said nothing."""

    peak: list[float]
    factor: list[float]


@dataclasses.dataclass
class _Unit:
    """Weights that shrink together, and the labels under which they were seen."""

    name: str
    module: str
    labels: list[str]
    heads: Heads
    peak: np.ndarray[Any, np.dtype[np.float64]]  # of all heads
    projections: Optional[Projections] = None


class Clipper:
    """Keeps each layer's largest raw scores since the last clip, and clips by them."""

    def __init__(self) -> None:
        self._peak: dict[str, list[float]] = {}  # label → since the last clip; −inf where it was not seen
        self._modules: dict[str, str] = {}  # label → the name of the module that called
        self._promises: dict[str, _Promise] = {}
        self._doubts: dict[str, str] = {}  # label → why its heads since the last clip may be others
        self._warned: set[str] = set()
        self._lock = threading.Lock()

    # Observing --------------------------------------------------------------------------------------------------------
    def observe(self, step: int, label: str, module: str, raw_max: Sequence[float]) -> None:
        """Of one look at a layer: the largest raw score of each head. `module` is the name of who called."""
        values = [float(x) for x in raw_max]
        with self._lock:
            known = self._peak.get(label)
            if known is None or len(known) != len(values):  # another model size has other weights: nothing to merge
                known = [-math.inf] * len(values)
            # NaN stays: it says that the maximum is not known.
            self._peak[label] = [a if a != a or a > b else b for a, b in zip(known, values)]
            self._modules[label] = module
            promise = self._promises.pop(label, None)
        if promise is not None:
            self._verify(step, label, values, promise)

    def doubt(self, label: str, why: str) -> None:
        with self._lock:
            self._doubts[label] = why

    def _verify(self, step: int, label: str, values: list[float], promise: _Promise) -> None:
        """A clip that reached the scores leaves a maximum near peak·γ, one that did not near peak. Another batch moves
        both, so the line is 1.5 times what was promised, or, where γ is small, half-way back in logarithms: peak·√γ.
        Where γ is so near to 1 that the line is above the peak itself, the two cannot be told apart."""
        if label in self._warned or len(values) != len(promise.peak):
            return
        for head, (now, peak, factor) in enumerate(zip(values, promise.peak, promise.factor)):
            if factor * _SLACK <= 1 and now > peak * factor * max(_SLACK, factor**-0.5):
                self._warned.add(label)
                warnings.warn(
                    f"qk_clip: {label}, head {head}: the largest raw score was to go from {peak:.4g} to "
                    f"{peak * factor:.4g}, but is {now:.4g} at step {step}. Either the weights that were scaled are "
                    "not what the scores come from (see projections=), something has set them back (an optimizer's own "
                    f"copy), or they grew {now / (peak * factor):.2g} times in between.",
                    RuntimeWarning,
                    stacklevel=3,
                )
                return

    # Clipping ---------------------------------------------------------------------------------------------------------
    def clip(
        self,
        model: torch.nn.Module,
        tau: float,
        alpha: float,
        *,
        projections: Optional[Mapping[str, Projections]] = None,
        group: Union[None, bool, Any] = None,
    ) -> dict[str, list[float]]:
        """Shrinks what passed tau, on all ranks alike, or raises and changes nothing. Returns the factor by which each
        head's scores were multiplied, for the layers where one is below 1."""
        if not 0 < tau < math.inf:
            raise ValueError(f"tau: {tau}, but a positive number is wanted")
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha: {alpha}, but 0 to 1 is wanted")
        ranks = Ranks(group, model)
        seen = self._known(ranks, tau, alpha)
        failed: Optional[Exception] = None
        units: list[_Unit] = []
        try:
            units = self._units(model, seen, projections or {}, ranks)
        except Exception as error:
            failed = error
        ranks.together(failed, "a layer could not be clipped")
        peaks = self._reduced(units, ranks)
        unknown = [
            f"{unit.name}, head {head}" for unit, peak in zip(units, peaks) for head in np.flatnonzero(peak == math.inf)
        ]
        gammas = [_factors(peak, tau) for peak in peaks]
        plan: list[tuple[_Unit, Found, Any]] = []
        if any(gamma.min(initial=1.0) < 1 for gamma in gammas):
            backup: list[tuple[Tensor, Tensor]] = []
            try:
                try:
                    self._refuse_guesses(units, gammas)
                    plan = _planned(model, units, gammas, alpha, ranks)
                    _apply(plan, backup)
                except Exception as error:
                    failed = error
                ranks.together(failed, "clipping failed")
            except BaseException:
                _put_back(backup)
                raise
        self._consume(plan, tau)
        if unknown:
            more = f" and {len(unknown) - 4} more" if len(unknown) > 4 else ""
            warnings.warn(
                f"qk_clip: not clipped, as the largest score was not finite: {'; '.join(unknown[:4])}{more}",
                RuntimeWarning,
                stacklevel=3,
            )
        return {label: found.achieved(gamma).tolist() for unit, found, gamma in plan for label in unit.labels}

    def _known(self, ranks: Ranks, tau: float, alpha: float) -> dict[str, tuple[str, int]]:
        """label → (module, heads here), of all layers that any rank has seen."""
        with self._lock:
            mine = {label: (self._modules[label], len(peak)) for label, peak in sorted(self._peak.items())}
        if ranks.same((tau, alpha, list(mine.items()))):
            return mine
        everybody = ranks.gather((tau, alpha, mine))
        if len({(t, a) for t, a, _ in everybody}) > 1:
            raise ValueError(f"qk_clip: tau and alpha differ between ranks: {[(t, a) for t, a, _ in everybody]}")
        merged: dict[str, tuple[str, int]] = {}
        for rank, (_, _, theirs) in zip(ranks.ranks, everybody):
            for label, seen in theirs.items():
                if merged.setdefault(label, seen) != seen:
                    raise ValueError(
                        f"qk_clip: {label} has {seen[1]} heads on rank {rank}, but {merged[label][1]} on "
                        "another; pass group= with ranks of the same model"
                    )
        return dict(sorted(merged.items()))

    def _units(
        self,
        model: torch.nn.Module,
        seen: dict[str, tuple[str, int]],
        projections: Mapping[str, Projections],
        ranks: Ranks,
    ) -> list[_Unit]:
        """Calls of the same module share its weights and so become one, unless the caller says which a call has."""
        for label, said in projections.items():
            if not isinstance(said, Projections):
                raise TypeError(f"projections: {label}: {type(said).__name__}, but rootdk.Projections is wanted")
            if label not in seen and _submodule(model, label) is None:
                raise ValueError(f"projections: {label!r} is none of the layers seen: {', '.join(seen) or 'none yet'}")
        if getattr(model, "_tp_size", None) not in (None, 1) and ranks.group is None and ranks.world > 1:
            raise ValueError(
                "qk_clip: the model is tensor parallel by transformers' own means; pass group= with the "
                "ranks that hold the same heads, or False"
            )
        units: dict[str, _Unit] = {}
        for label in sorted(seen, key=lambda label: (seen[label][0], len(label), label)):
            name, count = seen[label]
            module = _submodule(model, name)
            if module is None:
                raise ValueError(
                    f"qk_clip: {label}: this rank's model has no module {name!r}; pass group= with ranks "
                    "of the same model"
                )
            own = projections.get(label)
            key = label if own is not None else f"module {name}"
            if own is None and key not in units:
                first = next((u for u in units.values() if u.module == name), None)
                key = first.name if first is not None and first.name in units else key
            unit = units.get(key)
            here = np.array(self._peak.get(label, [-math.inf] * count), np.float64)
            if unit is None:
                sharded = [outer for outer in _ancestors(model, name) if is_fsdp(outer)]
                for outer in sharded:  # parameters that were gathered for the last pass are not those that stay
                    outer.reshard()  # type: ignore[operator]
                try:
                    heads = Heads(module, count, bool(sharded))
                except ValueError as error:
                    raise ValueError(f"qk_clip: {label}: {error}") from None
                unit = units[key] = _Unit(label, name, [], heads, np.full(heads.all, -math.inf), own)
            if unit.heads.here != count:
                raise ValueError(
                    f"qk_clip: {label} has {count} heads, but {unit.labels[0]}, the same module, has {unit.heads.here}"
                )
            unit.labels.append(label)
            part = unit.peak[unit.heads.start : unit.heads.start + count]
            part[:] = np.maximum(part, np.where(np.isnan(here), math.inf, here))
        return list(units.values())

    def _refuse_guesses(self, units: list[_Unit], gammas: list[Any]) -> None:
        """A wrong head's factor would leave scores above tau, and cut what was below."""
        for unit, gamma in zip(units, gammas):
            why = next((self._doubts[label] for label in unit.labels if label in self._doubts), None)
            if why is not None and gamma.min(initial=1.0) < 1:
                raise ValueError(f"qk_clip: {unit.name}: {why}, by which no weights are changed")

    def _reduced(self, units: list[_Unit], ranks: Ranks) -> list[Any]:
        """Each unit's maxima over all ranks; +inf where they are not finite somewhere."""
        packed = ranks.maximum(np.concatenate([unit.peak for unit in units])) if units else np.zeros(0)
        return np.split(packed, np.cumsum([unit.peak.size for unit in units])[:-1]) if units else []

    def _consume(self, plan: list[tuple[_Unit, Found, Any]], tau: float) -> None:
        with self._lock:
            self._promises.clear()
            self._doubts.clear()
            for unit, found, gamma in plan:
                achieved = found.achieved(gamma)[unit.heads.start : unit.heads.start + unit.heads.here]
                for label in unit.labels:
                    peak = self._peak.get(label)
                    if peak is None:
                        continue
                    # Only what passed tau was to go somewhere.
                    over = [p if tau < p < math.inf else math.nan for p in peak]
                    self._promises[label] = _Promise(over, achieved.tolist())
            self._peak = {label: [-math.inf] * len(peak) for label, peak in self._peak.items()}


def _factors(peak: Any, tau: float) -> Any:
    """γ of each head: tau/peak where that is below 1. A maximum that is not finite says nothing."""
    over = (peak > tau) & (peak < math.inf)
    return np.where(over, tau / np.where(over, peak, 1.0), 1.0)


# Planning -------------------------------------------------------------------------------------------------------------
def _planned(
    model: torch.nn.Module, units: list[_Unit], gammas: list[Any], alpha: float, ranks: Ranks
) -> list[tuple[_Unit, Found, Any]]:
    """Every edit, checked. Layers that share a parameter are clipped once, by the smallest factor of each head."""
    plan: list[tuple[_Unit, Found, Any]] = []
    over = [gamma.min(initial=1.0) < 1 for gamma in gammas]
    touched: set[Any] = set()
    for unit, gamma, clipped in zip(units, gammas, over):
        if clipped:
            plan.append((unit, _found(model, unit, alpha, ranks), gamma))
            touched |= {_where(edit.tensor) for edit in plan[-1][1].edits}
    for unit, gamma, clipped in zip(units, gammas, over):  # a layer below tau may share weights with one above
        weights = [] if clipped else _owner(model, unit.module).parameters()
        if any(_where(x) in touched for x in weights):
            plan.append((unit, _found(model, unit, alpha, ranks), gamma))
    merged = _tied(plan)
    return [(unit, found, gamma) for unit, found, gamma in merged if gamma.min(initial=1.0) < 1]


def _found(model: torch.nn.Module, unit: _Unit, alpha: float, ranks: Ranks) -> Found:
    if unit.projections is not None:
        if unit.heads.split:
            raise ValueError(f"projections: {unit.name} is tensor parallel, where views of parameters are not enough")
        found = given(unit.projections, unit.name, unit.heads.all, alpha)
        storages = {local(x).untyped_storage().data_ptr() for x in model.parameters()}
        for edit in found.edits:
            if hasattr(edit.tensor, "placements"):
                raise ValueError(f"projections: {unit.name}: a DTensor, but views of ordinary parameters are wanted")
            if edit.tensor.untyped_storage().data_ptr() not in storages:
                raise ValueError(
                    f"projections: {unit.name}: {edit.name} are a copy, but views of the model's parameters are wanted"
                )
    else:
        found = find(_owner(model, unit.module), unit.name, unit.heads.all, alpha)
        if unit.heads.split and found.side_by_side:
            raise ValueError(
                f"qk_clip: {unit.name}: queries, keys and values lie side by side in one sharded "
                "parameter, whose shards are no sets of heads"
            )
    for edit in found.edits:
        if edit.head.shape[0] != edit.tensor.shape[edit.axis]:
            raise ValueError(
                f"qk_clip: {unit.name}: {edit.name} has {edit.tensor.shape[edit.axis]} rows, but "
                f"{edit.head.shape[0]} are wanted"
            )
        if not reaches(edit.tensor, ranks):
            raise ValueError(f"group: {unit.name}: {edit.name} is sharded over ranks that are not in it")
        rows_here(edit.tensor, edit.axis, f"qk_clip: {unit.name}: {edit.name}")
        if edit.tensor.is_meta:
            raise ValueError(f"qk_clip: {unit.name}: {edit.name} is on the meta device")
    return found


def _where(x: Tensor) -> Any:
    """What of memory it is: the same for tied parameters."""
    x = local(x)
    return (x.untyped_storage().data_ptr(), x.storage_offset(), tuple(x.shape), x.stride()) if x.numel() else id(x)


def _tied(plan: list[tuple[_Unit, Found, Any]]) -> list[tuple[_Unit, Found, Any]]:
    users: dict[Any, list[int]] = {}
    for number, (_, found, _) in enumerate(plan):
        for edit in found.edits:
            users.setdefault(_where(edit.tensor), []).append(number)
    gammas = [found.achieved(gamma) for _, found, gamma in plan]
    changed = True
    while changed:  # until all that hang together agree
        changed = False
        for numbers in users.values():
            sizes = {gammas[number].size for number in numbers}
            if len(sizes) > 1:
                names = " and ".join(plan[number][0].name for number in numbers)
                raise ValueError(f"qk_clip: {names} share a weight, but not the number of heads")
            least = np.minimum.reduce([gammas[number] for number in numbers])
            for number in numbers:
                settled = plan[number][1].achieved(least)
                if (settled < gammas[number]).any():
                    gammas[number], changed = settled, True
    roles: dict[Any, Edit] = {}
    for unit, found, _ in plan:
        mine: set[Any] = set()
        for edit in found.edits:
            place = _where(edit.tensor)
            first = roles.setdefault(place, edit)
            same = first.axis == edit.axis and first.offset == edit.offset and np.array_equal(first.head, edit.head)
            if place in mine or not same or not np.array_equal(first.power, edit.power):
                raise ValueError(
                    f"qk_clip: {unit.name}: {edit.name} is used in two ways ({first.name}); pass projections="
                )
            mine.add(place)
    return [(unit, found, gamma) for (unit, found, _), gamma in zip(plan, gammas)]


# Applying -------------------------------------------------------------------------------------------------------------
def _apply(plan: list[tuple[_Unit, Found, Any]], backup: list[tuple[Tensor, Tensor]]) -> None:
    """In place; what was there goes to `backup` first."""
    done: set[Any] = set()
    with torch.no_grad():
        for _, found, gamma in plan:
            for edit in found.edits:
                place = _where(edit.tensor)
                if place in done:
                    continue
                done.add(place)
                here = local(edit.tensor)
                rows = edit.factors(gamma)[rows_here(edit.tensor, edit.axis, edit.name)]
                if here.numel() == 0 or (rows == 1).all():
                    continue
                wide = torch.float64 if here.dtype == torch.float64 else torch.float32
                factor = torch.tensor(rows, dtype=wide, device=here.device)
                factor = factor.reshape([-1 if axis == edit.axis else 1 for axis in range(here.ndim)])
                before = here.clone()
                new = (before.to(wide) + edit.offset) * factor - edit.offset
                backup.append((here, before))
                here.copy_(torch.where(factor == 1, before, new.to(here.dtype)))


def _put_back(backup: list[tuple[Tensor, Tensor]]) -> None:
    with torch.no_grad():
        for here, before in backup:
            try:
                here.copy_(before)
            except RuntimeError:  # what cannot be written now could not be written before either
                if not torch.equal(here, before):
                    raise


# Modules --------------------------------------------------------------------------------------------------------------
_WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


def _submodule(model: torch.nn.Module, name: str) -> Optional[torch.nn.Module]:
    """By its name, also where the model was wrapped or compiled since the name was taken."""
    try:
        return model.get_submodule(name)
    except AttributeError:
        pass

    def plain(path: str) -> list[str]:
        return [part for part in path.split(".") if part not in _WRAPPERS]

    return next((module for path, module in model.named_modules() if plain(path) == plain(name)), None)


def _ancestors(model: torch.nn.Module, name: str) -> list[torch.nn.Module]:
    """The module and all it is in, innermost first."""
    parts = name.split(".") if name else []
    found = [_submodule(model, ".".join(parts[:count])) for count in range(len(parts), -1, -1)]
    return [module for module in found if module is not None]


def _owner(model: torch.nn.Module, name: str) -> torch.nn.Module:
    """The module that called, or if that has no parameters (it makes the product and softmax alone), the one it is
    in."""
    for module in _ancestors(model, name):
        if next(module.parameters(), None) is not None:
            return getattr(module, "_orig_mod", module)
    return model
