"""rootdk.audit(…, run=ids) computes what the model computes, and measures what a watch would."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import rootdk  # noqa: E402
import runnable  # noqa: E402
from conftest import no_columns  # noqa: E402
from runnable import CASES, LENGTH, VOCABULARY, assert_same_hidden_state, made, roughened, tokens  # noqa: E402


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "llama"
    made("llama").save_pretrained(folder)
    return folder


def close(ours, theirs):
    """To rounding: a product's sums are cut by the number of its rows."""
    return ours.shape == theirs.shape and np.abs(ours - theirs).max() <= 2.0**-24 * 64 * np.abs(theirs).max()


def command(*arguments, **more):
    return subprocess.run(
        [sys.executable, "-m", "rootdk", "audit", *map(str, arguments)],
        capture_output=True,
        text=True,
        **{"env": no_columns(), **more},
    )


@pytest.mark.parametrize("name", CASES)
def test_the_last_hidden_state_is_the_model_s(name, tmp_path):
    model, ids = made(name), tokens(name)
    model.save_pretrained(tmp_path / "saved")
    found = rootdk.audit(tmp_path / "saved", run=ids)
    assert_same_hidden_state(model, found.last_hidden_state, input_ids=ids)
    assert found.data["run"] == {"sequences": 2, "length": LENGTH}


@pytest.mark.parametrize(
    "name", ["llama", "mistral", "qwen3", "gemma2", "gemma3", "phi3", "gpt2-odd", "gpt_neox", "bert"]
)
def test_heads_are_measured_as_a_watch_does(name, tmp_path):
    """To rounding; the promise is 1 %."""
    model, ids = made(name), tokens(name, 3)
    model.set_attn_implementation("eager" if name == "gemma2" else "sdpa")
    model.save_pretrained(tmp_path / "saved")
    found = rootdk.audit(tmp_path / "saved", run=ids)
    with torch.no_grad(), rootdk.watch(model) as watch:
        model(ids)
    assert len(watch.layers) == len(found.data["layers"]) == runnable.LAYERS
    for layer, name_there in zip(found.data["layers"], watch.layers):
        stats = watch.stats(name_there)
        for head, one in enumerate(layer["heads"]):
            measured = one["measured"]
            pairs = {
                "sigma": stats.raw_sigma,
                "score_sigma": stats.score_sigma,
                "entropy": stats.entropy,
                "keys": stats.keys,
                "p_max": stats.mean_p_max,
                "trace_j": stats.trace_j,
                "largest_raw": stats.raw_max,
            }
            for what, seen in pairs.items():
                assert measured[what] == pytest.approx(float(seen[0, head]), rel=1e-4, abs=1e-5), (
                    layer["layer"],
                    head,
                    what,
                )


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_model_that_was_trained(name):
    """On a text that repeats itself, so that heads learn to look somewhere: the hidden state and σ as above."""
    model, ids = made(name), tokens(name, 8)
    ids[:, LENGTH // 2 :] = ids[:, : LENGTH // 2]
    embedding, steps = model.get_input_embeddings(), torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(60):
        scores = model(ids).last_hidden_state[:, :-1] @ embedding.weight.T
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten())
        losses.append(float(loss.detach()))
        steps.zero_grad()
        loss.backward()
        steps.step()
    assert losses[-1] < losses[0] / 2
    found = rootdk.audit(model.eval(), run=ids)
    assert_same_hidden_state(model, found.last_hidden_state, input_ids=ids)
    with torch.no_grad(), rootdk.watch(model) as watch:
        model(ids)
    seen = np.concatenate([watch.stats(layer).raw_sigma[0] for layer in watch.layers])
    measured = np.array([head["measured"]["sigma"] for head in found.heads])
    assert measured == pytest.approx(seen, rel=1e-4)


