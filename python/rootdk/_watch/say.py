"""What a watch says: tables, TensorBoard's scalars, Prometheus's text."""

from __future__ import annotations

import math
import os
import re
from typing import Any, Iterator, Mapping, Sequence

import numpy as np

from .history import COLUMNS, Record

NOTHING = ""  #: what_of a module in which nothing was seen at all
_SIZES = re.compile(r"\[[\d, ]*\]|\d+")
NO_LOSS = (
    "No loss was given, so of layers that stop learning only those that are frozen from the start are reported: "
    "call w.loss(loss) after each step."
)


def low_loss_words(loss: float, classes: int) -> str:
    """Of a run that its first loss marks as resumed."""
    return (
        f"The first loss was {loss:.3g}, far below ln {classes} = {math.log(classes):.3g}, that of a model that knows "
        "nothing of its classes: this run is taken for resumed, and layers that were closed at first are not reported. "
        "If it began fresh, as with a loss that is scaled down: rootdk.watch(…, resumed=False)."
    )


def table(records: list[Record], columns: tuple[str, ...], worst: int | None) -> str:
    """Aligned text; with `worst`, only so many heads, those nearest to freezing first."""
    lines = [
        (record.layer, head, [float(record[name][head]) for name in columns], float(record["sigma_ratio"][head]))
        for record in records
        for head in range(record.values.shape[1])
    ]
    if worst is not None:
        lines = sorted(lines, key=lambda line: -line[3] if np.isfinite(line[3]) else np.inf)[:worst]
    cells = [["layer", "head", *columns]] + [
        [layer, str(head), *(_short(x) for x in values)] for layer, head, values, _ in lines
    ]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return "\n".join(
        "  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))).rstrip()
        for row in cells
    )


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


def what_of(words: str) -> str:
    """What was not seen, without its sizes: another batch's are no news."""
    return _SIZES.sub("", words)


def unseen_words(unseen: Sequence[tuple[str, str]], most: int = 8) -> str:
    """(module, what and why): one line each, the first ones."""
    if not unseen:
        return ""
    lines = [f"  {name}: {why}" for name, why in unseen[:most]]
    more = [f"  and {len(unseen) - most} more (w.unseen)"] if len(unseen) > most else []
    return "\n".join(["Not seen, and so in no statistic:", *lines, *more])


def hidden_words(hidden: Mapping[float, int]) -> str:
    """What masks hid by numbers."""
    return "\n".join(
        f"A mask hides by {below:.3g} and lower numbers instead of -inf: {count:,} such scores were taken as hidden."
        for below, count in sorted(hidden.items())
    )


def may_hide_words(below: float) -> str:
    """Of a mask that cannot be told from biases."""
    return (
        f"Numbers from {below:.3g} down are added to scores and may be a mask's, but biases beside them reach too far "
        "down to tell: they were taken for scores, which makes score_sigma large. A mask of -inf leaves no doubt."
    )


def scalars(records: list[Record], prefix: str) -> Iterator[tuple[str, float, int]]:
    """(name, value, step): per layer the largest, mean and smallest over heads of each statistic that is known."""
    for record in records:
        for name in COLUMNS:
            values = record[name]
            known = values[values == values]
            if known.size:
                for what, value in (("max", known.max()), ("mean", known.mean()), ("min", known.min())):
                    yield f"{prefix}/{record.layer}/{name}/{what}", float(value), record.step


class TensorBoard:
    """Writes scalars, into writers of its own where a folder is given."""

    def __init__(self) -> None:
        self._writers: dict[str, Any] = {}

    def write(self, writer: Any, records: list[Record], prefix: str) -> None:
        if isinstance(writer, (str, os.PathLike)):
            folder = os.fspath(writer)
            if folder not in self._writers:
                from torch.utils.tensorboard import SummaryWriter

                self._writers[folder] = SummaryWriter(folder)
            writer = self._writers[folder]
        for name, value, step in scalars(records, prefix):
            writer.add_scalar(name, value, step)
