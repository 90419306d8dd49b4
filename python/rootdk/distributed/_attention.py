"""rootdk.distributed.attention: what it takes, what every way refuses, and which way is taken."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from typing import Any, Callable, Optional, Sequence, TypeVar, Union, cast

import numpy as np
import torch
from torch import Tensor

from .._attention import four_axes
from .._masks import PER_ITEM
from .._problem import QkNorm, StatsOptions, Window, options_of, real, refuse_names
from .._structure import Structure, further
from ..torch import _NAMES, _constant, _normalised, transformed, under_autocast
from ._call import Call, described, pairs_of
from ._check import agree, check_shapes
from ._faults import RankError
from ._layout import Layout
from ._plan import WAYS, Cost, Machine, Model, Plan, Sizes, choose
from ._statistics import RankStats
from ._team import TIMEOUT, Team, no_autocast, seconds_of
from ._ways import Problem, compute

Layouts = Union[str, Layout, "tuple[Layout, Layout]"]
_Call = TypeVar("_Call", bound=Callable[..., Any])
#: what ranks compare, as an error names it
_TOLD = (
    "causal, diagonal, window, lengths or documents",
    "scale",
    "softcap",
    "alibi",
    "sink (given or not)",
    "mask (given or not)",
    "bias (given or not)",
    "stats",
    "return_lse",
    "partials",
    "layout",
    "way",
    "machine",
    "whether gradients are wanted",
)
_TABLES = ("mask", "bias")
_LENGTH_RULES = ("ssmax", "entropy_invariant", "llama4")


def _untraced(call: _Call) -> _Call:
    """Not for torch.compile to look into: it would trace waits and locks. What torch has for this imports its compiler,
    which takes seconds: here only if it is there."""
    hidden: list[Any] = []

    @functools.wraps(call)
    def outer(*arguments: Any, **named: Any) -> Any:
        if not hidden and (disable := getattr(sys.modules.get("torch._dynamo"), "disable", None)) is not None:
            hidden.append(disable(call))
        return (hidden[0] if hidden else call)(*arguments, **named)

    outer._torchdynamo_disable = True  # type: ignore[attr-defined]
    return cast(_Call, outer)


@_untraced
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    group: Any = None,
    layout: Layouts = "contiguous",
    way: Optional[str] = None,
    machine: Optional[Machine] = None,
    scale: Any = "sqrt_dk",
    diagonal: Union[str, int] = "bottom_right",
    window: Window = None,
    key_starts: Any = None,
    key_lengths: Any = None,
    query_lengths: Any = None,
    documents: Any = None,
    mask: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    alibi: Any = None,
    softcap: Optional[float] = None,
    sink: Any = None,
    qk_norm: Union[QkNorm, str, None] = None,
    dropout: float = 0.0,
    stats: Union[StatsOptions, str, None] = None,
    return_lse: bool = False,
    partials: str = "float32",
    timeout: float = TIMEOUT,
    **unknown: Any,
) -> Any:
    """`rootdk.attention` of a sequence that lies on all ranks of `group`: q, k and v [batch, heads, length, dim] are
    this rank's part of it, and so is the output. Every rank of the group calls it, with the same arguments but for
    lengths; lengths, starts, documents and diagonal are those of the whole sequence.

    layout       "contiguous": the r-th run of the sequence on rank r, of any length; "zigzag": `Layout.zigzag`; or a
                 Layout (of q and k, if a pair)
    way          "ring", "all_gather", "heads" or "two_levels"; None: the fastest, as `plan` has it for `machine`
    mask, bias   for the queries here and all keys: [batch, heads, length here, length of the sequence], each 1 or all;
                 one row (1 for the length here) is that of all queries, on all ranks the same
    stats        "basic" or "full": returns (output, RankStats), for `merge`
    partials     "float32": what ranks have computed of a row is merged and summed in float32 at least. "same": each
                 part is rounded to the inputs' dtype before, which a GPU computes faster
    timeout      seconds after which a rank that waits for another raises RankError

    Gradients reach q, k, v, scale, bias and sink. Those of scale, bias and sink are of the rows or heads here: their
    sum over ranks is the gradient, as it is of every weight.
    """
    team = Team.of(group)
    with team.calling("attention", timeout, like=q):
        problem: Optional[Problem] = None
        failed: Optional[Exception] = None
        arguments: dict[str, Any] = dict.fromkeys(_TOLD)
        tensors = None
        try:
            team.timeout = seconds_of(timeout)
            per_item = dict(
                key_starts=key_starts, key_lengths=key_lengths, query_lengths=query_lengths, **further(unknown)
            )
            if unknown:
                refuse_names("attention", unknown, inspect.unwrap(attention).__kwdefaults__ or ())
            if transformed(q, k, v):
                raise NotImplementedError("attention: torch.func and torch.vmap do not reach over ranks")
            check_shapes(q, k, v)
            q, k, v, bias = under_autocast(q, k, v, bias)  # type: ignore[assignment]
            if (norm := QkNorm.of(qk_norm)) is not None:
                q, k = _normalised(norm, norm.q_gain, q), _normalised(norm, norm.k_gain, k)
            structure = Structure.of(
                causal,
                diagonal,
                window,
                documents,
                **{name: _constant(name, values) for name, values in per_item.items()},
            )
            problem = _problem(q, k, v, structure, scale, mask, bias, alibi, softcap, sink, stats, return_lse)
            if real("dropout", dropout) and team.size > 1:
                raise ValueError(
                    f"dropout: {dropout}, but which probabilities are dropped follows from the places of query, key "
                    "and head, which a rank's part does not have; 0 is wanted"
                )
            if partials not in ("float32", "same"):
                raise ValueError(f'partials: {partials!r}, but "float32" or "same" is wanted')
            _check_names(layout, way)
            problem = dataclasses.replace(problem, wide=partials == "float32")
            _ask_the_engine(problem)
            tensors = (q, k, v)
            arguments = _told(problem, layout, way, machine, partials)
        except Exception as error:
            failed = error
        agreed = agree(
            team, tensors, arguments, failed, like=q, rows=_rows_of_tables(problem), keys=_keys_of_tables(problem)
        )
        assert problem is not None
        problem = dataclasses.replace(problem, one_row=agreed.one_row)
        team.get_ready(q)
        with no_autocast(q):
            q_layout, k_layout = layouts(layout, agreed.len_q, agreed.len_kv)
            _check_lengths(problem, q_layout, k_layout)
            _check_keys(problem, agreed.keys, k_layout.total, team.rank)
            seen = _seen_by_a_watch(q)
            computed = problem if seen is None else dataclasses.replace(problem, stats=StatsOptions("full"))
            call = computed.call(q_layout, k_layout)
            machine = machine or default_machine(q)
            out, lse, found = compute(computed, call, team, _plan(problem, call, machine, way, team.size), machine)
        if seen is not None and found is not None and found.stats is not None:
            seen.heads_are(found.first_head, q.shape[1] if found.heads is None else found.heads)
            seen.on_forward(found.stats)
        results: tuple[Any, ...] = (out, lse) if return_lse else (out,)
        if problem.stats is not None:
            assert found is not None
            results += (found.at_level(problem.stats.level),)
        return results if len(results) > 1 else out


def _seen_by_a_watch(q: Tensor) -> Any:
    """The call, as the watches know it that look at this thread; rows that a rank has computed are theirs to see."""
    eyes = sys.modules.get("rootdk._watch.eyes")
    call = eyes.call_here() if eyes is not None and eyes.anybody() else None
    if call is not None:
        call.dtype, call.dim = _NAMES[q.dtype], q.shape[3]
    return call


def _problem(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    structure: Structure,
    scale: Any,
    mask: Optional[Tensor],
    bias: Optional[Tensor],
    alibi: Any,
    softcap: Optional[float],
    sink: Any,
    stats: Any,
    return_lse: bool,
) -> Problem:
    heads = q.shape[1]
    rule, factor, scales = "sqrt_dk", None, None
    if scale is None or isinstance(scale, str):
        rule = "sqrt_dk" if scale is None else scale
    elif isinstance(scale, Tensor):
        scales = scale.expand(heads) if scale.ndim == 0 else scale
    elif hasattr(scale, "__len__"):
        scales = torch.tensor([real("scale", c) for c in scale], dtype=torch.float32)
    else:
        factor = real("scale", scale)
    sinks = None
    if sink is not None:
        sinks = sink if isinstance(sink, Tensor) else torch.as_tensor(sink, dtype=torch.float32)
        sinks = sinks.expand(heads) if sinks.ndim == 0 else sinks
    slopes = None
    if alibi is not None:
        _constant("alibi", alibi)
        slopes = tuple(float(slope) for slope in (alibi.tolist() if hasattr(alibi, "tolist") else alibi))
    for name, values in (("scale", scales), ("sink", sinks), ("alibi", slopes)):
        if values is not None and len(values) != heads:
            raise ValueError(f"{name}: {len(values)} values, but there are {heads} query heads")
    options = options_of(stats)
    if options is not None and options != StatsOptions(options.level):
        raise ValueError('stats: only the level can be chosen over ranks, so None, "basic" or "full" is wanted')
    for field, lengths in zip(PER_ITEM, structure.per_item):
        if lengths is not None and len(lengths) != q.shape[0]:
            raise ValueError(f"{field.name}: {len(lengths)} values, but there are {q.shape[0]} batch items")
    if structure.items not in (0, q.shape[0]):
        raise ValueError(f"documents: of {structure.items} items, but there are {q.shape[0]} batch items")
    mask, bias = (None if x is None else four_axes(name, x) for name, x in zip(_TABLES, (mask, bias)))
    for name, table in zip(_TABLES, (mask, bias)):
        # How many keys there are is not known yet.
        if table is not None and any(size not in (1, want) for size, want in zip(table.shape, q.shape[:3])):
            wanted = f"{list(q.shape[:3])} and all keys are wanted"
            raise ValueError(f"{name}: {list(table.shape)}, but {wanted}, or 1 along an axis")
    return Problem(
        q,
        k,
        v,
        scales,
        mask,
        bias,
        sinks,
        structure,
        rule,
        factor,
        None if softcap is None else real("softcap", softcap),
        slopes,
        options,
        return_lse,
    )


def _ask_the_engine(p: Problem) -> None:
    """A call without tokens: the engine refuses what it does not know before anything moves."""
    s = p.structure
    if s.diagonal == "last_key" and (s.key_lengths is None or s.q_starts is not None):
        raise ValueError("diagonal: last_key measures from key_lengths, so it needs them, and no documents")
    none = (0,) * p.q.shape[0]
    per_item = tuple(None if x is None else none for x in s.per_item)
    structure = Structure(s.causal, s.diagonal, s.offset, s.window, per_item=per_item)
    q, k, v = (x.detach()[:, :, :0] for x in (p.q, p.k, p.v))
    mask, bias = (
        None if x is None else x.detach()[:, :, : 0 if x.shape[2] > 1 else 1, : 0 if x.shape[3] > 1 else 1]
        for x in (p.mask, p.bias)
    )
    scale, sink = (None if x is None else x.detach() for x in (p.scale, p.sink))
    numbers, reals = described(p, structure, p.alibi)
    with torch.no_grad(), no_autocast(q):
        torch.ops.rootdk.attention(q, k, v, scale, mask, bias, sink, None, numbers, reals)


def _told(p: Problem, layout: Layouts, way: Optional[str], machine: Optional[Machine], partials: str) -> dict[str, Any]:
    """What all ranks have to say alike. Values of tensors are not read: that would wait for a GPU."""
    given = (p.sink is None, p.mask is None, p.bias is None)
    scale = (p.rule, p.factor, p.scale is None)
    values = (p.structure, scale, p.softcap, p.alibi, *given, p.stats, p.return_lse, partials, layout, way, machine)
    return dict(zip(_TOLD, (*values, p.learns)))


def _rows_of_tables(p: Optional[Problem]) -> int:
    """0: there are none, or rows for a query at most, which may be its own or all queries'. 1: a row for all queries.
    2: rows of their own."""
    tables = [x for x in (p.mask, p.bias) if x is not None] if p is not None else []
    if p is None or not tables:
        return 0
    return 2 if any(x.shape[2] != 1 for x in tables) else int(p.q.shape[2] > 1)


def _keys_of_tables(p: Optional[Problem]) -> tuple[int, int]:
    """That the mask and the bias have a column for."""
    mask, bias = (None, None) if p is None else (p.mask, p.bias)
    return 0 if mask is None else mask.shape[3], 0 if bias is None else bias.shape[3]


def _check_names(layout: Layouts, way: Optional[str]) -> None:
    pair = isinstance(layout, tuple) and len(layout) == 2 and all(isinstance(x, Layout) for x in layout)
    if layout not in ("contiguous", "zigzag") and not isinstance(layout, Layout) and not pair:
        raise ValueError(f'layout: {layout!r}, but "contiguous", "zigzag", a Layout or two of them are wanted')
    if way is not None and way not in WAYS:
        raise ValueError(f"way: {way!r}, but None or one of {', '.join(WAYS)} is wanted")


def layouts(layout: Layouts, len_q: tuple[int, ...], len_kv: tuple[int, ...]) -> tuple[Layout, Layout]:
    """Of queries and keys, for ranks that hold so many of each."""
    if layout == "contiguous":
        return Layout.contiguous(len_q), Layout.contiguous(len_kv)
    if layout == "zigzag":
        found = tuple(Layout.zigzag(sum(lengths), len(lengths)) for lengths in (len_q, len_kv))
    elif isinstance(layout, Layout):
        found = (layout, layout)
    else:
        assert isinstance(layout, tuple)
        found = layout
    for name, one, lengths in zip("qk", found, (len_q, len_kv)):
        if one.ranks != len(lengths):
            raise ValueError(f"layout: of {one.ranks} ranks, but there are {len(lengths)}")
        for rank, (here, wanted) in enumerate(zip(lengths, one.lengths)):
            if here != wanted:
                raise ValueError(f"rank {rank}: {name}: length is {here}, but the layout has {wanted} there")
    return found[0], found[1]


def _check_lengths(p: Problem, q: Layout, k: Layout) -> None:
    for field, values in zip(PER_ITEM, p.structure.per_item):
        most = q.total if field.axis == "q" else k.total
        for item, value in enumerate(values or ()):
            if not 0 <= value <= most:
                raise ValueError(f"{field.name}: entry {item} is {value}, but 0 to {most} is wanted")
    for name, starts, total in (("q", p.structure.q_starts, q.total), ("k", p.structure.kv_starts, k.total)):
        if starts is None:
            continue
        count = len(starts) // max(p.structure.items, 1)
        for first in range(0, len(starts), count):
            one = starts[first : first + count]
            if any(a > b for a, b in zip(one, one[1:])) or one[0] < 0 or one[-1] > total:
                raise ValueError(
                    f"documents: {list(one)[:8]} for {name}, but ascending starts up to {total} are wanted"
                )


def _check_keys(p: Problem, keys: Sequence[Sequence[int]], total: int, here: int) -> None:
    """keys: of the mask and the bias of each rank."""
    for name, table, found in zip(_TABLES, (p.mask, p.bias), keys):
        wrong = tuple(rank for rank, size in enumerate(found) if table is not None and size not in (1, total))
        words = [f"{name}: of {size} keys, but {total} are wanted, those of all ranks, or 1" for size in found]
        if here in wrong:
            raise ValueError(words[here])
        if wrong:
            raise RankError("; ".join(f"rank {rank}: {words[rank]}" for rank in wrong), wrong)


def default_machine(q: Tensor) -> Machine:
    """Of the kind that q lies on; for a CPU two cores' speed and memory for a link."""
    return Machine(flops_wide=67e12) if q.is_cuda else Machine(50e9, 1, 5e9, 50e-6, 1e9, 100e-6)


