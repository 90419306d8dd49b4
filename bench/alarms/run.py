"""Do alarms tell health from failure? Trains a hundred small models, well and ill, and holds what rootdk.watch says
against what became of them.

    python bench/alarms/run.py [--jobs N] [--folder build/alarms] [--tuning]

Recordings are kept: a second call only judges. Prints the tables of docs/python/watch.md; results go to the folder's
alarms.json. Ends with what is below the floors that the alarms are held to, and exits with 1 if anything is.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import multiprocessing
import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parents[1])]

from conditions import trial, tuning  # noqa: E402
from judge import ENOUGH, below, floors, outcome, table  # noqa: E402
from machine import ROOT, describe  # noqa: E402
from mend import CHOSEN, mended  # noqa: E402
from record import record  # noqa: E402


def mend_chosen(found: list[dict], folder: pathlib.Path, jobs: int) -> dict[str, list[dict]]:
    folder.mkdir(parents=True, exist_ok=True)
    out = {}
    with concurrent.futures.ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        for cause, (condition, dim) in CHOSEN.items():
            ill = [one for one in found if (one["run"]["condition"], one["dim"]) == (condition, dim)]
            ill = [
                one for one in ill if one["learned"] is None or one["learned"] - one["begin"] > ENOUGH * one["healthy"]
            ]
            ill = ill[:: max(1, len(ill) - 1)]  # the first and the last: of both architectures and both tasks
            out[cause] = list(pool.map(one_mended, ill, [folder] * len(ill)))
    return out


def one_mended(found: dict, folder: pathlib.Path) -> dict:
    import torch

    torch.set_num_threads(1)
    path = folder / f"{found['name']}.json"
    if not path.exists():
        path.write_text(json.dumps(mended(found)))
    return json.loads(path.read_text())


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--jobs", type=int, default=1, help="runs side by side, a thread each")
    arguments.add_argument("--folder", type=pathlib.Path, default=ROOT / "build" / "alarms")
    arguments.add_argument(
        "--tuning", action="store_true", help="the runs that thresholds were chosen on, instead of the trial's"
    )
    given = arguments.parse_args()
    name = "tuning" if given.tuning else "trial"
    if given.tuning:  # each set has its own T
        found = record(tuning(), given.folder / name, given.jobs) + record(
            trial(100), given.folder / "first", given.jobs
        )
    else:
        found = record(trial(), given.folder / name, given.jobs)
    outcomes = [outcome(one) for one in found]
    print(f"{describe()['cpu']}, {describe()['date']}", *table(outcomes), sep="\n")
    result = {
        "machine": describe(),
        "set": name,
        "floors": floors(outcomes),
        "looks every 20 steps": floors([outcome(one, 20) for one in found]),
        "without the loss": floors([outcome(one, losses=False) for one in found]),
    }
    if not given.tuning:
        result["mended"] = mend_chosen(found, given.folder / "mended", given.jobs)
        print("\n| cause | run | what was done | times T |", "|---|---|---|---|", sep="\n")
        for cause, runs in result["mended"].items():
            for one in runs:
                print(f"| {cause} | {one['name']} | {one['advice']} | {one['times'] or 'stalled'} |")
    result["runs"] = [dataclasses.asdict(one) for one in outcomes]
    (given.folder / "alarms.json").write_text(json.dumps(result, indent=1, ensure_ascii=False))
    said = {key: value for key, value in result.items() if key not in ("runs", "machine")}
    print(json.dumps(said, indent=1, ensure_ascii=False))
    missed = below(result["floors"], result.get("mended"))
    print(*missed, sep="\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
