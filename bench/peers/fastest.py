"""Chooses among the ways a peer can be asked: the one that is fastest on this row is the peer."""
from collections.abc import Iterable
from time import perf_counter

from peers import Task

TRIES = 3


def seconds(task: Task) -> float:
    best = float("inf")
    for i in range(TRIES):
        start = perf_counter()
        task.call(i)
        best = min(best, perf_counter() - start)
        if best > 2:  # enough to know
            break
    return best


def fastest(tasks: Iterable[Task]) -> Task | None:
    timed = []
    for task in tasks:
        task.call(0)
        timed.append((seconds(task), len(timed), task))
    return min(timed)[2] if timed else None