def test_what_is_measured_follows_from_the_scores(llama):
    """Softmax over the model's own scores, by hand, for the first layer."""
    model, ids = made("llama"), tokens("llama", 1)
    found = rootdk.audit(llama, run=ids)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        p = model(ids, output_attentions=True).attentions[0][0].double()[:, 1:]  # rows of two keys and more
    rows = [[p[h, i][p[h, i] > 0] for i in range(LENGTH - 1)] for h in range(4)]
    for head in range(4):
        measured = found.heads[head]["measured"]
        entropy = np.mean([float(-(r * r.log()).sum()) for r in rows[head]])
        squares = np.mean([float(r.square().sum()) for r in rows[head]])
        spread = np.sqrt(
            sum(float((r.log() - r.log().mean()).square().sum()) for r in rows[head])
            / sum(len(r) - 1 for r in rows[head])
        )
        assert measured["entropy"] == pytest.approx(entropy, rel=1e-4)
        assert measured["participation"] == pytest.approx(1 / squares, rel=1e-4)
        assert measured["trace_j"] == pytest.approx(1 - squares, rel=1e-4)
        assert measured["p_max"] == pytest.approx(np.mean([float(r.max()) for r in rows[head]]), rel=1e-4)
        assert measured["sigma"] == measured["score_sigma"] == pytest.approx(spread, rel=1e-4)
        assert measured["keys"] == pytest.approx(np.exp(np.mean(np.log(np.arange(2, LENGTH + 1)))), rel=1e-9)
        assert measured["unit_divisor"] == pytest.approx(spread * np.sqrt(8), rel=1e-4)
        assert measured["ratio"] == pytest.approx(measured["sigma"], rel=1e-9)
        assert measured["sigma_over_isotropic"] == pytest.approx(
            measured["sigma"] / found.heads[head]["sigma"], rel=1e-9
        )
    frame = found.to_csv().splitlines()
    assert frame[0].endswith(
        "measured_score_sigma,measured_keys,measured_entropy,measured_participation,measured_p_max,measured_trace_j"
    )
    assert all(line.count(",") == frame[0].count(",") for line in frame)
    column = frame[0].split(",").index("measured_entropy")
    assert [float(line.split(",")[column]) for line in frame[1:]] == [
        head["measured"]["entropy"] for head in found.heads
    ]


def test_the_verdict_is_that_of_the_run():
    """A query projection a hundred times too loud freezes its heads on the tokens that were given."""
    model = made("llama")
    with torch.no_grad():
        model.layers[1].self_attn.q_proj.weight[:8] *= 100
    found = rootdk.audit(model, run=tokens("llama"))
    loud = found.heads[4]
    assert (loud["layer"], loud["head"], loud["verdict"]) == (1, 0, "frozen")
    assert loud["measured"]["p_max"] > 0.9 and loud["measured"]["trace_j"] < 0.1
    assert found.heads[5]["measured"]["p_max"] < loud["measured"]["p_max"]


def test_before_and_after_are_run_on_the_same_tokens():
    before, after, ids = made("llama"), made("llama"), tokens("llama")
    with torch.no_grad():
        after.layers[1].self_attn.q_proj.weight[:8] *= 3
    found, once = rootdk.audit(after, run=ids, against=before), rootdk.audit(before, run=ids)
    worst = found.drift[0]
    assert (worst["layer"], worst["head"]) == (1, 0)
    assert worst["ground"] == worst["verdict_before_ground"] == worst["verdict_after_ground"] == "measured"
    assert worst["sigma_before"] == once.heads[4]["measured"]["sigma"]
    assert worst["sigma_after"] == found.heads[4]["measured"]["sigma"]
    by_weights = rootdk.audit(after, against=before).drift[0]
    assert by_weights["ground"] != "measured" and by_weights["growth"] == pytest.approx(3)


def test_a_model_in_memory_and_a_state_dict(llama):
    model, ids = made("llama"), tokens("llama")
    theirs = rootdk.audit(llama, run=ids)
    for ours in (
        rootdk.audit(model, run=ids),
        rootdk.audit(model.state_dict(), config=model.config, run=ids.tolist()),
        rootdk.audit(model, run=ids.numpy().astype(np.uint16)),
    ):
        assert np.array_equal(ours.last_hidden_state, theirs.last_hidden_state)
        assert ours.heads == theirs.heads
    one = rootdk.audit(model, run=ids[0])
    assert close(one.last_hidden_state, theirs.last_hidden_state[:1])


def test_what_enters_the_first_block(llama):
    """ViT, which has no tokens; and any other model, whose embeddings come from elsewhere."""
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48, image_size=32, patch_size=8
    )
    vit = roughened(transformers.ViTModel(config, add_pooling_layer=False))
    pixels = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        patches = vit.embeddings(pixels)
    found = rootdk.audit(vit, embeddings=patches)
    assert_same_hidden_state(vit, found.last_hidden_state, pixel_values=pixels)
    with pytest.raises(ValueError, match="no embedding of tokens; give what enters its first block"):
        rootdk.audit(vit, run=[1, 2, 3])
    model, ids = made("llama"), tokens("llama")
    embedded = rootdk.audit(llama, embeddings=model.embed_tokens(ids).detach())
    assert np.array_equal(embedded.last_hidden_state, rootdk.audit(llama, run=ids).last_hidden_state)


