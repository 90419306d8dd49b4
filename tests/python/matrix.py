"""What must hold of every model that is watched, whatever computes its attention. Each check gives the list of what does not hold, in words."""
from __future__ import annotations

import contextlib
import copy
import re
from typing import Any, Iterator, Optional

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import models
import rootdk

IMPLEMENTATIONS = ("eager", "sdpa", "rootdk")
STATISTICS = ("raw_max", "raw_sigma", "score_sigma", "entropy", "mean_p_max", "keys")
UNIT = 2.0**-23

with rootdk.watch():  # which makes "rootdk" known to transformers
    pass


def built(name: str) -> dict[str, models.Tiny]:
    """By implementation, where the class takes it: the same weights and inputs."""
    found = {"eager": models.build(name)}
    for implementation in ("sdpa", "rootdk"):
        with contextlib.suppress(ValueError):  # refused
            found[implementation] = models.build(name, implementation)
    return found


# Inputs ---------------------------------------------------------------------------------------------------------------
def padded(inputs: dict[str, Any], side: Optional[str]) -> dict[str, Any]:
    """The last item of the batch shorter by five tokens, at that side."""
    if side is None:
        return inputs
    out = dict(inputs)
    mask = inputs["attention_mask"].clone()
    mask[-1, slice(0, 5) if side == "left" else slice(-5, None)] = 0
    out["attention_mask"] = mask
    out["input_ids"] = torch.where(mask.bool(), inputs["input_ids"], torch.zeros_like(inputs["input_ids"]))
    return out


