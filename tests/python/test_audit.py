"""rootdk.audit says what `rootdk audit` says, as objects."""

from __future__ import annotations

import json
import math
import os
import re
import struct
import subprocess
import sys

import numpy as np
import pytest
import rootdk
from conftest import no_columns

WIDTH, DIM = 16, 4


def write(path, tensors):
    """safetensors by hand: a length, a JSON header, and the numbers."""
    header, at = {}, 0
    for name, x in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(
        struct.pack("<Q", len(text)) + text + b"".join(x.astype("<f4").tobytes() for x in tensors.values())
    )


def llama(folder, layers=2, heads=4, kv_heads=2, growth=1.0, seed=0):
    """A tiny one, whose head 1 of layer 1 is `growth` times as loud."""
    rng = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True)
    tensors = {"model.embed_tokens.weight": rng.standard_normal((10, WIDTH))}
    for i in range(layers):
        at = f"model.layers.{i}."
        q = rng.standard_normal((heads * DIM, WIDTH)) / math.sqrt(WIDTH)
        if i == 1:
            q[DIM : 2 * DIM] *= growth
        tensors[at + "self_attn.q_proj.weight"] = q
        tensors[at + "self_attn.k_proj.weight"] = rng.standard_normal((kv_heads * DIM, WIDTH)) / math.sqrt(WIDTH)
        tensors[at + "input_layernorm.weight"] = np.ones(WIDTH)
    write(folder / "model.safetensors", {name: x.astype(np.float32) for name, x in tensors.items()})
    (folder / "config.json").write_text(
        json.dumps(
            {
                "model_type": "llama",
                "num_hidden_layers": layers,
                "num_attention_heads": heads,
                "num_key_value_heads": kv_heads,
                "hidden_size": WIDTH,
                "max_position_embeddings": 1024,
            }
        )
    )
    return folder


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "rootdk", "audit", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=no_columns(),
    )


def test_it_is_what_the_command_says(tmp_path):
    folder = llama(tmp_path / "model")
    found = rootdk.audit(folder)
    done = command(folder, "--json", "--csv", tmp_path / "heads.csv", "--html", tmp_path / "theirs.html")
    assert found.to_json() == done.stdout and done.returncode == 0
    assert str(found) == command(folder).stdout
    assert found.to_csv() == (tmp_path / "heads.csv").read_text()
    assert found.report(tmp_path / "ours.html").read_text() == (tmp_path / "theirs.html").read_text()
    assert found.to_dict() == json.loads(found.to_json()) and found.data["family"] == found.family == "llama"


def test_heads_are_rows_and_columns(tmp_path):
    found = rootdk.audit(llama(tmp_path / "model"), contexts=[64, 512], at=64)
    assert len(found) == 8 and found.contexts == [64, 512] and found.judged_at == 64
    assert found["layer"].tolist() == [0] * 4 + [1] * 4 and found["head"].tolist() == [0, 1, 2, 3] * 2
    assert found["sigma"].dtype == np.float64 and found["entropy"].shape == (8, 2)
    assert set(found["verdict"]) <= {"soft", "uniform", "sharp"}
    assert [head["sigma"] for head in found] == found["sigma"].tolist() and found.heads[5]["layer"] == 1
    frame = found.to_pandas()
    np.testing.assert_allclose(frame.entropy_512, found["entropy"][:, 1])
    with pytest.raises(KeyError, match="sigma"):
        found["sigmaa"]
    assert repr(found).startswith("Audit(") and "8 heads" in repr(found)
    assert found._repr_html_().count("<td") == 8


def test_verdicts_carry_their_ground(tmp_path):
    folder = llama(tmp_path / "model")
    found = rootdk.audit(folder)
    assert found.data["experiment"] == "audit" and found.data["conclusion"] == found.conclusion
    assert set(found["ground"]) <= {"embeddings", "weights"} and found.names.count("ground") == 1
    for head in found:  # nothing ran, so nothing is told as a fact
        assert head["words"].startswith("Would be ") and "if measuring bears this out" in head["fix"].lower()
        assert ("embeddings" in head) == (head["ground"] == "embeddings")
    np.save(tmp_path / "acts.npy", np.random.default_rng(1).standard_normal((200, WIDTH)).astype(np.float32))
    measured = rootdk.audit(folder, inputs=tmp_path / "acts.npy")
    assert set(measured["ground"]) == {"measured"}
    assert all("would be" not in head["words"].lower() and "measuring" not in head["fix"] for head in measured)
    assert measured["measured_sigma"].tolist() == [head["measured"]["sigma"] for head in measured]
    assert "measured_sigma" in measured.names and "measured_sigma" not in found.names
    with pytest.raises(KeyError, match="measured_sigma"):
        found["measured_sigma"]
    assert "σ of the scores, measured;" in measured._repr_html_()
    sigma = measured.heads[0]["measured"]["sigma"]
    assert f">{sigma:.2f}</td>" in measured._repr_html_()


