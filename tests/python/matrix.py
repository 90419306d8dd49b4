"""What must hold of every model that is watched, whatever computes its attention. Each check gives the list of what
does not hold, in words."""

from __future__ import annotations

import contextlib
import math
import re
from typing import Any, Callable, Iterator, Optional

import models
import numpy as np
import rootdk
import torch
from torch.utils._python_dispatch import TorchDispatchMode

IMPLEMENTATIONS = ("eager", "sdpa", "rootdk")
UNIT = 2.0**-23
UNITS = 256  #: in the last place of the largest number there is: a layer takes a few of them
#: How far a statistic moves at most when every score moves by 1, of a row of n keys: p by 2p, ln p by 2. None: not at
#: all. What jumps (medians, shares of rows) is left out, and causes: where a mask is written out they are over padding.
STATISTICS: dict[str, Optional[Callable[[float], float]]] = {
    **dict.fromkeys(("raw_max", "raw_sigma", "score_max", "score_sigma", "mean_lse"), lambda n: 1.0),
    "sigma_ratio": lambda n: (2 * math.log(max(n, 2))) ** -0.5,
    "entropy": lambda n: 2 * math.log(max(n, 2)),
    "effective_keys": lambda n: 2 * n * math.log(max(n, 2)),
    **dict.fromkeys(("mean_p_max", "sink_mass"), lambda n: 2.0),
    "trace_j": lambda n: 4.0,
    **dict.fromkeys(("keys", "scale", "rows_masked", "rows_not_finite")),
}
OF_SOFTMAX = ("entropy", "effective_keys", "mean_p_max", "trace_j", "sink_mass", "mean_lse")
#: Eager multiplies the output by what a sink would leave; its softmax knows nothing of it.
SINK_OUTSIDE = {"granite_swa", "granitemoe_swa"}
#: Its layers hand a position bias on: the backward of a reentrant checkpoint goes from each through all before it, and
#: does not come to an end, watched or not.
NOT_REENTRANT = {"wavlm"}
SHORTER = 5  #: tokens by which the last of a padded batch is shorter

with rootdk.watch():  # which makes "rootdk" known to transformers
    pass


class Case:
    """An architecture, built once for each implementation that its class takes: the same weights, the same inputs."""

    def __init__(self, name: str, implementations: tuple[str, ...] = IMPLEMENTATIONS):
        self.name = name
        self.by = {"eager": models.build(name)}
        for implementation in implementations:
            if implementation != "eager":
                with contextlib.suppress(ValueError):  # refused
                    self.by[implementation] = models.build(name, implementation)
        eager = self.by["eager"]
        self.attends, self.fused = attending(eager.model, eager.inputs)
        #: By check and implementation, which modules that compute attention were named instead of seen.
        self.only_named: dict[str, set[str]] = {}
        #: What ran unwatched and was compared with itself watched, by check and implementation. A check that nothing
        #: ran in has seen nothing.
        self.ran: set[str] = set()

    def unnamed(self, what: str, w: rootdk.Watch) -> list[str]:
        """A module that was seen is in the statistics; of others at least the name must be there, and is kept here."""
        self.ran.add(what)
        self.only_named[what] = only_named(w, self.attends)
        return unnamed(what, w, self.attends)

    def exact(self, implementation: str) -> bool:
        """What is written out is only looked at. Some classes call a fused kernel even in eager."""
        return implementation == "eager" and not self.fused


# Inputs and outputs ---------------------------------------------------------------------------------------------------
def padded(inputs: dict[str, Any], side: Optional[str]) -> dict[str, Any]:
    if side is None:
        return inputs
    mask = inputs["attention_mask"].clone()
    mask[-1, slice(0, SHORTER) if side == "left" else slice(-SHORTER, None)] = 0
    return dict(inputs, attention_mask=mask, input_ids=torch.where(mask.bool(), inputs["input_ids"], 0))


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


def close(what: str, a: Any, b: Any, exact: bool, units: int = UNITS, least: float = 1.0) -> list[str]:
    """b against a. Rounding: so many units in the last place of the largest number there is, or of `least`."""
    one, other = ([x.detach() for x in tensors(y)] for y in (a, b))
    if [x.shape for x in one] != [x.shape for x in other]:
        return [f"{what}: other shapes"]
    worst, size = 0.0, least
    for x, y in zip(one, other):
        finite = x.isfinite()
        if not torch.equal(finite, y.isfinite()):
            return [f"{what}: finite at other places"]
        gap = (x[finite].double() - y[finite].double()).abs()
        if gap.numel():
            worst, size = max(worst, float(gap.max())), max(size, float(x[finite].abs().max()))
    if exact:
        return [f"{what}: differs by {worst:.3g}, but must not"] if worst > 0 else []
    return (
        [f"{what}: {worst / size:.2g} of its size, {worst / size / UNIT:.0f} units"]
        if worst > units * UNIT * size
        else []
    )


