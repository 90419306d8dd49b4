"""Small models of five architectures, as transformers makes them, trained on a task of bench/alarms and kept as
save_pretrained leaves them."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import time
from typing import Any, Iterator

import torch
import torch.nn.functional as F
import transformers
from tasks import LENGTH, TASKS

WIDTH, LAYERS, HEADS = 64, 4, 4
STEPS, RATE = 400, 3e-3
HIDDEN_SHARE = 0.15  # of the tokens that a masked language model must guess

_USUAL = dict(
    hidden_size=WIDTH,
    intermediate_size=2 * WIDTH,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    max_position_embeddings=LENGTH,
    pad_token_id=None,
    bos_token_id=None,
    eos_token_id=None,
)
_GROUPED = dict(_USUAL, num_key_value_heads=HEADS // 2, head_dim=WIDTH // HEADS)
_GPT2 = dict(
    n_embd=WIDTH,
    n_inner=2 * WIDTH,
    n_layer=LAYERS,
    n_head=HEADS,
    n_positions=LENGTH,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
    bos_token_id=None,
    eos_token_id=None,
)

#: name: (transformers' model, its configuration, what differs from the defaults: initialisation is theirs)
ARCHITECTURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "LLaMA": ("LlamaForCausalLM", "LlamaConfig", _GROUPED),
    "Qwen3": ("Qwen3ForCausalLM", "Qwen3Config", _GROUPED),
    "GPT-NeoX": ("GPTNeoXForCausalLM", "GPTNeoXConfig", _USUAL),
    "GPT-2": ("GPT2LMHeadModel", "GPT2Config", _GPT2),
    "BERT": ("BertForMaskedLM", "BertConfig", dict(_USUAL, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)),
}


@dataclasses.dataclass(frozen=True)
class Run:
    architecture: str
    task: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.architecture}-{self.task}-{self.seed}"

    @property
    def is_masked(self) -> bool:
        return self.architecture == "BERT"

    @property
    def vocabulary(self) -> int:
        """BERT has one token more, which stands for those that are hidden."""
        return TASKS[self.task].vocabulary + self.is_masked


def batches(run: Run, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Tokens, and what the model should say at each (-100: nothing), without end."""
    task = TASKS[run.task](seed)
    random = torch.Generator().manual_seed(seed)
    while True:
        tokens, labels = task.batch()
        if run.is_masked:
            hidden = torch.rand(tokens.shape, generator=random) < HIDDEN_SHARE
            tokens, labels = torch.where(hidden, task.vocabulary, tokens), torch.where(hidden, tokens, -100)
        yield tokens, labels


def train(run: Run, folder: pathlib.Path) -> tuple[transformers.PreTrainedModel, pathlib.Path, dict[str, Any]]:
    """The model as it is read back, its folder, and how training went; trained, unless it is there already."""
    kind, config_kind, settings = ARCHITECTURES[run.architecture]
    settings = dict(settings, vocab_size=run.vocabulary)
    made_by = {"model": kind, "settings": settings, "steps": STEPS, "rate": RATE, "seed": run.seed}
    place = folder / run.name
    record = place / "training.json"
    if not record.exists() or json.loads(record.read_text())["made by"] != made_by:
        torch.manual_seed(run.seed)
        model = getattr(transformers, kind)(getattr(transformers, config_kind)(**settings))
        losses, seconds = fit(model, run)
        model.save_pretrained(place)
        first, last = losses[0], sum(losses[-20:]) / 20
        record.write_text(json.dumps({"made by": made_by, "loss": [first, last], "seconds": round(seconds, 1)}))
    return getattr(transformers, kind).from_pretrained(place).eval(), place, json.loads(record.read_text())


def fit(model: transformers.PreTrainedModel, run: Run) -> tuple[list[float], float]:
    """The loss of every step, and how long it took."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    losses, started = [], time.process_time()
    for _, (tokens, labels) in zip(range(STEPS), batches(run, run.seed)):
        loss = F.cross_entropy(model(input_ids=tokens).logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, time.process_time() - started
