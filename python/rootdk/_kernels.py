"""What runs when the operator torch.ops.rootdk.attention is called on dense tensors: its kernel in C++ on the CPU, or
the engine by way of Python, on the CPU where somebody wants to know what it learned, and through _cuda.py."""

from __future__ import annotations

import threading
from typing import Any, Callable, Optional, Protocol, Sequence

import torch
from torch import Tensor

from . import _core, _cuda
from ._attention import seed_of
from ._compiled import has_compiled_operator
from ._description import Description, Problem
from ._problem import StatsOptions, row_names
from ._stats import GradientStats, Rows, Stats

_NAMES = {torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16"}


# Who wants to know ----------------------------------------------------------------------------------------------------
class Collector(Protocol):
    """Receives what a call of the operator learned. An operator returns tensors only, so this is a way beside it: the
    call carries the number under which its collector is listed."""

    options: StatsOptions

    def on_forward(self, stats: Stats) -> None: ...

    def on_backward(self, stats: GradientStats) -> None: ...


_collectors: dict[int, Collector] = {}
_next_tag = 1
_tag_lock = threading.Lock()


def register(collector: Collector) -> int:
    global _next_tag
    with _tag_lock:
        tag, _next_tag = _next_tag, _next_tag + 1
        _collectors[tag] = collector
    return tag


def unregister(tag: int) -> None:
    _collectors.pop(tag, None)


# Arguments to the engine --------------------------------------------------------------------------------------
def problem_of(
    q: Tensor,
    scale: Optional[Tensor],
    mask: Optional[Tensor],
    bias: Optional[Tensor],
    sink: Optional[Tensor],
    seed: Optional[Tensor],
    description: Description,
    options: Optional[StatsOptions] = None,
) -> Problem:
    heads, address = q.shape[1], None
    if seed is not None:
        _check_seed(seed, q)
        if q.is_cuda:
            address = seed.data_ptr()
        else:
            description = description._replace(seed=int(seed))

    def table(name: str, x: Optional[Tensor]) -> Any:
        return None if x is None else _view(name, x, q) if q.is_cuda else x.detach()

    return Problem(
        description,
        [] if scale is None else _per_head("scale", scale, heads),
        [] if sink is None else _per_head("sink", sink, heads),
        table("mask", mask),
        table("bias", bias),
        options,
        address,
    )


def _check_seed(seed: Tensor, q: Tensor) -> None:
    if seed.device != q.device:
        raise ValueError(f"seed: lies on {seed.device}, but q on {q.device}")
    if seed.dtype != torch.int64 or seed.numel() != 1:
        raise ValueError(f"seed: {seed.numel()} elements of {seed.dtype}, but one of torch.int64 is wanted")


def seeds(q: Tensor, dropout: float, seed: Any = None) -> tuple[int, Optional[Tensor]]:
    """The operator's `seed` and `seed_tensor`. A seed that nobody gave comes from torch's generator of q's device and
    stays there: nothing waits, and every replay of a captured graph draws another."""
    if isinstance(seed, Tensor):
        _check_seed(seed, q)
        return 0, seed
    if seed is None and dropout > 0:
        return 0, torch.randint(0, 2**62, (), device=q.device)
    return seed_of(seed, 0.0), None


def _per_head(name: str, values: Tensor, heads: int) -> list[float]:
    if values.shape != (heads,):
        raise ValueError(
            f"{name}: shape is {list(values.shape)}, but one value for each of {heads} query heads is wanted"
        )
    return values.detach().float().tolist()


def _view(name: str, x: Tensor, like: Tensor) -> _cuda.View:
    if x.device != like.device:
        raise ValueError(f"{name}: lies on {x.device}, but q on {like.device}")
    if x.ndim != 4:
        raise ValueError(f"{name}: {x.ndim} axes, but the 4 of [batch, heads, length, dim] are wanted")
    if x.dtype not in _NAMES and x.dtype != torch.bool:
        raise ValueError(f"{name}: dtype is {x.dtype}, but float32, float16 or bfloat16 (or bool for masks) is wanted")
    return _cuda.View(x.data_ptr(), _NAMES.get(x.dtype, "bool"), x.shape, x.stride())


def _place(q: Tensor) -> _cuda.Place:
    """On torch's current stream; the workspace comes from its allocator, and so from a graph's pool under capture."""
    stream = torch.cuda.current_stream(q.device)

    def workspace(size: int) -> tuple[Any, int]:
        memory = torch.empty(max(size, 1), dtype=torch.uint8, device=q.device)
        return (memory, stream), memory.data_ptr()

    device = q.device
    return _cuda.Place(workspace, stream.cuda_stream, lambda: torch.cuda.device(device), device.index)


class _Streams(threading.local):
    """Each thread's own."""

    def __init__(self) -> None:
        self.by_device: dict[torch.device, torch.cuda.Stream] = {}


class Reader:
    """Reads statistics of a call that has just been enqueued. It waits for that call, not for what comes after it;
    where the call was captured, for all of the device, since a graph may be replayed anywhere."""

    _streams = _Streams()

    def __init__(self, read: Callable[..., Any], device: torch.device):
        self._read, self._device = read, device
        self._event: Optional[torch.cuda.Event] = None
        if not torch.cuda.is_current_stream_capturing():
            self._event = torch.cuda.Event(blocking=True)  # whoever waits for it sleeps
            self._event.record(torch.cuda.current_stream(device))

    def __call__(self) -> Any:
        if self._event is None:
            torch.cuda.synchronize(self._device)
        else:
            self._event.synchronize()
        streams = self._streams.by_device
        if self._device not in streams:
            streams[self._device] = torch.cuda.Stream(self._device)
        return self._read(streams[self._device].cuda_stream)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _empty(like: Tensor, shape: Sequence[int]) -> Tensor:
    """[batch, heads, length, dim]; on the CPU in the order of memory of `like`, as PyTorch's fused kernel gives it:
    models that came from [batch, length, heads, dim] join heads by a view."""
    if like.device.type == "cpu" and like.stride(1) < like.stride(2):
        batch, heads, length, dim = shape
        return like.new_empty((batch, length, heads, dim)).transpose(1, 2)
    return like.new_empty(shape)


def _output(q: Tensor, v: Tensor) -> Tensor:
    return _empty(q, (*q.shape[:3], v.shape[3] if v.ndim == 4 else 0))


# A call that may take longer than this, in elements of q times keys, goes part by part through the compiled module,
# which looks at signals in between: Ctrl-C is heard. The bits are the same.
_LONG = 2**28


def is_long(q: Tensor, k: Tensor) -> bool:
    return q.numel() * (k.shape[-2] if k.ndim > 1 else 1) > _LONG


def _compiled(q: Tensor, k: Tensor, tag: int) -> bool:
    """Whether the operator's kernel in C++ is for this call: it gives tensors only, and is not interrupted."""
    return has_compiled_operator and tag == 0 and not q.is_cuda and not is_long(q, k)


def per_head_numbers(values: Optional[Tensor]) -> Optional[Tensor]:
    """Scales or sinks as the kernel in C++ reads them."""
    return None if values is None else values.detach().to(device="cpu", dtype=torch.float32)


def attention_kernel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: Optional[Tensor] = None,
    mask: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    sink: Optional[Tensor] = None,
    seed: Optional[Tensor] = None,
    numbers: Optional[Sequence[int]] = None,
    reals: Optional[Sequence[float]] = None,
    tag: int = 0,
) -> tuple[Tensor, Tensor]:
    if _compiled(q, k, tag):
        scale, sink = per_head_numbers(scale), per_head_numbers(sink)
        return torch.ops.rootdk.fused.default(q, k, v, scale, mask, bias, sink, seed, numbers, reals)  # type: ignore[no-any-return]
    collector = _collectors.get(tag)
    options = collector.options if collector is not None else None
    problem = problem_of(q, scale, mask, bias, sink, seed, Description.unpacked(numbers, reals), options)
    q, k, v = q.detach(), k.detach(), v.detach()
    batch, heads, len_q, _ = q.shape
    out = _output(q, v)
    wide = _wide(q.dtype)
    lse = q.new_empty((batch, heads, len_q), dtype=wide)
    rows = {name: q.new_empty((batch, heads, len_q), dtype=wide) for name in (row_names(options) if options else [])}
    mass = q.new_empty((batch, heads, k.shape[2]), dtype=wide) if options is not None and options.key_mass else None
    core = _forward(
        problem,
        q,
        k,
        v,
        out,
        lse.unsqueeze(-1),
        {name: row.unsqueeze(-1) for name, row in rows.items()},
        None if mass is None else mass.unsqueeze(-1),
    )
    if collector is not None:
        kept = Rows({"lse": lse.clone(), **rows}) if options is not None and options.rows else None
        collector.on_forward(Stats(core, kept, mass))
    return out, lse