def said(output: Any, inputs: dict[str, Any], side: Optional[str]) -> list[torch.Tensor]:
    """Of an output what does not stand for padding, nor is pooled over it."""
    if side is None:
        return list(tensors(output))
    keep = inputs["attention_mask"].bool()
    answers = inputs["decoder_input_ids"].shape[1] if "decoder_input_ids" in inputs else None
    return [
        x[keep] if x.shape[:2] == keep.shape else x
        for x in tensors(output)
        if x.ndim > 2 and x.shape[1] in (keep.shape[1], answers)
    ]


# Who computes attention -----------------------------------------------------------------------------------------------
class _Softmaxes(TorchDispatchMode):
    """Notes, under the name of the innermost module, what takes a softmax over scores: known from below, whoever wrote
    it and however."""

    FUSED = re.compile(
        r"_?(scaled_dot_product|flash_attention|efficient_attention)|transformer_encoder_layer_fwd|native_multi_head"
    )

    def __init__(self, stack: list[tuple[str, torch.nn.Module]]):
        super().__init__()
        self.stack, self.found, self.fused = stack, set[str](), False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = str(func)
        fused = self.FUSED.search(name) is not None
        softmax = (
            "_softmax" in name
            and "log_softmax" not in name
            and isinstance(out, torch.Tensor)
            and out.ndim >= 3
            and out.shape[-1] > 1
        )
        self.fused = self.fused or fused
        if (softmax or fused) and self.stack:
            label, module = self.stack[-1]
            if re.search("att(entio)?n", type(module).__name__, re.IGNORECASE):  # a router takes a softmax, too
                self.found.add(label)
        return out


def attending(model: torch.nn.Module, inputs: dict[str, Any]) -> tuple[set[str], bool]:
    """Names of the modules that compute attention, and whether a fused kernel does it anywhere."""
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
    return mode.found, mode.fused


# Checks ---------------------------------------------------------------------------------------------------------------
def rows(w: rootdk.Watch) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {(r["step"], r["layer"], r["head"]): r for r in w.to_dicts()}


def same_statistics(what: str, eager: rootdk.Watch, other: rootdk.Watch, all_layers: bool = True) -> list[str]:
    """In the same steps of the same layers the same; what only one saw is the other's to name."""
    a, b = rows(eager), rows(other)
    kind = eager.model.config.model_type
    names = [name for name in STATISTICS if kind not in SINK_OUTSIDE or name not in OF_SOFTMAX]
    if not all_layers:
        a = {key: row for key, row in a.items() if key[1] == eager.layers[0]}
        b = {key: row for key, row in b.items() if key[1] == eager.layers[0]}
    out = []
    for who, w, missing in (("eager", eager, b.keys() - a.keys()), (what, other, a.keys() - b.keys())):
        for step, layer in sorted({key[:2] for key in missing if _module(key[1]) not in map(_module, w.unseen)}):
            out.append(f"{what}: step {step} {layer} is not in the statistics of {who}")
    for key in sorted(a.keys() & b.keys()):
        for name in names:
            x, y = a[key][name], b[key][name]
            if not (x != x and y != y) and not abs(x - y) <= tolerance(name, a[key]):
                out.append(f"{what}: step {key[0]} {key[1]} head {key[2]} {name} {y:.5g}, eager {x:.5g}")
    return out if len(out) < 4 else [*out[:3], f"{what}: … and {len(out) - 3} more statistics"]


def tolerance(name: str, row: dict[str, Any]) -> float:
    """Scores are off by so many units of the largest of them, and of no less than 1; a statistic by what that makes of
    it, and by its own rounding."""
    slope = STATISTICS[name]
    if slope is None:
        return 0.0
    largest = max(1.0, *(abs(row[each]) for each in ("raw_max", "score_max", "raw_sigma") if math.isfinite(row[each])))
    return UNITS * UNIT * (largest * slope(row["keys"]) + abs(row[name]))


def unnamed(what: str, w: rootdk.Watch, attends: set[str]) -> list[str]:
    """A module is named by its own name, or by that of one inside it which computed attention for it."""
    lost = sorted(_beside(attends, [*w.layers, *w.unseen]))
    return (
        [f"{what}: neither seen nor named: {', '.join(lost[:3])}{f' … {len(lost)}' if len(lost) > 3 else ''}"]
        if lost
        else []
    )


def only_named(w: rootdk.Watch, attends: set[str]) -> set[str]:
    """Modules that compute attention and are in no statistic."""
    return _beside(attends, w.layers)


def _beside(attends: set[str], labels: list[str]) -> set[str]:
    known = {*map(_module, labels)}
    return {name for name in attends - known if not any(each.startswith(f"{name}.") for each in known)}


