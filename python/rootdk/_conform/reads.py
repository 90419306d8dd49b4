"""Who reads whose: which head's and which batch item's q, K, V, mask and bias each output is made of; and what a mask
means."""

from __future__ import annotations

import numpy as np

from .probe import Array, Probe, Refused, log_ratio
from .promise import Finding, Promise, compare

ITEMS = 3  # batch items: one more than two, so that "the other" differs from "the first" and "the next"


def masks(probe: Probe, dim: int, c: float | None, promise: Promise) -> list[Finding]:
    """Two keys, which every window shows to the last query; one of them is hidden, or lowered by 1."""
    out = []
    zero = np.zeros((1, probe.heads, 2, dim))
    rest = probe.probabilities(zero, zero)[0, -1]
    shows = np.zeros((1, 1, 2, 2), dtype=bool)
    shows[..., 0] = True
    try:
        p = probe.probabilities(zero, zero, shows)[0, -1]
        found = (
            "true_shows"
            if p[0] > 0 and p[1] == 0
            else "true_hides"
            if p[0] == 0 and p[1] > 0
            else "ignored"
            if np.allclose(p, rest, rtol=1e-2)
            else "added to the scores"
        )
        out.append(
            compare("mask", found, promise.mask, "" if found.startswith("true") else f"p = {p[0]:.3g}, {p[1]:.3g}")
        )
    except Refused as refused:
        out.append(Finding("mask", "bool is refused", promise.mask or "", None, str(refused)))
    bias = np.zeros((1, 1, 2, 2))
    bias[..., 1] = -1.0
    try:
        p = probe.probabilities(zero, zero, bias)[0, -1]
        added = float(log_ratio(p)[1] - log_ratio(rest)[1])
        # Two probabilities are rounded to the dtype.
        room = max(0.01, 4 * probe.unit)
        if abs(added + 1) < 2 * room:
            found = "after_scale"
        elif c and abs(added + c) < 2 * room * abs(c):
            found = "before_scale"
        elif abs(added) < room:
            found = "ignored"
        elif p[1] == 0:
            found = "taken for a boolean"
        else:
            found = f"adds {added:.3g} for -1"
        out.append(compare("bias", found, promise.bias))
    except Refused as refused:
        out.append(Finding("bias", "refused", promise.bias or "", None, str(refused)))
    return out


class Reader:
    """Moves one head's or one item's q, K, V, mask or bias, and sees whose output moves."""

    def __init__(self, probe: Probe, dim: int, c: float, mask_hides: bool):
        self.probe, self.dim, self.hides = probe, dim, mask_hides
        self.x = 1.0 / c  # moves a score by 1
        self.axis = probe.axis.get(dim, 0)
        self.whole: Array | None = None  # what V of all ones gives: less than 1 beside a sink

    def read(self, source: str, of: str, heads_kv: int) -> Array | None:
        """Index of the head (of="heads") or item (of="items") each one reads; None if it is not one alone. Raises
        Refused."""
        probe, dim = self.probe, self.dim
        items = ITEMS if of == "items" else 1
        count = ITEMS if of == "items" else heads_kv if source in "kv" else probe.heads
        rest = self._output(source, of, None, items, heads_kv)
        moved = np.stack([self._output(source, of, target, items, heads_kv) for target in range(count)])
        # [target, item, head] → [target, reader]. What moves moves by 1, or nearly so below a cap.
        differs = np.abs(moved - rest) > 0.25
        reader = differs.any(2) if of == "items" else differs.any(1)
        if dim < 2 or not (reader.sum(0) == 1).all():
            return None
        found: Array = reader.argmax(0)
        return found

    def _output(self, source: str, of: str, target: int | None, items: int, heads_kv: int) -> Array:
        """[item, head]: ln p of the second key beside the first; for V how much of it is read."""
        heads, dim = self.probe.heads, self.dim
        q, k, v = (np.zeros((items, n, 2, dim)) for n in (heads, heads_kv, heads_kv))
        v[:, :, 0, 0] = v[:, :, 1, 1] = 1.0
        chosen = slice(None) if target is None else target
        index = (chosen, slice(None)) if of == "items" else (slice(None), chosen)
        given = None
        if source == "v":
            v[:] = 1.0
            if target is not None:
                v[index] = 0.0
        elif source == "q":
            k[..., 1, self.axis] = self.x
            if target is not None:
                q[index + (slice(None), self.axis)] = 1.0
        elif source == "k":
            q[..., self.axis] = 1.0
            if target is not None:
                k[index + (1, self.axis)] = self.x
        elif source == "mask":
            given = np.full((items, heads if of == "heads" else 1, 2, 2), not self.hides)
            if target is not None:
                given[index + (slice(None), 1)] = self.hides
        else:
            given = np.zeros((items, heads if of == "heads" else 1, 2, 2))
            if target is not None:
                given[index + (slice(None), 1)] = -4.0
        out = self.probe(q, k, v, given)[:, :, -1]
        if source == "v":
            if target is None or self.whole is None:
                self.whole = out[..., 0]
            return np.asarray(out[..., 0] / self.whole)
        return log_ratio(out[..., :2])[..., 1]


def gqa_finding(
    k_heads: Array | None, v_heads: Array | None, heads: int, heads_kv: int, promised: str | None
) -> Finding:
    h = np.arange(heads)
    named = {"blocked": h // (heads // heads_kv), "interleaved": h % heads_kv}
    for name, order in named.items():
        if k_heads is not None and v_heads is not None and (k_heads == order).all() and (v_heads == order).all():
            return compare("gqa", name, promised)

    def words(read: Array | None) -> str:
        if read is None:
            return "several heads at once"
        return next(
            (name for name, order in named.items() if (read == order).all()), "of heads " + ", ".join(map(str, read))
        )

    return compare("gqa", f"K {words(k_heads)}, V {words(v_heads)}", promised)


def own_finding(name: str, read: dict[str, Array | None], promised: str | None) -> Finding:
    """ "own", or what is read of whom."""
    what = {"heads": "head", "batch": "item"}[name]
    wrong = []
    for source, of in read.items():
        if of is None:
            wrong.append(f"{_noun(source)} of several {what}s at once or of none")
        elif not (of == np.arange(len(of))).all():
            wrong.append(
                f"{_noun(source)} of {what} {of[0]} for all"
                if (of == of[0]).all()
                else f"{_noun(source)} of {what}s {', '.join(map(str, of))} for 0 to {len(of) - 1}"
            )
    return compare(name, "; ".join(wrong) or "own", promised)


def _noun(source: str) -> str:
    return {"k": "K", "v": "V"}.get(source, source)
