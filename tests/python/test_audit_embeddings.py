"""What the audit expects of scores if every layer's inputs were like the model's own embeddings, against double
precision over the whole vocabulary."""

from __future__ import annotations

import numpy as np
import pytest
import rootdk

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

WIDTH, HEADS, DIM, VOCABULARY = 32, 4, 8, 300


def built(name):
    t = transformers
    small = dict(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        intermediate_size=32,
        max_position_embeddings=16,
    )
    makers = {
        "llama": lambda: t.LlamaModel(t.LlamaConfig(**small)),
        "gemma": lambda: t.GemmaModel(t.GemmaConfig(**small, head_dim=DIM, num_key_value_heads=HEADS)),
        "qwen3": lambda: t.Qwen3Model(t.Qwen3Config(**small, head_dim=DIM, num_key_value_heads=HEADS)),
        "gpt_neox": lambda: t.GPTNeoXModel(t.GPTNeoXConfig(**small)),
        "gpt2": lambda: t.GPT2Model(
            t.GPT2Config(vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=2, n_head=HEADS, n_positions=16)
        ),
        "bert": lambda: t.BertModel(t.BertConfig(**small)),
        "roberta": lambda: t.RobertaModel(t.RobertaConfig(**small)),
    }
    torch.manual_seed(sum(map(ord, name)))
    model = makers[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # nothing is as it was initialised: means, gains, biases, outlier channels
            parameter += 0.3 * torch.randn(parameter.shape[-1]) + 0.1 * torch.randn_like(parameter)
        # the same at every position, so that it does not matter which token stands where
        for table in positions_of(model):
            table.weight[:] = table.weight[-1]
            if name == "roberta":
                table.weight[:2] = 100.0  # rows before the first position
                # padding, which alone stands there; the audit leaves it out
                model.embeddings.word_embeddings.weight[1] = torch.nan
    return model


def positions_of(model):
    return [m for n, m in model.named_modules() if n.endswith(("wpe", "position_embeddings"))]


def heads_seen(model, name):
    """q and k [layers][heads, tokens, dim] of single tokens that no layer has changed yet, from hooks on the
    projections."""
    stream = {}

    def keep(key):
        def hook(module, inputs, output):
            stream[key] = output.detach()

        return hook

    handles = []
    for n, m in model.named_modules():
        if n.endswith(("q_proj", "k_proj", "query_key_value", "c_attn", "self.query", "self.key", "q_norm", "k_norm")):
            handles.append(m.register_forward_hook(keep(n)))
    with torch.no_grad():
        model(input_ids=torch.arange(VOCABULARY)[:, None])  # every token alone, at position 0
    for handle in handles:
        handle.remove()
    return stream


def first_layer(model, name):
    """q and k of layer 0 [heads, tokens, dim], in double."""
    stream = heads_seen(model, name)

    def heads(x):
        return x.reshape(VOCABULARY, HEADS, -1).transpose(0, 1).double().numpy()

    by = {n: x for n, x in stream.items() if ".0." in n}
    if name == "qwen3":
        return (heads(next(x for n, x in by.items() if n.endswith(k))) for k in ("q_norm", "k_norm"))
    if name == "gpt2":
        return map(heads, next(iter(by.values())).split(WIDTH, -1)[:2])
    if name == "gpt_neox":
        packed = heads(next(iter(by.values())))
        return packed[..., :DIM], packed[..., DIM : 2 * DIM]
    q, k = ("q_proj", "k_proj") if name in ("llama", "gemma") else ("self.query", "self.key")
    return (heads(next(x for n, x in by.items() if n.endswith(end))) for end in (q, k))


def within_rows(q, k, rotary_dims, context, base=10_000.0):
    """Variance of q·k over every key at every distance, averaged over every query."""
    half = rotary_dims // 2
    scores = []
    for distance in range(context if half else 1):
        turned = k.copy()
        if half:
            angle = -distance * base ** (-np.arange(half) / half)
            a, b = k[:, :half], k[:, half:rotary_dims]
            turned[:, :half] = a * np.cos(angle) - b * np.sin(angle)
            turned[:, half:rotary_dims] = a * np.sin(angle) + b * np.cos(angle)
        scores.append(q @ turned.T)
    return np.concatenate(scores, 1).var(1).mean()


@pytest.mark.parametrize("name", ["llama", "gemma", "qwen3", "gpt_neox", "gpt2", "bert", "roberta"])
def test_the_first_layer_is_exact(name):
    """The first layer's inputs are the embeddings, so there the numbers are those of the model itself: row by row of
    the vocabulary, factors, positions, token types and the embedding's own norm included."""
    model = built(name)
    found = rootdk.audit(model)
    rotary = {"llama": DIM, "gemma": DIM, "qwen3": DIM, "gpt_neox": DIM // 4}.get(name, 0)
    base = (getattr(model.config, "rope_parameters", None) or {}).get("rope_theta", 10_000.0)
    q, k = (x[:, np.isfinite(x).all((0, 2))] for x in first_layer(model, name))
    context = found.contexts[-1]
    for head in found.heads[:HEADS]:
        wanted = within_rows(q[head["head"]], k[head["head"]], rotary, context, base)
        # The model's own epsilon is not in the audit: 1e-5 or 1e-6 (1e-12 in BERT) beside a mean square of at least
        # 0.05.
        assert head["embeddings"]["variance"] == pytest.approx(wanted, rel=5e-4)
        assert head["ground"] == "embeddings"
        assert not head["variance"] == pytest.approx(wanted, rel=0.05), "isotropic inputs say the same"


def llama_of(embeddings, **changes):
    rng = np.random.default_rng(1)
    tensors = {"model.embed_tokens.weight": embeddings.astype(np.float32)}
    at = "model.layers.0."
    for side in "qk":
        tensors[f"{at}self_attn.{side}_proj.weight"] = (rng.standard_normal((WIDTH, WIDTH)) / 6).astype(np.float32)
    tensors[at + "input_layernorm.weight"] = np.ones(WIDTH, np.float32)
    tensors.update(changes)
    config = {"model_type": "llama", "num_attention_heads": HEADS, "max_position_embeddings": 16}
    return rootdk.audit(tensors, config=config)


def sigma_of(found):
    return np.array([head["embeddings"]["sigma"] for head in found.heads])


def test_a_sample_says_what_the_vocabulary_says():
    """Queries and keys come from two samples: one alone would make the variance too large by about
    DIM·tr(G_q)tr(G_k)/512."""
    rng = np.random.default_rng(0)
    few = rng.standard_normal((900, WIDTH)) + rng.standard_normal(WIDTH)
    whole = llama_of(few)
    # Every token six times, in an order of its own: the same vocabulary, but too large to be taken whole.
    sampled = llama_of(np.concatenate([few[rng.permutation(900)] for _ in range(6)]))
    # The standard error of a variance of 512 draws is √(2/512) = 6 %; σ has half of that, from queries and from keys.
    assert sigma_of(sampled) == pytest.approx(sigma_of(whole), rel=0.15)
    assert sigma_of(llama_of(np.repeat(few, 6, 0))).shape == (HEADS,)


def test_rows_that_say_nothing_are_left_out():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((200, WIDTH)) + 1
    clean = sigma_of(llama_of(rows))
    for bad in (np.zeros(WIDTH), np.full(WIDTH, np.nan), np.full(WIDTH, np.inf)):
        assert sigma_of(llama_of(np.concatenate([rows[:50], [bad], rows[50:], [bad]]))) == pytest.approx(
            clean, rel=1e-6
        )


@pytest.mark.parametrize("rows", [np.zeros((5, WIDTH)), np.ones((1, WIDTH)), np.full((9, WIDTH), np.nan)])
def test_without_embeddings_the_weights_speak_alone(rows):
    found = llama_of(rows)
    assert all(head["ground"] == "weights" and head.get("embeddings") is None for head in found.heads)


def test_embeddings_that_overflow_are_no_ground():
    """q and k leave f32 on them, though isotropic inputs would not."""
    loud = np.random.default_rng(0).standard_normal((50, WIDTH)).astype(np.float32)
    found = llama_of(loud, **{"model.layers.0.input_layernorm.weight": np.full(WIDTH, 1e18, np.float32)})
    for head in found.heads:
        assert (
            head["ground"] in ("weights", "embeddings")
            and np.isfinite(head["sigma"])
            or head["verdict"] == "not_finite"
        )


def test_positions_are_spread_over_the_vocabulary():
    """All tokens alike, two positions: half of the tokens stand at each, whatever order they are in."""
    rng = np.random.default_rng(0)
    token, first, second = rng.standard_normal((3, WIDTH))
    tensors = {
        "wte.weight": np.tile(token, (1000, 1)),
        "wpe.weight": np.stack([first, second]),
        "h.0.attn.c_attn.weight": rng.standard_normal((WIDTH, 3 * WIDTH)) / 6,
        "h.0.attn.c_attn.bias": np.zeros(3 * WIDTH),
        "h.0.ln_1.weight": np.ones(WIDTH),
        "h.0.ln_1.bias": np.zeros(WIDTH),
    }
    found = rootdk.audit(
        {n: x.astype(np.float32) for n, x in tensors.items()},
        config={"model_type": "gpt2", "n_head": HEADS, "n_positions": 2},
    )
    x = token + np.stack([first, second])
    x = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
    packed = (x @ tensors["h.0.attn.c_attn.weight"]).reshape(2, 3, HEADS, DIM)
    for head in found.heads:
        q, k = packed[:, 0, head["head"]], packed[:, 1, head["head"]]
        # Of 1,000 tokens 500 ± 2 stand at each: that moves the variance by (2/500)².
        assert head["embeddings"]["variance"] == pytest.approx(within_rows(q, k, 0, 1), rel=0.01)


def test_a_trained_model_is_told_better_than_by_its_weights():
    """σ of every head on rows that are new to it, as a watch sees it; of many models: ./run bench-audit-trained."""
    import trained

    folder, rows = trained.bert(), trained.rows(32, seed=1000)
    still, ran = rootdk.audit(folder), rootdk.audit(folder, run=rows)
    model = transformers.BertModel.from_pretrained(folder).eval()
    with torch.no_grad(), rootdk.watch(model) as watch:
        model(input_ids=rows)
    seen = np.concatenate([watch.stats(layer).raw_sigma[0] for layer in watch.layers])
    assert ran["measured_sigma"] == pytest.approx(seen, rel=0.01)
    weights, embeddings = (np.median(np.abs(np.log2(still[name] / seen))) for name in ("sigma", "embeddings_sigma"))
    assert weights > 0.5, "isotropic inputs tell it: nothing was tested"
    assert embeddings <= 0.6 * weights
