"""rootdk.distributed.audit: the audit of a checkpoint whose files lie on several ranks. Each rank audits layers that it
can read, and every one of them gets what one audit of everything finds.

1. Everybody says which files it has, and what their headers are: shards without an owner, copies that differ and
   arguments that differ are found out here.
2. Headers travel to whoever lacks a file, so that all see the same checkpoint and share its layers out alike.
3. What a layer needs of a file that its rank lacks travels: a norm or a projection where shards cut a layer in two, and
   the sample of embeddings that all layers are looked at with. Weights stay where they lie.
4. Findings of all layers are gathered, in one exchange."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import stat
from typing import Any, Callable, Iterable, Optional, Sequence, Union

import torch

from .. import _core
from .._audit import Audit, call_of, checked_path
from ._faults import RankError
from ._team import Team, exchanged, seconds_of

TIMEOUT = 1800.0  #: seconds that a rank waits for another, which may have more to read
_INDEX, _SHARD, _CONFIG = ".safetensors.index.json", ".safetensors", "config.json"
_MOST_HEADER = 100_000_000  # safetensors' own limit

Path = Union[str, "os.PathLike[str]"]
Extent = tuple[str, int, int]  #: file, offset, bytes
Holders = dict[str, list[int]]  #: of files: the ranks that have them


def audit(
    model: Path,
    *,
    group: Any = None,
    heads: Optional[int] = None,
    kv_heads: Optional[int] = None,
    head_dim: Optional[int] = None,
    norm: Optional[str] = None,
    scale: Union[float, str, None] = None,
    rotary_base: Optional[float] = None,
    context: Optional[int] = None,
    family: Optional[str] = None,
    family_file: Optional[Path] = None,
    contexts: Optional[Sequence[int]] = None,
    at: Optional[int] = None,
    spectra: bool = True,
    timeout: float = TIMEOUT,
) -> Audit:
    """`rootdk.audit` of a checkpoint by all ranks of `group`, each of which calls this and gets the same Audit, equal
    to that of one machine.

    model        the directory of a checkpoint in safetensors, or its index: what every rank sees in full, or has some
                 of the files of; each file, config.json and the index too, lies on one rank at least. Any other
                 checkpoint (GGUF, .npz) has to be seen by all ranks in full
    timeout      seconds that a rank waits for another before it raises RankError

    The other arguments are those of `rootdk.audit`, the same on all ranks. A file that no rank has, or that one cannot
    read, raises on all of them; the message has rank and file.
    """
    team = Team.of(group, seconds_of(timeout))
    given = {
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "norm": norm,
        "scale": scale,
        "rotary_base": rotary_base,
        "context": context,
        "family": family,
        "family_file": family_file,
        "contexts": contexts,
        "at": at,
        "spectra": spectra,
    }
    with team.calling("audit", timeout):
        return _Sharded(team, model, given).audit()


class _Sharded:
    """A checkpoint whose files lie on the ranks of a team, as this one sees it."""

    def __init__(self, team: Team, model: Path, given: dict[str, Any]):
        self.team, self.model, self.given = team, model, given
        self.path = self.folder = pathlib.Path()
        self.call = _core.AuditCall()
        self.holders: Holders = {}
        self.sizes: dict[str, int] = {}
        self.fetched: dict[str, list[tuple[int, bytes]]] = {}  # runs of files that are not here
        self.sending: dict[int, bytes] = {}

    def audit(self) -> Audit:
        self._say_what_is_here()
        self._share([name for name in self.holders if not name.endswith(_SHARD)], _whole, "")
        shards = self._shards()
        self._share(shards, _header, "header")
        if self._apart():
            found: Optional[tuple[Any, list[list[int]]]] = None

            def prepare() -> bytes:
                nonlocal found
                part = self._opened()
                found = part, dealt(part, self.holders, self.team.size)
                self._read_for_others(*found)
                return b""

            self._everybody("what layers need", prepare)
            assert found is not None
            self._fetch(*found)
        parts = self._everybody("findings", self._found)
        return Audit(*self._opened().joined(parts))

    # Who has what ----------------------------------------------------------------------------------------------------

    def _say_what_is_here(self) -> None:
        def said() -> bytes:
            self.path = pathlib.Path(checked_path("model", self.model))
            is_index = self.path.name.endswith(_INDEX)
            self.folder = self.path.parent if is_index or self.path.is_file() else self.path
            self.call = call_of(inputs=None, **self.given)
            words = {name: repr(value) for name, value in self.given.items() if name != "family_file"}
            words["family_file"] = hashlib.sha256(self.call.family_json.encode()).hexdigest()
            return json.dumps([words, self._listed()]).encode()

        everything = [json.loads(text) for text in self._everybody("what is here", said)]
        for name, here in everything[0][0].items():
            others = tuple(rank for rank, (words, _) in enumerate(everything) if words[name] != here)
            if others:
                raise RankError(f"rank {others[0]}: {name} is another than on rank 0", others)
        for rank, (_, files) in enumerate(everything):
            for name, size in files.items():
                self.holders.setdefault(name, []).append(rank)
                if self.sizes.setdefault(name, size) != size:
                    first = self.holders[name][0]
                    raise RankError(f"rank {rank}: {name} has {size} bytes, but {self.sizes[name]} on rank {first}",
                                    (rank,))  # fmt: skip

    def _listed(self) -> dict[str, int]:
        """Files of this checkpoint by name, with their sizes."""
        if self.path.is_file() and not self.path.name.endswith(_INDEX):
            names = [self.path.name, _CONFIG]
        elif self.folder.is_dir():
            kinds = (_SHARD, _INDEX)
            names = sorted(name for name in os.listdir(self.folder) if name == _CONFIG or name.endswith(kinds))
            if self.path != self.folder:
                names = [name for name in names if not name.endswith(_INDEX) or name == self.path.name]
        else:
            names = []
        return {name: os.stat(self.folder / name).st_size for name in names if (self.folder / name).exists()}

    def _shards(self) -> list[str]:
        """Those that the index names, or all there are; none where all ranks read a file of another kind."""
        indices = [name for name in self.holders if name.endswith(_INDEX)]
        if len(indices) != 1:
            indices = [name for name in indices if name == f"model{_INDEX}"]
        if not indices:
            return sorted(name for name in self.holders if name.endswith(_SHARD))
        try:
            wanted = sorted(set(json.loads(self._text(indices[0]))["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError):
            return []  # what is wrong with it is said where it is opened
        lost = [name for name in wanted if name not in self.holders]
        if lost:
            has = "; ".join(
                f"rank {rank} has {', '.join(here) or 'none'}"
                for rank in range(self.team.size)
                for here in [[name for name in wanted if rank in self.holders.get(name, ())]]
            )
            raise RankError(f"{self.folder / lost[0]}: no rank has this file, which {indices[0]} names; {has}")
        return wanted

    def _text(self, name: str) -> bytes:
        runs = self.fetched.get(name)
        return runs[0][1] if runs else (self.folder / name).read_bytes()

    def _lacking(self, name: str) -> list[int]:
        return [rank for rank in range(self.team.size) if rank not in self.holders[name]]

    def _apart(self) -> bool:
        """Whether there is a file that some rank lacks."""
        return any(self._lacking(name) for name in self.holders)

    def _share(self, names: Sequence[str], head_of: Callable[[pathlib.Path], bytes], what: str) -> None:
        """The head of each of these files, whole or a header, to those who lack it; copies are to agree."""
        rank = self.team.rank
        heads: dict[str, bytes] = {}

        def said() -> bytes:
            digests = {}
            for name in names:
                if rank in self.holders[name]:
                    head = head_of(self.folder / name)
                    digests[name] = hashlib.sha256(head).hexdigest()
                    if self.holders[name][0] == rank and self._lacking(name):
                        heads[name] = head
            words = json.dumps([digests, {name: len(head) for name, head in heads.items()}]).encode()
            return len(words).to_bytes(8, "little") + words + b"".join(heads.values())

        seen: dict[str, str] = {}
        for other, packet in enumerate(self._everybody(f"{what or 'file'}s", said)):
            end = 8 + int.from_bytes(packet[:8], "little")
            digests, lengths = json.loads(packet[8:end])
            for name, digest in digests.items():
                if seen.setdefault(name, digest) != digest:
                    first = self.holders[name][0]
                    raise RankError(f"rank {other}: {name} has another {what or 'text'} than on rank {first}", (other,))
            for name, length in lengths.items():
                if rank not in self.holders[name]:
                    self.fetched[name] = [(0, packet[end : end + length])]
                end += length

    # Layers ----------------------------------------------------------------------------------------------------------

    def _opened(self) -> Any:
        elsewhere = [(name, self.sizes[name], runs) for name, runs in self.fetched.items()]
        return _core.AuditPart(str(self.path), self.call, elsewhere)

    def _found(self) -> bytes:
        part = self._opened()
        found: bytes = part.found(dealt(part, self.holders, self.team.size)[self.team.rank])
        return found

    def _read_for_others(self, part: Any, layers: list[list[int]]) -> None:
        """Before anybody waits for it: a file that cannot be read is said together."""
        for rank in range(self.team.size):
            wanted = self._from(part, layers, rank).get(self.team.rank, [])
            if wanted:
                self.sending[rank] = b"".join(_bytes_of(self.folder / name, at, count) for name, at, count in wanted)

    def _from(self, part: Any, layers: list[list[int]], rank: int) -> dict[int, list[Extent]]:
        """What a rank needs of files that it lacks, by who sends it."""
        out: dict[int, list[Extent]] = {}
        if layers[rank]:
            for extent in _each_once([*part.reads(layers[rank]), *part.reads_of_embeddings()]):
                holders = self.holders[extent[0]]
                if rank not in holders:
                    out.setdefault(holders[rank % len(holders)], []).append(extent)
        return out

    def _fetch(self, part: Any, layers: list[list[int]]) -> None:
        team = self.team
        device = self._device()
        wanted = self._from(part, layers, team.rank)
        team.get_ready(torch.empty(0, device=device))
        sends = [(rank, torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device))
                 for rank, data in self.sending.items()]  # fmt: skip
        coming = {rank: torch.empty(sum(count for *_, count in extents), dtype=torch.uint8, device=device)
                  for rank, extents in wanted.items()}  # fmt: skip
        team.post("what layers need of other ranks' files", sends, list(coming.items()), counted=False).wait()
        self.sending = {}
        for rank, extents in wanted.items():
            data, begin = coming[rank].cpu().numpy().tobytes(), 0
            for name, at, count in extents:
                self.fetched[name].append((at, data[begin : begin + count]))
                begin += count

    def _device(self) -> torch.device:
        return self.team.packet_device()

    def _everybody(self, what: str, task: Callable[[], bytes]) -> list[bytes]:
        """What the task gives on every rank. Where it raises on one, all of them raise: that one what it raised."""
        return exchanged(lambda mine: self.team.gather_bytes(mine, self._device()), task)


def dealt(part: Any, holders: Holders, ranks: int) -> list[list[int]]:
    """The layers of each rank: where most of a layer lies, and there to who has least to read."""
    out: list[list[int]] = [[] for _ in range(ranks)]
    load = [0] * ranks
    for layer in range(part.layers):
        here = [0] * ranks
        reads = part.reads([layer])
        for name, _, count in reads:
            for rank in holders.get(name, range(ranks)):
                here[rank] += count
        most = max(here)
        rank = min((rank for rank in range(ranks) if here[rank] == most), key=lambda rank: load[rank])
        out[rank].append(layer)
        load[rank] += sum(count for *_, count in reads)
    return out


def _each_once(extents: Iterable[Extent]) -> list[Extent]:
    """What lies in another of these is left out."""
    out: list[Extent] = []
    for name, at, count in sorted(extents, key=lambda extent: (extent[0], extent[1], -extent[2])):
        if not out or out[-1][0] != name or out[-1][1] + out[-1][2] < at + count:
            out.append((name, at, count))
    return out


def _bytes_of(path: pathlib.Path, offset: int, count: int) -> bytes:
    # A FIFO must not block.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{path}: not a regular file")
        file.seek(offset)
        out = file.read(count)
    if len(out) != count:
        end = offset + len(out)
        raise ValueError(f"{path}: byte {end}: the file ends here, but {count - len(out)} more are wanted")
    return out


def _whole(path: pathlib.Path) -> bytes:
    size = os.stat(path).st_size
    if size > _MOST_HEADER:
        raise ValueError(f"{path}: {size} bytes, but at most {_MOST_HEADER} are taken")
    return _bytes_of(path, 0, size)


def _header(path: pathlib.Path) -> bytes:
    """Length and header of a shard, which is looked through first."""
    _core.check_checkpoint(str(path))
    return _bytes_of(path, 0, 8 + int.from_bytes(_bytes_of(path, 0, 8), "little"))
