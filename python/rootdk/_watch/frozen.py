"""Whether a layer has stopped learning where to look: rows of all its heads pass no gradient, and the loss says that
they should.

Sharp heads are not ill: a run that has learned makes them. What stops learning is a layer none of whose rows passes a
gradient (tr J) before there is anything to be sure of: from the first step on, or grown while the loss gains nothing.
Thresholds come from the runs that docs/python/watch.md tells of. Windows are in steps, with a least number of looks, so
that `every` does not matter.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from typing import Any, Iterable

import numpy as np
import numpy.typing as npt

AJAR = 0.30  #: tr J of the most open head: a layer that never was above it has been closed from the start
AT_START = 0.25  #: below it such a layer is reported,
GROWN = 0.10  #: and one that has been open below this
OPEN = 0.20  #: above it a layer is open again
SPREAD_AT_START, SPREAD = 3.0, 5.0  #: σ/σ_c that every head has passed then: a sink takes all probability without it
UNTOLD = (0.15, 7.0)  #: both for a start of which no loss is known: this may be a model that was trained before
START_STEPS, GROWN_STEPS, CLEAR_STEPS = 20, 30, 50  #: how long it must have been so
START_UNTIL = 40  #: steps after which the loss is asked before a start is called bad
LOOKS, CLEAR_LOOKS = 3, 5  #: and in how many looks, at least
HALVED = 0.5  #: of the first losses: a run above that has not learned yet
GAINED = 0.7  #: of the loss before a layer closed, and of the loss GAIN_STEPS ago: a run below both goes on learning
GAIN_STEPS = 15  #: over which a run that goes on learning has gained something
LEARNED = 0.1  #: of the first losses: a run that was below that had nothing more to learn
RISEN = 1.1  #: of the loss before a layer closed, in a run that was resumed
FRESH = 0.6  #: of ln(classes): a first loss below that is not that of a fresh model
SMOOTH = 10  #: steps whose losses are averaged


class Losses:
    """The loss as it comes, read when it is needed: a device need not be waited for before."""

    def __init__(self) -> None:
        self._first: list[tuple[int, Any]] = []
        self._newest: deque[tuple[int, Any]] = deque(maxlen=512)
        self.classes: int | None = None  #: among which the model chooses, where that is known

    def add(self, step: int, value: Any) -> None:
        if not self._first or step < self._first[0][0] + SMOOTH and len(self._first) < 64:
            self._first.append((step, value))
        self._newest.append((step, value))

    @property
    def known(self) -> bool:
        return bool(self._first)

    @property
    def first(self) -> float:
        """Mean of the first ten steps."""
        return _mean(value for _, value in self._first)

    @property
    def begins_low(self) -> bool:
        """A fresh model knows nothing of its classes; this one does, so its training began elsewhere."""
        if self.classes is None or self.classes < 2 or not self._first:
            return False
        return self.very_first < FRESH * math.log(self.classes)

    @property
    def very_first(self) -> float:
        """Of the first step alone."""
        return _mean([value for _, value in self._first[:1]])

    def at(self, step: int) -> float:
        """Mean of the ten steps that end with this one, and of three losses at least; NaN where nothing is known."""
        until = [(when, value) for when, value in self._newest if when <= step]
        near = [value for when, value in until if when > step - SMOOTH]
        return _mean(near if len(near) >= 3 else [value for _, value in until[-3:]])

    def best(self, begin: int, end: int) -> float:
        """The smaller of the two: a layer that closed between two looks was open for some of the time between them."""
        return min(self.at(begin), self.at(max(begin, end)))


def _mean(values: Iterable[Any]) -> float:
    """A loss that is not a number is worse than any."""
    found = [float(value) for value in values]
    return sum(x if math.isfinite(x) else math.inf for x in found) / len(found) if found else math.nan


@dataclasses.dataclass(frozen=True)
class Look:
    """What a layer showed: tr J of its most open head, σ/σ_c of its least spread one, and sizes for the reader."""

    step: int
    trace_j: float
    sigma_ratio: float
    sigma_q: float = math.nan
    sigma_k: float = math.nan
    raw_max: float = math.nan
    keys: float = math.nan  #: that a row sees

    @staticmethod
    def of(step: int, values: Any) -> Look | None:
        """None where no head is known: rows of one key pass nothing by nature and are not counted, others are not
        finite."""
        if "trace_j" not in values or "sigma_ratio" not in values:
            return None
        trace_j, ratio = (np.asarray(values[name], dtype=np.float64) for name in ("trace_j", "sigma_ratio"))
        known = np.isfinite(trace_j) & ~np.isnan(ratio)
        if not known.any():
            return None

        def middle(name: str) -> float:
            return median(values[name], known) if name in values else math.nan

        largest = (
            np.asarray(values["raw_max"], dtype=np.float64)[known] if "raw_max" in values else np.array([math.nan])
        )
        return Look(
            step,
            float(trace_j[known].max()),
            float(ratio[known].min()),
            middle("sigma_q"),
            middle("sigma_k"),
            float(largest.max()),
            middle("keys"),
        )


def median(values: Any, known: npt.NDArray[np.bool_]) -> float:
    chosen = np.asarray(values, dtype=np.float64)
    chosen = np.broadcast_to(chosen, known.shape)[known]
    chosen = chosen[np.isfinite(chosen)]
    return float(np.median(chosen)) if chosen.size else math.nan


@dataclasses.dataclass(frozen=True)
class Frozen:
    """A layer that has stopped, and how that came."""

    now: Look
    since: Look  #: the first look at which it was closed
    before: Look | None  #: the last one at which it was open; None: it began closed
    limit: float
    loss: float  #: now; NaN where nobody told
    loss_before: float  #: when it was last open, or at first


class Layer:
    """One layer's story. `look` returns a Frozen once per episode; an episode ends when the layer has been open for a
    while."""

    def __init__(self) -> None:
        self.never_open = True
        self.opened: Look | None = None  #: the newest look at which it was open
        self.since: Look | None = None  #: the look at which it closed, if it is closed
        self.looks = 0  #: since then
        self.loss_before = math.nan
        self.lowest = math.inf  #: loss since then
        self.ringing = False
        self.clear: tuple[int, int] | None = None  #: step since which it has been open again, and in how many looks

    def look(self, now: Look, losses: Losses, resumed: bool) -> Frozen | None:
        self.never_open = self.never_open and now.trace_j < AJAR and not resumed
        if not self.never_open and (now.trace_j > OPEN or now.sigma_ratio <= SPREAD):
            self._open(now)
            return None
        self.clear = None
        if self.since is None:
            if not self.never_open and (now.trace_j >= GROWN or self.opened is None):
                return None  # neither open nor closed; or closed when a resumed run began
            self.since, self.looks, self.lowest = now, 0, math.inf
            if losses.known and self.opened is not None:
                self.loss_before = losses.best(self.opened.step, now.step - 1)
        self.looks += 1
        if self.ringing:
            return None
        if losses.known:
            self.lowest = min(self.lowest, losses.at(now.step))
        if not (self._started_closed(now, losses) if self.never_open else self._has_grown_shut(now, losses, resumed)):
            return None
        self.ringing = True
        loss = losses.at(now.step) if losses.known else math.nan
        if self.never_open:
            return Frozen(
                now,
                self.since,
                None,
                AT_START if losses.known else UNTOLD[0],
                loss,
                losses.first if losses.known else math.nan,
            )
        return Frozen(now, self.since, self.opened, GROWN, loss, self.loss_before)

    def _open(self, now: Look) -> None:
        self.opened, self.since, self.looks = now, None, 0
        if self.ringing:
            begin, looks = self.clear or (now.step, 0)
            self.clear = (begin, looks + 1)
            if looks + 1 >= CLEAR_LOOKS and now.step - begin >= CLEAR_STEPS:
                self.ringing, self.clear = False, None

    def _started_closed(self, now: Look, losses: Losses) -> bool:
        assert self.since is not None
        steps = now.step - self.since.step
        limit, spread = (AT_START, SPREAD_AT_START) if losses.known else UNTOLD
        if now.trace_j >= limit or now.sigma_ratio <= spread or steps < START_STEPS or self.looks < LOOKS:
            return False
        return steps <= START_UNTIL or self.looks == LOOKS or losses.known and self._learns_nothing(now, losses)

    def _has_grown_shut(self, now: Look, losses: Losses, resumed: bool) -> bool:
        assert self.since is not None
        if now.trace_j >= GROWN or now.step - self.since.step < GROWN_STEPS or self.looks < LOOKS or not losses.known:
            return False
        if resumed:  # how much there was left to learn is not known; what was known and is lost again is
            return losses.at(now.step) > RISEN * self.loss_before
        return self._learns_nothing(now, losses)

    def _learns_nothing(self, now: Look, losses: Losses) -> bool:
        loss, before = losses.at(now.step), self.loss_before
        if min(loss, self.lowest) <= LEARNED * losses.first or before <= LEARNED * losses.first:
            return False
        return (
            loss > HALVED * losses.first or loss > GAINED * before or loss > GAINED * losses.at(now.step - GAIN_STEPS)
        )
