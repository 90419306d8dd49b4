"""What a watch sees, written to where runs are logged: the real packages where they are here, small stand-ins
elsewhere."""

from __future__ import annotations

import subprocess
import sys
import types

import numpy as np
import pytest
import rootdk
import torch
from rootdk import loggers


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.layer(x).square().mean()


@pytest.fixture
def seen():
    torch.manual_seed(0)
    model = Model()
    with rootdk.watch(model, on=None) as w:
        for _ in range(3):
            model(torch.randn(2, 7, 16)).backward()
    return w


NAME = "attention/layer.self_attn/raw_max/max"


def test_scalars_are_the_newest_steps_numbers(seen):
    values = seen.scalars()
    frame = seen.to_pandas()
    newest = frame[frame.step == 2]
    for column in ("raw_max", "entropy", "d_scores"):
        for what in ("max", "mean", "min"):
            found = values[f"attention/layer.self_attn/{column}/{what}"]
            assert found == pytest.approx(getattr(newest[column], what)(), rel=1e-6)
    assert all(np.isfinite(value) for value in values.values())


class Run:
    """As much of wandb's run as is used."""

    def __init__(self):
        self.logged = []

    def log(self, values, step=None):
        self.logged.append((step, values))


def test_wandb_and_functions(seen):
    run, told = Run(), []
    loggers.log(seen, run)
    loggers.log(seen, lambda values, step: told.append((step, dict(values))), step=40, prefix="a")
    assert run.logged == [(2, seen.scalars())] and told == [(40, seen.scalars("a"))]
    with pytest.raises(TypeError, match="^to: int, but a wandb run"):
        loggers.log(seen, 3)


def test_tensorboard(seen, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path) as writer:
        loggers.log(seen, writer, step=5)
        seen.tensorboard(writer)
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    events = read.Scalars(NAME)
    assert [event.step for event in events] == [5, 2]
    assert events[0].value == events[1].value == pytest.approx(seen.scalars()[NAME], rel=1e-6)


def test_a_folder_has_one_writer_whose_file_is_read_while_it_is_written(seen, tmp_path, monkeypatch):
    """Nobody can close what they never saw."""
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    flushed, flush = [], SummaryWriter.flush
    monkeypatch.setattr(SummaryWriter, "flush", lambda self: (flushed.append(1), flush(self)))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = tmp_path / "runs"
    write = loggers.sink(folder)
    assert not folder.exists()
    for step in range(3):
        loggers.log(seen, str(folder), step=step)
    write(seen.scalars(), 3)
    assert len(list(folder.iterdir())) == 1 and len(flushed) == 4
    read = EventAccumulator(str(folder))
    read.Reload()
    assert [event.step for event in read.Scalars(NAME)] == [0, 1, 2, 3]


def test_prometheus(seen, monkeypatch):
    class Gauge:
        def __init__(self, name, documentation, labels):
            self.name, self.labels, self.samples = name, labels, {}

        def add_metric(self, labels, value):
            self.samples[tuple(labels)] = value

    core = types.ModuleType("prometheus_client.core")
    core.GaugeMetricFamily = Gauge
    monkeypatch.setitem(sys.modules, "prometheus_client", types.ModuleType("prometheus_client"))
    monkeypatch.setitem(sys.modules, "prometheus_client.core", core)
    assert [gauge.samples for gauge in loggers.prometheus_collector([]).collect()][0] == {}
    seen._seen.newest()[0]["entropy"][0] = float("nan")  # which nothing is given out of
    other = types.SimpleNamespace(_seen=types.SimpleNamespace(newest=list))
    gauges = {gauge.name: gauge for gauge in loggers.prometheus_collector([other, seen]).collect()}
    raw = seen.stats("layer.self_attn").raw_max[0]
    wanted = {("layer.self_attn", str(head)): pytest.approx(value) for head, value in enumerate(raw)}
    assert gauges["rootdk_raw_max"].samples == wanted and gauges["rootdk_raw_max"].labels == ["layer", "head"]
    for name, gauge in gauges.items():  # as the text says it
        lines = [line for line in seen.prometheus().splitlines() if line.startswith(f"{name}{{")]
        assert len(lines) == len(gauge.samples)


def test_the_trainer_of_transformers():
    """Its own handler of callbacks and its own state, and a loop in the Trainer's place."""
    transformers = pytest.importorskip("transformers")
    from transformers.trainer_callback import CallbackHandler

    run, other = Run(), Run()
    callback = loggers.trainer_callback(to=[run, other], on=None, prefix="a")
    assert isinstance(callback, transformers.TrainerCallback) and callback.watch is None
    model, state = Model(), transformers.TrainerState()
    control = transformers.TrainerControl()
    handler = CallbackHandler([callback], model, None, None, None)
    handler.on_train_begin(None, state, control)
    for step in range(1, 5):
        model(torch.randn(2, 7, 16)).backward()
        state.global_step = step
        handler.on_step_end(None, state, control)
        if step % 2 == 0:
            logs = {"loss": 1.0}
            state.log_history.append({**logs, "step": step})
            handler.on_log(None, state, control, logs)
            wanted = callback.watch.scalars("a")
            model.eval()(torch.randn(2, 7, 16))  # evaluation has numbers of its own
            state.log_history.append({"eval_loss": 1.0})
            handler.on_log(None, state, control, state.log_history[-1])
            model.train()
    handler.on_log(None, state, control, {"train_runtime": 1.0})  # nothing new was computed
    handler.on_train_end(None, state, control)
    assert [step for step, _ in run.logged] == [2, 4] and run.logged[1][1] == wanted
    assert other.logged == run.logged
    assert [NAME.replace("attention", "a", 1) in entry for entry in state.log_history] == [True, False] * 2
    steps = callback.watch.step
    model(torch.randn(2, 7, 16))
    assert callback.watch.step == steps == 5  # it is closed


