"""A small BERT that has learned something: random weights look alike in every head, trained ones do not."""

from __future__ import annotations

import functools
import pathlib
import tempfile

import torch
import transformers

WORDS, HIDDEN = 24, 24  # the words of a row, and the token that stands for one that is hidden
_folder = tempfile.TemporaryDirectory(prefix="rootdk-trained-")


def rows(count: int, seed: int) -> torch.Tensor:
    """Eight random words, each twice: whatever is hidden stands beside its place, most often."""
    return torch.randint(0, WORDS, (count, 8), generator=torch.Generator().manual_seed(seed)).repeat_interleave(2, 1)


@functools.cache
def bert() -> pathlib.Path:
    """Its folder, as save_pretrained leaves it; trained once, in seconds."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small that threads only wait for each other
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=WORDS + 1,
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        initializer_range=0.1,
        attention_probs_dropout_prob=0.0,
    )
    model = transformers.BertForMaskedLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(200):
        words = rows(32, step)
        hidden = torch.rand(words.shape, generator=torch.Generator().manual_seed(step)) < 0.15
        out = model(input_ids=torch.where(hidden, HIDDEN, words), labels=torch.where(hidden, words, -100))
        optimizer.zero_grad()
        out.loss.backward()
        optimizer.step()
    assert out.loss < 2.5, float(out.loss)  # ln 24 = 3.2 where nothing is learned
    torch.set_num_threads(threads)
    model.bert.save_pretrained(_folder.name)
    return pathlib.Path(_folder.name)
