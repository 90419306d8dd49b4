"""Tiny, randomly initialised models of every architecture that transformers can make from a small config.

The list comes from transformers' own mapping of configs, so new architectures come by themselves. A config's sizes are
overridden by the names of its attributes; SPECIAL has what names do not say, and LEFT_OUT what cannot be small or has
no attention, with the reason.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import warnings
from typing import Any, Callable, Optional

import torch
import transformers
from transformers.models.auto import modeling_auto as auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCABULARY, WIDTH, HEADS, LENGTH, BATCH = 64, 32, 4, 17, 2
LARGEST = 4_000_000  #: parameters: more is not small, and takes longer than a second

#: Attributes that are whole numbers, by name: the first pattern that fits the whole name counts.
SIZES: list[tuple[str, int]] = [
    (r"type_vocab_size", 2),
    (r"num_feat_extract_layers|max_window_layers", 0),  # 0: left as it is
    (r"(\w+_)?vocab_size(_\w+)?|num_embeddings|codebook_size", VOCABULARY),
    (
        r"(\w+_)?(hidden_size|hidden_dim|d_model|embed_dim|embedding_size|n_embd|emb_dim"
        r"|embedding_dim|projection_dim|projection_size|d_embed)",
        WIDTH,
    ),
    (
        r"dim|width|attention_hidden_size|word_embed_proj_dim|output_channels|out_hidden_size"
        r"|project_dim|proj_codevector_dim|lru_width",
        WIDTH,
    ),
    (r"(\w+_)?num_(key_value|kv)_heads|multi_query_group_num|num_kv", 2),
    (r"(\w+_)?(num_attention_heads|n_heads?|num_heads|attention_heads)", HEADS),
    (
        r"(\w+_)?(head_dim|d_kv|kv_channels|dim_head|d_head|attention_head_size|mlp_head_size)|rotary_dim",
        WIDTH // HEADS,
    ),
    (
        r"(\w+_)?(intermediate_size|ffn_dim|d_ff|n_inner|mlp_dim|ffn_hidden_size|intermediate_dim"
        r"|dim_feedforward|d_inner|hidden_mlp_dim)|dim_ff",
        2 * WIDTH,
    ),
    (r"(\w+_)?(num_hidden_layers|n_layers?|num_layers|layers|depth|num_blocks|num_hidden_groups)", 2),
    (r"(\w+_)?(num_experts|num_local_experts|n_routed_experts|num_routed_experts|moe_num_experts)", 4),
    (r"(\w+_)?(num_experts_per_tok(en)?|moe_topk|moe_top_k|moe_k|num_selected_experts|top_k_experts)", 2),
    (r"n_group|topk_group|first_k_dense_replace|num_expert_groups?|num_expert_group", 1),
    (r"(q|kv|o)_lora_rank|index_topk|(\w+_)?lora_rank", 8),
    (r"sliding_window|local_attention|attention_window_size|attention_chunk_size", 5),
    (
        r"max_position_embeddings|n_positions|n_ctx|max_seq_len|max_sequence_length|max_target_positions|num_positions",
        128,
    ),
    (r"max_source_positions", 16),
    (r"image_size", 32),
    (r"patch_size", 8),
    (r"num_mel_bins", 16),
    (r"query_pre_attn_scalar", 16),
    (r"num_conv_pos_embeddings", 4),
    (r"num_conv_pos_embedding_groups", 2),
]
#: Of those, attributes that some configs leave open, though their models need a number.
OPEN = (
    "head_dim",
    "vocab_size",
    "num_key_value_heads",
    "n_routed_experts",
    "n_group",
    "topk_group",
    "num_experts_per_tok",
)
#: What names do not say, by architecture (and, inside, by sub-config).
_MAMBA = dict(mamba_n_heads=8, mamba_d_head=8, mamba_d_state=8, mamba_n_groups=1, mamba_chunk_size=8)
_SECTIONS = dict(rope_type="default", rope_theta=10000.0, mrope_section=[2, 1, 1])
SPECIAL: dict[str, dict[str, Any]] = {
    "bamba": dict(_MAMBA, attn_layer_indices=[1]),
    "canine": dict(local_transformer_stride=8),
    "data2vec-vision": dict(num_hidden_layers=4, out_indices=[0, 1, 2, 3]),
    "deepseek_v2": dict(n_group=1, topk_group=1, num_experts_per_tok=2, n_routed_experts=4),
    "dots1": dict(n_shared_experts=1),
    "falcon_h1": dict(_MAMBA, mamba_d_ssm=64),
    "gpt_neo": dict(attention_types=[[["global", "local"], 1]], window_size=5),
    "granitemoehybrid": dict(_MAMBA, layer_types=["mamba", "attention"], num_hidden_layers=2),
    "jamba": dict(attn_layer_offset=1, attn_layer_period=2, expert_layer_offset=0, expert_layer_period=2),
    "layoutlmv3": dict(coordinate_size=6, shape_size=4, visual_embed=False),
    "lfm2_moe": dict(layer_types=["conv", "full_attention"]),
    "lilt": dict(hidden_size=48),
    "longcat_flash": dict(
        head_dim=8, qk_nope_head_dim=8, qk_rope_head_dim=8, qk_head_dim=16, zero_expert_num=2, num_layers=1
    ),
    "mistral4": dict(qk_nope_head_dim=8, qk_rope_head_dim=8, qk_head_dim=16),
    "mobilebert": dict(embedding_size=WIDTH, true_hidden_size=WIDTH, intra_bottleneck_size=WIDTH),
    "moonshine": dict(encoder_num_key_value_heads=HEADS, decoder_num_key_value_heads=HEADS),
    "glm4v_text": dict(rope_parameters=_SECTIONS),
    "glm_ocr_text": dict(rope_parameters=_SECTIONS),
    "qwen2_5_vl_text": dict(rope_parameters=_SECTIONS),
    "qwen2_vl_text": dict(rope_parameters=_SECTIONS),
    "reformer": dict(
        is_decoder=True, attn_layers=["local", "local"], axial_pos_embds=False, local_attn_chunk_length=17
    ),
    "swin": dict(window_size=2, patch_size=4),
    "swinv2": dict(window_size=2, patch_size=4),
    "yolos": dict(image_size=[32, 48]),
    "xmod": dict(languages=["en_XX"], default_language="en_XX"),
}
#: Inputs that forward wants beside, or instead of, what `batch` finds by name.
_VIDEO = lambda config: dict(
    pixel_values=torch.randn(BATCH, config.num_frames, 3, config.image_size, config.image_size)
)
INPUTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "audio-spectrogram-transformer": lambda config: dict(
        input_values=torch.randn(BATCH, config.max_length, config.num_mel_bins)
    ),
    "bros": lambda config: dict(bbox=torch.rand(BATCH, LENGTH, 4)),
    "lasr_encoder": lambda config: dict(input_features=torch.randn(BATCH, 40, config.num_mel_bins)),
    "parakeet_encoder": lambda config: dict(input_features=torch.randn(BATCH, 40, config.num_mel_bins)),
    "speech_to_text": lambda config: dict(input_features=torch.randn(BATCH, 40, config.input_feat_per_channel)),
    "timesformer": _VIDEO,
    "videomae": _VIDEO,
    "vivit": _VIDEO,
    "udop": lambda config: dict(bbox=torch.rand(BATCH, LENGTH, 4)),
    "wav2vec2-bert": lambda config: dict(
        input_features=torch.randn(BATCH, LENGTH, config.feature_projection_input_dim)
    ),
}
#: What has no attention of its own, or cannot be small, and why. What merely fails to build says so itself.
LEFT_OUT: dict[str, str] = {}


class Unbuildable(Exception):
    """Says why there is no tiny model of an architecture."""


@dataclasses.dataclass
class Tiny:
    """A model in eval mode, and a batch for it."""

    name: str
    model: transformers.PreTrainedModel
    inputs: dict[str, Any]

    @property
    def padded(self) -> bool:
        """Whether padding can be said to it."""
        return "input_ids" in self.inputs and "attention_mask" in self.inputs

    @property
    def generates(self) -> bool:
        return bool(self.model.can_generate()) and "input_ids" in self.inputs


def names() -> list[str]:
    """Every architecture of transformers' own that has a config and a model of its own; a class counts once, under the
    name of its own config where several lead to it (gpt2 and not gpt-sw3, llama4_text and not llama4)."""
    found: dict[type[transformers.PreTrainedModel], str] = {}
    for name in CONFIG_MAPPING.keys():
        try:
            kind = model_class(name)
        except Unbuildable:
            continue
        if kind not in found or name == getattr(kind.config_class, "model_type", None):
            found[kind] = name
    return [*found.values()]


def model_class(name: str) -> type[transformers.PreTrainedModel]:
    for mapping in (
        auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,  # with cross-attention
        auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_MAPPING_NAMES,
    ):
        if name in mapping:
            kind = mapping[name]
            kind = kind if isinstance(kind, str) else kind[0]
            try:
                found = getattr(transformers, kind)
            except (AttributeError, ImportError, ModuleNotFoundError) as e:
                raise Unbuildable(f"{kind} cannot be imported: {e}") from e
            if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
                return found
    raise Unbuildable("transformers has no model for this config")


def config(name: str) -> transformers.PretrainedConfig:
    return _small(CONFIG_MAPPING[name], SPECIAL.get(name, {}))


def _small(kind: type[transformers.PretrainedConfig], special: dict[str, Any]) -> transformers.PretrainedConfig:
    given = kind()
    sizes: dict[str, Any] = {}
    for attribute, value in vars(given).items():
        size = None if attribute.endswith("_token_id") or isinstance(value, bool) else _size(attribute)
        if isinstance(value, transformers.PretrainedConfig):
            sizes[attribute] = _small(type(value), special.get(attribute, {}))
        elif size and (isinstance(value, int) and value > 0 or value is None and attribute in OPEN):
            sizes[attribute] = size
        elif attribute in ("conv_dim", "tdnn_dim"):
            sizes[attribute] = type(value)(16 for _ in value)
        elif attribute == "depths" and isinstance(value, (list, tuple)):
            sizes[attribute] = type(value)(1 for _ in value)
        elif (
            attribute == "num_heads"
            and isinstance(value, (list, tuple))
            and isinstance(getattr(given, "embed_dim", None), int)
        ):
            # the width doubles at each stage
            sizes.update(embed_dim=16, num_heads=type(value)(2 * 2**i for i in range(len(value))))
        elif isinstance(value, float) and (
            "dropout" in attribute or "pdrop" in attribute or "layerdrop" in attribute or attribute == "drop_path_rate"
        ):
            sizes[attribute] = 0.0
    if "embed_dim" in sizes and isinstance(sizes.get("num_heads"), (list, tuple)):
        sizes["embed_dim"] = 16
    for token, number in (("pad_token_id", 0), ("bos_token_id", 1), ("eos_token_id", 2), ("decoder_start_token_id", 1)):
        if hasattr(given, token):
            sizes[token] = number
    # as many as there are heads, where a config has them so
    if vars(given).get("num_key_value_heads") == vars(given).get("num_attention_heads"):
        sizes = {key: HEADS if key == "num_key_value_heads" else value for key, value in sizes.items()}
    kinds = vars(given).get("layer_types")
    if kinds and any("attention" not in x or "linear" in x for x in kinds):  # attention comes every fourth layer
        sizes["num_hidden_layers"] = 4
    rope = vars(given).get("rope_parameters")
    if isinstance(rope, dict) and "mrope_section" in rope:
        pairs = int(WIDTH // HEADS * rope.get("partial_rotary_factor", 1.0)) // 2
        sizes["rope_parameters"] = dict(rope, mrope_section=[pairs - 2 * (pairs // 3), pairs // 3, pairs // 3])
    sizes.update(
        {
            key: value
            for key, value in special.items()
            if not isinstance(vars(given).get(key), transformers.PretrainedConfig)
        }
    )
    return kind(**sizes)


def _size(attribute: str) -> Optional[int]:
    return next((size for pattern, size in SIZES if re.fullmatch(pattern, attribute)), None)


def build(name: str, implementation: str = "eager", seed: int = 0) -> Tiny:
    """In eval mode, its projections large enough for heads to have something to do. What an implementation refuses, it
    raises."""
    if name in LEFT_OUT:
        raise Unbuildable(LEFT_OUT[name])
    pictures = _needs_pictures(name)
    model = _model(name, implementation, seed)
    return Tiny(name, model, batch(name, model, pictures, seed))


def _model(name: str, implementation: str, seed: int) -> transformers.PreTrainedModel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = config(name)
        small._attn_implementation = implementation
        torch.manual_seed(seed)
        return loudly(model_class(name)._from_config(small).eval())


def rounding(config: transformers.PretrainedConfig, length: int) -> float:
    """How far logits of two ways to compute attention may be apart, in parts of the largest of them.

    On the way from a token to its logits there are sums: of projections, scores, values, of the feed-forward part and
    of the norms' squares (of which the root takes a half). A sum of n terms with random signs is rounded n times, by a
    unit of partial sums no larger than itself: √n units where roundings have random signs, too. What follows one
    another adds up in squares, and both ways have it, since what they differ by first changes all roundings after it.
    The largest of some thousands of logits' errors is within 4 standard deviations, and the largest logit is no smaller
    than others.
    """
    width, wide = config.hidden_size, config.intermediate_size
    head = getattr(config, "head_dim", None) or width // config.num_attention_heads
    attention = width + head + length + head * config.num_attention_heads
    layer = attention + width + wide + 2 * width // 2
    return float(4 * 2.0**-24 * (2 * (config.num_hidden_layers * layer + width // 2 + width)) ** 0.5)


@functools.cache
def _needs_pictures(name: str) -> bool:
    """Whether a model of text and pictures wants pictures; raises where it runs neither with nor without, or cannot be
    made at all."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with torch.device("meta"):
                size = sum(p.numel() for p in model_class(name)._from_config(config(name)).parameters())
            if size > LARGEST:
                raise Unbuildable(f"{size / 1e6:.0f} million parameters")
            model = _model(name, "eager", 0)
        except Unbuildable:
            raise
        except Exception as e:
            raise Unbuildable(f"cannot be made: {type(e).__name__}: {line(e)}") from e
        reasons = []
        for pictures in (False, True):
            try:
                with torch.no_grad():
                    model(**batch(name, model, pictures))
                return pictures
            except Exception as e:
                reasons.append(f"{type(e).__name__}: {line(e)}")
    raise Unbuildable(f"does not run: {reasons[0]}")


