"""rootdk.audit: a model, and how far the scale of each of its heads is from right, without running it."""

from __future__ import annotations

import contextlib
import html
import io
import json
import math
import os
import pathlib
import re
from typing import Any, Iterator, Mapping, Sequence

import numpy as np

from . import _core
from ._checkpoint import Path, Source, config_of, config_text, is_module, is_path, on_disk
from ._files import write_whole
from ._problem import flag, real, text, whole, wholes
from ._statistics import Array

_BY_CONTEXT = ("keys", "sigma_over_critical", "entropy", "participation", "p_max")
_ON_INPUTS = ("embeddings", "measured")  # the same head on other inputs: objects in its dictionary
_GROUNDS = {"measured": "measured", "embeddings": "on the embeddings", "weights": "from the weights alone"}
_DIRECTION = re.compile("[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]|[\x00-\x1f\x7f-\x9f]")


class Audit:
    """What the heads of a checkpoint will do. `found["sigma"]` is an array with a number for every head,
    `found["entropy"]` one [heads, contexts], `found["ground"]` what each verdict stands on ("measured", "embeddings" or
    "weights"); `found.heads` has a dictionary for each head, and `str()` is what `rootdk audit` prints."""

    def __init__(self, text: str, words: str, conclusion: str, csv: str, hidden: Array | None = None):
        self._json, self._words, self._csv, self._hidden = text, words, csv, hidden
        self.conclusion = conclusion
        self.data: dict[str, Any] = json.loads(text)  #: docs/audit.md
        #: one per head, with the number of its layer and the kind of its attention
        self.heads: list[dict[str, Any]] = [
            {"layer": layer["layer"], "attention": layer["attention"], **head}
            for layer in self.data["layers"]
            for head in layer["heads"]
        ]

    @property
    def model(self) -> str:
        return str(self.data["model"])

    @property
    def family(self) -> str:
        return str(self.data["family"])

    @property
    def contexts(self) -> list[int]:
        """The numbers of keys that predictions are for."""
        return [int(n) for n in self.data["contexts"]]

    @property
    def judged_at(self) -> int:
        """The number of keys that verdicts are for."""
        return int(self.data["judged_at"])

    @property
    def drift(self) -> list[dict[str, Any]]:
        """What moved most since `against`, first."""
        if "drift" not in self.data:
            raise ValueError("drift: pass against=, an earlier checkpoint of the same model")
        return list(self.data["drift"])

    @property
    def last_hidden_state(self) -> Array:
        """[sequences, tokens, width], float32: what the run ended with, after the final norm."""
        if self._hidden is None:
            raise ValueError("last_hidden_state: pass run=, ids of tokens to run the model on")
        return self._hidden

    @property
    def names(self) -> list[str]:
        """What there is for every head; `embeddings_sigma` is `head["embeddings"]["sigma"]`, where any head has it."""
        if not self.heads:
            return []
        nested = {f"{part}_{name}": None for head in self.heads for part in _ON_INPUTS for name in head.get(part, {})}
        return [
            name
            for name, value in self.heads[0].items()
            if name in _BY_CONTEXT or isinstance(value, (int, float, str, type(None)))
        ] + list(nested)

    def __getitem__(self, name: str) -> Array:
        """[heads], or [heads, contexts] for what depends on the number of keys; NaN where it is not known."""
        if name not in self.names:
            raise KeyError(f"{name!r} is none of {', '.join(self.names)}")
        part, _, rest = name.partition("_")
        if part in _ON_INPUTS:
            return np.array([_known(head.get(part, {}).get(rest)) for head in self.heads], dtype=np.float64)
        values = [head[name] for head in self.heads]
        if name in _BY_CONTEXT:
            return np.array([[_known(value.get(str(n))) for n in self.contexts] for value in values], dtype=np.float64)
        if all(isinstance(value, bool) for value in values):
            return np.array(values, dtype=np.bool_)
        if all(isinstance(value, int) for value in values):
            return np.array(values, dtype=np.int64)
        if any(isinstance(value, str) for value in values):
            return np.array(values)
        return np.array([_known(value) for value in values], dtype=np.float64)

    def __len__(self) -> int:
        return len(self.heads)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.heads)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as docs/audit.md describes it."""
        return dict(self.data)

    def to_json(self) -> str:
        """The same text as `rootdk audit --json` prints."""
        return self._json

    def to_csv(self) -> str:
        """The same text as `rootdk audit --csv` writes: a line for each head."""
        return self._csv

    def to_pandas(self) -> Any:
        """That table as a DataFrame. Needs pandas."""
        import pandas

        return pandas.read_csv(io.StringIO(self._csv))

    def report(self, path: Path) -> pathlib.Path:
        """One HTML file that needs nothing else, the same as `rootdk audit --html`: a map, each head in detail, a table
        to sort."""
        return write_whole(path, _core.audit_html(self._json))

    def __str__(self) -> str:
        return self._words

    def __repr__(self) -> str:
        layers, heads = _counted(len(self.data["layers"]), "layer"), _counted(len(self), "head")
        return f"Audit({_visible(self.model)}, {_visible(self.family)}, {layers}, {heads}): {self.conclusion}"

    def _repr_html_(self) -> str:
        widest = max((len(layer["heads"]) for layer in self.data["layers"]), default=0)
        titles = "".join(f"<th>{head}</th>" for head in range(widest))
        lines = []
        for layer in self.data["layers"]:
            cells = "".join(_cell(head, str(self.judged_at)) for head in layer["heads"])
            lines.append(f"<tr><th>{html.escape(_visible(layer['attention']))} {layer['layer']}</th>{cells}</tr>")
        grounds = {head["ground"] for head in self.heads if head["verdict"] != "not_finite"}
        stands = ", ".join(words for name, words in _GROUNDS.items() if name in grounds)
        return (
            f"<p>{html.escape(repr(self))}</p>"
            f"<table><caption>σ of the scores, {stands}; colour: σ/σ_c at {self.judged_at} keys</caption>"
            f"<thead><tr><th>layer</th>{titles}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
        )


def _known(value: Any) -> float:
    return math.nan if value is None else float(value)


def _visible(name: str) -> str:
    """A file's name cannot steer a terminal, nor the order in which a line is read."""
    return _DIRECTION.sub(lambda c: f"\\u{ord(c[0]):04x}", name)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _cell(head: dict[str, Any], context: str) -> str:
    ground = _GROUNDS[head["ground"]]
    words = html.escape(f"head {head['head']}, {head['verdict']}, {ground}: {head['words']}", quote=True)
    sigma = head.get("measured", head.get("embeddings", head))["sigma"]  # what the verdict stands on
    if sigma is None:
        return f'<td title="{words}">–</td>'
    frozen = min(1.0, _known(head["sigma_over_critical"].get(context)))
    shade = f' style="background: rgb(213 94 0 / {frozen:.2f})"' if frozen == frozen else ""
    return f'<td title="{words}"{shade}>{sigma:.2f}</td>'


