"""Does what an alarm advises help? The words are read, what they say is done, and the run is counted against the
healthy one."""

from __future__ import annotations

import dataclasses
import re
import warnings
from typing import Any

import torch
from conditions import Run
from judge import replay
from models import attentions
from record import train

# Runs of the trial that are mended, by cause; chosen before any was judged.
CHOSEN = {
    "unscaled": ("unscaled", 128),
    "initialisation": ("init x12", 64),
    "gains of QK-norm": ("QK-norm, gains x12", 64),
    "blow-up in mid-run": ("blow-up x12 at 40", 64),
    "rate of W_q and W_k": ("rate of q, k x50", 64),
}
NUMBER = r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)"


def layer_number(label: str) -> int:
    return int(re.search(r"layers\.(\d+)", label)[1])


def mended(found: dict[str, Any]) -> dict[str, Any]:
    """A mended start is counted from the start, a mended blow-up from when it is mended; a lower rate from a new
    start."""
    run = Run(**{**found["run"], "layers": tuple(found["run"]["layers"])})
    events = [event for event in replay(found, 5) if event.what == "trace_j"]
    if not events:
        return {"name": found["name"], "advice": "no alarm", "times": None}
    words = {layer_number(event.layer): event.words for event in events[::-1]}
    cause, first = events[0].cause, events[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if cause == "growth" and run.at != "start":
            tau = min(float(re.search(rf"tau={NUMBER}", text)[1]) for text in words.values())
            advice = f"qk_clip(tau={tau:g}) from step {first.step + 1} on"

            def mend(model: torch.nn.Module, optimizer: Any, watch: Any, step: int) -> None:
                watch.qk_clip(tau=tau)

            result = train(run, found["healthy"], mend=mend, mend_at=first.step + 1)
        elif cause == "growth":
            advice = "from the start, with a tenth of the rate of W_q and W_k"
            result = train(dataclasses.replace(run, qk_rate=run.qk_rate / 10), found["healthy"])
        else:
            advice = ""

            def prepare(model: torch.nn.Module) -> None:
                nonlocal advice
                for number, text in words.items():
                    attention = attentions(model)[number]
                    if cause == "scale":
                        attention.scaling = float(re.search(rf"1/√d_k = {NUMBER}", text)[1])
                        advice = f"scale {attention.scaling:g}"
                        continue
                    of_weights = cause == "initialisation"
                    prefix = "W_" if of_weights else ""
                    q, k = (attention.q_proj, attention.k_proj) if of_weights else (attention.q_norm, attention.k_norm)
                    by = [re.search(rf"{prefix}{name} by {NUMBER}", text) for name in "qk"]
                    with torch.no_grad():
                        for part, match in zip((q, k), by):
                            part.weight /= float(match[1]) if match else 1.0
                    advice = "divide " + " and ".join(match[0] for match in by if match)

            result = train(run, found["healthy"], prepare=prepare)
    times = None if result["learned"] is None else round((result["learned"] - result["begin"]) / found["healthy"], 2)
    return {"name": found["name"], "cause": cause, "advice": advice, "times": times}
