"""qk_clip: asked for a factor, the measured maximum is multiplied by it, on transformers' own classes; all layers or
none; each look once; and what did not follow is said."""

from __future__ import annotations

import copy
import math
import warnings

import numpy as np
import pytest
import rootdk
import torch
import torch.nn.functional as F
from rootdk._watch.clip import Clipper
from rootdk._watch.gains import gains_of
from rootdk._watch.projections import find


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
            p.copy_(
                torch.randn(p.shape, generator=generator) * (by * p.shape[-1] ** -0.5 if p.ndim > 1 else 0.5)
                + (p.ndim == 1) * 0.7
            )
    return model.eval()


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def unchanged(model, before):
    return all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def peaks(w):
    return {layer: w.stats(layer).raw_max[0].astype(float) for layer in w.layers}


# transformers' own classes --------------------------------------------------------------------------------------------
SMALL = dict(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4)
GQA = dict(SMALL, num_key_value_heads=2)
CASES = {
    "llama": ("LlamaModel", "LlamaConfig", GQA),
    "llama-mha": ("LlamaModel", "LlamaConfig", SMALL),
    "gemma2": ("Gemma2Model", "Gemma2Config", dict(GQA, head_dim=8)),
    "gemma3": ("Gemma3TextModel", "Gemma3TextConfig", dict(GQA, head_dim=8)),
    "qwen3": ("Qwen3Model", "Qwen3Config", dict(GQA, head_dim=8)),
    "qwen3-mha": ("Qwen3Model", "Qwen3Config", dict(SMALL, num_key_value_heads=4, head_dim=8)),
    "qwen3-moe": (
        "Qwen3MoeModel",
        "Qwen3MoeConfig",
        dict(GQA, head_dim=8, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16),
    ),
    "olmo2": ("Olmo2Model", "Olmo2Config", GQA),
    "olmo2-mha": ("Olmo2Model", "Olmo2Config", SMALL),
    "cohere": ("CohereModel", "CohereConfig", dict(GQA, use_qk_norm=True)),
    "cohere-mha": ("CohereModel", "CohereConfig", dict(SMALL, use_qk_norm=True)),
    "chameleon": (
        "ChameleonModel",
        "ChameleonConfig",
        dict(
            SMALL,
            num_key_value_heads=4,
            vocabulary_map={"<image>": 40},
            vq_config=dict(
                embed_dim=4,
                num_embeddings=4,
                latent_channels=4,
                resolution=8,
                base_channels=32,
                channel_multiplier=[1],
                num_res_blocks=1,
            ),
        ),
    ),
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
    "gpt-bigcode": (
        "GPTBigCodeModel",
        "GPTBigCodeConfig",
        dict(vocab_size=50, n_embd=32, n_layer=1, n_head=4, multi_query=False),
    ),
    "gpt-bigcode-mq": (
        "GPTBigCodeModel",
        "GPTBigCodeConfig",
        dict(vocab_size=50, n_embd=32, n_layer=1, n_head=4, multi_query=True),
    ),
    "codegen": ("CodeGenModel", "CodeGenConfig", dict(vocab_size=50, n_embd=32, n_layer=1, n_head=4, rotary_dim=4)),
    "opt": (
        "OPTModel",
        "OPTConfig",
        dict(
            vocab_size=50,
            hidden_size=32,
            ffn_dim=48,
            num_hidden_layers=1,
            num_attention_heads=4,
            word_embed_proj_dim=32,
        ),
    ),
    "bloom": ("BloomModel", "BloomConfig", dict(vocab_size=50, hidden_size=32, n_layer=1, n_head=4)),
    "mpt": ("MptModel", "MptConfig", dict(vocab_size=50, d_model=32, n_layers=1, n_heads=4)),
    "modernbert": (
        "ModernBertModel",
        "ModernBertConfig",
        dict(SMALL, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2),
    ),
    "deepseek-v3": (
        "DeepseekV3Model",
        "DeepseekV3Config",
        dict(
            SMALL,
            num_key_value_heads=4,
            q_lora_rank=12,
            kv_lora_rank=8,
            qk_nope_head_dim=8,
            qk_rope_head_dim=4,
            v_head_dim=8,
            first_k_dense_replace=1,
            n_routed_experts=2,
            n_group=1,
            topk_group=1,
            num_experts_per_tok=1,
            moe_intermediate_size=16,
        ),
    ),
    "deepseek-v3-no-lora": (
        "DeepseekV3Model",
        "DeepseekV3Config",
        dict(
            SMALL,
            num_key_value_heads=4,
            q_lora_rank=None,
            kv_lora_rank=8,
            qk_nope_head_dim=8,
            qk_rope_head_dim=4,
            v_head_dim=8,
            first_k_dense_replace=1,
            n_routed_experts=2,
            n_group=1,
            topk_group=1,
            num_experts_per_tok=1,
            moe_intermediate_size=16,
        ),
    ),
    "t5": ("T5Model", "T5Config", dict(vocab_size=50, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4)),
    "vit": ("ViTModel", "ViTConfig", dict(SMALL, image_size=8, patch_size=4, num_channels=3)),
    "whisper": (
        "WhisperModel",
        "WhisperConfig",
        dict(
            vocab_size=50,
            num_mel_bins=8,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            d_model=32,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            max_source_positions=12,
            max_target_positions=12,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
        ),
    ),
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
        return {
            "input_features": torch.randn(1, 8, 24, generator=torch.Generator().manual_seed(1)),
            "decoder_input_ids": ids,
        }
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


def test_packed_by_heads_where_watch_does_not_look():
    """BLOOM's own function says which rows are whose."""
    model = build("bloom")
    layer = model.h[0].self_attention
    x = torch.randn(1, 9, 32)

    def scores():
        q, k, v = layer._reshape(layer.query_key_value(x))
        return (q @ k.reshape(q.shape[0], q.shape[1], q.shape[2], -1).transpose(-1, -2)).amax(
            (0, 2, 3)
        ).detach(), v.detach().clone()

    (before, v), clipper = scores(), Clipper()
    clipper.observe(0, "h.0.self_attention", "h.0.self_attention", before.tolist())
    factors = clipper.clip(model, 0.25 * before.min().item(), 0.5)["h.0.self_attention"]
    after, v_after = scores()
    torch.testing.assert_close(after, before * torch.tensor(factors))
    assert len(set(factors)) == 4 and torch.equal(v, v_after)


def test_llama_4_has_no_gain_and_is_refused_by_name():
    transformers = pytest.importorskip("transformers")
    config = transformers.Llama4TextConfig(
        **GQA,
        head_dim=8,
        intermediate_size_mlp=48,
        num_local_experts=2,
        interleave_moe_layer_step=2,
        use_qk_norm=True,
        no_rope_layers=[1],
    )
    model = loud(transformers.Llama4TextModel(config))
    before = weights(model)
    with rootdk.watch(model) as w:
        model(torch.arange(3, 13)[None])
        with pytest.raises(ValueError, match=r"layers\.0\.self_attn.*qk_norm.*Llama4TextL2Norm.*without a gain"):
            w.qk_clip(tau=1e-3)
    assert unchanged(model, before)


class Packed(torch.nn.Module):
    """Of somebody's own, in several layouts and ways."""

    def __init__(self, layout, way="sdpa", name="qkv"):
        super().__init__()
        self.layout, self.way, self.name = layout, way, name
        self.dropout, self.calls = torch.nn.Dropout(0.5), []
        self.register_buffer("seen", torch.zeros(()))
        setattr(self, name, torch.nn.Linear(16, 48 if layout != "gqa" else 32))

    def forward(self, x):
        y = getattr(self, self.name)(self.dropout(x))
        if self.layout == "by heads":
            q, k, v = (z.transpose(1, 2) for z in y.unflatten(-1, (4, 12)).chunk(3, -1))
        elif self.layout == "value first":
            v, k, q = (z.unflatten(-1, (4, 4)).transpose(1, 2) for z in y.chunk(3, -1))
        elif self.layout == "dims first":
            q, k, v = y.unflatten(-1, (4, 4, 3)).permute(4, 0, 3, 1, 2)
        elif self.layout == "gqa":
            q, k, v = (z.unflatten(-1, (-1, 4)).transpose(1, 2) for z in y.split([16, 8, 8], -1))
            k, v = (z.repeat_interleave(2, 1) for z in (k, v))
        else:
            q, k, v = (z.unflatten(-1, (4, 4)).transpose(1, 2) for z in y.chunk(3, -1))
        if self.layout == "rotated":
            angle = torch.arange(1.0, x.shape[1] + 1)[:, None]
            q, k = (
                torch.cat(
                    [
                        z[..., :2] * angle.cos() - z[..., 2:] * angle.sin(),
                        z[..., :2] * angle.sin() + z[..., 2:] * angle.cos(),
                    ],
                    -1,
                )
                for z in (q, k)
            )
        elif self.layout == "normalised":
            q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        elif self.layout == "heads mixed":
            q = q + q.flip(1)
        self.calls.append(len(x))
        self.seen += 1
        if self.way == "sdpa":
            out = F.scaled_dot_product_attention(q, k, v)
        elif self.way == "einsum":
            out = torch.einsum("bhqd,bhkd->bhqk", q, k).softmax(-1) @ v
        else:
            out = (q * 0.5 @ k.transpose(-1, -2)).softmax(-1) @ v
        return out.transpose(1, 2).flatten(-2)


@pytest.mark.parametrize("layout", ["side by side", "by heads", "value first", "dims first", "gqa", "rotated"])
@pytest.mark.parametrize("way, name", [("sdpa", "qkv"), ("written out", "query_key_value")])
def test_packed_layers_of_ones_own_are_tried(layout, way, name):
    model = loud(Model(Packed(layout, way, name)))
    x = torch.randn(2, 12, 16, generator=torch.Generator().manual_seed(3))
    with rootdk.watch(model) as w:
        one = model(x[:, :1])
        w._clipper._peak.clear()
        model(x)
        before, state = peaks(w)["layers.0"], torch.random.get_rng_state()
        factors = np.array(w.qk_clip(tau=0.25 * before.min())["layers.0"])
        assert torch.equal(state, torch.random.get_rng_state())
        assert model.layers[0].calls == [2, 2] and model.layers[0].seen == 2 and w.layers == ["layers.0"]
        model(x)
        np.testing.assert_allclose(peaks(w)["layers.0"], before * factors, rtol=1e-4)
        assert torch.equal(model(x[:, :1]), one)  # values stay
    assert len(set(factors)) == 4


@pytest.mark.parametrize("layout, way", [("normalised", "sdpa"), ("heads mixed", "sdpa"), ("side by side", "einsum")])
def test_packed_layers_whose_forward_does_not_tell_are_refused(layout, way):
    model = loud(Model(Packed(layout, way)))
    before = weights(model)
    with rootdk.watch(model) as w:
        model(torch.randn(2, 12, 16))
        with pytest.raises(ValueError, match=r"layers\.0 \(Packed\): which rows of qkv.*projections="):
            w.qk_clip(tau=1e-3)
        assert w.layers == ["layers.0"] and len(w.to_dicts()) == 4  # the trial was not watched
    assert unchanged(model, before)


def test_a_norm_that_is_no_module_is_found_out():
    class Normalised(Attention):
        def forward(self, x):
            q, k, v = (p(x).unflatten(-1, (4, 4)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
            return (
                F.scaled_dot_product_attention(F.rms_norm(q, (4,)), F.rms_norm(k, (4,)), v).transpose(1, 2).flatten(-2)
            )

    model = loud(Model(Attention(), Normalised()))
    before = weights(model)
    with rootdk.watch(model) as w:
        model(torch.randn(2, 12, 16))
        with pytest.raises(ValueError, match=r"layers\.1 \(Normalised\): its forward does more to q_proj and k_proj"):
            w.qk_clip(tau=1e-3)
    assert unchanged(model, before)


# Norms ----------------------------------------------------------------------------------------------------------------
class OnePlus(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:]) * (1 + self.weight)


class Squared(OnePlus):
    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:]) * self.weight**2


