"""rootdk.audit of a model in memory says what it says of the model's files."""

from __future__ import annotations

import copy
import gc
import importlib.util
import json
import subprocess
import sys
import tempfile
import tracemalloc

import numpy as np
import pytest
import rootdk
from rootdk._checkpoint import is_read
from test_audit import llama

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 16,
    "max_position_embeddings": 1024,
}
Q = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path, monkeypatch):
    """Whatever happens, nothing of ours is in the temporary directory afterwards."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield place
    assert list(place.glob("rootdk-*")) == []


def state(growth=1.0, dtype=np.float32):
    """The tensors of test_audit's little LLaMA."""
    rng = np.random.default_rng(0)
    tensors = {"model.embed_tokens.weight": rng.standard_normal((10, 16))}
    for i in range(2):
        at = f"model.layers.{i}."
        q = rng.standard_normal((16, 16)) / 4
        if i == 1:
            q[4:8] *= growth
        tensors[at + "self_attn.q_proj.weight"] = q
        tensors[at + "self_attn.k_proj.weight"] = rng.standard_normal((8, 16)) / 4
        tensors[at + "input_layernorm.weight"] = np.ones(16)
    return {name: x.astype(dtype) for name, x in tensors.items()}


def same(ours, theirs):
    ours, theirs = ours.to_dict(), theirs.to_dict()
    assert ours.pop("model") != theirs.pop("model") and ours == theirs


def test_numpy_arrays_say_what_their_file_says(tmp_path):
    theirs = rootdk.audit(llama(tmp_path / "model", growth=30.0))
    ours = rootdk.audit(state(30.0), config=CONFIG)
    same(ours, theirs)
    assert ours.model == "state_dict" and ours.heads[5]["verdict"] == "frozen"


def test_numbers_are_read_as_they_lie():
    """Other byte orders, strides and sizes are the same numbers; half precision is those numbers rounded."""
    plain = state(30.0)
    wanted = rootdk.audit(plain, config=CONFIG)
    for change in (
        lambda x: x.astype(">f4"),
        lambda x: np.asfortranarray(x),
        lambda x: x.astype(np.float64),
        lambda x: np.repeat(x, 2, axis=0)[::2],
        lambda x: x[::-1].copy()[::-1],
    ):
        assert rootdk.audit({name: change(x) for name, x in plain.items()}, config=CONFIG).to_json() == wanted.to_json()
    half = {name: x.astype(np.float16) for name, x in plain.items()}
    rounded = {name: x.astype(np.float32) for name, x in half.items()}
    same_numbers = rootdk.audit(rounded, config=CONFIG).to_json()
    assert rootdk.audit(half, config=CONFIG).to_json() == same_numbers != wanted.to_json()


def test_hints_and_configurations(tmp_path):
    tensors = state()
    with pytest.raises(ValueError, match="^heads: there is no config to say") as caught:
        rootdk.audit(tensors)
    assert "config.json" not in str(caught.value)
    assert len(rootdk.audit(tensors, heads=4)) == 8
    with pytest.raises(ValueError, match="^config: num_attention_heads"):
        rootdk.audit(tensors, config={**CONFIG, "num_attention_heads": "four"})
    assert rootdk.audit(tensors, config={**CONFIG, "num_attention_heads": np.int64(4)}).judged_at == 1024
    with pytest.raises(TypeError, match="config: int, but a dict"):
        rootdk.audit(tensors, config=4)
    with pytest.raises(ValueError, match="config: cannot be written as JSON"):
        rootdk.audit(tensors, config={**CONFIG, "rope_theta": float("nan")})
    odd = {f"blocks.{i}.wq": x for i, x in enumerate(x for name, x in tensors.items() if "q_proj" in name)}
    odd |= {f"blocks.{i}.experts": x for i, x in enumerate(x for name, x in tensors.items() if "k_proj" in name)}
    (tmp_path / "family.json").write_text(
        json.dumps(
            {
                "name": "odd",
                "q": "blocks.{layer}.wq",
                "k": "blocks.{layer}.experts",
                "norm_kind": "none",
                "kv_heads": "kv",
            }
        )
    )
    assert len(rootdk.audit(odd, heads=4, kv_heads=2, family_file=tmp_path / "family.json")) == 8  # all is written