def call_of(
    *,
    heads: int | None,
    kv_heads: int | None,
    head_dim: int | None,
    norm: str | None,
    scale: float | str | None,
    rotary_base: float | None,
    context: int | None,
    family: str | None,
    family_file: Path | None,
    contexts: Sequence[int] | None,
    at: int | None,
    inputs: Path | None,
    spectra: bool,
) -> _core.AuditCall:
    """What an audit wants to know beside the model, looked through."""
    call = _core.AuditCall()
    call.heads, call.kv_heads, call.head_dim = (
        _whole("heads", heads),
        _whole("kv_heads", kv_heads),
        _whole("head_dim", head_dim),
    )
    call.context, call.judge_at = _whole("context", context), _whole("at", at)
    if isinstance(scale, str):
        call.scale_rule = scale
    elif scale is not None:
        call.scale = real("scale", scale)
    call.rotary_base = None if rotary_base is None else real("rotary_base", rotary_base)
    if norm is not None:
        call.set_norm(text("norm", norm))
    if family is not None:
        call.family = text("family", family)
    if family_file is not None:
        call.family_json = pathlib.Path(checked_path("family_file", family_file)).read_text(encoding="utf-8")
    if contexts is not None:
        call.contexts = wholes("contexts", contexts)
    if inputs is not None:
        call.inputs = checked_path("inputs", inputs)
    call.spectra = flag("spectra", spectra)
    return call