class Before(OnePlus):
    """Its weight has a part in what is normalised."""

    def forward(self, x):
        return F.rms_norm(x * self.weight, x.shape[-1:])


@pytest.mark.parametrize("norm, offset", [(torch.nn.RMSNorm(4), 0), (torch.nn.LayerNorm(4), 0), (OnePlus(4), 1)])
def test_how_a_norm_uses_its_weight_is_tried(norm, offset):
    before = weights(norm)
    (gain,) = gains_of(norm, "q_norm")
    assert gain.offset == offset and gain.weight is norm.weight and unchanged(norm, before)
    assert (gain.bias is not None) == isinstance(norm, torch.nn.LayerNorm)


@pytest.mark.parametrize(
    "norm, why",
    [
        (torch.nn.RMSNorm(4, elementwise_affine=False), "without a gain"),
        (torch.nn.LayerNorm(4, elementwise_affine=False), "without a gain"),
        (Squared(4), "is not .weight"),
        (Before(4), "is not .weight"),
        (torch.nn.Linear(4, 4), "could not be tried|is not .weight"),
        (torch.nn.PReLU(4), "could not be tried|is not .weight"),
    ],
)
def test_norms_that_are_not_understood_are_refused_by_name(norm, why):
    torch.manual_seed(0)
    model = Model(Attention(), Attention(q_norm=norm, k_norm=copy.deepcopy(norm)))
    with torch.no_grad():
        for p in norm.parameters():
            p.add_(0.5)
    before = weights(model)
    clipper = Clipper()
    for label in ("layers.0", "layers.1"):
        clipper.observe(0, label, label, [9.0] * 4)
    with pytest.raises(ValueError, match=rf"layers\.1.*q_norm.*{why}"):
        clipper.clip(model, 1.0, 0.5)
    assert unchanged(model, before)


