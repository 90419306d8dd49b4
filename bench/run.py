#!/usr/bin/env python3
"""rootdk against what a user would take instead, on this machine: ./run bench.

Every competitor is a process of its own, or a guest in one (competitors.py). For each row (cases.py) all of them are
checked against an f64 reference (reference.py), then timed in rounds: in each round every competitor, in random order,
makes one batch of calls while the others sleep. Ratios are taken within a round (paired.py). The result is kept as
JSON, printed as a table (report.py) and held against the bars (bars.py).
"""

import argparse
import json
import os
import random
import sys
import tempfile
from math import ceil
from pathlib import Path
from time import monotonic, sleep

import machine
import numpy as np
from cases import Case, all_cases
from competitors import ALL, LIMITS, Competitor, entrants
from process import Failure, Process
from reference import Reference

import report

HERE = Path(__file__).parent
FEWEST = 7  # rounds that a row gets, however long they take
BATCH = 0.008  # seconds a batch should at least take, so that clocks and wake-ups do not count


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./run bench",
        description="rootdk against its peers and the machine's limits. A complete run takes about "
        "half an hour on two idle cores: 31 pairs a row.",
    )
    parser.add_argument(
        "--quick", action="store_true", help="a look in three minutes: 7 rounds, no row that takes long"
    )
    parser.add_argument("--filter", default="", metavar="TEXT", help="only rows whose name has TEXT (several: A|B)")
    parser.add_argument("--rounds", type=int, default=31, help="pairs a row, where they fit in --seconds (default 31)")
    parser.add_argument(
        "--seconds", type=float, default=300, help=f"of timing a row, but at least {FEWEST} rounds (default 300)"
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=300,
        metavar="SECONDS",
        help="to wait in all while other processes run (default 300)",
    )
    parser.add_argument(
        "--out", type=Path, help="where the JSON goes; default: bench/results/ if complete, else build/bench/last.json"
    )
    parser.add_argument("--report", type=Path, metavar="JSON", help="only print the table of a kept result")
    parser.add_argument("--libraries", type=Path, default=HERE.parent / "build/bench/lib", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 7, min(options.seconds, 3)
    return options


def chosen(options) -> list[Case]:
    cases = [case for case in all_cases() if any(part in case.name for part in options.filter.split("|"))]
    return [case for case in cases if case.work() < 1e11] if options.quick else cases


def takes_part(entry: dict | None) -> bool:
    return entry is not None and "complaint" not in entry


class Bench:
    def __init__(self, options):
        self.options, self.random, self.patience = options, random.Random(1), options.patience
        self.processes = {
            competitor.key: Process(competitor, options.libraries) for competitor in ALL if not competitor.guest_of
        }
        self.load = machine.Load()
        self.folder = tempfile.TemporaryDirectory()

    def versions(self) -> dict:
        answers = (process.ask("versions", module=process.competitor.module) for process in self.processes.values())
        return {name: version for answer in answers for name, version in answer.items()}

    def prepare(self, case: Case) -> dict:
        """{key: entry} of those who can and are right, with how they will do it; a complaint for those who are
        wrong."""
        for process in self.processes.values():
            process.ask("take", case=case.as_dict())
        reference, entries = Reference(case), {}
        for competitor in entrants(case):
            if competitor.guest_of and not takes_part(entries.get(competitor.guest_of)):
                continue
            entry = self.prepare_one(competitor, reference)
            if entry is not None:
                entries[competitor.key] = entry
        return entries

    def prepare_one(self, competitor: Competitor, reference: Reference) -> dict | None:
        process = self.processes[competitor.home()]
        try:
            entry = process.ask("prepare", key=competitor.key, module=competitor.module, options=competitor.options)
            if entry is None or competitor in LIMITS:
                return entry
            path = str(Path(self.folder.name) / "results.npz")
            process.ask("save", key=competitor.key, heads=reference.heads, path=path)
            with np.load(path) as results:
                complaint = reference.complaint(results)
            return {"how": entry["how"], "complaint": complaint} if complaint else entry
        except Failure as failure:
            print(failure, file=sys.stderr)
            if process.ended():
                self.processes[competitor.home()] = Process(process.competitor, self.options.libraries)
            return {"complaint": str(failure).splitlines()[-1]}

    def wait_for_quiet(self):
        """Until nobody else computes here, as long as patience lasts: it is spent once for the whole run."""
        while self.patience > 0 and machine.running() > 1:
            sleep(0.05)
            self.patience -= 0.05

    def row(self, case: Case) -> dict:
        begin = monotonic()
        entries = self.prepare(case)
        prepared = monotonic() - begin
        able = [competitor for competitor in ALL if takes_part(entries.get(competitor.key))]
        calls = {one.key: max(1, ceil(BATCH / entries[one.key]["seconds"])) for one in able}
        samples = {one.key: [] for one in able}
        self.load.ours = [os.getpid(), *(process.child.pid for process in self.processes.values())]
        spent = 0.0
        for done in range(self.options.rounds):
            if done >= min(FEWEST, self.options.rounds) and spent > self.options.seconds:
                break
            self.wait_for_quiet()
            begin = monotonic()
            with self.load:
                for one in self.random.sample(able, len(able)):
                    seconds = self.processes[one.home()].ask("time", key=one.key, calls=calls[one.key])
                    samples[one.key].append(float(f"{seconds:.5g}"))
            spent += monotonic() - begin
        for key in samples:
            entries[key] |= {"calls": calls[key], "seconds": samples[key]}
        return {
            "case": case.as_dict(),
            "work": case.work(),
            "competitors": entries,
            "prepared": round(prepared, 1),
            "timed": round(spent, 1),
        }

    def close(self):
        for process in self.processes.values():
            process.close()


def progress(record: dict) -> str:
    row = report.Row(record)
    faster, limit = row.times_faster("torch"), row.of_limit()
    return (
        f"{row.name}: "
        + (f"{limit.median:.2f} of the limit, " if limit else "")
        + f"× PyTorch {report.spread(faster, row.complaint('torch'))}"
    )


def destination(options, result: dict) -> Path:
    if options.out:
        return options.out
    if options.quick or options.filter:
        return HERE.parent / "build/bench/last.json"
    return HERE / "results" / f"{result['machine']['date'][:10]}-{result['machine']['commit'].rstrip('+')}.json"


def main():
    options = arguments()
    if options.report:
        print(report.text(json.loads(options.report.read_text())))
        return
    cases = chosen(options)
    if not cases:
        sys.exit(f"--filter: no row has {options.filter!r} in its name")
    bench, start = Bench(options), monotonic()
    result = {"machine": machine.describe(), "versions": bench.versions(), "rows": []}
    for number, case in enumerate(cases, 1):
        result["rows"].append(bench.row(case))
        print(f"[{number}/{len(cases)}, {monotonic() - start:.0f} s] {progress(result['rows'][-1])}", file=sys.stderr)
    bench.close()
    result["elsewhere"] = round(bench.load.share(), 3)
    path = destination(options, result)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, ensure_ascii=False) + "\n")
    print(report.text(result))
    print(f"\nkept: {path}")


if __name__ == "__main__":
    main()
