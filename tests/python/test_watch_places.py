"""rootdk.watch names what it saw: the right step, layer and watch, whoever calls, in whatever thread; and what it did
not see."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import math
import pickle
import re
import threading
import warnings

import numpy as np
import pytest
import rootdk
import torch
import torch.nn.functional as F
from test_watch import Attention, Model
from torch.utils.checkpoint import checkpoint


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(3)


def rows_of(w, *names):
    return {(r["step"], r["layer"], r["head"]): [r[name] for name in names] for r in w.to_dicts()}


def in_thread(function):
    failures = []

    def run():
        try:
            function()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


# Threads --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("way", ["sdpa", "divided"])
def test_a_model_that_runs_in_another_thread_is_seen(way):
    model, x = Model(way=way).eval(), torch.randn(2, 9, 32)
    with rootdk.watch(model) as here:
        model(x)
    with rootdk.watch(model) as w:
        in_thread(lambda: model(x))
    assert rows_of(w, "entropy", "raw_max") == rows_of(here, "entropy", "raw_max") and w.step == 0
    assert torch._C._len_torch_function_stack() == 0


def test_two_watches_in_two_threads_keep_apart():
    """Through transformers, whose functions are found in a table that all threads share."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        vocab_size=50,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    models = [transformers.BertModel(config).eval() for _ in range(2)]
    for model in models:
        with rootdk.watch(model):
            model.set_attn_implementation("rootdk")
    barrier, found = threading.Barrier(2), {}

    def work(number):
        ids = torch.arange(5 + 3 * number)[None]
        barrier.wait()
        with rootdk.watch(models[number]) as w, torch.no_grad():
            barrier.wait()
            for _ in range(20):
                models[number](input_ids=ids)
            barrier.wait()
        found[number] = {(r["step"], round(r["keys"])) for r in w.to_dicts()}

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: {(step, 5 + 3 * n) for step in range(20)} for n in range(2)}