def test_the_command_says_the_same(llama, tmp_path):
    ids = tokens("llama").numpy()
    np.save(tmp_path / "ids.npy", ids.astype(np.int32))
    done = command(llama, "--tokens", tmp_path / "ids.npy", "--hidden-out", tmp_path / "hidden.npy", "--json")
    assert done.returncode == 0, done.stderr
    found = rootdk.audit(llama, run=ids)
    assert json.loads(done.stdout)["layers"] == found.data["layers"]
    assert np.array_equal(np.load(tmp_path / "hidden.npy"), found.last_hidden_state)
    np.save(tmp_path / "rows.npy", made("llama").embed_tokens(tokens("llama")).detach().numpy())
    done = command(llama, "--embeddings", tmp_path / "rows.npy", "--hidden-out", tmp_path / "again.npy")
    assert done.returncode == 0, done.stderr
    assert np.array_equal(np.load(tmp_path / "again.npy"), found.last_hidden_state)


def test_random_tokens(llama):
    """Always the same, and a note says what was run."""
    first, again, other = (
        command(llama, "--tokens", said, "--json") for said in ("random", "random:4x64", "random:2x5")
    )
    assert first.returncode == other.returncode == 0, first.stderr
    assert json.loads(first.stdout)["layers"] == json.loads(again.stdout)["layers"]
    assert json.loads(first.stdout)["run"] == {"sequences": 4, "length": 64}  # the model's context
    assert json.loads(other.stdout)["run"] == {"sequences": 2, "length": 5}
    assert "random tokens, 2 x 5" in json.loads(other.stdout)["notes"][0]
    for said in (
        "random:",
        "random:4",
        "random:x5",
        "random:4x",
        "random:2x3x4",
        "random:-1x5",
        "random:0x5",
        "random:1x65",
        "random:99999999999999999999x2",
    ):
        done = command(llama, "--tokens", said)
        assert done.returncode == 2 and "tokens: " in done.stderr and done.stderr.count("\n") == 1, (said, done.stderr)


def test_the_text_says_how_to_measure(llama):
    vit = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48, image_size=32, patch_size=8
    )
    for model, wanted, other in [
        (llama, "--tokens random", "--inputs"),
        (transformers.ViTModel(vit, add_pooling_layer=False), "--inputs", "--tokens"),
    ]:
        words = " ".join(str(rootdk.audit(model)).split())
        assert wanted in words and other not in words


def test_the_same_bits_at_any_number_of_threads(tmp_path):
    ids = tokens("gemma3").numpy().repeat(40, axis=0)  # more rows than one piece of anything
    made("gemma3").save_pretrained(tmp_path / "saved")
    np.save(tmp_path / "ids.npy", ids)
    outputs = []
    for threads in (1, 2, 3):
        done = command(
            tmp_path / "saved",
            "--tokens",
            tmp_path / "ids.npy",
            "--hidden-out",
            tmp_path / f"{threads}.npy",
            "--json",
            "--threads",
            threads,
        )
        assert done.returncode == 0, done.stderr
        outputs.append((done.stdout, (tmp_path / f"{threads}.npy").read_bytes()))
    assert outputs[0] == outputs[1] == outputs[2]


def test_many_sequences_are_as_few():
    """More than one call of the engine takes, and more rows than go through an MLP together."""
    model, few = made("llama"), tokens("llama")[:, :3].numpy()
    two, many = rootdk.audit(model, run=few), rootdk.audit(model, run=np.tile(few, (600, 1)))
    assert close(many.last_hidden_state, np.tile(two.last_hidden_state, (600, 1, 1)))
    for ours, theirs in zip(many.heads, two.heads):
        for name in ("entropy", "p_max", "largest_raw", "keys"):
            assert ours["measured"][name] == pytest.approx(theirs["measured"][name], rel=1e-5), name


def test_gemma_s_old_gelu_means_tanh(tmp_path):
    model, ids = made("gemma"), tokens("gemma")
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["hidden_act"] == "gelu_pytorch_tanh"
    (tmp_path / "config.json").write_text(json.dumps({**config, "hidden_act": "gelu"}))
    assert_same_hidden_state(model, rootdk.audit(tmp_path, run=ids).last_hidden_state, input_ids=ids)


