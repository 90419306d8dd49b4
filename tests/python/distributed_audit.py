"""What the ranks of test_distributed_audit.py do: they audit the checkpoints that a file of JSON lists, one after the
other, and write what each of them found or raised, a line of JSON each, to a file of their own beside it.

usage: distributed_audit.py CASES.json
for CASES.json.RANK, with a list of {"name", "folders" (one for each rank), …}"""

from __future__ import annotations

import json
import multiprocessing
import os
import pathlib
import sys
import time

import rootdk.distributed as rd
from distributed_worker import begin, free_port
from rootdk.distributed import _audit


def die(*_):
    os._exit(1)


def unreadable(path, *_):
    raise OSError(5, "Input/output error", str(path))


def breaks_late(sharded, *arguments):
    """Headers could be read."""
    reading, _audit._bytes_of = _audit._bytes_of, unreadable
    try:
        READ_FOR_OTHERS(sharded, *arguments)
    finally:
        _audit._bytes_of = reading


READ_FOR_OTHERS = _audit._Sharded._read_for_others


def work(rank, cases, port, told):
    told = open(told, "w", encoding="utf-8")
    ranks = len(cases[0]["folders"])
    begin(rank, ranks, port)
    for case in cases:
        here = {name: value[rank] if name in case.get("own", ()) else value
                for name, value in case.get("arguments", {}).items()}  # fmt: skip
        odd = rank == case.get("odd")
        if odd and case["slip"] == "dies":
            _audit._Sharded._found = die
        elif odd and case["slip"] == "cannot read":
            _audit._Sharded._read_for_others = breaks_late
        began = time.monotonic()
        said = {"rank": rank, "name": case["name"]}
        try:
            found = rd.audit(case["folders"][rank], timeout=8, **here)
            said["found"] = [found.to_json(), str(found), found.to_csv(), found.conclusion]
        except Exception as error:
            said["raised"] = f"{type(error).__name__}: {error}"
            said["ranks"] = list(getattr(error, "ranks", ()))
        said["seconds"] = time.monotonic() - began
        print(json.dumps(said), file=told, flush=True)
        if case.get("slip") == "dies":
            time.sleep(12)  # nobody is told anything by a connection that closes
        _audit._Sharded._read_for_others = READ_FOR_OTHERS
    os._exit(0)


def main():
    cases = json.loads(pathlib.Path(sys.argv[1]).read_text())
    forked, port = multiprocessing.get_context("fork"), free_port()
    ranks = len(cases[0]["folders"])
    workers = [
        forked.Process(target=work, args=(rank, cases, port, f"{sys.argv[1]}.{rank}"), daemon=True)
        for rank in range(ranks)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
