"""rootdk as an attention implementation of Hugging Face transformers: `attn_implementation="rootdk"`.

A class that does not hand its attention over as transformers' own backends want it is refused when it is made, and an
argument that would change the result and is not computed here is refused when it comes.
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any, Callable, Optional

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from .. import torch as rootdk_torch
from .._recognise import recognised
from .._structure import Structure
from .eyes import Call, call_here, scaled_before
from .look import beside, hidden_by_numbers

NAME = "rootdk"

_registering = threading.Lock()
_mask_of_sdpa: Optional[Callable[..., Optional[Tensor]]] = None
_refused: dict[type, Optional[str]] = {}  # by class of model or of config


def register_with_transformers() -> bool:
    """Afterwards `attn_implementation="rootdk"` computes attention here, with soft-caps and sinks, watched or not."""
    global _mask_of_sdpa
    try:
        from transformers import AttentionInterface, PreTrainedModel
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
    except ImportError:
        return False
    with _registering:
        if _mask_of_sdpa is None:
            _mask_of_sdpa = sdpa_mask
            # transformers asks these two whether a class takes an implementation, and has doubts about its own only.
            models: Any = PreTrainedModel
            models.get_correct_attn_implementation = _checked(models.get_correct_attn_implementation)
            models.set_attn_implementation = _set_checked(models.set_attn_implementation)
            ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, _mask)
            AttentionInterface.register(NAME, _transformers_attention)
    return True


# Which classes can be computed ----------------------------------------------------------------------------------------
def _checked(method: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(method)
    def get_correct_attn_implementation(self: Any, requested_attention: Any, *args: Any, **kwargs: Any) -> str:
        if requested_attention == NAME:
            _refuse(type(self))
        return method(self, requested_attention, *args, **kwargs)

    return get_correct_attn_implementation


def _set_checked(method: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(method)
    def set_attn_implementation(self: Any, attn_implementation: Any, *args: Any, **kwargs: Any) -> None:
        """A class that is not asked there is left as it is, with a line in the log. Before anything changes, so that
        all changes or nothing."""
        wanted = attn_implementation.get("") if isinstance(attn_implementation, dict) else attn_implementation
        if wanted == NAME:
            _refuse(type(self))
        if attn_implementation == NAME:
            for module in self.modules():
                if hasattr(module, "get_correct_attn_implementation") and type(module)._can_set_attn_implementation():
                    _refuse(type(module))
        method(self, attn_implementation, *args, **kwargs)

    return set_attn_implementation


def _refuse(kind: type) -> None:
    if kind not in _refused:
        _refused[kind] = _why_not(kind)
    reason = _refused[kind]
    if reason is not None:
        raise ValueError(reason)


def _why_not(kind: Any) -> Optional[str]:
    """For a class of models: `_supports_sdpa` says that its masks and arguments are scaled_dot_product_attention's,
    `_supports_attention_backend` that it hands over all there is, soft-caps and sinks with it."""
    sdpa = bool(getattr(kind, "_supports_sdpa", False))
    other = f'"{"sdpa" if sdpa else "eager"}", which can be watched as well'
    if not sdpa and not getattr(kind, "_supports_attention_backend", False):
        return (
            f'attn_implementation="{NAME}": {kind.__name__} does not support sdpa, nor any other implementation than '
            f"its own; use {other}"
        )
    from transformers import PreTrainedModel

    # A class of the user's own is as its bases are: its source may not be there to be looked at.
    bases = [base for base in kind.__mro__ if issubclass(base, PreTrainedModel) and base is not PreTrainedModel]
    hands_over = any(base._can_set_attn_implementation() for base in reversed(bases))
    if not hands_over or any(_has_table(base) for base in bases):
        return (
            f'attn_implementation="{NAME}": {kind.__name__} computes attention by itself, not through '
            f"transformers' AttentionInterface; use {other}"
        )
    return None


def _has_table(kind: type) -> bool:
    """Whether its module looks attention up by name in a table of its own classes, which has none for us."""
    return any(
        isinstance(table, dict) and "eager" in table and all(isinstance(x, type) for x in table.values())
        for table in list(vars(sys.modules.get(kind.__module__, sys)).values())
    )


# Masks ----------------------------------------------------------------------------------------------------------------
def _mask(*args: Any, config: Any = None, **kwargs: Any) -> Optional[Tensor]:
    """sdpa's: boolean, or none where the attention itself is causal or sees all."""
    assert _mask_of_sdpa is not None
    if config is not None and not torch.compiler.is_compiling():
        _refuse_config(type(config))
    return _mask_of_sdpa(*args, config=config, **kwargs)


