"""qk_clip: asked for a factor, the measured maximum is multiplied by it, on transformers' own classes; all layers or none; each
look once; and what did not follow is said."""
from __future__ import annotations

import copy
import math
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import rootdk
from rootdk._clip import Clipper
from rootdk._gains import gains_of
from rootdk._projections import find


class Attention(torch.nn.Module):
    def __init__(self, width=16, heads=4, heads_kv=4, q_norm=None, k_norm=None):
        super().__init__()
        self.heads, self.heads_kv, self.dim = heads, heads_kv, width // heads
        self.q_proj = torch.nn.Linear(width, width)
        self.k_proj, self.v_proj = (torch.nn.Linear(width, heads_kv * self.dim) for _ in range(2))
        if q_norm is not None:
            self.q_norm = q_norm
        if k_norm is not None:
            self.k_norm = k_norm

    def forward(self, x):
        q = self.q_proj(x).unflatten(-1, (self.heads, -1))
        k, v = (p(x).unflatten(-1, (self.heads_kv, -1)) for p in (self.k_proj, self.v_proj))
        q = self.q_norm(q) if hasattr(self, "q_norm") else q
        k = self.k_norm(k) if hasattr(self, "k_norm") else k
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), enable_gqa=True)
        return x + out.transpose(1, 2).flatten(-2)


