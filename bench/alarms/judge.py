"""Plays recorded runs to the alarm that a watch has by default, and counts: who stalled, who was reported, how soon."""

from __future__ import annotations

import dataclasses
from typing import Any, Iterator, Optional

import numpy as np
from rootdk import Alarm, Event
from rootdk._watch.alarm import Watchdog

SOON = 50  # steps within which a run that stalls is to be reported
ENOUGH = 1.5  # times the steps of a healthy run: what one that is mended may take


def replay(found: dict[str, Any], every: int = 1, *, losses: bool = True) -> list[Event]:
    """What a watch that looks at every so many steps would have said: of whole layers, by the default alarm."""
    run, step_of = found["run"], found["every"]
    # A transformers model says among how many words it chooses; to the model written here `resumed` has to be told.
    classes = found["classes"] if run["architecture"] == "llama" else None
    dog = Watchdog([Alarm(call=lambda event: None)], resumed=True if run["resumed"] and classes is None else None)
    facts, events = {"qk_norm": run["qk_norm"]}, []
    for step, loss in enumerate(found["losses"]):
        if step % step_of == 0 and step % every == 0:
            for layer, trace in found["trace"].items():
                values = {name: np.array(rows[step // step_of], dtype=np.float32) for name, rows in trace.items()}
                events += dog.look(step, layer, values, None, "f32", facts)
        if losses:
            events += dog.loss(step, loss, classes)
    return [event for _, event in events]


def closes_at(found: dict[str, Any]) -> int:
    """The step from which delay counts: that of the blow-up; where the rate makes the scores grow, the first look at
    which every head of a layer is below 0.1; else the first one."""
    if found["begin"] or found["run"]["rate"] == found["run"]["qk_rate"] == 1:
        return int(found["begin"])
    closed = [i for trace in found["trace"].values() for i, heads in enumerate(trace["trace_j"]) if max(heads) < 0.1]
    return min(closed, default=0) * int(found["every"])


@dataclasses.dataclass
class Outcome:
    name: str
    condition: str
    dim: int
    kind: str
    stalled: bool
    times: float | None  #: how many times T it took to learn, from the start or the blow-up
    delays: list[int]  #: steps to each alarm
    causes: list[str]
    layers: list[str]

    @property
    def false(self) -> bool:
        """Reported although nothing was wrong with its attention."""
        return bool(self.delays) and self.kind != "saturation"

    @property
    def found(self) -> bool:
        return bool(self.delays) and self.delays[0] <= SOON


def outcome(found: dict[str, Any], every: int = 1, *, losses: bool = True) -> Outcome:
    events = [event for event in replay(found, every, losses=losses) if event.what == "trace_j"]
    healthy = found["healthy"] or found["learned"]
    learned, begin = found["learned"], closes_at(found)
    times = None if learned is None else round((learned - found["begin"]) / healthy, 2)
    return Outcome(
        found["name"],
        found["run"]["condition"],
        found["dim"],
        found["run"]["kind"],
        learned is None,
        times,
        [event.step - begin for event in events],
        [event.cause for event in events],
        [event.layer for event in events],
    )


def table(outcomes: list[Outcome]) -> Iterator[str]:
    titles = ("condition", "runs", "stalled", "of these reported, after steps", "learned, in times T")
    yield f"| {' | '.join(titles)} | of these reported, after steps |"
    yield "|---|---|---|---|---|---|"
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for one in outcomes:
        size = f", d_k {one.dim}" if one.condition in ("healthy", "unscaled") else ""
        groups.setdefault((one.kind, one.condition + size), []).append(one)
    for (_, condition), group in sorted(
        groups.items(), key=lambda item: ("control", "other", "saturation").index(item[0][0])
    ):
        stalled, others = [one for one in group if one.stalled], [one for one in group if not one.stalled]
        shown = [
            condition,
            str(len(group)),
            str(len(stalled)),
            reported(stalled),
            ", ".join(f"{one.times:.1f}" for one in sorted(others, key=lambda one: one.times)) or "–",
            reported(others),
        ]
        yield f"| {' | '.join(shown)} |"


def reported(group: list[Outcome]) -> str:
    steps = sorted(one.delays[0] for one in group if one.delays)
    return f"{len(steps)}: {', '.join(map(str, steps))}" if steps else "–" if not group else "0"


def floors(outcomes: list[Outcome]) -> dict[str, Any]:
    stalled = [one for one in outcomes if one.kind == "saturation" and one.stalled]
    late = [one for one in outcomes if one.kind == "saturation" and not one.stalled]
    return {
        "runs": len(outcomes),
        "stalled by saturation": len(stalled),
        f"of these reported within {SOON} steps": sum(one.found for one in stalled),
        "of these reported at all": sum(bool(one.delays) for one in stalled),
        "not found or late": [
            f"{one.name} ({one.delays[0]} steps)" if one.delays else one.name for one in stalled if not one.found
        ],
        "control runs": sum(one.kind == "control" for one in outcomes),
        "control runs that learned": sum(one.kind == "control" and not one.stalled for one in outcomes),
        "runs that stall for other reasons": sum(one.kind == "other" and one.stalled for one in outcomes),
        "false alarms": [one.name for one in outcomes if one.false],
        "saturated, but learned": len(late),
        "of these reported": sum(bool(one.delays) for one in late),
        "more than one alarm for a layer": sum(len(set(one.layers)) < len(one.layers) for one in outcomes),
    }


def below(held: dict[str, Any], mended: Optional[dict[str, list[dict[str, Any]]]]) -> list[str]:
    """What is below the floors, in words. `mended`: the runs of each cause to which the advice was applied."""
    out = []
    found, stalled = held[f"of these reported within {SOON} steps"], held["stalled by saturation"]
    if found < 0.95 * stalled:
        out.append(f"of {stalled} runs stalled by saturation, {found} were reported within {SOON} steps")
    if held["false alarms"]:
        out.append(f"false alarms: {', '.join(held['false alarms'])}")
    if mended is not None:  # a cause of which no run was ill shows nothing
        helped = [
            cause
            for cause, runs in mended.items()
            if runs and all(one["times"] is not None and one["times"] <= ENOUGH for one in runs)
        ]
        if len(helped) < 0.75 * len(mended):
            out.append(f"of {len(mended)} causes, the advice brings {len(helped)} to within {ENOUGH} T")
    return out
