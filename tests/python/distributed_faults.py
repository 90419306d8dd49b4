"""Ranks that compute attention again and again until one of them dies, stops, stalls or raises: what the others are
told, and when. Prints a line of JSON for each of them.

usage: distributed_faults.py TIMEOUT RANKS:VICTIM:KIND:WAY …      (all of these at the same time)"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time

import rootdk.distributed as rd
import torch
from distributed_worker import begin, free_port
from rootdk.distributed import _partial


class Slip(Exception):
    pass


def slip(*_):
    raise Slip("a rank that raises while others wait for its messages")


def work(rank, ranks, port, victim, kind, way, timeout, told, go):
    begin(rank, ranks, port)
    q = torch.randn(1, 4, 40, 8, requires_grad=True)
    step = 0
    while True:
        try:
            if rank == victim and go.is_set():
                if kind == "raise":
                    q = torch.randn(1, 4, 40, 8).requires_grad_()
                    rd.attention(*[q] * 3, way=way, timeout=timeout, alibi=[1.0])  # four heads have one slope
                elif kind == "stall":
                    time.sleep(3600)
                elif kind == "raise inside":
                    _partial.Outputs.add = slip
                elif kind == "raise in backward":
                    _partial.Gradients.add = slip
            out = rd.attention(q, q, q, causal=True, way=way, timeout=timeout)
            out.sum().backward()
        except Exception as error:
            told.send({"rank": rank, "at": time.time(), "error": f"{type(error).__name__}: {error}",
                       "ranks": list(getattr(error, "ranks", ())), "steps": step})  # fmt: skip
            time.sleep(3600)  # nobody is helped by a connection that closes
        step += 1
        if step == 2:
            told.send("ready")


def watched(case, timeout, told):
    """Starts the ranks of one case, lets it happen, and says what was said."""
    ranks, victim, kind, way = case.split(":")
    ranks, victim = int(ranks), int(victim)
    forked = multiprocessing.get_context("fork")
    go, port = forked.Event(), free_port()
    pipes = [forked.Pipe(duplex=False) for _ in range(ranks)]
    workers = [
        forked.Process(target=work, args=(rank, ranks, port, victim, kind, way, timeout, pipes[rank][1], go))
        for rank in range(ranks)
    ]
    for worker in workers:
        worker.start()
    found = []
    try:
        for mine, _ in pipes:
            assert mine.recv() == "ready"
        since = time.time()
        go.set()
        if kind in ("kill", "stop"):
            os.kill(workers[victim].pid, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
        for rank, (mine, _) in enumerate(pipes):
            if rank == victim and not kind.startswith("raise"):
                continue
            said = mine.recv() if mine.poll(timeout + 20) else {"rank": rank, "error": "hangs", "ranks": []}
            found.append({**said, "case": case, "after": said["at"] - since if "at" in said else None})
    finally:
        for worker in workers:
            worker.kill()
    told.send(found)


def main():
    torch.set_num_threads(1)
    forked = multiprocessing.get_context("fork")
    pipes = [forked.Pipe(duplex=False) for _ in sys.argv[2:]]
    cases = [
        forked.Process(target=watched, args=(case, float(sys.argv[1]), pipe[1]))
        for case, pipe in zip(sys.argv[2:], pipes)
    ]
    for case in cases:
        case.start()
    for _, theirs in pipes:
        theirs.close()
    for mine, _ in pipes:
        print(json.dumps(mine.recv()), flush=True)


if __name__ == "__main__":
    main()