def test_arrays_of_what_only_some_heads_have():
    heads = [
        {"head": 0, "sigma": None, "ground": "weights"},
        {"head": 1, "sigma": 1.0, "ground": "embeddings", "embeddings": {"sigma": 2.5, "ratio": 3.0}},
    ]
    found = rootdk.Audit(json.dumps({"layers": [{"layer": 0, "attention": "self", "heads": heads}]}), "", "", "")
    assert found.names[-2:] == ["embeddings_sigma", "embeddings_ratio"]
    np.testing.assert_array_equal(found["embeddings_sigma"], [np.nan, 2.5])


def test_a_scale_by_its_rule(tmp_path):
    folder = llama(tmp_path / "model")
    assert (rootdk.audit(folder, scale="dk(8)")["scale"] == 2).all()
    assert rootdk.audit(folder, scale="dk(8)").to_json() == command(folder, "--scale", "dk(8)", "--json").stdout


def test_names_steer_nothing(tmp_path):
    found = rootdk.audit(llama(tmp_path / "m\u202e\x1b[2Jx"))
    assert found.model == "m\u202e\x1b[2Jx"
    for text in (repr(found), str(found), found.to_json(), found._repr_html_()):
        assert "\u202e" not in text and "\x1b" not in text
    with pytest.raises(ValueError) as caught:
        rootdk.audit(tmp_path / "m\u202e\x1b[2Jx" / "none")
    assert "\u202e" not in str(caught.value) and "\x1b" not in str(caught.value)


