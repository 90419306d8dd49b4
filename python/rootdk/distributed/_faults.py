"""When a rank dies, stalls or raises: what every other rank is told, and within which time.

A rank waits for a message no longer than its timeout. Whoever finds that something is wrong writes so into the store
that torch.distributed keeps for all ranks, looks for a second who else has written, and says who has not: so every rank
raises within its timeout and three seconds: one to write, one and a half to look where the store is gone as well, and
what a busy machine takes for it."""

from __future__ import annotations

import datetime
import threading
import time
from typing import Any, Optional

import torch.distributed as dist

GRACE = 1.0  #: seconds that a rank which has failed looks for what others say


class RankError(RuntimeError):
    """Another rank died, stalls, raised or passed what does not fit. `ranks` are those who are to blame, by their
    number in the group, as far as is known."""

    def __init__(self, text: str, ranks: tuple[int, ...] = ()):
        super().__init__(text)
        self.ranks = ranks


def _store() -> Any:
    try:
        return dist.distributed_c10d._get_default_store()
    except Exception:  # none that can be asked
        return None


class Board:
    """Where ranks write what befell them. Never raises, and never takes much longer than it says: the store may be
    gone, or stopped, with the rank that keeps it."""

    def __init__(self, name: str, ranks: int, rank: int):
        self.name, self.ranks, self.rank = f"rootdk/{name}", ranks, rank

    def write(self, text: str) -> None:
        self._within(GRACE, lambda store: store.set(f"{self.name}/{self.rank}", text))

    def read(self, seconds: float = GRACE) -> Optional[dict[int, str]]:
        """What ranks have written, once all have or that time is over; None if the store does not answer."""
        found: dict[int, str] = {}

        def look(store: Any) -> bool:
            until = time.monotonic() + seconds
            while True:
                for rank in range(self.ranks):
                    if rank not in found and store.check([f"{self.name}/{rank}"]):
                        found[rank] = store.get(f"{self.name}/{rank}").decode(errors="replace")
                if len(found) == self.ranks or time.monotonic() > until:
                    return True
                time.sleep(0.02)

        return dict(found) if self._within(seconds + GRACE / 2, look) or found else None

    def _within(self, seconds: float, what: Any) -> bool:
        store, done = _store(), threading.Event()
        if store is None:
            return False

        def run() -> None:
            try:
                what(store.clone() if hasattr(store, "clone") else store)
                done.set()
            except Exception:  # gone
                pass

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return done.wait(seconds)


def explain(board: Board, error: BaseException, waited_for: str, peer: int, seconds: float) -> RankError:
    """What to raise where a message did not come or go."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    late = any(word in text.lower() for word in ("timed out", "timeout"))
    what = f"did not answer within {seconds:g} s" if late else "closed its connection"
    board.write(f"waited for rank {peer}")
    said = board.read()
    mine = f"rank {board.rank} of {board.ranks}: {waited_for}: rank {peer} {what}"
    if said is None:
        return RankError(f"{mine}; the ranks' store does not answer, so nobody knows more ({text})", (peer,))
    raised = {rank: words for rank, words in said.items() if words.startswith("raised ")}
    if raised:
        words = "; ".join(f"rank {rank} {words}" for rank, words in sorted(raised.items()))
        return RankError(f"{mine}; {words}", tuple(sorted(raised)))
    silent = tuple(rank for rank in range(board.ranks) if rank not in said)
    if not late and peer in silent:
        return RankError(f"{mine} and said nothing: dead", (peer,))
    if silent:
        names = ", ".join(map(str, silent))
        return RankError(f"{mine}; of the {board.ranks} ranks {names} said nothing: dead, stopped or elsewhere", silent)
    return RankError(f"{mine}; all ranks are alive ({text})", (peer,))


def as_timedelta(seconds: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=seconds)
