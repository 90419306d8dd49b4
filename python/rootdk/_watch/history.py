"""What a watch remembers: one row of numbers per step, layer and head, in bounded memory."""

from __future__ import annotations

from typing import Any, Iterator, Optional

import numpy as np
import numpy.typing as npt

from .._statistics import GRADIENTS
from .._stats import Stats

Array = npt.NDArray[np.float32]

FORWARD = (
    "raw_max",
    "raw_sigma",
    "score_max",
    "score_sigma",
    "sigma_ratio",
    "entropy",
    "effective_keys",
    "mean_p_max",
    "median_p_max",
    "trace_j",
    "sink_mass",
    "share_p_max_over_99pct",
    "mean_lse",
    "keys",
    "sigma_q",
    "sigma_k",
    "key_mean_norm",
    "alignment",
    "scale",
    "rows_masked",
    "rows_not_finite",
)
BACKWARD = GRADIENTS
COLUMNS = FORWARD + BACKWARD
_RECENT = 256  # steps


class Record:
    """One layer in one step: [columns, heads], NaN where unknown."""

    __slots__ = ("step", "layer", "values")

    def __init__(self, step: int, layer: str, heads: int):
        self.step, self.layer = step, layer
        self.values: Array = np.full((len(COLUMNS), heads), np.nan, dtype=np.float32)

    def __getitem__(self, name: str) -> Array:
        row: Array = self.values[COLUMNS.index(name)]
        return row

    def set(self, name: str, values: Any) -> None:
        self.values[COLUMNS.index(name)] = values


class History:
    """Keeps at most `most` steps: when it is full, every second one goes, so that it always spans the whole run."""

    def __init__(self, most: int):
        self.most = most
        self.stride = 1  #: every so many of the steps seen is kept
        self.number = -1  #: of the step that began last, among those seen
        self._numbers: dict[int, int] = {}  # of recent steps: threads and devices report out of order
        self.steps: dict[int, dict[str, Record]] = {}
        self.layers: list[str] = []
        self.latest: dict[str, Record] = {}  #: of each layer's newest step, kept or not
        self.last: dict[str, Stats] = {}  #: all there is to know of it

    def add(self, record: Record, stats: Stats) -> None:
        if record.layer not in self.layers:
            self.layers.append(record.layer)
        if record.layer not in self.latest or self.latest[record.layer].step <= record.step:
            self.latest[record.layer], self.last[record.layer] = record, stats
        if record.step not in self._numbers:
            self.number += 1
            self._numbers[record.step] = self.number
            if len(self._numbers) > _RECENT:
                del self._numbers[next(iter(self._numbers))]
            if self.number % self.stride == 0 and len(self.steps) >= self.most:
                self.stride *= 2
                self.steps = dict(list(self.steps.items())[::2])  # those whose number is a multiple of the stride
        if self._numbers[record.step] % self.stride == 0:
            self.steps.setdefault(record.step, {})[record.layer] = record

    def find(self, step: int, layer: str) -> Optional[Record]:
        """If it is kept, or the layer's newest."""
        record = self.steps.get(step, {}).get(layer) or self.latest.get(layer)
        return record if record is not None and record.step == step else None

    def records(self) -> Iterator[Record]:
        for step in sorted(self.steps):
            for layer in self.layers:
                if layer in self.steps[step]:
                    yield self.steps[step][layer]

    def newest(self) -> list[Record]:
        """Of the newest step that any layer was seen in."""
        step = max((record.step for record in self.latest.values()), default=-1)
        return [self.latest[layer] for layer in self.layers if self.latest[layer].step == step]

    def rows(self) -> Iterator[dict[str, Any]]:
        for record in self.records():
            for head in range(record.values.shape[1]):
                yield {
                    "step": record.step,
                    "layer": record.layer,
                    "head": head,
                    **dict(zip(COLUMNS, record.values[:, head].tolist())),
                }
