"""Which parameters make a layer's queries and keys, row by row: by the names that models use, or as the caller says."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Iterator, Optional

import numpy as np
import torch
from torch import Tensor

from .gains import Gain, gains_of
from .layout import passes_factors, rows_of

NONE, ALL = -1, -2  # rows that belong to no query or key, and rows that all heads share


@dataclasses.dataclass
class Projections:
    """Views into a layer's parameters, heads first: weights [heads, dim, …], biases [heads, dim]. Under QK-norm weights
    do not reach the scores, so its gains [dim] or [heads, dim] are what shrinks; b_q and b_k are then the biases of the
    norms, in the shape of the gains, and gain_offset is 1 where the norm multiplies by 1 + weight."""

    w_q: Optional[Tensor] = None
    b_q: Optional[Tensor] = None
    w_k: Optional[Tensor] = None
    b_k: Optional[Tensor] = None
    q_gain: Optional[Tensor] = None
    k_gain: Optional[Tensor] = None
    gain_offset: float = 0.0


@dataclasses.dataclass
class Edit:
    """What happens to one parameter: along `axis`, row r becomes (row + offset)·γ[head[r]]^power[r] − offset."""

    tensor: Tensor
    name: str
    axis: int
    head: np.ndarray[Any, np.dtype[np.int64]]
    power: np.ndarray[Any, np.dtype[np.float64]]
    offset: float = 0.0

    def factors(self, gamma: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Of each row; 1 where it stays."""
        worst = gamma.min() if gamma.size else 1.0
        of_row = np.where(self.head == ALL, worst, gamma[np.maximum(self.head, 0)])
        return np.where(self.head == NONE, 1.0, of_row**self.power)


