"""The page's engine against the command: every experiment, every way of saying no, files of any size. What a call gives
is what `rootdk VERB --json` prints, to the accuracy that the arithmetic allows."""

import json
import math
import struct
import subprocess

import numpy as np
import pytest
from conftest import SITE

# The kernels of the page have 4 lanes and no fused multiply-add, so that sums are rounded otherwise: f32 has 6e-8 a
# step.
SINGLE = 1e-5


@pytest.fixture(scope="session")
def engines(browser, served):
    """A page of each kind with an engine in it: beside its files behind a server, and as one file from the disk."""
    pages, problems = {}, []
    for kind, address in {"server": served + "index.html", "file": (SITE / "rootdk.html").as_uri()}.items():
        page = browser.new_context().new_page()
        home = address if kind == "file" else served
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on(
            "request",
            lambda r, home=home: (
                None if r.url.startswith((home, "blob:", "data:")) else problems.append(f"request: {r.url}")
            ),
        )
        page.goto(address)
        page.evaluate("globalThis.engine = new rootdk.Engine()")
        pages[kind] = page
    yield pages
    for page in pages.values():
        page.context.close()
    assert not problems, problems


@pytest.fixture
def page(engines):
    return engines["server"]


CALL = """async ([verb, args]) => {
  for (const [key, value] of Object.entries(args))
    if (value !== null && typeof value === "object" && "f32" in value) args[key] = {data: Float32Array.from(value.f32), shape: value.shape};
  try {
    return {result: await engine.call(verb, args)};
  } catch (error) {
    return {refused: error.message, name: error.name};
  }
}"""


def ask(page, verb, args):
    return page.evaluate(CALL, [verb, args])


def answer(page, verb, args):
    got = ask(page, verb, args)
    assert "result" in got, got
    return got["result"]


def words(verb, args):
    """The same as a command line."""
    out = [verb]
    for key, value in args.items():
        option = "--" + key.replace("_", "-")
        if value is True:
            out.append(option)
        elif value is False or value is None:
            continue
        elif isinstance(value, list) and value and isinstance(value[0], list):
            for one in value:
                out += [option, ",".join(map(str, one))]
        elif isinstance(value, list):
            out += [option, ",".join(map(str, value))]
        else:
            out += [option, str(value)]
    return out


def run(command, line, **options):
    return subprocess.run([command, *line], capture_output=True, text=True, **options)