def _forward(
    problem: Problem,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    rows: dict[str, Tensor],
    mass: Optional[Tensor],
) -> Any:
    """Statistics, or what reads them."""
    if not q.is_cuda:
        return _core.forward(problem.spec(), q, k, v, out, lse, rows, mass)
    read = _cuda.forward(
        problem,
        _view("q", q, q),
        _view("k", k, q),
        _view("v", v, q),
        _view("o", out, q),
        _view("lse", lse, q),
        {name: _view(name, row, q) for name, row in rows.items()},
        None if mass is None else _view("key_mass", mass, q),
        _place(q),
    )
    return read if problem.stats is None else Reader(read, q.device)


def attention_shapes(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    batch, heads, len_q, _dim = q.shape
    return _output(q, v), q.new_empty((batch, heads, len_q), dtype=_wide(q.dtype))


def backward_kernel(
    d_out: Tensor,
    d_lse: Optional[Tensor],
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: Optional[Tensor],
    mask: Optional[Tensor],
    bias: Optional[Tensor],
    sink: Optional[Tensor],
    seed: Optional[Tensor],
    numbers: Optional[Sequence[int]],
    reals: Optional[Sequence[float]],
    wanted: int,
    tag: int = 0,
) -> tuple[Tensor, ...]:
    """An operator cannot return None, so what is not wanted is empty."""
    if _compiled(q, k, tag):
        forward = d_out, d_lse, out, lse, q, k, v
        scale, sink = per_head_numbers(scale), per_head_numbers(sink)
        each = torch.ops.rootdk.fused_backward.default(*forward, scale, mask, bias, sink, seed, numbers, reals, wanted)
        return _all(dict(zip(_places(wanted), each)), q)
    collector = _collectors.get(tag)
    options = StatsOptions("full") if collector is not None and collector.options.level == "full" else None
    problem = problem_of(q, scale, mask, bias, sink, seed, Description.unpacked(numbers, reals), options)
    found = _gradients(q, k, v, scale, bias, sink, wanted)
    tensors = {
        "q": q,
        "k": k,
        "v": v,
        "o": out,
        "lse": lse.unsqueeze(-1),
        "d_o": d_out,
        "d_lse": None if d_lse is None else d_lse.unsqueeze(-1),
    }
    given = {name: None if x is None else x.detach() for name, x in tensors.items()}
    gradients = {name: found.get(name) for name in ("d_q", "d_k", "d_v", "d_bias")}
    per_head = {name: found.get(name) for name in ("d_scale", "d_sink")}
    core: Any
    if q.is_cuda:
        given["d_o"] = _readable(d_out.detach())
        core = _cuda.backward(
            problem,
            _views(given, q),
            _views(gradients, q),
            {name: None if x is None else x.data_ptr() for name, x in per_head.items()},
            _place(q),
        )
        core = core if options is None else Reader(core, q.device)
    else:
        row = (1, 1, 1, q.shape[1])
        core = _core.backward(
            problem.spec(),
            **given,
            **gradients,
            **{name: None if x is None else x.view(row) for name, x in per_head.items()},
        )
    if collector is not None and options is not None:
        collector.on_backward(GradientStats(core))
    return _all(found, q)


def _readable(d_out: Tensor) -> Tensor:
    """A gradient as the fast kernels read it, where a copy makes it so: of a sum it comes with strides of 0, and nobody
    chose those."""
    outer = zip(d_out.shape[:3], d_out.stride()[:3])
    fine = (
        d_out.stride(3) == 1
        and d_out.data_ptr() % 16 == 0
        and all(size == 1 or (stride > 0 and stride % 8 == 0) for size, stride in outer)
    )
    return d_out if fine or d_out.element_size() != 2 or d_out.shape[3] % 8 else d_out.contiguous()


def _views(tensors: dict[str, Optional[Tensor]], like: Tensor) -> dict[str, Optional[_cuda.View]]:
    return {name: None if x is None else _view(name, x, like) for name, x in tensors.items()}


#: what gradients can be of, as bits of `wanted`
GRADIENTS = ("d_q", "d_k", "d_v", "d_scale", "d_bias", "d_sink")


def _places(wanted: int) -> list[str]:
    return [name for bit, name in enumerate(GRADIENTS) if wanted >> bit & 1]


def _all(found: dict[str, Tensor], q: Tensor) -> tuple[Tensor, ...]:
    return tuple(found[name] if name in found else q.new_empty(0) for name in GRADIENTS)


def _gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: Optional[Tensor],
    bias: Optional[Tensor],
    sink: Optional[Tensor],
    wanted: int,
) -> dict[str, Tensor]:
    """Those that are wanted, to be written."""

    def like(name: str, x: Optional[Tensor]) -> Tensor:
        if x is None:
            raise ValueError(f"{name}: wanted, but the problem has none of what it is the gradient of")
        return q.new_empty(x.shape, dtype=torch.float32) if name in ("d_scale", "d_sink") else _empty(x, x.shape)

    named = dict(zip(GRADIENTS, (q, k, v, scale, bias, sink)))
    return {name: like(name, named[name]) for name in _places(wanted)}


def backward_shapes(
    d_out: Tensor,
    d_lse: Optional[Tensor],
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: Optional[Tensor],
    mask: Optional[Tensor],
    bias: Optional[Tensor],
    sink: Optional[Tensor],
    seed: Optional[Tensor],
    numbers: Optional[Sequence[int]],
    reals: Optional[Sequence[float]],
    wanted: int,
    tag: int = 0,
) -> tuple[Tensor, ...]:
    return _all(_gradients(q, k, v, scale, bias, sink, wanted), q)


def fused_backward_shapes(*inputs: Any) -> list[Tensor]:
    *_, wanted = inputs
    return [x for bit, x in enumerate(backward_shapes(*inputs)) if wanted >> bit & 1]
