"""Who looks at what a thread computes: the watches that are open, and the one mode that follows a thread's calls for
all of them.

A call has one output, however many watches look at it: it is computed once, with the statistics that the most curious
of them wants, and every one of them is told.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any, Callable, Iterator, Optional, Protocol, Sequence, Union

import torch
from torch import Tensor

from .. import torch as rootdk_torch
from .._problem import StatsOptions
from .._stats import GradientStats, Stats
from .follow import Follow, Written
from .heads import counts_of
from .history import Record
from .look import Settings, beside, computable, computed_here, counted_here, hidden_by_numbers, of_written
from .places import in_backward

_open: list[Looking] = []  # the innermost last
_open_lock = threading.Lock()


class Looking(Protocol):
    """A watch, as its eyes know it."""

    settings: Settings

    def looks(self) -> bool:
        """Whether it wants to know of what this thread computes now."""

    def here(self) -> Optional[Spot]:
        """What this thread computes now, if it is to be looked at."""

    def outside(self, what: str) -> None:
        """Attention in this thread that no watched module called."""

    def inside(self) -> bool:
        """Whether this thread is in the model it watches."""

    def missed(self, what: str, why: str) -> None: ...

    def failed(self, spot: Spot, why: str) -> None:
        """Nothing is known of a call that was to be looked at."""

    def miss_here(self) -> Optional[Callable[[str, str], None]]: ...

    def inputs(self) -> Sequence[Tensor]: ...

    def module(self) -> Optional[torch.nn.Module]: ...

    def take(self, spot: Spot, stats: Stats, dtype: str) -> Record: ...

    def take_later(self, call: Call, number: int, found: Union[Stats, GradientStats]) -> None: ...

    def record(self, spot: Spot) -> Optional[Record]: ...

    def settle(self, before: Optional[int] = None) -> None: ...

    def spent(self, seconds: float) -> None: ...

    def hides(self, below: float, count: int) -> None: ...

    def may_hide(self, below: float) -> None: ...

    def heads_are(self, label: str, first: int, heads: int) -> None: ...

    def doubts(self, label: str, why: str) -> None: ...


class Spot:
    """One call of attention, as one watch names it. In backward, a call that is computed again may have no name."""

    __slots__ = ("watch", "label", "step")

    def __init__(self, watch: Looking, label: Optional[str], step: int):
        self.watch, self.label, self.step = watch, label, step


class Call:
    """One call of attention and those who look at it; a rootdk_torch.Collector."""

    def __init__(self, spots: Sequence[Spot]):
        self.spots = list(spots)
        self.settings = Settings.of([spot.watch.settings for spot in spots])
        self.options = StatsOptions("full", sample=self.settings.sample)
        self.records: list[Optional[Record]] = [None] * len(self.spots)
        self.dtype = "f32"
        self.dim = 0
        self.prescale = 1.0  #: what q was multiplied with before it came here
        self.doubt: Optional[str] = None  #: why its heads may be others
        self.again = in_backward()
        if self.again:
            self.records = [None if spot.label is None else spot.watch.record(spot) for spot in self.spots]

    @property
    def step(self) -> int:
        return max(spot.step for spot in self.spots)

    def on_forward(self, stats: Stats) -> None:
        if self.again:
            return
        if stats._reader is not None:
            for number, spot in enumerate(self.spots):
                spot.watch.take_later(self, number, stats)
            return
        stats = stats.over_batch()
        for number in range(len(self.spots)):
            self.take(number, stats)

    def take(self, number: int, stats: Stats) -> None:
        """Of one batch item that stands for all."""
        if self.prescale not in (0.0, 1.0) and self.dim:  # what scaled q belongs to the scale
            stats = stats.with_causes(
                self.dim,
                stats.sigma_q[0] / abs(self.prescale),
                stats.sigma_k[0],
                stats.key_mean_norm[0],
                stats["scale"][0] * abs(self.prescale),
            )
        spot = self.spots[number]
        if self.doubt is not None and spot.label is not None:
            spot.watch.doubts(spot.label, self.doubt)
        self.records[number] = spot.watch.take(spot, stats, self.dtype)

    def heads_are(self, first: int, heads: int) -> None:
        """Of all heads, those that this rank computes begin there."""
        for spot in self.spots:
            if spot.label is not None:
                spot.watch.heads_are(spot.label, first, heads)

    def on_backward(self, stats: GradientStats) -> None:
        for number, spot in enumerate(self.spots):
            if not spot.watch.settings.backward:
                continue
            if stats._reader is not None:
                spot.watch.take_later(self, number, stats)
            else:
                self.take_gradients(number, stats)

    def take_gradients(self, number: int, stats: GradientStats) -> None:
        record = self.records[number]
        if record is not None and stats.batch:
            for name, values in stats.to_dict().items():
                record.set(name, values.sum(0))

    def set(self, name: str, values: Any) -> None:
        """What a hook on a gradient found."""
        for spot, record in zip(self.spots, self.records):
            if record is not None and spot.watch.settings.backward:
                record.set(name, values)

    @contextlib.contextmanager
    def listed(self) -> Iterator[int]:
        """The number under which an operator finds this call. Backward has it from the operator's own node."""
        started = time.perf_counter()
        tag = rootdk_torch.register(self)
        try:
            yield tag
        finally:
            rootdk_torch.unregister(tag)
            self.spent(started)

    def spent(self, started: float) -> None:
        for spot in self.spots:
            spot.watch.spent(time.perf_counter() - started)


