"""rootdk.watch: eyes on a model that is already running.

Three ways in, none of which changes the model: calls of `F.scaled_dot_product_attention` are seen by a
TorchFunctionMode, which also follows attention that is written out (a product, a softmax over it, a second product);
and transformers can be told to call rootdk. `places.py` knows where in the model a thread is, `eyes.py` and `look.py`
look at calls, `history.py` remembers, `alarm.py` judges, `say.py` and `report.py` speak, `clip.py` mends.
"""

from __future__ import annotations

import os
import pathlib
import sys
import threading
import time
import warnings
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence, Union

import numpy as np
import torch
from torch import Tensor

from .._files import write_whole
from .._stats import GradientStats, Stats
from ..torch import transformed
from .alarm import Alarm, Event, Watchdog
from .cause import facts_of
from .clip import Clipper, Projections
from .eyes import Call, Looking, Spot, close_eyes, enter, forget, layer_gave, leave, open_eyes
from .history import COLUMNS, FORWARD, History, Record
from .later import Later
from .look import Settings
from .places import OUTSIDE, Modules, Place, in_backward, label_of
from .products import plain_data
from .say import (
    NO_LOSS,
    NOTHING,
    TensorBoard,
    hidden_words,
    low_loss_words,
    may_hide_words,
    prometheus,
    scalars,
    table,
    unseen_words,
    what_of,
)
from .transformers import register_with_transformers

__all__ = ["Alarm", "Event", "Watch"]