def printed(command, line, **options):
    done = run(command, [*line, "--json"], **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def leaves(value, path=""):
    if isinstance(value, dict):
        for key, one in value.items():
            yield from leaves(one, f"{path}/{key}")
    elif isinstance(value, list):
        for i, one in enumerate(value):
            yield from leaves(one, f"{path}/{i}")
    else:
        yield path, value


def close(got, want, relative, absolute=0.0, but=()):
    """The same fields in the same places, numbers to this accuracy; `but` names fields that are looked at elsewhere."""
    skipped = lambda path: any(part in path.split("/") for part in but)
    a = {p: v for p, v in leaves(got) if not skipped(p)}
    b = {p: v for p, v in leaves(want) if not skipped(p)}
    assert a.keys() == b.keys()
    for path, x in a.items():
        y = b[path]
        if isinstance(x, (int, float)) and isinstance(y, (int, float)) and not isinstance(x, bool):
            assert math.isclose(x, y, rel_tol=relative, abs_tol=absolute), (path, x, y)
        else:
            assert x == y, path


def estimates(value, path=""):
    """Every mean with its interval."""
    if isinstance(value, dict):
        if "ci95" in value and "value" in value:
            yield path, value
        for key, one in value.items():
            yield from estimates(one, f"{path}/{key}")
    elif isinstance(value, list):
        for i, one in enumerate(value):
            yield from estimates(one, f"{path}/{i}")


def within_intervals(got, want):
    mine, theirs = dict(estimates(got)), dict(estimates(want))
    assert mine.keys() == theirs.keys() and mine
    for path, one in mine.items():
        low, high = theirs[path]["ci95"]
        assert low <= one["value"] <= high, (path, one, theirs[path])


# The same numbers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["server", "file"])
@pytest.mark.parametrize(
    "args",
    [
        {"dk": [1, 4, 64], "pairs": 30000},
        {"dk": [8], "pairs": 20000, "mean": 0.5, "corr": 0.2, "sigma_q": 2, "seed": 7},
    ],
)
def test_variance_is_the_same_to_the_bit(engines, command, kind, args):
    assert answer(engines[kind], "variance", args) == printed(command, words("variance", args))


@pytest.mark.parametrize("kind", ["server", "file"])
@pytest.mark.parametrize(
    "args",
    [
        {"scores": [14, 10, 12], "dk": 64},
        {"scores": [50, 10, 5], "dk": 100, "rules": ["none", "sqrt_dk*ssmax(0.43)", "dk(8)"]},
        {"q": [1, 0, 1, 0], "k": [[0, 1, 1, 1], [1, 1, 0, 0]], "gradient": [1, -1]},
        {"scores": [0.1, 1e-3, -7.5], "dk": 3},
    ],
)
def test_explain(engines, command, kind, args):
    close(answer(engines[kind], "explain", args), printed(command, words("explain", args)), 1e-12)


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"rule": "none", "keys": 1024},
        {"rule": "dk", "dk": 16, "queries": 10, "row": 9},
        {"rule": "sqrt_dk*ssmax(0.43)", "causal": True},
        {"rule": "qk_norm", "sigma_q": 3},
        {"rule": "cosine(10)"},
        {"rule": "measured", "sigma_k": 0.2},
        {"mean": 0.5, "correlation": 0.2},
        {"rule": "none", "soft_cap": 5, "sink": 1, "dropout": 0.25, "seed": 3},
        {"dk": 1, "keys": 2, "queries": 1},
        {"dk": 7, "keys": 13, "queries": 5},  # no multiple of anything
    ],
)
def test_playground(page, command, args):
    got, want = answer(page, "playground", args), printed(command, words("playground", args))
    close(got, want, SINGLE, SINGLE, but=["counts", "expected", "conclusion"])
    # A score on the edge between two bins may fall on either side of it.
    moved = sum(abs(a - b) for a, b in zip(got["histogram"]["counts"], want["histogram"]["counts"]))
    assert moved <= max(2, 2e-4 * sum(want["histogram"]["counts"]))
    if want["histogram"]["expected"]:
        # Its edges are as exact as the scores, and no bin is wider than what its height is multiplied by.
        expected = want["histogram"]["expected"]
        close(got["histogram"]["expected"], expected, SINGLE, SINGLE * max(expected))


def test_phase(page, command):
    args = {"dk": [4, 64], "keys": [16, 256], "queries": 32, "batches": 4}
    got, want = answer(page, "phase", args), printed(command, words("phase", args))
    within_intervals(got, want)
    close(got, want, 1e-9, but=["value", "standard_error", "ci95", "conclusion"])
    close(got, want, SINGLE, SINGLE, but=["conclusion"])


def test_gradient(page, command):
    args = {"dk": [16, 64], "keys": 128, "queries": 32, "batches": 4}
    got, want = answer(page, "gradient", args), printed(command, words("gradient", args))
    within_intervals(got, want)
    close(
        got,
        want,
        1e-9,
        but=[
            "value",
            "standard_error",
            "ci95",
            "conclusion",
            "quantiles",
            "mean",
            "median",
            "share_trace_j_under_1pct",
        ],
    )
    # Gradients of about 1 are summed in f32; in their tails cancellation leaves what is small fewer digits.
    close(got, want, SINGLE, SINGLE, but=["conclusion"])
    close(got, want, 1e-3, 1e-6, but=["conclusion"])


def test_precision(page, command):
    args = {"dk": [64], "keys": 128, "queries": 16, "gains": [1, 1000]}
    close(answer(page, "precision", args), printed(command, words("precision", args)), 1e-9)


def test_init(page, command):
    args = {"widths": [64, 128], "dk": [16], "tokens": 32, "batches": 4}
    got, want = answer(page, "init", args), printed(command, words("init", args))
    within_intervals(got, want)
    close(got, want, SINGLE, but=["conclusion", "standard_error"])


def test_rules(page, command):
    assert answer(page, "rules", {}) == printed(command, ["rules"])


def arrays(tmp_path, heads=2, length=40, dim=16):
    random = np.random.default_rng(1)
    out = {}
    for name in "qkv":
        out[name] = random.standard_normal((heads, length, dim)).astype(np.float32) * 2
        np.save(tmp_path / f"{name}.npy", out[name])
    return out