def test_says_how_to_get_what_it_can_read(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
    with pytest.raises(ValueError, match="pickle.*save_file"):
        rootdk.audit(tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="hf download no-such-org/no-such-model --local-dir no-such-model"):
        rootdk.audit("no-such-org/no-such-model")


def test_memory_that_does_not_suffice(tmp_path):
    """Before anything is allocated, with both figures."""
    llama(tmp_path / "m")
    audited = f"""
import resource, rootdk
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 4_000_000, -1))
try:
    rootdk.audit({str(tmp_path / "m")!r})
except MemoryError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", audited], capture_output=True, text=True, env=no_columns())
    assert re.fullmatch(
        r"this would take [\d.]+ MB of memory, but [\d.]+ [kM]?B(ytes)? are free \(ulimit -v\)\n", done.stdout
    ), done.stderr


def test_a_report_replaces_files_only(tmp_path):
    """A link stays a link, and a pipe a pipe."""
    found = rootdk.audit(llama(tmp_path / "m"))
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(tmp_path / "page.html")
    assert found.report(link) == link
    assert (
        link.is_symlink() and (tmp_path / "page.html").read_text() == found.report(tmp_path / "again.html").read_text()
    )
    os.mkfifo(pipe)
    with open(tmp_path / "came", "wb") as came, subprocess.Popen(["timeout", "20", "cat", pipe], stdout=came):
        found.report(pipe)
        assert pipe.is_fifo()
    assert (tmp_path / "came").read_text() == (tmp_path / "page.html").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.html", "came", "link", "m", "page.html", "pipe"]


def test_what_moved(tmp_path):
    before, after = llama(tmp_path / "before"), llama(tmp_path / "after", growth=30.0)
    found = rootdk.audit(after, against=before)
    assert found.to_json() == command(after, "--against", before, "--json").stdout
    worst = found.drift[0]
    assert (worst["layer"], worst["head"]) == (1, 1) and worst["growth"] == pytest.approx(30, rel=1e-5)
    with pytest.raises(ValueError, match="against="):
        rootdk.audit(after).drift


def test_what_the_checkpoint_does_not_say_can_be_said(tmp_path):
    folder = llama(tmp_path / "model")
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match="heads"):
        rootdk.audit(folder)
    found = rootdk.audit(
        folder / "model.safetensors",
        heads=4,
        kv_heads=2,
        context=256,
        scale=1.0,
        rotary_base=0,
        norm="rms",
        spectra=False,
    )
    assert (
        len(found) == 8 and found.judged_at == 256 and (found["scale"] == 1).all() and "spectrum" not in found.heads[0]
    )
    rng = np.random.default_rng(1)
    np.save(tmp_path / "acts.npy", rng.standard_normal((200, WIDTH)).astype(np.float32))
    measured = rootdk.audit(folder, heads=4, kv_heads=2, rotary_base=0, inputs=tmp_path / "acts.npy").heads[0][
        "measured"
    ]
    assert measured["sigma_over_isotropic"] == pytest.approx(1, rel=0.3)  # 200 tokens of white noise


@pytest.mark.parametrize(
    "bytes_, words",
    [
        (b"", "model.safetensors"),
        (b"\xff" * 64, "model.safetensors"),
        (struct.pack("<Q", 2) + b"{}", "attention|tensor"),
        (struct.pack("<Q", 1 << 60) + b"{}", "model.safetensors"),
        (
            struct.pack("<Q", 75) + b'{"model.layers.0.self_attn.q_proj.weight":{"dtype":"F32","shape":[4611686018',
            "model.safetensors",
        ),
    ],
)
def test_a_hostile_file_is_refused_in_one_line(tmp_path, bytes_, words):
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes_)
    with pytest.raises(ValueError, match=words) as caught:
        rootdk.audit(path)
    assert "\n" not in str(caught.value).strip()


@pytest.mark.parametrize(
    "change, error, words",
    [
        (dict(model=3), TypeError, "model: int, but a path, a torch.nn.Module or a state_dict is wanted"),
        (dict(model=b"model"), TypeError, "model: bytes"),
        (dict(model="/nowhere/at/all.safetensors"), ValueError, "/nowhere"),
        (dict(config={}), ValueError, "config: given"),
        (dict(norm=3), TypeError, "norm: int"),
        (dict(family=3), TypeError, "family: int"),
        (dict(family_file=3), TypeError, "family_file: int"),
        (dict(inputs=3), TypeError, "inputs: int"),
        (dict(against=3), TypeError, "against: int"),
        (dict(heads=0), ValueError, "heads: 0"),
        (dict(heads=2.5), TypeError, "heads: float"),
        (dict(norm="batch"), ValueError, "norm"),
        (dict(scale="sqrt"), ValueError, 'scale: "sqrt"'),
        (dict(scale=[1]), TypeError, "scale: list"),
        (dict(contexts=[1.5]), TypeError, "contexts: float"),
        (dict(contexts=[0]), ValueError, "0"),
        (dict(at=1), ValueError, "1"),
        (dict(family="nonsense"), ValueError, "nonsense"),
        (dict(inputs="/nowhere.npy"), ValueError, "nowhere"),
        (dict(spectra=1), TypeError, "spectra: int"),
        (dict(against="/nowhere"), ValueError, "nowhere"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, change, error, words):
    arguments = dict(model=llama(tmp_path / "model")) | change
    with pytest.raises(error, match=words):
        rootdk.audit(**arguments)


def test_trained_weights():
    """A BERT that has learned something: every head by numpy in double, and the whole as the command says it."""
    pytest.importorskip("transformers")
    import trained

    folder = trained.bert()
    found = rootdk.audit(folder)
    assert found.to_json() == command(folder, "--json").stdout
    assert found.family == "bert" and len(found) == 12 and np.isfinite(found["sigma"]).all()
    tensors = safetensors_in(folder / "model.safetensors")
    for head in found.heads:
        variance, mean = isotropic(tensors, head["layer"], head["head"], head["d_k"])
        # Folding rounds each weight to f32 twice, and blocks of products are added in f32: at most some 40 roundings
        # deep.
        assert head["variance"] == pytest.approx(variance, rel=1e-5)
        assert head["mean"] == pytest.approx(mean, abs=1e-5 * variance**0.5)
    assert found["sigma"].std() > 0.1, "the heads are alike: nothing was learned"


def safetensors_in(path):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    at = 8 + length
    return {
        name: np.frombuffer(data[at + info["data_offsets"][0] : at + info["data_offsets"][1]], "<f4")
        .reshape(info["shape"])
        .astype(np.float64)
        for name, info in header.items()
    }


def isotropic(tensors, layer, head, dim):
    """Within-row variance and mean of q·k: weights with the norm before them folded in, for isotropic inputs."""
    norm = "embeddings.LayerNorm" if layer == 0 else f"encoder.layer.{layer - 1}.output.LayerNorm"
    gain, beta = tensors[norm + ".weight"], tensors[norm + ".bias"]
    width, rows = len(gain), slice(head * dim, (head + 1) * dim)
    centre = np.eye(width) - 1 / width
    sides = []
    for name in ("query", "key"):
        at = f"encoder.layer.{layer}.attention.self.{name}"
        weight = tensors[at + ".weight"][rows]
        folded = (weight * gain) @ centre * np.sqrt(width / (width - 1))
        sides.append((folded @ folded.T, tensors[at + ".bias"][rows] + weight @ beta))
    (g_q, b_q), (g_k, b_k) = sides
    return np.trace(g_q @ g_k) + b_q @ g_k @ b_q, b_q @ b_k