def _module(label: str) -> str:
    return "" if label == "(root)" else label.split("#")[0]


def _seed() -> None:
    """Some models draw masks and permutations of their own, from either generator."""
    torch.manual_seed(5)
    np.random.seed(5)


def _both(
    problems: list[str], label: str, run: Callable[[bool], Any], works: bool = False
) -> Optional[tuple[Any, Any]]:
    """What `run` gives unwatched and watched; none where the model does not do it unwatched. `works`: in eager it does,
    so ours must, or say why not."""
    _seed()
    try:
        plain = run(False)
    except Exception as e:
        if works and label.endswith("/rootdk") and 'attn_implementation="rootdk"' not in str(e):
            problems.append(f"{label}: {type(e).__name__} {models.line(e)}, but eager runs")
        return None
    _seed()
    try:
        return plain, run(True)
    except Exception as e:
        problems.append(f"{label}: watched {type(e).__name__} {models.line(e)}")
        return None


def forward(case: Case, side: Optional[str] = None) -> list[str]:
    what = {None: "plain", "left": "padded left", "right": "padded right"}[side]
    problems: list[str] = []
    outputs: dict[str, list[torch.Tensor]] = {}
    whole: dict[str, list[torch.Tensor]] = {}
    watches: dict[str, rootdk.Watch] = {}
    for implementation, tiny in case.by.items():
        inputs = padded(tiny.inputs, side)

        def run(watched: bool) -> Any:
            with torch.no_grad(), rootdk.watch(tiny.model) if watched else contextlib.nullcontext() as w:
                return tiny.model(**inputs), w

        both = _both(problems, f"{what}/{implementation}", run, "eager" in watches)
        if both is not None:
            (plain, _), (output, w) = both
            problems += close(f"{what}/{implementation} output", plain, output, case.exact(implementation))
            problems += case.unnamed(f"{what}/{implementation}", w)
            whole[implementation], watches[implementation] = list(tensors(plain)), w
            outputs[implementation] = said(plain, inputs, side)
    # Where transformers' own sdpa computes something else than its eager, ours is as sdpa.
    against = "eager"
    if "sdpa" in outputs and "eager" in outputs and close("", outputs["eager"], outputs["sdpa"], False):
        against = "sdpa"
    for implementation in ("sdpa", "rootdk"):
        if implementation in outputs and against in outputs and implementation != against:
            if implementation == "rootdk":
                problems += close(
                    f"{what}: {implementation} against {against}", outputs[against], outputs[implementation], False
                )
            # A query of padding that sees no key gets a mean of all values in eager, zero in sdpa. What it asks in the
            # next layer counts as well.
            alike = not close("", whole[against], whole[implementation], False)
            problems += same_statistics(
                f"{what}/{implementation}", watches[against], watches[implementation], all_layers=alike
            )
    return problems


def generate(case: Case, cache: Optional[str] = None) -> list[str]:
    """Greedy, four tokens, after prompts of different lengths."""
    what = f"generate {cache or 'dynamic'}"
    problems: list[str] = []
    watches: dict[str, rootdk.Watch] = {}
    tokens: dict[str, torch.Tensor] = {}
    for implementation, tiny in case.by.items():
        inputs = padded(tiny.inputs, "left" if tiny.padded else None)
        inputs = {key: value for key, value in inputs.items() if key != "decoder_input_ids"}

        def run(watched: bool) -> Any:
            with rootdk.watch(tiny.model) if watched else contextlib.nullcontext() as w:
                return tiny.model.generate(
                    **inputs,
                    max_new_tokens=4,
                    min_new_tokens=4,
                    do_sample=False,
                    output_logits=True,
                    disable_compile=True,
                    return_dict_in_generate=True,
                    **({"cache_implementation": cache} if cache else {}),
                    **({"decoder_start_token_id": 1} if tiny.model.config.is_encoder_decoder else {}),
                ), w

        both = _both(problems, f"{what}/{implementation}", run, "eager" in watches)
        if both is not None:
            (plain, _), (output, w) = both
            if not torch.equal(plain.sequences, output.sequences):
                problems.append(f"{what}/{implementation}: other tokens")
            problems += close(
                f"{what}/{implementation} logits", plain.logits, output.logits, case.exact(implementation)
            )
            problems += case.unnamed(f"{what}/{implementation}", w)
            watches[implementation], tokens[implementation] = w, plain.sequences
    for implementation in ("sdpa", "rootdk"):
        if implementation in tokens and "eager" in tokens and torch.equal(tokens[implementation], tokens["eager"]):
            problems += same_statistics(f"{what}/{implementation}", watches["eager"], watches[implementation])
    return problems


