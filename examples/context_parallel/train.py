"""A small transformer whose sequence lies on all ranks, trained to repeat what it saw: the loss is that of one rank.

    torchrun --standalone --nproc-per-node 4 examples/context_parallel/train.py
    python examples/context_parallel/train.py            # the same on one

Two things differ from training on one: each rank takes its tokens from the whole sequence by a Layout, with the
positions and labels that they have there; and gradients of weights are summed over ranks, since each has its own
tokens'.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any, Optional

import rootdk.distributed as rd
import torch
import torch.distributed as dist
from torch import Tensor, nn

VOCABULARY, WIDTH, HEADS, KEY_HEADS = 32, 64, 4, 2


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary embedding of [batch, heads, length, dim]."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * 100.0 ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        dim = WIDTH // HEADS
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.q, self.k, self.v = (nn.Linear(WIDTH, dim * n, bias=False) for n in (HEADS, KEY_HEADS, KEY_HEADS))
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor, positions: Tensor, **how: Any) -> Tensor:
        y = self.norms[0](x)
        q, k, v = (f(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for f in (self.q, self.k, self.v))
        o = rd.attention(rotated(q, positions), rotated(k, positions), v, causal=True, **how)
        x = x + self.out(o.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class Model(nn.Module):
    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor, positions: Tensor, **how: Any) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, positions, **how)
        return self.head(self.norm(x))


def batch_of(step: int, length: int) -> Tensor:
    """Six random tokens, again and again: whoever looks back far enough knows what comes."""
    pattern = torch.randint(VOCABULARY, (16, 6), generator=torch.Generator().manual_seed(step))
    return pattern.repeat(1, length // 6 + 1)[:, : length + 1]


def train(steps: int, length: int, layout: str, way: Optional[str]) -> list[float]:
    torch.manual_seed(0)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    held = rd.Layout.zigzag(length, ranks) if layout == "zigzag" else rd.Layout.even(length, ranks)
    positions = torch.from_numpy(held.positions(rank))
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        tokens = batch_of(step, length)
        logits = model(tokens[:, positions], positions, layout=held, way=way)
        labels = tokens[:, positions + 1]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        loss = loss / (len(tokens) * length)  # of all ranks' tokens
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        total = loss.detach()
        dist.all_reduce(total)
        losses.append(float(total))
    return losses


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=80)
    options.add_argument("--length", type=int, default=65, help="of a sequence: nothing has to divide it")
    options.add_argument("--layout", default="zigzag", choices=["zigzag", "contiguous"])
    options.add_argument("--way", default=None, choices=["ring", "all_gather", "heads"])
    options.add_argument("--json", action="store_true", help="print all losses in a line of JSON")
    given = options.parse_args()
    torch.set_num_threads(1)
    if "RANK" not in os.environ:
        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    dist.init_process_group("gloo")
    losses = train(given.steps, given.length, given.layout, given.way)
    if dist.get_rank() == 0:
        if given.json:
            print(json.dumps(losses))
        else:
            print(f"{dist.get_world_size()} ranks: loss {losses[0]:.4f} at first, {losses[-1]:.4f} in the end")
    dist.barrier()  # nobody closes connections while another rank is in a collective
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
