"""The report of a watch: one HTML file with its data, its script and D3 inside."""

from __future__ import annotations

import json
import math
import pathlib
from typing import Any, Mapping, Sequence

import numpy as np

from .. import _core
from .alarm import Event
from .history import COLUMNS, History

_WEB = pathlib.Path(__file__).parents[1] / "web"
_STYLES = ("report.css", "watch.css")
_SCRIPTS = ("values.js", "rules.js", "chart.js", "heat.js", "watch.js")
_MOST_NUMBERS = 1_500_000  # in one page: some 10 MB


def page(history: History, alarms: list[Event], notes: Sequence[str], unseen: Mapping[str, str]) -> str:
    def read(*files: str) -> str:
        return "\n".join((_WEB / file).read_text(encoding="utf-8") for file in files)

    try:
        text, style, script = read("watch.html"), read(*_STYLES), read(*_SCRIPTS)
        notice, d3 = read("d3-notice.txt"), read("d3.min.js")
    except FileNotFoundError as error:
        missing = pathlib.Path(str(error.filename)).name
        raise ValueError(
            f"report: this package has no {missing}: D3 (Debian: node-d3) was not there when it was built"
        ) from None
    data = json.dumps(_data(history, alarms, notes, unseen), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    # Each part goes in once, and is not looked into for the places of others.
    parts = {"STYLE": style, "RESULTS": data.replace("<", "\\u003c"), "NOTICE": notice, "D3": d3, "SCRIPT": script}
    out = []
    for name, part in parts.items():
        before, text = text.split(f"@{name}@", 1)
        out += [before, part]
    return "".join([*out, text])


def _data(history: History, alarms: list[Event], notes: Sequence[str], unseen: Mapping[str, str]) -> dict[str, Any]:
    """values[statistic][step][head], with the heads of all layers in a row; null where nothing is known."""
    heads = [(layer, head) for layer in history.layers for head in range(history.latest[layer].values.shape[1])]
    kept = sorted(history.steps)
    every = max(1, math.ceil(len(kept) * len(heads) * len(COLUMNS) / _MOST_NUMBERS))
    steps = kept[::-1][::every][::-1]  # the last one is always there
    table = np.full((len(steps), len(COLUMNS), len(heads)), np.nan, dtype=np.float32)
    first = {layer: next(i for i, (name, _) in enumerate(heads) if name == layer) for layer in history.layers}
    for i, step in enumerate(steps):
        for layer, record in history.steps[step].items():
            count = record.values.shape[1]
            table[i, :, first[layer] : first[layer] + count] = record.values
    values = {
        name: [[_short(x) for x in row] for row in table[:, c].tolist()]
        for c, name in enumerate(COLUMNS)
        if not np.isnan(table[:, c]).all()
    }
    return {
        "format": "rootdk-watch",
        "version": _core.version,
        "notes": list(notes),
        "unseen": dict(unseen),
        "seen": history.number + 1,
        "every": every * history.stride,
        "steps": steps,
        "heads": [{"layer": layer, "head": head} for layer, head in heads],
        "values": values,
        "alarms": [
            {
                "step": e.step,
                "layer": e.layer,
                "head": e.head,
                "what": e.what,
                "value": _short(e.value),
                "threshold": e.threshold,
                "words": e.words,
                "text": str(e),
            }
            for e in alarms
        ],
    }


def _short(x: float) -> float | None:
    """Four digits are more than a chart shows; JSON knows no infinity."""
    return float(f"{x:.4g}") if math.isfinite(x) else None
