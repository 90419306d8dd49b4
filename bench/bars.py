"""The bars: what rootdk promises to reach, each a number of this run held against a floor and a goal."""

from dataclasses import dataclass

import numpy as np
from competitors import FULL_STATS, NO_STATS, OURS
from paired import Row

AT_THE_LIMIT = 0.85  # of the bandwidth of reading the same bytes: a peer that reaches this leaves nothing to win


@dataclass
class Bar:
    name: str
    value: float  # the worst row's, where it is about several
    floor: float
    goal: float
    row: str = ""
    at_most: bool = False  # a cost: less is better

    def verdict(self) -> str:
        reaches = lambda bar: self.value <= bar if self.at_most else self.value >= bar
        return "goal" if reaches(self.goal) else "floor" if reaches(self.floor) else "MISS"


def worst(name: str, values: list[tuple[float, str]], floor: float, goal: float) -> list[Bar]:
    return [Bar(name, *[min(values)[0]], floor, goal, min(values)[1])] if values else []


def of_peak(rows: list[Row], name: str, row_name: str, floor: float, goal: float) -> list[Bar]:
    return [
        Bar(name, row.of_limit().median, floor, goal, row.name)
        for row in rows
        if row.name == row_name and row.of_limit()
    ]


def against_torch(rows: list[Row], name: str, groups: tuple[str, ...], floor: float, goal: float) -> list[Bar]:
    return worst(
        name,
        [
            (row.times_faster("torch").median, row.name)
            for row in rows
            if row.group in groups and row.times_faster("torch")
        ],
        floor,
        goal,
    )


def every_row(rows: list[Row]) -> list[Bar]:
    """1.1 ×, or 1.0 × where PyTorch is at its bandwidth limit too; as one number: the smallest ratio to what is
    asked."""
    rows = [row for row in rows if row.group != "statistics"]  # the shapes of other rows once more
    values = []
    for row in rows:
        faster, peer = row.times_faster("torch"), row.of_limit(whose="torch") if row.memory else None
        if faster:
            values.append((faster.median * (1.1 if peer and peer.median >= AT_THE_LIMIT else 1.0), row.name))
    bars = worst("× PyTorch, every row (1.0 counts as 1.1 at the bandwidth limit)", values, 1.1, 1.1)
    if values:
        ratios = [row.times_faster("torch").median for row in rows if row.times_faster("torch")]
        bars.append(
            Bar("× PyTorch, geometric mean", float(np.exp(np.mean(np.log(ratios)))), 1.4, 1.8, f"{len(ratios)} rows")
        )
    return bars


def cost_of(rows: list[Row], name: str, level, row_name: str, floor: float, goal: float) -> list[Bar]:
    """Seconds with statistics over seconds without."""
    costs = [
        (cost.median, row.name)
        for row in rows
        if row.name == row_name and (cost := row.times_faster(level.key, NO_STATS.key))
    ]
    return [Bar(name, cost, floor, goal, row, at_most=True) for cost, row in costs]


def scaling(rows: list[Row]) -> list[Bar]:
    return worst(
        "1 → 2 threads", [(r.median, row.name) for row in rows if (r := row.times_faster("rootdk-1-thread"))], 1.8, 1.95
    )


def bars(rows: list[Row]) -> list[Bar]:
    decode = lambda types: [
        (row.of_limit().median, row.name)
        for row in rows
        if row.group == "decode" and row.record["case"]["dtype"] in types and row.of_limit()
    ]
    backward = [
        (row.of_limit().median, row.name)
        for row in rows
        if row.group == "backward" and not row.record["case"]["causal"] and row.of_limit()
    ]
    return [
        *of_peak(rows, "forward, of peak", "prefill 2,048 × d 128", 0.85, 0.90),
        *of_peak(rows, "forward, of peak", "prefill 1,024 × d 64", 0.80, 0.86),
        *of_peak(rows, "causal, of peak", "prefill 2,048 × d 128, causal", 0.78, 0.85),
        *of_peak(rows, "causal, of peak", "prefill 1,024 × d 64, causal", 0.72, 0.80),
        *worst("backward, of peak", backward, 0.72, 0.80),
        *worst("decode f32, of reading the same bytes", decode(("f32",)), 0.85, 0.92),
        *worst("decode f16 and bf16, of reading the same bytes", decode(("f16", "bf16")), 0.70, 0.85),
        *against_torch(rows, "8 to 64 queries, × PyTorch", ("few queries",), 1.1, 1.5),
        *against_torch(rows, "lengths to 256, × PyTorch", ("short",), 1.3, 1.8),
        *every_row(rows),
        *cost_of(rows, "basic statistics, seconds over none's", OURS, "statistics 2,048 × d 128", 1.01, 1.01),
        *cost_of(rows, "basic statistics, seconds over none's", OURS, "statistics 2,048 × d 64", 1.01, 1.01),
        *cost_of(rows, "full statistics, seconds over none's", FULL_STATS, "statistics 2,048 × d 128", 1.12, 1.06),
        *cost_of(rows, "full statistics, seconds over none's", FULL_STATS, "statistics 2,048 × d 64", 1.20, 1.10),
        *scaling(rows),
    ]
