"""What a wrong output is the right output of: known faults are computed in double and held against it."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Iterator

import numpy as np

from .law import Batch, Law, attend, probabilities_of, scores_of, values_of, visible_of
from .precision import NAMES
from .probe import Array, Probe, Refused, keep_bits
from .promise import Promise
from .random_batches import Miss, room_of


def diagnose(probe: Probe, law: Law, missed: list[Miss], promise: Promise, count: int) -> tuple[str, str]:
    """In words: what explains it, and how far it is off and where."""
    worst = max(missed, key=_excess)
    where = _where(worst) + f"; {len(missed)} of {count} random batches are off"
    if (few := _top(probe, law, missed)) is not None:
        return few, where
    for words, other in _variants(law, missed):
        if all(_explains(probe, other, miss) for miss in missed):
            return words, where
    finite = [miss for miss in missed if np.isfinite(miss.out[_rows(miss)]).all()]
    if len(finite) < len(missed):
        return "not finite", where
    if (narrow := _narrow(law, missed)) is not None:
        return narrow, where
    if (factor := _factor(probe, law, missed)) is not None:
        return f"as if scores were {factor:.3g} times as large", where
    return "off, and no known fault explains it", where


def _rows(miss: Miss) -> Any:
    return np.broadcast_to(miss.compared, miss.out.shape)


def _excess(miss: Miss) -> float:
    over = np.where(_rows(miss), np.abs(miss.out - miss.exact) / miss.room, 0.0)
    return float(np.max(np.where(np.isnan(over), np.inf, over)))


def _where(miss: Miss) -> str:
    error = np.where(_rows(miss), np.abs(miss.out - miss.exact), 0.0)
    bad = ~(error <= miss.room)
    index = np.unravel_index(int(np.argmax(np.where(np.isnan(error), np.inf, error / miss.room))), error.shape)
    item, head, query, _ = (int(x) for x in index)
    by_row = bad.any(-1)
    far = "not finite" if not np.isfinite(miss.out[index]) else f"off by {error[index]:.2g}"
    room = float(miss.room[item, head, query, 0])
    return (
        f"{far} where rounding explains {room:.1g} ({miss.batch.name}: item {item}, head {head}, query {query}; "
        f"{int(by_row.sum())} of {int(miss.compared.sum())} rows)"
    )


def _explains(probe: Probe, other: Law, miss: Miss) -> bool:
    try:
        exact = attend(other, miss.batch)
    except (KeyError, IndexError):
        return False
    room = room_of(other, miss.batch, exact, probe, [])
    return bool((np.abs(miss.out - exact) <= room)[_rows(miss)].all())


def _top(probe: Probe, law: Law, missed: list[Miss]) -> str | None:
    """Only the largest scores of a row: the count is read off the probabilities, then checked."""
    batch = max((miss.batch for miss in missed), key=lambda b: b.k.shape[2])
    if batch.mask is not None or batch.bias is not None or batch.k.shape[1] != probe.heads:
        return None
    one = Batch(batch.name, batch.q[:1], batch.k[:1], batch.v[:1])
    try:
        p = probe.probabilities(one.q, one.k)
    except Refused:
        return None
    kept = (p > 0).sum(-1)
    k = int(kept.max())
    if not 0 < k < batch.k.shape[2] or not (kept == np.minimum(k, visible_of(law, one)[0].sum(-1))).all():
        return None

    def largest(s: Array, visible: Any) -> Any:
        return visible & (s >= np.sort(s, -1)[..., -min(k, s.shape[-1])][..., None])

    if not all(_explains(probe, dataclasses.replace(law, keep=largest), miss) for miss in missed):
        return None
    return f"only the {k} largest scores of a row are read"


def _variants(law: Law, missed: list[Miss]) -> Iterator[tuple[str, Law]]:
    """One change of the law each, with words for it."""

    def changed(**fields: Any) -> Law:
        return dataclasses.replace(law, **fields)

    flipped = "top_left" if law.alignment == "bottom_right" else "bottom_right"
    if law.causal or law.left is not None or law.right is not None:
        yield f"aligned {flipped} at these lengths", changed(alignment=flipped)
        yield "masked by nothing at these lengths", changed(causal=False, left=None, right=None)
    if not law.causal:
        for name in ("top_left", "bottom_right"):
            yield f"causal ({name}) at these lengths", changed(causal=True, alignment=name)
    if law.left is not None:
        for more in (1, -1):
            yield (
                f"a window one key {'wider' if more > 0 else 'narrower'} at these lengths",
                changed(left=law.left + more),
            )
    if law.sink is not None:
        yield "without the sink", changed(sink=None)
    if law.cap is not None:
        yield "without the cap", changed(cap=None)
    if law.alibi is not None:
        yield "without ALiBi", changed(alibi=None)
    yield "the bias is ignored", changed(bias="ignored")
    dims = {miss.batch.q.shape[-1] for miss in missed}
    halves: list[tuple[str, Callable[[int], Any]]] = [
        ("the first half", lambda d: np.arange(d) < d // 2),
        ("the last half", lambda d: np.arange(d) >= d // 2),
        ("every second one", lambda d: np.arange(d) % 2 == 0),
    ]
    for words, counts in halves:
        yield f"of the dims only {words} counts", changed(counts={d: counts(d) for d in dims})
    items = {len(miss.batch.q) for miss in missed}
    for source, noun in (("k", "K"), ("v", "V"), ("mask", "the mask"), ("bias", "the bias")):
        for size in items:
            first = np.zeros(size, dtype=np.intp)
            yield f"{noun} of item 0 is read for all", changed(items={**law.items, source: first})
    yield (
        "K and V of item 0 are read for all",
        changed(items={**law.items, **{s: np.zeros(max(items), np.intp) for s in "kv"}}),
    )
    heads = missed[0].batch.q.shape[1]
    for source in ("mask", "bias"):
        yield (
            f"the {source} of head 0 is read for all",
            changed(mask_heads={**law.mask_heads, source: np.zeros(heads, np.intp)}),
        )
    orders: list[tuple[str, Callable[[int], Any]]] = [
        ("one head on", lambda n: np.roll(np.arange(heads) // (heads // n), -1)),
        ("one head back", lambda n: np.roll(np.arange(heads) // (heads // n), 1)),
        ("heads in reverse", lambda n: (np.arange(heads) // (heads // n))[::-1]),
        ("head 0 for all", lambda n: np.zeros(heads, np.intp)),
        ("blocked", lambda n: np.arange(heads) // (heads // n)),
        ("interleaved", lambda n: np.arange(heads) % n),
    ]
    for field, noun in (("k_heads", "K"), ("v_heads", "V")):
        own: dict[int, Array] = getattr(law, field)
        for words, order in orders:
            yield f"{noun} is read: {words}", changed(**{field: {n: order(n) for n in own}})
    for block in (4, 8, 16, 32, 64, 128):

        def whole(s: Array, visible: Any, block: int = block) -> Any:
            return visible & (np.arange(s.shape[-1]) < max(block, s.shape[-1] // block * block))

        yield f"keys after the last whole block of {block} are not read", changed(keep=whole)
        yield f"keys that pad the length to a multiple of {block} are counted, with score 0", changed(padded=block)


def _narrow(law: Law, missed: list[Miss]) -> str | None:
    """Rounding something to fewer bits explains an error if it makes seven eighths of it vanish: what is rounded twice,
    by them and by us, now and then falls to either side."""
    off = sum(float(np.square((miss.out - miss.exact)[_rows(miss)]).sum()) for miss in missed)
    best: tuple[float, str] | None = None
    for bits, name in NAMES.items():
        for words, rounding in (
            ("q and k", "qk"),
            ("scores", "s"),
            ("probabilities", "p"),
            ("values", "v"),
            ("probabilities and values", "pv"),
            ("probabilities before they are divided by their sum", "e"),
            ("these and values", "ev"),
            ("q, k and v", "qkv"),
            ("everything", "qkspv"),
        ):
            left = sum(
                float(np.square((miss.out - _rounded(law, miss.batch, rounding, bits))[_rows(miss)]).sum())
                for miss in missed
            )
            if best is None or left < best[0]:
                best = (
                    left,
                    f"{words} are rounded to {name}" if words != "everything" else f"everything is rounded to {name}",
                )
    return best[1] if best is not None and best[0] <= off / 64 else None


def _rounded(law: Law, batch: Batch, what: str, bits: int) -> Array:
    if "q" in what:
        batch = dataclasses.replace(batch, q=keep_bits(batch.q, bits), k=keep_bits(batch.k, bits))
    if "v" in what:
        batch = dataclasses.replace(batch, v=keep_bits(batch.v, bits))
    if "s" in what or "e" in what:
        s = scores_of(law, batch)[0]
        s = np.where(visible_of(law, batch), keep_bits(s, bits) if "s" in what else s, -np.inf)
        m = np.where(np.isfinite(s.max(-1, keepdims=True)), s.max(-1, keepdims=True), 0.0)
        e = np.exp(s - m)
        total = e.sum(-1, keepdims=True) + (np.exp(law.sink[None, :, None, None] - m) if law.sink is not None else 0.0)
        total = np.where(total > 0, total, 1.0)
        p: Array = (
            keep_bits(e, bits) / total if "e" in what else keep_bits(e / total, bits) if "p" in what else e / total
        )
    else:
        p = probabilities_of(law, batch)[0]
        p = keep_bits(p, bits) if "p" in what else p
    return np.asarray(p @ values_of(law, batch))


def _factor(probe: Probe, law: Law, missed: list[Miss]) -> float | None:
    """The factor on all scales that leaves the least error, if it then explains it."""

    def left(x: float) -> float:
        other = dataclasses.replace(law, scale={d: c * x for d, c in law.scale.items()})
        return sum(float(np.square((miss.out - attend(other, miss.batch))[_rows(miss)]).sum()) for miss in missed)

    grid = np.exp(np.linspace(-1.5, 1.5, 31))
    best = float(min(grid, key=left))
    for width in (0.05, 0.01, 0.002, 0.0004, 0.0001):
        best = float(min((best * np.exp(step * width) for step in range(-3, 4)), key=left))
    if abs(best - 1) < 1e-3 or left(best) > left(1.0) / 64:
        return None
    return best
