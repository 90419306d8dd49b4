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
    gauges = {gauge.name: gauge for gauge in loggers.prometheus_collector(seen).collect()}
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

    run = Run()
    callback = loggers.trainer_callback(to=[run], on=None)
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
    handler.on_log(None, state, control, {"train_runtime": 1.0})  # nothing new was computed
    handler.on_train_end(None, state, control)
    assert [step for step, _ in run.logged] == [2, 4] and run.logged[1][1] == callback.watch.scalars()
    assert [NAME in entry for entry in state.log_history] == [True, True]
    model(torch.randn(2, 7, 16))
    assert callback.watch.step == 3  # it is closed


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning(package, monkeypatch):
    """A stand-in with the hooks of Lightning's Trainer, in their order."""
    monkeypatch.setitem(sys.modules, "lightning", None)
    there = types.ModuleType(package)
    there.Callback = type("Callback", (), {})
    if package == "lightning.pytorch":
        monkeypatch.setitem(sys.modules, "lightning", types.ModuleType("lightning"))
    monkeypatch.setitem(sys.modules, package, there)

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = Model()

    logger = types.SimpleNamespace(logged=[])
    logger.log_metrics = lambda values, step: logger.logged.append((step, values))
    trainer = types.SimpleNamespace(global_step=0, log_every_n_steps=2, loggers=[logger])
    module, run = Module(), Run()
    callback = loggers.lightning_callback(to=run, module=lambda m: m.net, on=None)
    assert isinstance(callback, there.Callback)
    callback.on_train_start(trainer, module)
    for step in range(1, 5):
        loss = module.net(torch.randn(2, 7, 16))  # as training_step
        loss.backward()
        trainer.global_step = step
        callback.on_train_batch_end(trainer, module, {"loss": loss.detach()}, None, step - 1)
    callback.on_exception(trainer, module, KeyboardInterrupt())
    callback.on_train_end(trainer, module)
    assert [step for step, _ in logger.logged] == [2, 4] == [step for step, _ in run.logged]
    assert NAME in logger.logged[0][1] and callback.watch.step == 3


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
