"""Arguments of attention, as Python takes them, into the engine's problem."""
from __future__ import annotations

import dataclasses
import numbers
import operator
from typing import Any, Literal, Sequence, Union

from . import _core

Level = Literal["basic", "full"]
Window = Union[int, "tuple[int | None, int | None]", None]


@dataclasses.dataclass(frozen=True)
class StatsOptions:
    """What to learn beyond the level, each at its own price (docs/statistics.md)."""

    level: Level = "full"
    rows: bool | Sequence[str] = False  #: True, or the names of the statistics wanted for every row
    sample: int = 1  #: full statistics from every so many blocks of 64 queries
    sample_offset: int = 0
    first_query: int = 0  #: what the first query is numbered
    causes: bool = True  #: sigma_q, sigma_k, key_mean_norm, alignment
    by_keys: bool = False  #: in buckets by the number of visible keys; seen in to_json()
    gaps: bool = False  #: a second pass
    key_mass: bool = False  #: the same second pass


@dataclasses.dataclass(frozen=True)
class QkNorm:
    """Normalises q and k before the product. A gain is [dim], or [heads, dim]; None means ones."""

    kind: Literal["rms", "layer", "l2"] = "rms"
    eps: float = 1e-6
    q_gain: Any = None
    k_gain: Any = None

    @staticmethod
    def of(value: QkNorm | str | None) -> QkNorm | None:
        if value is None or isinstance(value, QkNorm):
            return value
        if isinstance(value, str):
            if value not in ("rms", "layer", "l2"):
                raise ValueError(f'qk_norm: "{value}", but "rms", "layer" or "l2" is wanted')
            return QkNorm(value)  # type: ignore[arg-type]
        raise TypeError(f"qk_norm: {type(value).__name__}, but None, a name or QkNorm is wanted")


def options_of(stats: StatsOptions | str | None) -> StatsOptions | None:
    if stats is None or isinstance(stats, StatsOptions):
        return stats
    if isinstance(stats, str):
        if stats not in ("basic", "full"):
            raise ValueError(f'stats: "{stats}", but None, "basic" or "full" is wanted')
        return StatsOptions(stats)  # type: ignore[arg-type]
    raise TypeError(f"stats: {type(stats).__name__}, but None, \"basic\", \"full\" or StatsOptions is wanted")


def real(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) and not hasattr(value, "__float__"):
        raise TypeError(f"{name}: {type(value).__name__}, but a number is wanted")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{name}: {error}") from None


def whole(name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: {type(value).__name__}, but a whole number is wanted") from None
    if not -(2**62) < number < 2**62:
        raise ValueError(f"{name}: {number} is beyond what any length can be")
    return number


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name}: {type(value).__name__}, but True or False is wanted")
    return value


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name}: {type(value).__name__}, but a text is wanted")
    return value


def listed(name: str, values: Any, what: str) -> list[Any]:
    """The elements of anything that has some. A text has none here, though Python would take it letter by letter."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, (str, bytes, dict)):
        raise TypeError(f"{name}: {type(values).__name__}, but a list of {what} is wanted")
    try:
        return list(values)
    except TypeError:
        raise TypeError(f"{name}: {type(values).__name__}, but a list of {what} is wanted") from None


def wholes(name: str, values: Any) -> list[int]:
    try:
        listed = values.tolist() if hasattr(values, "tolist") else list(values)
    except TypeError:
        raise TypeError(f"{name}: {type(values).__name__}, but whole numbers are wanted") from None
    if not isinstance(listed, list):
        raise TypeError(f"{name}: one number, but a list of them is wanted")
    return [whole(name, value) for value in listed]


def reals(name: str, values: Any, heads: int) -> list[float]:
    """One per head, or one for all."""
    listed = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(listed, (list, tuple)):
        return [real(name, listed)] * heads
    if len(listed) != heads:
        raise ValueError(f"{name}: {len(listed)} values, but there are {heads} query heads")
    return [real(name, value) for value in listed]


def window_of(window: Window) -> tuple[int | None, int | None] | None:
    if window is None:
        return None
    if isinstance(window, tuple):
        if len(window) != 2:
            raise ValueError(f"window: {len(window)} numbers, but (left, right) are wanted")
        left, right = (None if side is None else whole("window", side) for side in window)
        return left, right
    both = whole("window", window)
    return both, both


def documents_of(documents: Any) -> tuple[list[int], list[int]] | None:
    """Starts of packed documents; a pair where queries and keys are packed differently."""
    if documents is None:
        return None
    if isinstance(documents, tuple) and len(documents) == 2 and all(hasattr(part, "__len__") for part in documents):
        return wholes("documents", documents[0]), wholes("documents", documents[1])
    starts = wholes("documents", documents)
    return starts, starts


def diagonal_of(diagonal: str | int) -> tuple[str, int]:
    if isinstance(diagonal, str):
        return diagonal, 0
    return "at", whole("diagonal", diagonal)


def apply_options(spec: _core.Spec, options: StatsOptions | None) -> None:
    if options is None:
        return
    if options.level not in ("basic", "full"):
        raise ValueError(f'stats: level is "{options.level}", but "basic" or "full" is wanted')
    spec.stats = options.level
    for name in ("sample", "sample_offset", "first_query"):
        setattr(spec, name, whole(f"stats.{name}", getattr(options, name)))
    for name in ("causes", "by_keys", "gaps", "key_mass"):
        setattr(spec, name, flag(f"stats.{name}", getattr(options, name)))


def row_names(options: StatsOptions) -> list[str]:
    known = _core.row_names()
    basic = ("raw_max", "score_max", "p_max")
    if options.rows is False:
        return []
    if options.rows is True:
        return [name for name in known if options.level == "full" or name in basic]
    if isinstance(options.rows, str):
        raise TypeError("stats.rows: a string, but True or a list of names is wanted")
    for name in options.rows:
        if name not in (*known, "lse"):
            raise ValueError(f'stats.rows: "{name}" is none of {", ".join(["lse", *known])}')
    return [name for name in options.rows if name != "lse"]