def _refuse_config(kind: type) -> None:
    """A class that was refused can still be told by its config after it was made; it would misread the mask."""
    if kind not in _refused:
        from transformers import MODEL_MAPPING

        try:
            model = MODEL_MAPPING.get(kind, None)
        except Exception:  # a model that cannot be imported here is not the one that runs
            model = None
        _refused[kind] = _why_not(model) if isinstance(model, type) else None
    reason = _refused[kind]
    if reason is not None:
        raise ValueError(reason)


# Attention ------------------------------------------------------------------------------------------------------------
def _transformers_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Optional[Tensor],
    dropout: float = 0.0,
    scaling: Any = None,
    is_causal: Optional[bool] = None,
    softcap: Optional[float] = None,
    s_aux: Optional[Tensor] = None,
    position_bias: Optional[Tensor] = None,
    **more: Any,
) -> tuple[Tensor, None]:
    _check(module, query, key, attention_mask, more)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    mask, bias, structure = _places(module, query, key, attention_mask, bool(causal), more)
    if position_bias is not None:
        extra = position_bias[..., : key.shape[2]]
        bias = extra if bias is None else bias + extra
    sink = None if s_aux is None else s_aux.reshape(-1).to(torch.float32)
    if isinstance(scaling, Tensor):  # learned
        query, scaling = query * scaling, 1.0
    given = query, key
    query, key, value, bias = rootdk_torch.under_autocast(query, key, value, bias)  # type: ignore[assignment]
    seed, seed_tensor = rootdk_torch.seeds(query, dropout)
    described = rootdk_torch.pytorch_s(False, scaling, dropout, seed)
    packed = described._replace(softcap=softcap, structure=structure).packed()

    def attend(bias: Optional[Tensor], tag: int) -> Tensor:
        out: Tensor
        out, _lse = rootdk_torch.call(query, key, value, None, mask, bias, sink, seed_tensor, *packed, tag)
        return out.transpose(1, 2).contiguous()

    call = None if torch.compiler.is_compiling() or rootdk_torch.transformed(query, key, value) else call_here()
    if call is None:
        return attend(bias, 0), None
    call.dtype, call.dim = rootdk_torch._NAMES.get(query.dtype, "f32"), query.shape[-1]
    call.prescale = scaled_before(*given)
    return _watched(
        call, attend, query, key, value, mask, bias, scaling, softcap is None and sink is None and structure == _ALL
    ), None


_ALL = Structure(diagonal="top_left")  # nothing is hidden


def _places(
    module: torch.nn.Module, query: Tensor, key: Tensor, table: Optional[Tensor], causal: bool, more: dict[str, Any]
) -> tuple[Optional[Tensor], Optional[Tensor], Structure]:
    """(mask, bias, structure): of a mask its numbers where it has some, and itself only where not."""
    if table is not None:
        table = table[..., : key.shape[2]]
        if table.dtype != torch.bool:
            return None, table, _ALL
        looks = not (torch.compiler.is_compiling() or rootdk_torch.transformed(query, key, table))
        found = recognised(table) if looks and table.shape[3] == key.shape[2] else None
        if found is None:
            return table, None, _ALL
        return None, None, found if len(table) == len(query) else found.repeated(len(query))
    # A prompt without a mask stands at the start of its cache, a single query at its end.
    structure = _ALL._replace(causal=causal and query.shape[2] > 1)
    window = more.get("sliding_window")
    if isinstance(window, int) and 0 < window < key.shape[2]:
        if not causal:
            raise ValueError(
                f'attn_implementation="{NAME}": {type(module).__name__} has a sliding_window of {window}, but gives '
                f'no mask for {key.shape[2]} keys; use "eager" or "sdpa"'
            )
        structure = Structure(
            causal=True, diagonal="top_left" if query.shape[2] > 1 else "bottom_right", window=(window - 1, None)
        )
    starts = more.get("cu_seq_lens_q")
    if starts is not None and len(starts) > 2:
        k_starts = more.get("cu_seq_lens_k")
        q_starts, kv_starts = _numbers(starts), _numbers(starts if k_starts is None else k_starts)
        # Positions count within sequences, so that the last query of each stands on its last key.
        structure = structure._replace(causal=causal, diagonal="bottom_right", q_starts=q_starts, kv_starts=kv_starts)
    return None, None, structure


