"""How near does rootdk audit come to what a trained model's scores do? Trains thirty small models, measures σ of every
head with rootdk.watch on rows of the same task that they have not seen, and holds what the audit says of the files
against it.

    python bench/trained/run.py [--seeds N] [--folder build/trained]

Models are kept: a second call only audits. Prints the table of docs/audit.md; results go to the folder's trained.json.
Exits with 1 where a floor does not hold.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
from typing import Any

sys.path[:0] = [
    str(pathlib.Path(__file__).parent),
    str(pathlib.Path(__file__).parents[1] / "alarms"),
    str(pathlib.Path(__file__).parents[1]),
]

import numpy as np  # noqa: E402
import rootdk  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from machine import ROOT, describe  # noqa: E402
from tasks import BATCH, LENGTH, TASKS  # noqa: E402
from train import ARCHITECTURES, HEADS, LAYERS, RATE, STEPS, WIDTH, Run, batches, train  # noqa: E402

HELD_OUT = 1_000_000  # seeds from here on are of rows that no model was trained on
SEQUENCES = 64
#: what the audit stands on, as the tables call it
GROUNDS = {"weights": "weights alone", "embeddings": "embeddings", "random": "`--tokens random`"}
LARGEST_SHARE = 0.6  # of the median error of weights alone that embeddings may have
LARGEST_DIFFERENCE = 0.01  # between --tokens and rootdk.watch, of σ


def command(path: pathlib.Path, *options: object) -> list[dict[str, Any]]:
    """The heads, as `rootdk audit --json` has them."""
    line = [sys.executable, "-m", "rootdk", "audit", str(path), "--json", *map(str, options)]
    found = json.loads(subprocess.run(line, stdout=subprocess.PIPE, check=True).stdout)
    return [head for layer in found["layers"] for head in layer["heads"]]


def without_embeddings(model: transformers.PreTrainedModel, at: int) -> list[str]:
    """Verdicts where the weights are all there is."""
    base = model.base_model
    tables = tuple(name for name, module in base.named_modules() if isinstance(module, torch.nn.Embedding))
    tensors = {name: x for name, x in base.state_dict().items() if not name.startswith(tables)}
    found = rootdk.audit(tensors, config=model.config, at=at, spectra=False)
    assert set(found["ground"]) == {"weights"}, found["ground"]
    return [head["verdict"] for head in found.heads]


def measured(run: Run, folder: pathlib.Path) -> dict[str, Any]:
    """Of one model: σ and verdicts of its heads on every ground."""
    model, place, training = train(run, folder)
    rows = batches(run, HELD_OUT + run.seed)
    ids = torch.cat([next(rows)[0] for _ in range(SEQUENCES // BATCH)])
    np.save(place / "held-out.npy", ids.numpy())
    with torch.no_grad(), rootdk.watch(model) as watch:
        model(input_ids=ids)
    seen = np.concatenate([watch.stats(layer).raw_sigma[0] for layer in watch.layers])
    ran = command(place, "--tokens", place / "held-out.npy")
    at = round(ran[0]["measured"]["keys"])  # verdicts are for as many keys as the rows have that were measured
    still, random = command(place, "--at", at), command(place, "--tokens", "random")
    assert len(seen) == len(ran) == LAYERS * HEADS
    assert all(head["ground"] == "embeddings" for head in still) and all(head["ground"] == "measured" for head in ran)
    sigma = {
        "watch": seen,
        "tokens": [head["measured"]["sigma"] for head in ran],
        "weights": [head["sigma"] for head in still],
        "embeddings": [head["embeddings"]["sigma"] for head in still],
        "random": [head["measured"]["sigma"] for head in random],
    }
    verdicts = {"tokens": ran, "embeddings": still, "random": random}
    return {
        "architecture": run.architecture,
        "task": run.task,
        "seed": run.seed,
        "loss": training["loss"],
        "seconds": training["seconds"],
        "judged at": at,
        "sigma": {name: np.asarray(values, np.float64) for name, values in sigma.items()},
        "verdicts": {name: [head["verdict"] for head in heads] for name, heads in verdicts.items()}
        | {"weights": without_embeddings(model, at)},
    }


def summary(models: list[dict[str, Any]]) -> dict[str, Any]:
    """|log₂(predicted/measured σ)| of all their heads, and how often the verdict is that of the run on the rows."""
    sigma = {name: np.concatenate([model["sigma"][name] for model in models]) for name in models[0]["sigma"]}
    verdicts = {name: np.concatenate([model["verdicts"][name] for model in models]) for name in models[0]["verdicts"]}
    out: dict[str, Any] = {
        "models": len(models),
        "heads": len(sigma["watch"]),
        "loss": [float(np.mean([model["loss"][i] for model in models])) for i in (0, 1)],
    }
    for ground in GROUNDS:
        ratio = sigma[ground] / sigma["watch"]
        error = np.abs(np.log2(ratio))
        out[ground] = {
            "median": float(np.median(error)),
            "worst": float(error.max()),
            "median ratio": float(np.median(ratio)),
            "too small": float((ratio < 1).mean()),
            "verdicts": float((verdicts[ground] == verdicts["tokens"]).mean()),
        }
    out["share"] = out["embeddings"]["median"] / out["weights"]["median"]
    out["tokens"] = float(np.abs(sigma["tokens"] / sigma["watch"] - 1).max())
    return out


def table(rows: dict[str, dict[str, Any]]) -> list[str]:
    lines = [
        f"| model, task | loss | {' | '.join(GROUNDS.values())} | embeddings / weights |",
        "|---" * (len(GROUNDS) + 3) + "|",
    ]
    for name, row in rows.items():
        loss = "{:.1f} → {:.2f}".format(*row["loss"]) if row is not rows["all"] else ""
        cells = ["{median:.2f} ({worst:.1f}) {verdicts:.0%}".format(**row[ground]) for ground in GROUNDS]
        lines.append(f"| {name} | {loss} | {' | '.join(cells)} | {row['share']:.2f} |")
    return lines


def rounded(value: Any) -> Any:
    """Four digits, as JSON."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, (list, np.ndarray)):
        return [rounded(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", type=int, default=3, help="models of each kind")
    arguments.add_argument("--folder", type=pathlib.Path, default=ROOT / "build" / "trained")
    given = arguments.parse_args()
    if given.seeds < 1:
        arguments.error(f"--seeds: {given.seeds}, but at least 1 is wanted")
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    models: list[dict[str, Any]] = []
    for task in ("language", "copy"):
        for architecture in ARCHITECTURES:
            for seed in range(given.seeds):
                models.append(measured(Run(architecture, task, seed), given.folder))
                print(f"{architecture}, {task}, seed {seed}: trained in {models[-1]['seconds']} s", file=sys.stderr)
    kinds: dict[str, list[dict[str, Any]]] = {}
    for model in models:
        kinds.setdefault(f"{model['architecture']}, {model['task']}", []).append(model)
    rows = {name: summary(of_kind) for name, of_kind in kinds.items()} | {"all": summary(models)}
    machine, everything = describe(), rows["all"]
    print(
        f"{machine['cpu']}, {machine['date']}: median (worst) of |log₂(predicted/measured σ)|, and how many verdicts "
        f"are those of the run; {everything['models']} models, {everything['heads']} heads",
        *table(rows),
        sep="\n",
    )
    share, difference = everything["share"], everything["tokens"]
    held = {
        f"embeddings' median error at most {LARGEST_SHARE} of weights alone's": share <= LARGEST_SHARE,
        f"--tokens within {LARGEST_DIFFERENCE:.0%} of rootdk.watch": difference <= LARGEST_DIFFERENCE,
    }
    weights, embeddings = everything["weights"], everything["embeddings"]
    print(
        f"\nfrom weights alone σ is too small for {weights['too small']:.1%} of the heads; predicted/measured σ is "
        f"{weights['median ratio']:.3f} at the median, {embeddings['median ratio']:.3f} with embeddings"
    )
    print(
        f"embeddings' median error is {share:.2f} of weights alone's; --tokens is within {difference:.1e} "
        "of rootdk.watch"
    )
    for floor, holds in held.items():
        print(f"{floor}: {'holds' if holds else 'MISSED'}")
    setting = {
        "width": WIDTH,
        "layers": LAYERS,
        "heads": HEADS,
        "steps": STEPS,
        "rate": RATE,
        "batch": BATCH,
        "length": LENGTH,
        "vocabulary": {name: task.vocabulary for name, task in TASKS.items()},
        "sequences": SEQUENCES,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    result = {"machine": machine, "setting": setting, "floors": held, "rows": rows, "models": models}
    (given.folder / "trained.json").write_text(json.dumps(rounded(result), indent=1, ensure_ascii=False) + "\n")
    return 0 if all(held.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