def test_what_moved(tmp_path):
    before, after = state(), state(30.0)
    folder = llama(tmp_path / "before")
    drifts = [
        rootdk.audit(after, config=CONFIG, against=before).drift,
        rootdk.audit(after, config=CONFIG, against=folder).drift,
        rootdk.audit(llama(tmp_path / "after", growth=30.0), against=before).drift,
        rootdk.audit(llama(tmp_path / "after", growth=30.0), against=folder).drift,
    ]
    assert all(drift == drifts[3] for drift in drifts)
    worst = drifts[0][0]
    assert (worst["layer"], worst["head"]) == (1, 1) and worst["growth"] == pytest.approx(30, rel=1e-5)
    with pytest.raises(TypeError, match=f'against: "{Q}" is a list'):
        rootdk.audit(after, config=CONFIG, against={**before, Q: [1.0]})


@pytest.mark.parametrize(
    "change, error, words",
    [
        ({3: np.ones(3)}, TypeError, "model: 3 is no name"),
        ({"model": state()}, TypeError, 'model: "model" is a dict, but a tensor is wanted; if tensors are in it'),
        ({Q: "text"}, TypeError, "is a str, but a tensor is wanted"),
        ({Q: np.ones((16, 16), np.int8)}, ValueError, 'q_proj.weight" has int8 numbers.*quantised'),
        ({Q: np.ones((16, 16), np.complex64)}, ValueError, "complex64"),
        ({Q: np.ones((17, 16), np.float32)}, ValueError, 'q_proj.weight": 17 rows'),
        ({Q: np.ones((0, 16), np.float32)}, ValueError, "its shape is"),
        ({Q: np.float32(1)}, ValueError, "its shape is"),
    ],
)
def test_what_is_wrong_is_said(change, error, words):
    with pytest.raises(error, match=words) as caught:
        rootdk.audit({**state(), **change}, config=CONFIG)
    assert "rootdk-" not in str(caught.value) and "\n" not in str(caught.value)


def test_other_buffers_are_left_alone():
    extra = {
        "model.position_ids": np.arange(8)[None],
        "model.layers.0.self_attn.mask": np.ones((1, 1, 8, 8), bool),
        "model.layers.0._extra_state": None,
        "model.layers.0.mlp.up_proj.weight": np.ones((4, 4), np.int8),
    }
    assert rootdk.audit({**state(), **extra}, config=CONFIG).to_json() == rootdk.audit(state(), config=CONFIG).to_json()


def test_not_finite_numbers_are_reported_not_refused():
    broken = state()
    broken[Q][5, 3] = np.nan
    assert [head["verdict"] for head in rootdk.audit(broken, config=CONFIG)].count("not_finite") == 1


def test_no_family_reads_what_is_left_out():
    printed = subprocess.check_output([sys.executable, "-m", "rootdk", "audit", "--families"])
    families = json.loads(printed)["families"]
    fields = {
        "q",
        "k",
        "qkv",
        "norm",
        "first_norm",
        "keys_norm",
        "q_norm",
        "k_norm",
        "q_latent",
        "q_latent_norm",
        "kv_latent",
        "kv_latent_norm",
        "kv",
    }
    patterns = [pattern for family in families for pattern in [family, *family.get("attention", [])]]
    names = [value for pattern in patterns for field, value in pattern.items() if field in fields]
    prefixes = {prefix for family in families for prefix in family.get("prefixes", [""])}
    assert len(names) > 60 and len(prefixes) > 10
    assert [name for name in names for prefix in prefixes if not is_read(f"{prefix}{name}.weight")] == []
    assert not is_read("model.layers.3.mlp.up_proj.weight") and not is_read("lm_head.weight")


