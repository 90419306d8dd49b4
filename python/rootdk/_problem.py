"""Arguments of attention, as Python takes them, into the engine's problem."""

from __future__ import annotations

import dataclasses
import difflib
import numbers
import operator
import sys
from typing import Any, Iterable, Literal, Mapping, Sequence, TypedDict, Union

import numpy as np

from . import _core
from ._statistics import BASIC_ROWS

Level = Literal["basic", "full"]
Window = Union[int, "tuple[int | None, int | None]", "list[int | None]", None]


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


class Arguments(TypedDict, total=False):
    """What can be said of an attention beside q, k, v and the statistics wanted."""

    scale: Any
    causal: bool
    diagonal: str | int
    window: Window
    key_starts: Any
    key_lengths: Any
    query_lengths: Any
    documents: Any
    mask: Any
    bias: Any
    alibi: Any
    softcap: float | None
    sink: Any
    qk_norm: QkNorm | str | None
    dropout: float
    seed: Any


def options_of(stats: StatsOptions | str | None) -> StatsOptions | None:
    if stats is None or isinstance(stats, StatsOptions):
        return stats
    if isinstance(stats, str):
        if stats not in ("basic", "full"):
            raise ValueError(f'stats: "{stats}", but None, "basic" or "full" is wanted')
        return StatsOptions(stats)  # type: ignore[arg-type]
    raise TypeError(f'stats: {type(stats).__name__}, but None, "basic", "full" or StatsOptions is wanted')


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
    """numpy's True and False, which a comparison gives, are no instances of bool."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name}: {type(value).__name__}, but True or False is wanted")
    return bool(value)


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
    """A side of None is unbounded, and so is −1, as in FlashAttention."""
    if window is None:
        return None
    if isinstance(window, (tuple, list)):
        if len(window) != 2:
            raise ValueError(f"window: {len(window)} numbers, but (left, right) are wanted")
        left, right = (None if side is None or whole("window", side) == -1 else _distance(side) for side in window)
        return left, right
    both = _distance(window)
    return both, both


def _distance(side: Any) -> int:
    number = whole("window", side)
    if number < 0:
        raise ValueError(
            f"window: {number}, but a side is a number from 0, or None or -1 in (left, right) for unbounded"
        )
    return number


Starts = Union["tuple[int, ...]", None]


def documents_of(documents: Any) -> tuple[Starts, Starts, int]:
    """Starts of packed documents of queries and of keys, and of how many batch items, row by row; 0 where all items
    have the same."""
    if documents is None:
        return None, None, 0
    if isinstance(documents, tuple) and len(documents) == 2 and all(hasattr(part, "__len__") for part in documents):
        (q, q_items), (kv, kv_items) = _starts(documents[0]), _starts(documents[1])
        if q_items != kv_items:
            raise ValueError(f"documents: of {_of_items(q_items)} for q and of {_of_items(kv_items)} for k")
        if q_items and len(q) != len(kv):
            raise ValueError(
                f"documents: at most {len(q) // q_items - 1} an item for q and {len(kv) // q_items - 1} for k"
            )
        return q, kv, q_items
    starts, items = _starts(documents)
    return starts, starts, items


def _of_items(items: int) -> str:
    return f"{items} items" if items else "the whole batch"


def _starts(documents: Any) -> tuple[tuple[int, ...], int]:
    """One list for all, or one for each item: those that have fewer documents end with empty ones."""
    rows = listed("documents", documents, "whole numbers")
    if not any(isinstance(row, (list, tuple)) or getattr(row, "ndim", 0) for row in rows):
        return tuple(wholes("documents", rows)), 0
    each = [wholes("documents", row) for row in rows]
    longest = max(map(len, each))
    if not all(each):
        raise ValueError("documents: an item has none, but [0] is wanted for one without documents")
    return tuple(start for row in each for start in (*row, *row[-1:] * (longest - len(row)))), len(each)


def diagonal_of(diagonal: str | int) -> tuple[str, int]:
    if isinstance(diagonal, str):
        return diagonal, 0
    return "at", whole("diagonal", diagonal)


# What others call our arguments: whose name it is, and what it is here.
_ELSEWHERE = {
    "is_causal": ("PyTorch's", 'causal (bottom-right unless diagonal="top_left")'),
    "dropout_p": ("PyTorch's", "dropout"),
    "attn_mask": ("PyTorch's", "mask (bool, True is visible) or bias (added to the scores)"),
    "enable_gqa": ("PyTorch's", "always so: query heads share where k and v have fewer"),
    "need_weights": ("PyTorch's", 'stats="full": what is known of the probabilities, never written out'),
    "softmax_scale": ("FlashAttention's", "scale"),
    "window_size": ("FlashAttention's", "window"),
    "alibi_slopes": ("FlashAttention's", "alibi"),
    "cu_seqlens": ("FlashAttention's", "documents"),
    "cu_seqlens_q": ("FlashAttention's", "documents, a pair (q, kv)"),
    "cu_seqlens_k": ("FlashAttention's", "documents, a pair (q, kv)"),
    "return_attn_probs": ("FlashAttention's", 'stats="full": what is known of the probabilities, never written out'),
    "attention_mask": ("transformers'", "mask (bool, True is visible) or bias (added to the scores)"),
    "scaling": ("transformers'", "scale"),
    "sliding_window": ("transformers'", "window, where (left, 0) sees left + 1 keys: sliding_window - 1"),
    "s_aux": ("transformers'", "sink"),
    "attn_bias": ("xFormers'", "bias"),
    "p": ("xFormers'", "dropout"),
    "logits_soft_cap": ("FlashInfer's", "softcap"),
    "key_padding_mask": ("PyTorch's", "key_starts and key_lengths, or mask (bool, True is visible)"),
}


def refuse_names(function: str, unknown: Iterable[str], known: Iterable[str]) -> None:
    """Says of the first argument that there is not what it is called here."""
    names = sorted(known)
    for name in unknown:
        if name in _ELSEWHERE:
            whose, here = _ELSEWHERE[name]
            raise TypeError(f"{function}: {name} is {whose} name; here it is {here}")
        if name == "return_lse":
            raise TypeError(
                f"{function}: return_lse is an argument of rootdk.torch.attention; elsewhere stats.rows.lse has it"
            )
        close = difflib.get_close_matches(name, names, 1) or [other for other in names if name.lower() == other.lower()]
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"
        raise TypeError(f"{function}: no argument is called {name}; {hint}")


def refuse_tracers(arguments: Mapping[str, Any]) -> None:
    """jax traces functions with arrays that have no numbers."""
    jax = sys.modules.get("jax")
    tracer = getattr(getattr(jax, "core", None), "Tracer", None)
    if tracer is None:
        return
    for name, value in arguments.items():
        gains = (value.q_gain, value.k_gain) if isinstance(value, QkNorm) else (value,)
        if any(isinstance(part, tracer) for part in (value if isinstance(value, (list, tuple)) else gains)):
            raise TypeError(
                f"{name}: traced by jax (jit, grad or vmap), so it has no numbers yet; call rootdk outside of "
                "the transformation, or through jax.pure_callback (which has no gradients)"
            )


def checked(options: StatsOptions) -> dict[str, int | bool]:
    """What the engine takes of them, beside the level."""
    if options.level not in ("basic", "full"):
        raise ValueError(f'stats: level is "{options.level}", but "basic" or "full" is wanted')
    found: dict[str, int | bool] = {}
    for name in ("sample", "sample_offset", "first_query"):
        found[name] = whole(f"stats.{name}", getattr(options, name))
    for name in ("causes", "by_keys", "gaps", "key_mass"):
        found[name] = flag(f"stats.{name}", getattr(options, name))
    return found


def row_names(options: StatsOptions) -> list[str]:
    known = _core.row_names()
    if options.rows is False:
        return []
    if options.rows is True:
        return [name for name in known if options.level == "full" or name in BASIC_ROWS]
    if isinstance(options.rows, str):
        raise TypeError("stats.rows: a string, but True or a list of names is wanted")
    for name in options.rows:
        if name not in (*known, "lse"):
            raise ValueError(f'stats.rows: "{name}" is none of {", ".join(["lse", *known])}')
    return [name for name in options.rows if name != "lse"]
