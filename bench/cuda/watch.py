#!/usr/bin/env python3
"""What rootdk.watch costs on a GPU, and a single call: steps of decoders in bf16, unwatched and watched in turn.

usage: ./run gpu-python bench/cuda/watch.py [ROUNDS]

A round runs every way for STEPS steps, in an order that rotates, and waits for the device at its end, so what the watch
still has to read is in its time. Ratios are within rounds.
"""

import statistics
import sys
import time

import rootdk
import torch

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
STEPS = 5
# layers, width, heads, batch, length
SIZES = {"small": (12, 1024, 16, 4, 2048), "layers of a 7 B model": (4, 4096, 32, 2, 4096)}
F = torch.nn.functional


class Layer(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.project, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.inner = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
        )

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.project(self.norm(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.inner(self.norm2(x))


def forward(model, x):
    with torch.no_grad():
        model(x)


def train(model, x):
    model(x).float().square().mean().backward()
    model.zero_grad(set_to_none=True)


def seconds(model, x, step, options):
    torch.cuda.synchronize()
    start = time.perf_counter()
    if options is None:
        for _ in range(STEPS):
            step(model, x)
    else:
        with rootdk.watch(model, **options):
            for _ in range(STEPS):
                step(model, x)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / STEPS


def compare(name, layers, width, heads, batch, length):
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = torch.nn.Sequential(*(Layer(width, heads) for _ in range(layers))).bfloat16()
    x = torch.randn(batch, length, width, device="cuda", dtype=torch.bfloat16)
    print(f"{name}: {layers} layers, {heads} heads of {width // heads}, {batch} × {length} tokens")
    ways = {
        "unwatched": None,
        "watched": {},
        "watched, all rows": {"rows": length},
        "watched, one step in 5": {"every": 5},
        "watched, beside the model's kernel": {"beside": True},
    }
    for title, step in (("forward", forward), ("forward and backward", train)):
        found = {name: [] for name in ways}
        for round_ in range(ROUNDS + 1):  # the first is for the caches
            names = list(ways)
            for name in names[round_ % len(names) :] + names[: round_ % len(names)]:
                took = seconds(model, x, step, ways[name])
                if round_:
                    found[name].append(took)
        print(title)
        for name, times in found.items():
            ratios = [a / b for a, b in zip(times, found["unwatched"])]
            spread = f"{statistics.median(ratios):.3f} × ({min(ratios):.3f} – {max(ratios):.3f})"
            print(f"  {name:36} {1000 * statistics.median(times):8.2f} ms  {spread}", flush=True)


def main():
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bf16; "
        f"medians of {ROUNDS} rounds of {STEPS} steps, and the range"
    )
    for name, size in SIZES.items():
        compare(name, *size)
    q, k, v = (torch.randn(1, 8, 64, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    calls = {
        "PyTorch's": lambda: F.scaled_dot_product_attention(q, k, v),
        "rootdk.attention": lambda: rootdk.attention(q, k, v),
        "with basic statistics": lambda: rootdk.attention(q, k, v, stats="basic"),
        "the operator": lambda: torch.ops.rootdk.attention(q, k, v),
    }
    print("the host's part of a small call")
    for name, call in calls.items():
        for _ in range(20):
            call()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(300):
            call()
        print(f"  {name:36} {(time.perf_counter() - start) / 300 * 1e6:8.1f} µs")
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
