"""Ranks that send each other tensors: point to point, counted, never waiting for ever. Everything that moves in this
package moves through here."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import functools
import itertools
import threading
import time
import weakref
from typing import Any, Callable, Iterator, Optional, Sequence

import torch
import torch.distributed as dist
import torch.utils.checkpoint
from torch import Tensor

from .._problem import real
from ._faults import OUT_OF_STEP, RAISED, Board, RankError, as_timedelta, explain
from ._lookout import looking

# Its functions take the default group as the default of an argument: the one there is when it is first imported, which
# any optimizer does. Imported after init_process_group it would keep the group, with gloo's threads, beyond
# destroy_process_group and into the end of the process, where they meet what is gone: some ranks abort. So it is
# imported before, if this module is, and never by this module afterwards.
if dist.is_available() and not dist.is_initialized():
    import torch.distributed.nn


@dataclasses.dataclass
class Count:
    """What this rank has sent."""

    bytes: int = 0
    messages: int = 0


_counts: list[Count] = []


@contextlib.contextmanager
def counting() -> Iterator[Count]:
    """Counts what this rank sends for attention while it is open; what checks and statistics exchange is not in it."""
    count = Count()
    _counts.append(count)
    try:
        yield count
    finally:
        _counts.remove(count)


TIMEOUT = 120.0  #: seconds that a rank waits for another, unless it is told otherwise
Message = tuple[int, Tensor]  #: to or from which rank of the team

# By the group itself, not its id, which a later group may have on some ranks; gone when the group is.
_ready: weakref.WeakKeyDictionary[Any, set[torch.device]] = weakref.WeakKeyDictionary()
_groups: weakref.WeakKeyDictionary[Any, _Group] = weakref.WeakKeyDictionary()
_lives: collections.Counter[str] = collections.Counter()  # groups of a name so far
_KINDS = ("attention", "merge", "audit")  #: of calls, by the number that ranks compare
_GREETING, _NOBODY = 0, 2**31 - 1  # tags; those in between are numbers of calls
# What leaves a forward that a checkpoint computes again, once it has all that backward needs: nothing has failed.
_ENOUGH = getattr(torch.utils.checkpoint, "_StopRecomputationError", RankError)


class _Group:
    """What this process knows of a process group."""

    def __init__(self, group: Any):
        name = str(getattr(group, "group_name", "group"))
        _lives[name] += 1
        self.name = f"rootdk/{name}/{_lives[name]}"
        self.calls = itertools.count(1)  # all its ranks make the same calls in the same order
        self.thread = threading.RLock()  # whose call it is; that thread's backward may compute forward again


class Team:
    """Some ranks of a process group; `rank` is this one's place among them."""

    def __init__(self, group: Any, members: Sequence[int], timeout: float, board: Board):
        """members: ranks of the group."""
        # What autograd keeps for backward has the team: it must not keep the group beyond destroy_process_group.
        self._group = weakref.ref(group)
        self.members, self.timeout, self.board = tuple(members), timeout, board
        self.call = 0
        self.rank = self.members.index(dist.get_rank(group))

    @property
    def group(self) -> Any:
        group = self._group()
        if group is None:
            raise ValueError("group: it has been destroyed since attention was called")
        return group

    @staticmethod
    def of(group: Any, timeout: float = TIMEOUT) -> Team:
        """All of a group."""
        if not dist.is_available() or not dist.is_initialized():
            raise ValueError("group: torch.distributed has no process group yet; call init_process_group first")
        group = dist.group.WORLD if group is None else group
        if group == dist.GroupMember.NON_GROUP_MEMBER:
            raise ValueError(f"group: this rank, {dist.get_rank()}, is not in it")
        if not hasattr(group, "rank"):
            raise TypeError(f"group: {group!r}, but a process group or None is wanted")
        rank = dist.get_rank(group)
        if rank < 0:
            raise ValueError(f"group: has ranks {dist.get_process_group_ranks(group)}, but this is {dist.get_rank()}")
        if group not in _groups:
            _groups[group] = _Group(group)
        ranks = dist.get_process_group_ranks(group)
        keeper = ranks.index(0) if 0 in ranks else None
        board = Board(_groups[group].name, len(ranks), rank, keeper)
        return Team(group, range(len(ranks)), timeout, board)

    @property
    def size(self) -> int:
        return len(self.members)

    def part(self, places: Sequence[int]) -> Team:
        """Some of these, this rank among them."""
        team = Team(self.group, [self.members[place] for place in places], self.timeout, self.board)
        team.call = self.call
        return team

    @contextlib.contextmanager
    def calling(self, kind: str, timeout: Any, like: Any = None) -> Iterator[None]:
        """A call that all ranks make, of one of _KINDS. A timeout that is none is for the call itself to refuse, with
        everything else. like: a tensor where packets may lie, if it is one."""
        with contextlib.suppress(TypeError, ValueError):
            self.timeout = seconds_of(timeout)
        with self._only_thread():
            self.call = next(_groups[self.group].calls)
            self.board = self.board.of_call(self.call)
            with self.telling():
                self._greet(kind, like)
                yield

    def _greet(self, kind: str, like: Any) -> None:
        """Neighbours tell each other what they call, before they send what another call would take for its own: its
        sizes may be others, and gloo ends a process that gets more than it has room for."""
        if self.size == 1:
            return
        mine = torch.tensor([_KINDS.index(kind), self.call], dtype=torch.int64).to(self.packet_device(like))
        found = torch.empty_like(mine)
        to, source = (self.rank - 1) % self.size, (self.rank + 1) % self.size
        self.post("which call this is", [(to, mine)], [(source, found)], counted=False, tag=_GREETING).wait()
        theirs, call = found.tolist()
        if (theirs, call) != (_KINDS.index(kind), self.call):
            text = f"rank {source} is in {_KINDS[theirs]}, its call {call} over this group, but "
            text += f"rank {self.rank} in {kind}, its call {self.call}"
            self.board.write(f"{OUT_OF_STEP}{text}", stop=True)
            raise RankError(f"{OUT_OF_STEP}{text}")

    @contextlib.contextmanager
    def _only_thread(self) -> Iterator[None]:
        thread = _groups[self.group].thread
        if not thread.acquire(blocking=False):
            raise ValueError("group: another thread is in a call over it; each thread wants a group of its own")
        try:
            yield
        finally:
            thread.release()

    def get_ready(self, like: Tensor) -> None:
        """NCCL wants all ranks of a group in its first operation, but not all of them always have something to send."""
        ready = _ready.setdefault(self.group, set())
        if like.is_cuda and like.device not in ready:
            dist.all_reduce(torch.zeros(1, device=like.device), group=self.group)
            ready.add(like.device)

    def packet_device(self, like: Any = None) -> torch.device:
        """Where small packets for the host are best: on the CPU if the group can send from there. Else where `like`
        lies, if the group can send from there, and the group's own kind if not: a rank that was given nonsense has to
        say so where the others listen."""
        config = str(dist.get_backend_config(self.group))
        kinds = [pair.split(":")[0] for pair in config.split(",")]  # as in cpu:gloo,cuda:nccl
        if "cpu" in kinds:
            return torch.device("cpu")
        if isinstance(like, Tensor) and like.device.type in kinds:
            return like.device
        return torch.device("cuda", torch.cuda.current_device()) if "cuda" in kinds else torch.device(kinds[0])

    def post(self, what: str, sends: Sequence[Message], receives: Sequence[Message], counted: bool = True,
             tag: Optional[int] = None) -> Pending:  # fmt: skip
        """Starts all of these. Empty ones are left out, on both sides. A message's memory is not to be touched before
        it is waited for. tag: the call's, so that messages of two calls are not taken for each other."""
        operations, peers = [], []
        for operation, messages in ((dist.isend, sends), (dist.irecv, receives)):
            for peer, x in messages:
                if peer == self.rank or x.numel() == 0:
                    continue
                if operation is dist.isend and counted:
                    for count in _counts:
                        count.bytes += x.numel() * x.element_size()
                        count.messages += 1
                member = self.members[peer]
                there = dist.get_global_rank(self.group, member)
                operations.append(dist.P2POp(operation, x, there, self.group, self.call if tag is None else tag))
                peers.append(member)
        memory = [x for _, x in (*sends, *receives)]
        together = any(x.is_cuda for x in memory)  # as NCCL wants them; else one by one, to know whose has failed
        works: list[tuple[int, Any]] = []
        size = len(peers) if together else 1
        for first in range(0, len(peers), max(size, 1)):
            last = first + size
            try:
                found = dist.batch_isend_irecv(operations[first:last])
            except RuntimeError as error:  # somebody has gone before
                raise explain(self.board, error, what, peers[first], None) from error
            works += zip(peers[first:last], found)  # which may be one for all of them
        return Pending(self, what, works, memory)

    def gather_packets(self, packet: Tensor) -> Tensor:
        """Everybody's packet, [size, …], in ⌈log₂ size⌉ rounds (Bruck et al. 1997)."""
        rows = packet.new_empty((self.size, *packet.shape))
        rows[0] = packet
        have = 1
        while have < self.size:
            count = min(have, self.size - have)
            to, source = (self.rank - have) % self.size, (self.rank + have) % self.size
            arriving = torch.empty_like(rows[:count])
            self.post("checks", [(to, rows[:count].contiguous())], [(source, arriving)], counted=False).wait()
            rows[have : have + count] = arriving
            have += count
        return rows.roll(self.rank, 0)

    def gather_bytes(self, mine: bytes, device: torch.device) -> list[bytes]:
        """Everybody's, of any length, in one exchange of packets after one that says how long they are."""
        if self.size == 1:
            return [mine]
        lengths = self.gather_packets(torch.tensor([len(mine)], dtype=torch.int64, device=device)).flatten().tolist()
        packet = torch.zeros(max(lengths), dtype=torch.uint8)
        if mine:
            packet[: len(mine)] = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        table = self.gather_packets(packet.to(device)).cpu().numpy()
        return [row[:length].tobytes() for row, length in zip(table, lengths)]

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Tells the others of what is raised here, Ctrl-C too."""
        with self._only_thread():
            try:
                yield
            except (RankError, _ENOUGH):
                raise
            except BaseException as error:
                text = str(error).splitlines()[0] if str(error) else ""
                self.board.write(f"{RAISED}{type(error).__name__}: {text}", stop=True)
                raise

    def give_up(self, member: int) -> None:
        """Makes another thread's wait for a member of the group fail. gloo knows no other way than a wait that times
        out: with it all of the group do, unless its connection is gone; and then the other wait has failed as well."""
        if "gloo" in str(dist.get_backend_config(self.group)):
            there = dist.get_global_rank(self.group, member)
            with contextlib.suppress(RuntimeError):
                work = dist.irecv(torch.empty(1), there, self.group, _NOBODY)
                if work is not None:  # this rank is in the group
                    work.wait(datetime.timedelta(milliseconds=1))


def seconds_of(timeout: Any) -> float:
    seconds = real("timeout", timeout)
    if not seconds > 0:
        raise ValueError(f"timeout: {timeout}, but seconds are wanted, more than 0")
    return seconds


def exchanged(gather: Callable[[bytes], list[bytes]], task: Callable[[], bytes]) -> list[bytes]:
    """What the task gives on every rank, gathered. Where it raises on one, all of them raise: that one what it
    raised."""
    failed: Optional[Exception] = None
    try:
        mine = b"\0" + task()
    except RankError:
        raise
    except Exception as error:
        failed = error
        mine = b"\1" + f"{type(error).__name__}: {error}".encode()
    found = gather(mine)
    if failed is not None:
        raise failed
    said = {rank: text[1:].decode(errors="replace") for rank, text in enumerate(found) if text[:1] == b"\1"}
    if said:
        raise RankError("; ".join(f"rank {rank}: {text}" for rank, text in said.items()), tuple(said))
    return [text[1:] for text in found]


class Pending:
    """Messages on their way."""

    def __init__(self, team: Team, what: str, works: list[tuple[int, Any]], memory: list[Tensor]):
        self._team, self._what, self._works, self._memory = team, what, works, memory

    def wait(self) -> None:
        """On a GPU the stream waits, not the host: there the group's own timeout is what counts."""
        team = self._team
        on_host = not any(x.is_cuda for x in self._memory)
        for peer, work in self._works:
            since = time.monotonic()
            try:
                if on_host:
                    with looking(team.board, functools.partial(team.give_up, peer)):
                        work.wait(as_timedelta(team.timeout))
                else:
                    work.wait()
            except RuntimeError as error:
                raise explain(team.board, error, self._what, peer, time.monotonic() - since) from error
        self._works, self._memory = [], []