def test_of_several_ranks_of_a_trainer_the_first_writes():
    transformers = pytest.importorskip("transformers")
    run, model = Run(), Model()
    callback = loggers.trainer_callback(to=run, on=None)
    state = transformers.TrainerState(is_world_process_zero=False, log_history=[{}])
    callback.on_train_begin(None, state, None, model=model)
    model(torch.randn(2, 7, 16)).backward()
    callback.on_log(None, state, None, {})
    callback.on_train_end(None, state, None)
    assert not run.logged and state.log_history == [{}]


@pytest.fixture(params=["lightning.pytorch", "pytorch_lightning"])
def lightning(request, monkeypatch):
    """A stand-in with the class that callbacks derive from, under either name."""
    there = types.ModuleType(request.param)
    there.Callback = type("Callback", (), {})
    monkeypatch.setitem(sys.modules, "lightning", None)
    if request.param == "lightning.pytorch":
        monkeypatch.setitem(sys.modules, "lightning", types.ModuleType("lightning"))
    monkeypatch.setitem(sys.modules, request.param, there)
    return there


class Trainer:
    """As much of Lightning's as is used, and its hooks in their order; `stepped` has the number of optimizer steps
    after each batch."""

    def __init__(self, every=2, first=0, is_global_zero=True):
        self.global_step, self.log_every_n_steps, self.is_global_zero = first, every, is_global_zero
        self.logged = []
        self.loggers = [types.SimpleNamespace(log_metrics=lambda values, step: self.logged.append((step, values)))]

    def fit(self, callback, module, stepped):
        callback.on_train_start(self, module)
        for batch, step in enumerate(stepped):
            loss = module.net(torch.randn(2, 7, 16))  # as training_step
            loss.backward()
            self.global_step = step
            callback.on_train_batch_end(self, module, {"loss": loss.detach()}, None, batch)


def module_of_lightning():
    module = torch.nn.Module()
    module.net = Model()
    return module


def net(module):
    return module.net


def test_lightning(lightning):
    trainer, module, run = Trainer(), module_of_lightning(), Run()
    callback = loggers.lightning_callback(to=[run], module=net, on=None, prefix="a")
    assert isinstance(callback, lightning.Callback)
    trainer.fit(callback, module, range(1, 5))
    callback.on_train_end(trainer, module)
    assert [step for step, _ in trainer.logged] == [2, 4] == [step for step, _ in run.logged]
    assert NAME.replace("attention", "a", 1) in trainer.logged[0][1] and callback.watch.step == 3
    assert trainer.logged[1][1] == callback.watch.scalars("a")
    module.net(torch.randn(2, 7, 16))
    assert callback.watch.step == 3  # it is closed


def test_lightning_is_closed_by_an_exception(lightning):
    trainer, module = Trainer(), module_of_lightning()
    callback = loggers.lightning_callback(module=net, on=None)
    trainer.fit(callback, module, [1])
    callback.on_exception(trainer, module, KeyboardInterrupt())
    callback.on_train_end(trainer, module)
    module.net(torch.randn(2, 7, 16))
    assert callback.watch.step == 0


@pytest.mark.parametrize(
    "trainer, stepped, written",
    [
        (dict(every=1), [0, 0, 1, 1, 1, 2], [1, 2]),  # three batches a step
        (dict(every=3), [2, 4, 6, 8], [4, 6]),  # two optimizers
        (dict(every=2, first=100), [100, 101, 102], [102]),  # from a checkpoint
        (dict(every=0), [1, 2, 3], []),
        (dict(is_global_zero=False), [1, 2, 3], []),
    ],
)
def test_lightning_writes_every_so_many_steps_of_the_optimizer(lightning, trainer, stepped, written):
    trainer, run = Trainer(**trainer), Run()
    trainer.fit(loggers.lightning_callback(to=run, module=net, on=None), module_of_lightning(), stepped)
    assert [step for step, _ in trainer.logged] == written == [step for step, _ in run.logged]


def test_the_watch_knows_lightnings_loss(lightning, monkeypatch):
    told = []
    monkeypatch.setattr(rootdk._watch.watch.Watch, "loss", lambda self, value: told.append(value))
    module = module_of_lightning()
    callback = loggers.lightning_callback(module=net, on=None)
    Trainer().fit(callback, module, [1])
    for outputs in (torch.ones(()), {"loss": torch.ones(2)}, None):  # a number is wanted
        callback.on_train_batch_end(Trainer(), module, outputs, None, 1)
    assert len(told) == 2 and told[1] == 1


def test_without_lightning(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning", None)
    monkeypatch.setitem(sys.modules, "pytorch_lightning", None)
    with pytest.raises(ImportError, match="neither is installed"):
        loggers.lightning_callback()


def test_nothing_of_these_is_imported_before_it_is_asked_for():
    code = "import sys, rootdk.loggers; print([m for m in ('wandb', 'tensorboard', 'transformers', 'lightning', "
    code += "'pytorch_lightning', 'prometheus_client') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