@pytest.mark.parametrize("causal", [False, True])
def test_whatif(page, command, tmp_path, causal):
    given = {name: {"f32": x.ravel().tolist(), "shape": list(x.shape)} for name, x in arrays(tmp_path).items()}
    got = answer(page, "whatif", {**given, "causal": causal})
    want = printed(command, ["whatif", "q.npy", "k.npy", "v.npy", *(["--causal"] if causal else [])], cwd=tmp_path)
    close(got, want, SINGLE, SINGLE, but=["conclusion"])


def test_attend(page, command, tmp_path):
    given = {name: {"f32": x.ravel().tolist(), "shape": list(x.shape)} for name, x in arrays(tmp_path).items()}
    got = answer(page, "attend", {**given, "rule": "sqrt_dk*ssmax(0.43)", "causal": True})
    want = printed(
        command, ["attend", "q.npy", "k.npy", "v.npy", "--rule", "sqrt_dk*ssmax(0.43)", "--causal"], cwd=tmp_path
    )
    assert got["isa"] == "WASM"
    close(got, want, SINGLE, SINGLE, but=["isa"])


def test_arrays_of_doubles_stay_doubles(page, command, tmp_path):
    page.evaluate("globalThis.wide = {data: Float64Array.from({length: 48}, (_, i) => Math.sin(i)), shape: [6, 8]}")
    np.save(tmp_path / "x.npy", np.sin(np.arange(48.0)).reshape(6, 8))
    got = page.evaluate("engine.call('attend', {q: wide, k: wide, v: wide})")
    assert got["dtype"] == "f64"
    close(got, printed(command, ["attend", "x.npy", "x.npy", "x.npy"], cwd=tmp_path), 1e-12, 1e-14, but=["isa"])


# Training --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule, dk, batch", [("sqrt_dk", 16, 8), ("none", 6, 1)])
def test_training_step_by_step(page, command, tmp_path, rule, dk, batch):
    steps = 12
    want = printed(
        command,
        [
            "train",
            "--rules",
            rule,
            "--lr",
            "0.003",
            "--seeds",
            "1",
            "--steps",
            str(steps),
            "--batch",
            str(batch),
            "--dk",
            str(dk),
        ],
    )
    want = want["rules"][0]["runs"][0]
    args = {"rule": rule, "learning_rate": 0.003, "steps": steps, "batch": batch, "dk": dk, "seed": want["seed"]}
    started = answer(page, "train_start", args)
    assert (started["step"], started["last_step"], started["done"], started["loss"]) == (0, steps, False, None)

    first = answer(page, "train_advance", {"run": started["run"], "steps": 5})
    assert first["steps"]["step"] == [1, 2, 3, 4, 5] and first["step"] == 5 and not first["done"]
    saved = page.evaluate(
        "async run => { globalThis.saved = await engine.call('train_checkpoint', {run}); return saved.length }",
        started["run"],
    )
    assert saved > 100_000
    rest = answer(page, "train_advance", {"run": started["run"], "steps": 100})
    assert rest["done"] and rest["outcome"] == "finished" and rest["step"] == steps
    joined = {
        k: first["steps"][k] + rest["steps"][k]
        for k in ("step", "loss", "accuracy", "gradient_norm", "sigma", "entropy", "p_max")
    }
    for key, values in joined.items():
        close(values, want["steps"][key], 2e-5, 1e-6)
    close(rest["evaluations"], want["evaluations"], 2e-5)
    assert rest["loss"] == joined["loss"][-1] and len(rest["heads"]) == 2
    assert rest["heads"][1]["sigma"] == rest["steps"]["heads"][1]["sigma"][-1]

    # Taken up where it was saved, it goes the same way, to the bit.
    resumed = page.evaluate("engine.call('train_resume', {file: new File([saved], 'run.safetensors')})")
    assert resumed["step"] == 5 and resumed["steps"]["loss"] == first["steps"]["loss"]
    again = answer(page, "train_advance", {"run": resumed["run"], "steps": 100})
    assert again["steps"] == rest["steps"] and again["evaluations"] == rest["evaluations"]

    # And the command can read it.
    (tmp_path / "run.safetensors").write_bytes(bytes(page.evaluate("Array.from(saved)")))
    native = printed(command, ["audit", "run.safetensors"], cwd=tmp_path)
    close(
        page.evaluate("engine.call('audit', {file: new File([saved], 'run.safetensors')})"),
        native,
        SINGLE,
        1e-9,
        but=["headline", "conclusion", "words", "fix"],
    )
    assert answer(page, "train_end", {"run": started["run"]}) == {}
    assert (
        ask(page, "train_advance", {"run": started["run"]})["refused"]
        == f"--run: {started['run']} is none of the runs here"
    )


