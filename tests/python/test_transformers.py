"""watch on Hugging Face models: randomly initialised ones built from configs, and one with real weights."""

from __future__ import annotations

import statistics
import threading
import time

import numpy as np
import pytest
import rootdk
import torch

transformers = pytest.importorskip("transformers")

import models  # noqa: E402
import trained  # noqa: E402

with rootdk.watch():  # which makes "rootdk" known
    pass
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
        return t.LlamaForCausalLM(
            t.LlamaConfig(
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                intermediate_size=64,
                **tokens,
                **SMALL,
            )
        )
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


# and what to use instead
REFUSED = {"bloom": "eager", "mpt": "eager", "codegen": "eager", "led": "eager", "falcon": "sdpa", "big_bird": "eager"}


@pytest.mark.parametrize("name", REFUSED)
def test_a_class_that_computes_attention_by_itself_is_refused(name):
    """It would take rootdk's masks for what they are not: no causality, other logits."""
    tiny = models.build(name)
    kind = type(tiny.model).__name__
    says = rf'attn_implementation="rootdk": {kind} .* use "{REFUSED[name]}"'
    with pytest.raises(ValueError, match=says):
        models.build(name, "rootdk")
    with pytest.raises(ValueError, match=says):
        transformers.AutoModelForCausalLM.from_config(
            models.config(name), attn_implementation="rootdk"
        ) if kind.endswith("CausalLM") else type(tiny.model)._from_config(
            models.config(name), attn_implementation="rootdk"
        )
    with pytest.raises(ValueError, match=says):
        tiny.model.set_attn_implementation("rootdk")
    assert tiny.model.config._attn_implementation == "eager"
    assert REFUSED[name] == ("sdpa" if tiny.model._supports_sdpa else "eager")


@pytest.mark.parametrize("name", ["bloom", "mpt", "falcon"])
def test_a_config_told_behind_the_models_back_gives_no_logits(name):
    tiny = models.build(name)
    tiny.model.config._attn_implementation = "rootdk"
    with pytest.raises(ValueError, match='attn_implementation="rootdk"'):
        tiny.model(**tiny.inputs)


def test_a_model_is_set_as_a_whole_or_not_at_all():
    """A part that is refused is found before another is changed."""
    text, refused = models.build("llama").model, models.build("splinter").model
    text.add_module("part", refused)
    with pytest.raises(ValueError, match="Splinter"):
        text.set_attn_implementation("rootdk")
    assert text.config._attn_implementation == "eager" and refused.config._attn_implementation == "eager"


def test_a_class_of_ones_own_is_taken_as_its_base_is():
    class Mine(transformers.LlamaForCausalLM):
        pass

    Mine.__module__ = "nowhere"  # as in a notebook: no source to look at
    model = Mine._from_config(models.config("llama"), attn_implementation="rootdk")
    assert model.config._attn_implementation == "rootdk"


def test_soft_caps_and_sinks_are_computed_though_sdpa_is_refused():
    for name in ("gemma2", "gpt_oss"):
        with pytest.raises(ValueError, match="scaled_dot_product_attention"):
            models.build(name, "sdpa")
        assert models.build(name, "rootdk").model.config._attn_implementation == "rootdk"


def attend(**more):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 7, 8) for _ in range(3))
    module = torch.nn.Module()
    return transformers.AttentionInterface()["rootdk"](module, q, k, v, more.pop("attention_mask", None), **more)[0], (
        q,
        k,
        v,
    )


@pytest.mark.parametrize(
    "given, says",
    [
        (dict(output_attentions=True), "output_attentions"),
        (dict(head_mask=torch.ones(4)), "head_mask"),
        (dict(indices=torch.zeros(2, 7, 3, dtype=torch.long)), "indices"),
        (dict(block_indices=torch.zeros(2, 1, 7, 3, dtype=torch.long)), "block_indices"),
        (dict(cache=object()), "paged cache"),
        (dict(cu_seq_lens_q=torch.tensor([0, 3, 7])), "packs 2 sequences"),
        (dict(sliding_window=3, is_causal=False), "sliding_window of 3"),
        (dict(attention_mask=torch.ones(2, 7)), "attention_mask: 2 axes"),
    ],
)
def test_what_would_change_the_result_is_refused(given, says):
    with pytest.raises(ValueError, match=says):
        attend(**given)


