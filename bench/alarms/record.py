"""Trains one run under rootdk.watch and writes what every step showed, so that rules can be judged without training
again."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import multiprocessing
import pathlib
import statistics
import time
import warnings
from typing import Any, Callable

import rootdk
import torch
from conditions import RATE, Run
from models import attentions, build, loss_of, projections
from tasks import TASKS

COLUMNS = (
    "trace_j",
    "sigma_ratio",
    "score_sigma",
    "raw_sigma",
    "sigma_q",
    "sigma_k",
    "scale",
    "alignment",
    "keys",
    "key_mean_norm",
    "raw_max",
    "entropy",
    "mean_p_max",
    "rows_not_finite",
)
EVERY = 5  # steps between looks
LONGEST = 700  # steps, of a healthy run
AFTER = 40  # steps that a run is looked at after it has learned
SETTLE = 20  # steps after a blow-up that say nothing yet: what it knew before lingers

Mend = Callable[[torch.nn.Module, "torch.optim.Optimizer", Any, int], None]


def optimizer_of(model: torch.nn.Module, run: Run) -> torch.optim.Optimizer:
    rate = RATE[run.task] * run.rate
    fast = [p for a in attentions(model) for p in (a.q_proj.weight, a.k_proj.weight)]
    slow = [p for p in model.parameters() if all(p is not f for f in fast)]
    return torch.optim.Adam([{"params": fast, "lr": rate * run.qk_rate}, {"params": slow, "lr": rate}], fused=True)


def set_up(run: Run, vocabulary: int) -> torch.nn.Module:
    model = build(run.architecture, vocabulary, run.dim, run.qk_norm)
    with torch.no_grad():
        if run.initialisation is not None:
            for p in model.parameters():
                if p.ndim == 2:
                    torch.nn.init.normal_(p, std=run.initialisation)
        if run.at == "start":
            for p in projections(model, run.layers):
                p *= run.factor
    for a in attentions(model):
        a.scaling = {"sqrt_dk": run.dim**-0.5, "none": 1.0, "dk": 1 / run.dim}[run.scale]
        a.causal = a.is_causal = run.causal
        for p in (a.q_proj.weight, a.k_proj.weight):
            p.requires_grad_(not run.frozen)
    return model


def learned_at(losses: list[float], target: float, begin: int = 0) -> int | None:
    """The first step from which back the last five losses are below the target in the mean."""
    for i in range(begin + 5, len(losses) + 1):
        if sum(losses[i - 5 : i]) / 5 < target:
            return i
    return None


def train(
    run: Run,
    healthy: float | None,
    *,
    prepare: Callable[[torch.nn.Module], None] | None = None,
    mend: Mend | None = None,
    mend_at: int = 0,
) -> dict[str, Any]:
    """`healthy` is T, the steps a healthy run of this kind takes; a run may take three times as long (None: T is being
    measured). `prepare` changes the model before the first step; `mend` is called before every step from `mend_at`
    on."""
    torch.manual_seed(run.seed)
    task = TASKS[run.task](run.seed)
    model = set_up(run, task.vocabulary)
    if prepare is not None:
        prepare(model)
    optimizer = optimizer_of(model, run)
    limit = LONGEST if healthy is None else round(3 * healthy)
    shuffled = torch.Generator().manual_seed(run.seed)
    started = time.process_time()

    def step() -> float:
        tokens, labels = task.batch()
        if run.random_labels:
            drawn = torch.randint(0, task.vocabulary, labels.shape, generator=shuffled)
            labels = torch.where(labels < 0, labels, drawn)
        with torch.autocast("cpu", torch.bfloat16) if run.bf16 else contextlib.nullcontext():
            loss = loss_of(model, tokens, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    if run.resumed:
        before: list[float] = []
        while len(before) < limit and (learned_at(before[-5:], task.target) is None or len(before) < (healthy or 0)):
            before.append(step())
        optimizer = optimizer_of(model, run)
    blow_up = None if run.at == "start" else int(run.at) if run.at.isdigit() else round(1.5 * (healthy or 0))
    begin = mend_at if mend is not None else blow_up or 0
    least = round(run.long * (healthy or 0)) if run.kind == "control" else 0
    losses: list[float] = []
    earliest = begin + (SETTLE if blow_up is not None and mend is None else 5)
    learned = None
    with rootdk.watch(model, on=(), every=EVERY, keep=10_000, backward=False) as watch:
        while len(losses) < begin + limit or len(losses) < least:
            if len(losses) == blow_up:
                with torch.no_grad():
                    for p in projections(model, run.layers):
                        p *= run.factor
            if mend is not None and len(losses) >= mend_at:
                mend(model, optimizer, watch, len(losses))
            losses.append(step())
            if learned is None and len(losses) >= earliest and sum(losses[-5:]) / 5 < task.target:
                learned = len(losses)
            if learned is not None and len(losses) >= max(learned + AFTER, least):
                break
    layers: dict[str, dict[str, list[list[float]]]] = {}
    for row in watch.to_dicts():
        for name in COLUMNS:
            rows = layers.setdefault(row["layer"], {}).setdefault(name, [])
            if row["head"] == 0:
                rows.append([])
            rows[-1].append(float(f"{row[name]:.4g}"))
    return {
        "run": vars(run) | {"layers": list(run.layers)},
        "name": run.name,
        "target": task.target,
        "healthy": healthy,
        "every": EVERY,
        "begin": begin,
        "learned": learned,
        "limit": limit,
        "losses": [float(f"{x:.4g}") for x in losses],
        "seconds": round(time.process_time() - started, 2),
        "dim": run.dim,
        "classes": task.vocabulary,
        "trace": layers,
    }


def one(run: Run, healthy: float | None, folder: pathlib.Path) -> dict[str, Any]:
    """Trained, unless it is there already."""
    torch.set_num_threads(1)
    path = folder / f"{run.name}.json"
    if not path.exists():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = train(run, healthy)
        path.with_suffix(".part").write_text(json.dumps(found))
        path.with_suffix(".part").replace(path)
        print(f"{run.name}: {found['seconds']} s", flush=True)
    return json.loads(path.read_text())


def record(runs: list[Run], folder: pathlib.Path, jobs: int) -> list[dict[str, Any]]:
    """Healthy runs come first: they say what T is."""
    folder.mkdir(parents=True, exist_ok=True)
    healthy = [run for run in runs if run.condition == "healthy"]
    others = [run for run in runs if run.condition != "healthy"]
    times: dict[tuple[str, str, int], list[int]] = {}
    with concurrent.futures.ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        found = list(pool.map(one, healthy, [None] * len(healthy), [folder] * len(healthy)))
        for run, result in zip(healthy, found):
            times.setdefault((run.architecture, run.task, run.dim), []).append(result["learned"] or LONGEST)
        usual = [
            statistics.median(times.get((run.architecture, run.task, run.dim)) or times[run.architecture, run.task, 64])
            for run in others
        ]
        return found + list(pool.map(one, others, usual, [folder] * len(others)))