def test_training_refuses(page):
    def refused(verb, args):
        return ask(page, verb, args)["refused"]

    assert refused("train_start", {"rule": "root"}).startswith('--rules: scale: "root"')
    assert refused("train_start", {"rule": "none,dk"}) == "--rule: 2 given, but one run has one"
    assert refused("train_start", {"learning_rate": -1}) == "learning_rate: -1, but a finite positive number is wanted"
    assert refused("train_start", {"steps": -3}) == "--steps: -3, but at least 1 is wanted (0 is the default)"
    bad = "engine.call('train_resume', {file: new File([%s], 'bad.safetensors')}).catch(error => error.message)"
    assert page.evaluate(bad % "'not a checkpoint at all'").startswith("bad.safetensors: byte ")


# Checkpoints -----------------------------------------------------------------------------------------------------------


def header_of(tensors):
    """name → (shape, offset): all f32."""
    fields = {
        n: {"dtype": "F32", "shape": s, "data_offsets": [at, at + 4 * math.prod(s)]} for n, (s, at) in tensors.items()
    }
    text = json.dumps(fields).encode()
    return struct.pack("<Q", len(text)) + text


CONFIG = {"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 2,
          "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "vocab_size": 50}  # fmt: skip


def weights_of(seed, scale=0.3):
    random = np.random.default_rng(seed)
    out = {"model.embed_tokens.weight": random.standard_normal((50, 32))}
    for layer in range(2):
        at = f"model.layers.{layer}."
        out[at + "input_layernorm.weight"] = 1 + 0.1 * random.standard_normal(32)
        out[at + "self_attn.q_proj.weight"] = scale * random.standard_normal((32, 32))
        out[at + "self_attn.k_proj.weight"] = scale * random.standard_normal((16, 32))
        out[at + "self_attn.v_proj.weight"] = scale * random.standard_normal((16, 32))
        out[at + "self_attn.o_proj.weight"] = scale * random.standard_normal((32, 32))
        out[at + "post_attention_layernorm.weight"] = np.ones(32)
        for name, shape in (("gate", (24, 32)), ("up", (24, 32)), ("down", (32, 24))):
            out[at + f"mlp.{name}_proj.weight"] = scale * random.standard_normal(shape)
    out["model.norm.weight"] = np.ones(32)
    return {name: x.astype(np.float32) for name, x in out.items()}


def write_model(folder, seed, scale=0.3):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    weights, at, tensors, data = weights_of(seed, scale), 0, {}, b""
    for name, x in weights.items():
        tensors[name] = (list(x.shape), at)
        at += x.nbytes
        data += x.tobytes()
    (folder / "model.safetensors").write_bytes(header_of(tensors) + data)


def choose(page, name, paths):
    """Files as a person would choose them, under globalThis.chosen[name]."""
    page.evaluate("""name => {
      document.getElementById("for-tests")?.remove();
      const input = document.createElement("input");
      Object.assign(input, {type: "file", multiple: true, id: "for-tests", hidden: true});
      document.body.append(input);
    }""", name)  # fmt: skip
    page.set_input_files("#for-tests", [str(p) for p in paths])
    page.evaluate("name => (globalThis.chosen ??= {})[name] = [...document.getElementById('for-tests').files]", name)


SAID = ["headline", "conclusion", "words", "fix"]  # numbers in words may be rounded otherwise


@pytest.mark.parametrize("kind", ["server", "file"])
def test_audit_of_a_folder_and_drift(engines, command, tmp_path, kind):
    page = engines[kind]
    for name, seed, scale in (("model", 1, 0.3), ("earlier", 2, 0.2)):
        write_model(tmp_path / name, seed, scale)
        choose(page, name, sorted((tmp_path / name).iterdir()))
    got = page.evaluate("engine.call('audit', {file: chosen.model, against: chosen.earlier, context: 256})")
    want = printed(command, ["audit", "model", "--against", "earlier", "--context", "256"], cwd=tmp_path)
    close(got, want, SINGLE, 1e-9, but=SAID)
    assert got["drift"]


def test_audit_runs_a_model_on_tokens(page, command, tmp_path):
    write_model(tmp_path / "model", 3)
    choose(page, "model", sorted((tmp_path / "model").iterdir()))
    got = page.evaluate("engine.call('audit', {file: chosen.model, tokens: 'random:2x16'})")
    close(got, printed(command, ["audit", "model", "--tokens", "random:2x16"], cwd=tmp_path), SINGLE, 1e-9, but=SAID)
    assert ask(page, "audit", {"tokens": "random:2x16"})["refused"] == "which checkpoint? rootdk audit PATH"


COUNT_READS = """() => {
  self.taken = 0;
  const read = FileReaderSync.prototype.readAsArrayBuffer;
  FileReaderSync.prototype.readAsArrayBuffer = function (blob) {
    self.taken += blob.size;
    return read.call(this, blob);
  };
}"""


def test_audit_of_a_file_of_several_gigabytes(browser, served, command, tmp_path):
    """Attention beyond 2, 4 and 6 GB, and holes of MLPs between: only what is needed is read."""
    weights, at, tensors, places = weights_of(5), 0, {}, {}
    hole = [1 << 15, 1 << 14]  # 2 GiB
    for layer in range(2):
        for i in range(2):
            tensors[f"model.layers.{layer}.hole.{i}"] = (hole, at)
            at += 4 * math.prod(hole)
        for name, x in weights.items():
            if f"layers.{layer}." in name or (layer == 1 and "layers" not in name):
                tensors[name], places[name] = (list(x.shape), at), at
                at += x.nbytes
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(CONFIG))
    file = tmp_path / "model/model.safetensors"
    header = header_of(tensors)
    with open(file, "wb") as out:
        out.write(header)
        for name, offset in places.items():
            out.seek(len(header) + offset)
            out.write(weights[name].tobytes())
    assert file.stat().st_size > 8 << 30

    context = browser.new_context()
    page = context.new_page()
    page.goto(served + "index.html")
    page.evaluate("globalThis.engine = new rootdk.Engine()")
    page.evaluate("engine.ready")
    for worker in page.workers:  # the page has one of its own
        worker.evaluate(COUNT_READS)
    choose(page, "model", sorted((tmp_path / "model").iterdir()))
    got = page.evaluate("engine.call('audit', {file: chosen.model})")
    taken = sum(worker.evaluate("self.taken || 0") for worker in page.workers)
    context.close()
    close(got, printed(command, ["audit", "model"], cwd=tmp_path), SINGLE, 1e-9, but=SAID)
    assert 0 < taken < 4 << 20, f"{taken} bytes were read"


