"""Statistics of interleaved samples. Two competitors are compared round by round, never by their best moments: what
disturbs a round disturbs both."""

from dataclasses import dataclass

import numpy as np
from competitors import FMA, read_key


@dataclass(frozen=True)
class Ratio:
    median: float
    low: float  # 10 % of the rounds are below,
    high: float  # 10 % above
    count: int


def ratio(over: list, under: list) -> Ratio | None:
    """Of over[i] / under[i]; rounds that lack either are left out."""
    quotients = [a / b for a, b in zip(over, under) if a is not None and b is not None]
    if not quotients:
        return None
    low, median, high = np.quantile(quotients, (0.1, 0.5, 0.9))
    return Ratio(float(median), float(low), float(high), len(quotients))


class Row:
    """What was measured on one case; made from the JSON, so that a kept result can be read again."""

    def __init__(self, record: dict):
        self.record, self.name, self.group = record, record["case"]["name"], record["case"]["group"]
        self.work, self.memory = record["work"], record["case"]["limit"] == "memory"

    def seconds(self, key: str) -> list | None:
        entry = self.record["competitors"].get(key, {})
        return entry.get("seconds")

    def median(self, key: str) -> float | None:
        known = [x for x in self.seconds(key) or [] if x is not None]
        return float(np.median(known)) if known else None

    def complaint(self, key: str) -> str | None:
        return self.record["competitors"].get(key, {}).get("complaint")

    def times_faster(self, key: str, ours: str = "rootdk") -> Ratio | None:
        """How many times the seconds of `ours` the competitor takes."""
        return ratio(self.seconds(key), self.seconds(ours)) if self.seconds(key) and self.seconds(ours) else None

    def limit(self, whose: str = "rootdk") -> dict:
        """The entry of the limit that `whose` is held against: multiply-adds, or reading its own K and V."""
        return self.record["competitors"].get(read_key(whose) if self.memory else FMA.key, {})

    def of_limit(self, whose: str = "rootdk") -> Ratio | None:
        """Rate of `whose` over the rate of its limit in the same rounds."""
        limit = self.limit(whose)
        if not self.seconds(whose) or not limit.get("seconds"):
            return None
        fraction = self.work / limit["work"]
        r = ratio(limit["seconds"], self.seconds(whose))
        return r and Ratio(r.median * fraction, r.low * fraction, r.high * fraction, r.count)