def test_one_model_in_two_threads_at_once_counts_every_call():
    model = Model(causal=False).eval()
    lengths = [5, 6, 7, 8]
    with rootdk.watch(model) as w:
        threads = [
            threading.Thread(target=lambda n=n: [model(torch.randn(1, n, 32)) for _ in range(10)]) for n in lengths
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    seen = {(r["step"], r["layer"]): round(r["keys"], 3) for r in w.to_dicts()}
    assert {step for step, _ in seen} == set(range(40)) and w.layers == ["layers.0", "layers.1"]
    assert all(seen[step, "layers.0"] == seen[step, "layers.1"] for step in range(40))  # never of two calls
    assert sorted(seen[step, "layers.0"] for step in range(40)) == sorted(10 * lengths)


# Several watches ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("way", ["sdpa", "divided"])
def test_both_of_two_watches_see(way):
    model, x = Model(way=way).eval(), torch.randn(2, 200, 32)
    with rootdk.watch(model) as alone:
        expected = model(x)
        expected.sum().backward()
    with rootdk.watch(model, sample=2) as outer, rootdk.watch(model.layers[1]) as inner, rootdk.watch() as anything:
        found = model(x)
        found.sum().backward()
    assert torch.equal(expected, found)
    names = ("entropy", "raw_max", "score_sigma", "d_scores")
    whole = rows_of(alone, *names)
    assert rows_of(outer, *names) == whole
    assert rows_of(inner, *names) == {(s, "(root)", h): v for (s, layer, h), v in whole.items() if layer == "layers.1"}
    assert anything.layers == ["attention", "attention#2"]
    assert [v for (_, layer, _), v in rows_of(anything, *names).items() if layer == "attention"] == [
        v for (_, layer, _), v in whole.items() if layer == "layers.0"
    ]


def test_a_model_beside_the_watched_one_is_not_taken_for_it():
    policy, reference = Model().eval(), Model().eval()
    x = torch.randn(1, 6, 32)
    with pytest.warns(RuntimeWarning, match="outside"), rootdk.watch(policy) as w:
        policy(x)
        reference(torch.randn(1, 11, 32))
    assert {round(r["keys"], 2) for r in w.to_dicts()} == {round(float(w.stats("layers.0").keys[0, 0]), 2)}
    assert list(w.unseen) == ["(outside)"] and w.layers == ["layers.0", "layers.1"]


def test_copies_of_a_watched_model_are_not_watched():
    model, x = Model(layers=1).eval(), torch.randn(1, 6, 32)
    with rootdk.watch(model) as w:
        twin = copy.deepcopy(model)
        again = pickle.loads(pickle.dumps(model))
        buffer = io.BytesIO()
        torch.save(model, buffer)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of calls outside of the model
            assert torch.equal(twin(x), again(x))
        assert w.layers == [] and w.step == -1
        model(x)
    assert w.layers == ["layers.0"] and w.step == 0


# Steps ----------------------------------------------------------------------------------------------------------------
class Parts(torch.nn.Module):
    """As Lightning does it: what trains is not forward."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = Model(layers=1), Model(layers=1)

    def training_step(self, x):
        return self.decoder(self.encoder(x))


def test_parts_that_are_called_on_their_own():
    model = Parts()
    with rootdk.watch(model) as w:
        for n in (5, 6, 7):
            model.training_step(torch.randn(1, n, 32)).sum().backward()
    assert w.layers == ["encoder.layers.0", "decoder.layers.0"] and w.step == 2
    for step, layer, _ in (found := rows_of(w, "keys", "d_scores")):
        assert found[step, layer, 0] == found[step, "encoder.layers.0", 0][:1] + found[step, layer, 0][1:]
        assert math.isfinite(found[step, layer, 0][1])
    assert len(found) == 3 * 2 * 4


@pytest.mark.parametrize("way, beside", [("sdpa", False), ("sdpa", True), ("divided", False)])
def test_gradients_belong_to_their_own_step(way, beside):
    """DPO and contrastive losses: two forwards, then one backward."""
    model = Model(way=way).eval()
    one, two = torch.randn(1, 12, 32), 3 * torch.randn(1, 12, 32)
    apart = {}
    for step, x in enumerate((one, two)):
        with rootdk.watch(model, beside=beside) as w:
            (model(x).square().mean() * (1 + step)).backward()
        apart |= {(step, layer, head): values for (_, layer, head), values in rows_of(w, "d_scores", "d_q").items()}
    with rootdk.watch(model, beside=beside) as w:
        (model(one).square().mean() + 2 * model(two).square().mean()).backward()
    found = rows_of(w, "d_scores", "d_q")
    assert found.keys() == apart.keys()
    for key, values in apart.items():
        assert found[key] == pytest.approx(values, rel=1e-4, nan_ok=True), key
    assert any(math.isfinite(v) and v > 0 for values in found.values() for v in values)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("every", [1, 2])
def test_checkpoints_of_two_forwards_belong_to_their_own_step(reentrant, every):
    class Checkpointed(Model):
        def forward(self, x):
            for layer in self.layers:
                x = x + checkpoint(layer, x, use_reentrant=reentrant)
            return x

    model = Checkpointed(layers=2)
    inputs = [(n * torch.randn(1, 12, 32)).requires_grad_() for n in (1, 2, 3)]
    apart = {}
    for step, x in enumerate(inputs):
        with rootdk.watch(model) as w:
            model(x).square().mean().backward()
        apart |= {
            (step, layer, head): v
            for (_, layer, head), v in rows_of(w, "d_scores", "entropy").items()
            if step % every == 0
        }
    with rootdk.watch(model, every=every) as w:
        sum(model(x).square().mean() for x in inputs).backward()
    found = rows_of(w, "d_scores", "entropy")
    assert found.keys() == apart.keys() and w.step == 2
    for key, values in apart.items():
        assert found[key] == pytest.approx(values, rel=1e-4), key


def test_an_exception_in_the_model_leaves_nothing_behind():
    class Raises(Model):
        def forward(self, x):
            x = self.layers[0](x)
            if x.shape[1] == 7:
                raise KeyError("seven")
            return self.layers[1](x)

    model = Raises()
    with rootdk.watch(model) as w:
        for n in (5, 7, 6):
            try:
                model(torch.randn(1, n, 32))
            except KeyError:
                pass
    assert {(r["step"], r["layer"]) for r in w.to_dicts()} == {
        (0, "layers.0"),
        (0, "layers.1"),
        (1, "layers.0"),
        (2, "layers.0"),
        (2, "layers.1"),
    }
    assert torch._C._len_torch_function_stack() == 0


# What was not seen ----------------------------------------------------------------------------------------------------
class HiddenAttention(torch.nn.Module):
    """Its softmax is in a function that no mode sees into."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            with torch._C.DisableTorchFunction():
                return torch.softmax(x @ x.transpose(-1, -2), -1) @ x

    def forward(self, x):
        return self.Function.apply(x)


def test_what_was_not_seen_is_named_once(tmp_path):
    model = torch.nn.Sequential(Attention(), torch.nn.ModuleDict({"inner": HiddenAttention()})["inner"])
    model.eval()
    with pytest.warns(RuntimeWarning, match="1: HiddenAttention") as said, rootdk.watch(model) as w:
        for _ in range(3):
            model(torch.randn(1, 6, 32))
    assert len([s for s in said if "HiddenAttention" in str(s.message)]) == 1
    assert list(w.unseen) == ["1"] and w.layers == ["0"]
    assert "Not seen" in w.table() and "HiddenAttention" in w.table()
    data = json.loads(re.search(r'id="results">(.*?)</script>', w.report(tmp_path / "r.html").read_text(), re.S)[1])
    assert data["unseen"] == dict(w.unseen)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("whole", [False, True])
def test_a_compiled_model_runs_as_if_unwatched_and_is_named(backend, whole):
    import torch._dynamo as dynamo

    dynamo.reset()
    model, x = Model().eval(), torch.randn(1, 9, 32)
    expected = model(x)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    compiled(x)
    dynamo.utils.counters.clear()
    with pytest.warns(RuntimeWarning, match="torch.compile"), rootdk.watch(compiled if whole else model) as w:
        for _ in range(20):
            torch.testing.assert_close(compiled(x), expected, rtol=1e-5, atol=1e-6)
    assert not dynamo.utils.counters["graph_break"] and dynamo.utils.counters["stats"]["unique_graphs"] <= 2
    assert w.unseen and all("torch.compile" in why or "compiled graph" in why for why in w.unseen.values())
    assert w.layers == []  # what is named is not counted as well, as the whole model's
    if whole:
        assert {"_orig_mod.layers.0", "_orig_mod.layers.1"} <= w.unseen.keys() and w.step == 19
    compiled(x)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_model_that_is_compiled_in_place_is_named_by_its_modules(backend):
    """Its own hooks are not called, but it is not outside of itself."""
    torch._dynamo.reset()
    model, x = Model(way="divided").eval(), torch.randn(1, 9, 32)
    expected = model(x)
    model.compile(backend=backend)
    with pytest.warns(RuntimeWarning, match="torch.compile"), rootdk.watch(model) as w:
        for _ in range(2):
            torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-6)
    assert [*w.unseen] == ["layers.0", "layers.1"] and not w.layers


