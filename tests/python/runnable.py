"""Small random models of every family that the audit runs, each with what is special about it switched on."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
import transformers

VOCABULARY, LENGTH, LAYERS = 60, 24, 3
_PLAIN = dict(
    hidden_size=32,
    num_hidden_layers=LAYERS,
    num_attention_heads=4,
    intermediate_size=48,
    vocab_size=VOCABULARY,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    max_position_embeddings=64,
)
_GROUPED = dict(_PLAIN, num_key_value_heads=2)
_GPT2 = dict(n_embd=32, n_layer=LAYERS, n_head=4, vocab_size=VOCABULARY, n_positions=64, bos_token_id=1, eos_token_id=2)
_MIXED = dict(layer_types=["sliding_attention", "full_attention", "sliding_attention"], sliding_window=5, head_dim=8)


def _rope(kind: str, **more: Any) -> dict[str, Any]:
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=500.0, **more))


def _longrope(original: int) -> dict[str, Any]:
    return dict(
        original_max_position_embeddings=original,
        **_rope(
            "longrope",
            original_max_position_embeddings=original,
            short_factor=[1.0, 1.1, 1.2, 1.3],
            long_factor=[1.0, 2.0, 4.0, 8.0],
        ),
    )


#: name: (class, config, what is special)
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaModel", "LlamaConfig", dict(_GROUPED, rope_theta=500.0)),
    "llama-biases": ("LlamaModel", "LlamaConfig", dict(_GROUPED, attention_bias=True, mlp_bias=True)),
    "llama-odd": ("LlamaModel", "LlamaConfig", dict(_GROUPED, hidden_act="quick_gelu", rms_norm_eps=0.02, head_dim=12)),
    "llama-llama3": (
        "LlamaModel",
        "LlamaConfig",
        dict(
            _GROUPED,
            **_rope(
                "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
            ),
        ),
    ),
    "llama-yarn": (
        "LlamaModel",
        "LlamaConfig",
        dict(_GROUPED, **_rope("yarn", factor=4.0, original_max_position_embeddings=16)),
    ),
    "llama-linear": ("LlamaModel", "LlamaConfig", dict(_GROUPED, **_rope("linear", factor=4.0))),
    "llama-dynamic": ("LlamaModel", "LlamaConfig", dict(_GROUPED, **_rope("dynamic", factor=4.0))),
    "mistral": ("MistralModel", "MistralConfig", dict(_GROUPED, sliding_window=5, head_dim=8)),
    "qwen2": (
        "Qwen2Model",
        "Qwen2Config",
        dict(_GROUPED, use_sliding_window=True, sliding_window=6, max_window_layers=1),
    ),
    "qwen3": ("Qwen3Model", "Qwen3Config", dict(_GROUPED, head_dim=16, rms_norm_eps=1e-3)),
    "gemma": ("GemmaModel", "GemmaConfig", dict(_GROUPED, head_dim=8)),
    "gemma2": (
        "Gemma2Model",
        "Gemma2Config",
        dict(_GROUPED, **_MIXED, query_pre_attn_scalar=20, attn_logit_softcapping=2.0),
    ),
    "gemma3": ("Gemma3TextModel", "Gemma3TextConfig", dict(_GROUPED, **_MIXED, query_pre_attn_scalar=20)),
    "gemma3-linear": (
        "Gemma3TextModel",
        "Gemma3TextConfig",
        dict(
            _GROUPED,
            **_MIXED,
            rope_parameters={
                "full_attention": dict(rope_type="linear", factor=8.0, rope_theta=500.0),
                "sliding_attention": dict(rope_type="default", rope_theta=50.0),
            },
        ),
    ),
    "phi3": ("Phi3Model", "Phi3Config", dict(_GROUPED, partial_rotary_factor=0.5, sliding_window=7)),
    "phi3-short": ("Phi3Model", "Phi3Config", dict(_GROUPED, **_longrope(32))),
    "phi3-long": ("Phi3Model", "Phi3Config", dict(_GROUPED, **_longrope(16))),
    "gpt2": ("GPT2Model", "GPT2Config", _GPT2),
    "gpt2-odd": (
        "GPT2Model",
        "GPT2Config",
        dict(_GPT2, scale_attn_by_inverse_layer_idx=True, activation_function="relu"),
    ),
    "gpt_neox": ("GPTNeoXModel", "GPTNeoXConfig", dict(_PLAIN, rotary_pct=0.25, num_attention_heads=2)),
    "gpt_neox-serial": ("GPTNeoXModel", "GPTNeoXConfig", dict(_PLAIN, rotary_pct=0.5, use_parallel_residual=False)),
    "bert": ("BertModel", "BertConfig", _PLAIN),
    "roberta": ("RobertaModel", "RobertaConfig", dict(_PLAIN, pad_token_id=1, type_vocab_size=1, layer_norm_eps=1e-5)),
}


def made(name: str) -> transformers.PreTrainedModel:
    """In eval mode; gains and biases matter."""
    kind, config, settings = CASES[name]
    torch.manual_seed(0)
    return roughened(getattr(transformers, kind)(getattr(transformers, config)(**settings)))


def roughened(model: Any) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def tokens(name: str, sequences: int = 2) -> torch.Tensor:
    """RoBERTa's include padding, which it counts in its own way."""
    ids = torch.randint(3, VOCABULARY, (sequences, LENGTH), generator=torch.Generator().manual_seed(1))
    if name == "roberta":
        ids[0, 5] = ids[-1, 0] = 1
    return ids


def assert_same_hidden_state(model: Any, ours: np.ndarray, **inputs: Any) -> None:
    """At most twice as far from the model in double as the model in float is, and what it cannot avoid: transformers
    has rotary angles in float, also in double, which for a position p moves a component by p·2⁻²⁴ of its size; one
    rounding of the largest number for each of the five sums of a layer."""
    with torch.no_grad():
        theirs = model(**inputs).last_hidden_state.numpy()
        exact = (
            copy.deepcopy(model)
            .double()(
                **{name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}
            )
            .last_hidden_state.numpy()
        )
    assert ours.shape == theirs.shape and ours.dtype == np.float32
    floor = 2.0**-24 * np.abs(exact).max() * (LENGTH + 5 * LAYERS)
    ours_off, theirs_off = np.abs(ours - exact).max(), np.abs(theirs - exact).max()
    assert ours_off <= 2 * theirs_off + floor, (ours_off, theirs_off, floor)