class Model(torch.nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def loud(model, by=4.0):
    """So that scores are large, gains uneven and no bias is 0."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * (by * p.shape[-1] ** -0.5 if p.ndim > 1 else 0.5) + (p.ndim == 1) * 0.7)
    return model.eval()


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def unchanged(model, before):
    return all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def peaks(w):
    return {layer: w.stats(layer).raw_max[0].astype(float) for layer in w.layers}


# transformers' own classes ---------------------------------------------------------------------------------------------------
SMALL = dict(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4)
GQA = dict(SMALL, num_key_value_heads=2)
CASES = {
    "llama": ("LlamaModel", "LlamaConfig", GQA),
    "llama-mha": ("LlamaModel", "LlamaConfig", SMALL),
    "gemma2": ("Gemma2Model", "Gemma2Config", dict(GQA, head_dim=8)),
    "gemma3": ("Gemma3TextModel", "Gemma3TextConfig", dict(GQA, head_dim=8)),
    "qwen3": ("Qwen3Model", "Qwen3Config", dict(GQA, head_dim=8)),
    "qwen3-mha": ("Qwen3Model", "Qwen3Config", dict(SMALL, num_key_value_heads=4, head_dim=8)),
    "qwen3-moe": ("Qwen3MoeModel", "Qwen3MoeConfig", dict(GQA, head_dim=8, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16)),
    "olmo2": ("Olmo2Model", "Olmo2Config", GQA),
    "olmo2-mha": ("Olmo2Model", "Olmo2Config", SMALL),
    "cohere": ("CohereModel", "CohereConfig", dict(GQA, use_qk_norm=True)),
    "cohere-mha": ("CohereModel", "CohereConfig", dict(SMALL, use_qk_norm=True)),
    "chameleon": ("ChameleonModel", "ChameleonConfig", dict(
        SMALL, num_key_value_heads=4, vocabulary_map={"<image>": 40},
        vq_config=dict(embed_dim=4, num_embeddings=4, latent_channels=4, resolution=8, base_channels=32, channel_multiplier=[1], num_res_blocks=1))),
    "stablelm": ("StableLmModel", "StableLmConfig", dict(SMALL, num_key_value_heads=4, qk_layernorm=True)),
    "stablelm-gqa": ("StableLmModel", "StableLmConfig", dict(GQA, qk_layernorm=True)),
    "phi": ("PhiModel", "PhiConfig", SMALL),
    "phi-norm": ("PhiModel", "PhiConfig", dict(SMALL, qk_layernorm=True)),
    "phi3": ("Phi3Model", "Phi3Config", dict(GQA, pad_token_id=0)),
    "persimmon": ("PersimmonModel", "PersimmonConfig", SMALL),
    "persimmon-plain": ("PersimmonModel", "PersimmonConfig", dict(SMALL, qk_layernorm=False)),
    "gpt2": ("GPT2Model", "GPT2Config", dict(vocab_size=50, n_embd=32, n_layer=1, n_head=4)),
    "bert": ("BertModel", "BertConfig", SMALL),
    "gpt-neox": ("GPTNeoXModel", "GPTNeoXConfig", SMALL),
    "falcon": ("FalconModel", "FalconConfig", dict(SMALL, new_decoder_architecture=True, num_kv_heads=2, alibi=False)),
    "falcon-mq": ("FalconModel", "FalconConfig", dict(SMALL, multi_query=True, alibi=False)),
    "falcon-mha": ("FalconModel", "FalconConfig", dict(SMALL, multi_query=False, alibi=False)),
    "gpt-bigcode": ("GPTBigCodeModel", "GPTBigCodeConfig", dict(vocab_size=50, n_embd=32, n_layer=1, n_head=4, multi_query=False)),
    "gpt-bigcode-mq": ("GPTBigCodeModel", "GPTBigCodeConfig", dict(vocab_size=50, n_embd=32, n_layer=1, n_head=4, multi_query=True)),
    "codegen": ("CodeGenModel", "CodeGenConfig", dict(vocab_size=50, n_embd=32, n_layer=1, n_head=4, rotary_dim=4)),
    "opt": ("OPTModel", "OPTConfig", dict(vocab_size=50, hidden_size=32, ffn_dim=48, num_hidden_layers=1, num_attention_heads=4,
                                          word_embed_proj_dim=32)),
    "bloom": ("BloomModel", "BloomConfig", dict(vocab_size=50, hidden_size=32, n_layer=1, n_head=4)),
    "mpt": ("MptModel", "MptConfig", dict(vocab_size=50, d_model=32, n_layers=1, n_heads=4)),
    "modernbert": ("ModernBertModel", "ModernBertConfig", dict(SMALL, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1,
                                                               sep_token_id=2)),
    "deepseek-v3": ("DeepseekV3Model", "DeepseekV3Config", dict(
        SMALL, num_key_value_heads=4, q_lora_rank=12, kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8,
        first_k_dense_replace=1, n_routed_experts=2, n_group=1, topk_group=1, num_experts_per_tok=1, moe_intermediate_size=16)),
    "deepseek-v3-no-lora": ("DeepseekV3Model", "DeepseekV3Config", dict(
        SMALL, num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8,
        first_k_dense_replace=1, n_routed_experts=2, n_group=1, topk_group=1, num_experts_per_tok=1, moe_intermediate_size=16)),
    "t5": ("T5Model", "T5Config", dict(vocab_size=50, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4)),
    "vit": ("ViTModel", "ViTConfig", dict(SMALL, image_size=8, patch_size=4, num_channels=3)),
    "whisper": ("WhisperModel", "WhisperConfig", dict(
        vocab_size=50, num_mel_bins=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4, d_model=32,
        encoder_ffn_dim=48, decoder_ffn_dim=48, max_source_positions=12, max_target_positions=12, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=1)),
    "albert": ("AlbertModel", "AlbertConfig", dict(SMALL, embedding_size=32, num_hidden_layers=3)),
}

SHARED = {"gemma3", "qwen3", "qwen3-mha", "qwen3-moe", "phi-norm", "persimmon"}  # one gain for all heads


def build(name):
    transformers = pytest.importorskip("transformers")
    model, config, settings = CASES[name]
    try:
        made = getattr(transformers, config)(**settings)
    except AttributeError:
        pytest.skip(f"this transformers has no {config}")
    return loud(getattr(transformers, model)(made))


def given(name):
    ids = torch.arange(3, 13)[None]
    if name == "vit":
        return {"pixel_values": torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))}
    if name == "whisper":
        return {"input_features": torch.randn(1, 8, 24, generator=torch.Generator().manual_seed(1)), "decoder_input_ids": ids}
    return {"input_ids": ids, "decoder_input_ids": ids} if name == "t5" else {"input_ids": ids}


@pytest.mark.parametrize("name", sorted(CASES))
def test_asked_for_a_quarter_the_maximum_is_a_quarter(name):
    model = build(name)
    inputs = given(name)
    with torch.no_grad(), rootdk.watch(model) as w, warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        single = {key: value[..., :1] for key, value in inputs.items()}
        one = model(**single)[0] if name not in ("vit", "whisper") else None
        w._clipper._peak.clear()
        model(**inputs)
        if not w.layers:
            pytest.skip("watch does not see this model's attention")
        first = w.layers[0]
        before = peaks(w)[first]
        assert before.max() > 0.1
        factors = w.qk_clip(tau=0.25 * before[before > 0].min(), alpha=0.3)
        model(**inputs)
        after = peaks(w)[first]
        achieved = np.array(factors[first])
        up = before > 0
        np.testing.assert_allclose(after[up], before[up] * achieved[up], rtol=2e-4)
        assert achieved[up].max() <= 0.25 * (1 + 1e-9)
        if name in SHARED:
            assert len(set(achieved)) == 1
        elif name != "albert":  # which calls the same weights again, with other maxima
            np.testing.assert_allclose(after[up], 0.25 * before[up].min(), rtol=2e-4)  # each head to tau
        if one is not None:  # with one key the output is its value: nothing else was scaled
            torch.testing.assert_close(model(**single)[0], one, rtol=1e-4, atol=1e-4)
