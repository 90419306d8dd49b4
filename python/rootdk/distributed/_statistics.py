"""Statistics over ranks: of rows and heads that several ranks have shared out, as one pass over all of them would have
given. Everything of a step goes into one packet from everybody to everybody."""

from __future__ import annotations

import dataclasses
import functools
import json
import weakref
from typing import Any, Callable, Mapping, Optional, Union

import numpy as np
import numpy.typing as npt
import torch

from .._stats import Stats
from ._faults import RankError
from ._team import TIMEOUT, Team, exchanged, seconds_of


@dataclasses.dataclass(frozen=True)
class RankStats:
    """What one rank knows of an attention: of its rows, or of its heads. `merge` makes Stats of all of it."""

    stats: Optional[Stats]  #: None where this rank has no part in it
    first_head: int = 0
    heads: Optional[int] = None  #: of all ranks; None: as many as here

    def at_level(self, level: str) -> RankStats:
        stats = None if self.stats is None else at_level(self.stats, level)
        return dataclasses.replace(self, stats=stats)

    def __repr__(self) -> str:
        heads = "" if self.heads is None else f", heads from {self.first_head} of {self.heads}"
        return f"RankStats({self.stats!r}{heads})"


def edited(stats: Stats, change: Callable[[dict[str, Any]], None]) -> Stats:
    """The same with the document of docs/stats-json.md changed."""
    document = json.loads(stats.to_json())
    change(document)
    return Stats.from_json(json.dumps(document))


def renumbered(stats: Stats, queries: npt.NDArray[np.int64]) -> Stats:
    """With queries called what they are in the whole sequence."""

    def change(document: dict[str, Any]) -> None:
        for head in document["per_head"]:
            for place in ("raw", "score"):
                spread = head.get(place)
                if spread is not None and spread["max_query"] >= 0:
                    spread["max_query"] = int(queries[spread["max_query"]])

    return edited(stats, change)


def at_level(stats: Stats, level: str) -> Stats:
    if level == stats.level:
        return stats
    full = ("raw", "score", "softmax", "causes", "blocks", "gaps", "by_keys", "derived")

    def change(document: dict[str, Any]) -> None:
        document["level"] = level
        for head in document["per_head"]:
            head["rows_sampled"] = 0
            for name in full:
                head.pop(name, None)

    return edited(stats, change)


def beside(parts: Mapping[int, Stats], heads: int) -> Stats:
    """Statistics of some heads each, by the first of them, as those of all heads."""
    documents = {first: json.loads(stats.to_json()) for first, stats in sorted(parts.items())}
    whole = dict(next(iter(documents.values())))
    covered = 0
    for first, document in documents.items():
        if first != covered:
            raise ValueError(f"stats: heads from {covered} to {first} are on no rank")
        covered += document["heads"]
    if covered != heads:
        raise ValueError(f"stats: of {covered} heads, but there are {heads}")
    whole["heads"] = heads
    whole["per_head"] = [
        head
        for item in range(whole["batch"])
        for document in documents.values()
        for head in document["per_head"][item * document["heads"] : (item + 1) * document["heads"]]
    ]
    return Stats.from_json(json.dumps(whole))


def combined(shares: list[RankStats]) -> Stats:
    """Of all ranks, in their order: rows of the same heads are merged, then heads put beside each other."""
    by_head: dict[int, Stats] = {}
    for share in shares:
        if share.stats is not None:
            before = by_head.get(share.first_head)
            by_head[share.first_head] = share.stats if before is None else before.merge(share.stats)
    if not by_head:
        raise ValueError("stats: no rank has any")
    totals = {share.heads for share in shares if share.stats is not None and share.heads is not None}
    if len(totals) > 1:
        raise ValueError(f"stats: ranks disagree about how many heads there are: {sorted(totals)}")
    if not totals and len(by_head) == 1:
        return next(iter(by_head.values()))
    return beside(by_head, totals.pop() if totals else sum(stats.heads for stats in by_head.values()))


Shares = Mapping[str, Union[RankStats, Stats]]

# By the group itself, not its id, which a later group may have on some ranks: what a packet has to hold, as the last
# one showed. All ranks of a group have the same, since all of them have seen the same packets.
_room: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def merge(shares: Shares, group: Any = None, *, timeout: float = TIMEOUT) -> dict[str, Stats]:
    """Of all ranks of the group, by name; every one of them calls this and gets the same. One exchange of packets,
    however many names there are; a second where packets have outgrown what the one before needed. Stats are those of
    rows of all heads, RankStats what attention gave. Ranks may lack names that others have."""
    return merged(lambda: shares, group, timeout)


def merged(shares: Callable[[], Shares], group: Any, timeout: float) -> dict[str, Stats]:
    """The same of what is yet to be found: what that raises on one rank, all of them hear of."""
    team = Team.of(group)

    def mine() -> bytes:
        team.timeout = seconds_of(timeout)
        document = {
            name: [share.first_head, share.heads, None if share.stats is None else share.stats.to_json()]
            for name, share in ((name, _share(share)) for name, share in shares().items())
        }
        return json.dumps(document).encode()

    with team.calling("merge", timeout):
        found = exchanged(lambda raw: _gathered(team, raw) if team.size > 1 else [raw], mine)
    everything: dict[str, list[RankStats]] = {}
    for other in found:
        for name, (first, heads, text) in json.loads(other).items():
            stats = None if text is None else _read(text)
            everything.setdefault(name, []).append(RankStats(stats, first, heads))
    out = {}
    for name, parts in everything.items():
        try:
            out[name] = combined(parts)
        except ValueError as error:
            raise RankError(f"{name}: {error}") from None
    return out


def _share(share: Union[RankStats, Stats]) -> RankStats:
    if not isinstance(share, (RankStats, Stats)):
        raise TypeError(f"shares: {type(share).__name__}, but Stats or RankStats are wanted")
    return share if isinstance(share, RankStats) else RankStats(share)


@functools.lru_cache(maxsize=64)
def _read(text: str) -> Stats:
    return Stats.from_json(text)


def _gathered(team: Team, raw: bytes) -> list[bytes]:
    """Packets have one size on all ranks: 8 bytes that say how long the text is, and room for it."""
    group, device = team.group, team.packet_device()
    room = _room.get(group, 1 << 16)
    while True:
        packet = np.zeros(8 + room, np.uint8)
        packet[:8] = np.frombuffer(len(raw).to_bytes(8, "little"), np.uint8)
        packet[8 : 8 + min(len(raw), room)] = np.frombuffer(raw[:room], np.uint8)
        table = team.gather_packets(torch.from_numpy(packet).to(device)).cpu().numpy()
        sizes = [int.from_bytes(row[:8].tobytes(), "little") for row in table]
        largest = max(sizes)
        _room[group] = max(1 << 12, largest + largest // 4)  # the same on all ranks
        if largest <= room:
            return [row[8 : 8 + size].tobytes() for row, size in zip(table, sizes)]
        room = _room[group]
