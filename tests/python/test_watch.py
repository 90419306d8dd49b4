"""rootdk.watch: the model's output stays what it was, and the statistics are those of the scores written out."""

from __future__ import annotations

import gc
import json
import math
import re

import numpy as np
import pytest
import rootdk
import torch
import torch.nn.functional as F
from conftest import plain
from rootdk import Alarm


class Attention(torch.nn.Module):
    """One layer, several ways of writing it."""

    def __init__(self, width=32, heads=4, heads_kv=4, way="sdpa", causal=True):
        super().__init__()
        self.heads, self.heads_kv, self.way, self.causal, self.dim = heads, heads_kv, way, causal, width // heads
        self.q_proj = torch.nn.Linear(width, width)
        self.k_proj = torch.nn.Linear(width, heads_kv * self.dim)
        self.v_proj = torch.nn.Linear(width, heads_kv * self.dim)
        self.seen = None

    def split(self, x, heads):
        return x.unflatten(-1, (heads, self.dim)).transpose(1, 2)

    def forward(self, x):
        q = self.split(self.q_proj(x), self.heads)
        k, v = (self.split(projection(x), self.heads_kv) for projection in (self.k_proj, self.v_proj))
        self.seen = (q, k, v)
        if self.way == "sdpa":
            out = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=self.heads != self.heads_kv)
        else:
            k, v = (y.repeat_interleave(self.heads // self.heads_kv, 1) for y in (k, v))
            if self.way == "einsum":
                hide = torch.full((q.shape[-2], k.shape[-2]), self.causal, device=q.device).triu(1)
                s = torch.einsum("bqhd,bkhd->bhqk", q.transpose(1, 2), k.transpose(1, 2)) * self.dim**-0.5
                p = s.masked_fill(hide, float("-inf")).softmax(-1)
                return torch.einsum("bhqk,bkhd->bqhd", p, v.transpose(1, 2)).flatten(2)
            s = torch.matmul(q, k.transpose(-1, -2))
            s = s / math.sqrt(self.dim) if self.way == "divided" else s.mul_(self.dim**-0.5)
            if self.causal:
                hide = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1)
                if self.way == "divided":
                    s = s.masked_fill(hide, torch.finfo(s.dtype).min)
                else:
                    s += torch.zeros_like(s).masked_fill(hide, float("-inf"))
            p = F.dropout(torch.softmax(s, dim=-1), 0.1, self.training)
            out = p @ v
        return out.transpose(1, 2).flatten(2)


class Model(torch.nn.Module):
    def __init__(self, layers=2, **options):
        super().__init__()
        self.layers = torch.nn.ModuleList(Attention(**options) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(3)


def exact_statistics(layer, visible):
    """Of one layer's newest call, materialised in double, over the batch."""
    q, k, v = (x.detach().double().numpy() for x in layer.seen)
    _, s, p = plain(q, k, v, visible=visible)
    n = np.isfinite(s).sum(-1)
    rows = n >= 2
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(p > 0, p * np.log(p), 0).sum(-1)
    finite = np.where(np.isfinite(s), s, 0)
    mean = finite.sum(-1) / n
    square = np.where(np.isfinite(s), (s - mean[..., None]) ** 2, 0).sum(-1)

    def over(x):
        return np.array([x[:, h][rows[:, h]].mean() for h in range(s.shape[1])])

    return {
        "raw_max": s.max((0, 2, 3)),
        "entropy": over(entropy),
        "mean_p_max": over(p.max(-1)),
        "trace_j": over(1 - (p * p).sum(-1)),
        "score_sigma": np.sqrt(square.sum((0, 2)) / (n - 1).sum((0, 2))),
    }


@pytest.mark.parametrize("way", ["sdpa", "divided", "in place", "einsum"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads_kv", [4, 2])
def test_statistics_are_those_of_the_materialised_scores(way, causal, heads_kv):
    model = Model(way=way, causal=causal, heads_kv=heads_kv).eval()
    x = torch.randn(2, 70, 32)
    expected = model(x)
    with rootdk.watch(model) as w:
        found = model(x)
    # Each layer's output is off by a few units in the last place of f32, at sizes below 8.
    assert (expected - found).abs().max() < 8 * 8 * 2.0**-23
    assert w.layers == ["layers.0", "layers.1"]
    visible = np.tril(np.ones((70, 70), bool)) if causal else np.ones((70, 70), bool)
    rows = {(r["layer"], r["head"]): r for r in w.to_dicts()}
    for number, layer in enumerate(model.layers):
        for name, values in exact_statistics(layer, visible).items():
            for head, value in enumerate(values):
                assert rows[f"layers.{number}", head][name] == pytest.approx(value, rel=2e-5, abs=2e-6), (name, head)


def test_what_is_written_out_and_what_is_fused_agree_also_in_backward():
    found = []
    for way in ("sdpa", "divided"):
        torch.manual_seed(1)
        model = Model(way=way).eval()
        x = torch.randn(2, 33, 32)
        with rootdk.watch(model) as w:
            model(x).square().mean().backward()
        found.append({(r["layer"], r["head"]): r for r in w.to_dicts()})
        assert all(p.grad is not None for p in model.parameters())
    for key, a in found[0].items():
        for name in (
            "raw_max",
            "entropy",
            "sigma_ratio",
            "sigma_q",
            "sigma_k",
            "key_mean_norm",
            "alignment",
            "scale",
            "d_scores",
        ):
            assert a[name] == pytest.approx(found[1][key][name], rel=1e-3), name


def test_beside_means_the_model_s_own_bits():
    model = Model().eval()
    x = torch.randn(2, 200, 32)
    expected = model(x)
    with rootdk.watch(model, beside=True, rows=200) as w:
        found = model(x)
        found.square().mean().backward()
    assert torch.equal(expected, found)
    with rootdk.watch(model) as exact:
        model(x).square().mean().backward()
    a, b = w.to_dicts(), exact.to_dicts()
    for one, other in zip(a, b):
        for name in ("raw_max", "entropy", "mean_p_max", "score_sigma", "d_q", "d_k", "d_v", "d_log_scale"):
            assert one[name] == pytest.approx(other[name], rel=1e-3, abs=1e-6), name
    with rootdk.watch(model, beside=True, rows=64) as sampled:
        model(x)
    for one, other in zip(sampled.to_dicts(), b):
        # 64 or so of 200 rows: H of a row spreads by less than 1 over rows, so its mean by less than 1/8, and twice
        # that is rare.
        assert abs(one["entropy"] - other["entropy"]) < 0.25


def test_gradients_are_the_model_s():
    x = torch.randn(2, 20, 32)
    model = Model().eval()
    model(x).square().mean().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with rootdk.watch(model):
        model(x).square().mean().backward()
    for a, p in zip(expected, model.parameters()):
        torch.testing.assert_close(p.grad, a, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("way", ["sdpa", "divided"])
def test_inference_mode_and_narrow_types(way):
    model = Model(way=way).eval().bfloat16()
    x = torch.randn(2, 20, 32).bfloat16()
    with torch.inference_mode(), rootdk.watch(model) as w:
        model(x)
    frame = w.to_pandas()
    assert np.isfinite(frame.entropy).all() and np.isnan(frame.d_q).all()


def test_nothing_is_left_behind():
    model = Model().eval()
    x = torch.randn(1, 9, 32)
    expected = model(x)
    with pytest.raises(KeyError), rootdk.watch(model):
        model(x)
        raise KeyError
    import rootdk.torch as rt

    assert torch.equal(model(x), expected) and not rt._collectors
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_every_and_keep():
    model = Model().eval()
    with rootdk.watch(model, every=3, keep=4) as w:
        for _ in range(30):
            model(torch.randn(1, 5, 32))
    assert w._history.newest()[0].step == 27  # the newest is at hand, kept or not
    steps = sorted({r["step"] for r in w.to_dicts()})
    assert all(step % 3 == 0 for step in steps) and 2 <= len(steps) <= 4 and steps[0] == 0 and steps[-1] >= 15


@pytest.mark.parametrize("way", ["sdpa", "divided"])
def test_memory_is_flat_over_a_thousand_steps(way):
    import resource

    model = Model(layers=1, way=way)
    x = torch.randn(1, 16, 32)

    def steps(n):
        for _ in range(n):
            model(x).square().mean().backward()
            model.zero_grad()
        gc.collect()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    with rootdk.watch(model, keep=50) as w:
        before = steps(200)
        after = steps(1000)
    assert after - before < 4 << 20, f"{(after - before) / 2**20:.1f} MiB more"
    assert w.step == 1199 and len({r["step"] for r in w.to_dicts()}) <= 50


@pytest.mark.parametrize("way, beside", [("sdpa", False), ("sdpa", True), ("divided", False)])
def test_no_tensor_outlives_its_step(way, beside):
    model = Model(way=way)
    x = torch.randn(1, 16, 32)

    def living():
        gc.collect()
        return sum(issubclass(type(it), torch.Tensor) for it in gc.get_objects())

    def step():
        model(x).square().mean().backward()
        model.zero_grad()

    with rootdk.watch(model, beside=beside):
        step()
        before = living()
        for _ in range(5):
            step()
        assert living() == before


def test_alarms_name_the_head_and_the_reason():
    model = Model(layers=2).eval()
    dim = model.layers[1].dim
    with torch.no_grad():
        model.layers[1].q_proj.weight[2 * dim : 3 * dim] *= 200
    events = []
    x = torch.randn(2, 40, 32)
    with rootdk.watch(model, on=Alarm(sigma_ratio=1.0, max_score=50.0, call=events.append)) as w:
        model(x)
        model(x)
    assert {(e.layer, e.head) for e in events} == {("layers.1", 2)}
    assert sorted(e.what for e in events) == ["raw_max", "sigma_ratio"]  # once each, though there were two steps
    assert w.alarms == events and "σ" in events[0].words and "beyond" in str(events[0])

    with (
        rootdk.watch(model, on=Alarm(sigma_ratio=1.0, call="raise")),
        pytest.raises(RuntimeError, match="layers.1, head 2"),
    ):
        model(x)
    with rootdk.watch(model, on=Alarm(sigma_ratio=1.0)), pytest.warns(RuntimeWarning, match="layers.1, head 2"):
        model(x)
    quiet = rootdk.watch(model, on=Alarm(call=events.append))
    with quiet:
        model(x)
    assert not quiet.alarms


def test_what_is_not_finite_raises_an_alarm():
    model = Model(layers=1).eval()
    events = []
    x = torch.randn(1, 8, 32)
    x[0, 3, 0] = float("nan")
    with rootdk.watch(model, on=events.append):
        model(x)
    assert any(e.what == "rows_not_finite" for e in events)


@pytest.mark.parametrize("heads_kv", [4, 2])
@pytest.mark.parametrize("way", ["sdpa", "divided"])
def test_qk_clip_brings_the_largest_score_to_tau(heads_kv, way):
    model = Model(layers=2, heads_kv=heads_kv, way=way).eval()
    with torch.no_grad():
        model.layers[1].q_proj.weight *= 30
    x = torch.randn(2, 12, 32)
    with rootdk.watch(model) as w:
        model(x)
        before = [w.stats(layer).raw_max[0] for layer in w.layers]
        factors = w.qk_clip(tau=5.0)
        model(x)
        after = [w.stats(layer).raw_max[0] for layer in w.layers]
    assert set(factors) <= {"layers.0", "layers.1"} and "layers.1" in factors
    # Layer 0 sees the same inputs as before; a clipped head now reaches exactly tau, and the others are untouched.
    np.testing.assert_allclose(after[0], np.minimum(before[0], 5.0), rtol=1e-4)
    assert w.qk_clip(tau=1e9) == {}


def test_qk_clip_knows_the_usual_projections():
    class Packed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = torch.nn.MultiheadAttention(32, 4, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x, need_weights=False)[0]

    model = Packed().train()
    with torch.no_grad():
        model.attention.in_proj_weight.mul_(8)
    x = torch.randn(2, 12, 32)
    with rootdk.watch(model) as w:
        model(x)
        before = w.stats(w.layers[0]).raw_max[0]
        w.qk_clip(tau=3.0)
        model(x)
        after = w.stats(w.layers[0]).raw_max[0]
    np.testing.assert_allclose(after, np.minimum(before, 3.0), rtol=1e-4)

    class Odd(torch.nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x * 100, x * 100, x)

    with rootdk.watch(Odd()) as w:
        w.model(torch.randn(1, 2, 5, 8))
        with pytest.raises(ValueError, match="projections="):
            w.qk_clip(tau=1.0)


def test_tables_and_files(tmp_path):
    model = Model().eval()
    with rootdk.watch(model, on=Alarm(max_score=0.01, call=lambda e: None)) as w:
        assert "No attention" in w.table()
        for _ in range(3):
            loss = model(torch.randn(2, 9, 32)).sum()
            loss.backward()
            w.loss(loss)
    text = w.table()
    assert "layers.1" in text and "entropy" in text and "watched" in text
    assert len(w.table(worst=2).splitlines()) == 4
    with pytest.raises(ValueError, match="entropi"):
        w.table(columns=["entropi"])
    frame = w.to_pandas()
    assert len(frame) == 3 * 2 * 4 and frame.entropy.notna().all() and frame.d_q.notna().all()

    lines = [line for line in w.prometheus().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r'rootdk_\w+(\{layer="[^"]+",head="\d+"\})? \S+', line) for line in lines)
    assert any(line.startswith('rootdk_entropy{layer="layers.0",head="3"} ') for line in lines)

    page = w.report(tmp_path / "report.html").read_text()
    data = json.loads(re.search(r'id="results">(.*?)</script>', page, re.S)[1])
    assert [h["layer"] for h in data["heads"]] == ["layers.0"] * 4 + ["layers.1"] * 4 and data["steps"] == [0, 1, 2]
    assert data["values"]["entropy"][2][4:] == pytest.approx(frame.entropy[-4:].tolist(), rel=1e-3)
    assert len(data["alarms"]) == len(w.alarms)
    assert "@" + "D3@" not in page and list(tmp_path.iterdir()) == [tmp_path / "report.html"]

    written = []

    class Writer:
        def add_scalar(self, name, value, step):
            written.append((name, value, step))

    w.tensorboard(Writer())
    assert (
        "attention/layers.0/entropy/max",
        pytest.approx(frame[(frame.step == 2) & (frame.layer == "layers.0")].entropy.max()),
        2,
    ) in written


def test_tensorboard_files(tmp_path):
    pytest.importorskip("tensorboard")
    model = Model().eval()
    with rootdk.watch(model) as w:
        for _ in range(2):
            model(torch.randn(2, 9, 32))
            w.tensorboard(tmp_path / "logs")
    assert len(list((tmp_path / "logs").iterdir())) == 1


def test_a_watch_without_a_model():
    q = torch.randn(1, 2, 6, 8)
    with rootdk.watch() as w:
        F.scaled_dot_product_attention(q, q, q)
        F.scaled_dot_product_attention(q, q, q)
        w.next_step()
        F.scaled_dot_product_attention(q, q, q)
    assert w.layers == ["attention", "attention#2"] and w.step == 1


def test_checkpointed_layers_are_recorded_once():
    from torch.utils.checkpoint import checkpoint

    model = Model(layers=1)
    x = torch.randn(1, 9, 32, requires_grad=True)
    with rootdk.watch(model) as w:
        checkpoint(model, x, use_reentrant=False).sum().backward()
    assert w.layers == ["layers.0"] and w.step == 0
    assert all(math.isfinite(r["d_q"]) for r in w.to_dicts())


def test_other_products_are_left_alone():
    class Other(torch.nn.Module):
        def forward(self, x):
            y = torch.softmax(x, -1) @ x.transpose(-1, -2)  # no product before it
            z = torch.matmul(x, x.transpose(-1, -2)) @ x  # no softmax
            sums = torch.einsum("bhij,bhij->bh", x, x).sum() + torch.einsum("abcd->abdc", x).sum()
            return y.sum() + z.sum() + sums + torch.einsum("...ij,...jk->...ik", x, x).sum()

    with rootdk.watch(Other()) as w:
        w.model(torch.randn(1, 2, 5, 5))
    assert w.layers == []


def test_arguments_are_checked():
    with pytest.raises(TypeError, match="on: int"):
        rootdk.watch(Model(), on=[3])
    with pytest.raises(ValueError, match="call"):
        Alarm(call="shout")
    for wrong in (dict(every=0), dict(sample=0), dict(rows=-1), dict(keep=1.5)):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            rootdk.watch(Model(), **wrong)
    with pytest.raises(TypeError, match="model: int"):
        rootdk.watch(3)
    with rootdk.watch(Model()) as w:
        with pytest.raises(RuntimeError, match="already open"):
            w.__enter__()
        with pytest.raises(ValueError, match="tau"):
            w.qk_clip(tau=0)
        with pytest.raises(KeyError):
            w.stats("nowhere")


def test_threads_watch_their_own_models():
    """Modes belong to a thread; so do calls inside nn.MultiheadAttention, which is made to call by a name that all
    threads share."""
    import threading

    found, failures = {}, []

    def work(number):
        try:
            torch.manual_seed(number)
            model = torch.nn.MultiheadAttention(16, 2, batch_first=True)
            x = torch.randn(1, 5 + number, 16)
            with rootdk.watch(model) as w:
                for _ in range(30):
                    model(x, x, x, need_weights=False)
            found[number] = {(r["step"], r["keys"]) for r in w.to_dicts()}
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and F.scaled_dot_product_attention is torch.nn.functional.scaled_dot_product_attention
    for number, seen in found.items():
        assert {step for step, _ in seen} == set(range(30)) and {round(keys, 3) for _, keys in seen} == {5 + number}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("way", ["sdpa", "divided"])
@pytest.mark.parametrize("causal", [False, True])
def test_on_a_gpu_the_fused_call_is_untouched_if_one_wants(way, causal):
    model = Model(way=way, causal=causal).eval().cuda().bfloat16()
    x = torch.randn(2, 300, 32, device="cuda", dtype=torch.bfloat16)
    expected = model(x)
    with rootdk.watch(model, rows=300, beside=True) as w:
        found = model(x)
        found.float().square().mean().backward()
    assert torch.equal(expected, found)
    visible = np.tril(np.ones((300, 300), bool)) if causal else np.ones((300, 300), bool)
    rows = {(r["layer"], r["head"]): r for r in w.to_dicts()}
    assert all(math.isfinite(r["d_q" if way == "sdpa" else "d_scores"]) for r in rows.values())
    for number, layer in enumerate(model.layers):
        layer.seen = tuple(x.cpu() for x in layer.seen)
        if way == "divided":  # these scores were rounded to bfloat16
            continue
        for name, values in exact_statistics(layer, visible).items():
            for head, value in enumerate(values):
                assert rows[f"layers.{number}", head][name] == pytest.approx(value, rel=1e-3, abs=1e-4), (name, head)


def test_a_look_that_fails_is_named(monkeypatch):
    from rootdk._watch import look

    def fails(*args, **more):
        raise RuntimeError("no room")

    model, x = torch.nn.Sequential(Attention(), Attention()), torch.randn(2, 20, 32)
    want = model(x)
    monkeypatch.setattr(look, "sampled", fails)
    with pytest.warns(match="no room"), rootdk.watch(model, beside=True) as w:
        assert torch.equal(model(x), want)
    assert set(w.unseen) == {"0", "1"} and "looking at it failed (RuntimeError: no room)" in w.unseen["0"]
