"""A competitor's process, and its guests': obeys run.py over a pipe, one message a line, and sleeps between
messages."""

import importlib
import json
import os
import sys
from time import perf_counter
from traceback import format_exc

import numpy as np
from cases import Case
from inputs import Inputs
from reference import gather

QUICK = 0.05  # a call shorter than this is made once before the clock starts: threads awake, caches its own


def peer(module: str):
    return importlib.import_module("peers." + module)


class Worker:
    """Tasks by competitor, all on the same inputs. Whichever it is, every call takes the next of the case's K/V caches:
    the one that was read longest ago, so that nobody finds in the CPU's caches what another task has read."""

    def versions(self, module: str) -> dict:
        return peer(module).versions()

    def take(self, case: dict):
        """Lets go of the last case and its memory."""
        self.inputs = Inputs(Case(**case))
        self.tasks, self.last, self.turn = {}, {}, 0

    def prepare(self, key: str, module: str, options: dict) -> dict | None:
        """How the competitor will do it, and how long a call takes; null where it cannot."""
        task = peer(module).prepare(self.inputs.case, self.inputs, options)
        if task is None:
            return None
        self.tasks[key], self.last[key] = task, 0.0
        if task.caches:
            self.inputs.caches = task.caches
        seconds = []
        for _ in range(3):
            seconds.append(self.time(key, 1))
            if seconds[-1] > QUICK:
                break
        return {"how": task.how, "work": task.work, "seconds": min(seconds)}

    def save(self, key: str, heads: list, path: str):
        task = self.tasks[key]
        task.call(0)
        np.savez(path, **{name: gather(self.inputs.case, name, x, heads) for name, x in task.outputs().items()})

    def time(self, key: str, calls: int) -> float:
        """Seconds a call."""
        call = self.tasks[key].call
        if self.last[key] < QUICK:
            call(self.turn)
            self.turn += 1
        start = perf_counter()
        for i in range(self.turn, self.turn + calls):
            call(i)
        self.last[key] = (perf_counter() - start) / calls
        self.turn += calls
        return self.last[key]


def main():
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a peer prints goes to stderr
    worker = Worker()
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            answer = {"result": getattr(worker, name)(**arguments)}
        except Exception:
            answer = {"error": format_exc()}
        print(json.dumps(answer), file=pipe)


if __name__ == "__main__":
    main()