def audit(
    model: Source,
    *,
    config: Any = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    norm: str | None = None,
    scale: float | str | None = None,
    rotary_base: float | None = None,
    context: int | None = None,
    family: str | None = None,
    family_file: Path | None = None,
    contexts: Sequence[int] | None = None,
    at: int | None = None,
    inputs: Path | None = None,
    run: Any = None,
    embeddings: Any = None,
    against: Source | None = None,
    spectra: bool = True,
) -> Audit:
    """Reads a model and says how far each head's scale is from right, without running it, or with ``run``.

    model        a path (.safetensors, .gguf, .npz, or a directory), a torch.nn.Module, or a state_dict: names and
                 their torch tensors or numpy arrays. Tensors are copied to a temporary file, one by one
    config       what config.json would say of a module or a state_dict, as a dict or a configuration of
                 transformers; without it, a module's own ``config``
    heads, kv_heads, head_dim, norm ("rms", "layer", "none"), scale, rotary_base, context
                 what no configuration says; wins over one that does. A scale is a number, or a rule of
                 ``rootdk.rules()``: "sqrt_dk", "dk(8)"
    family       take it for a model of this family; ``family_file`` describes a new one
    contexts     numbers of keys to predict for; verdicts are for ``at`` of them, or the longest
    inputs       activations as they enter the projections: an .npy, or a directory of them
    run          runs the model on these ids of tokens, [tokens] or [sequences, tokens] (numpy, torch, a list), and
                 measures every head; or on a text, by the tokenizer.json beside the model and the package tokenizers
    embeddings   the same on what enters the first block, [tokens, width] or [sequences, tokens, width]: for ViT
    against      the same model earlier, given like ``model``: ``drift``
    spectra      whether to compute each head's singular values

    The command `rootdk audit` says the same of files; it can also write a copy with QK-clip applied.
    """
    call = call_of(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        norm=norm,
        scale=scale,
        rotary_base=rotary_base,
        context=context,
        family=family,
        family_file=family_file,
        contexts=contexts,
        at=at,
        inputs=inputs,
        spectra=spectra,
    )
    if sum(given is not None for given in (inputs, run, embeddings)) > 1:
        raise ValueError("inputs, run, embeddings: one of them is wanted")
    if isinstance(run, str):
        call.set_run(_ids(_tokens_of_text(model, run)))
    elif run is not None:
        call.set_run(_ids(run))
    if embeddings is not None:
        call.set_embeddings(_embeddings(embeddings))
    _check_source("model", model)
    if against is not None:
        _check_source("against", against)
    if config is not None and is_path(model) and (against is None or is_path(against)):
        raise ValueError(
            "config: given, but a path's configuration is the config.json beside it; heads= and its like win over that"
        )
    said = None if config is None else config_text(config)
    everything = family_file is not None or run is not None or embeddings is not None
    with contextlib.ExitStack() as stack:

        def place(argument: str, source: Source) -> str:
            if is_path(source):
                return checked_path(argument, source)
            own = said if said is not None else config_of(source)
            if own is None:
                own = config_of(model)  # `against` is the same model
            return str(stack.enter_context(on_disk(argument, source, own, everything=everything)))

        path = place("model", model)
        call.against = None if against is None else place("against", against)
        try:
            return Audit(*_core.audit(path, call))
        except ValueError as error:
            words = str(error)
            if run is None or not words.startswith("tokens: "):
                raise
            raise ValueError("run: " + words.removeprefix("tokens: ")) from None


def _numbers(name: str, value: Any) -> Array:
    """As numpy has them; of torch's from any device."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if value.is_floating_point() else value  # numpy has no bfloat16
    try:
        return np.asarray(value)
    except (TypeError, ValueError):  # ragged lists
        raise ValueError(f"{name}: sequences of one length are wanted") from None


def _ids(value: Any) -> Array:
    ids = _numbers("run", value)
    if ids.dtype.kind not in "iu" and ids.size > 0:
        raise TypeError(f"run: {ids.dtype} numbers, but ids of tokens are whole numbers")
    if ids.ndim not in (1, 2):
        raise ValueError(f"run: {list(ids.shape)}, but [tokens] or [sequences, tokens] is wanted")
    if ids.dtype.kind == "u" and ids.size > 0 and int(ids.max()) > np.iinfo(np.int64).max:
        raise ValueError(f"run: {int(ids.max())} is no id of a token")
    return np.ascontiguousarray(np.atleast_2d(ids), dtype=np.int64)


def _embeddings(value: Any) -> Array:
    rows = _numbers("embeddings", value)
    if rows.dtype.kind != "f":
        raise TypeError(f"embeddings: {rows.dtype} numbers, but floats are wanted")
    if rows.ndim not in (2, 3):
        raise ValueError(f"embeddings: {list(rows.shape)}, but [tokens, width] or [sequences, tokens, width] is wanted")
    return np.ascontiguousarray(rows if rows.ndim == 3 else rows[None], dtype=np.float32)


def _tokens_of_text(model: Source, words: str) -> list[int]:
    if not is_path(model):
        raise ValueError(
            "run: text, but only a model that is given by its path has a tokenizer.json beside it; give ids"
        )
    path = pathlib.Path(checked_path("model", model))
    tokenizer = (path if path.is_dir() else path.parent) / "tokenizer.json"
    if not tokenizer.is_file():
        raise ValueError(f"run: text, but there is no {tokenizer}; give ids")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ImportError("run: text needs the package tokenizers; give ids") from None
    try:
        found = Tokenizer.from_file(str(tokenizer))
    except Exception as error:  # tokenizers raises Exception itself
        raise ValueError(f"run: {tokenizer} cannot be read: {error}") from None
    return list(found.encode(words).ids)


def _check_source(name: str, source: object) -> None:
    if not (is_path(source) or is_module(source) or isinstance(source, Mapping)):
        raise TypeError(f"{name}: {type(source).__name__}, but a path, a torch.nn.Module or a state_dict is wanted")


def checked_path(name: str, value: Any) -> str:
    """Bytes are no path here."""
    try:
        path = os.fspath(value)
    except TypeError:
        path = None
    if not isinstance(path, str):
        raise TypeError(f"{name}: {type(value).__name__}, but a path is wanted")
    if "\0" in path:
        raise ValueError(f"{name}: a zero byte is in {path!r}")
    return path


def _whole(name: str, value: int | None) -> int | None:
    if value is None:
        return None
    number = whole(name, value)
    if number < 1:
        raise ValueError(f"{name}: {number}, but a whole number of at least 1 is wanted")
    return number
