"""When a rank dies, stalls or raises: what every other rank is told, and within which time.

A rank waits for a message no longer than its timeout. Whoever finds that something is wrong writes so into the store
that torch.distributed keeps for all ranks, looks for a second who else has written, and says who has not: so every rank
raises within its timeout and three seconds: one to write, one and a half to look where the store is gone as well, and
what a busy machine takes for it. Who waits longer than a second hears of a rank that raises before (_lookout.py)."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import threading
import time
from typing import Any, Optional

import torch.distributed as dist

GRACE = 1.0  #: seconds that a rank which has failed looks for what others say


class RankError(RuntimeError):
    """Another rank died, stalls, raised or passed what does not fit. `ranks` are those who are to blame, by their
    number in the group; none where nobody knows."""

    def __init__(self, text: str, ranks: tuple[int, ...] = ()):
        super().__init__(text)
        self.ranks = ranks


def _store() -> Any:
    try:
        return dist.distributed_c10d._get_default_store()
    except Exception:  # none that can be asked
        return None


@dataclasses.dataclass(frozen=True)
class Board:
    """Where ranks write what befell them. Never raises, and never takes much longer than it says: the store may be
    gone, or stopped, with the rank that keeps it."""

    name: str
    ranks: int
    rank: int
    keeper: Optional[int] = None  #: the rank that keeps the store, unless a launcher does; None: none of these

    def of_call(self, number: int) -> Board:
        return dataclasses.replace(self, name=f"{self.name}/{number}")

    def write(self, text: str, stop: bool = False) -> None:
        """stop: nobody need wait for anything any more."""

        def put(store: Any) -> None:
            store.set(f"{self.name}/{self.rank}", text)
            if stop:
                store.set(f"{self.name}/stop", "")

        self._within(GRACE, put)

    def stopped(self) -> bool:
        """One look, whoever has written that, and however many ranks there are."""
        found: list[bool] = []
        self._within(GRACE, lambda store: found.append(store.check([f"{self.name}/stop"])))
        return any(found)

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
        store, over = _store(), threading.Event()
        answered: list[bool] = []
        if store is None:
            return False

        def run() -> None:
            with contextlib.suppress(Exception):  # gone
                what(store.clone() if hasattr(store, "clone") else store)
                answered.append(True)
            over.set()

        threading.Thread(target=run, daemon=True).start()
        over.wait(seconds)
        return bool(answered)


_WAITED, RAISED, OUT_OF_STEP = "waited for rank ", "raised ", "out of step: "  # how what is written begins


def explain(board: Board, error: BaseException, waited_for: str, peer: int, seconds: Optional[float]) -> RankError:
    """What to raise where a message did not come within so many seconds, or, without them, could not be sent."""
    late = any(word in str(error).lower() for word in ("timed out", "timeout"))
    what = "closed its connection"
    if late:
        what = "cannot be reached any more" if seconds is None else f"did not answer within {seconds:.3g} s"
    board.write(f"{_WAITED}{peer}")
    said = board.read()
    mine = f"rank {board.rank} of {board.ranks}: {waited_for}: rank {peer} {what}"
    if said is None:
        # If the rank that keeps the store is late as well, it has stopped. Any other may be late, or have left, because
        # of somebody else.
        stopped = (peer,) if late and peer == board.keeper else ()
        return RankError(f"{mine}; the ranks' store does not answer, so nobody knows more", stopped)
    for begin in (RAISED, OUT_OF_STEP):
        told = {rank: words for rank, words in sorted(said.items()) if words.startswith(begin)}
        if told:
            words = "; ".join(f"rank {rank} {words}" for rank, words in told.items())
            return RankError(f"{mine}; {words}", tuple(told) if begin == RAISED else ())
    silent = tuple(rank for rank in range(board.ranks) if rank not in said)
    last = _end_of_the_chain(said, peer)
    if last in silent:
        if last == peer and not late:
            return RankError(f"{mine} and said nothing: dead", (peer,))
        silent = (last,)
    if silent:
        names = ", ".join(map(str, silent))
        return RankError(f"{mine}; of the {board.ranks} ranks {names} said nothing: dead, stopped or elsewhere", silent)
    waits = "; ".join(f"rank {rank} {words}" for rank, words in sorted(said.items())[:8])
    return RankError(f"{mine}; all ranks are alive: {waits}")


def _end_of_the_chain(said: dict[int, str], rank: int) -> Optional[int]:
    """The rank that another waited for, or who that one waited for, and so on, until one that said nothing of the
    kind; None where they wait for each other."""
    seen: set[int] = set()
    while rank not in seen:
        seen.add(rank)
        if not said.get(rank, "").startswith(_WAITED):
            return rank
        rank = int(said[rank][len(_WAITED) :])
    return None


def as_timedelta(seconds: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=seconds)
