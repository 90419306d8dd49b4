"""When to speak up: what an event is, what may raise one, and to whom it goes."""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import Any, Callable, Mapping, Union

from .._stats import Stats
from .cause import explain
from .frozen import Layer, Look, Losses


@dataclasses.dataclass(frozen=True)
class Event:
    """A layer is frozen, or a head passed a threshold."""

    step: int
    layer: str
    head: int | None  #: None: all heads of the layer
    what: str  #: the statistic
    value: float
    threshold: float
    words: str  #: what is the matter and what would mend it, where that is known
    cause: str = ""  #: of a frozen layer: "scale", "initialisation", "gain", "alignment", "bias", "growth" or "unknown"

    def __str__(self) -> str:
        side = "below" if self.value < self.threshold else "beyond"
        who = (
            "" if not self.layer else f", {self.layer}, " + ("all heads" if self.head is None else f"head {self.head}")
        )
        text = f"step {self.step}{who}: {self.what} is {self.value:.4g}"
        text += f", {side} {self.threshold:g}" if math.isfinite(self.value) else ""
        return f"{text}. {self.words}" if self.words else text


@dataclasses.dataclass(frozen=True)
class Alarm:
    """What to speak up about; None means off. A layer is reported once, and again after it has been open for a while; a
    head raises each threshold once, and again after it has been back below.

    call: what to do with the event: "warn", "raise" (RuntimeError, for tests and debugging), or a function that takes
    an Event.
    """

    #: spread of the scores over √(2 ln n); a head that has learned may well be beyond 1
    sigma_ratio: float | None = None
    max_score: float | None = None  #: largest raw score c·q·k
    entropy: float | None = None  #: nats; an alarm below it
    p_max: float | None = None  #: mean largest probability
    not_finite: bool = True  #: scores, or the loss
    call: Union[str, Callable[[Event], Any]] = "warn"
    frozen: bool = True  #: layers that have stopped learning where to look

    def __post_init__(self) -> None:
        if self.call not in ("warn", "raise") and not callable(self.call):
            raise ValueError(f'call: {self.call!r}, but "warn", "raise" or a function is wanted')

    def checks(self) -> list[tuple[str, float, int]]:
        """(statistic, threshold, +1 if larger is worse), per head."""
        wanted = [
            ("sigma_ratio", self.sigma_ratio, 1),
            ("raw_max", self.max_score, 1),
            ("entropy", self.entropy, -1),
            ("mean_p_max", self.p_max, 1),
            ("rows_not_finite", 0.0 if self.not_finite else None, 1),
        ]
        return [(name, limit, sign) for name, limit, sign in wanted if limit is not None]

    def deliver(self, event: Event) -> None:
        if callable(self.call):
            self.call(event)
        elif self.call == "raise":
            raise RuntimeError(str(event))
        else:
            warnings.warn(str(event), RuntimeWarning, stacklevel=2)


class Watchdog:
    """Applies alarms to each record and remembers what has been reported.

    resumed: training began before the watch, so a layer that is closed at its first look may have learned to be. None:
    the first loss tells.
    """

    def __init__(self, alarms: list[Alarm], resumed: bool | None = None):
        self.alarms = alarms
        self.resumed = resumed
        self.ringing: set[tuple[int, str, int, str]] = set()
        self.layers: dict[str, Layer] = {}
        self.losses = Losses()
        self.loss_rings = False

    def look(
        self,
        step: int,
        layer: str,
        values: Mapping[str, Any],
        stats: Stats | None,
        dtype: str,
        facts: Mapping[str, Any] = {},
    ) -> list[tuple[Alarm, Event]]:
        """`values`: arrays [heads] by the names of columns; `facts`: what is known of the layer's module (facts_of)."""
        events = []
        for number, alarm in enumerate(self.alarms):
            for what, threshold, sign in alarm.checks():
                if what not in values:
                    continue
                if what == "rows_not_finite":
                    events += [
                        (alarm, event) for event in self._not_finite(number, step, layer, values[what], stats, dtype)
                    ]
                    continue
                for head, value in enumerate(values[what]):
                    key = (number, layer, head, what)
                    if not (
                        math.isfinite(value)
                        and sign * (value - threshold) > 0
                        or math.isinf(value)
                        and sign * value > 0
                    ):
                        self.ringing.discard(key)
                        continue
                    if key in self.ringing:
                        continue
                    self.ringing.add(key)
                    events.append(
                        (alarm, Event(step, layer, head, what, float(value), threshold, _words(stats, head, dtype)))
                    )
        listening = [alarm for alarm in self.alarms if alarm.frozen]
        now = Look.of(step, values) if listening else None
        if now is not None:
            found = self.layers.setdefault(layer, Layer()).look(
                now, self.losses, self.resumed or self.taken_for_resumed
            )
            if found is not None:
                cause, words = explain(found, values, stats, facts)
                event = Event(step, layer, None, "trace_j", now.trace_j, found.limit, words, cause)
                events += [(alarm, event) for alarm in listening]
        return events

    @property
    def taken_for_resumed(self) -> bool:
        """Whether nobody said so, but the first loss."""
        return self.resumed is None and self.losses.begins_low

    @property
    def waits_for_loss(self) -> bool:
        """Whether somebody listens for layers that stop learning, and half of what tells them is missing."""
        return any(alarm.frozen for alarm in self.alarms) and not self.losses.known

    def _not_finite(
        self, number: int, step: int, layer: str, rows: Any, stats: Stats | None, dtype: str
    ) -> list[Event]:
        """One event a layer: a NaN is in all heads sooner or later."""
        heads = [head for head, count in enumerate(rows) if count > 0]
        key = (number, layer, -1, "rows_not_finite")
        if not heads or key in self.ringing:
            if not heads:
                self.ringing.discard(key)
            return []
        self.ringing.add(key)
        return [
            Event(
                step,
                layer,
                heads[0] if len(heads) == 1 else None,
                "rows_not_finite",
                float(max(rows)),
                0.0,
                _words(stats, heads[0], dtype),
            )
        ]

    def loss(self, step: int, value: Any, classes: int | None = None) -> list[tuple[Alarm, Event]]:
        """`value`: a number, or a detached tensor of one on a device, which is read when that is needed. `classes`:
        among how many the model chooses, if that is known: it tells a fresh model from one that was trained before."""
        self.losses.add(step, value)
        if classes is not None:
            self.losses.classes = classes
        if getattr(value, "is_cuda", False):
            return []
        bad, self.loss_rings, rang = not math.isfinite(value), not math.isfinite(value), self.loss_rings
        if not bad or rang:
            return []
        words = "The loss is not finite: nothing that backward brings can be used."
        return [
            (alarm, Event(step, "", None, "loss", float(value), 0.0, words))
            for alarm in self.alarms
            if alarm.not_finite
        ]


def _words(stats: Stats | None, head: int, dtype: str) -> str:
    if stats is None:
        return ""
    judgement = stats.judge_head(head, dtype=dtype)
    return f"{judgement.words} {judgement.fix}".strip()
