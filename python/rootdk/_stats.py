"""What the scores did, as arrays [batch, heads]."""

from __future__ import annotations

import dataclasses
import html
import json
import math
from typing import Any, Callable, Generic, Iterator, Mapping, TypeVar

import numpy as np

from ._core import GradientStats as CoreGradientStats
from ._core import Stats as CoreStats
from ._problem import text as _text
from ._problem import whole
from ._statistics import (
    BASIC_ROWS,
    FULL_ROWS,
    GRADIENTS,
    HEAD,
    Array,
    GradientStatistics,
    HeadStatistics,
    RowStatistics,
)

Core = TypeVar("Core")


@dataclasses.dataclass(frozen=True)
class Judgement:
    """What is wrong with a head, if anything, and what would mend it. Numbers that are not known are None."""

    verdict: str  #: "soft", "sharp", "frozen", "exploding", …
    codes: tuple[str, ...]  #: all that hold, the most serious first
    words: str
    fix: str
    numbers: Mapping[str, float | None]  #: keys, sigma, sigma_c, entropy, predicted_entropy, stein_ratio, …


class Rows(RowStatistics, Mapping[str, Any]):
    """Statistics of every row, each [batch, heads, len_q], in the framework of the inputs. `rows.entropy` is
    `rows["entropy"]`."""

    def __init__(self, arrays: Mapping[str, Any]):
        self._arrays = dict(arrays)

    def __getitem__(self, name: str) -> Any:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __getattr__(self, name: str) -> Any:
        """What is no property, and what a property found missing."""
        return self._column(name)

    def _column(self, name: str) -> Any:
        try:
            return self.__dict__["_arrays"][name]
        except KeyError:
            raise AttributeError(f"rows: {name!r} is none of {sorted(self.__dict__.get('_arrays', ()))}") from None

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._arrays} - ({*BASIC_ROWS, *FULL_ROWS} - self._arrays.keys()))

    def __repr__(self) -> str:
        return f"Rows({', '.join(self._arrays)})"


def _number(x: float) -> str:
    if not math.isfinite(x):
        return str(x)
    return f"{x:.2f}" if abs(x) < 100 else f"{x:.4g}"


class NotAskedFor(AttributeError, ValueError):
    """Statistics that a call could have given."""


_ON_REQUEST = {
    "rows": 'pass stats=StatsOptions("full", rows=True); how many rows there were is row_count',
    "key_mass": 'pass stats=StatsOptions("full", key_mass=True)',
}


class _Learned(Generic[Core]):
    """Holds statistics, or what will read them: those of a GPU are read when somebody first asks, since that waits for
    the device."""

    def __init__(self, core: Core | Callable[[], Core]):
        self._source = core

    @property
    def _core(self) -> Core:
        if callable(self._source):
            self._source = self._source()
        return self._source

    @property
    def _reader(self) -> Any:
        """What will read them, while nobody has."""
        return self._source if callable(self._source) else None


