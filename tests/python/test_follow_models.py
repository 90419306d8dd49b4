"""Attention as transformers' eager models write it out: followed to the weights that the model itself returns."""

from __future__ import annotations

import pytest
import torch

transformers = pytest.importorskip("transformers")
from rootdk._watch.follow import Follow  # noqa: E402
from test_follow import Notes  # noqa: E402

SIZES = dict(
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=48,
    max_position_embeddings=64,
)
GPT = dict(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=64)
FALCON = {name: value for name, value in SIZES.items() if name != "intermediate_size"}
DEBERTA = dict(SIZES, relative_attention=True, pos_att_type=["c2p", "p2c"], type_vocab_size=0)
XL = dict(vocab_size=64, d_model=32, n_head=4, d_inner=48)
FUNNEL = dict(XL, d_head=8, block_sizes=[1, 1], num_decoder_layers=1)
WHISPER = dict(
    vocab_size=64,
    d_model=32,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=48,
    decoder_ffn_dim=48,
    max_target_positions=32,
    max_source_positions=8,
    num_mel_bins=8,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=1,
)
C = 8**-0.5
# name → (class, config, scale, prescale, cap)
MODELS = {
    "gpt-oss": (
        "GptOss",
        dict(SIZES, num_key_value_heads=2, head_dim=8, num_local_experts=4, num_experts_per_tok=2),
        C,
        1,
        None,
    ),
    "DeBERTa": ("Deberta", DEBERTA, 24**-0.5, 24**-0.5, None),
    "DeBERTa v2": ("DebertaV2", dict(DEBERTA, position_buckets=8), 24**-0.5, 24**-0.5, None),
    "Falcon, ALiBi": ("Falcon", dict(FALCON, alibi=True), C, 1, None),
    "Falcon, rotary": ("Falcon", dict(FALCON, alibi=False), C, 1, None),
    "Falcon, grouped": ("Falcon", dict(FALCON, new_decoder_architecture=True, num_kv_heads=2), C, 1, None),
    "BLOOM": ("Bloom", dict(vocab_size=64, hidden_size=32, n_layer=2, n_head=4), C, 1, None),
    "MPT": ("Mpt", dict(vocab_size=64, d_model=32, n_layers=2, n_heads=4, max_seq_len=64), C, 1, None),
    "Gemma 2": (
        "Gemma2",
        dict(SIZES, num_key_value_heads=2, head_dim=8, query_pre_attn_scalar=16, attn_logit_softcapping=20.0),
        0.25,
        1,
        20.0,
    ),
    "OPT": (
        "OPT",
        dict(
            vocab_size=64,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            ffn_dim=48,
            max_position_embeddings=64,
            word_embed_proj_dim=32,
        ),
        C,
        C,
        None,
    ),
    "Whisper": ("Whisper", WHISPER, C, C, None),
    "T5": ("T5", dict(vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4), 1, 1, None),
    "GPT-J": ("GPTJ", dict(GPT, rotary_dim=4), C, 1, None),
    "GPT-NeoX": ("GPTNeoX", SIZES, C, 1, None),
    "CodeGen": ("CodeGen", dict(GPT, n_ctx=64, rotary_dim=4), C, 1, None),
    "XLNet": ("XLNet", dict(XL, n_layer=2), C, 1, None),
    "Funnel": ("Funnel", FUNNEL, C, C, None),
    "Funnel, factorized": ("Funnel", dict(FUNNEL, attention_type="factorized"), C, C, None),
    "ESM": ("Esm", dict(SIZES, position_embedding_type="rotary", pad_token_id=1, mask_token_id=2), C, C, None),
    "XGLM": (
        "XGLM",
        dict(vocab_size=64, d_model=32, ffn_dim=48, num_layers=2, attention_heads=4, max_position_embeddings=64),
        C,
        C,
        None,
    ),
    "DeepSeek v3": (
        "DeepseekV3",
        dict(
            SIZES,
            num_key_value_heads=4,
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=1,
            topk_group=1,
            q_lora_rank=8,
            kv_lora_rank=8,
            qk_rope_head_dim=4,
            qk_nope_head_dim=8,
            v_head_dim=8,
            moe_intermediate_size=16,
            first_k_dense_replace=1,
        ),
        12**-0.5,
        1,
        None,
    ),
}


