"""What a watch remembers: one row of numbers per step, layer and head, in bounded memory."""
from __future__ import annotations

import re
from typing import Any, Iterator

import numpy as np
import numpy.typing as npt

from ._stats import Stats

Array = npt.NDArray[np.float32]

FORWARD = ("raw_max", "raw_sigma", "score_max", "score_sigma", "sigma_ratio", "entropy", "effective_keys", "mean_p_max",
           "median_p_max", "trace_j", "sink_mass", "share_p_max_over_099", "mean_lse", "keys", "sigma_q", "sigma_k",
           "key_mean_norm", "alignment", "scale", "rows_masked", "rows_not_finite")
BACKWARD = ("d_scores", "d_log_scale", "d_q", "d_k", "d_v")
COLUMNS = FORWARD + BACKWARD


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
        self.step = self.number = -1  #: the newest one, and how many came before it
        self.steps: dict[int, dict[str, Record]] = {}
        self.layers: list[str] = []
        self.latest: dict[str, Record] = {}  #: of each layer's newest step, kept or not
        self.last: dict[str, Stats] = {}  #: all there is to know of it

    def add(self, record: Record, stats: Stats) -> None:
        if record.layer not in self.layers:
            self.layers.append(record.layer)
        self.latest[record.layer], self.last[record.layer] = record, stats
        if record.step != self.step:
            self.step, self.number = record.step, self.number + 1
            if self.number % self.stride == 0 and len(self.steps) >= self.most:
                self.stride *= 2
                self.steps = dict(list(self.steps.items())[::2])  # those whose number is a multiple of the stride
        if self.number % self.stride == 0:
            self.steps.setdefault(record.step, {})[record.layer] = record

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
                yield {"step": record.step, "layer": record.layer, "head": head,
                       **dict(zip(COLUMNS, record.values[:, head].tolist()))}


def table(records: list[Record], columns: tuple[str, ...], worst: int | None) -> str:
    """Aligned text; with `worst`, only so many heads, those nearest to freezing first."""
    lines = [(record.layer, head, [float(record[name][head]) for name in columns], float(record["sigma_ratio"][head]))
             for record in records for head in range(record.values.shape[1])]
    if worst is not None:
        lines = sorted(lines, key=lambda line: -line[3] if np.isfinite(line[3]) else np.inf)[:worst]
    cells = [["layer", "head", *columns]] + [[layer, str(head), *(_short(x) for x in values)] for layer, head, values, _ in lines]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return "\n".join("  ".join(cell.ljust(w) if i == 0 else cell.rjust(w)
                               for i, (cell, w) in enumerate(zip(row, widths))).rstrip()
                     for row in cells)


def _short(x: float) -> str:
    if not np.isfinite(x):
        return "-" if np.isnan(x) else str(x)
    return f"{x:.3f}" if x == 0 or 1e-3 <= abs(x) < 100 else f"{x:.3g}"


def prometheus(records: list[Record], prefix: str) -> str:
    """The newest step in Prometheus's text format: one gauge per statistic, labelled by layer and head."""
    out = []
    for name in COLUMNS:
        lines = []
        for record in records:
            layer = record.layer.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
            for head, value in enumerate(record[name].tolist()):
                if np.isnan(value):
                    continue
                text = "+Inf" if value == np.inf else "-Inf" if value == -np.inf else repr(value)
                lines.append(f'{prefix}_{name}{{layer="{layer}",head="{head}"}} {text}')
        if lines:
            metric = re.sub(r"[^a-zA-Z0-9_:]", "_", f"{prefix}_{name}")
            out += [f"# TYPE {metric} gauge", *lines]
    if records:
        out += [f"# TYPE {prefix}_step gauge", f"{prefix}_step {records[0].step}"]
    return "\n".join(out) + "\n" if out else ""