def test_what_changes_nothing_is_taken():
    plain, (q, k, v) = attend()
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    assert torch.allclose(plain, expected, atol=1e-6)
    for more in (
        dict(output_attentions=False, head_mask=None, indices=None, cache=None),
        dict(sliding_window=7),
        dict(position_ids=torch.arange(7)[None]),
        dict(cu_seq_lens_q=torch.tensor([0, 7])),
        dict(use_cache=True),
    ):
        assert torch.equal(attend(**more)[0], plain)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_packed_sequences_may_come_without_a_mask(mode):
    """Tensors made in inference mode count no versions."""
    with mode():
        starts = torch.tensor([0, 3, 7])
        q, k, v = (torch.randn(1, 4, 7, 8) for _ in range(3))
        attention = transformers.AttentionInterface()["rootdk"]
        for end in (3, 4):  # written to in between
            starts[1] = end
            found, _ = attention(torch.nn.Module(), q, k, v, None, cu_seq_lens_q=starts, cu_seq_lens_k=starts)
            for piece in (slice(0, end), slice(end, 7)):
                parts = (x[:, :, piece] for x in (q, k, v))
                expected = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
                assert torch.allclose(found[:, piece].transpose(1, 2), expected, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["is_causal", "position_bias", "softcap", "s_aux", "one_mask", "longer_mask", "lengths"]
)
def test_what_changes_the_result_is_computed(name):
    """Against attention written out in double."""
    g = torch.Generator().manual_seed(3)
    later = torch.ones(7, 7, dtype=torch.bool).triu(1)
    said, bias, hidden, cap, sink = {}, 0, later, None, None
    if name == "is_causal":
        said, hidden = dict(is_causal=False), torch.zeros(7, 7, dtype=torch.bool)
    if name == "position_bias":
        bias = torch.randn(1, 4, 7, 7, generator=g)
        said = dict(position_bias=torch.cat((bias, bias), 3))  # a cache's, longer than there are keys
    if name == "softcap":
        said, cap = dict(softcap=0.4), 0.4
    if name == "s_aux":
        sink = torch.randn(4, generator=g)
        said = dict(s_aux=sink)
    if name in ("one_mask", "longer_mask"):  # of the first item's padding, for both
        hidden = later.clone()
        hidden[:, :2] = True
        mask = ~hidden[None, None]
        said = dict(attention_mask=torch.nn.functional.pad(mask, (0, 2)) if name == "longer_mask" else mask)
    found, (q, k, v) = attend(**said)
    if name == "lengths":  # of queries and of keys
        ends = dict(cu_seq_lens_q=torch.tensor([0, 2, 5]), cu_seq_lens_k=torch.tensor([0, 3, 7]))
        q, k, v = q[:1, :, :5], k[:1], v[:1]
        attention = transformers.AttentionInterface()["rootdk"]
        found = attention(torch.nn.Module(), q, k, v, None, **ends)[0]
        hidden = torch.ones(5, 7, dtype=torch.bool)
        for rows, keys in ((slice(0, 2), slice(0, 3)), (slice(2, 5), slice(3, 7))):
            hidden[rows, keys] = hidden[rows, keys].triu(2)
    q, k, v = (x.double() for x in (q, k, v))
    s = q @ k.mT * 8**-0.5
    s = (s if cap is None else cap * torch.tanh(s / cap)) + bias
    s = s.masked_fill(hidden, float("-inf"))
    alone = hidden.all(-1)[:, None]
    e = torch.where(alone, 0, (s - s.amax(-1, keepdim=True).clamp(min=-1e3)).exp())
    total = e.sum(-1, keepdim=True)
    if sink is not None:
        total = total + (sink[:, None, None] - s.amax(-1, keepdim=True)).exp()
    wanted = torch.where(alone, 0, e / total) @ v
    torch.testing.assert_close(found.transpose(1, 2).double(), wanted, rtol=1.3e-6, atol=1e-5)  # float32's, of torch


def test_dropout_is_computed():
    plain, _ = attend()
    assert not torch.equal(attend(dropout=0.5)[0], plain)