def test_a_full_disk_is_said(monkeypatch, nothing_is_left):
    class Full:
        def __init__(self, *_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def write(self, _):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("rootdk._checkpoint.open", Full, raising=False)
    with pytest.raises(OSError, match="model: cannot be written to .*TMPDIR.*No space left") as caught:
        rootdk.audit(state(), config=CONFIG)
    assert caught.value.errno == 28


def test_an_interruption_leaves_nothing(monkeypatch, nothing_is_left):
    seen = []

    def interrupted(path, call):
        seen.extend(nothing_is_left.glob("rootdk-*"))
        raise KeyboardInterrupt

    monkeypatch.setattr(rootdk._core, "audit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rootdk.audit(state(), config=CONFIG, against=state())
    assert len(seen) == 2


# Modules --------------------------------------------------------------------------------------------------------------

needs_torch = pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def transformers(torch):
    return pytest.importorskip("transformers")


def module(torch, tensors, config=None):
    """A module whose state_dict has these names."""
    top = torch.nn.Module()
    for name, tensor in tensors.items():
        at, *rest = top, *name.split(".")
        for part in rest[:-1]:
            if not hasattr(at, part):
                at.add_module(part, torch.nn.Module())
            at = getattr(at, part)
        at.register_parameter(rest[-1], torch.nn.Parameter(torch.as_tensor(tensor)))
    if config is not None:
        top.config = config
    return top


SMALL = dict(
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    vocab_size=50,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
GROUPED = dict(SMALL, num_attention_heads=4, num_key_value_heads=2)
T5 = dict(d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4, vocab_size=50, pad_token_id=0, eos_token_id=2)
WHISPER = dict(
    d_model=16,
    encoder_layers=1,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=32,
    decoder_ffn_dim=32,
    vocab_size=50,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=1,
)
DEEPSEEK = dict(
    GROUPED,
    num_key_value_heads=4,
    n_routed_experts=4,
    n_group=1,
    topk_group=1,
    num_experts_per_tok=2,
    kv_lora_rank=8,
    q_lora_rank=8,
    qk_rope_head_dim=4,
    v_head_dim=4,
    qk_nope_head_dim=4,
    moe_intermediate_size=8,
    first_k_dense_replace=1,
)
GPT2 = dict(n_embd=16, n_layer=2, n_head=4, vocab_size=50, bos_token_id=1, eos_token_id=2)
VIT = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)


@pytest.mark.parametrize(
    "class_, config, settings, heads",
    [
        ("BertModel", "BertConfig", SMALL, 4),
        ("GPT2LMHeadModel", "GPT2Config", GPT2, 8),
        ("LlamaForCausalLM", "LlamaConfig", dict(GROUPED, rope_theta=500.0, tie_word_embeddings=True), 8),
        ("Qwen3ForCausalLM", "Qwen3Config", dict(GROUPED, head_dim=8), 8),
        ("Gemma2ForCausalLM", "Gemma2Config", dict(GROUPED, head_dim=8, sliding_window=64, query_pre_attn_scalar=5), 8),
        ("Gemma3ForCausalLM", "Gemma3TextConfig", dict(GROUPED, head_dim=8), 8),
        ("GPTNeoXForCausalLM", "GPTNeoXConfig", SMALL, 4),
        ("Phi3ForCausalLM", "Phi3Config", GROUPED, 8),
        ("ViTModel", "ViTConfig", VIT, 4),  # whose tensors have other names in files
        ("T5ForConditionalGeneration", "T5Config", T5, 24),
        ("WhisperModel", "WhisperConfig", WHISPER, 20),
        ("DeepseekV3ForCausalLM", "DeepseekV3Config", DEEPSEEK, 8),
    ],
    ids=lambda value: value if isinstance(value, str) and not value.endswith("Config") else "",
)
def test_a_model_says_what_its_files_say(transformers, torch, tmp_path, class_, config, settings, heads):
    torch.manual_seed(0)
    model = getattr(transformers, class_)(getattr(transformers, config)(**settings))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)  # gains and biases that matter
    model.save_pretrained(tmp_path / "saved")
    theirs, ours = rootdk.audit(tmp_path / "saved"), rootdk.audit(model)
    same(ours, theirs)
    assert ours.model == class_ and len(ours) == heads and ours.data["notes"] == theirs.data["notes"]
    assert np.isfinite(ours["sigma"]).all() and (ours["sigma"] > 0).all()
    if class_ != "ViTModel":
        same(rootdk.audit(model.state_dict(), config=model.config), theirs)
        same(rootdk.audit(model.state_dict(), config=model.config.to_dict()), theirs)


@needs_torch
def test_any_module_whose_names_are_known(torch):
    tensors = state(30.0)
    wanted = rootdk.audit(tensors, config=CONFIG).to_dict()
    wanted.pop("model")

    def found(model, **more):
        audit = rootdk.audit(model, **more).to_dict()
        return audit.pop("model"), audit

    class Config:
        pass

    for config in (CONFIG, None, Config()):
        assert found(module(torch, tensors, config), config=CONFIG) == ("Module", wanted)
    assert found(module(torch, tensors, CONFIG)) == ("Module", wanted)
    with pytest.raises(ValueError, match="heads: "):
        rootdk.audit(module(torch, tensors, Config()))
    wrapped = torch.nn.DataParallel(module(torch, tensors, CONFIG))
    assert found(wrapped) == ("Module", wanted)
    assert found(wrapped.state_dict(), config=CONFIG) == ("state_dict", wanted)  # module.model.layers…
    assert found(torch.compile(module(torch, tensors, CONFIG))) == ("Module", wanted)


@needs_torch
def test_before_and_after_training(torch):
    model = module(torch, state(), CONFIG)
    before, twin = {name: x.clone() for name, x in model.state_dict().items()}, copy.deepcopy(model)
    with torch.no_grad():
        model.get_parameter(Q)[4:8] *= 30
    for against in (before, twin):
        worst = rootdk.audit(model, against=against).drift[0]
        assert (worst["layer"], worst["head"]) == (1, 1) and worst["growth"] == pytest.approx(30, rel=1e-5)


@needs_torch
def test_tensors_are_read_as_they_lie(torch):
    plain = {name: torch.as_tensor(x) for name, x in state(30.0).items()}
    wanted = rootdk.audit(plain, config=CONFIG).to_json()
    assert wanted == rootdk.audit(state(30.0), config=CONFIG).to_json()
    with torch.inference_mode():
        inference = {name: x.clone() for name, x in plain.items()}
    for tensors in (
        {name: x.T.contiguous().T if x.ndim == 2 else x for name, x in plain.items()},
        {name: torch.stack([x, -x], -1)[..., 0] for name, x in plain.items()},
        {name: torch.nn.Parameter(x) for name, x in plain.items()},
        {name: torch.complex(x * 0, -x).conj().imag for name, x in plain.items()},  # negated lazily
        inference,
    ):
        assert rootdk.audit(tensors, config=CONFIG).to_json() == wanted
    for dtype in (torch.bfloat16, torch.float16):
        narrow = {name: x.to(dtype) for name, x in plain.items()}
        assert (
            rootdk.audit(narrow, config=CONFIG).to_json()
            == rootdk.audit({name: x.float() for name, x in narrow.items()}, config=CONFIG).to_json()
        )


@needs_torch
@pytest.mark.parametrize(
    "kind, words",
    [
        ("meta", "meta device and has no numbers"),
        ("sparse", "sparse"),
        ("quantised", "quantised"),
        ("float8", "float8"),
        ("dtensor", "DTensor, which may be a part"),
        ("fake", "FakeTensor"),
        ("lazy", "no shape yet"),
    ],
)
def test_tensors_without_plain_numbers_are_refused(torch, kind, words):
    tensor = torch.as_tensor(state()[Q])
    if kind == "meta":
        tensor = tensor.to("meta")
    elif kind == "sparse":
        tensor = tensor.to_sparse()
    elif kind == "quantised":
        tensor = torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8)
    elif kind == "float8":
        tensor = tensor.to(torch.float8_e4m3fn)
    elif kind == "fake":
        from torch._subclasses.fake_tensor import FakeTensorMode

        tensor = FakeTensorMode().from_tensor(tensor)
    elif kind == "lazy":
        tensor = torch.nn.UninitializedParameter()
    else:

        class DTensor(torch.Tensor):
            def full_tensor(self):
                raise AssertionError("a collective call, which other ranks do not make")

        tensor = tensor.as_subclass(DTensor)
    with pytest.raises(ValueError, match=f'^model: "{Q}" .*{words}'):
        rootdk.audit({**state(), Q: tensor}, config=CONFIG)
    same_place = "model.layers.1.mlp.up_proj.weight"  # nobody reads it there
    assert len(rootdk.audit({**state(), same_place: tensor}, config=CONFIG)) == 8


@needs_torch
def test_memory_holds_one_tensor_at_a_time(torch, nothing_is_left):
    """Arrays of another byte order have to be copied; so do those of a device. All of them at once would be 24 MiB."""
    layers, width = 6, 512
    rng = np.random.default_rng(0)
    tensors = {}
    for i in range(layers):
        for name in ("q", "k"):
            numbers = rng.standard_normal((width, width))
            tensors[f"model.layers.{i}.self_attn.{name}_proj.weight"] = numbers.astype(">f8")
        tensors[f"model.layers.{i}.input_layernorm.weight"] = np.ones(width)
    gc.collect()
    tracemalloc.start()
    try:
        found = rootdk.audit(tensors, heads=8, context=64, spectra=False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found) == 48 and peak < 3 * width * width * 8