@pytest.mark.parametrize(
    "q_norm, k_norm",
    [
        (torch.nn.Identity(), torch.nn.Identity()),
        (torch.nn.Identity(), torch.nn.RMSNorm(4)),
        (OnePlus(4), OnePlus(4)),
        (torch.nn.LayerNorm(4), torch.nn.LayerNorm(4)),
        (torch.nn.LayerNorm((4, 4)), torch.nn.LayerNorm((4, 4))),
    ],
)
@pytest.mark.parametrize("heads_kv", [4, 2])
def test_norms_of_ones_own(q_norm, k_norm, heads_kv):
    if heads_kv == 2 and isinstance(k_norm, torch.nn.LayerNorm) and k_norm.weight.ndim == 2:
        k_norm = torch.nn.LayerNorm((2, 4))
    model = loud(Model(Attention(heads_kv=heads_kv, q_norm=copy.deepcopy(q_norm), k_norm=copy.deepcopy(k_norm))))
    x = torch.randn(2, 12, 16, generator=torch.Generator().manual_seed(3))
    with rootdk.watch(model) as w:
        model(x)
        before = peaks(w)["layers.0"]
        factors = np.array(w.qk_clip(tau=0.25 * before.min())["layers.0"])
        model(x)
    np.testing.assert_allclose(peaks(w)["layers.0"], before * factors, rtol=1e-4)
    assert factors.max() <= 0.25 + 1e-9


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes(dtype):
    model = loud(Model(Attention(q_norm=OnePlus(4), k_norm=OnePlus(4)))).to(dtype)
    x = torch.randn(2, 12, 16, generator=torch.Generator().manual_seed(3)).to(dtype)
    with rootdk.watch(model) as w:
        model(x)
        before = peaks(w)["layers.0"]
        factors = np.array(w.qk_clip(tau=0.25 * before.max())["layers.0"])
        model(x)
    # A few roundings of gain, q and k; 1 + w is near γ, so w is rounded at about its own size.
    unit = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float64: 1e-12}[dtype]
    np.testing.assert_allclose(
        peaks(w)["layers.0"], before * factors, rtol=16 * unit + (1e-5 if dtype == torch.float64 else 0)
    )