def packed(tensors: Sequence[Tensor]) -> Tensor:
    """One message of bytes; those of wide elements first, so that all of them can be viewed where they lie."""
    parts = [x.detach().contiguous().view(-1).view(torch.uint8) for x in tensors if x.numel()]
    if not parts:
        return tensors[0].new_empty(0, dtype=torch.uint8)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


Form = tuple[Sequence[int], torch.dtype]  #: shape and dtype


def size_of(forms: Sequence[Form]) -> int:
    return sum(_count(shape) * dtype.itemsize for shape, dtype in forms)


def unpacked(flat: Tensor, forms: Sequence[Form]) -> list[Tensor]:
    """Views of a message."""
    out, at = [], 0
    for shape, dtype in forms:
        size = _count(shape) * dtype.itemsize
        out.append(flat[at : at + size].view(dtype).view(*shape) if size else flat.new_empty(tuple(shape), dtype=dtype))
        at += size
    return out


def _count(shape: Sequence[int]) -> int:
    out = 1
    for size in shape:
        out *= size
    return out


def receive_buffer(like: Tensor, forms: Sequence[Form]) -> Tensor:
    return torch.empty(size_of(forms), dtype=torch.uint8, device=like.device)


def no_autocast(x: Tensor) -> Any:
    """What is cast, is cast before it travels."""
    kind: Optional[str] = x.device.type if x.device.type in ("cpu", "cuda") else None
    return contextlib.nullcontext() if kind is None else torch.autocast(kind, enabled=False)