# Saying
# no -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "verb, args",
    [
        ("explain", {"scores": [14, 10, 12], "dk": 0}),
        ("explain", {"scores": [14, 10, 12], "dk": -4}),
        ("explain", {"scores": "14,,12", "dk": 64}),
        ("explain", {"scores": "a, b", "dk": 64}),
        ("explain", {"dk": "x"}),
        ("explain", {"scores": [1, 2], "dk": 4, "rules": ["root"]}),
        ("explain", {"q": [1, 2], "k": [[1, 2, 3]]}),
        ("explain", {}),
        ("variance", {"dk": [0]}),
        ("variance", {"pairs": 1}),
        ("variance", {"pairs": 1.5}),
        ("variance", {"components": ["cauchy"]}),
        ("variance", {"corr": 2}),
        ("phase", {"dk": [0]}),
        ("phase", {"keys": [1]}),
        ("phase", {"rules": ["sqrt_dk*sqrt_dk"]}),
        ("gradient", {"batches": 1}),
        ("precision", {"gains": "much"}),
        ("init", {"tokens": 0}),
        ("playground", {"dk": 0}),
        ("playground", {"rule": "temperature"}),
        ("playground", {"soft_cap": "high"}),
        ("playground", {"sink": [1, 2]}),
        ("playground", {"seed": -1}),
        ("train", {"dk": [0], "steps": 1}),
    ],
)
def test_refusals_are_the_commands(page, command, verb, args):
    done = run(command, words(verb, args))
    assert done.returncode == 2
    got = ask(page, verb, args)
    assert got["name"] == "EngineError"
    assert f"rootdk {verb}: {got['refused']}\n" == done.stderr


