"""Two architectures of two layers and width 64: a decoder written here, and transformers' Llama (Qwen3 where QK-norm is
wanted). Queries and keys begin with unit variance in both, the assumption under which 1/√d_k is right."""

from __future__ import annotations

from typing import Iterator

import torch
import torch.nn.functional as F
from tasks import LENGTH

WIDTH, LAYERS, HEADS = 64, 2, 2


class Attention(torch.nn.Module):
    def __init__(self, dim: int, qk_norm: bool):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (torch.nn.Linear(WIDTH, HEADS * dim, bias=False) for _ in range(3))
        self.o_proj = torch.nn.Linear(HEADS * dim, WIDTH, bias=False)
        self.q_norm, self.k_norm = (torch.nn.RMSNorm(dim) if qk_norm else None for _ in range(2))
        self.scaling, self.causal = dim**-0.5, True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (p(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, scale=self.scaling)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class Block(torch.nn.Module):
    def __init__(self, dim: int, qk_norm: bool):
        super().__init__()
        self.norm_1, self.norm_2 = torch.nn.RMSNorm(WIDTH), torch.nn.RMSNorm(WIDTH)
        self.self_attn = Attention(dim, qk_norm)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.GELU(), torch.nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class Decoder(torch.nn.Module):
    """Learned positions, pre-norm; returns logits."""

    def __init__(self, vocabulary: int, dim: int, qk_norm: bool):
        super().__init__()
        self.tokens, self.positions = (
            torch.nn.Embedding(vocabulary, WIDTH),
            torch.nn.Parameter(torch.randn(LENGTH, WIDTH)),
        )
        self.layers = torch.nn.ModuleList(Block(dim, qk_norm) for _ in range(LAYERS))
        self.norm, self.head = torch.nn.RMSNorm(WIDTH), torch.nn.Linear(WIDTH, vocabulary, bias=False)
        for layer in self.layers:
            for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
                torch.nn.init.normal_(projection.weight, std=WIDTH**-0.5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def llama(vocabulary: int, dim: int, qk_norm: bool) -> torch.nn.Module:
    import transformers

    kind = "Qwen3" if qk_norm else "Llama"
    config = getattr(transformers, kind + "Config")(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=dim,
        max_position_embeddings=LENGTH,
        initializer_range=WIDTH**-0.5,
        use_cache=False,
        attn_implementation="sdpa",
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    return getattr(transformers, kind + "ForCausalLM")(config)


def build(architecture: str, vocabulary: int, dim: int, qk_norm: bool) -> torch.nn.Module:
    return Decoder(vocabulary, dim, qk_norm) if architecture == "own" else llama(vocabulary, dim, qk_norm)


def attentions(model: torch.nn.Module) -> list[torch.nn.Module]:
    layers = model.layers if isinstance(model, Decoder) else model.model.layers
    return [layer.self_attn for layer in layers]


def projections(model: torch.nn.Module, layers: Iterator[int] | None = None) -> list[torch.nn.Parameter]:
    """W_q and W_k of those layers, or of all; under QK-norm the gains, since weights do not reach the scores."""
    chosen = attentions(model) if layers is None else [attentions(model)[i] for i in layers]
    out = []
    for a in chosen:
        normed = getattr(a, "q_norm", None) is not None
        out += [a.q_norm.weight, a.k_norm.weight] if normed else [a.q_proj.weight, a.k_proj.weight]
    return out


def loss_of(model: torch.nn.Module, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    out = model(tokens)
    logits = out if isinstance(out, torch.Tensor) else out.logits
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=-100)
