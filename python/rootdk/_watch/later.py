"""What a GPU has not finished yet: threads read it, so that the model need not wait, and it is taken in the order of
the calls."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Optional

_READERS = 4  # threads: to reduce a call's rows takes longer than a small layer does


class Later:
    def __init__(self) -> None:
        self._waiting: list[tuple[int, Future[Any], Callable[[Any], None]]] = []
        self._reader: Optional[ThreadPoolExecutor] = None

    def read(self, step: int, read: Callable[[], Any], take: Callable[[Any], None]) -> None:
        """`read` runs in a thread; `take` gets its result when settle() is called."""
        if self._reader is None:
            self._reader = ThreadPoolExecutor(_READERS, "rootdk.watch")
        self._waiting.append((step, self._reader.submit(read), take))

    def settle(self, before: Optional[int] = None) -> None:
        """Takes what has come meanwhile; waits for what is from before that step, or without one for all of it."""
        while self._waiting:
            step, read, take = self._waiting[0]
            if before is not None and step >= before and not read.done():
                return
            self._waiting.pop(0)
            take(read.result())

    def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.shutdown()