def test_a_model_that_is_compiled_while_it_is_watched_is_named():
    torch._dynamo.reset()
    model, x = Model(way="divided").eval(), torch.randn(1, 9, 32)
    with pytest.warns(RuntimeWarning, match="torch.compile"), rootdk.watch(model) as w:
        model(x)
        model.compile(backend="eager")
        model(x)
    assert w.layers == ["layers.0", "layers.1"] and [*w.unseen] == ["(outside)"]


@pytest.mark.parametrize("way", ["sdpa", "divided"])
@pytest.mark.parametrize("compiles", ["in place", "wrapped", "its attention"])
def test_a_part_that_is_compiled_is_named_and_the_others_are_seen(compiles, way):
    """backend="eager" calls torch's functions from the graph, where the watch sees them, but not whose they are."""
    torch._dynamo.reset()

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = Attention(way=way)

        def forward(self, x):
            return x + self.attention(x)

    model, x = torch.nn.Sequential(Block(), Block()).eval(), torch.randn(1, 9, 32)
    expected = model(x)
    if compiles == "in place":
        model[1].compile(backend="eager")
    elif compiles == "wrapped":
        model[1] = torch.compile(model[1], backend="eager")
    else:
        model[1].attention.compile(backend="eager")
    with pytest.warns(RuntimeWarning, match="torch.compile"), rootdk.watch(model) as w:
        for _ in range(3):
            torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-6)
    assert w.layers == ["0.attention"]
    assert list(w.unseen) == ["1._orig_mod.attention" if compiles == "wrapped" else "1.attention"]
    assert {(r["step"], r["layer"]) for r in w.to_dicts()} == {(step, "0.attention") for step in range(3)}