def test_qk_clip_after_a_run(llama, tmp_path):
    """Heads whose largest score passed the limit come to it, on the same tokens, where nothing before them changed."""
    ids = tokens("llama").numpy()
    np.save(tmp_path / "ids.npy", ids)
    before = rootdk.audit(llama, run=ids)
    first = [head["measured"]["largest_raw"] for head in before.heads[:4]]
    limit = sorted(first)[1]
    done = command(
        llama, "--apply-qk-clip", limit, "--tokens", tmp_path / "ids.npy", "--out", tmp_path / "model.safetensors"
    )
    assert done.returncode == 0, done.stderr
    (tmp_path / "config.json").write_text((llama / "config.json").read_text())
    after = rootdk.audit(tmp_path / "model.safetensors", run=ids)
    for head, was in zip(after.heads[:4], first):
        assert head["measured"]["largest_raw"] == pytest.approx(min(was, limit), rel=1e-5)


def test_text_by_the_tokenizer_beside_the_model(llama, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = "the root of a number makes scores even".split()
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: 3 + i for i, word in enumerate(words)}, unk_token="the")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made("llama").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"run: text, but there is no .*tokenizer\.json; give ids"):
        rootdk.audit(tmp_path, run=" ".join(words))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    found = rootdk.audit(tmp_path, run=" ".join(reversed(words)))
    wanted = rootdk.audit(tmp_path, run=list(range(2 + len(words), 2, -1)))
    assert np.array_equal(found.last_hidden_state, wanted.last_hidden_state)
    with pytest.raises(ValueError, match="run: text, but only a model that is given by its path"):
        rootdk.audit(made("llama"), run="the root")
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match="tokenizer.json cannot be read"):
        rootdk.audit(tmp_path, run="the root")


# What is wrong --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ids, error, words",
    [
        ([3, VOCABULARY], ValueError, "run: the id 60, but the vocabulary has 0 to 59"),
        ([3, -1], ValueError, "run: the id -1"),
        ([3.0, 4.0], TypeError, "run: float64 numbers, but ids of tokens are whole numbers"),
        ([], ValueError, "run: 0 in a sequence, but at least 2"),
        ([[]], ValueError, "run: 0 in a sequence"),
        ([3], ValueError, "run: 1 in a sequence"),
        ([[[3, 4]]], ValueError, r"run: \[1, 1, 2\], but \[tokens\] or \[sequences, tokens\] is wanted"),
        ([[3, 4], [5]], ValueError, "run: sequences of one length"),
        ([[2**70, 4]], TypeError, "run: object"),
        (list(range(3, 60)) * 2, ValueError, "run: 114 in a sequence, but the model's context is 64"),
        (np.zeros((2, 0), int), ValueError, "run: 0 in a sequence"),
        (np.zeros((0, 2), int), ValueError, "run: no sequence"),
        ({}, TypeError, "run: object"),
        (np.array([True, False]), TypeError, "run: bool"),
    ],
)
def test_ids_that_are_none(llama, ids, error, words):
    with pytest.raises(error, match=words) as caught:
        rootdk.audit(llama, run=ids)
    assert "\n" not in str(caught.value)


def test_the_command_refuses_the_same(llama, tmp_path):
    for name, array, words in [
        ("float", np.zeros(4), "has F64 numbers, but ids are whole numbers"),
        ("deep", np.zeros((1, 2, 3), np.int64), "is [1, 2, 3], but [tokens] or [sequences, tokens]"),
        ("scalar", np.int64(3), "is [], but [tokens]"),
        ("empty", np.zeros(0, np.int64), "0 in a sequence"),
        ("range", np.array([1, 99]), "the id 99"),
    ]:
        np.save(tmp_path / f"{name}.npy", array)
        done = command(llama, "--tokens", tmp_path / f"{name}.npy")
        assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1, done.stderr
    np.save(tmp_path / "ids.npy", tokens("llama").numpy())
    np.save(tmp_path / "rows.npy", np.full((4, 32), np.nan, np.float32))
    np.save(tmp_path / "narrow.npy", np.zeros((4, 31), np.float32))
    for arguments, words in [
        ((tmp_path / "ids.npy", "--inputs", tmp_path / "rows.npy"), "one of them is wanted"),
        ((llama / "model.safetensors",), "is not an .npy"),
    ]:
        done = command(llama, "--tokens", *arguments)
        assert done.returncode == 2 and words in done.stderr
    for name, words in [
        ("rows", "not all numbers are finite"),
        ("narrow", "rows of 31 numbers, but the first block takes 32"),
    ]:
        done = command(llama, "--embeddings", tmp_path / f"{name}.npy")
        assert done.returncode == 2 and words in done.stderr
    assert "goes with --tokens" in command(llama, "--hidden-out", tmp_path / "x.npy").stderr
    done = command(llama, "--tokens", tmp_path / "ids.npy", "--hidden-out", tmp_path / "ids.npy", "--force")
    # what is read is never written over
    assert done.returncode == 2 and np.load(tmp_path / "ids.npy").shape == (2, LENGTH)