# All or nothing -------------------------------------------------------------------------------------------------------
class Odd(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mixer = torch.nn.Linear(16, 16)

    def forward(self, x):
        q = self.mixer(x).unflatten(-1, (4, 4)).transpose(1, 2)
        return x + F.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(-2)


def test_an_unknown_layer_leaves_all_as_they_were_and_can_be_named_afterwards():
    model = loud(Model(Attention(), Odd(), Attention()))
    x, before = torch.randn(2, 12, 16), weights(model)
    with rootdk.watch(model) as w:
        model(x)
        with pytest.raises(ValueError, match=r"layers\.1 \(Odd\).*projections="):
            w.qk_clip(tau=0.1)
        assert unchanged(model, before)
        view = model.layers[1].mixer.weight.detach().unflatten(0, (4, 4))
        bias = model.layers[1].mixer.bias.detach().unflatten(0, (4, 4))
        # q is k here: the square root, on one side.
        with pytest.raises(ValueError, match="two ways"):
            w.qk_clip(tau=0.1, projections={"layers.1": rootdk.Projections(w_q=view, b_q=bias, w_k=view, b_k=bias)})
        with pytest.raises(ValueError, match="copy"):
            w.qk_clip(tau=0.1, projections={"layers.1": rootdk.Projections(w_q=view.clone())})
        with pytest.raises(ValueError, match="'layer.1' is none of.*layers.0"):
            w.qk_clip(tau=0.1, projections={"layer.1": rootdk.Projections(w_q=view)})
        with pytest.raises(ValueError, match="2 heads, but 4"):
            w.qk_clip(
                tau=0.1,
                projections={
                    "layers.1": rootdk.Projections(w_q=model.layers[1].mixer.weight.detach().unflatten(0, (2, 8)))
                },
            )
        assert unchanged(model, before)
        # the peaks were kept
        factors = w.qk_clip(tau=0.1, projections={"layers.1": rootdk.Projections(w_q=view, b_q=bias)})
    assert set(factors) == {"layers.0", "layers.1", "layers.2"}
    rows = torch.tensor(factors["layers.0"]).repeat_interleave(4).sqrt()[:, None]  # once, whatever was tried before
    torch.testing.assert_close(model.layers[0].q_proj.weight, before["layers.0.q_proj.weight"] * rows)


def test_what_fails_half_way_is_put_back():
    model = loud(Model(Attention(), Attention()))
    # which torch does not write to
    model.layers[1].k_proj.weight = torch.nn.Parameter(torch.randn(16, 1).expand(16, 16))
    before = weights(model)
    clipper = Clipper()
    for label in ("layers.0", "layers.1"):
        clipper.observe(0, label, label, [9.0] * 4)
    with pytest.raises(RuntimeError, match="single memory location"):
        clipper.clip(model, 1.0, 0.5)
    assert unchanged(model, before)
    model.layers[1].k_proj.weight = torch.nn.Parameter(torch.randn(16, 16))
    assert clipper.clip(model, 1.0, 0.5) == {"layers.0": [1 / 9] * 4, "layers.1": [1 / 9] * 4}


def test_weights_made_in_inference_mode():
    with torch.inference_mode():
        model = loud(Model(Attention()))
        before = weights(model)
    clipper = Clipper()
    clipper.observe(0, "layers.0", "layers.0", [4.0] * 4)
    assert clipper.clip(model, 1.0, 0.5) == {"layers.0": [0.25] * 4}
    torch.testing.assert_close(model.layers[0].q_proj.weight, before["layers.0.q_proj.weight"] / 2)


def test_a_second_call_clips_nothing():
    model = loud(Model(Attention()))
    with rootdk.watch(model) as w:
        model(torch.randn(2, 12, 16))
        assert w.qk_clip(tau=0.5)
        before = weights(model)
        assert w.qk_clip(tau=0.1) == {} and unchanged(model, before)
        model(torch.randn(2, 12, 16))
        assert w.qk_clip(tau=0.1)


def test_two_calls_of_a_module_are_clipped_once():
    layer = Attention()

    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x) + self.layer(3 * x)

    model = loud(Twice())
    x = torch.randn(2, 12, 16)
    with rootdk.watch(model) as w:
        model(x)
        before = peaks(w)
        assert list(before) == ["layer", "layer#2"]
        factors = w.qk_clip(tau=0.25 * before["layer#2"].max())
        model(x)
        after = peaks(w)
    worst = np.maximum(before["layer"], before["layer#2"])
    expected = np.minimum(1, 0.25 * before["layer#2"].max() / worst)
    for label in before:
        np.testing.assert_allclose(factors[label], expected, rtol=1e-6)
        np.testing.assert_allclose(after[label], before[label] * expected, rtol=1e-4)


