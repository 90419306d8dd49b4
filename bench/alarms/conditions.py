"""What is done to each run, and what is expected of it by construction, before anything is measured.

control     nothing is wrong with its attention: an alarm is a false one
other       it cannot learn, for a reason that is not attention's: it must not be called frozen
saturation  the scores were made too large, or will become so: where such a run stalls, it stalls by saturation
"""

from __future__ import annotations

import dataclasses
from typing import Iterator

COMBINATIONS = [(architecture, task) for architecture in ("own", "llama") for task in ("copy", "language")]
RATE = {"copy": 2e-3, "language": 3e-3}


@dataclasses.dataclass(frozen=True)
class Run:
    condition: str
    kind: str
    architecture: str
    task: str
    seed: int
    dim: int = 64
    scale: str = "sqrt_dk"
    factor: float = 1.0  #: on W_q and W_k each (the gains under QK-norm)
    layers: tuple[int, ...] = (0, 1)  #: where the factor applies
    at: str = "start"  #: when: "start", a step, or "learned" (half as long again as learning takes)
    rate: float = 1.0  #: of the usual one
    qk_rate: float = 1.0  #: of the rate, for W_q and W_k only
    qk_norm: bool = False
    bf16: bool = False
    frozen: bool = False  #: W_q and W_k do not learn
    causal: bool = True
    random_labels: bool = False
    resumed: bool = False  #: the watch begins with a model that has learned
    initialisation: float | None = None  #: of all weights, as transformers does by default
    long: float = 2.0  #: a run that learns is looked at for so many times T, at least

    @property
    def name(self) -> str:
        return f"{self.condition} {self.architecture} {self.task} d{self.dim} s{self.seed}".replace(" ", "_").replace(
            "/", "per"
        )


def some(
    condition: str, kind: str, seeds: list[int], combinations: list[tuple[str, str]] = COMBINATIONS, **options
) -> Iterator[Run]:
    for seed in seeds:
        for architecture, task in combinations:
            yield Run(condition, kind, architecture, task, seed, **options)


def tuning() -> list[Run]:
    """What a threshold may be chosen on. No seed and no factor of these is among the trial's."""
    first, second = COMBINATIONS[::3], COMBINATIONS[1:3]  # each architecture and each task once
    runs = [*some("healthy", "control", [1])]
    runs += some("unscaled", "saturation", [12], COMBINATIONS[:3], dim=96, scale="none")
    runs += some("unscaled", "saturation", [13], COMBINATIONS[:1], dim=160, scale="none")
    runs += some("blow-up x10 at 60", "saturation", [2, 3], factor=10.0, at="60")
    runs += some("blow-up x20 when learned", "saturation", [4], second, factor=20.0, at="learned")
    runs += some("init x7", "saturation", [5], factor=7.0)
    runs += some("init x4", "saturation", [6], first, factor=4.0)
    runs += some("rate x8", "saturation", [7], rate=8.0)
    runs += some("rate x25", "saturation", [8], rate=25.0)
    runs += some("rate of q, k x30", "saturation", [9], qk_rate=30.0)
    runs += some("trained long", "control", [10], COMBINATIONS[:1], long=4.0)
    runs += some("layer 0 x25", "saturation", [11], second, factor=25.0, layers=(0,))
    return runs


def trial(seeds: int = 200) -> list[Run]:
    """What the rule is judged on, once; `seeds`: beyond these. 100 was the first trial's."""
    first, second = COMBINATIONS[::3], COMBINATIONS[1:3]
    runs = [*some("healthy", "control", [seeds + 1, seeds + 2])]
    runs += some("healthy", "control", [seeds + 3], dim=32)
    runs += some("healthy", "control", [seeds + 5], dim=128)
    runs += some("unscaled", "saturation", [seeds + 11], scale="none")
    runs += some("unscaled", "saturation", [seeds + 12], first, dim=32, scale="none")
    runs += some("unscaled", "saturation", [seeds + 13], dim=128, scale="none")
    for seed, factor, where in (
        (20, 2.0, first),
        (21, 3.0, second),
        (22, 5.0, COMBINATIONS),
        (23, 8.0, COMBINATIONS),
        (24, 12.0, COMBINATIONS),
        (25, 40.0, first),
        (26, 100.0, second),
    ):
        runs += some(f"init x{factor:g}", "saturation", [seeds + seed], where, factor=factor)
    runs += some("layer 0 x40", "saturation", [seeds + 31], factor=40.0, layers=(0,))
    runs += some("layer 1 x40", "saturation", [seeds + 32], factor=40.0, layers=(1,))
    runs += some("blow-up x12 at 40", "saturation", [seeds + 33], factor=12.0, at="40")
    runs += some("blow-up x12 at 40", "saturation", [seeds + 34], first, factor=12.0, at="40")
    runs += some("blow-up x12 when learned", "saturation", [seeds + 35], factor=12.0, at="learned")
    runs += some("rate x15", "saturation", [seeds + 36], second, rate=15.0)
    runs += some("rate x50", "saturation", [seeds + 37], rate=50.0)
    runs += some("rate of q, k x50", "saturation", [seeds + 38], qk_rate=50.0)
    runs += some("QK-norm, gains x12", "saturation", [seeds + 39], second, qk_norm=True, factor=12.0)
    runs += some("rate /30", "other", [seeds + 40], first, rate=1 / 30)
    runs += some("random labels", "other", [seeds + 41], second, random_labels=True)
    runs += some("mask leaks", "control", [seeds + 42], first, causal=False)
    runs += some("bf16", "control", [seeds + 43], second, bf16=True)
    runs += some("QK-norm", "control", [seeds + 44], qk_norm=True)
    runs += some("q, k do not learn", "control", [seeds + 45], first, frozen=True)
    runs += some("1/d_k", "control", [seeds + 46], second, scale="dk")
    runs += some("initialised N(0, 0.02)", "control", [seeds + 47], COMBINATIONS[2:], initialisation=0.02)
    runs += some("trained long", "control", [seeds + 48], second, long=4.0)
    runs += some("resumed", "control", [seeds + 49], resumed=True)
    runs += some("resumed, rate x3", "control", [seeds + 51], first, resumed=True, rate=3.0)
    return runs
