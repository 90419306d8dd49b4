"""One competitor's process: obeys run.py over a pipe, one message a line, and sleeps between messages.

    python worker.py MODULE
"""
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


class Worker:
    def __init__(self, peer):
        self.peer, self.task, self.case = peer, None, None

    def versions(self):
        return self.peer.versions()

    def prepare(self, case: dict, options: dict):
        """How the peer will do it, and how long a call takes; null where it cannot."""
        self.drop()  # its memory goes before the next one's comes
        self.case = Case(**case)
        self.task = self.peer.prepare(self.case, Inputs(self.case), options)
        if self.task is None:
            return None
        seconds = []
        for _ in range(3):
            seconds.append(self.time(1))
            if seconds[-1] > QUICK:
                break
        return {"how": self.task.how, "work": self.task.work, "seconds": min(seconds)}

    def save(self, heads: list, path: str):
        self.task.call(0)
        np.savez(path, **{name: gather(self.case, name, x, heads) for name, x in self.task.outputs().items()})

    def time(self, calls: int) -> float:
        """Seconds a call."""
        if self.last < QUICK:
            self.task.call(self.calls)
        start = perf_counter()
        for i in range(self.calls + 1, self.calls + 1 + calls):
            self.task.call(i)
        self.last = (perf_counter() - start) / calls
        self.calls += calls + 1
        return self.last

    def drop(self):
        self.task, self.calls, self.last = None, 0, 0.0


def main():
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a peer prints goes to stderr
    worker = Worker(importlib.import_module("peers." + sys.argv[1]))
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            answer = {"result": getattr(worker, name)(**arguments)}
        except Exception:
            answer = {"error": format_exc()}
        print(json.dumps(answer), file=pipe)


if __name__ == "__main__":
    main()
