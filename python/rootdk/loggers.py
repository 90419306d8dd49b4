"""What a watch sees, to where runs are logged: wandb, TensorBoard, Prometheus, transformers' Trainer, Lightning.

None of these is imported before it is asked for. Numbers are read from a device when they are written.
"""

from __future__ import annotations

import functools
import importlib
import os
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence, Union

import torch

from ._watch.history import COLUMNS
from ._watch.watch import Watch

__all__ = ["lightning_callback", "log", "prometheus_collector", "trainer_callback"]

Sink = Callable[[Mapping[str, float], int], Any]


def sink(to: Any) -> Sink:
    """A function that takes names with values, and a step, of: such a function, a wandb run (or wandb itself), a
    SummaryWriter, or a folder for one."""
    if isinstance(to, (str, os.PathLike)):
        return _folder(os.path.abspath(os.fspath(to)))
    if hasattr(to, "add_scalar"):

        def write(values: Mapping[str, float], step: int) -> None:
            for name, value in values.items():
                to.add_scalar(name, value, step)

        return write
    if callable(getattr(to, "log", None)):
        return lambda values, step: to.log(dict(values), step=step)
    if callable(to):
        return to  # type: ignore[no-any-return]
    raise TypeError(f"to: {type(to).__name__}, but a wandb run, a SummaryWriter, a folder or a function is wanted")


def _folder(folder: str) -> Sink:
    """A SummaryWriter there, made when something is written: a rank that writes nothing leaves no file. Nobody closes
    it, so that it is flushed each time."""
    importlib.import_module("torch.utils.tensorboard")  # that it is missing is said before training

    def write(values: Mapping[str, float], step: int) -> None:
        writer = _writer(folder)
        sink(writer)(values, step)
        writer.flush()

    return write


@functools.lru_cache(None)
def _writer(folder: str) -> Any:
    """One for a folder, however often it is named."""
    return importlib.import_module("torch.utils.tensorboard").SummaryWriter(folder)


def log(watch: Watch, to: Any, step: Optional[int] = None, prefix: str = "attention") -> None:
    """Writes a watch's newest step, as that step or as another."""
    sink(to)(watch.scalars(prefix), watch.step if step is None else step)


class _Watching:
    """A watch that is opened when training begins, written from time to time, and closed."""

    def __init__(self, to: Any, prefix: str, options: Mapping[str, Any]):
        targets = to if isinstance(to, (list, tuple)) else [] if to is None else [to]
        self.sinks = [sink(target) for target in targets]
        self.prefix, self.options = prefix, dict(options)
        self.watch: Optional[Watch] = None
        self._open = False
        self._written = -1

    def open(self, model: torch.nn.Module) -> None:
        self.close()
        self.watch = Watch(model, **self.options).__enter__()
        self._open = True

    def close(self) -> None:
        if self.watch is not None and self._open:
            self._open = False
            self.watch.__exit__(None, None, None)

    def pass_over(self) -> None:
        """What was seen until now is not to be written."""
        if self.watch is not None:
            self._written = self.watch.step

    def write(self, step: int, *others: Sink) -> dict[str, float]:
        """What is new since the last time, if anything."""
        if self.watch is None or self.watch.step == self._written:
            return {}
        values = self.watch.scalars(self.prefix)
        self._written = self.watch.step
        for each in (*self.sinks, *others):
            each(values, step)
        return values


def trainer_callback(to: Any = None, prefix: str = "attention", **options: Any) -> Any:
    """For transformers' Trainer: `Trainer(…, callbacks=[rootdk.loggers.trainer_callback(to=run)])` watches the model
    while it trains and writes whenever the Trainer logs, on the first rank: to `to` (what `sink` takes, or a list of
    such), and into `state.log_history`; what evaluation computes is not written. Options are those of rootdk.watch; the
    watch is `callback.watch`."""
    base: Any = importlib.import_module("transformers").TrainerCallback

    class WatchCallback(base):  # type: ignore[misc]
        def __init__(self) -> None:
            self._watching = _Watching(to, prefix, options)

        @property
        def watch(self) -> Optional[Watch]:
            return self._watching.watch

        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            self._watching.open(model)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, model: Any = None, **_: Any) -> None:
            if model is not None and not model.training:
                self._watching.pass_over()  # the newest numbers are those of evaluation
                return
            if not state.is_world_process_zero:
                return
            values = self._watching.write(state.global_step)
            if state.log_history:
                state.log_history[-1].update(values)

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._watching.close()

    return WatchCallback()


def lightning_callback(
    to: Any = None,
    prefix: str = "attention",
    module: Optional[Callable[[Any], torch.nn.Module]] = None,
    **options: Any,
) -> Any:
    """For Lightning's Trainer: watches the module while it trains, tells the watch its loss, and writes every
    `log_every_n_steps` (0: never) on the first rank, to the Trainer's loggers and to `to`. `module` picks the part to
    watch, where training_step calls a part and not the LightningModule itself. Options are those of rootdk.watch; the
    watch is `callback.watch`."""
    base: Any = _lightning().Callback

    class WatchCallback(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._watching = _Watching(to, prefix, options)
            self._steps = 0  # of the optimizer, after the newest batch

        @property
        def watch(self) -> Optional[Watch]:
            return self._watching.watch

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self._steps = trainer.global_step
            self._watching.open(pl_module if module is None else module(pl_module))

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
            if isinstance(loss, torch.Tensor) and loss.numel() == 1 and self.watch is not None:
                self.watch.loss(loss)
            # Batches between two optimizer steps have the same number, and one batch may step more than one optimizer.
            every, before, self._steps = int(trainer.log_every_n_steps), self._steps, trainer.global_step
            if every > 0 and self._steps // every > before // every and trainer.is_global_zero:
                loggers = [_of_logger(logger) for logger in trainer.loggers]
                self._watching.write(trainer.global_step, *loggers)

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            self._watching.close()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            self._watching.close()

    return WatchCallback()


def _of_logger(logger: Any) -> Sink:
    return lambda values, step: logger.log_metrics(dict(values), step=step)


def _lightning() -> Any:
    for name in ("lightning.pytorch", "pytorch_lightning"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
    raise ImportError("lightning_callback needs lightning or pytorch_lightning, and neither is installed")


def prometheus_collector(watch: Union[Watch, Sequence[Watch]], prefix: str = "rootdk") -> Any:
    """For prometheus_client: `REGISTRY.register(rootdk.loggers.prometheus_collector(w))` gives out the newest step
    whenever it is scraped; gauges are labelled by layer and head. Without that package `w.prometheus()` is the text."""
    core: Any = importlib.import_module("prometheus_client.core")
    watches = [watch] if isinstance(watch, Watch) else list(watch)

    class Collector:
        def collect(self) -> Iterator[Any]:
            for name in COLUMNS:
                gauge = core.GaugeMetricFamily(f"{prefix}_{name}", f"attention: {name}", labels=["layer", "head"])
                for each in watches:
                    for record in each._seen.newest():
                        for head, value in enumerate(record[name].tolist()):
                            if value == value:
                                gauge.add_metric([record.layer, str(head)], value)
                yield gauge

    return Collector()
