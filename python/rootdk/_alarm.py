"""When to speak up: thresholds on what a head did in one step."""
from __future__ import annotations

import dataclasses
import math
import warnings
from typing import Any, Callable, Mapping, Union

from ._stats import Stats


@dataclasses.dataclass(frozen=True)
class Event:
    """A head passed a threshold."""

    step: int
    layer: str
    head: int
    what: str  #: the statistic
    value: float
    threshold: float
    words: str  #: what is the matter and what would mend it, where that is known

    def __str__(self) -> str:
        side = "below" if self.value < self.threshold else "beyond"
        text = f"step {self.step}, {self.layer}, head {self.head}: {self.what} is {self.value:.4g}, {side} {self.threshold:g}"
        return f"{text}. {self.words}" if self.words else text


@dataclasses.dataclass(frozen=True)
class Alarm:
    """Thresholds; None means off. Each head raises each alarm once, and again after it has been back below.

    call: what to do with the event: "warn", "raise" (RuntimeError, for tests and debugging), or a function that takes an Event.
    """

    sigma_ratio: float | None = 1.0  #: spread of the scores over √(2 ln n): softmax freezes beyond 1
    max_score: float | None = None  #: largest raw score c·q·k
    entropy: float | None = None  #: nats; an alarm below it
    p_max: float | None = None  #: mean largest probability
    not_finite: bool = True
    call: Union[str, Callable[[Event], Any]] = "warn"

    def __post_init__(self) -> None:
        if self.call not in ("warn", "raise") and not callable(self.call):
            raise ValueError(f'call: {self.call!r}, but "warn", "raise" or a function is wanted')

    def checks(self) -> list[tuple[str, float, int]]:
        """(statistic, threshold, +1 if larger is worse)."""
        wanted = [("sigma_ratio", self.sigma_ratio, 1), ("raw_max", self.max_score, 1), ("entropy", self.entropy, -1),
                  ("mean_p_max", self.p_max, 1), ("rows_not_finite", 0.0 if self.not_finite else None, 1)]
        return [(name, limit, sign) for name, limit, sign in wanted if limit is not None]

    def deliver(self, event: Event) -> None:
        if callable(self.call):
            self.call(event)
        elif self.call == "raise":
            raise RuntimeError(str(event))
        else:
            warnings.warn(str(event), RuntimeWarning, stacklevel=2)


class Watchdog:
    """Applies alarms to each record and remembers which heads have been reported."""

    def __init__(self, alarms: list[Alarm]):
        self.alarms = alarms
        self.ringing: set[tuple[int, str, int, str]] = set()

    def look(self, step: int, layer: str, values: Mapping[str, Any], stats: Stats | None,
             dtype: str) -> list[tuple[Alarm, Event]]:
        events = []
        for number, alarm in enumerate(self.alarms):
            for what, threshold, sign in alarm.checks():
                if what not in values:
                    continue
                for head, value in enumerate(values[what]):
                    key = (number, layer, head, what)
                    if not (math.isfinite(value) and sign * (value - threshold) > 0 or math.isinf(value) and sign * value > 0):
                        self.ringing.discard(key)
                        continue
                    if key in self.ringing:
                        continue
                    self.ringing.add(key)
                    events.append((alarm, Event(step, layer, head, what, float(value), threshold, _words(stats, head, dtype))))
        return events


def _words(stats: Stats | None, head: int, dtype: str) -> str:
    if stats is None:
        return ""
    judgement = stats.judge_head(head, dtype=dtype)
    return f"{judgement.words} {judgement.fix}".strip()