def refusals(p: Problem, call: Call) -> dict[str, str]:
    """Why a way cannot compute this, in words."""
    out: dict[str, str] = {}
    parts = [part.split("(")[0].strip() for part in p.rule.split("*")] if p.factor is None and p.scale is None else []
    lengths = [name for name in _LENGTH_RULES if name in parts]
    if lengths:
        for way in ("ring", "two_levels"):
            out[way] = f"scale: {lengths[0]} wants all of a row's keys at a time"
    if "llama4" in lengths and p.structure.window is not None:
        out["all_gather"] = "scale: llama4 wants the place in the document, whose first keys a window leaves behind"
    for name, table in zip(_TABLES, (p.mask, p.bias)):
        if table is not None:
            for way in ("heads", "two_levels") if not p.one_row else ():
                out[way] = f"{name}: is of the queries of this rank, but others compute some of their heads"
    return out


def _plan(p: Problem, call: Call, machine: Machine, way: Optional[str], ranks: int) -> str:
    refused = refusals(p, call)
    if way is not None:
        if way in refused:
            raise ValueError(f"way: {way} cannot compute this; {refused[way]}")
        if way == "two_levels" and (ranks % machine.ranks_per_node or machine.ranks_per_node < 1):
            raise ValueError(f"way: two_levels wants nodes of {machine.ranks_per_node} ranks, but there are {ranks}")
        return way
    return plan_of(p, call, machine, refused).way


def plan_of(p: Problem, call: Call, machine: Machine, refused: dict[str, str]) -> Plan:
    sizes = Sizes(
        p.q.shape[0],
        p.q.shape[1],
        p.k.shape[1],
        p.q.shape[3],
        p.v.shape[3],
        p.q.element_size(),
        p.return_lse,
        p.wide,
    )
    items = tuple(item for _, item in call.items(p.q.shape[0]))
    return _planned(sizes, call.q_layout, call.k_layout, call.structure, items, machine, tuple(sorted(refused.items())))


@functools.lru_cache(maxsize=64)
def _planned(
    sizes: Sizes,
    q: Layout,
    k: Layout,
    structure: Structure,
    items: tuple[int, ...],
    machine: Machine,
    refused: tuple[tuple[str, str], ...],
) -> Plan:
    pairs = np.zeros((q.ranks, k.ranks), np.int64)
    for item in items:
        pairs += pairs_of(structure, q, k, item)
    costs = Model(sizes, q, k, -(-pairs // max(len(items), 1)), machine).costs()
    costs.update({name: Cost(name, refused=why) for name, why in refused})
    return choose(costs, machine)


__all__ = ["RankStats", "attention"]