class Stats(HeadStatistics, _Learned[CoreStats]):
    """Statistics of one call, or of several that were merged. Every number is an array [batch, heads]; `stats.names`
    lists them, docs/statistics.md says what each is.

    Averages leave out rows with fewer than two visible keys and rows that are not finite; both are counted.
    """

    def __init__(self, core: CoreStats | Callable[[], CoreStats], rows: Rows | None = None, key_mass: Any = None):
        super().__init__(core)
        self._rows = rows
        self._key_mass = key_mass

    @property
    def level(self) -> str:
        return self._core.level

    @property
    def batch(self) -> int:
        return self._core.batch

    @property
    def heads(self) -> int:
        return self._core.heads

    @property
    def names(self) -> list[str]:
        """The statistics there are at this level."""
        return self._core.columns()

    @property
    def rows(self) -> Rows:
        """Statistics of every row, if `StatsOptions(rows=…)` asked for them. (How many rows there were is
        `row_count`.)"""
        if self._rows is None:
            raise _not_asked_for("rows")
        return self._rows

    @property
    def key_mass(self) -> Any:
        """Σ over queries of each key's probability, [batch, heads, len_kv], if asked for."""
        if self._key_mass is None:
            raise _not_asked_for("key_mass")
        return self._key_mass

    def __getitem__(self, name: str) -> Any:
        if name in _ON_REQUEST:
            try:
                return getattr(self, name)
            except NotAskedFor as error:
                raise KeyError(str(error)) from None
        return self._core.column(name)

    def __getattr__(self, name: str) -> Array:
        """What is no property, and what a property found missing."""
        if name.startswith("_"):
            raise AttributeError(name)
        if name in _ON_REQUEST:
            raise _not_asked_for(name)
        return self._column(name)

    def _column(self, name: str) -> Array:
        core = self._core
        if name not in core.columns():
            level = ' at level "basic"; stats="full" has more' if core.level == "basic" else ""
            raise AttributeError(f"Stats has no {name!r}{level}")
        return core.column(name)

    def __dir__(self) -> list[str]:
        absent = {name for name, kept in (("rows", self._rows), ("key_mass", self._key_mass)) if kept is None}
        absent |= {statistic.name for statistic in HEAD} - {*self.names}
        return sorted({*super().__dir__()} - absent)

    def __reduce__(self) -> Any:
        return _stats_again, (self.to_json(), self._rows, self._key_mass)

    def to_dict(self) -> dict[str, Array]:
        """Every statistic by name."""
        return {name: self[name] for name in self.names}

    def to_json(self) -> str:
        """In the format of docs/stats-json.md: bit for bit, so files can be merged."""
        return self._core.to_json()

    @classmethod
    def from_json(cls, text: str) -> Stats:
        return cls(CoreStats.from_json(_text("text", text)))

    def merge(self, other: Stats) -> Stats:
        """What one pass over the rows of both would have given."""
        if not isinstance(other, Stats):
            raise TypeError(f"other: {type(other).__name__}, but Stats is wanted")
        return Stats(self._core.merge(other._core))

    def over_batch(self) -> Stats:
        """One batch item that stands for all."""
        return Stats(self._core.over_batch())

    def with_causes(self, dim: int, sigma_q: Any, sigma_k: Any, key_mean_norm: Any, scale: Any) -> Stats:
        """The same with what the scores came from, each one number for every head or for all: where somebody else
        computed them, or scaled q before. One batch item."""
        causes = np.stack(
            [
                np.broadcast_to(np.asarray(x, dtype=np.float64), (self.heads,))
                for x in (sigma_q, sigma_k, key_mean_norm, scale)
            ],
            axis=-1,
        )
        return Stats(self._core.with_causes(dim, causes.tolist()))

    def judge(self, dtype: str = "f32") -> list[list[Judgement]]:
        """[batch][heads]: what is wrong, if anything. `dtype` is that of the scores: "f32", "f16", "bf16" or "f64"."""
        flat = self._judge(dtype, 0, self.batch * self.heads)
        return [flat[b * self.heads : (b + 1) * self.heads] for b in range(self.batch)]

    def judge_head(self, head: int, *, batch: int = 0, dtype: str = "f32") -> Judgement:
        """The same for one head: a judgement takes ten to thirty milliseconds."""
        head, batch = whole("head", head), whole("batch", batch)
        if not (0 <= head < self.heads and 0 <= batch < self.batch):
            raise ValueError(f"head: {head} of batch item {batch}, but there are {self.heads} heads in {self.batch}")
        return self._judge(dtype, batch * self.heads + head, 1)[0]

    def _judge(self, dtype: str, first: int, count: int) -> list[Judgement]:
        all_of_them = json.loads(self._core.judge(_text("dtype", dtype), first, count))["judgements"]
        for j in all_of_them:
            del j["ground"]  # statistics are measured, always
        return [
            Judgement(j.pop("verdict"), tuple(j.pop("codes")), j.pop("words"), j.pop("fix"), j) for j in all_of_them
        ]

    def __repr__(self) -> str:
        head = f"Stats({self.level}, batch {self.batch} × heads {self.heads})"
        if self.level == "none" or self.batch * self.heads == 0:
            return head
        text = f"{head}: max score {_number(float(self.score_max.max()))}"
        if self.level == "full":
            text += (
                f", sigma {_mean(self.score_sigma)} of critical {_mean(self.sigma_c)}, entropy {_mean(self.entropy)}"
            )
        text += f", p_max {_mean(self.mean_p_max)}"
        bad = int(self.rows_not_finite.sum())
        return text + (f", {bad} rows not finite" if bad else "")

    def _repr_html_(self) -> str:
        shown = ["raw_max", "score_max", "mean_p_max", "mean_lse"]
        if self.level == "full":
            shown = [
                "raw_max",
                "raw_sigma",
                "score_max",
                "score_sigma",
                "sigma_ratio",
                "entropy",
                "effective_keys",
                "mean_p_max",
                "trace_j",
            ]
        shown = [name for name in shown if name in self.names]
        columns = {name: self._core.column(name) for name in shown}
        head = "".join(f"<th>{html.escape(name)}</th>" for name in ("batch", "head", *shown))
        body, most = [], 64
        for index in range(min(self.batch * self.heads, most)):
            b, h = divmod(index, self.heads)
            cells = "".join(f"<td>{_number(float(columns[name][b, h]))}</td>" for name in shown)
            body.append(f"<tr><th>{b}</th><th>{h}</th>{cells}</tr>")
        left = self.batch * self.heads - len(body)
        more = f"<p>and {left} more heads</p>" if left > 0 else ""
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
        return f"<p>{html.escape(repr(self))}</p>{table}{more}"


def _not_asked_for(name: str) -> NotAskedFor:
    error = NotAskedFor(f"{name}: not asked for; {_ON_REQUEST[name]}")
    error.name = name  # where Python fills it in, it also adds whose it is, and then suggests "_rows"
    return error


def _stats_again(text: str, rows: Rows | None, key_mass: Any) -> Stats:
    """What pickle and copy make Stats from."""
    return Stats(CoreStats.from_json(text), rows, key_mass)


def _mean(values: Array) -> str:
    known = values[np.isfinite(values)]
    return _number(float(known.mean())) if known.size else "unknown"


class GradientStats(GradientStatistics, _Learned[CoreGradientStats]):
    """What backward learned: sums of squares, each an array [batch, heads]."""

    NAMES = GRADIENTS

    @property
    def batch(self) -> int:
        return self._core.batch

    @property
    def heads(self) -> int:
        return self._core.heads

    def _column(self, name: str) -> Array:
        return self._core.column(name)

    def __reduce__(self) -> Any:
        return GradientStats.from_json, (self.to_json(),)

    def to_dict(self) -> dict[str, Array]:
        return {name: self._core.column(name) for name in self.NAMES}

    def to_json(self) -> str:
        return self._core.to_json()

    @classmethod
    def from_json(cls, text: str) -> GradientStats:
        return cls(CoreGradientStats.from_json(_text("text", text)))

    def merge(self, other: GradientStats) -> GradientStats:
        if not isinstance(other, GradientStats):
            raise TypeError(f"other: {type(other).__name__}, but GradientStats is wanted")
        return GradientStats(self._core.merge(other._core))

    def __repr__(self) -> str:
        return f"GradientStats(batch {self.batch} × heads {self.heads})"