@pytest.mark.parametrize("tied", ["both", "q"])
def test_tied_layers_are_clipped_once_by_the_smallest_factor(tied):
    model = loud(Model(Attention(), Attention(), Attention()))
    model.layers[1].q_proj.weight, model.layers[1].q_proj.bias = (
        model.layers[0].q_proj.weight,
        model.layers[0].q_proj.bias,
    )
    if tied == "both":
        model.layers[1].k_proj.weight, model.layers[1].k_proj.bias = (
            model.layers[0].k_proj.weight,
            model.layers[0].k_proj.bias,
        )
    before = weights(model)
    clipper = Clipper()
    clipper.observe(0, "layers.0", "layers.0", [2.0, 4.0, 0.5, -1.0])
    clipper.observe(0, "layers.1", "layers.1", [0.5, 8.0, 0.5, 0.5])
    clipper.observe(0, "layers.2", "layers.2", [0.5] * 4)
    factors = clipper.clip(model, 1.0, 0.5)
    assert factors == {"layers.0": [0.5, 0.125, 1, 1], "layers.1": [0.5, 0.125, 1, 1]}
    rows = torch.tensor(factors["layers.0"]).repeat_interleave(4).sqrt()
    for layer in model.layers[:2]:
        for name in ("q_proj", "k_proj"):
            prefix = next(n for n, p in model.named_parameters() if p is getattr(layer, name).weight)
            torch.testing.assert_close(getattr(layer, name).weight, before[prefix] * rows[:, None])
    assert torch.equal(model.layers[2].q_proj.weight, before["layers.2.q_proj.weight"])