class Block(torch.nn.Module):
    """Attention in a class whose name does not say so, by a function that may be compiled."""

    def __init__(self, way, compiled=None):
        super().__init__()
        self.qkv = torch.nn.Linear(16, 48)
        self.attention = {"sdpa": F.scaled_dot_product_attention, "divided": self.divided}[way]
        if compiled is not None:
            self.attention = torch.compile(self.attention, backend=compiled)

    @staticmethod
    def divided(q, k, v):
        return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1) @ v

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (2, 8)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        return x + self.attention(q, k, v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("way", ["sdpa", "divided"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("compiles", ["in place", "wrapped", "function", "all"])
def test_compiled_attention_is_named_whatever_its_class(compiles, backend, way):
    torch._dynamo.reset()
    learns, blocks = way == "divided", 2 if compiles == "all" else 11  # "10" begins with "1", and is another
    model, x = torch.nn.Sequential(*(Block(way) for _ in range(blocks))), torch.randn(1, 9, 16)
    if compiles == "in place":
        model[1].compile(backend=backend)
    elif compiles == "wrapped":
        model[1] = torch.compile(model[1], backend=backend)
    elif compiles == "function":
        model[1] = Block(way, backend)
    else:
        model = torch.compile(model, backend=backend)
    with torch.set_grad_enabled(learns):
        expected = model(x)
        with pytest.warns(RuntimeWarning, match="Not seen") as said, rootdk.watch(model) as w:
            for _ in range(2):
                torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-6)
    named, others = ("(root)", []) if compiles == "all" else ("1", [str(n) for n in range(blocks) if n != 1])
    assert [*w.unseen] == [named] and w.layers == others
    assert "torch.compile" in w.unseen[named] or "compiled graph" in w.unseen[named]
    assert sum("Not seen" in str(s.message) for s in said) == 1


class Routed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.score, self.experts = torch.nn.Linear(16, 4), torch.nn.Linear(16, 64)

    def forward(self, x):
        return (self.score(x).softmax(-1)[..., None] * self.experts(x).unflatten(-1, (4, 16))).sum(-2)


def test_compiled_parts_that_hold_no_attention_are_not_named():
    """Layers of PyTorch's own compute none; what a function does is seen, a router among it; what was seen inside of a
    part, whose graph is broken there, was seen."""
    torch._dynamo.reset()

    class Calls(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.routed = Routed()
            self.function = torch.compile(self.routed.forward, backend="aot_eager")

        def forward(self, x):
            return x + self.function(x)

    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Block("divided")

        @torch._dynamo.disable
        def eagerly(self, x):
            return self.inner(x)

        def forward(self, x):
            return 2 * self.eagerly(2 * x)

    layers = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.Softmax(-1))
    model = torch.nn.Sequential(layers, Block("sdpa"), Calls(), Outer())
    model[0].compile(backend="aot_eager")
    model[3].compile(backend="aot_eager")
    x = torch.randn(1, 9, 16)
    expected = model(x)
    with rootdk.watch(model) as w:
        torch.testing.assert_close(model(x), expected)
    assert not w.unseen and w.layers == ["1", "3.inner"]


def test_the_watch_is_not_compiled_with_what_runs_between_graphs():
    """Dynamo runs a loop that breaks its graph as it is, and compiles what is called there function by function."""
    torch._dynamo.reset()

    class Loop(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(16, 16)

        def forward(self, x):
            x = self.layer(x)
            torch._dynamo.graph_break()
            for _ in range(2):
                x = torch.softmax(x @ x.mT, -1) @ x
                torch._dynamo.graph_break()
            return x

    model, x = Loop(), torch.randn(2, 9, 16)
    expected = model(x)
    compiled = torch.compile(model, backend="eager")
    with rootdk.watch(compiled) as w:
        torch.testing.assert_close(compiled(x), expected)
    assert w.layers or w.unseen


def test_a_model_compiled_by_inductor_trains_watched_as_unwatched(compiler):
    """What a compiled part computes is named, by kernels that it calls or because nobody can know; the rest is seen."""
    torch._dynamo.reset()
    x = torch.randn(2, 9, 16)

    def run(watched):
        torch.manual_seed(5)
        model = torch.nn.Sequential(Block("sdpa"), Block("sdpa"), Block("divided"))
        model[1].compile(backend="inductor")
        model[2] = torch.compile(model[2], backend="inductor")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with rootdk.watch(model) if watched else contextlib.nullcontext() as w:
            losses = []
            for _ in range(3):
                loss = model(x).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
        return w, torch.stack(losses), [*model.parameters()]

    _, losses, weights = run(watched=False)
    with pytest.warns(RuntimeWarning, match="Not seen"):
        w, found, trained = run(watched=True)
    assert losses[2] < losses[0]
    torch.testing.assert_close([found, *trained], [losses, *weights], rtol=1e-5, atol=1e-6)
    assert w.layers == ["0"] and [*w.unseen] == ["1", "2"] and w.step == 2
    assert all("torch.compile" in why or "compiled graph" in why for why in w.unseen.values())


# Not to be hooked -----------------------------------------------------------------------------------------------------
class Scores(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x @ x.transpose(-1, -2), -1) @ x


class Fused(torch.nn.Module):
    def forward(self, x, twice: bool = True):
        if twice:
            x = F.scaled_dot_product_attention(x, x, x)
        return x


class Gate(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        return torch.softmax(self.layer(x), -1)


def hooks_of(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Not seen")
@pytest.mark.parametrize("kind, attends", [(Scores, True), (Fused, True), (Gate, False)])
@pytest.mark.parametrize("how", ["script", "trace"])
def test_a_part_of_torch_jit_runs_as_unwatched_and_is_named_if_it_attends(kind, attends, how):
    x = torch.randn(2, 2, 5, 8)
    part = torch.jit.script(kind()) if how == "script" else torch.jit.trace(kind(), x)
    for model, name in ((torch.nn.Sequential(torch.nn.Identity(), part, Call(kind())), "1"), (part, "(root)")):
        expected, before = model(x), hooks_of(torch.nn.Sequential(*model.children()))
        with warnings.catch_warnings(record=True) as said:
            with rootdk.watch(model) as w:
                torch.testing.assert_close(model(x), expected)
        assert torch.equal(model(x), expected) and hooks_of(torch.nn.Sequential(*model.children())) == before
        assert [*w.unseen] == ([name] if attends else []) and all("torch.jit" in why for why in w.unseen.values())
        assert sum("torch.jit" in str(s.message) for s in said) == attends
        assert w.layers == (["2.function"] if attends and name == "1" else [])


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["register_forward_pre_hook", "register_forward_hook"])
def test_a_watch_that_cannot_be_opened_leaves_the_model_as_it_was(where, error):
    def refuse(*_, **__):
        raise error

    model, x = torch.nn.Sequential(Attention(), torch.nn.Identity()).eval(), torch.randn(1, 5, 32)
    expected = model(x)
    setattr(model[1], where, refuse)
    watch = rootdk.watch(model)
    if error is RuntimeError:  # a module that takes no hooks runs as part of the one that calls it
        with watch:
            torch.testing.assert_close(model(x), expected)
            assert hooks_of(model[1]) == 0
        assert watch.layers == ["0"]
    else:
        with pytest.raises(KeyboardInterrupt):
            watch.__enter__()
    assert hooks_of(model) == 0 and torch._C._len_torch_function_stack() == 0
    assert torch.equal(model(x), expected)
    delattr(model[1], where)
    with watch:
        model(x)
    assert watch.layers == ["0"]


def test_flex_attention_runs_as_if_unwatched_and_is_named():
    flex = pytest.importorskip("torch.nn.attention.flex_attention")

    class Flex(torch.nn.Module):
        def forward(self, x):
            block_mask = flex.create_block_mask(
                lambda b, h, i, j: j <= i, None, None, 16, 16, device="cpu", BLOCK_SIZE=16
            )
            return flex.flex_attention(x, x, x, score_mod=lambda s, b, h, i, j: s + (j - i), block_mask=block_mask)

    model, x = Flex(), torch.randn(1, 2, 16, 16)
    expected = model(x)
    with pytest.warns(RuntimeWarning, match="flex_attention"), rootdk.watch(model) as w:
        assert torch.equal(model(x), expected)
    assert "flex_attention" in w.unseen["(root)"] and w.layers == []


# Masks of numbers -----------------------------------------------------------------------------------------------------
class Masked(torch.nn.Module):
    """Attention with a mask that is added."""

    def __init__(self, mask, eager, size=1.0):
        super().__init__()
        self.mask, self.eager, self.size = mask, eager, size

    def forward(self, x):
        q = k = x * self.size
        if not self.eager:
            return F.scaled_dot_product_attention(q, k, x, attn_mask=self.mask)
        return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + self.mask, -1) @ x


def causal(low, n=20, pad=0):
    mask = torch.zeros(1, 1, n, n).masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), low)
    mask[..., :pad] = low
    return mask


NAMES = ("score_sigma", "sigma_ratio", "entropy", "mean_p_max", "keys", "score_max", "trace_j", "raw_sigma")


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("low", [-100.0, -1e4, -1e9, torch.finfo(torch.float32).min])
def test_a_mask_of_large_numbers_hides(low, eager):
    x = torch.randn(2, 3, 20, 8)
    with rootdk.watch(Masked(causal(-math.inf), eager)) as w:
        w.model(x)
    expected = rows_of(w, *NAMES)
    model = Masked(causal(low), eager)
    plain = model(x)
    with rootdk.watch(model) as w:
        found = model(x)
    torch.testing.assert_close(found, plain, rtol=2e-6, atol=2e-6)
    for key, values in rows_of(w, *NAMES).items():
        assert values == pytest.approx(expected[key], rel=1e-4, abs=1e-5)
    assert "instead of -inf: " in w.table()


@pytest.mark.parametrize("eager", [False, True])
def test_rows_that_such_a_mask_hides_altogether_keep_their_output_and_do_not_count(eager):
    x = torch.randn(1, 2, 20, 8)
    low = torch.finfo(torch.float32).min
    model = Masked(causal(low, pad=5), eager)
    plain = model(x)
    with rootdk.watch(model, rows=20) as w:
        found = model(x)
    assert torch.equal(plain, found)  # the mean of all values in rows 0 to 4
    stats = w.stats(w.layers[0])
    assert (stats.rows_masked == 5).all() and (stats.score_sigma < 3).all()


def test_masks_that_were_added_to_each_other():
    x = torch.randn(1, 2, 20, 8)
    found = []
    for low in (-1e9, -math.inf):
        with rootdk.watch(Masked(causal(low) + causal(low, pad=1)[..., :, :] * 1.0, False), rows=20) as w:
            w.model(x)
        found.append(rows_of(w, "score_sigma", "keys"))
    for key, values in found[1].items():
        assert found[0][key] == pytest.approx(values, rel=1e-4)


@pytest.mark.parametrize("eager", [False, True])
def test_a_bias_is_no_mask(eager):
    """ALiBi reaches far down, but evenly."""
    distance = torch.arange(300)[None, :] - torch.arange(300)[:, None]
    bias = (-0.5 * distance.abs())[None, None].float()
    x = torch.randn(1, 2, 300, 8)
    with rootdk.watch(Masked(bias, eager)) as w:
        w.model(x)
    assert float(w.stats(w.layers[0]).keys[0, 0]) == pytest.approx(300) and "instead of" not in w.table()
    assert float(w.stats(w.layers[0]).score_sigma[0, 0]) > 30


@pytest.mark.parametrize("eager", [False, True])
def test_a_mask_that_biases_come_near_to_is_said_to_be_taken_for_scores(eager, tmp_path):
    """ALiBi down to −6,000 beside −1e4: a gap, but not half of the range."""
    distance = torch.arange(300)[None, :] - torch.arange(300)[:, None]
    bias = (-20.0 * distance.abs())[None, None].float()
    x = torch.randn(1, 2, 300, 8)
    for mask, said in ((bias, False), (bias + causal(-1e4, 300), True), (bias + causal(-math.inf, 300), False)):
        with rootdk.watch(Masked(mask, eager)) as w:
            w.model(x)
        assert "instead of" not in w.table()
        for text in (w.table(), w.report(tmp_path / "report.html").read_text()):
            assert ("taken for scores" in text) == said
        assert not said or float(w.stats(w.layers[0]).score_sigma.max()) > 2000


@pytest.mark.parametrize("eager", [False, True])
def test_a_mask_that_scores_outweigh_everywhere_hides_nothing(eager):
    """−100 beside a key whose scores are 100."""
    x = torch.zeros(1, 1, 4, 8)
    x[..., 0] = 1
    x[..., 3, 0] = 100 * math.sqrt(8)
    mask = torch.zeros(1, 1, 4, 4)
    mask[..., :3, 3] = -100
    with rootdk.watch(Masked(mask, eager)) as w:
        w.model(x)
    assert not w.unseen
    stats = w.stats(w.layers[0])
    assert float(stats.keys[0, 0]) == pytest.approx(4) and float(stats.score_max[0, 0]) > 1e4


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("size", [100.0, 1000.0])
def test_numbers_that_do_not_hide_for_certain_change_no_output(size, eager):
    """Scores as large as the mask: −1e4 does not hide here, and the output is the model's own."""
    x = torch.randn(1, 2, 20, 8)
    model = Masked(causal(-1e4), eager, size=size)
    plain = model(x)
    with rootdk.watch(model, rows=20) as w:
        assert torch.equal(model(x), plain)
    assert not w.unseen
    assert np.isfinite([v for values in rows_of(w, *NAMES).values() for v in values]).all()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_run_as_unwatched_and_are_named(layout):
    """Those of the older layout have no shape that anybody could ask for."""

    class Ragged(torch.nn.Module):
        def forward(self, x):
            if layout == torch.jagged:
                x = torch.nested.nested_tensor([x[0], x[1, :4]], layout=layout).unflatten(-1, (2, 4)).transpose(1, 2)
            else:
                x = torch.nested.nested_tensor([y.unflatten(-1, (2, 4)).transpose(0, 1) for y in (x[0], x[1, :4])])
            return torch.nested.to_padded_tensor(F.scaled_dot_product_attention(x, x, x).contiguous(), 0.0)

    model, x = Ragged(), torch.randn(2, 6, 8)
    expected = model(x)
    with pytest.warns(RuntimeWarning, match="Not seen"), rootdk.watch(model) as w:
        assert torch.equal(model(x), expected)
    assert not w.layers and w.unseen == {"(root)": "scaled_dot_product_attention: of nested tensors"}


# Causes ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("implementation", ["eager", "sdpa", "rootdk"])
@pytest.mark.parametrize("name", ["opt", "whisper"])
def test_a_query_that_was_scaled_before_is_scaled(name, implementation):
    """OPT and Whisper multiply q, not q·k: their scale is 1/√d_k all the same, and the words must not say that it is
    missing."""
    import models

    tiny = models.build(name, implementation)
    with torch.no_grad(), rootdk.watch(tiny.model) as w:
        tiny.model(**tiny.inputs)
    assert w.layers
    for layer in w.layers:
        stats = w.stats(layer)
        dim = tiny.model.get_submodule(layer).head_dim
        np.testing.assert_allclose(stats.scale[0], dim**-0.5, rtol=1e-5)
        assert "not scaled" not in stats.judge_head(0).words
        # σ² = c²·d·σ_q²·σ_k²·alignment, with whatever scale and queries the two sides agree on
        product = stats.scale**2 * dim * stats.sigma_q**2 * stats.sigma_k**2 * stats.alignment
        np.testing.assert_allclose(product, stats.raw_sigma**2, rtol=2e-2)


# Looking must not break what it looks at ------------------------------------------------------------------------------
class Call(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


@pytest.mark.parametrize(
    "q",
    [
        torch.randn(2, 4, 8, 8),
        torch.randn(2, 8, 4, 8).transpose(1, 2),
        torch.randn(1, 4, 8, 8).expand(2, 4, 8, 8),
        torch.randn(2, 8, 3, 4, 8)[:, :, 0].transpose(1, 2),
    ],
    ids=["bhld", "blhd", "expanded", "packed"],
)
def test_the_output_lies_in_memory_as_pytorch_s_does(q):
    """Models join heads by a view, where PyTorch lets them."""
    model = Call(lambda q, k: F.scaled_dot_product_attention(q, k, k))
    k = torch.randn(2, 4, 5, 8)
    expected = model(q, k)
    with rootdk.watch(model) as w:
        found = model(q, k)
    assert found.stride() == expected.stride() and w.layers
    torch.testing.assert_close(found, expected)


def test_what_pytorch_differentiates_twice_stays_so():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = torch.randn(1, 2, 5, 8, requires_grad=True)
    bias = torch.randn(5, 5, requires_grad=True)

    def penalty(mask):
        out = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
        (slope,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), q)[0]

    expected = penalty(bias)
    with rootdk.watch() as w:
        assert torch.equal(penalty(bias), expected)
        with sdpa_kernel(SDPBackend.MATH):
            penalty(None)
            F.scaled_dot_product_attention(q, q, q).mul_(2).sum().backward()
    assert len(w.layers) == 3 and not w.unseen


WRITTEN_OUT = {  # q, k, v and options of calls that PyTorch writes out when they learn
    "narrower values": lambda: (torch.randn(1, 2, 5, 8), torch.randn(1, 2, 7, 8), torch.randn(1, 2, 7, 4), {}),
    "a mask of three axes": lambda: (*torch.randn(3, 1, 2, 5, 8), {"attn_mask": torch.randn(1, 5, 5)}),
    "a last axis with a stride": lambda: (torch.randn(1, 2, 8, 5).mT, *torch.randn(2, 1, 2, 5, 8), {}),
    "three axes": lambda: (*torch.randn(3, 2, 5, 8), {}),
    "two axes": lambda: (*torch.randn(3, 5, 8), {}),
    "five axes": lambda: (*torch.randn(3, 2, 3, 2, 5, 8), {"is_causal": True}),
    "a batch that broadcasts": lambda: (torch.randn(1, 2, 5, 8), *torch.randn(2, 3, 2, 5, 8), {}),
}


@pytest.mark.parametrize("case", WRITTEN_OUT)
def test_a_call_that_learns_is_differentiated_as_unwatched(case):
    """Its output may be changed in place and its gradient differentiated again, to the same bits, and its statistics
    are those of a call that does not learn."""
    *inputs, options = WRITTEN_OUT[case]()
    q, k, v = (x.requires_grad_() for x in inputs)
    attention = lambda: F.scaled_dot_product_attention(q, k, v, **options)

    def in_place():
        return torch.autograd.grad(attention().mul_(0.5).square().sum(), (q, k, v))

    def twice():
        slopes = torch.autograd.grad(attention().square().sum(), (q, k, v), create_graph=True)
        return torch.autograd.grad(sum(slope.square().sum() for slope in slopes), (q, k, v))

    expected = [*in_place(), *twice()]
    with rootdk.watch() as still, torch.no_grad():
        attention()
    with rootdk.watch() as w:
        found = [*in_place(), *twice()]
    assert all(map(torch.equal, found, expected)) and not w.unseen and w.layers == ["attention", "attention#2"]
    names = ("raw_max", "entropy", "keys", "score_sigma")
    seen, plain = rows_of(w, *names, "d_q"), rows_of(still, *names)
    assert len(seen) == 2 * len(plain) == 2 * (1 if q.ndim == 2 else q.shape[-3])
    for (step, _, head), values in seen.items():
        assert values[:-1] == pytest.approx(plain[step, "attention", head], rel=1e-6)
    d_q = expected[0].square().sum(-1).sum(-1).reshape(-1, len(plain)).sum(0)
    for head in range(len(plain)):
        assert seen[0, "attention", head][-1] == pytest.approx(float(d_q[head]), rel=1e-5)


def test_what_pytorch_s_kernel_does_not_differentiate_twice_raises_watched_as_well():
    q = torch.randn(1, 2, 5, 8, requires_grad=True)

    def penalty():
        slope = torch.autograd.grad(F.scaled_dot_product_attention(q, q, q).square().sum(), q, create_graph=True)[0]
        return torch.autograd.grad(slope.square().sum(), q)

    with pytest.raises(RuntimeError, match="derivative for"):
        penalty()
    with rootdk.watch(), pytest.raises(RuntimeError, match="cannot be differentiated by autograd"):
        penalty()


def test_gradients_of_queries_are_those_of_their_own_call():
    """Where hooks find them, as for narrower values and beside, and the same tensor goes to several calls."""
    x = torch.randn(1, 2, 5, 8, requires_grad=True)

    def call(size):
        return size * F.scaled_dot_product_attention(x, x, x[..., :4]).square().sum()

    for beside in (False, True):
        with rootdk.watch(beside=beside) as alone:
            call(1.0).backward()
        with rootdk.watch(beside=beside) as w:
            (call(1.0) + call(100.0)).backward()
        found, once = rows_of(w, "d_q", "d_k", "d_v"), rows_of(alone, "d_q", "d_k", "d_v")
        for head in range(2):
            first, second = found[0, "attention", head], found[0, "attention#2", head]
            assert first == pytest.approx(once[0, "attention", head], rel=1e-5) and len({*first}) == 3
            assert second == pytest.approx([1e4 * value for value in first], rel=1e-4)


@pytest.mark.parametrize(
    "output",
    [
        lambda x: {"loss": x.sum()},
        lambda x: {"loss": x.sum() + 0j},
        lambda x: {"loss": [x]},
        lambda x: {"loss": x.flatten()[:2]},
        lambda x: None,
    ],
)
def test_outputs_of_any_kind(output):
    model = Call(lambda x: output(F.scaled_dot_product_attention(x, x, x)))
    x = torch.randn(3, 1, 2, 5, 8)
    with rootdk.watch(model):
        model(x[0])
        if isinstance(output(x), dict) and isinstance(output(x)["loss"], torch.Tensor) and output(x)["loss"].ndim == 0:
            torch.func.vmap(lambda x: model(x)["loss"])(x)


def test_a_batch_that_broadcasts_and_dropout():
    q, k = torch.randn(1, 4, 6, 8), torch.randn(3, 4, 6, 8)
    model = Call(lambda q, k: F.scaled_dot_product_attention(q, k, k, dropout_p=0.1))
    with pytest.warns(RuntimeWarning, match="not sampled"), rootdk.watch(model) as w:
        assert model(q, k).shape == (3, 4, 6, 8)
    assert "(root)" in w.unseen


def test_a_bias_that_raises_one_key_is_no_mask():
    """It closes the layer, and that must be seen."""
    bias = torch.randn(16, 16) + 100 * torch.eye(16)
    x = torch.randn(1, 2, 16, 8)
    for eager in (False, True):
        with rootdk.watch(Masked(bias[None, None], eager)) as w:
            w.model(x)
        stats = w.stats(w.layers[0])
        assert (stats.trace_j < 1e-6).all() and (stats.keys == pytest.approx(16)) and (stats.score_sigma > 20).all()


def test_a_function_that_somebody_has_put_in_pytorch_s_place_stays():
    real = F.scaled_dot_product_attention
    calls = []

    def theirs(*args, **kwargs):
        calls.append(1)
        return real(*args, **kwargs)

    model, x = torch.nn.MultiheadAttention(16, 2, batch_first=True), torch.randn(1, 5, 16)
    F.scaled_dot_product_attention = theirs
    try:
        with rootdk.watch(model):
            model(x, x, x, need_weights=False)
        assert calls and F.scaled_dot_product_attention is theirs
    finally:
        F.scaled_dot_product_attention = real


def test_watches_closed_in_any_order():
    x = torch.randn(1, 2, 5, 8)
    one, two = rootdk.watch(), rootdk.watch()
    one.__enter__()
    two.__enter__()
    one.__exit__(None, None, None)
    F.scaled_dot_product_attention(x, x, x)
    with torch.device("cpu"):
        two.__exit__(None, None, None)
        assert len(torch.empty(1).shape) == 1 and torch._C._len_torch_function_stack() == 2
    assert two.layers == ["attention"] and one.layers == []
    F.scaled_dot_product_attention(x, x, x)
    assert two.layers == ["attention"]
    while torch._C._len_torch_function_stack():
        torch._C._pop_torch_function_stack()


def test_threads_that_the_model_starts_belong_to_its_step():
    """As DataParallel does it."""

    class Parallel(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.module = Attention(causal=False)

        def forward(self, x):
            threads = [threading.Thread(target=self.module, args=(part,)) for part in x.chunk(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return x

    model = Parallel().eval()
    with rootdk.watch(model, every=2) as w:
        for _ in range(4):
            model(torch.randn(4, 6, 32))
    assert w.step == 3 and {(r["step"], r["layer"]) for r in w.to_dicts()} == {
        (s, name) for s in (0, 2) for name in ("module", "module#2")
    }


def test_one_warning_for_a_nan_and_none_clipped():
    model = Model(layers=2).eval()
    x = torch.randn(1, 6, 32)
    x[0, 2, 0] = math.nan
    with pytest.warns(RuntimeWarning) as said, rootdk.watch(model) as w:
        model(x)
        assert w.qk_clip(tau=1e-3) == {}
    text = [str(s.message) for s in said]
    assert sum("rows_not_finite" in t for t in text) == 2 and any("not finite" in t and "qk_clip" in t for t in text)


def test_it_says_what_it_lacks():
    model, x = Model(layers=1), torch.randn(1, 6, 32)
    w = rootdk.watch(model)
    assert "not opened yet" in w.table() and repr(w) == "Watch(Model, 0 layers, 0 steps, 0 alarms)"
    with w:
        model(x)
        assert "w.loss" not in w.table()  # nothing learns yet
        model(x).sum().backward()
        assert "w.loss(loss)" in w.table()
        w.loss(0.5)
        assert "w.loss(loss)" not in w.table()
    with pytest.raises(TypeError, match="on: type"):
        rootdk.watch(model, on=rootdk.Alarm)


# Left without a word --------------------------------------------------------------------------------------------------
class Interrupted(Model):
    """As when somebody presses Ctrl-C: PyTorch calls no hook for what is no Exception."""

    armed = False

    def forward(self, x):
        x = self.layers[0](x)
        if self.armed:
            raise KeyboardInterrupt
        return self.layers[1](x)


class DeepInterrupt(torch.nn.Module):
    def forward(self, x):
        if x.shape[1] == 7:
            raise KeyboardInterrupt
        return x


@pytest.mark.parametrize("thread", [False, True])
@pytest.mark.parametrize("deep", [False, True])
def test_an_interrupt_that_is_caught_leaves_no_place_behind(deep, thread):
    model = torch.nn.Sequential(Attention(), DeepInterrupt(), Attention()) if deep else Interrupted()
    names = ["0", "2"] if deep else ["layers.0", "layers.1"]
    depth = []

    def run():
        for step, n in enumerate((5, 7, 6)):
            model.armed = step == 1
            try:
                model(torch.randn(1, n, 32))
            except KeyboardInterrupt:
                pass
        depth.append(torch._C._len_torch_function_stack())

    with rootdk.watch(model) as w:
        in_thread(run) if thread else run()
    seen = {(r["step"], r["layer"]) for r in w.to_dicts()}
    assert seen == {(0, names[0]), (0, names[1]), (1, names[0]), (2, names[0]), (2, names[1])} and w.step == 2
    assert torch._C._len_torch_function_stack() == 0 and depth == [0 if thread else 1]
    assert not w.unseen


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_what_an_interrupted_module_was_given_tells_no_heads(error):
    """Heads and batch are one axis, and the interrupted part was called with a batch of its own."""

    class Raises(torch.nn.Module):
        def forward(self, x):
            raise error

    class Catches(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Raises()

        def forward(self, x, folded):
            with pytest.raises(error):
                self.part(torch.randn(8, 6, 32))
            return F.scaled_dot_product_attention(folded, folded, folded)

    with rootdk.watch(Catches()) as w:
        w.model(torch.randn(2, 6, 32), torch.randn(8, 6, 8))
    assert w.stats("(root)").heads == 4 and not w.unseen


def test_after_an_interrupt_a_call_outside_is_outside():
    model, x = Interrupted(layers=2), torch.randn(1, 2, 5, 8)
    model.armed = True
    with pytest.warns(RuntimeWarning, match="outside"), rootdk.watch(model) as w:
        with pytest.raises(KeyboardInterrupt):
            model(torch.randn(1, 5, 32))
        F.scaled_dot_product_attention(x, x, x)
    assert w.layers == ["layers.0"] and list(w.unseen) == ["(outside)"]


def test_a_part_that_is_called_after_an_interrupt_begins_a_step():
    model = Parts()
    model.decoder = Interrupted()
    model.decoder.armed = True
    with rootdk.watch(model) as w:
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                model.training_step(torch.randn(1, 5, 32))
    assert w.step == 1 and {(r["step"], r["layer"]) for r in w.to_dicts()} == {
        (step, layer) for step in (0, 1) for layer in ("encoder.layers.0", "decoder.layers.0")
    }


def test_a_model_that_calls_itself_or_a_module_from_elsewhere_is_still_there():
    class Odd(Model):
        """Its second layer is called by its first, and it by itself."""

        def forward(self, x, again=True):
            if again:
                return self(self.layers[0](x), again=False)
            hook = self.layers[0].register_forward_hook(lambda m, a, out: self.layers[1](out))
            try:
                return self.layers[0](x)
            finally:
                hook.remove()

    model = Odd()
    with rootdk.watch(model) as w:
        model(torch.randn(1, 5, 32))
    assert w.step == 0 and w.layers == ["layers.0", "layers.0#2", "layers.1"]


# The same tensor twice ------------------------------------------------------------------------------------------------
class OfOneInput(torch.nn.Module):
    """A checkpointed layer that gets the very tensor that the model gets."""

    def __init__(self, reentrant):
        super().__init__()
        self.layer, self.reentrant, self.size = Attention(causal=False), reentrant, torch.nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.size * checkpoint(self.layer, x, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_of_the_same_tensor_in_two_steps_swaps_no_gradients(reentrant):
    """Backward computes one of the two again, and nothing says which: rather no number than the other's."""
    model = OfOneInput(reentrant)
    x = torch.randn(1, 12, 32, requires_grad=True)
    with rootdk.watch(model) as w:
        one, two = model(x).square().mean(), model(x).square().mean()
        (one + 100 * two).backward()
    found = {key: values[0] for key, values in rows_of(w, "d_scores").items()}
    if reentrant:
        assert all(math.isnan(value) for value in found.values()) and len(found) == 8
    else:
        for head in range(4):
            assert found[1, "layer", head] == pytest.approx(1e4 * found[0, "layer", head], rel=1e-3)


def test_a_checkpoint_of_the_same_tensor_in_one_step_after_another_has_its_gradients():
    model = OfOneInput(True)
    x = torch.randn(1, 12, 32, requires_grad=True)
    with rootdk.watch(model) as w:
        for size in (1, 100):
            (size * model(x).square().mean()).backward()
    found = {key: values[0] for key, values in rows_of(w, "d_scores").items()}
    for head in range(4):
        assert found[1, "layer", head] == pytest.approx(1e4 * found[0, "layer", head], rel=1e-3)


# What it shows of itself ----------------------------------------------------------------------------------------------
def test_completion_shows_what_is_for_its_user():
    w = rootdk.watch()
    public = {name for name in dir(w) if not name.startswith("_")}
    assert public == {
        "alarms",
        "cost",
        "layers",
        "loss",
        "model",
        "next_step",
        "over_ranks",
        "prometheus",
        "qk_clip",
        "report",
        "scalars",
        "stats",
        "step",
        "table",
        "tensorboard",
        "to_dicts",
        "to_pandas",
        "unseen",
    }