def loudly(model: torch.nn.Module) -> torch.nn.Module:
    """Initialised with σ = 0.02, heads do nothing; at 1/√fan-in, scores are about 1."""
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 2 and p.numel() and p.dtype.is_floating_point:
                deviation = float(p.std())
                if 0 < deviation < p.shape[1] ** -0.5:
                    p.mul_(p.shape[1] ** -0.5 / deviation)
    return model


def batch(name: str, model: transformers.PreTrainedModel, pictures: bool = False, seed: int = 0) -> dict[str, Any]:
    """What the model's forward asks for, by name."""
    torch.manual_seed(seed + 1)
    asked = inspect.signature(model.forward).parameters
    out: dict[str, Any] = {}
    if "input_ids" in asked:
        out["input_ids"] = torch.randint(3, VOCABULARY, (BATCH, LENGTH))
        if "attention_mask" in asked:
            out["attention_mask"] = torch.ones(BATCH, LENGTH, dtype=torch.long)
    if "pixel_values" in asked and (not out or pictures):
        seen = getattr(model.config, "vision_config", model.config)
        side = getattr(seen, "image_size", 32)
        high, wide = (side, side) if isinstance(side, int) else side
        out["pixel_values"] = torch.randn(BATCH, getattr(seen, "num_channels", 3), high, wide)
    elif "input_values" in asked and not out:
        out["input_values"] = torch.randn(BATCH, 6400)
    elif "input_features" in asked and not out:
        bins, length = getattr(model.config, "num_mel_bins", 16), 2 * getattr(model.config, "max_source_positions", 16)
        out["input_features"] = torch.randn(BATCH, bins, length)
    if "decoder_input_ids" in asked:
        out["decoder_input_ids"] = torch.randint(3, VOCABULARY, (BATCH, 9))
    if name in INPUTS:
        out.update(INPUTS[name](model.config))
    if not out:
        raise Unbuildable(f"forward asks for {list(asked)[:3]}")
    return out


def line(e: Exception) -> str:
    return " ".join(str(e).split())[:160]