def test_a_layer_below_tau_that_shares_weights_is_told_so():
    model = loud(Model(Attention(), Attention()))
    model.layers[1].q_proj = model.layers[0].q_proj
    clipper = Clipper()
    clipper.observe(0, "layers.0", "layers.0", [0.5] * 4)
    clipper.observe(0, "layers.1", "layers.1", [4.0, 0.5, 0.5, 0.5])
    assert clipper.clip(model, 1.0, 0.5) == {"layers.0": [0.25, 1, 1, 1], "layers.1": [0.25, 1, 1, 1]}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_maxima_that_are_not_finite_are_skipped_in_words(bad):
    model = loud(Model(Attention(), Attention()))
    before = weights(model)
    clipper = Clipper()
    clipper.observe(0, "layers.0", "layers.0", [1.0, 4.0, 1.0, 1.0])
    clipper.observe(1, "layers.0", "layers.0", [bad, 1.0, 1.0, 1.0])
    clipper.observe(2, "layers.0", "layers.0", [5.0, 1.0, 1.0, 1.0])
    clipper.observe(0, "layers.1", "layers.1", [-math.inf, -3.0, 0.0, 0.5])  # a head that saw nothing
    with pytest.warns(RuntimeWarning, match=r"not finite: layers\.0, head 0$"):
        assert clipper.clip(model, 1.0, 0.5) == {"layers.0": [1, 0.25, 1, 1]}
    torch.testing.assert_close(model.layers[0].q_proj.weight[:4], before["layers.0.q_proj.weight"][:4], rtol=0, atol=0)


@pytest.mark.parametrize("wrap", ["compile", "data-parallel", "later"])
def test_names_of_wrapped_models(wrap):
    model = loud(Model(Attention(), Attention()))
    clipper = Clipper()
    wrapped = torch.compile(model, backend="eager") if wrap != "data-parallel" else torch.nn.DataParallel(model)
    prefix = {"compile": "_orig_mod.", "data-parallel": "module.", "later": ""}[wrap]
    clipper.observe(0, "any", f"{prefix}layers.1", [4.0] * 4)
    before = weights(model)
    assert clipper.clip(wrapped, 1.0, 0.5) == {"any": [0.25] * 4}
    torch.testing.assert_close(model.layers[1].q_proj.weight, 0.5 * before["layers.1.q_proj.weight"])


def test_a_module_for_the_product_alone_belongs_to_the_one_it_is_in():
    class Core(torch.nn.Module):
        def forward(self, *qkv):
            return F.scaled_dot_product_attention(*qkv)

    class Outer(Odd):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.value = (torch.nn.Linear(16, 16) for _ in range(3))
            self.core = Core()

        def forward(self, x):
            out = self.core(*(p(x).unflatten(-1, (4, 4)).transpose(1, 2) for p in (self.query, self.key, self.value)))
            return out.transpose(1, 2).flatten(-2)

    model = loud(Model(Outer()))
    x = torch.randn(2, 12, 16)
    with rootdk.watch(model) as w:
        model(x)
        before = peaks(w)["layers.0.core"]
        factors = w.qk_clip(tau=0.25 * before.min())["layers.0.core"]
        model(x)
    np.testing.assert_allclose(peaks(w)["layers.0.core"], before * factors, rtol=1e-4)


