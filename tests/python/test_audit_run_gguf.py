"""A GGUF runs as the model it was made from: the tensors of a small model under llama.cpp's names, laid out as its
converter lays them out."""

from __future__ import annotations

import struct

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import rootdk  # noqa: E402
from runnable import assert_same_hidden_state, made, tokens  # noqa: E402

_U32, _F32, _BOOL, _STRING = 4, 6, 7, 8
_ALIGNMENT = 32


def _text(words):
    data = words.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value):
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    return struct.pack("<If", _F32, value) if isinstance(value, float) else struct.pack("<II", _U32, value)


def write_gguf(path, architecture, settings, tensors):
    """Version 3, f32."""
    entries = {
        "general.architecture": architecture,
        **{f"{architecture}.{name}": value for name, value in settings.items()},
    }
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries))
    header += b"".join(_text(name) + _value(value) for name, value in entries.items())
    data = b""
    for name, tensor in tensors.items():
        extents = tensor.shape[::-1]
        header += _text(name) + struct.pack(f"<I{len(extents)}QIQ", len(extents), *extents, 0, len(data))
        numbers = np.ascontiguousarray(tensor, dtype="<f4").tobytes()
        data += numbers + b"\0" * (-len(numbers) % _ALIGNMENT)
    path.write_bytes(header + b"\0" * (-len(header) % _ALIGNMENT) + data)


_LLAMA = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GEMMA = {
    **_LLAMA,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_PHI = {**_LLAMA, "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
_GPT2 = {
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_1": "attn_norm",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
_NEOX = {
    "attention.query_key_value": "attn_qkv",
    "attention.dense": "attn_output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.dense_h_to_4h": "ffn_up",
    "mlp.dense_4h_to_h": "ffn_down",
}
_BERT = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_TOP = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "wte": "token_embd",
    "wpe": "position_embd",
    "ln_f": "output_norm",
    "embed_in": "token_embd",
    "final_layer_norm": "output_norm",
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}

#: the case of runnable.py: architecture, names inside a layer, settings beside the common ones
CASES = {
    "llama": ("llama", _LLAMA, {"rope.freq_base": 500.0}),
    "qwen3": ("qwen3", _LLAMA, {"rope.freq_base": 10000.0, "attention.key_length": 16}),
    "gemma": ("gemma", _LLAMA, {}),
    "gemma2": ("gemma2", _GEMMA, {"attn_logit_softcapping": 2.0, "attention.sliding_window": 5}),
    "gemma3": ("gemma3", _GEMMA, {"attention.sliding_window": 5}),
    "phi3": ("phi3", _PHI, {"rope.dimension_count": 4, "attention.sliding_window": 7}),
    "gpt2": ("gpt2", _GPT2, {}),
    "gpt_neox": ("gptneox", _NEOX, {"rope.dimension_count": 4, "use_parallel_residual": True}),
    "gpt_neox-serial": ("gptneox", _NEOX, {"rope.dimension_count": 4, "use_parallel_residual": False}),
    "bert": ("bert", _BERT, {"attention.causal": False}),
}


def _converted(name, model):
    """What llama.cpp's converter does to names and numbers."""
    architecture, names, _ = CASES[name]
    heads, out = model.config.num_attention_heads, {}
    for full, tensor in model.state_dict().items():
        path, ending = full.rsplit(".", 1)
        parts, x = path.split("."), tensor.numpy()
        layer = next((part for part in parts if part.isdigit()), None)
        if layer is None:
            place = _TOP.get(path)
        else:
            place = names.get(".".join(parts[parts.index(layer) + 1 :]))
            place = place and f"blk.{layer}.{place}"
        if place is None:
            continue
        kind = place.rsplit(".", 1)[-1]
        if architecture == "llama" and kind in ("attn_q", "attn_k"):  # pairs that turn together lie side by side
            count = heads if kind == "attn_q" else model.config.num_key_value_heads
            x = x.reshape(count, 2, -1, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)
        if architecture.startswith("gemma") and kind.endswith("norm"):
            x = x + 1
        if architecture == "gpt2" and x.ndim == 2 and layer is not None:
            x = x.T
        if architecture == "gptneox" and kind == "attn_qkv":  # q, k and v of all heads, one behind the other
            x = x.reshape(heads, 3, -1, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)
        out[f"{place}.{ending}"] = x
    return out


@pytest.mark.parametrize("name", CASES)
def test_a_gguf_runs_as_its_model(name, tmp_path):
    model, ids = made(name), tokens(name)
    architecture, _, more = CASES[name]
    config = model.config
    # GGUF keeps neither the scale nor, for Gemma 3, that not every sixth layer sees all keys
    if name in ("gemma2", "gemma3"):
        if name == "gemma3":
            config.layer_types = ["sliding_attention"] * 3
            model = type(model)(config).eval()
            model.load_state_dict(made(name).state_dict())
        for layer in model.layers:
            layer.self_attn.scaling = config.head_dim**-0.5
    epsilon = next(
        getattr(config, key) for key in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon") if hasattr(config, key)
    )
    settings = {
        "block_count": config.num_hidden_layers,
        "attention.head_count": config.num_attention_heads,
        "context_length": 64,
        "attention.head_count_kv": getattr(config, "num_key_value_heads", config.num_attention_heads),
        (
            "attention.layer_norm_rms_epsilon" if hasattr(config, "rms_norm_eps") else "attention.layer_norm_epsilon"
        ): epsilon,
        **more,
    }
    write_gguf(tmp_path / "model.gguf", architecture, settings, _converted(name, model))
    found = rootdk.audit(tmp_path / "model.gguf", run=ids)
    assert_same_hidden_state(model, found.last_hidden_state, input_ids=ids)


def test_a_gguf_that_says_too_little_is_refused(tmp_path):
    model = made("llama")
    tensors = _converted("llama", model)
    settings = {"block_count": 3, "attention.head_count": 4, "attention.head_count_kv": 2, "context_length": 64}
    write_gguf(tmp_path / "model.gguf", "llama", settings, tensors)
    with pytest.raises(ValueError, match="run: .* cannot be run: the metadata: says no epsilon of the norms"):
        rootdk.audit(tmp_path / "model.gguf", run=[3, 4, 5])
    settings["attention.layer_norm_rms_epsilon"] = 1e-6
    write_gguf(tmp_path / "longrope.gguf", "llama", {**settings, "rope.scaling.type": "longrope"}, tensors)
    with pytest.raises(
        ValueError, match="cannot be run: GGUF keeps the factors of longrope in tensors, which were not applied"
    ):
        rootdk.audit(tmp_path / "longrope.gguf", run=[3, 4, 5])
    tensors["blk.1.ffn_gate_exps.weight"] = tensors.pop("blk.1.ffn_gate.weight")
    write_gguf(tmp_path / "experts.gguf", "llama", settings, tensors)
    with pytest.raises(ValueError, match="cannot be run: a mixture of experts is not run"):
        rootdk.audit(tmp_path / "experts.gguf", run=[3, 4, 5])
