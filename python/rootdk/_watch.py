"""rootdk.watch: eyes on a model that is already running.

Three ways in, none of which changes the model: calls of `F.scaled_dot_product_attention` are seen by a TorchFunctionMode, which
also follows attention that is written out (a product, a softmax over it, a second product); and transformers can be told to call
rootdk.
"""
from __future__ import annotations

import os
import pathlib
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Iterable, Optional, Sequence, Union

import numpy as np
import torch
from torch import Tensor

from . import torch as rootdk_torch
from ._alarm import Alarm, Event, Watchdog
from ._clip import Projections, clip_projections, projections_of
from ._files import write_whole
from ._follow import Follow, Product
from ._history import COLUMNS, FORWARD, History, Record, prometheus, table
from ._problem import StatsOptions
from ._rows import sampled, stats_of_scores
from ._stats import GradientStats, Stats
from ._transformers import register_with_transformers, watching

__all__ = ["Alarm", "Event", "Watch"]

_READERS = 4  # threads: to reduce a call's rows takes longer than a small layer does


class Watch:
    """Looks at every attention a torch model computes while the context is open.

    every     look at every k-th call of the model
    on        Alarm, a function that takes an Event, or a list of both
    sample    full statistics from every so many blocks of 64 queries
    rows      not on the CPU: full statistics from about so many query rows, in blocks of 64 where rootdk computes the attention
    beside    True: leave the model's own kernel alone and sample `rows` rows beside it, which is what happens anyway where rootdk
              has no fast kernel for the problem
    backward  also what backward brings
    keep      steps to remember; when there are more, every second one is forgotten
    """

    def __init__(self, model: Optional[torch.nn.Module] = None, *, every: int = 1,
                 on: Union[Alarm, Callable[[Event], Any], Iterable[Union[Alarm, Callable[[Event], Any]]]] = (), sample: int = 1,
                 rows: int = 64, beside: bool = False, backward: bool = True, keep: int = 1000):
        if model is not None and not isinstance(model, torch.nn.Module):
            raise TypeError(f"model: {type(model).__name__}, but a torch.nn.Module is wanted")
        for name, value in (("every", every), ("sample", sample), ("rows", rows), ("keep", keep)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name}: {value!r}, but a whole number from 1 is wanted")
        given = [on] if isinstance(on, Alarm) or callable(on) else list(on)
        for alarm in given:
            if not isinstance(alarm, Alarm) and not callable(alarm):
                raise TypeError(f"on: {type(alarm).__name__}, but Alarm or a function that takes an Event is wanted")
        self.model = model
        self._events: list[Event] = []
        self.step = -1  #: of the model's newest call
        self._every, self._sample, self._rows, self._beside, self._backward = every, sample, rows, beside, backward
        self._dog = Watchdog([alarm if isinstance(alarm, Alarm) else Alarm(call=alarm) for alarm in given])
        self._history = History(keep)
        self._mode: Optional[Follow] = None
        self._hooks: list[Any] = []
        self._stack: list[str] = []
        self._calls: dict[str, int] = {}
        self._modules: dict[str, str] = {}  # label → the module that called
        self._collectors: dict[str, _Layer] = {}
        self._tags: dict[str, int] = {}
        self._peak: dict[str, list[float]] = {}
        self._masks: dict[int, tuple[Tensor, Tensor]] = {}
        self._fast: dict[Any, bool] = {}
        # What a GPU may not have finished, with its step; threads read it, so that the model need not wait.
        self._later: list[tuple[int, _Layer, Future[Union[Stats, GradientStats]]]] = []
        self._reader: Optional[ThreadPoolExecutor] = None
        self._watched_s = self._model_s = self._started = 0.0
        self._looked = 0
        self._writers: dict[str, Any] = {}  # TensorBoard's, by folder
        self._again = 0  # depth of the stack at which a mode was entered for a checkpoint

    # Life -------------------------------------------------------------------------------------------------------------
    def __enter__(self) -> Watch:
        if self._mode is not None:
            raise RuntimeError("watch: already open")
        if self.model is not None:
            for name, module in self.model.named_modules():
                self._hooks.append(module.register_forward_pre_hook(self._enter(name)))
                self._hooks.append(module.register_forward_hook(self._leave(name), always_call=True))
        else:
            self.step = 0
        if "transformers" in sys.modules:
            register_with_transformers()
        self._mode = Follow(self)
        self._mode.__enter__()
        watching.append(self)
        return self

    def __exit__(self, *exception: Any) -> None:
        mode, self._mode = self._mode, None
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._stack.clear()
        self._masks.clear()
        for tag in self._tags.values():
            rootdk_torch.unregister(tag)
        self._tags.clear()
        if self in watching:
            watching.remove(self)
        if mode is not None:
            mode.__exit__(*exception)
        try:
            self._settle()
        finally:
            if self._reader is not None:
                self._reader.shutdown()
                self._reader = None

    def next_step(self) -> None:
        """For a watch without a model: what follows belongs to the next step."""
        self._settle(before=self.step)
        self.step += 1
        self._calls.clear()
        self._masks.clear()

    def _enter(self, name: str) -> Callable[..., None]:
        def hook(module: torch.nn.Module, args: Any) -> None:
            if name == "" and not self._stack and not _in_backward():
                self.next_step()
                self._started = time.perf_counter()
            elif not self._stack and _in_backward() and self._mode is not None and torch._C._len_torch_function_stack() == 0:
                # A checkpoint computes this part again, where modes are off. What it gets must be what forward got.
                self._mode.__enter__()
                self._again = len(self._stack) + 1
            self._stack.append(name)

        return hook

    def _leave(self, name: str) -> Callable[..., None]:
        def hook(module: torch.nn.Module, args: Any, output: Any) -> None:
            if self._stack:
                self._stack.pop()
            if self._again and len(self._stack) < self._again and self._mode is not None:
                self._again = 0
                self._mode.__exit__(None, None, None)
            if name == "" and self._started:
                self._model_s += time.perf_counter() - self._started
                self._started = 0.0

        return hook

    # Looking ----------------------------------------------------------------------------------------------------------
    @property
    def looking(self) -> bool:
        return self._mode is not None and self.step >= 0 and self.step % self._every == 0

    def _label(self) -> str:
        """Who calls; a second call from the same place in one step gets a number. Recomputation in backward counts as the
        first."""
        module = self._stack[-1] if self._stack else ""
        name = module or ("(root)" if self.model is not None else "attention")
        if not _in_backward():
            count = self._calls[name] = self._calls.get(name, 0) + 1
            name = name if count == 1 else f"{name}#{count}"
        self._modules[name] = module
        return name

    def _layer(self, label: str) -> _Layer:
        if label not in self._collectors:
            self._collectors[label] = _Layer(self, label)
        return self._collectors[label]

    def _tag(self, label: str) -> int:
        if label not in self._tags:
            self._tags[label] = rootdk_torch.register(self._layer(label))
        return self._tags[label]

    def sdpa(self, func: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor] = None,
             dropout_p: float = 0.0, is_causal: bool = False, scale: Optional[float] = None, enable_gqa: bool = False) -> Tensor:
        # What a graph records or torch.func transforms, nobody can look at meanwhile.
        captured = query.is_cuda and torch.cuda.is_current_stream_capturing()
        if captured or rootdk_torch.transformed(query, key, value, attn_mask):
            return func(query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale,
                        enable_gqa=enable_gqa)
        started = time.perf_counter()
        label = self._label()
        layer = self._layer(label)
        q, k, v, table = rootdk_torch.under_autocast(query, key, value, attn_mask)  # what a kernel of ours would get
        assert q is not None and k is not None and v is not None
        layer.dtype = rootdk_torch._NAMES.get(q.dtype, "f32")
        # f64 runs in the reference kernel, which is no match for anybody's.
        ours = not self._beside and dropout_p == 0 and query.device.type in ("cpu", "cuda") and query.dtype != torch.float64
        ours = ours and rootdk_torch._why_not(q, k, v, table, dropout_p, is_causal, scale, enable_gqa) is None
        if ours and query.is_cuda:
            self._settle(before=self.step - 1)  # while the device has something to do
            layer.options = self._options(query.shape[-2])
            if not _in_backward():  # a checkpoint must get again what it got
                layer.fast = self._is_fast(layer.options, q, k, v, table, is_causal, scale)
            ours = layer.fast
        if ours:
            mask = attn_mask if query.is_cuda else self._hard(attn_mask)
            out = rootdk_torch.computed(q, k, v, mask, dropout_p, is_causal, scale, self._tag(label))
            self._watched_s += time.perf_counter() - started
            return out
        out = func(query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale,
                   enable_gqa=enable_gqa)
        started = time.perf_counter()
        if _can_be_sampled(query, key):
            if not _in_backward():
                factor = query.shape[-1] ** -0.5 if scale is None else scale
                stats = sampled(query, key, self._hard(attn_mask), is_causal, scale, self._rows, 17 * self.step)
                layer.on_forward(stats, _causes(query, key, factor))
            if self._backward:
                layer.hook_inputs(query, key, value)
        self._watched_s += time.perf_counter() - started
        return out

    def _options(self, len_q: int) -> StatsOptions:
        """On a GPU: of the blocks as many as `rows` needs, others in every step."""
        blocks = -(-len_q // 64)
        sample = max(self._sample, blocks * 64 // max(self._rows, 64))
        return StatsOptions("full", sample=sample, sample_offset=self.step % min(sample, blocks))

    def _is_fast(self, options: StatsOptions, query: Tensor, key: Tensor, value: Tensor, mask: Optional[Tensor], is_causal: bool,
                 scale: Optional[float]) -> bool:
        learns = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
        seen = (*((x.shape, x.stride(), x.data_ptr() % 16) for x in (query, key, value)), query.dtype, query.device, is_causal, scale,
                learns, None if mask is None else (mask.shape, mask.dtype))
        if seen not in self._fast:
            self._fast[seen] = rootdk_torch.is_fast(query, key, value, mask, is_causal, scale, options, (0, 1) if learns else (0,))
        return self._fast[seen]

    def written_out(self, product: Product, scores: Tensor) -> None:
        """Attention that somebody has written out: scores [batch, heads, len_q, len_kv], as softmax saw them."""
        if rootdk_torch.transformed(product.q, product.k, scores):
            return
        started = time.perf_counter()
        layer = self._layer(self._label())
        layer.dtype = rootdk_torch._NAMES.get(product.q.dtype, "f32")
        with torch.no_grad():
            if not _in_backward():
                raw = (product.q.detach().float() @ product.k.detach().float()) * product.factor
                score = scores.detach()
                visible = score > torch.finfo(score.dtype).min / 2
                layer.on_forward(stats_of_scores(raw, score, visible),
                                 _causes(product.q, product.k.transpose(-1, -2), product.factor))
        if self._backward:
            layer.hook_scores(scores)
        self._watched_s += time.perf_counter() - started

    def _hard(self, mask: Optional[Tensor]) -> Optional[Tensor]:
        """A mask of the lowest finite number means −inf, and only that keeps hidden keys out of the statistics. Where a row would
        see nothing, the lowest number gives the mean of V and −inf zero, so such masks stay as they are."""
        if mask is None or mask.dtype == torch.bool or not mask.is_floating_point():
            return mask
        known = self._masks.get(id(mask))
        if known is not None and known[0] is mask:
            return known[1]
        hidden = mask.detach() <= torch.finfo(mask.dtype).min / 2
        out = mask
        if not mask.requires_grad and bool(hidden.any()) and not bool(hidden.all(-1).any()):
            out = mask.masked_fill(hidden, float("-inf"))
        self._masks[id(mask)] = (mask, out)
        return out

    def _read_later(self, layer: _Layer, found: Union[Stats, GradientStats]) -> None:
        if self._reader is None:
            self._reader = ThreadPoolExecutor(_READERS, "rootdk.watch")
        self._later.append((self.step, layer, self._reader.submit(_read, found)))

    def _settle(self, before: Optional[int] = None) -> None:
        """Takes what has come from a GPU meanwhile; waits for what is from before that step, or without one for all of it."""
        while self._later:
            step, layer, read = self._later[0]
            if before is not None and step >= before and not read.done():
                return
            self._later.pop(0)
            found = read.result()
            if isinstance(found, Stats):
                self._take(layer, found, None, step)
            else:
                layer.take_gradients(found)

    def _take(self, layer: _Layer, stats: Stats, more: Optional[dict[str, Any]], step: int) -> None:
        """Of one batch item that stands for all."""
        record = Record(step, layer.label, stats.heads)
        names = set(stats.names)
        for name in FORWARD:
            if name in names:
                record.set(name, stats[name][0])
        if more is not None:
            dim = more.pop("dim")
            for name, values in more.items():
                record.set(name, values)
            with np.errstate(divide="ignore", invalid="ignore"):
                record.set("alignment",
                           (record["raw_sigma"] / record["scale"]) ** 2 / (dim * (record["sigma_q"] * record["sigma_k"]) ** 2))
        layer.record = record
        self._looked += 1
        self._history.add(record, stats)
        peak = record["raw_max"].tolist()
        self._peak[layer.label] = [max(a, b) for a, b in zip(peak, self._peak.get(layer.label, peak))]
        values = {name: record[name] for name in FORWARD}
        for alarm, event in self._dog.look(step, layer.label, values, stats, layer.dtype):
            self._events.append(event)
            alarm.deliver(event)

    # What was seen ----------------------------------------------------------------------------------------------------
    @property
    def _seen(self) -> History:
        """With all that a GPU still has to say."""
        self._settle()
        return self._history

    @property
    def alarms(self) -> list[Event]:
        """Every event so far."""
        self._settle()
        return self._events

    @property
    def layers(self) -> list[str]:
        """The modules that computed attention, in the order in which they did."""
        return list(self._seen.layers)

    def stats(self, layer: str) -> Stats:
        """All statistics of a layer's newest step, merged over its batch."""
        if layer not in self._seen.last:
            raise KeyError(f"layer: {layer!r} is none of {self.layers}")
        return self._seen.last[layer]

    def table(self, *,
              columns: Sequence[str] = ("raw_max", "score_sigma", "sigma_ratio", "entropy", "mean_p_max", "trace_j", "d_scores"),
              worst: Optional[int] = None) -> str:
        """The newest step as text: a line per layer and head, or only for the `worst` ones."""
        for name in columns:
            if name not in COLUMNS:
                raise ValueError(f"columns: {name!r} is none of {', '.join(COLUMNS)}")
        text = table(self._seen.newest(), tuple(columns), worst)
        return f"{text}\n{self.cost()}"

    def cost(self) -> str:
        """What watching took, in words. On the CPU the attention itself is part of it: statistics come from the same pass."""
        self._settle()
        if not self._looked:
            return "No attention was seen yet."
        share = f", {100 * self._watched_s / self._model_s:.0f} % of the model's {self._model_s:.3g} s" if self._model_s else ""
        return f"{self._looked} attention calls were watched in {self._watched_s:.3g} s{share}."

    def to_dicts(self) -> list[dict[str, Any]]:
        """A dictionary per step, layer and head."""
        return list(self._seen.rows())

    def to_pandas(self) -> Any:
        """A DataFrame with a row per step, layer and head. Needs pandas."""
        import pandas

        return pandas.DataFrame(self.to_dicts(), columns=["step", "layer", "head", *COLUMNS])

    def report(self, path: Union[str, "os.PathLike[str]"]) -> pathlib.Path:
        """One HTML file that needs nothing else: layer × head over time, and the alarms."""
        from ._report import page

        return write_whole(path, page(self._seen, self.alarms, self.cost()))

    def tensorboard(self, writer: Any, prefix: str = "attention") -> None:
        """Writes the newest step: per layer the largest, smallest and mean over heads of each statistic. `writer` is a
        SummaryWriter, or the folder for one, which needs the package tensorboard."""
        if isinstance(writer, (str, os.PathLike)):
            folder = os.fspath(writer)
            if folder not in self._writers:
                from torch.utils.tensorboard import SummaryWriter

                self._writers[folder] = SummaryWriter(folder)
            writer = self._writers[folder]
        for record in self._seen.newest():
            for name in COLUMNS:
                values = record[name]
                known = values[values == values]
                if known.size:
                    for what, value in (("max", known.max()), ("mean", known.mean()), ("min", known.min())):
                        writer.add_scalar(f"{prefix}/{record.layer}/{name}/{what}", float(value), record.step)

    def prometheus(self, prefix: str = "rootdk") -> str:
        """The newest step in Prometheus's text format."""
        return prometheus(self._seen.newest(), prefix)

    # Doing something about it -----------------------------------------------------------------------------------------
    def qk_clip(self, tau: float = 100.0, alpha: float = 0.5, *,
                projections: Optional[dict[str, Projections]] = None) -> dict[str, list[float]]:
        """QK-clip, to be called after an optimizer step: where a head's largest raw score since the last call passed tau, its
        projection weights shrink so that the same inputs would give tau. Returns each layer's factors, for the layers where one
        is below 1.

        projections: for layers whose weights cannot be found by name, `{layer: rootdk.Projections(...)}` with views of them.
        """
        if not tau > 0:
            raise ValueError(f"tau: {tau}, but a positive number is wanted")
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha: {alpha}, but 0 to 1 is wanted")
        if self.model is None:
            raise ValueError("qk_clip: this watch has no model")
        self._settle()
        done = {}
        for label, peak in self._peak.items():
            factors = [min(1.0, tau / s) if s > 0 else 1.0 for s in peak]
            if min(factors) == 1.0:
                continue
            given = (projections or {}).get(label)
            module = self.model.get_submodule(self._modules[label])
            clip_projections(given if given is not None else projections_of(module, label, len(factors)), factors, alpha)
            done[label] = factors
        self._peak.clear()
        return done


class _Layer:
    """Takes what one place in the model learned; a rootdk_torch.Collector."""

    def __init__(self, watch: Watch, label: str):
        self.watch, self.label = watch, label
        self.options = StatsOptions("full", sample=watch._sample)
        self.record: Optional[Record] = None
        self.dtype = "f32"
        self.fast = False  # whether a fast kernel of ours took its newest call on a GPU

    def on_forward(self, stats: Stats, more: Optional[dict[str, Any]] = None) -> None:
        if _in_backward():
            return
        if stats._reader is not None:
            self.watch._read_later(self, stats)
        else:
            self.watch._take(self, stats.over_batch(), more, self.watch.step)

    def on_backward(self, stats: GradientStats) -> None:
        if not self.watch._backward:
            return
        if stats._reader is not None:
            self.watch._read_later(self, stats)
        else:
            self.take_gradients(stats)

    def take_gradients(self, stats: GradientStats) -> None:
        if self.record is None or stats.batch == 0:
            return
        for name, values in stats.to_dict().items():
            self.record.set(name, values.sum(0))

    def hook_scores(self, scores: Tensor) -> None:
        record = self.record
        if scores.requires_grad and record is not None:

            def hook(gradient: Tensor) -> None:
                record.set("d_scores", gradient.detach().float().square().sum((0, 2, 3)).cpu().numpy())

            scores.register_hook(hook)

    def hook_inputs(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        record = self.record
        for name, x in (("d_q", query), ("d_k", key), ("d_v", value)):
            if not x.requires_grad or record is None:
                continue

            # x owns the hook: one that held x would keep the two, and all that x came from, for ever.
            def hook(gradient: Tensor, name: str = name, x: Tensor = x.detach()) -> None:
                wide = gradient.detach().float()
                group = record.values.shape[1] // wide.shape[1]
                record.set(name, wide.square().sum((0, 2, 3)).repeat_interleave(group).cpu().numpy())
                if name == "d_q":
                    record.set("d_log_scale", (wide * x.float()).sum((0, 2, 3)).cpu().numpy())

            x.register_hook(hook)


def _read(found: Union[Stats, GradientStats]) -> Union[Stats, GradientStats]:
    """In a thread, most of it without Python's lock."""
    if isinstance(found, Stats):
        return found.over_batch()
    found._core  # waits for the device
    return found


def _causes(query: Tensor, key: Tensor, factor: float) -> dict[str, Any]:
    """sigma_q, sigma_k and the mean key per query head; the batch is one."""
    with torch.no_grad():
        q, k = query.detach().float(), key.detach().float()
        group = q.shape[1] // k.shape[1]
        mean = k.mean(2, keepdim=True)
        table = torch.stack([q.square().mean((0, 2, 3)).sqrt(),
                             (k - mean).square().mean((0, 2, 3)).sqrt().repeat_interleave(group),
                             mean.square().sum(-1).mean((0, 2)).sqrt().repeat_interleave(group)]).cpu().numpy()
    return {"sigma_q": table[0], "sigma_k": table[1], "key_mean_norm": table[2], "scale": abs(factor), "dim": query.shape[-1]}


def _can_be_sampled(query: Tensor, key: Tensor) -> bool:
    if query.is_nested or query.ndim != 4 or key.ndim != 4 or not query.numel() or not key.numel():
        return False
    return query.shape[1] % key.shape[1] == 0


def _in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)
