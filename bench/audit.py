#!/usr/bin/env python3
"""How long `rootdk audit` takes on a checkpoint of 1 GB, beside what it cannot do without: reading the file through
once, from the page cache, and the products G_q = W_q·W_qᵀ and G_k at the rate at which BLAS does them. ./run
bench-audit

audit.py COMMAND FOLDER: makes the checkpoint in FOLDER once (random bf16 in the shape of a LLaMA of 24 layers, 16 heads
of 64, width 1024), then times all three in turn, round after round, and prints medians. BLAS is numpy's, on one thread,
as if it scaled perfectly to all cores; numpy calls syrk for W @ W.T, which computes half of it.
"""

import json
import os
import pathlib
import statistics
import struct
import subprocess
import sys
import time

os.environ["OPENBLAS_NUM_THREADS"] = "1"
import numpy as np  # after the line above, which it reads

LAYERS, HEADS, DIM, WIDTH, HIDDEN, VOCABULARY = 24, 16, 64, 1024, 4096, 46_000
ROUNDS = 15
ALLOWED = 1.5


def shapes():
    yield "model.embed_tokens.weight", (VOCABULARY, WIDTH)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name in ("q", "k", "v", "o"):
            yield f"{at}self_attn.{name}_proj.weight", (WIDTH, WIDTH)
        for name, shape in (("gate", (HIDDEN, WIDTH)), ("up", (HIDDEN, WIDTH)), ("down", (WIDTH, HIDDEN))):
            yield f"{at}mlp.{name}_proj.weight", shape
        yield f"{at}input_layernorm.weight", (WIDTH,)
    yield "lm_head.weight", (VOCABULARY, WIDTH)


def make(folder):
    path = folder / "model.safetensors"
    if path.exists() and path.stat().st_size > 0.9e9:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    header, at = {}, 0
    for name, shape in shapes():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    random = np.random.default_rng(1)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, shape in shapes():
            gain = len(shape) == 1
            values = (
                np.ones(shape, np.float32)
                if gain
                else random.standard_normal(shape, dtype=np.float32) / np.float32(np.sqrt(WIDTH))
            )
            file.write((values.view(np.uint32) >> 16).astype("<u2").tobytes())
    config = {
        "model_type": "llama",
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "max_position_embeddings": 4096,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return path


def seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def read_through(path, buffer):
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def products(weights):
    for w in weights:
        w @ w.T


def main():
    command, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    path = make(folder)
    cores = len(os.sched_getaffinity(0))
    buffer = bytearray(1 << 20)
    weights = [np.random.default_rng(2).standard_normal((DIM, WIDTH), dtype=np.float32) for _ in range(32)]
    each = 2 * LAYERS * HEADS / len(weights) / cores
    audit = [command, "audit", str(folder)]
    found = json.loads(subprocess.run(audit + ["--json"], stdout=subprocess.PIPE, check=True).stdout)
    assert len(found["layers"]) == LAYERS and len(found["layers"][0]["heads"]) == HEADS
    ratio = statistics.median(head["ratio"] for layer in found["layers"] for head in layer["heads"])
    assert abs(ratio - 1) < 0.05, ratio  # LeCun's weights, so √d_k is right

    rows = []
    for _ in range(ROUNDS):
        read = seconds(lambda: read_through(path, buffer))
        blas = seconds(lambda: products(weights)) * each
        rows.append((read, blas, seconds(lambda: subprocess.run(audit, stdout=subprocess.DEVNULL, check=True))))
    read, blas, took = (statistics.median(column) for column in zip(*rows))
    ratios = sorted(took / (read + blas) for read, blas, took in rows)
    print(f"{path.stat().st_size / 1e9:.2f} GB, {LAYERS * HEADS} heads, {cores} cores; medians of {ROUNDS} rounds")
    print(f"  reading it through once     {1000 * read:7.1f} ms  {path.stat().st_size / read / 1e9:.1f} GB/s")
    products = 2 * LAYERS * HEADS * DIM * DIM * WIDTH
    print(
        f"  the products by BLAS        {1000 * blas:7.1f} ms  {products / blas / 1e9:.0f} G multiply-adds/s, "
        "whole products"
    )
    print(f"  both                        {1000 * (read + blas):7.1f} ms")
    middle = statistics.median(ratios)
    aim = f"{ALLOWED} is the aim: {'met' if middle <= ALLOWED else 'MISSED'}"
    print(
        f"  rootdk audit, all of it     {1000 * took:7.1f} ms  {middle:.2f} × both "
        f"({ratios[0]:.2f} – {ratios[-1]:.2f}); {aim}"
    )


if __name__ == "__main__":
    main()