def changed_linear(kind):
    layer = torch.nn.Linear(16, 16)
    if kind == "parametrized":
        return torch.nn.utils.parametrizations.weight_norm(layer)
    if kind == "old weight_norm":
        return torch.nn.utils.weight_norm(layer)
    if kind == "a shard":
        layer.weight = torch.nn.Parameter(layer.weight.detach().flatten()[:100])
    if kind == "int8":
        layer.weight = torch.nn.Parameter(layer.weight.detach().char(), requires_grad=False)
    if kind == "adapter":
        return torch.nn.Sequential(layer)
    return layer


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["parametrized", "old weight_norm", "a shard", "int8", "adapter"])
def test_weights_that_are_not_there_to_be_scaled_are_refused(kind):
    model = Model(Attention(), Attention())
    model.layers[1].q_proj = changed_linear(kind)
    before = weights(model)
    clipper = Clipper()
    for label in ("layers.0", "layers.1"):
        clipper.observe(0, label, label, [9.0] * 4)
    with pytest.raises(ValueError, match=r"layers\.1 \(Attention\): q_proj"):
        clipper.clip(model, 1.0, 0.5)
    assert unchanged(model, before)


@pytest.mark.parametrize("name, value", [("logit_scale", torch.nn.Parameter(torch.ones(4, 1, 1))), ("clip_qkv", 8.0)])
def test_what_stands_between_weights_and_scores_is_refused(name, value):
    layer = Attention()
    setattr(layer, name, value)
    with pytest.raises(ValueError, match=name):
        find(layer, "layer", 4, 0.5)


# Whether it helped ----------------------------------------------------------------------------------------------------
def test_a_clip_that_did_not_reach_the_scores_is_reported_once():
    model = loud(Model(Attention(), Attention()))
    x = torch.randn(2, 12, 16)
    wrong = rootdk.Projections(w_q=model.layers[0].v_proj.weight.detach().unflatten(0, (4, 4)))
    with rootdk.watch(model) as w:
        model(x)
        w.qk_clip(tau=0.25 * peaks(w)["layers.0"].max(), projections={"layers.0": wrong})
        with pytest.warns(RuntimeWarning, match=r"layers\.0, head \d: the largest raw score was to go from") as told:
            model(x)
        assert len([t for t in told if "qk_clip" in str(t.message)]) == 1
        w.qk_clip(tau=0.25 * peaks(w)["layers.0"].max(), projections={"layers.0": wrong})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model(x)


@pytest.mark.parametrize("part", [0.6, 0.25, 0.01])
def test_an_honest_clip_on_other_batches_is_not_reported(part):
    torch.manual_seed(5)
    model = loud(Model(Attention(), Attention(q_norm=OnePlus(4), k_norm=OnePlus(4)), Attention(heads_kv=2)))
    with rootdk.watch(model) as w, warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(20):
            model(torch.randn(4, 24, 16))
            most = min(p.max() for p in peaks(w).values())
            w.qk_clip(tau=part * most)
            model(torch.randn(4, 24, 16))
            loud(model)
            w._clipper._promises.clear()  # weights were put back by hand


@pytest.mark.parametrize(
    "peak, now, said",
    [
        (4.0, [1.9, 0.5], False),
        (4.0, [2.1, 0.5], True),  # half-way back: 4·√¼ = 2
        (2.0, [1.4, 0.5], False),
        (2.0, [1.6, 0.5], True),  # 1.5 times what was promised
        (1.4, [9.0, 0.5], False),  # too little was promised to tell
        (4.0, [1.0, 3.9], False),
        (4.0, [math.nan, math.inf], False),
    ],
)
def test_where_the_line_is(peak, now, said):
    clipper = Clipper()
    clipper.observe(0, "layers.0", "layers.0", [peak, 0.5])
    model = Model(Attention(heads=2, heads_kv=2))
    assert clipper.clip(model, 1.0, 0.5) == {"layers.0": [1 / peak, 1.0]}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        clipper.observe(1, "layers.0", "layers.0", now)
        clipper.observe(2, "layers.0", "layers.0", [9.0, 9.0])  # only the next look is held to it
    assert bool(told) == said


def test_wrong_arguments():
    model = Model(Attention())
    for arguments, why in (
        ((0.0, 0.5), "tau"),
        ((math.nan, 0.5), "tau"),
        ((math.inf, 0.5), "tau"),
        ((1.0, 1.5), "alpha"),
    ):
        with pytest.raises(ValueError, match=why):
            Clipper().clip(model, *arguments)
    with pytest.raises(TypeError, match="group"):
        Clipper().clip(model, 1.0, 0.5, group=3)
    with pytest.raises(TypeError, match="Projections is wanted"):
        Clipper().clip(model, 1.0, 0.5, projections={"layers.0": model.layers[0]})
    assert Clipper().clip(model, 1.0, 0.5) == {}