@pytest.mark.parametrize(
    "content, name",
    [
        (b"", "empty.safetensors"),
        (b'\x08\0\0\0\0\0\0\0{"a":1}}', "broken.safetensors"),
        (b"\xff" * 64, "long.safetensors"),
        (b"GGUF\x03\0\0\0" + b"\xff" * 16, "broken.gguf"),
        (b"PK\x03\x04" + b"\0" * 40, "broken.npz"),
        (b"words", "words.txt"),
        (b"\x80\x04pickle", "model.pt"),
        (header_of({"x": ([2, 2], 0)}) + b"\0" * 16, "no-model.safetensors"),
    ],
)
def test_files_are_refused_as_by_the_command(page, command, tmp_path, content, name):
    (tmp_path / name).write_bytes(content)
    choose(page, "bad", [tmp_path / name])
    got = page.evaluate("engine.call('audit', {file: chosen.bad[0]}).catch(error => error.message)")
    done = run(command, ["audit", name], cwd=tmp_path)
    assert done.stderr == f"rootdk audit: {got}\n"


def test_what_is_no_request_is_refused(page):
    assert ask(page, "dance", {})["refused"] == "no subcommand 'dance'; try rootdk --help"
    assert ask(page, "explain", {"scors": [1]})["refused"] == "'scors' is not expected; try rootdk explain --help"
    assert ask(page, "playground", {"causal": 1})["refused"] == "--causal: 1, but true or false is wanted"
    assert (
        ask(page, "playground", {"dk": {"a": 1}})["refused"]
        == '--dk: {"a":1}, but a number, a text or a list is wanted'
    )
    assert ask(page, "whatif", {})["refused"] == "q is required"
    wrong = page.evaluate("engine.call('whatif', {q: {data: new Float32Array(5), shape: [2, 3]}, k: {data: new Float32Array(6), shape: [2, 3]}})"
                          ".catch(error => error.message)")  # fmt: skip
    assert wrong == "an array of shape 2 × 3 has 6 numbers, but 5 came"
    # And it goes on.
    assert answer(page, "explain", {"scores": [1, 2], "dk": 4})["dk"] == 4


# The engine
# itself -----------------------------------------------------------------------------------------------------


def test_a_call_can_be_ended_and_the_next_one_starts_anew(page):
    got = page.evaluate("""async () => {
      const engine = new rootdk.Engine(), stop = new AbortController(), shares = [];
      await engine.ready;
      const long = engine.call("variance", {pairs: 1e9}, {progress: share => shares.push(share), signal: stop.signal}).catch(error => error.name);
      const waiting = engine.call("explain", {scores: [1, 2], dk: 4}).catch(error => error.name);
      while (shares.length < 2) await new Promise(done => setTimeout(done, 20));
      stop.abort();
      const names = [await long, await waiting], after = await engine.call("explain", {scores: [1, 2], dk: 4});
      const before = new AbortController();
      before.abort();
      const never = await engine.call("explain", {}, {signal: before.signal}).catch(error => error.name);
      engine.close();
      return {names, after: after.dk, shares, never};
    }""")  # fmt: skip
    assert got["names"] == ["AbortError", "AbortError"] and got["after"] == 4 and got["never"] == "AbortError"
    assert got["shares"] == sorted(got["shares"]) and 0 < got["shares"][-1] < 1


def test_the_newest_call_wins(page):
    got = page.evaluate("""async () => {
      const engine = new rootdk.Engine(), newest = engine.newest(), calls = [];
      for (let seed = 0; seed < 20; ++seed) calls.push(newest("playground", {keys: 512, seed}));
      const seeds = (await Promise.all(calls)).map(result => result && result.seed);
      const later = await newest("playground", {seed: 99}), refused = await newest("playground", {dk: 0}).catch(error => error.message);
      engine.close();
      return {seeds, later: later.seed, refused};
    }""")  # fmt: skip
    assert got["seeds"][0] == 0 and got["seeds"][-1] == 19 and got["seeds"][1:-1] == [None] * 18
    assert got["later"] == 99 and got["refused"] == "dk: 0, but a whole number from 1 to 65536 is wanted"


def test_engines_work_beside_each_other(page):
    got = page.evaluate("""async () => {
      const engines = [0, 1, 2].map(() => new rootdk.Engine());
      const found = await Promise.all(engines.map((engine, i) => engine.call("playground", {seed: i})));
      engines.forEach(engine => engine.close());
      return found.map(result => result.seed);
    }""")  # fmt: skip
    assert got == [0, 1, 2]


def test_sizes(engines):
    """Two megabytes each, as a server sends them compressed."""
    import gzip

    beside = sum(
        len(gzip.compress((SITE / name).read_bytes(), 9)) for name in ("index.html", "worker.js", "rootdk.wasm")
    )
    inside = len(gzip.compress((SITE / "rootdk.html").read_bytes(), 9))
    assert beside <= 2_000_000 and inside <= 2_000_000, (beside, inside)