_read: WeakIdKeyDictionary = WeakIdKeyDictionary()


def _numbers(starts: Tensor) -> tuple[int, ...]:
    """Read once for all layers: on a GPU that waits."""
    if starts.is_inference():  # nobody counts what is written to these
        return tuple(int(x) for x in starts.tolist())
    if starts not in _read or _read[starts][0] != starts._version:
        _read[starts] = starts._version, tuple(int(x) for x in starts.tolist())
    numbers: tuple[int, ...] = _read[starts][1]
    return numbers


def _watched(
    call: Call,
    attend: Callable[[Optional[Tensor], int], Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Optional[Tensor],
    bias: Optional[Tensor],
    scaling: Optional[float],
    plain: bool,
) -> Tensor:
    """With statistics from the same pass; a bias that hides by numbers, but not for certain, is looked at beside it."""
    hidden = hidden_by_numbers(call, query, key, bias, scaling)
    if hidden is not None and not hidden.surely and plain and mask is None:
        out = attend(bias, 0)
        beside(call, query, key, value, bias, False, scaling, hidden)
        return out
    if hidden is not None and hidden.surely and bias is not None:
        bias = bias.masked_fill(bias <= hidden.below, float("-inf"))
    with call.listed() as tag:
        return attend(bias, tag)


def _check(module: torch.nn.Module, query: Tensor, key: Tensor, mask: Optional[Tensor], more: dict[str, Any]) -> None:
    """Refuses what would be computed wrongly. What else a model hands over is for kernels that make their own masks
    (`sliding_window`, `position_ids`, `cu_seq_lens_q`): where there is a mask, it says it too."""
    if query.device.type not in ("cpu", "cuda"):
        raise ValueError(
            f'attn_implementation="{NAME}": tensors lie on {query.device}, but it computes on the CPU and on '
            'CUDA devices; "sdpa" can be watched as well'
        )
    for name, meaning in _UNKNOWN.items():
        given = more.get(name)
        if given is not None and given is not False:
            raise ValueError(f'attn_implementation="{NAME}": {type(module).__name__} gives {name}, and {meaning}')
    if mask is not None:
        if not isinstance(mask, Tensor) or mask.ndim != 4:
            came = f"{mask.ndim} axes" if isinstance(mask, Tensor) else type(mask).__name__
            raise ValueError(
                f'attn_implementation="{NAME}": attention_mask: {came}, but a tensor [batch, heads, len_q, '
                "len_kv] is wanted"
            )
        return
    starts = more.get("cu_seq_lens_q")
    if starts is not None and len(starts) > 2 and query.shape[0] > 1:
        raise ValueError(
            f'attn_implementation="{NAME}": cu_seq_lens_q packs {len(starts) - 1} sequences into one, but there are '
            f"{query.shape[0]} rows, and no mask came with them"
        )


_UNKNOWN = {
    "output_attentions": 'rootdk keeps no weights to give back; use "eager"',
    "head_mask": 'rootdk has none; use "eager"',
    "indices": 'rootdk has no sparse attention by indices; use "eager" or "sdpa"',
    "block_indices": 'rootdk has no sparse attention by blocks; use "eager" or "sdpa"',
    "cache": 'rootdk has no paged cache (continuous batching); use "sdpa"',
}
