"""rootdk.distributed.audit: the audit of one machine, wherever the files lie; and one line on every rank, with rank and
file, where something is wrong with them."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys

import numpy as np
import pytest
import rootdk
import torch

if not torch.distributed.is_available():
    pytest.skip("torch was built without distributed", allow_module_level=True)

HERE = pathlib.Path(__file__).parent
RANKS, SHARDS = 4, 4
WIDTH, DIM, HEADS, LAYERS = 32, 8, 4, 6


def write(path, tensors):
    """safetensors by hand: a length, a JSON header, and the numbers."""
    header, at = {}, 0
    for name, x in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(x.tobytes() for x in tensors.values()))


def qwen3(rng):
    """QK-norm, shared key heads, and more tokens than are sampled."""
    tensors = {"model.embed_tokens.weight": rng.standard_normal((2500, WIDTH))}
    for i in range(LAYERS):
        at, loud = f"model.layers.{i}.", 1 + 9 * (i == 4)
        tensors[at + "input_layernorm.weight"] = 1 + 0.1 * rng.standard_normal(WIDTH)
        tensors[at + "self_attn.q_proj.weight"] = rng.standard_normal((HEADS * DIM, WIDTH))
        tensors[at + "self_attn.k_proj.weight"] = rng.standard_normal((HEADS // 2 * DIM, WIDTH))
        tensors[at + "self_attn.q_norm.weight"] = loud * (1 + 0.1 * rng.standard_normal(DIM))
        tensors[at + "self_attn.k_norm.weight"] = 1 + 0.1 * rng.standard_normal(DIM)
        tensors[at + "self_attn.v_proj.weight"] = rng.standard_normal((HEADS // 2 * DIM, WIDTH))
    sizes = dict(num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=HEADS // 2, head_dim=DIM)
    return tensors, dict(model_type="qwen3", hidden_size=WIDTH, max_position_embeddings=1024, **sizes)


def gpt2(rng):
    """Biases, LayerNorm, learned positions, and projections that are packed and stored transposed."""
    tensors = {"wte.weight": rng.standard_normal((70, WIDTH)), "wpe.weight": rng.standard_normal((40, WIDTH))}
    for i in range(LAYERS):
        tensors[f"h.{i}.ln_1.weight"] = 1 + 0.1 * rng.standard_normal(WIDTH)
        tensors[f"h.{i}.ln_1.bias"] = 0.1 * rng.standard_normal(WIDTH)
        tensors[f"h.{i}.attn.c_attn.weight"] = rng.standard_normal((WIDTH, 3 * WIDTH)) * (1 + i) / 6
        tensors[f"h.{i}.attn.c_attn.bias"] = rng.standard_normal(3 * WIDTH)
    return tensors, dict(model_type="gpt2", n_layer=LAYERS, n_head=HEADS, n_embd=WIDTH, n_positions=40)


def shard(number):
    return f"model-{number + 1:05}-of-{SHARDS:05}.safetensors"


INDEX = "model.safetensors.index.json"


def checkpoint(folder, made):
    """In shards that cut layers in two: tensors are dealt out one by one."""
    tensors, config = made(np.random.default_rng(3))
    folder.mkdir(parents=True)
    place = {name: min(i * SHARDS // len(tensors), SHARDS - 1) for i, name in enumerate(tensors)}
    for number in range(SHARDS):
        write(folder / shard(number), {n: x.astype("<f4") for n, x in tensors.items() if place[n] == number})
    (folder / INDEX).write_text(json.dumps({"weight_map": {name: shard(number) for name, number in place.items()}}))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


class Builder:
    """Checkpoints on the disks of four machines."""

    def __init__(self, top):
        self.top, self.cases, self.whole = top, [], {}
        for made in (qwen3, gpt2):
            self.whole[made.__name__] = checkpoint(top / "whole" / made.__name__, made)

    def lying(self, name, files, model="qwen3", change=None, **more):
        """files: of each rank. change(folders) is what is wrong."""
        folders = [self.top / name / str(rank) / model for rank in range(RANKS)]
        for folder, here in zip(folders, files):
            if here is None:
                continue
            folder.mkdir(parents=True)
            for file in here:
                shutil.copy(self.whole[model] / file, folder / file)
        if change is not None:
            change(folders)
        self.cases.append({"name": name, "folders": [str(folder) for folder in folders], **more})

    def shared(self, name, path, **more):
        self.cases.append({"name": name, "folders": [str(path)] * RANKS, **more})


SCATTERED = [[shard(0), "config.json"], [shard(1), INDEX], [shard(2)], [shard(3)]]
EVERYTHING = [shard(number) for number in range(SHARDS)] + [INDEX, "config.json"]


def cut(rank, number, at):
    """A shard that ends early."""

    def change(folders):
        path = folders[rank] / shard(number)
        path.write_bytes(path.read_bytes()[:at])

    return change


def long_header(folders):
    path = folders[2] / shard(2)
    path.write_bytes(struct.pack("<Q", 1 << 60) + path.read_bytes()[8:])


def another_copy(folders):
    path = folders[3] / shard(1)
    path.write_bytes(path.read_bytes().replace(b"layers.1", b"layers.7", 1))


def led_away(folders):
    (folders[1] / shard(1)).rename(folders[1].parent / "elsewhere")
    (folders[1] / shard(1)).symlink_to(folders[1].parent / "elsewhere")


def index_lies(folders):
    path = folders[1] / INDEX
    path.write_text(path.read_text().replace(f'k_norm.weight": "{shard(0)}"', f'k_norm.weight": "{shard(3)}"', 1))


def fifo(folders):
    (folders[0] / shard(0)).unlink()
    os.mkfifo(folders[0] / shard(0))


def built(top):
    b = Builder(top)
    for model in b.whole:
        b.shared(f"all see all, {model}", b.whole[model])
        b.lying(f"one shard each, {model}", SCATTERED, model)
        two = [[shard(0), shard(1), INDEX, "config.json"]] * 2 + [[shard(2), shard(3), INDEX, "config.json"]] * 2
        b.lying(f"two nodes, {model}", two, model)
        b.lying(f"one has nothing, {model}", [EVERYTHING[:3], [], None, EVERYTHING[2:]], model)
    b.lying("without an index", [[shard(0), "config.json"], [shard(1)], [shard(2)], [shard(3)]])
    b.shared("by its index", b.whole["qwen3"] / INDEX)
    b.shared("one file", top / "one.safetensors", arguments=dict(heads=HEADS, head_dim=DIM, family="qwen3"))
    tensors, _ = qwen3(np.random.default_rng(3))
    write(top / "one.safetensors", {name: x.astype("<f4") for name, x in tensors.items()})
    b.lying("with arguments", SCATTERED, arguments=dict(contexts=[100, 5000], at=77, scale="dk(4)", spectra=False))
    b.lying("no rank has it", [SCATTERED[0], SCATTERED[1], [], SCATTERED[3]])
    b.lying("header cut", SCATTERED, change=cut(1, 1, 40))
    b.lying("data cut", SCATTERED, change=cut(3, 3, -64))
    b.lying("long header", SCATTERED, change=long_header)
    b.lying("another copy", [*SCATTERED[:3], [shard(1), shard(3)]], change=another_copy)
    b.lying("another size", [*SCATTERED[:3], [shard(1), shard(3)]], change=cut(3, 1, -4))
    b.lying("led away", SCATTERED, change=led_away)
    b.lying("index lies", SCATTERED, change=index_lies)
    b.lying("fifo", SCATTERED, change=fifo)
    b.lying("nowhere", [None] * RANKS)
    b.lying("another argument", SCATTERED, arguments=dict(at=[64, 64, 65, 64]), own=["at"])
    b.lying("refused argument", SCATTERED, arguments=dict(at=[64, 64, -1, 64]), own=["at"])
    b.lying("refused everywhere", SCATTERED, arguments=dict(heads=5))
    b.lying("cannot read", SCATTERED, odd=0, slip="cannot read")
    b.lying("and then it works", SCATTERED)
    b.lying("dies", SCATTERED, odd=1, slip="dies")
    return b


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    b = built(tmp_path_factory.mktemp("audit"))
    cases = b.top / "cases.json"
    cases.write_text(json.dumps(b.cases))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(HERE / "distributed_audit.py"), str(cases)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
    found = {case["name"]: {} for case in b.cases}
    for rank in range(RANKS):
        for line in (b.top / f"cases.json.{rank}").read_text().splitlines():
            one = json.loads(line)
            found[one["name"]][rank] = one
    assert found["dies"], done.stderr[-3000:]
    return b, found


EQUAL = {
    "all see all, qwen3": {},
    "one shard each, qwen3": {},
    "two nodes, qwen3": {},
    "one has nothing, qwen3": {},
    "all see all, gpt2": dict(model="gpt2"),
    "one shard each, gpt2": dict(model="gpt2"),
    "two nodes, gpt2": dict(model="gpt2"),
    "one has nothing, gpt2": dict(model="gpt2"),
    "without an index": {},
    "by its index": {},
    "with arguments": dict(contexts=[100, 5000], at=77, scale="dk(4)", spectra=False),
    "and then it works": {},
}


@pytest.mark.parametrize("name", EQUAL)
def test_it_is_the_audit_of_one_machine(said, name):
    b, found = said
    arguments = dict(EQUAL[name])
    one = rootdk.audit(b.whole[arguments.pop("model", "qwen3")], **arguments)
    for rank in range(RANKS):
        assert "found" in found[name][rank], found[name][rank]
        assert found[name][rank]["found"] == [one.to_json(), str(one), one.to_csv(), one.conclusion]
    assert len(one) == LAYERS * HEADS and len({head["verdict"] for head in one}) > 1 or "gpt2" in name


def test_a_single_file_is_shared_out_too(said):
    b, found = said
    one = rootdk.audit(b.top / "one.safetensors", heads=HEADS, head_dim=DIM, family="qwen3")
    assert all(found["one file"][rank]["found"][0] == one.to_json() for rank in range(RANKS))


#: rank that is to blame, what it says, what the others say; {} is the folder of that rank
REFUSED = {
    "no rank has it": (None, f"RankError: {{own}}/{shard(2)}: no rank has this file, which {INDEX} names; rank 0 has"),
    "header cut": (1, f"ValueError: {{}}/{shard(1)}: byte 8: the file ends in the header: "),
    "data cut": (3, f"ValueError: {{}}/{shard(3)}: byte "),
    "long header": (2, f"ValueError: {{}}/{shard(2)}: byte 0: the header's length is 1152921504606846976, but"),
    "another copy": (None, f"RankError: rank 3: {shard(1)} has another header than on rank 1"),
    "another size": (None, f"RankError: rank 3: {shard(1)} has "),
    "led away": (1, f"ValueError: {{}}/{shard(1)}: a symbolic link that leads out of its directory"),
    "fifo": (0, f"ValueError: {{}}/{shard(0)}: not a regular file"),
    "another argument": (None, "RankError: rank 2: at is another than on rank 0"),
    "refused argument": (2, "ValueError: at: -1, but a whole number of at least 1 is wanted"),
    "cannot read": (0, f"OSError: [Errno 5] Input/output error: '{{}}/{shard(0)}'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_said_on_every_rank(said, name):
    b, found = said
    odd, text = REFUSED[name]
    folders = next(case["folders"] for case in b.cases if case["name"] == name)
    for rank in range(RANKS):
        wanted = text.replace("{own}", folders[rank]).replace("{}", folders[odd or 0])
        if odd is not None and rank != odd:
            wanted = f"RankError: rank {odd}: {wanted}"
            assert found[name][rank]["ranks"] == [odd]
        raised = found[name][rank].get("raised", "nothing")
        assert raised.startswith(wanted) and "\n" not in raised, raised
        assert found[name][rank]["seconds"] < 10


@pytest.mark.parametrize("name", ["index lies", "nowhere", "refused everywhere"])
def test_what_all_ranks_find_wrong_each_says_as_alone(said, name):
    """Where it is no rank's fault."""
    wanted = {"index lies": "does not have it", "nowhere": "cannot be opened", "refused everywhere": "5 heads"}[name]
    for rank in range(RANKS):
        raised = said[1][name][rank]["raised"]
        assert raised.startswith("ValueError: ") and wanted in raised, raised


def test_a_rank_that_dies_is_missed(said):
    """By those who wait for it, at once; by those who wait for them, after the timeout of 8 seconds and three more."""
    for rank in (0, 2, 3):
        one = said[1]["dies"][rank]
        assert one["raised"].startswith(f"RankError: rank {rank} of {RANKS}: ") and one["seconds"] < 13, one
        assert one["ranks"] == [1]
    assert min(said[1]["dies"][rank]["seconds"] for rank in (0, 2)) < 5
    assert 1 not in said[1]["dies"]


def test_without_a_group_it_says_so(tmp_path):
    with pytest.raises(ValueError, match="no process group yet"):
        rootdk.distributed.audit(tmp_path)