def anybody() -> bool:
    """Whether a watch is open."""
    return bool(_open)


def call_here() -> Optional[Call]:
    """Of this thread, if anybody looks at it now."""
    with _open_lock:
        watches = list(_open)
    spots = [spot for spot in (watch.here() for watch in watches) if spot is not None]
    return Call(spots) if spots else None


class _Eyes:
    """The Looker of a thread's mode."""

    @property
    def looking(self) -> bool:
        return any(watch.looks() for watch in _open)

    def batch_hint(self) -> Sequence[Tensor]:
        for watch in reversed(_open):
            if found := watch.inputs():
                return found
        return ()

    def heads_hint(self) -> Sequence[int]:
        for watch in reversed(_open):
            if (module := watch.module()) is not None:
                return counts_of(module)
        return ()

    def missed(self, what: str, why: str) -> None:
        for watch in list(_open):
            watch.missed(what, why)

    def miss_here(self) -> Optional[Callable[[str, str], None]]:
        found = [miss for miss in (watch.miss_here() for watch in list(_open)) if miss is not None]

        def miss(what: str, why: str) -> None:
            for each in found:
                each(what, why)

        return miss if found else None

    def written_out(self, found: Written) -> None:
        call = call_here()
        if call is None:
            for watch in list(_open):
                watch.outside("attention that is written out")
            return
        started = time.perf_counter()
        of_written(call, found)
        call.spent(started)

    def sdpa(
        self,
        func: Callable[..., Tensor],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Optional[Tensor] = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: Optional[float] = None,
        enable_gqa: bool = False,
        *,
        prescale: float = 1.0,
    ) -> Tensor:
        def theirs() -> Tensor:
            return func(
                query,
                key,
                value,
                attn_mask=attn_mask,
                dropout_p=dropout_p,
                is_causal=is_causal,
                scale=scale,
                enable_gqa=enable_gqa,
            )

        # what a graph records, nobody can look at meanwhile
        if query.is_cuda and torch.cuda.is_current_stream_capturing():
            return theirs()
        call = call_here()
        if call is None:
            for watch in list(_open):
                watch.outside("scaled_dot_product_attention")
            return theirs()
        started = time.perf_counter()
        call.prescale, call.doubt = prescale, _thread.mode.trail.doubt
        hidden = hidden_by_numbers(call, query, key, attn_mask, scale)
        problem = computable(call, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, hidden)
        call.spent(started)
        if problem is not None and problem.for_output:
            return computed_here(call, problem)
        query, key, value = _own_view(query), _own_view(key), _own_view(value)
        out = theirs()
        started = time.perf_counter()
        if problem is not None:
            counted_here(call, problem, query, key, value)
        else:
            beside(call, query, key, value, attn_mask, is_causal, scale, hidden)
        call.spent(started)
        return out


def _own_view(x: Tensor) -> Tensor:
    """Whose gradient is that of this call alone."""
    plain = type(x) in (Tensor, torch.nn.Parameter) and not x.is_nested
    return x.view_as(x) if plain and x.requires_grad else x


class _Thread(threading.local):
    def __init__(self) -> None:
        self.mode = Follow(_Eyes())
        self.depth = 0
        self.open = 0  #: watches that were opened here
        self.pushed = False  #: whether the first of them put the mode onto the stack


_thread = _Thread()


def scaled_before(query: Tensor, key: Tensor) -> float:
    """What the model multiplied them with before it computed attention, as far as this thread's mode has seen."""
    return _thread.mode.trail.scaled(query, key)


def layer_gave(out: Any) -> None:
    """A layer whose weights are not plain tensors."""
    _thread.mode.trail.of_layer(out)


def forget(finished: bool = True) -> None:
    """Lets go of what this thread's mode was following: a step is over, unless another watch's model still runs."""
    if not any(watch.inside() for watch in _open):
        _thread.mode.forget(finished)


def enter() -> bool:
    """Puts the mode onto this thread's stack, unless it is there; where backward computes again for a checkpoint,
    stacks are empty."""
    if _thread.depth and torch._C._len_torch_function_stack() > 0:
        return False
    _thread.mode.__enter__()
    _thread.depth += 1
    return True


def leave() -> None:
    """Takes it off again, if it lies on top: others may have left theirs there. One that stays looks at nothing while
    no watch is open."""
    _thread.depth -= 1
    size = torch._C._len_torch_function_stack()
    if size and torch._C._get_function_stack_at(size - 1) is _thread.mode:
        _thread.mode.__exit__(None, None, None)


def open_eyes(watch: Looking) -> None:
    if _thread.open == 0:
        _thread.pushed = enter()
    _thread.open += 1
    with _open_lock:
        _open.append(watch)


def close_eyes(watch: Looking, finished: bool = True) -> None:
    """In whatever order watches are closed, the last one takes the mode away."""
    with _open_lock:
        if watch in _open:
            _open.remove(watch)
    if _thread.open:  # 0 in a thread that opened none
        _thread.open -= 1
        if _thread.open == 0 and _thread.pushed:
            leave()
    forget(finished)
