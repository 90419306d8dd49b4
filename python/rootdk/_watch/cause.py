"""Why a layer is frozen and what would mend it, in words, from what was measured.

σ of c·q·k within a row is √d_k·c · σ_q · σ_k · √alignment, each factor 1 where all is as it should be: those far above
1 are the cause. A layer that was open before has grown; then what it was tells more than what it is.
"""

from __future__ import annotations

import math
from typing import Any, Mapping

import numpy as np

from .._stats import Stats
from .frozen import Frozen, Look, median

CAUSES = ("scale", "initialisation", "gain", "alignment", "bias", "growth", "unknown")

_NORMS = (
    ("q_norm", "k_norm"),
    ("q_layernorm", "k_layernorm"),
    ("query_norm", "key_norm"),
    ("q_ln", "k_ln"),
    ("norm_q", "norm_k"),
    ("query_layernorm", "key_layernorm"),
    ("q_layer_norm", "k_layer_norm"),
)


def facts_of(module: Any) -> dict[str, Any]:
    """What a layer's module says of itself by the names of its parts: {"qk_norm": whether it normalises queries and
    keys}."""

    def has(name: str) -> bool:
        part = getattr(module, name, None)
        return part is True or hasattr(part, "forward")

    return {"qk_norm": any(has(q) and has(k) for q, k in _NORMS) or has("qk_norm") or has("qk_layernorm")}


def explain(
    frozen: Frozen, values: Mapping[str, Any], stats: Stats | None, facts: Mapping[str, Any]
) -> tuple[str, str]:
    """(cause, words)."""
    cause, why, fix = _grown(frozen, facts) if frozen.before is not None else _from_start(values, facts)
    return cause, " ".join(part for part in (_symptom(frozen, stats), why, fix) if part)


def number(x: float) -> str:
    """Three digits, and whole numbers as they are."""
    return f"{x:.0f}" if 100 <= abs(x) < 1e6 else f"{x:.3g}"


def _symptom(frozen: Frozen, stats: Stats | None) -> str:
    when = "from its first look on" if frozen.before is None else f"since step {frozen.since.step}"
    text = (
        f"Frozen {when}: rows of every head pass {number(100 * frozen.now.trace_j)} % of their gradient or less (tr J)"
    )
    if stats is not None and "share_trace_j_under_1pct" in stats.names:
        share = np.asarray(stats["share_trace_j_under_1pct"], dtype=np.float64)
        if np.isfinite(share).any():
            text += f", {100 * float(np.nanmean(share)):.0f} % of the rows next to nothing"
    text += f"; scores spread {number(frozen.now.sigma_ratio)} times as far as softmax can follow (σ/σ_c) or more"
    if math.isfinite(frozen.loss) and math.isfinite(frozen.loss_before):
        text += f"; the loss was {number(frozen.loss_before)} {'at first' if frozen.before is None else 'before'}"
        text += f" and is {number(frozen.loss)}"
    return text + "."


def _from_start(values: Mapping[str, Any], facts: Mapping[str, Any]) -> tuple[str, str, str]:
    known = np.isfinite(np.asarray(values["trace_j"], dtype=np.float64))

    def middle(name: str) -> float:
        return median(values[name], known) if name in values else math.nan

    raw, score, scale = middle("raw_sigma"), middle("score_sigma"), middle("scale")
    sigma_q, sigma_k, alignment = middle("sigma_q"), middle("sigma_k"), middle("alignment")
    if score > 2 * raw:
        return (
            "bias",
            f"Why: a bias or transform of the scores spreads them by {number(score)}; c·q·k alone by {number(raw)}.",
            "Make the bias smaller; the scale and the weights are not the matter.",
        )
    dim = float(facts.get("dim", math.nan))
    if math.isnan(dim) and alignment > 0 and scale > 0:  # of which d_k is a part
        dim = float(round((raw / scale / (sigma_q * sigma_k)) ** 2 / alignment))
    parts = [
        ("scale", scale * math.sqrt(dim)),
        ("q", sigma_q),
        ("k", sigma_k),
        ("alignment", math.sqrt(max(alignment, 0.0))),
    ]
    parts = sorted(((name, by) for name, by in parts if by > 1.25), key=lambda part: -part[1])
    parts = [part for part in parts if math.log(part[1]) >= 0.5 * math.log(parts[0][1])]
    if not parts:
        return "unknown", "", "Make the scores smaller: neither the scale nor the size of queries and keys stands out."
    why, fixes = [], []
    sizes = [f"{name} {number(by)} times" for name, by in parts if name in "qk"]
    for name, by in parts:
        if name == "scale":
            is_one = "q·k is not scaled" if abs(scale - 1) < 0.01 else f"the scale is {number(scale)}"
            why.append(f"{is_one}, {number(by)} times 1/√d_k at d_k = {dim:.0f}")
            fixes.append(f"scale by 1/√d_k = {number(dim**-0.5)}")
        elif name == "alignment":
            why.append(f"q and k are aligned: q·k varies {number(by * by)} times as much as in unrelated directions")
            fixes.append(f"initialise W_q and W_k apart from each other, or divide the scale by {number(by)}")
    if sizes:
        why.append(f"{' and '.join(sizes)} as large as unit variance")
        weights = " and ".join(f"W_{name} by {number(size)}" for name, size in parts if name in "qk")
        fixes.append(
            f"divide the gains of the norms of q and k so that q and k have unit variance ({weights.replace('W_', '')})"
            if facts.get("qk_norm")
            else f"begin smaller: divide {weights}, or put a QK-norm before the product"
        )
    cause = {"scale": "scale", "alignment": "alignment"}.get(
        parts[0][0], "gain" if facts.get("qk_norm") else "initialisation"
    )
    fix = "; ".join(fixes)
    return cause, f"Why: {', and '.join(why)}.", f"{fix[0].upper()}{fix[1:]}."


def _grown(frozen: Frozen, facts: Mapping[str, Any]) -> tuple[str, str, str]:
    assert frozen.before is not None
    before, since, now = frozen.before, frozen.since, frozen.now
    grown = [
        f"{name} from {number(a)} to {number(b)}"
        for name, a, b in (("q", before.sigma_q, now.sigma_q), ("k", before.sigma_k, now.sigma_k))
        if b > 1.25 * a
    ]
    why = f"Why: it was open at step {before.step} (tr J {number(before.trace_j)}) and has grown shut since"
    why += f": {', '.join(grown)} in size." if grown else "."
    where = "the gains of the norms of q and k" if facts.get("qk_norm") else "W_q and W_k"
    fix = f"Go back to before step {since.step} with a lower learning rate (or a longer warm-up) for {where}"
    tau, what = _tau(before)
    if tau > 0:
        fix += f", or mend it while it runs: w.qk_clip(tau={number(tau)}) after every optimizer step, {what}"
    return "growth", why, fix + ("." if facts.get("qk_norm") else "; a QK-norm keeps it from coming back.")


def _tau(open_look: Look) -> tuple[float, str]:
    """The largest score of a layer that was open, but never less than a head needs: a key whose score is 2 ln n above
    those of the n others takes all but 1/n of their row. In a model that has just begun no score is that large yet."""
    least = 2 * math.log(open_look.keys) if open_look.keys > 1 else 0.0
    if least > open_look.raw_max:
        what = f"2 ln n, so that a head can still single out one of the {number(open_look.keys)} keys that a row sees"
        return least, what
    return open_look.raw_max, "the largest score it had when open"
