"""Ranks that compute attention again and again until one of them dies, stops, stalls, raises or calls something else:
what the others are told, and when. Prints a line of JSON for each of them. Who has failed sleeps, or leaves where the
kind says "…, leaves".

usage: distributed_faults.py TIMEOUT RANKS:VICTIM:KIND:WAY …      (AT_ONCE of these at the same time)"""

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
from rootdk.distributed import _heads, _partial, _statistics

AT_ONCE = 2  # times are held to what is promised, so that ranks must not wait for cores


class Slip(Exception):
    pass


def slip(*_):
    raise Slip("a rank that raises while others wait for its messages")


def interrupt(*_):
    raise KeyboardInterrupt


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


#: what the victim does from then on, in which function
INSIDE = {
    "raise inside": (_partial.Outputs, "add", slip),
    "interrupt inside": (_partial.Outputs, "add", interrupt),
    "raise in backward": (_partial.Gradients, "add", slip),
    "die in backward": (_partial.Gradients, "add", die),
    "die in backward of heads": (_heads.Exchange, "back", die),
    "die in merge": (_statistics, "_gathered", die),
}


#: kinds of which the victim itself says something
SPEAKS = ("raise", "interrupt", "other call", "stop and go on")


def attend(q, way, timeout, merges):
    """A step: two levels are nodes of two ranks."""
    out = rd.attention(q, q, q, causal=True, way=way, timeout=timeout, machine=rd.Machine(ranks_per_node=2),
                       stats="basic" if merges else None)  # fmt: skip
    if merges:
        out, mine = out
        rd.merge({"it": mine}, timeout=timeout)
    return out


def work(rank, ranks, port, victim, kind, way, timeout, told, go):
    begin(rank, ranks, port)
    q = torch.randn(1, 4, 40, 8, requires_grad=True)
    kind, *leaves = kind.split(", ")
    step = 0
    while True:
        try:
            if rank == victim and go.is_set():
                if kind == "raise":
                    q = torch.randn(1, 4, 40, 8).requires_grad_()
                    rd.attention(*[q] * 3, way=way, timeout=timeout, alibi=[1.0])  # four heads have one slope
                elif kind == "stall":
                    time.sleep(3600)
                elif kind == "other call":
                    rd.merge({}, timeout=timeout)
                elif kind == "die in backward of heads":
                    out = attend(q, way, timeout, False)
                    setattr(*INSIDE[kind])
                    out.sum().backward()
                elif kind in INSIDE:
                    setattr(*INSIDE[kind])
            attend(q, way, timeout, kind == "die in merge").sum().backward()
        except BaseException as error:
            told.send({"rank": rank, "at": time.time(), "error": f"{type(error).__name__}: {error}",
                       "ranks": list(getattr(error, "ranks", ())), "steps": step})  # fmt: skip
            if leaves:
                os._exit(1)
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
        if kind.startswith(("kill", "stop")):
            os.kill(workers[victim].pid, signal.SIGKILL if kind.startswith("kill") else signal.SIGSTOP)
        if kind == "stop and go on":
            time.sleep(timeout + 3)
            os.kill(workers[victim].pid, signal.SIGCONT)
        for rank, (mine, _) in enumerate(pipes):
            if rank == victim and not kind.startswith(SPEAKS):
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
    for first in range(0, len(cases), AT_ONCE):
        for case in cases[first : first + AT_ONCE]:
            case.start()
        for mine, theirs in pipes[first : first + AT_ONCE]:
            theirs.close()
            print(json.dumps(mine.recv()), flush=True)


if __name__ == "__main__":
    main()
