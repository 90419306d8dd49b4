#!/usr/bin/env python3
"""Trains a small model, audits it, and compares every head with numpy in double, and with what training recorded.

trained_test.py COMMAND: the model is what `rootdk train` makes of recall in seconds (a LLaMA of 2 layers). Exits
with 77, saying why, where numpy is not installed; ./run test installs it.
"""

import json
import math
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy as np
except ImportError:
    print("skipped: numpy is not installed")
    sys.exit(77)


def trained(command, folder):
    options = {"rules": "sqrt_dk", "dk": 16, "lr": 0.01, "seeds": 1, "steps": 150, "threads": 1, "out": folder}
    given = [f"--{name}={value}" for name, value in options.items()]
    subprocess.run([command, "train", *given], stdout=subprocess.DEVNULL, check=True)
    (path,) = pathlib.Path(folder).glob("*.safetensors")
    return path


def read(path):
    """A reader of safetensors of its own: the format is a length, a JSON header and the numbers."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    settings = header.pop("__metadata__")
    tensors = {}
    for name, info in header.items():
        begin, end = (8 + length + offset for offset in info["data_offsets"])
        tensors[name] = np.frombuffer(data[begin:end], dtype="<f4").reshape(info["shape"]).astype(np.float64)
    return tensors, settings


def projections(tensors, layer, head, dim):
    """W_q and W_k of a head, the norm's gain folded in."""
    at = f"model.layers.{layer}."
    gain = tensors[at + "input_layernorm.weight"]
    rows = slice(head * dim, (head + 1) * dim)
    return [tensors[f"{at}self_attn.{name}_proj.weight"][rows] * gain for name in ("q", "k")]


def turned(x, position, base):
    """Rows of x at this position; components i and i + half make a pair."""
    half = x.shape[1] // 2
    angle = position * base ** (-np.arange(half) / half)
    a, b = x[:, :half], x[:, half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], 1)


def isotropic(w_q, w_k):
    """Variance of q·k for isotropic inputs: all phases equally likely, so that of each pair its two components' sum
    counts."""
    g_q, g_k = w_q @ w_q.T, w_k @ w_k.T
    half = len(g_q) // 2
    pairs_q, pairs_k = (np.diag(g)[:half] + np.diag(g)[half:] for g in (g_q, g_k))
    width = w_q.shape[1]
    bound = width * np.linalg.norm(w_q, 2) * np.linalg.norm(w_k, 2)
    return (pairs_q * pairs_k).sum() / 2, bound, np.linalg.norm(w_q.T @ w_k, 2)


def on_embeddings(tensors, w_q, w_k, base, context):
    """Within-row variance of q·k by going through all of it: every token as a query, every token at every distance as a
    key."""
    x = tensors["model.embed_tokens.weight"]
    z = x / np.sqrt((x**2).mean(1, keepdims=True))
    q, k = z @ w_q.T, z @ w_k.T
    scores = np.concatenate([q @ turned(k, -distance, base).T for distance in range(context)], 1)
    return scores.var(1).mean()


def audited(path, *options):
    line = [sys.argv[1], "audit", str(path), "--json", *map(str, options)]
    return json.loads(subprocess.run(line, stdout=subprocess.PIPE, check=True).stdout)


def recall(sequences, pairs=8, keys=16, values=16):
    """Rows of the task that the model was trained on: pairs of key and value, then the keys in another order."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(sequences):
        asked = rng.permutation(keys)[:pairs]
        told = np.stack([asked, keys + rng.integers(0, values, pairs)], 1).ravel()
        rows.append(np.concatenate([told, rng.permutation(asked)]))
    return np.array(rows)


def heads_of(found):
    return [head for layer in found["layers"] for head in layer["heads"]]


def check_against_the_record(tensors, still, ran):
    """σ as training saw it in its last steps, on 64 rows each, when the rate was next to nothing."""
    last = tensors["train.heads"][-20:, :, :, 0].reshape(20, -1)
    for head, measured, steps in zip(heads_of(still), heads_of(ran), last.T, strict=True):
        record = steps.mean()
        # From step to step σ varies by `deviation`, by chance and what is still learned; on 128 rows by 0.7 of that.
        deviation = steps.std(ddof=1)
        sigma = measured["measured"]["sigma"]
        assert abs(sigma - record) <= 4 * deviation, (sigma, record, deviation)
        assert 4 * deviation < 0.2 * record, "so loose that it tests nothing"
        weights, embeddings = (abs(math.log2(said["sigma"] / record)) for said in (head, head["embeddings"]))
        assert weights > 0.5, "isotropic inputs tell it: nothing was tested"
        assert embeddings < weights, (embeddings, weights)
        assert head["verdict"] != "soft" and measured["ground"] == "measured", head["words"]
    # What the first layer sees are the embeddings; what is left there is how often which token stands where.
    first = heads_of(still)[0]
    assert abs(math.log2(first["embeddings"]["sigma"] / last[:, 0].mean())) < 0.25
    assert heads_of(ran)[-1]["verdict"] == "frozen", heads_of(ran)[-1]["words"]


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = trained(sys.argv[1], folder)
        found = audited(path)
        tensors, settings = read(path)
        rows = pathlib.Path(folder) / "rows.npy"
        np.save(rows, recall(128))
        check_against_the_record(tensors, found, audited(path, "--tokens", rows))
    base, context = float(settings["rope_theta"]), int(settings["max_position_embeddings"])
    assert found["family"] == "llama" and found["scale_rule"] == "sqrt_dk" and found["notes"] == [], found["notes"]
    assert found["judged_at"] == context == 24, context
    heads = 0
    for layer in found["layers"]:
        for head in layer["heads"]:
            dim = head["d_k"]
            w_q, w_k = projections(tensors, layer["layer"], head["head"], dim)
            variance, bound, largest = isotropic(w_q, w_k)
            embedded = on_embeddings(tensors, w_q, w_k, base, context)
            # Folding rounds each weight to f32 (2^-24), and blocks of products are added in f32: at most some 40
            # roundings deep. On sums of mixed signs that is 1e-5 of the variance.
            for name, value, wanted in (
                ("variance", head["variance"], variance),
                ("sigma", head["sigma"], math.sqrt(variance / dim)),
                ("bound", head["bound"], bound / math.sqrt(dim)),
                ("largest_singular_value", head["largest_singular_value"], largest),
                ("embeddings.variance", head["embeddings"]["variance"], embedded),
                ("embeddings.sigma", head["embeddings"]["sigma"], math.sqrt(embedded / dim)),
            ):
                assert abs(value - wanted) <= 1e-5 * wanted, (
                    f"layer {layer['layer']} head {head['head']}: {name} is {value}, numpy has {wanted}"
                )
            assert head["ground"] == "embeddings", head["ground"]
            assert abs(embedded / variance - 1) > 0.02, "embeddings say what isotropic inputs say: nothing was tested"
            heads += 1
    print(f"{heads} heads agree")
    return 0


if __name__ == "__main__":
    sys.exit(main())
