"""What a rank does while it waits long for a message: it looks at the board once a second, and waits no longer if
another has raised, whose messages will not come. What that rank has sent may still be on its way, so it takes two
looks."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from typing import Callable, Iterator

from ._faults import Board

EVERY = 1.0  #: seconds between two looks


@dataclasses.dataclass(eq=False)
class _Wait:
    board: Board
    give_up: Callable[[], None]
    since: float
    warned: bool = False


_waits: set[_Wait] = set()
_lock = threading.Lock()  # held while a wait ends, or is given up: never after its end
_thread = threading.Thread()


@contextlib.contextmanager
def looking(board: Board, give_up: Callable[[], None]) -> Iterator[None]:
    """give_up: called by another thread; to make the wait fail."""
    global _thread
    wait = _Wait(board, give_up, time.monotonic())
    with _lock:
        _waits.add(wait)
        if not _thread.is_alive():  # nor is it in a process that was forked
            _thread = threading.Thread(target=_look, daemon=True)
            _thread.start()
    try:
        yield
    finally:
        with _lock:
            _waits.discard(wait)


def _look() -> None:
    while True:
        time.sleep(EVERY)
        with _lock:
            long = [wait for wait in _waits if time.monotonic() - wait.since >= EVERY]
        for wait in long:
            if wait.warned:
                with _lock:
                    if wait in _waits:
                        wait.give_up()
            wait.warned = wait.board.stopped()