class Watch:
    """Looks at every attention a torch model computes while the context is open, in whatever thread it runs; without a
    model, at what the thread that opened it computes.

    every     look at every k-th call of the model
    on        Alarm, a function that takes an Event, or a list of both; by default a layer that has stopped learning and
              scores that are not finite give a warning; None or () is silence
    sample    full statistics from every so many blocks of 64 queries
    rows      not on the CPU: full statistics from about so many query rows, in blocks of 64 where rootdk computes the
              attention
    beside    True: leave the model's own kernel alone and sample `rows` rows beside it, which is what happens anyway
              where rootdk has no fast kernel for the problem
    backward  also what backward brings
    keep      steps to remember; when there are more, every second one is forgotten
    resumed   True: the model was trained before, so layers that are closed at first have learned to be; False: it was
              not; None: a first loss far below that of a model that knows nothing says that it was
    group     the ranks that over_ranks() is about; None: all there are
    """

    def __init__(
        self,
        model: Optional[torch.nn.Module] = None,
        *,
        every: int = 1,
        on: Union[Alarm, Callable[[Event], Any], Iterable[Union[Alarm, Callable[[Event], Any]]], None] = Alarm(),
        sample: int = 1,
        rows: int = 64,
        beside: bool = False,
        backward: bool = True,
        keep: int = 1000,
        resumed: Optional[bool] = None,
        group: Any = None,
    ):
        if model is not None and not isinstance(model, torch.nn.Module):
            raise TypeError(f"model: {type(model).__name__}, but a torch.nn.Module is wanted")
        for name, value in (("every", every), ("sample", sample), ("rows", rows), ("keep", keep)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name}: {value!r}, but a whole number from 1 is wanted")
        given = [on] if isinstance(on, Alarm) or callable(on) else list(on or ())
        for alarm in given:
            if not isinstance(alarm, Alarm) and (not callable(alarm) or isinstance(alarm, type)):
                raise TypeError(f"on: {type(alarm).__name__}, but Alarm or a function that takes an Event is wanted")
        if "transformers" in sys.modules:
            register_with_transformers()
        self.model = model
        self.settings = Settings(sample, rows, beside, backward)
        self._every, self._group = every, group
        self._history, self._later, self._tensorboard = History(keep), Later(), TensorBoard()
        self._dog = Watchdog([alarm if isinstance(alarm, Alarm) else Alarm(call=alarm) for alarm in given], resumed)
        self._events: list[Event] = []
        self._modules: Optional[Modules] = None  # while it is open
        self._place = Place()
        self._is_open = False
        self._lock = threading.RLock()  # of what several threads' calls are taken into
        self._step = -1
        self._called: dict[str, str] = {}  # label → the module that called
        self._known: dict[str, Mapping[str, Any]] = {}  # of that module
        self._parts: dict[str, tuple[int, int]] = {}  # label → its first head and how many all ranks have
        self._clipper = Clipper()
        self._unseen: dict[tuple[str, str], str] = {}  # (module, what_of it) → in words
        self._named: set[tuple[str, str]] = set()  # of these, what a warning has named
        self._hidden: dict[float, int] = {}
        self._may_hide: Optional[float] = None  # the largest number
        self._watched_s = self._model_s = 0.0
        self._looked = 0

    # Life -------------------------------------------------------------------------------------------------------------
    def __enter__(self) -> Watch:
        if self._is_open:
            raise RuntimeError("watch: already open")
        if self.model is not None:
            self._modules = Modules(
                self.model, self._begin, self._end, self._interrupted, self._saw_nothing, layer_gave
            )
            self._modules.step = self._step
            self._place = self._modules.place
        elif self._step < 0:
            self._step = 0
        self._is_open = self._place.opened = True
        self._place.step = self._step
        try:
            open_eyes(self)
        except BaseException:
            self._is_open = self._place.opened = False
            if self._modules is not None:
                self._modules.remove()
                self._modules = None
            raise
        return self

    def __exit__(self, *exception: Any) -> None:
        close_eyes(self, finished=exception[:1] == (None,))
        self._is_open = self._place.opened = False
        if self._modules is not None:
            if self._modules.step < 0 and exception[:1] == (None,):
                self._look_for_closed()
                for name in self._modules.expected:
                    self._unseen.setdefault((name, NOTHING), "was not called, unless inside torch.compile")
            self._step = self._modules.step
            self._modules.remove()
            self._modules = None
        try:
            self.settle()
        finally:
            self._later.close()
            self._warn_of_unseen()

    def __repr__(self) -> str:
        what = "" if self.model is None else f"{type(self.model).__name__}, "
        layers, steps = len(self._history.layers), self._history.number + 1
        return f"Watch({what}{layers} layers, {steps} steps, {len(self._events)} alarms)"

    @property
    def step(self) -> int:
        """Of the model's newest call."""
        return self._step if self._modules is None else self._modules.step

    def next_step(self) -> None:
        """For a watch without a model: what follows belongs to the next step."""
        if self.model is not None:
            raise ValueError("next_step: this watch has a model, whose calls are its steps")
        self.settle(before=self._step)
        self._step += 1
        self._place.step, self._place.calls = self._step, {}
        forget()

    def __dir__(self) -> Iterable[str]:
        """Without what only its eyes call."""
        return sorted({*super().__dir__()} - {*vars(Looking), *Looking.__annotations__})

    def _begin(self) -> None:
        """A thread enters the model."""
        place = self._place
        place.mode = enter()
        place.started = time.perf_counter()
        if not in_backward():
            self.settle(before=place.step)

    def _interrupted(self, finished: bool = False) -> None:
        """A thread is out of the model."""
        place = self._place
        if place.mode:
            leave()
            place.mode = False
        forget(finished)

    def _end(self, output: Any) -> None:
        place = self._place
        self._interrupted(finished=sys.exc_info()[0] is None)
        if in_backward():
            return
        self._model_s += time.perf_counter() - place.started
        self._own_loss(output)
        if place.step % self._every == 0:
            self._look_for_closed()
            self._warn_of_unseen()

    def loss(self, value: Union[float, Tensor]) -> None:
        """The loss of the newest step, which tells a layer that has stopped learning from one that has learned. A
        tensor on a device is not read before that is needed. Not wanted where the model's output has a `loss`: then it
        is taken from there."""
        self._lost(value, None)

    def _own_loss(self, output: Any) -> None:
        """Of a transformers model that was given labels, or of a dictionary."""
        try:
            found, logits = (
                output.get(name) if isinstance(output, dict) else getattr(output, name, None)
                for name in ("loss", "logits")
            )
        except Exception:  # an output that cannot say it has none
            return
        if (
            isinstance(found, Tensor)
            and found.numel() == 1
            and found.is_floating_point()
            and plain_data(found)
            and not transformed(found)
        ):
            self._lost(found, logits.shape[-1] if isinstance(logits, Tensor) and logits.ndim > 1 else None)

    def _lost(self, value: Union[float, Tensor], classes: Optional[int]) -> None:
        if isinstance(value, Tensor):
            if value.numel() != 1:
                raise ValueError(f"value: a tensor {list(value.shape)}, but one number is wanted")
            value = value.detach().reshape(())
        if not isinstance(value, Tensor) or not value.is_cuda:
            value = float(value)
        with self._lock:
            found = self._dog.loss(self.step, value, classes)
        self._tell(found)

    def _tell(self, found: list[tuple[Alarm, Event]]) -> None:
        self._events += [event for _, event in found]
        for alarm, event in found:
            alarm.deliver(event)

    # Looking ----------------------------------------------------------------------------------------------------------
    def looks(self) -> bool:
        """Whether it wants to know of what this thread computes now: inside of the model in the steps it looks at, and
        outside to name what is there."""
        place = self._place
        return place.step % self._every == 0 if place.stack else place.opened

    def inside(self) -> bool:
        """Whether this thread is in the model."""
        return bool(self._place.stack)

    def _wanted(self) -> bool:
        """Whether this thread is where it is to be looked at."""
        self._drop_interrupted()
        place = self._place
        return place.step % self._every == 0 and (bool(place.stack) if self.model is not None else place.opened)

    def _drop_interrupted(self) -> None:
        if self._modules is not None:
            self._modules.drop_interrupted()

    def here(self) -> Optional[Spot]:
        """What this thread computes now, if it is to be looked at. Not what a compiled graph computes: nothing says
        which of the modules in it that is, and all of them are named."""
        if not self._wanted():
            return None
        place = self._place
        if place.in_graph() is not None:
            self.missed("attention", "inside torch.compile")
            return None
        place.noticed += 1
        label = label_of(place, "(root)" if self.model is not None else "attention")
        if label is not None:
            self._called[label] = place.stack[-1] if place.stack else ""
            nothing = (self._called[label] or "(root)", NOTHING)
            if self._unseen.pop(nothing, None) is not None:
                self._named.discard(nothing)
        if in_backward() and label is not None and self._history.find(place.step, f"{label}#2") is not None:
            label = None  # one of several calls, and nothing says which
        return Spot(self, label, place.step)

    def inputs(self) -> Sequence[Tensor]:
        """What the innermost module was called with."""
        self._drop_interrupted()
        return self._place.inputs[-1] if self._place.inputs else ()

    def module(self) -> Optional[torch.nn.Module]:
        """The innermost of those that are running."""
        self._drop_interrupted()
        return self._place.modules[-1] if self._place.modules else None

    def outside(self, what: str) -> None:
        if self._modules is not None and self._place.opened and not self._place.stack:
            if self._modules.called_compiled():
                self._look_for_closed()
                if any(module != OUTSIDE for module, _ in self._unseen):
                    return
            self._name(
                OUTSIDE,
                f"{what} was called outside of the model's modules, or by torch.compile; "
                "rootdk.watch() without a model sees that",
            )

    def missed(self, what: str, why: str) -> None:
        miss = self.miss_here()
        if miss is not None:
            miss(what, why)

    def failed(self, spot: Spot, why: str) -> None:
        if spot.label is not None:
            self._name(self._called[spot.label], why)

    def miss_here(self) -> Optional[Callable[[str, str], None]]:
        """What names something in this place, now or later. Either counts as noticed."""
        if not self._wanted() or in_backward():
            return None
        place = self._place
        place.noticed += 1
        softmax = bool(place.modules) and isinstance(place.modules[-1], torch.nn.Softmax)
        name = place.stack[-2 if softmax and len(place.stack) > 1 else -1] if place.stack else ""
        graph = place.in_graph()
        if graph is not None and self._modules is not None:
            blamed = self._modules.blamed(graph)
            if blamed is None:
                return None
            name = blamed
        return lambda what, why: self._name(name, f"{what}: {why}")

    def _name(self, module: str, words: str) -> None:
        """Something in a module that is in no statistic, whatever else of it was seen."""
        if self._place.step % self._every == 0:
            self._unseen.setdefault((module or "(root)", what_of(words)), words)

    def _saw_nothing(self, module: str, why: str) -> None:
        """In a module that should have computed attention. Not where it has before."""
        if self._place.step % self._every == 0 and module not in self._called.values():
            self._unseen.setdefault((module or "(root)", NOTHING), why)

    def _look_for_closed(self) -> None:
        assert self._modules is not None
        unseen = {module for module, _ in self._unseen}
        for name, why in self._modules.closed({*self._called.values()}, unseen):
            if (name or "(root)") not in unseen:
                self._unseen[name or "(root)", NOTHING] = why

    def _warn_of_unseen(self) -> None:
        new = [at for at in self._unseen if at not in self._named]
        if new:
            self._named.update(new)
            words = unseen_words([(at[0], self._unseen[at]) for at in new])
            warnings.warn(f"rootdk.watch: {words}", RuntimeWarning, stacklevel=2)

    def hides(self, below: float, count: int) -> None:
        with self._lock:
            self._hidden[below] = self._hidden.get(below, 0) + count

    def may_hide(self, below: float) -> None:
        with self._lock:
            self._may_hide = below if self._may_hide is None else max(below, self._may_hide)

    def spent(self, seconds: float) -> None:
        self._watched_s += seconds

    # Taking -----------------------------------------------------------------------------------------------------------
    def take_later(self, call: Call, number: int, found: Union[Stats, GradientStats]) -> None:
        def take(read: Union[Stats, GradientStats]) -> None:
            if isinstance(read, Stats):
                call.take(number, read)
            else:
                call.take_gradients(number, read)

        with self._lock:
            self._later.read(call.spots[number].step, lambda: _read(found), take)

    def settle(self, before: Optional[int] = None) -> None:
        """Takes what has come from a GPU meanwhile; waits for what is from before that step, or without one for all of
        it."""
        with self._lock:
            self._later.settle(before)

    def record(self, spot: Spot) -> Optional[Record]:
        return None if spot.label is None else self._history.find(spot.step, spot.label)

    def take(self, spot: Spot, stats: Stats, dtype: str) -> Record:
        """Of one batch item that stands for all."""
        assert spot.label is not None
        record = Record(spot.step, spot.label, stats.heads)
        names = set(stats.names)
        for name in FORWARD:
            if name in names:
                record.set(name, stats[name][0])
        with self._lock:
            self._looked += 1
            self._history.add(record, stats)
            # A maximum over finite rows says nothing of those that are not.
            peak = np.where(record["rows_not_finite"] > 0, np.nan, record["raw_max"])
            self._clipper.observe(spot.step, spot.label, self._called[spot.label], peak.tolist())
            values = {name: record[name] for name in FORWARD}
            found = self._dog.look(spot.step, spot.label, values, stats, dtype, self._facts(spot.label))
        self._tell(found)
        return record

    def _facts(self, label: str) -> Mapping[str, Any]:
        if label not in self._known:
            self._known[label] = {} if self.model is None else facts_of(self.model.get_submodule(self._called[label]))
        return self._known[label]

    # What was seen ----------------------------------------------------------------------------------------------------
    @property
    def _seen(self) -> History:
        """With all that a GPU still has to say."""
        self.settle()
        return self._history

    @property
    def alarms(self) -> list[Event]:
        """Every event so far."""
        self.settle()
        return self._events

    @property
    def layers(self) -> list[str]:
        """The modules that computed attention, in the order in which they did."""
        return list(self._seen.layers)

    @property
    def unseen(self) -> Mapping[str, str]:
        """What looks like attention and was not seen, by module, with the reason, or reasons."""
        found: dict[str, str] = {}
        for (module, _), words in self._unseen.items():
            found[module] = f"{found[module]}; {words}" if module in found else words
        return found

    def stats(self, layer: str) -> Stats:
        """All statistics of a layer's newest step, merged over its batch."""
        if layer not in self._seen.last:
            raise KeyError(f"layer: {layer!r} is none of {self.layers}")
        return self._seen.last[layer]

    def over_ranks(self, *, timeout: float = 120.0) -> dict[str, Stats]:
        """The same of all ranks of the watch's group together, by layer: rows of data parallel and context parallel
        ranks are merged, heads of tensor parallel ones put beside each other. One exchange of packets; every rank of
        the group has to call, and gets the same."""
        from .over_ranks import over_ranks

        return over_ranks(self.model, self._seen.last, self._called, self._parts, self._group, timeout)

    def heads_are(self, label: str, first: int, heads: int) -> None:
        """Of all heads of a layer, those that this rank computes begin there."""
        self._parts[label] = (first, heads)

    def doubts(self, label: str, why: str) -> None:
        """Why the heads of a layer may be others than it seems."""
        self._clipper.doubt(label, why)

    def table(
        self,
        *,
        columns: Sequence[str] = (
            "raw_max",
            "score_sigma",
            "sigma_ratio",
            "entropy",
            "mean_p_max",
            "trace_j",
            "d_scores",
        ),
        worst: Optional[int] = None,
    ) -> str:
        """The newest step as text: a line per layer and head, or only for the `worst` ones."""
        for name in columns:
            if name not in COLUMNS:
                raise ValueError(f"columns: {name!r} is none of {', '.join(COLUMNS)}")
        text = table(self._seen.newest(), tuple(columns), worst)
        unseen = [(module, words) for (module, _), words in self._unseen.items()]
        return "\n".join(part for part in (text, *self._notes(), unseen_words(unseen)) if part)

    def _notes(self) -> list[str]:
        blind = self._dog.waits_for_loss and any(
            np.isfinite([record["d_q"], record["d_scores"]]).any() for record in self._seen.newest()
        )
        mute = self._dog.taken_for_resumed and any(alarm.frozen for alarm in self._dog.alarms)
        losses = self._dog.losses
        notes = (
            self.cost(),
            hidden_words(self._hidden),
            may_hide_words(self._may_hide) if self._may_hide is not None else "",
            NO_LOSS if blind else "",
            low_loss_words(losses.very_first, losses.classes) if mute and losses.classes else "",
        )
        return [part for part in notes if part]

    def cost(self) -> str:
        """What watching took, in words. On the CPU the attention itself is part of it: statistics come from the same
        pass."""
        self.settle()
        if not self._looked:
            never = "This watch was not opened yet: with rootdk.watch(model) as w: …"
            return "No attention was seen yet." if self._is_open or self._step >= 0 or self._unseen else never
        share = (
            f", {100 * self._watched_s / self._model_s:.0f} % of the model's {self._model_s:.3g} s"
            if self._model_s
            else ""
        )
        return f"{self._looked} attention calls were watched in {self._watched_s:.3g} s{share}."

    def to_dicts(self) -> list[dict[str, Any]]:
        """A dictionary per step, layer and head."""
        return list(self._seen.rows())

    def to_pandas(self) -> Any:
        """A DataFrame with a row per step, layer and head. Needs pandas."""
        import pandas

        return pandas.DataFrame(self.to_dicts(), columns=["step", "layer", "head", *COLUMNS])

    def report(self, path: Union[str, os.PathLike[str]]) -> pathlib.Path:
        """One HTML file that needs nothing else: layer × head over time, the alarms, and what was not seen."""
        from .report import page

        return write_whole(path, page(self._seen, self.alarms, self._notes(), self.unseen))

    def tensorboard(self, writer: Any, prefix: str = "attention") -> None:
        """Writes the newest step: per layer the largest, smallest and mean over heads of each statistic. `writer` is a
        SummaryWriter, or the folder for one, which needs the package tensorboard."""
        self._tensorboard.write(writer, self._seen.newest(), prefix)

    def scalars(self, prefix: str = "attention") -> dict[str, float]:
        """The same numbers of the newest step by name, for whatever logs: `wandb.log(w.scalars())`."""
        return {name: value for name, value, _ in scalars(self._seen.newest(), prefix)}

    def prometheus(self, prefix: str = "rootdk") -> str:
        """The newest step in Prometheus's text format."""
        return prometheus(self._seen.newest(), prefix)

    # Doing something about it -----------------------------------------------------------------------------------------
    def qk_clip(
        self,
        tau: float = 100.0,
        alpha: float = 0.5,
        *,
        projections: Optional[Mapping[str, Projections]] = None,
        group: Any = None,
    ) -> dict[str, list[float]]:
        """QK-clip, to be called after an optimizer step: where a head's largest raw score since the last call passed
        tau, its projection weights, or the gains of its QK-norm, shrink so that the same inputs would give tau. All
        layers or none: what cannot be done exactly raises before anything is changed. Returns by how much each head's
        scores were multiplied, for the layers where that is below 1. The next look at such a layer warns if its maximum
        did not follow.

        projections: for layers whose weights cannot be found by name, `{layer: rootdk.Projections(...)}` with views of
        them. group: with torch.distributed, whose maxima count: by default all ranks'; a process group; False for this
        rank's alone. All of its ranks must call.
        """
        if self.model is None:
            raise ValueError("qk_clip: this watch has no model")
        self.settle()
        return self._clipper.clip(self.model, tau, alpha, projections=projections, group=group)


def _read(found: Union[Stats, GradientStats]) -> Union[Stats, GradientStats]:
    """In a thread, most of it without Python's lock."""
    if isinstance(found, Stats):
        return found.over_batch()
    _ = found._core  # waits for the device
    return found
