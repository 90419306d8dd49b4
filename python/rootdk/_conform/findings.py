"""Asks an attention function one thing after the other, and compares each answer with what was promised.

Each answer becomes part of a law (_law.py). What the law says is then held against the function on random batches: what
one of the answers already explains is not told twice, and what none of them explains shows there.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable

import numpy as np

from .diagnosis import diagnose
from .law import Law
from .precision import kept_bits, precision
from .probe import Array, Probe, Refused
from .promise import Finding, Promise, compare
from .random_batches import Taken, draw, misses
from .reads import ITEMS, Reader, gqa_finding, masks, own_finding
from .score_law import (
    Position,
    components,
    dims_finding,
    large_scores,
    position,
    scale,
    scale_finding,
    scale_tolerance,
    softcap,
)
from .visibility import Sight, masked_rows, sight, sink, window_finding

__all__ = ["Finding", "Promise", "findings"]

RULES: dict[str, Callable[[int], float]] = {
    "1/√d_k": lambda d: d**-0.5,
    "1": lambda d: 1.0,
    "1/d_k": lambda d: 1.0 / d,
    "d_k^(-1/4)": lambda d: d**-0.25,
}


def findings(
    probe: Probe, promise: Promise, dims: list[int], heads_kv: int | None, longest: int, seed: int
) -> list[Finding]:
    rng = np.random.default_rng(seed)
    try:
        with np.errstate(divide="ignore", invalid="ignore"):  # ln 0 is an answer, too
            steady = _deterministic(probe, dims[0], promise.deterministic, rng)
            if steady.found != "yes":
                return [steady, _not_looked_at("it would be found another way each time: eval(), dropout 0")]
            if words := _no_attention(probe, dims[0], rng):
                return [
                    steady,
                    compare("values", *words[:1], promise.values, words[1]),
                    _not_looked_at("the outputs say nothing"),
                ]
            return [steady, *_Questions(probe, promise, dims, heads_kv, longest, rng).ask()]
    except Refused as refused:
        return [Finding("call", "refused", "an output", False, str(refused))]


def _not_looked_at(why: str) -> Finding:
    return Finding("the rest", "not looked at", "", None, why)


def _deterministic(probe: Probe, dim: int, promised: str | None, rng: np.random.Generator) -> Finding:
    """The same call several times. Sums taken in another order each time differ by rounding, and no more is allowed."""
    calls = 4
    q, k, v = (rng.standard_normal((1, probe.heads, 16, dim)) for _ in range(3))
    outs = np.stack([probe(q, k, v) for _ in range(calls)])
    reach = np.abs(q).max() * np.abs(k).max() * dim
    room = (4 * probe.unit + 16 * min(probe.unit, 2.0**-24) * (2 + reach)) * np.abs(v).max()
    apart = float(np.max(np.where(np.isnan(outs) & np.isnan(outs[:1]), 0.0, np.abs(outs - outs[:1]))))
    if apart <= room:
        return compare("deterministic", "yes", promised)
    zero = np.zeros((1, probe.heads, 64, dim))
    p = np.stack([probe.probabilities(zero, zero) for _ in range(16)])
    ever = (p > 0).any(0)
    rate = float((p[:, ever] == 0).mean()) if ever.any() else 0.0
    detail = f"two equal calls differ by {apart:.2g}"
    if 0.001 < rate < 0.999:
        return compare("deterministic", f"no: dropout of about {rate:.2f} is on", promised, detail)
    return compare("deterministic", "no", promised, detail)


def _no_attention(probe: Probe, dim: int, rng: np.random.Generator) -> tuple[str, str] | None:
    """What leaves nothing to be read off the probabilities, in words."""
    n = min(dim, 7)
    q, k = (rng.standard_normal((1, probe.heads, n, dim)) for _ in range(2))
    p = probe.probabilities(q, k)
    if not np.isfinite(p).all():
        return "not finite", f"{int((~np.isfinite(p)).any(-1).sum())} of {p.shape[0] * n} rows of a small random batch"
    if not p.any():
        return "all 0", ""
    room = 2 * n * probe.unit  # n probabilities, each rounded
    if (np.abs(p.sum(-2) - 1) <= room).all() and not (np.abs(p.sum(-1) - 1) <= 0.01).all():
        return "softmax goes over the queries", "what all queries give to a key sums to 1"
    return None


class _Questions:
    """One function's answers, in the order in which one needs the other."""

    def __init__(
        self,
        probe: Probe,
        promise: Promise,
        dims: list[int],
        heads_kv: int | None,
        longest: int,
        rng: np.random.Generator,
    ):
        self.probe, self.promise, self.dims, self.heads_kv, self.longest, self.rng = (
            probe,
            promise,
            dims,
            heads_kv,
            longest,
            rng,
        )
        self.found: list[Finding] = []
        self.unknown: list[str] = []  # properties that leave no law to compare with
        self.uncertain: list[dict[str, Any]] = []  # fields of the law at the edge of what was measured
        self.law: dict[str, Any] = {}
        self.items = ITEMS  # of a batch
        self.normalised = False  # the size of q does not count

    def ask(self) -> list[Finding]:
        probe, promise, dim = self.probe, self.promise, self.dims[0]
        bits, rounded_words = kept_bits(probe, dim, self.rng)
        probe.limit(bits)
        where, alibi = position(probe, dim, promise.alibi)
        if not where.known:
            self.unknown.append("alibi")
        elif not where.none:
            self.law |= {"alibi": where.slopes, "alibi_by_key": where.by_key, "alibi_offset": where.alignment}
            if where.error:
                self.uncertain.append({"alibi": where.slopes + where.error})
        scales, dims_answer = self._scales(where)
        c = scales.get(dim)
        one = None if c is None or not c[0] or not math.isfinite(c[0]) or self.normalised else float(c[0])
        seen = sight(probe, dim, self.longest, where, c)
        if seen.causal == "dropout":
            return [
                compare("values", "dropout is on", promise.values, seen.detail),
                _not_looked_at("it is another in every row"),
            ]
        self._sight(seen)
        cap, cap_error, cap_answer = None, 0.0, None
        if one is not None:
            cap, cap_error, cap_answer = softcap(probe, dim, one, where, promise.softcap)
            self.law["cap"] = cap
            if cap is not None and not math.isfinite(cap):
                self.unknown.append("softcap")
            elif cap_error and cap is not None:
                self.uncertain += [{"cap": cap * (1 + cap_error)}, {"cap": cap * (1 - cap_error)}]
        if cap is not None and cap > 0 and not cap_error:
            scales = {d: scale(probe, d, where, cap)[0] for d in scales}
        # Of a cap that is not known exactly, two slopes at scores up to 1 leave the fourth power.
        self._scale(scales, cap**-4.0 if cap is not None and cap_error else 0.0)
        self.found += [dims_answer, *([cap_answer] if cap_answer else [])]
        sinks, sink_answer = sink(probe, dim, where, promise.sink)
        self.law["sink"] = sinks
        if sinks is not None and not np.isfinite(sinks).all():
            self.unknown.append("sink")
        elif sinks is not None and not sink_answer.ok:
            self.uncertain += [{"sink": sinks + 0.01}, {"sink": sinks - 0.01}]
        self.found += [sink_answer, alibi]
        stable = True
        if one is not None:
            answer = large_scores(probe, dim, one, where, sinks is not None, promise.large_scores)
            self.found.append(answer)
            stable = answer.found == "right"
        polarity = self._masks(dim, one)
        per_head = self._reads(dim, one, polarity)
        self.found.append(masked_rows(probe, dim, seen, polarity, promise.masked_rows))
        self._precision(rounded_words, scales, seen)
        self.found.append(self._values(seen, stable, polarity, per_head))
        return self.found

    def _scales(self, where: Position) -> tuple[dict[int, Array], Finding]:
        """Of every dim that is taken, per head; and the components that count."""
        probe = self.probe
        weights: dict[int, Array] = {}
        scales: dict[int, Array] = {}
        for d in self.dims:
            try:
                weights[d] = components(probe, d, where)
                probe.axis[d] = int(np.abs(weights[d]).argmax())
                scales[d], normalised = scale(probe, d, where)
                self.normalised = self.normalised or normalised
            except Refused as refused:
                self.found.append(Finding("dim", f"{d} is refused", "", None, str(refused)))
        ignored = dims_finding(probe, weights, self.promise.dims)
        if ignored.found == "not all alike":
            self.unknown.append("dims")
        self.law["counts"] = {d: np.abs(w) > 0.5 for d, w in weights.items()}
        return scales, ignored

    def _scale(self, scales: dict[int, Array], slack: float) -> None:
        room = scale_tolerance(self.probe) + slack
        varied = next((c for c in scales.values() if np.ptp(c) > room * max(abs(float(np.median(c))), 1e-30)), None)
        medians = {d: float(np.median(c)) for d, c in scales.items()}
        answer = scale_finding(self.probe, medians, self.promise.scale, varied, self.normalised, slack)
        if self.normalised or not scales or not all(np.isfinite(c).all() for c in scales.values()):
            self.unknown.append("scale")
        self.law["scale"] = exact = self._exact_scale(answer, scales)
        if exact is scales:
            self.uncertain.append({"scale": {d: c * (1 + room) for d, c in scales.items()}})
        self.found.append(answer)

    def _exact_scale(self, answer: Finding, scales: dict[int, Array]) -> dict[int, Array]:
        """What was promised, if it is that; a rule, if it follows one; otherwise what was measured."""
        if answer.ok and not isinstance(self.promise.scale, str) and self.promise.scale is not None:
            return {d: np.full(self.probe.heads, float(self.promise.scale)) for d in scales}
        if answer.found in RULES:
            return {d: np.full(self.probe.heads, RULES[answer.found](d)) for d in scales}
        return scales

    def _sight(self, seen: Sight) -> None:
        if not seen.known:
            self.unknown.append("causal")
        self.law |= {
            "causal": seen.causal not in ("none",),
            "alignment": seen.alignment or "top_left",
            "left": seen.left,
            "right": seen.right,
        }
        causal = compare("causal", seen.causal, self.promise.causal, seen.detail)
        if seen.causal == "square only" and causal.promised != "none":
            causal = dataclasses.replace(causal, ok=None)  # where lengths are equal all alignments are
        self.found += [causal, window_finding(seen, self.promise.window)]

    def _masks(self, dim: int, c: float | None) -> str:
        """What a boolean mask means; "" if none is taken."""
        if self.probe.mask_name is None:
            self.law["bias"] = "refused"
            return ""
        mask, bias = masks(self.probe, dim, c, self.promise)
        self.found += [mask, bias]
        self.law |= {"mask_shows": mask.found != "true_hides", "bias": bias.found}
        return mask.found

    def _reads(self, dim: int, c: float | None, polarity: str) -> bool:
        """Which head and item reads whose; says whether masks may differ between heads."""
        probe, promise = self.probe, self.promise
        heads = probe.heads
        self.law |= {
            "k_heads": {heads: np.arange(heads)},
            "v_heads": {heads: np.arange(heads)},
            "items": {},
            "mask_heads": {},
        }
        if c is None and not self.normalised:
            return False
        scales = np.ones(1) if self.normalised else np.abs(self.law["scale"][dim])
        reader = Reader(probe, dim, float(scales.min()), polarity == "true_hides")
        sources = [
            *("mask" for _ in range(polarity.startswith("true_"))),
            *("bias" for _ in range(self.law["bias"] in ("after_scale", "before_scale"))),
        ]
        own: dict[str, Array | None] = {}
        per_head = True
        for source in ("q", "k", "v", *sources):
            try:
                own[source] = reader.read(source, "heads", heads)
            except Refused:  # a mask for each head is not for every function
                per_head = False
        items: dict[str, Array | None] = {}
        try:
            for source in ("q", "k", "v", *sources):
                items[source] = reader.read(source, "items", heads)
            answer = own_finding("batch", items, promise.batch)
        except Refused as refused:
            answer = Finding("batch", "refused", promise.batch or "", None, f"{ITEMS} items: {refused}")
            self.items = 1
        self.found += [own_finding("heads", own, promise.heads), answer]
        for name, maps in (("heads", own), ("batch", items)):
            self.unknown += [name for read in maps.values() if read is None][:1]
        if (queries := own["q"]) is not None and not np.array_equal(queries, np.arange(heads)):
            self.unknown.append("heads")
        self.law["k_heads"][heads], self.law["v_heads"][heads] = own["k"], own["v"]
        self.law |= {"items": items, "mask_heads": {source: own[source] for source in sources if source in own}}
        if self.heads_kv is not None:
            try:
                k_heads, v_heads = (reader.read(source, "heads", self.heads_kv) for source in "kv")
                self.found.append(gqa_finding(k_heads, v_heads, heads, self.heads_kv, promise.gqa))
                if k_heads is not None and v_heads is not None:
                    self.law["k_heads"][self.heads_kv], self.law["v_heads"][self.heads_kv] = k_heads, v_heads
            except Refused as refused:
                self.found.append(Finding("gqa", "refused", promise.gqa or "", None, str(refused)))
        return per_head

    def _precision(self, rounded_words: str, scales: dict[int, Array], seen: Sight) -> None:
        if rounded_words:
            self.found.append(
                compare("precision", rounded_words, self.promise.precision, f"though {self.probe.dtype} was given")
            )
            return
        widest = max(scales, default=0)
        c = float(scales[widest][0]) if scales else 0.0
        if self.normalised or not c or not math.isfinite(c) or not self.law["counts"][widest][[0, 1, -1]].all():
            return
        # One query sees all keys only from the last place, without a window, and no sink takes a part.
        rows = seen.known and seen.left is None and seen.causal in ("none", "bottom_right") and self.law["sink"] is None
        answer, bits = precision(self.probe, widest, c, rows and self.law.get("alibi") is None, self.promise.precision)
        self.found.append(answer)
        if bits is None:
            self.unknown.append("precision")
        else:
            self.probe.limit(bits)

    def _values(self, seen: Sight, stable: bool, polarity: str, per_head: bool) -> Finding:
        probe, promise = self.probe, self.promise
        if self.unknown:
            why = ", ".join(dict.fromkeys(self.unknown))
            return Finding(
                "values",
                "not compared",
                promise.values or "",
                None,
                f"what is found of {why} leaves no law to compare with",
            )
        law = Law(**self.law)
        edges = [dataclasses.replace(law, **fields) for fields in self.uncertain]
        taken = Taken(
            list(law.scale),
            sorted(law.k_heads, reverse=True),
            self.items,
            seen.alignment is not None,
            polarity.startswith("true_"),
            law.bias in ("after_scale", "before_scale", "ignored"),
            per_head,
            stable,
            self.longest,
        )
        missed, count, refused = misses(probe, law, edges, draw(probe, self.rng, taken))
        detail = f"{count} random batches" + (f"; refused: {refused[0]}" if refused else "")
        if not missed:
            return compare("values", "right", promise.values, detail)
        words, where = diagnose(probe, law, missed, promise, count)
        return compare("values", words, promise.values, where)