def test_a_learned_scaling_learns():
    scaling = torch.tensor(0.3, requires_grad=True)
    out, (q, k, v) = attend(scaling=scaling)
    same, _ = attend(scaling=0.3)
    assert torch.allclose(out, same, atol=1e-6)
    out.square().sum().backward()
    twin = torch.tensor(0.3, requires_grad=True)
    scores = (q @ k.transpose(-1, -2)) * twin
    scores = scores.masked_fill(torch.ones(7, 7).triu(1).bool(), float("-inf"))
    (scores.softmax(-1) @ v).square().sum().backward()
    assert scaling.grad.item() == pytest.approx(twin.grad.item(), rel=1e-4)


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_packed_sequences_and_static_caches_are_as_in_eager(name):
    eager, ours = models.build(name), models.build(name, "rootdk")
    ids = eager.inputs["input_ids"][:1]
    places = torch.cat([torch.arange(6), torch.arange(11)])[None]
    for given in (dict(position_ids=places), dict(past_key_values="static"), dict(past_key_values="static", one=True)):
        outputs = []
        for tiny in (eager, ours):
            options = dict(given)
            one = options.pop("one", False)
            if "past_key_values" in options:
                options["past_key_values"] = transformers.StaticCache(tiny.model.config, max_cache_len=32)
            with torch.no_grad():
                out = [tiny.model(ids[:, :1] if one else ids, **options).logits]
                if "past_key_values" in options:  # and a chunk of four after it
                    out.append(tiny.model(ids[:, 1:5], **options).logits)
            outputs.append(torch.cat(out, 1))
        limit = models.rounding(eager.model.config, 17) * outputs[0].abs().max()
        assert (outputs[0] - outputs[1]).abs().max() <= limit, given


def test_it_compiles_as_one_graph():
    tiny = models.build("llama", "rootdk")
    with torch.no_grad():
        expected = tiny.model(**tiny.inputs).logits
        torch._dynamo.reset()
        found = torch.compile(tiny.model, backend="eager", fullgraph=True)(**tiny.inputs).logits
    torch._dynamo.reset()
    assert (found - expected).abs().max() <= models.rounding(tiny.model.config, 17) * expected.abs().max()


@pytest.mark.parametrize("name", ["sam", "gptj"])
def test_a_table_of_its_own_classes_has_none_for_us(name):
    kind = models.model_class(name)
    with pytest.raises(ValueError, match=f'attn_implementation="rootdk": {kind.__name__}'):
        kind._from_config(models.config(name), attn_implementation="rootdk")


def test_sparse_attention_by_indices_is_refused_not_computed_densely():
    tiny = models.build("deepseek_v32", "rootdk")
    with pytest.raises(ValueError, match="indices"), torch.no_grad():
        tiny.model(**tiny.inputs)


def test_many_threads_make_it_known_once():
    from rootdk._watch.transformers import register_with_transformers

    before = (
        transformers.PreTrainedModel.get_correct_attn_implementation,
        transformers.PreTrainedModel.set_attn_implementation,
    )
    threads = [threading.Thread(target=register_with_transformers) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert before == (
        transformers.PreTrainedModel.get_correct_attn_implementation,
        transformers.PreTrainedModel.set_attn_implementation,
    )
    assert not hasattr(before[0].__wrapped__, "__wrapped__")


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5"])
def test_training_under_watch(name):
    model = build(name).train()
    for config in (model.config,):
        for key in (
            "hidden_dropout_prob",
            "attention_probs_dropout_prob",
            "attn_pdrop",
            "resid_pdrop",
            "embd_pdrop",
            "dropout_rate",
        ):
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


def test_trained_weights():
    model = transformers.BertModel.from_pretrained(trained.bert()).eval()
    ids = trained.rows(1, seed=1000)
    with torch.no_grad():
        expected = model(input_ids=ids)[0]
        with rootdk.watch(model) as w:
            found = model(input_ids=ids)[0]
        model.set_attn_implementation("eager")
        weights = model(input_ids=ids, output_attentions=True).attentions
    assert (expected - found).abs().max() < 1e-4 * expected.abs().max()
    assert len(w.layers) == 3
    for layer, p in zip(w.layers, weights):
        p = p[0].double().numpy()
        stats = w.stats(layer)
        np.testing.assert_allclose(stats.mean_p_max[0], p.max(-1).mean(-1), rtol=1e-3)
        np.testing.assert_allclose(stats.entropy[0], -(p * np.log(p)).sum(-1).mean(-1), rtol=1e-3)


def test_watching_costs_less_than_a_third():
    """6-layer BERT, length 512, forward on the CPU: median of paired ratios."""
    torch.manual_seed(0)
    model = bert(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536, vocab_size=1000
    ).eval()
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