@pytest.mark.parametrize("name", ["gpt2", "bert", "roberta"])
def test_no_more_tokens_than_positions(name):
    model, most = made(name), {"gpt2": 64, "bert": 64, "roberta": 62}[name]
    ids = torch.full((1, most), 7)
    assert rootdk.audit(model, run=ids).last_hidden_state.shape == (1, most, 32)
    with pytest.raises(ValueError, match=f"run: {most + 1} in a sequence, but"):
        rootdk.audit(model, run=torch.full((1, most + 1), 7))
    with pytest.raises(ValueError, match=f"run: {most + 1} in a sequence, but the model has {most} positions"):
        rootdk.audit(model, run=torch.full((1, most + 1), 7), context=100)


def test_models_that_are_not_run():
    small = dict(d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4, vocab_size=50, pad_token_id=0, eos_token_id=2)
    t5 = transformers.T5ForConditionalGeneration(transformers.T5Config(**small))
    moe = transformers.Qwen3MoeModel(
        transformers.Qwen3MoeConfig(
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=8,
            intermediate_size=8,
            moe_intermediate_size=8,
            num_experts=4,
            num_experts_per_tok=2,
            vocab_size=50,
            decoder_sparse_step=1,
        )
    )
    granite = transformers.GraniteModel(
        transformers.GraniteConfig(
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            intermediate_size=8,
            vocab_size=50,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )
    )
    decoder = transformers.BertModel(
        transformers.BertConfig(
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=8,
            vocab_size=50,
            is_decoder=True,
        )
    )
    for model, words in [
        (t5, "cannot be run: how a t5 model computes is not in the table"),
        (moe, "cannot be run: a mixture of experts is not run"),
        (granite, "cannot be run: its tensors are called as those of llama, but nothing says"),
        (decoder, "is_decoder is true, and only models where it is false are run"),
    ]:
        with pytest.raises(ValueError, match=words):
            rootdk.audit(model, run=[1, 2, 3])
        assert len(rootdk.audit(model)) > 0  # the weights alone are no matter


@pytest.mark.parametrize(
    "change, words",
    [
        (dict.pop, 'mlp.up_proj.weight": the checkpoint has no such tensor, which a llama model has'),
        (
            lambda tensors, name: tensors.update({name: torch.zeros(48, 31)}),
            r"its shape is \[48, 31\], but \[any, 32\] is wanted",
        ),
    ],
)
def test_tensors_that_are_missing_or_have_another_shape(change, words):
    model = made("llama")
    tensors = dict(model.state_dict())
    change(tensors, "layers.2.mlp.up_proj.weight")
    with pytest.raises(ValueError, match=f"run: .* cannot be run: .*{words}"):
        rootdk.audit(tensors, config=model.config, run=[3, 4, 5])
    assert len(rootdk.audit(tensors, config=model.config)) == 12


def test_not_finite_weights_are_reported():
    """From the layer on whose values they reach; those before are measured as ever."""
    model, ids = made("llama"), tokens("llama")
    sound = rootdk.audit(model, run=ids)
    with torch.no_grad():
        model.layers[1].mlp.down_proj.weight[0, 0] = torch.nan
    broken = rootdk.audit(model, run=ids)
    assert broken.heads[:8] == sound.heads[:8]
    for head in broken.heads[8:]:
        assert head["verdict"] == "not_finite" and head["measured"]["sigma"] is None and head["sigma"] > 0
    assert np.isnan(broken.last_hidden_state).any()
    assert "not_finite" in str(broken) or "not finite" in str(broken)