@dataclasses.dataclass
class Found:
    """A layer's edits. Where heads share a gain, the worst head decides for all."""

    edits: list[Edit]
    shared: bool = False
    side_by_side: bool = False  # all queries, then all keys: a shard of the rows is not a set of heads

    def achieved(self, gamma: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """What becomes of each head's scores."""
        return np.full_like(gamma, gamma.min()) if self.shared and gamma.size else gamma


@dataclasses.dataclass
class _Linear:
    weight: Tensor
    bias: Optional[Tensor]
    axis: int  # of the outputs
    name: str

    @property
    def rows(self) -> int:
        return int(self.weight.shape[self.axis])

    @property
    def inputs(self) -> int:
        return int(self.weight.shape[1 - self.axis])

    def edits(self, head: Any, power: Any) -> Iterator[Edit]:
        head = np.asarray(head, np.int64)
        power = np.broadcast_to(np.asarray(power, np.float64), head.shape)
        yield Edit(self.weight, f"{self.name}.weight", self.axis, head, power)
        if self.bias is not None:
            yield Edit(self.bias, f"{self.name}.bias", 0, head, power)


_PAIRS = (
    ("q_proj", "k_proj"),
    ("query", "key"),
    ("q", "k"),
    ("q_lin", "k_lin"),
    ("to_q", "to_k"),
    ("wq", "wk"),
    ("Wq", "Wk"),
    ("linear_q", "linear_k"),
    ("query_proj", "key_proj"),
    ("q_attn", ""),
)
_PACKED = ("qkv", "qkv_proj", "Wqkv", "wqkv", "to_qkv", "c_attn", "att_proj", "query_key_value")
# Whose packed layers are known to lie side by side, but for the classes below; others are tried.
_KNOWN = ("transformers.", "timm.")
# Each group of query heads is followed by its key and its value.
_BY_GROUPS = {"GPTNeoXAttention", "GPTNeoXJapaneseAttention", "BloomAttention", "FalconAttention", "PersimmonAttention"}
_NORM = re.compile(r"(?:(q|query|k|key|qk)_?(?:layer_?)?(?:norm|ln))|(?:norm_(q|k))")
_LOOKS_LIKE_NORM = re.compile(r"(?:^|_)(?:q|k|qk|query|key)(?:_.*)?(?:norm|ln)|(?:norm|ln)_(?:q|k|qk|query|key)(?:_|$)")
# What puts something between projections and scores that a factor does not pass through.
_NOT_LINEAR = ("logit_scale", "pos_bias_u", "r_w_bias", "clip_qkv", "pos_key_proj", "pos_query_proj")


def find(module: torch.nn.Module, label: str, heads: int, alpha: float) -> Found:
    """What shrinks the scores of the module's `heads` heads: queries by γ^α and keys by γ^(1−α), or where heads share
    keys, or keys are not known, queries by γ. Raises ValueError, naming the layer, where that is not known exactly."""
    who = f"{label} ({type(module).__name__})"
    try:
        found = _find(module, heads, alpha)
    except ValueError as error:
        raise ValueError(f"qk_clip: {who}: {error}") from None
    if found is None:
        raise ValueError(f"qk_clip: {who} has no projections of a name that is known; pass projections=")
    return found


def _find(module: torch.nn.Module, heads: int, alpha: float) -> Optional[Found]:
    for name in _NOT_LINEAR:
        if not any(getattr(module, name, None) is nothing for nothing in (None, False)):
            raise ValueError(
                f"its {name} stands between projections and scores; pass projections= if you know what to scale"
            )
    if isinstance(module, torch.nn.MultiheadAttention):
        return _multihead(module, heads, alpha)
    if hasattr(module, "qk_rope_head_dim") and hasattr(module, "kv_b_proj"):
        return _latent(module, heads, alpha)
    norms = _norms(module)
    if norms:
        return _normed(module, norms, heads, alpha)
    q, k = _pair(module)
    if q is not None:
        return _separate(module, q, k, heads, alpha)
    return _packed(module, heads, alpha)


# Linear layers --------------------------------------------------------------------------------------------------------
def _parameter(owner: torch.nn.Module, attribute: str, name: str, shape: tuple[int, ...]) -> Tensor:
    value = owner._parameters.get(attribute)
    if value is None:
        raise ValueError(
            f"{name} is computed from other parameters or kept elsewhere (parametrize, weight_norm, "
            "FSDP1); with FSDP1, clip inside summon_full_params"
        )
    if not value.is_floating_point():
        raise ValueError(f"{name} is {value.dtype}, but floating-point weights are wanted")
    if tuple(value.shape) != shape:
        raise ValueError(
            f"{name} is {tuple(value.shape)}, but {shape} is wanted: only a shard is here (FSDP1 outside "
            "summon_full_params, ZeRO-3, or another kind of sharding without DTensor)"
        )
    return value


def _linear(module: torch.nn.Module, name: str) -> Optional[_Linear]:
    child = getattr(module, name, None) if name else None
    if not isinstance(child, torch.nn.Module):
        return None
    layer: torch.nn.Module = getattr(child, "_orig_mod", child)
    if isinstance(layer, torch.nn.Linear):
        shape, axis = (layer.out_features, layer.in_features), 0
    elif type(layer).__name__ == "Conv1D" and "weight" in layer._parameters:  # transformers' own: transposed
        own = layer._parameters["weight"]
        shape, axis = (0 if own is None else int(own.shape[0]), int(getattr(layer, "nf", 0))), 1
    else:
        raise ValueError(f"{name} is {type(layer).__name__}, but nn.Linear is wanted; pass projections=")
    weight = _parameter(layer, "weight", f"{name}.weight", shape)
    bias = None
    if getattr(layer, "bias", None) is not None:
        bias = _parameter(layer, "bias", f"{name}.bias", (shape[axis],))
    return _Linear(weight, bias, axis, name)


def _pair(module: torch.nn.Module) -> tuple[Optional[_Linear], Optional[_Linear]]:
    for one, other in _PAIRS:
        q = _linear(module, one)
        if q is not None:
            there = isinstance(getattr(module, other or "?", None), torch.nn.Linear)
            return q, _linear(module, other) if there else None
    return None, None


def _dim(module: torch.nn.Module, rows: int, heads: int, what: str) -> int:
    dim = rows // heads if heads else 0
    known = getattr(module, "head_dim", None)
    if not dim or dim * heads != rows or (isinstance(known, int) and known != dim):
        of = f" of {known}" if isinstance(known, int) else ""
        raise ValueError(f"{rows} rows of {what} do not make {heads} heads{of}")
    return dim


def _known(module: torch.nn.Module) -> bool:
    return any(kind.__module__.startswith(_KNOWN) for kind in type(module).__mro__)


def _separate(module: torch.nn.Module, q: _Linear, k: Optional[_Linear], heads: int, alpha: float) -> Found:
    dim = _dim(module, q.rows, heads, q.name)
    own_keys = k is not None and k.rows == q.rows
    edits = list(q.edits(np.arange(q.rows) // dim, alpha if own_keys else 1.0))
    rows = {q.name: q.rows}
    if k is not None and own_keys:
        edits += k.edits(np.arange(k.rows) // dim, 1 - alpha)
        rows[k.name] = k.rows
    if not _known(module) and passes_factors(module, rows, q.inputs, q.weight.device) is False:
        raise ValueError(
            f"its forward does more to {' and '.join(rows)} than a factor would pass through (a norm "
            "without a module?); pass projections= if you know what to scale"
        )
    return Found(edits)


def _packed(module: torch.nn.Module, heads: int, alpha: float) -> Optional[Found]:
    """One linear layer for queries, keys and values."""
    name = next((name for name in _PACKED if isinstance(getattr(module, name, None), torch.nn.Module)), None)
    layer = _linear(module, name) if name is not None else None
    if layer is None or not heads:
        return None
    names = {kind.__name__ for kind in type(module).__mro__}
    if not _known(module):
        return _as_forward_says(module, layer, heads, alpha)
    known = getattr(module, "head_dim", None)
    dim = known if isinstance(known, int) and known > 0 else layer.rows // (3 * heads)
    heads_kv, rest = divmod(layer.rows // dim - heads, 2) if dim and layer.rows % dim == 0 else (0, 1)
    if rest or heads_kv < 1 or heads % heads_kv:
        raise ValueError(f"{layer.rows} rows of {layer.name} do not make queries, keys and values of {heads} heads")
    group = heads // heads_kv
    queries, keys = [("q", h) for h in range(heads)], [("k", h) for h in range(heads_kv)]
    by_groups = bool(names & _BY_GROUPS)
    by_groups = by_groups or ("GPTBigCodeAttention" in names and not getattr(module, "multi_query", False))
    if by_groups:
        blocks = [part for h in range(heads_kv) for part in (*queries[h * group : (h + 1) * group], ("k", h), ("v", h))]
    elif "CodeGenAttention" in names:  # four shards, in each of them queries, values, keys
        share = heads // 4
        blocks = [(role, h) for s in range(4) for role in "qvk" for h in range(s * share, (s + 1) * share)]
    else:
        blocks = [*queries, *keys, *[("v", h) for h in range(heads_kv)]]
    powers = {"q": alpha, "k": 1 - alpha} if group == 1 else {"q": 1.0}
    head = np.repeat([h if role in powers else NONE for role, h in blocks], dim)
    power = np.repeat([powers.get(role, 0.0) for role, _ in blocks], dim)
    if head.size != layer.rows:
        raise ValueError(f"{layer.rows} rows of {layer.name} do not make queries, keys and values of {heads} heads")
    return Found(list(layer.edits(head, power)), side_by_side=not by_groups)


def _as_forward_says(module: torch.nn.Module, layer: _Linear, heads: int, alpha: float) -> Found:
    """A packed layer of somebody's own: by heads, side by side, or as it likes."""
    found = rows_of(module, layer.name, layer.rows, layer.inputs, heads, layer.weight.device)
    q, k = found if found is not None else (np.zeros((1, 1), bool),) * 2
    if q.sum(0).max() > 1 or (q.any(0) & k.any(0)).any() or not q.any(1).all():
        raise ValueError(
            f"which rows of {layer.name} are whose queries and keys does not follow from its forward; pass projections="
        )
    own_keys = k.sum(0).max() <= 1
    head, power = np.full(layer.rows, NONE), np.zeros(layer.rows)
    for rows, exponent in ((q, alpha), (k, 1 - alpha)) if own_keys else ((q, 1.0),):
        head[rows.any(0)], power[rows.any(0)] = rows.argmax(0)[rows.any(0)], exponent
    return Found(list(layer.edits(head, power)), side_by_side=True)


def _multihead(module: torch.nn.MultiheadAttention, heads: int, alpha: float) -> Found:
    width = module.embed_dim
    dim = _dim(module, width, heads, "the queries' projection")
    of_row = np.arange(width) // dim
    head = np.concatenate([of_row, of_row, np.full(width, NONE)])
    power = np.repeat([alpha, 1 - alpha, 0.0], width)
    found: list[Edit] = []
    if module.in_proj_weight is not None:
        weight = _parameter(module, "in_proj_weight", "in_proj_weight", (3 * width, width))
        found.append(Edit(weight, "in_proj_weight", 0, head, power))
    else:
        for name, columns, exponent in (("q_proj_weight", width, alpha), ("k_proj_weight", module.kdim, 1 - alpha)):
            weight = _parameter(module, name, name, (width, columns))
            found.append(Edit(weight, name, 0, of_row, np.full(width, exponent)))
    if module.in_proj_bias is not None:
        bias = _parameter(module, "in_proj_bias", "in_proj_bias", (3 * width,))
        found.append(Edit(bias, "in_proj_bias", 0, head, power))
    if module.bias_k is not None:  # a key of its own
        bias = _parameter(module, "bias_k", "bias_k", (1, 1, width))
        found.append(Edit(bias, "bias_k", 2, of_row, np.full(width, 1 - alpha)))
    return Found(found, side_by_side=module.in_proj_weight is not None)


def _latent(module: torch.nn.Module, heads: int, alpha: float) -> Found:
    """Multi-head latent attention: q and k are [nope, rope] in each head, and all heads share the keys' rope part. So
    q's rope part takes all of γ, and of the rest both sides take theirs."""
    nope, rope, dim_v = (getattr(module, name, None) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    if not isinstance(nope, int) or not isinstance(rope, int) or not isinstance(dim_v, int):
        raise ValueError("the sizes of its latent attention are not known; pass projections=")
    unknown = [name for name, _ in module.named_children() if _LOOKS_LIKE_NORM.search(name) and "_a_" not in name]
    if unknown:
        raise ValueError(f"it is not known what {unknown[0]} does to its queries or keys; pass projections=")
    q, kv = _linear(module, "q_b_proj") or _linear(module, "q_proj"), _linear(module, "kv_b_proj")
    if q is None or kv is None or q.rows != heads * (nope + rope) or kv.rows != heads * (nope + dim_v):
        raise ValueError(f"its projections do not make {heads} heads of {nope} + {rope}; pass projections=")
    edits = list(q.edits(np.repeat(np.arange(heads), nope + rope), np.tile([alpha] * nope + [1.0] * rope, heads)))
    head = np.tile([0] * nope + [NONE] * dim_v, heads)
    of_row = np.repeat(np.arange(heads), nope + dim_v)
    edits += kv.edits(np.where(head == NONE, NONE, of_row), np.where(head == NONE, 0.0, 1 - alpha))
    return Found(edits)


# QK-norm --------------------------------------------------------------------------------------------------------------
def _norms(module: torch.nn.Module) -> dict[str, tuple[str, torch.nn.Module]]:
    """ "q", "k" or "qk" → the normalisation, by its name."""
    found: dict[str, tuple[str, torch.nn.Module]] = {}
    for path, child in module.named_modules():
        name = path.rpartition(".")[2]
        if not path or path.count(".") > 1 or isinstance(child, torch.nn.Identity) or not _LOOKS_LIKE_NORM.search(name):
            continue
        if any(path.startswith(f"{other}.") for other, _ in found.values()):
            continue
        match = _NORM.fullmatch(name)
        if match is None:
            raise ValueError(f"it is not known what {path} does to its queries or keys; pass projections=")
        side = (match.group(1) or match.group(2)).replace("query", "q").replace("key", "k")
        if side in found:
            raise ValueError(f"{found[side][0]} and {path} normalise the same side; pass projections=")
        found[side] = (path, child)
    return found


def _normed(module: torch.nn.Module, norms: dict[str, tuple[str, torch.nn.Module]], heads: int, alpha: float) -> Found:
    if "qk" in norms:
        path, norm = norms["qk"]
        gains = gains_of(norm, path)
        if len(norms) > 1 or len(gains) > 1:
            raise ValueError(f"{path} is not alone; pass projections=")
        edits, shared, _ = _gain_edits(gains, path, heads, _head_dim(module, heads), 0.5)  # it scales both sides
        if not shared:
            raise ValueError(f"{path} has a gain for each head; pass projections=")
        return Found(edits, shared)
    if "q" not in norms:  # queries are not normalised, so their weights reach the scores
        q, _ = _pair(module)
        if q is None:
            raise ValueError(
                f"{norms['k'][0]} normalises keys, and its queries' projection is not known; pass projections="
            )
        return _separate(module, q, None, heads, alpha)
    dim = _head_dim(module, heads)
    q_gains = gains_of(norms["q"][1], norms["q"][0])
    both = False
    if "k" in norms:
        k_gains = gains_of(norms["k"][1], norms["k"][0])
        _, k = _pair(module)
        heads_kv = max(1, k.rows // dim) if k is not None and dim else heads
        _, q_shared, _ = _gain_edits(q_gains, norms["q"][0], heads, dim, 1.0)
        k_edits, k_shared, k_heads = _gain_edits(k_gains, norms["k"][0], heads_kv, dim, 1 - alpha)
        both = q_shared == k_shared and (q_shared or k_heads == heads)
        both = both and norms["q"][1] is not norms["k"][1]
        if norms["q"][1] is norms["k"][1]:
            raise ValueError("one normalisation serves queries and keys; pass projections=")
    edits, shared, _ = _gain_edits(q_gains, norms["q"][0], heads, dim, alpha if both else 1.0)
    return Found(edits + (k_edits if both else []), shared)


def _gain_edits(
    gains: list[Gain], path: str, heads: int, dim: Optional[int], power: float
) -> tuple[list[Edit], bool, int]:
    """(edits, whether all heads share the gain, heads)"""
    if len(gains) > 1:
        if len(gains) != heads:
            raise ValueError(f"{path} has {len(gains)} normalisations, but there are {heads} heads")
        parts = [(gain, np.full(gain.weight.shape[0], head), 0) for head, gain in enumerate(gains)]
    else:
        gain = gains[0]
        size, first = gain.weight.numel(), int(gain.weight.shape[0])
        if gain.weight.ndim > 1:
            axes = [axis for axis, n in enumerate(gain.weight.shape) if n > 1]
            if first == heads and heads > 1:
                parts = [(gain, np.arange(heads), 0)]
            elif len(axes) <= 1:
                axis = axes[0] if axes else 0
                parts = [(gain, np.full(gain.weight.shape[axis], ALL), axis)]
            else:
                raise ValueError(f"the gain of {path} is {tuple(gain.weight.shape)}, but there are {heads} heads")
        else:
            if dim is None or size not in (dim, heads * dim):
                raise ValueError(
                    f"the gain of {path} is [{size}], but {heads} heads of {dim} are known; pass projections="
                )
            head = np.full(size, ALL) if size == dim and heads > 1 else np.arange(size) // dim
            parts = [(gain, head, 0)]
    edits = []
    for gain, head, axis in parts:
        exponents = np.full(head.shape, power)
        edits.append(Edit(gain.weight, f"{path}.weight", axis, head, exponents, gain.offset))
        if gain.bias is not None:
            edits.append(Edit(gain.bias, f"{path}.bias", axis, head, exponents))
    return edits, bool((parts[0][1] == ALL).any()), heads


def _head_dim(module: torch.nn.Module, heads: int) -> Optional[int]:
    known = getattr(module, "head_dim", None)
    if isinstance(known, int) and known > 0:
        return known
    q, _ = _pair(module)
    return q.rows // heads if q is not None and heads and q.rows % heads == 0 else None


# As the caller says ---------------------------------------------------------------------------------------------------
def given(p: Projections, label: str, heads: int, alpha: float) -> Found:
    """The caller's views as edits."""
    gains = p.q_gain is not None or p.k_gain is not None
    q, k = (p.q_gain, p.k_gain) if gains else (p.w_q, p.w_k)
    if q is None or (gains and k is None):
        raise ValueError(f"projections: {label}: w_q, or q_gain and k_gain, are wanted")
    if gains and (p.w_q is not None or p.w_k is not None):
        raise ValueError(
            f"projections: {label}: weights and gains, but where there are gains, weights do not reach the scores"
        )
    shared = gains and (q.ndim == 1 or (k is not None and k.ndim == 1))
    if not shared and q.shape[0] != heads:
        raise ValueError(f"projections: {label}: {q.shape[0]} heads, but {heads} were watched")
    own_keys = k is not None and (shared or k.shape[0] == heads)
    edits = []
    sides = [("q", q, p.b_q, alpha if own_keys else 1.0)]
    if k is not None and own_keys:
        sides.append(("k", k, p.b_k, 1 - alpha))
    for side, weight, bias, power in sides:
        for x, offset in ((weight, p.gain_offset if gains else 0.0), (bias, 0.0)):
            if x is None:
                continue
            if not shared and x.shape[0] != heads:
                raise ValueError(f"projections: {label}: {x.shape[0]} heads in {side}, but {heads} were watched")
            head = np.full(x.shape[0], ALL) if shared else np.arange(heads)
            edits.append(Edit(x.detach(), f"projections of {side}", 0, head, np.full(head.shape, power), offset))
    return Found(edits, shared)