def made(name, options):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**options)
    config._attn_implementation = "eager"
    return getattr(transformers, f"{name}Model")(config).eval()


def inputs_of(name):
    ids = torch.randint(3, 60, (2, 8))
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    if name == "Whisper":
        return dict(input_features=torch.randn(2, 8, 16), decoder_input_ids=ids)
    more = dict(decoder_input_ids=ids[:, :5]) if name == "T5" else {}
    return dict(input_ids=ids, attention_mask=mask, **more)


def weights_of(output):
    """In the order in which they were computed."""
    if "encoder_attentions" in output:
        both = zip(output.decoder_attentions, output.cross_attentions)
        return [*output.encoder_attentions, *(x for pair in both for x in pair)]
    return [*output.attentions]


@pytest.mark.parametrize("which", MODELS)
def test_transformers_eager_models(which):
    name, options, scale, prescale, cap = MODELS[which]
    model, given = made(name, options), inputs_of(name)
    looker = Notes((torch.empty(2, 8, 32),))
    with torch.no_grad():
        expected = model(**given, output_attentions=True)
        with Follow(looker):
            found = model(**given, output_attentions=True)
    assert torch.equal(expected[0], found[0])
    weights = weights_of(found)
    assert not looker.unseen and not looker.fused and len(looker.written) == len(weights) > 0
    for it, p in zip(looker.written, weights):
        s = it.scores if it.sink is None else torch.cat([it.scores, it.sink], -1)
        shown = p.sum(-1) > 0.5  # rows of padding may see nothing
        torch.testing.assert_close(s.softmax(-1)[..., : p.shape[-1]][shown], p[shown])
        assert it.factor * it.prescale == pytest.approx(scale, rel=1e-6) and it.prescale == pytest.approx(
            prescale, rel=1e-6
        )
        assert it.cap == (None if cap is None else pytest.approx(cap)) and (it.sink is None) == (which != "gpt-oss")


@pytest.mark.parametrize(
    "which", ["gpt-oss", "Falcon, rotary", "Falcon, grouped", "Gemma 2", "OPT", "GPT-NeoX", "ESM", "DeepSeek v3"]
)
def test_their_raw_scores_are_the_scores_where_no_mask_is(which):
    name, options, _, _, cap = MODELS[which]
    looker = Notes()
    with torch.no_grad(), Follow(looker):
        made(name, options)(**inputs_of(name))
    for it in looker.written:
        raw = it.factor * (it.q @ it.k)
        raw = raw if cap is None else cap * torch.tanh(raw / cap)
        shown = it.scores > -1e30
        assert shown.any()
        torch.testing.assert_close(it.scores[shown], raw[shown])


def test_what_longformer_does_is_named():
    looker = Notes()
    with torch.no_grad(), Follow(looker):
        made("Longformer", dict(SIZES, attention_window=4))(torch.randint(3, 60, (2, 8)))
    assert not looker.written and {what for what, _ in looker.unseen} == {"softmax over [2, 8, 4, 5]"}
    assert len(looker.unseen) == 2


def test_the_windows_of_hiera_are_not_its_heads():
    """Its masked units lie between batch and heads of some layers."""
    import models
    import rootdk

    tiny = models.build("hiera")
    with torch.no_grad(), rootdk.watch(tiny.model) as w:
        tiny.model(**tiny.inputs)
    found = {layer: w.stats(layer).heads for layer in w.layers}
    assert found == {layer: tiny.model.get_submodule(layer).num_heads for layer in w.layers}
    assert len(set(found.values())) > 2
