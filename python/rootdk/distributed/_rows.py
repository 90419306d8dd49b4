"""Statistics of rows whose keys lie on several ranks, merged: the monoid of row states (rootdk/attention.h's `merge` of
outputs with rows) for tensors on any device, in double."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .. import _core
from .._stats import Stats

_NONE = float("-inf")
_MOMENTS = ("mean", "m2", "min", "argmax")


def read_rows(rows: Any, lse: Tensor, keys: Tensor) -> dict[str, Tensor]:
    """Of a call's rows, in double; keys: what the call's keys are numbered in the whole sequence."""
    out = {name: rows[name].double() for name in _core.row_names()}
    out["lse"] = lse.double()
    n = out["visible"]
    for place in ("raw", "score"):
        where = out[f"{place}_argmax"]
        if keys.numel():
            named = keys[where.clamp(min=0).long().clamp(max=keys.numel() - 1)].double()
            out[f"{place}_argmax"] = torch.where(where >= 0, named, where)
        out[f"{place}_m2"] = torch.where(n > 1, out.pop(f"{place}_variance") * (n - 1), torch.zeros_like(n))
    return out


def merged_rows(a: dict[str, Tensor], b: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of the same queries and other keys."""
    lse = torch.logaddexp(a["lse"], b["lse"])

    def share(x: Tensor) -> Tensor:
        return torch.where(x == _NONE, torch.zeros_like(x), torch.exp(x - lse))

    w, v = share(a["lse"]), share(b["lse"])

    def entropy(weight: Tensor, h: Tensor) -> Tensor:
        safe = torch.where(weight > 0, weight, torch.ones_like(weight))
        return torch.where(weight == 0, torch.zeros_like(weight), weight * (h - torch.log(safe)))

    out = {
        "lse": lse,
        "raw_max": torch.maximum(a["raw_max"], b["raw_max"]),
        "score_max": torch.maximum(a["score_max"], b["score_max"]),
        "p_max": torch.maximum(w * a["p_max"], v * b["p_max"]),
        "visible": (a["visible"] + b["visible"]).clamp(min=-1),  # padding is padding in both
        "entropy": entropy(w, a["entropy"]) + entropy(v, b["entropy"]),
        "sum_p2": w**2 * a["sum_p2"] + v**2 * b["sum_p2"],
        "sum_p3": w**3 * a["sum_p3"] + v**3 * b["sum_p3"],
        "sink_mass": w * a["sink_mass"] + v * b["sink_mass"],
    }
    n, m = a["visible"], b["visible"]
    only_a, only_b = m <= 0, n <= 0
    total = torch.where(n + m > 0, n + m, torch.ones_like(n))
    for place in ("raw", "score"):
        first, second = ({name: x[f"{place}_{name}"] for name in _MOMENTS} for x in (a, b))
        delta = second["mean"] - first["mean"]
        later = b[f"{place}_max"] > a[f"{place}_max"]
        # Of keys that tie, the lowest: calls do not come in the order of keys.
        tie = (b[f"{place}_max"] == a[f"{place}_max"]) & (second["argmax"] < first["argmax"]) & (second["argmax"] >= 0)
        both = {
            "mean": first["mean"] + delta * m / total,
            "m2": first["m2"] + second["m2"] + delta**2 * n * m / total,
            "min": torch.minimum(first["min"], second["min"]),
            "argmax": torch.where(later | tie, second["argmax"], first["argmax"]),
        }
        for name, x in both.items():
            out[f"{place}_{name}"] = torch.where(only_b, second[name], torch.where(only_a, first[name], x))
    return out


class RowTable:
    """Rows [batch, heads, length] of all the queries here, which grow with every call over more keys."""

    def __init__(self, batch: int, heads: int, length: int, device: torch.device):
        self.shape = (batch, heads, length)
        self.device = device
        names = {*_core.row_names(), "lse", "raw_m2", "score_m2"} - {"raw_variance", "score_variance"}
        self.rows = self._begin(sorted(names))

    def _begin(self, names: Sequence[str]) -> dict[str, Tensor]:
        start = {"lse": _NONE, "raw_max": _NONE, "score_max": _NONE, "raw_argmax": -1.0, "score_argmax": -1.0}
        rows = {name: torch.full(self.shape, start.get(name, 0.0), dtype=torch.float64, device=self.device)
                for name in names}  # fmt: skip
        for name in ("raw_mean", "score_mean", "raw_min", "score_min"):
            rows[name].fill_(float("nan"))
        return rows

    def add(self, where: tuple[slice, slice, slice], more: dict[str, Tensor]) -> None:
        here = {name: row[where] for name, row in self.rows.items()}
        for name, row in merged_rows(here, more).items():
            self.rows[name][where] = row

    def mark_padding(self, item: int, padding: npt.NDArray[np.bool_]) -> None:
        """Which rows of an item are no queries."""
        self.rows["visible"][item, :, torch.from_numpy(padding).to(self.device)] = -1

    def with_sink(self, z: Tensor) -> None:
        """z [heads]: one more key of that score, which counts among probabilities and nowhere else."""
        rows, z = self.rows, z.detach().double().to(self.device)[None, :, None].expand(self.shape)
        lse = torch.logaddexp(rows["lse"], z)
        w = torch.where(rows["lse"] == _NONE, torch.zeros_like(lse), torch.exp(rows["lse"] - lse))
        mass = torch.where(lse == _NONE, torch.zeros_like(lse), torch.exp(z - lse))
        safe = [torch.where(x > 0, x, torch.ones_like(x)) for x in (w, mass)]
        rows["entropy"] = w * (rows["entropy"] - torch.log(safe[0])) - mass * torch.log(safe[1])
        rows["p_max"] = w * rows["p_max"]
        for power in (2, 3):
            rows[f"sum_p{power}"] = w**power * rows[f"sum_p{power}"] + mass**power
        rows["sink_mass"], rows["lse"] = mass, lse

    def stats(self) -> Stats:
        """Of each head; places of queries count from 0."""
        rows = dict(self.rows)
        for place in ("raw", "score"):
            n = rows["visible"]
            m2 = rows.pop(f"{place}_m2")
            rows[f"{place}_variance"] = torch.where(n > 1, m2 / (n - 1).clamp(min=1), torch.zeros_like(n))
        names = [*_core.row_names(), "lse"]
        table = torch.stack([rows[name] for name in names]).cpu().unsqueeze(-1)  # one transfer
        return Stats(_core.stats_of_rows(dict(zip(names[:-1], table)), table[-1]))