def tensors(output: Any) -> Iterator[torch.Tensor]:
    """The floating tensors in a model's output, without its caches."""
    if isinstance(output, torch.Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, dict):
        for key, value in output.items():
            if "past_key_values" not in key and "cache" not in key:
                yield from tensors(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from tensors(value)


# Who computes attention -----------------------------------------------------------------------------------------------
class _Softmaxes(TorchDispatchMode):
    """Counts, under the name of the innermost module, what takes a softmax over scores: known from below, whoever wrote it and however."""

    FUSED = re.compile(r"_?(scaled_dot_product|flash_attention|efficient_attention)|rootdk\.attention|transformer_encoder_layer_fwd|native_multi_head")

    def __init__(self, stack: list[tuple[str, torch.nn.Module]]):
        super().__init__()
        self.stack, self.found = stack, set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = str(func)
        scores = out if isinstance(out, torch.Tensor) else None
        softmax = "_softmax" in name and "log_softmax" not in name and scores is not None and scores.ndim >= 3 and scores.shape[-1] > 1
        if (softmax or self.FUSED.search(name)) and self.stack:
            label, module = self.stack[-1]
            if re.search("att(entio)?n", type(module).__name__, re.IGNORECASE):
                self.found.add(label)
        return out


def attending(model: torch.nn.Module, inputs: dict[str, Any]) -> set[str]:
    """Names of the modules that compute attention."""
    stack: list[tuple[str, torch.nn.Module]] = []
    hooks = []
    for name, module in model.named_modules():
        hooks.append(module.register_forward_pre_hook(lambda m, a, name=name: stack.append((name, m))))
        hooks.append(module.register_forward_hook(lambda m, a, o: stack.pop() and None, always_call=True))
    try:
        with torch.no_grad(), _Softmaxes(stack) as mode:
            model(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return mode.found


# Checks ---------------------------------------------------------------------------------------------------------------
def close(what: str, a: Any, b: Any, exact: bool, keep: Optional[torch.Tensor] = None, layers: int = 4) -> list[str]:
    """b against a. Rounding: a few units in the last place of the largest number, for each layer it goes through."""
    one, other = list(tensors(a)), list(tensors(b))
    if [x.shape for x in one] != [x.shape for x in other]:
        return [f"{what}: other shapes"]
    worst = 0.0
    for x, y in zip(one, other):
        x, y = x.detach(), y.detach()
        if keep is not None and x.ndim >= 2 and x.shape[:2] == keep.shape:
            x, y = x[keep], y[keep]
        if exact:
            if not torch.equal(x.nan_to_num(nan=7e37), y.nan_to_num(nan=7e37)):
                return [f"{what}: differs by {(x.double() - y.double()).abs().max():.3g}, but must not"]
            continue
        if not torch.equal(x.isfinite(), y.isfinite()):
            return [f"{what}: finite at other places"]
        if not x.numel():
            continue
        gap = (x - y)[x.isfinite()].abs()
        size = max(1.0, float(x[x.isfinite()].abs().max())) if gap.numel() else 1.0
        worst = max(worst, float(gap.max()) / size if gap.numel() else 0.0)
    return [f"{what}: {worst:.2g} of its size, {worst / UNIT:.0f} units"] if worst > 64 * layers * UNIT else []


def rows(w: rootdk.Watch) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {(r["step"], r["layer"], r["head"]): r for r in w.to_dicts()}


def same_statistics(what: str, eager: rootdk.Watch, other: rootdk.Watch) -> list[str]:
    """Where both saw, the same; what only one saw is the other's to name."""
    a, b = rows(eager), rows(other)
    out = []
    for key in sorted(a.keys() & b.keys()):
        for name in STATISTICS:
            x, y = a[key][name], b[key][name]
            if x != x and y != y:
                continue
            # f32 scores of size 10, layer upon layer.
            if not abs(x - y) <= 1e-4 + 1e-3 * abs(x):
                out.append(f"{what}: step {key[0]} {key[1]} head {key[2]} {name} {y:.5g}, eager {x:.5g}")
    return out if len(out) < 4 else [*out[:3], f"{what}: … and {len(out) - 3} more statistics"]


def unnamed(what: str, w: rootdk.Watch, attends: set[str]) -> list[str]:
    seen = {layer.split("#")[0] for layer in w.layers} | {str(name).split("#")[0] for name in getattr(w, "unseen", {})}
    lost = sorted(attends - {"" if x == "(root)" else x for x in seen})
    return [f"{what}: neither seen nor named: {', '.join(lost[:3])}{f' … {len(lost)}' if len(lost) > 3 else ''}"] if lost else []


def forward(name: str, found: dict[str, models.Tiny], side: Optional[str]) -> list[str]:
    what = {None: "plain", "left": "padded left", "right": "padded right"}[side]
    problems: list[str] = []
    outputs, watches = {}, {}
    for implementation, tiny in found.items():
        inputs = padded(tiny.inputs, side)
        label = f"{what}/{implementation}"
        try:
            with torch.no_grad():
                expected = tiny.model(**inputs)
        except Exception as e:
            if implementation == "eager":
                return []  # the model's own limits
            problems.append(f"{label}: unwatched {type(e).__name__} {models.line(e)}") if implementation == "rootdk" else None
            continue
        outputs[implementation] = expected
        try:
            with torch.no_grad(), rootdk.watch(tiny.model) as w:
                output = tiny.model(**inputs)
            watches[implementation] = w
        except Exception as e:
            problems.append(f"{label}: watched {type(e).__name__} {models.line(e)}")
            continue
        problems += close(f"{label} output", expected, output, exact=implementation == "eager")
        problems += unnamed(label, w, attending(found["eager"].model, inputs))
    keep = padded(found["eager"].inputs, side)["attention_mask"].bool() if side else None
    for implementation in ("sdpa", "rootdk"):
        if implementation not in outputs:
            continue
        wrong = close(f"{what}: {implementation} against eager", outputs["eager"], outputs[implementation], exact=False, keep=keep)
        problems += wrong
        if not wrong and implementation in watches and "eager" in watches:
            problems += same_statistics(f"{what}/{implementation}", watches["eager"], watches[implementation])
    return problems


def generate(name: str, found: dict[str, models.Tiny], cache: Optional[str]) -> list[str]:
    """Greedy, a few tokens."""
    problems: list[str] = []
    watches = {}
    for implementation, tiny in found.items():
        label = f"generate {cache or 'dynamic'}/{implementation}"
        inputs = {key: value for key, value in padded(tiny.inputs, "left" if tiny.padded else None).items() if key != "decoder_input_ids"}
        options = dict(max_new_tokens=4, min_new_tokens=4, do_sample=False, output_logits=True, return_dict_in_generate=True, disable_compile=True)
        if cache:
            options["cache_implementation"] = cache
        try:
            expected = tiny.model.generate(**inputs, **options)
        except Exception:
            continue
        try:
            with rootdk.watch(tiny.model) as w:
                output = tiny.model.generate(**inputs, **options)
        except Exception as e:
            problems.append(f"{label}: watched {type(e).__name__} {models.line(e)}")
            continue
        watches[implementation] = w
        if not torch.equal(expected.sequences, output.sequences):
            problems.append(f"{label}: other tokens")
        problems += close(f"{label} logits", expected.logits, output.logits, exact=implementation == "eager")
        if not w.layers and not getattr(w, "unseen", {}):
            problems.append(f"{label}: nothing seen, nothing named")
    for implementation in ("sdpa", "rootdk"):
        if implementation in watches and "eager" in watches:
            problems += same_statistics(f"generate {cache or 'dynamic'}/{implementation}", watches["eager"], watches[implementation])
    return problems


def gradients(tiny: models.Tiny, watched: bool, step: Any = None) -> list[torch.Tensor]:
    tiny.model.zero_grad(set_to_none=True)
    torch.manual_seed(5)
    with rootdk.watch(tiny.model) if watched else contextlib.nullcontext() as w:
        output = tiny.model(**tiny.inputs)
        sum(x.float().square().mean() for x in tensors(output) if x.requires_grad).backward()
    out = [p.grad for p in tiny.model.parameters() if p.grad is not None]
    tiny.model.zero_grad(set_to_none=True)
    return out if not watched else (out, w)


def train(name: str, found: dict[str, models.Tiny], checkpoint: bool) -> list[str]:
    problems: list[str] = []
    watches = {}
    for implementation, tiny in found.items():
        label = f"train{' checkpointed' if checkpoint else ''}/{implementation}"
        model = tiny.model
        model.train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        try:
            if checkpoint:
                if not model.supports_gradient_checkpointing:
                    return []
                model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            try:
                expected = gradients(tiny, False)
                again = gradients(tiny, False)
            except Exception:
                continue
            steady = len(expected) == len(again) and all(torch.equal(a, b) for a, b in zip(expected, again))
            if not steady:  # draws numbers of its own, or sums in another order
                continue
            try:
                got, w = gradients(tiny, True)
            except Exception as e:
                problems.append(f"{label}: watched {type(e).__name__} {models.line(e)}")
                continue
            watches[implementation] = w
            if len(got) != len(expected):
                problems.append(f"{label}: gradients of {len(got)} parameters, unwatched {len(expected)}")
            else:
                problems += close(f"{label} gradients", expected, got, exact=implementation == "eager", layers=16)
            problems += unnamed(label, w, attending(found["eager"].model, found["eager"].inputs))
        finally:
            if checkpoint and model.supports_gradient_checkpointing:
                model.gradient_checkpointing_disable()
            model.eval()
    for implementation in ("sdpa", "rootdk"):
        if implementation in watches and "eager" in watches:
            problems += same_statistics(f"train{' checkpointed' if checkpoint else ''}/{implementation}", watches["eager"], watches[implementation])
    return problems


def compiled(name: str, found: dict[str, models.Tiny], fullgraph: bool, implementations: tuple[str, ...] = IMPLEMENTATIONS) -> list[str]:
    problems: list[str] = []
    for implementation in implementations:
        if implementation not in found:
            continue
        tiny = found[implementation]
        label = f"compile{' fullgraph' if fullgraph else ''}/{implementation}"
        torch._dynamo.reset()
        try:
            with torch.no_grad():
                expected = torch.compile(tiny.model, backend="eager", fullgraph=fullgraph)(**tiny.inputs)
        except Exception:
            continue  # the model's own limits
        torch._dynamo.reset()
        try:
            with torch.no_grad(), rootdk.watch(tiny.model) as w:
                output = torch.compile(tiny.model, backend="eager", fullgraph=fullgraph)(**tiny.inputs)
        except Exception as e:
            problems.append(f"{label}: watched {type(e).__name__} {models.line(e)}")
            continue
        finally:
            torch._dynamo.reset()
        problems += close(f"{label} output", expected, output, exact=False)
        if not w.layers and not getattr(w, "unseen", {}):
            problems.append(f"{label}: nothing seen, nothing named")
    return problems


def everything(name: str, compile: bool = True) -> list[str]:
    found = built(name)
    problems = forward(name, found, None)
    if found["eager"].padded:
        problems += forward(name, found, "left") + forward(name, found, "right")
    if found["eager"].generates:
        problems += generate(name, found, None) + generate(name, found, "static")
    problems += train(name, found, False) + train(name, found, True)
    if compile:
        problems += compiled(name, found, False) + compiled(name, found, True)
    return problems