def _gradients(tiny: models.Tiny, watched: bool) -> tuple[list[torch.Tensor], Any]:
    tiny.model.zero_grad(set_to_none=True)
    _seed()
    with rootdk.watch(tiny.model) if watched else contextlib.nullcontext() as w:
        output = tiny.model(**tiny.inputs)
        draw = torch.Generator().manual_seed(7)  # not the output's own square: behind a layer norm, that is a constant
        sum(
            (x.float() * torch.randn(x.shape, generator=draw)).mean() for x in tensors(output) if x.requires_grad
        ).backward()
    out = [p.grad for p in tiny.model.parameters() if p.grad is not None]
    tiny.model.zero_grad(set_to_none=True)
    return out, w


def train(case: Case, reentrant: Optional[bool] = None) -> list[str]:
    """A forward and a backward, dropout off; a model that then draws numbers of its own is left out. `reentrant`: with
    checkpoints of that kind."""
    checkpointed = reentrant is not None
    what = f"train{'' if reentrant is None else ' checkpointed, reentrant' if reentrant else ' checkpointed'}"
    problems: list[str] = []
    watches: dict[str, rootdk.Watch] = {}
    outputs: dict[str, list[torch.Tensor]] = {}
    for implementation, tiny in case.by.items():
        model = tiny.model
        if checkpointed and not model.supports_gradient_checkpointing or reentrant and case.name in NOT_REENTRANT:
            return []
        model.train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        if checkpointed:
            try:
                model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
            except ValueError:  # a part of it does not
                model.eval()
                return []
        both = _both(
            problems,
            f"{what}/{implementation}",
            lambda watched: (_gradients(tiny, watched), None if watched else _gradients(tiny, False)),
            "eager" in watches,
        )
        if checkpointed:
            model.gradient_checkpointing_disable()
        model.eval()
        if both is None:
            continue
        ((plain, _), (again, _)), ((found, w), _) = both
        if close("", plain, again, exact=True):
            continue
        problems += close(
            f"{what}/{implementation} gradients", plain, found, case.exact(implementation), units=1024, least=0.0
        )
        problems += case.unnamed(f"{what}/{implementation}", w)
        outputs[implementation], watches[implementation] = plain, w
    # The same gradients come from the same scores; where transformers' own sdpa computes something else than its eager,
    # ours is as sdpa.
    against = "eager"
    if (
        "sdpa" in outputs
        and "eager" in outputs
        and close("", outputs["eager"], outputs["sdpa"], False, units=1024, least=0.0)
    ):
        against = "sdpa"
    for implementation in ("sdpa", "rootdk"):
        if implementation in outputs and against in outputs and implementation != against:
            if implementation == "rootdk":
                problems += close(
                    f"{what}: rootdk gradients against {against}",
                    outputs[against],
                    outputs["rootdk"],
                    False,
                    units=1024,
                    least=0.0,
                )
            problems += same_statistics(f"{what}/{implementation}", watches[against], watches[implementation])
    return problems


def compiled(case: Case, implementation: str, fullgraph: bool = True) -> Optional[list[str]]:
    """None where the model does not compile so unwatched. What runs inside of a graph may be named only."""
    what = f"compile{' fullgraph' if fullgraph else ''}/{implementation}"
    problems: list[str] = []
    tiny = case.by[implementation]

    def run(watched: bool) -> Any:
        torch._dynamo.reset()
        try:
            with torch.no_grad(), rootdk.watch(tiny.model) if watched else contextlib.nullcontext() as w:
                return torch.compile(tiny.model, backend="eager", fullgraph=fullgraph)(**tiny.inputs), w
        finally:
            torch._dynamo.reset()

    both = _both(problems, what, run)
    if both is not None:
        (plain, _), (output, w) = both
        case.ran.add(what)
        problems += close(f"{what} output", plain, output, exact=False)
        problems += unnamed(what, w, case.attends)
    return problems if problems or both is not None else None


def compilations(case: Case) -> list[str]:
    """As one graph, or in pieces where the model is none: by the implementation that transformers would take, and by
    ours."""
    theirs = "sdpa" if "sdpa" in case.by else "eager"
    problems: list[str] = []
    for implementation in (theirs, "rootdk") if "rootdk" in case.by else (theirs,):
        whole = compiled(case, implementation)
        problems += (compiled(case, implementation, fullgraph=False) or []) if whole is None else whole
    return problems


CHECKS: dict[str, Callable[[Case], list[str]]] = {
    "forward": forward,
    "padded left": lambda case: forward(case, "left") if case.by["eager"].padded else [],
    "padded right": lambda case: forward(case, "right") if case.by["eager"].padded else [],
    "generate": lambda case: generate(case) if case.by["eager"].generates else [],
    "generate static": lambda case: generate(case, "static") if case.by["eager"].generates else [],
    "train": train,
    "train checkpointed": lambda case: train(case, reentrant=False),
    "train checkpointed, reentrant": lambda case: train(case, reentrant=True),
}
