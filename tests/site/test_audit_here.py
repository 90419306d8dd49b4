"""The audit in the page: files chosen, dropped and shipped, of any size, read where they lie; the command's own
numbers."""

import csv
import io
import json
import math
import random
import struct
import subprocess

import accessibility
import pages
import pytest

LAYERS, HEADS, DIM, WIDTH = 3, 4, 8, 16
# Products are summed in another order than by the command, in f32 (6e-8 a step), some forty deep, with mixed signs.
CLOSE = 1e-5


def safetensors(path, tensors, metadata=None):
    """tensors: name → (shape, numbers); None for a hole of zeros."""
    header, at = {}, 0
    for name, (shape, _) in tensors.items():
        end = at + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, end]}
        at = end
    if metadata:
        header["__metadata__"] = metadata
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, (_, values) in tensors.items():
            if values is not None:
                file.seek(8 + len(text) + header[name]["data_offsets"][0])
                file.write(struct.pack(f"<{len(values)}f", *values))


def growth(layer, head):
    return 1.3 + 0.2 * (layer * HEADS + head)


def projections(grown=False):
    random.seed(5)
    tensors = {}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name in ("q", "k"):
            size = 0.2 * 4 ** random.uniform(0, layer)
            numbers = [random.gauss(0, size) for _ in range(HEADS * DIM * WIDTH)]
            if grown and name == "q":
                numbers = [x * growth(layer, i // (DIM * WIDTH)) for i, x in enumerate(numbers)]
            tensors[f"{at}self_attn.{name}_proj.weight"] = ([HEADS * DIM, WIDTH], numbers)
        tensors[f"{at}input_layernorm.weight"] = ([WIDTH], [1.0] * WIDTH)
    return tensors


CONFIG = {"model_type": "llama", "num_attention_heads": HEADS, "max_position_embeddings": 2048}


def model(folder, name="model.safetensors", **options):
    folder.mkdir(parents=True, exist_ok=True)
    safetensors(folder / name, projections(**options))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return [folder / name, folder / "config.json"]


def audited(command, *words):
    done = subprocess.run([command, "audit", *map(str, words), "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def found(page):
    page.wait_for_selector(".found[data-answered]")
    return page.locator(".found")


def choose(page, files, earlier=False):
    label = "An earlier one of the same model" if earlier else "A checkpoint:"
    page.get_by_label(label).set_input_files([str(f) for f in files])


def hold(page, result):
    """Every value and mark that is shown is the command's."""
    shown = page.evaluate(
        "[...document.querySelectorAll('.found [data-path]')].filter((e) => e.dataset.path && e.dataset.value !== 'undefined').map((e) => [e.dataset.path, e.dataset.value])"
    )
    for path, value in shown:
        wanted = pages.at_pointer(result, path.removeprefix("/audit"))
        if isinstance(wanted, str):
            # words round numbers that differ in the last place
            if not path.endswith(("/words", "/fix", "/conclusion", "/headline")):
                assert value == wanted, path
        elif wanted is None:
            assert value == "null", (path, value)
        else:
            assert math.isclose(float(value), wanted, rel_tol=CLOSE, abs_tol=1e-9), (path, value, wanted)
    return len(shown)


def test_the_sample_has_the_commands_numbers(visit, command, served):
    page = visit("#audit")
    page.get_by_role("button", name="Use the sample").click()
    found(page)
    samples = pages_root()
    result = audited(
        command, samples / "sample-trained.safetensors", "--against", samples / "sample-untrained.safetensors"
    )
    assert hold(page, result) > 16 * 12
    assert page.locator(".found h2").first.inner_text() == result["headline"]
    assert page.locator(".found .how code").text_content() == (
        "rootdk audit sample-trained.safetensors --against sample-untrained.safetensors"
    )
    page.wait_for_function("() => location.hash === '#audit?sample=1'")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download as JSON").click()
    kept = json.loads(download.value.path().read_text(encoding="utf-8"))
    assert kept["headline"] == result["headline"] and len(kept["layers"]) == 4
    name, text = pages.saved(page, page.get_by_role("button", name="Save as CSV: The map of heads"))
    assert name == "rootdk-audit-map.csv" and len(text.splitlines()) == 17
    drawing = pages.saved_drawing(page, page.get_by_role("button", name="Save as SVG: The map of heads"))
    assert len(drawing["rects"]) > 16 and drawing["title"] == "The map of heads"
    page.get_by_role("button", name="0.3", exact=True).click()
    spectrum = pages.at_pointer(result, "/layers/0/heads/3/spectrum")
    name, text = pages.saved(
        page, page.locator("#audit-head").get_by_role("button", name="Save as CSV: Head 0.3").first
    )
    assert name == "rootdk-audit-head.csv"
    assert [float(row["value"]) for row in csv.DictReader(io.StringIO(text))] == pytest.approx(spectrum, rel=CLOSE)


def pages_root():
    import conftest

    return conftest.ROOT / "web/site"


def test_a_link_shows_the_same_head_and_map(visit):
    page = visit("#audit?sample=1")
    worst = found(page).locator("#audit-head h2").inner_text()
    names = page.locator("#audit-heads tbody th button")
    other = next(name for name in names.all_inner_texts() if f"Head {name}:" not in worst)
    names.get_by_text(other, exact=True).click()
    page.locator("#audit-map select").first.select_option("entropy")
    page.wait_for_function(f"() => location.hash === '#audit?sample=1&show=entropy&head={other}'")
    colours = "[...document.querySelectorAll('#audit-map .mark')].map((e) => [e.dataset.path, e.getAttribute('fill')])"
    again = visit(f"#audit?sample=1&show=entropy&head={other}")
    assert found(again).locator("#audit-head h2").inner_text().startswith(f"Head {other}:")
    assert again.locator("#audit-map select").first.input_value() == "entropy"
    assert again.evaluate(colours) == page.evaluate(colours) != []
    page.evaluate("location.hash = '#audit?sample=1'")
    page.wait_for_function(f"() => document.querySelector('#audit-head h2').innerText === {json.dumps(worst)}")
    assert page.locator("#audit-map select").first.input_value() == "σ/σ_c"


@pytest.mark.parametrize("address", ["show=growth&keys=7&head=99.1", "show=banana&head=%3Cb%3E"])
def test_what_a_model_has_not_is_not_shown(visit, tmp_path, address):
    page = visit(f"#audit?{address}")
    choose(page, model(tmp_path))
    assert found(page).locator("#audit-head h2").inner_text().startswith("Head ")
    assert page.locator("#audit-map select").first.input_value() == "σ/σ_c"


def test_a_link_shows_the_sample(visit):
    page = visit("#audit?sample=1")
    assert "heads" in found(page).locator("h2").first.inner_text()


def test_files_are_chosen_and_heads_clicked_through(visit, command, tmp_path):
    page = visit("#audit")
    choose(page, model(tmp_path / "model"))
    found(page)
    result = audited(command, tmp_path / "model")
    assert hold(page, result) > LAYERS * HEADS * 10
    cells = page.locator("#audit-map .cell")
    assert cells.count() == LAYERS * HEADS
    cells.nth(5).click()
    assert page.locator("#audit-head h2").inner_text().startswith("Head 1.1: ")
    hold(page, result)
    canvas = page.locator("#audit-map .canvas")
    page.mouse.move(0, 0)  # or what moves under the pointer is read out in between
    canvas.focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    assert page.locator("#audit-head h2").inner_text().startswith("Head 2.2: ")
    page.get_by_role("button", name="0.3", exact=True).click()
    assert page.locator("#audit-head h2").inner_text().startswith("Head 0.3: ")
    # Another number of keys, said in the address.
    page.get_by_text("What the files do not say").click()
    box = page.get_by_role("spinbutton", name="Keys")
    box.fill("64")
    box.press("Enter")
    page.wait_for_function("() => location.hash.includes('at=64')")
    page.wait_for_function("() => document.querySelector('.found .claim').textContent.startsWith('At 64 keys')")
    hold(page, audited(command, tmp_path / "model", "--at", "64"))


def test_two_files_show_what_moved(visit, command, tmp_path):
    page = visit("#audit")
    now, before = model(tmp_path / "now", grown=True), model(tmp_path / "before")
    choose(page, before, earlier=True)
    choose(page, now)
    found(page)
    page.locator("#audit-drift").wait_for()
    result = audited(command, tmp_path / "now", "--against", tmp_path / "before")
    assert hold(page, result) > LAYERS * HEADS * 10
    assert (
        f"σ has become {sum(growth(1, h) for h in (1, 2)) / 2:.2f} times what it was at the median"
        in page.locator("#audit-drift").inner_text()
    )
    page.locator("#audit-map select").first.select_option("growth")
    assert hold(page, result) > LAYERS * HEADS * 10
    page.get_by_role("button", name="Remove").nth(1).click()
    page.locator("#audit-drift").wait_for(state="detached")


GGUF_TYPES = {int: (4, "<I"), float: (6, "<f")}


def gguf(path, settings, tensors):
    """Version 3, f32; tensors: name → (shape, numbers)."""
    text = lambda words: struct.pack("<Q", len(words.encode())) + words.encode()
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(settings) + 1)
    header += text("general.architecture") + struct.pack("<I", 8) + text("llama")
    for name, value in settings.items():
        kind, form = GGUF_TYPES[type(value)]
        header += text(f"llama.{name}") + struct.pack("<I", kind) + struct.pack(form, value)
    data = b""
    for name, (shape, values) in tensors.items():
        header += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], 0, len(data))
        data += struct.pack(f"<{len(values)}f", *values)
        data += b"\0" * (-len(data) % 32)
    path.write_bytes(header + b"\0" * (-len(header) % 32) + data)


def test_a_gguf_has_the_commands_numbers(visit, command, tmp_path):
    short = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "input_layernorm": "attn_norm"}
    tensors = {}
    for name, tensor in projections().items():
        _, _, layer, rest = name.split(".", 3)
        tensors[f"blk.{layer}.{short[rest.removesuffix('.weight')]}.weight"] = tensor
    settings = {
        "attention.head_count": HEADS,
        "embedding_length": WIDTH,
        "block_count": LAYERS,
        "context_length": 512,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.key_length": DIM,
        "rope.dimension_count": DIM,
    }
    gguf(tmp_path / "model.gguf", settings, tensors)
    page = visit("#audit")
    choose(page, [tmp_path / "model.gguf"])
    found(page)
    result = audited(command, tmp_path / "model.gguf")
    assert page.locator(".found h2").first.inner_text() == result["headline"]
    assert hold(page, result) > LAYERS * HEADS * 10
    assert page.locator(".found .how code").text_content() == "rootdk audit model.gguf"


def test_an_npz_has_the_commands_numbers_deflated_or_not(visit, command, tmp_path):
    numpy = pytest.importorskip("numpy")
    arrays = {name: numpy.array(values, "float32").reshape(shape) for name, (shape, values) in projections().items()}
    numpy.savez(tmp_path / "plain.npz", **arrays)
    numpy.savez_compressed(tmp_path / "deflated.npz", **arrays)
    options = ("--heads", HEADS, "--context", 512)
    result = audited(command, tmp_path / "plain.npz", *options)
    page = visit(f"#audit?heads={HEADS}&context=512")
    for name in ("plain.npz", "deflated.npz"):
        choose(page, [tmp_path / name])
        page.wait_for_function("name => document.querySelector('.found').dataset.answered === name", arg=name)
        assert page.locator(".found h2").first.inner_text() == result["headline"]
        assert hold(page, result) > LAYERS * HEADS * 10
    packed = bytearray((tmp_path / "deflated.npz").read_bytes())
    packed[100:140] = b"\xff" * 40
    (tmp_path / "damaged.npz").write_bytes(packed)
    choose(page, [tmp_path / "damaged.npz"])
    page.locator(".audit-files .refused", has_text="damaged.npz").wait_for()


def test_a_file_is_dropped(visit, tmp_path):
    page = visit("#audit")
    file = model(tmp_path / "model", "weights.safetensors")[0]
    data = file.read_bytes()
    page.evaluate(
        """([numbers, config]) => {
          const transfer = new DataTransfer();
          transfer.items.add(new File([new Uint8Array(numbers)], 'weights.safetensors'));
          transfer.items.add(new File([config], 'config.json'));
          document.querySelector('.checkpoint').dispatchEvent(new DragEvent('drop', {dataTransfer: transfer, bubbles: true, cancelable: true}));
        }""",
        [list(data), json.dumps(CONFIG)],
    )
    found(page)
    assert page.locator("#audit-map .cell").count() == LAYERS * HEADS


def test_what_is_no_checkpoint_is_refused_in_one_line(visit, tmp_path):
    page = visit("#audit")
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(b"\xff" * 64)
    choose(page, [bad])
    page.locator(".audit-files .refused:not(:empty)").wait_for()
    assert "bad.safetensors" in page.locator(".audit-files .refused").inner_text()
    assert page.locator(".found > *").count() == 0
    note = tmp_path / "notes.txt"
    note.write_text("no weights")
    choose(page, [note])
    assert "No .safetensors, .gguf or .npz among these files." in page.locator(".checkpoint").first.inner_text()
    # And the next good one is taken.
    choose(page, model(tmp_path / "model"))
    found(page)
    assert page.locator(".audit-files .refused").inner_text() == ""


def test_names_that_try_to_break_out_are_text(visit, tmp_path):
    page = visit("#audit")
    choose(page, model(tmp_path / "model", "<img src=x onerror='window.broken = 1'>.safetensors"))
    found(page)
    assert page.evaluate("window.broken") is None


def test_a_file_larger_than_memory_is_read_in_slices(visit, command, tmp_path):
    """6 GB, sparse on the disk, with the heads at its end: beyond what 32 bits can count, and what a page may hold."""
    folder = tmp_path / "large"
    folder.mkdir()
    safetensors(folder / "model.safetensors", {"model.unused": ([1500, 10**6], None), **projections()})
    assert (folder / "model.safetensors").stat().st_size > 6e9
    (folder / "config.json").write_text(json.dumps(CONFIG))
    page = visit("#audit")
    choose(page, [folder / "model.safetensors", folder / "config.json"])
    found(page)
    model(tmp_path / "small")
    assert page.locator("#audit-map .cell").count() == LAYERS * HEADS
    wanted = audited(command, tmp_path / "small")
    cells = page.evaluate("[...document.querySelectorAll('#audit-map .cell')].map((c) => Number(c.dataset.value))")
    heads = [head for layer in wanted["layers"] for head in layer["heads"]]
    assert cells == pytest.approx([head["sigma_over_critical"][str(wanted["judged_at"])] for head in heads], rel=CLOSE)


def test_by_a_finger_alone(visit):
    page = visit("#audit", width=390)
    page.get_by_role("button", name="Use the sample").tap()
    found(page)
    page.locator("#audit-map .cell").nth(6).tap()
    assert page.locator("#audit-head h2").inner_text().startswith("Head 1.2: ")
    page.get_by_role("button", name="0.3", exact=True).tap()
    assert page.locator("#audit-head h2").inner_text().startswith("Head 0.3: ")


@pytest.mark.parametrize("widths", [pages.PHONE, pages.DESK])
def test_looks(visit, shots, widths):
    page = visit("#audit", width=widths[0], calm=True)
    assert accessibility.findings(page) == []
    page.get_by_role("button", name="Use the sample").click()
    found(page)

    def map_fills_the_page(width):
        wide = page.evaluate(
            """() => {
              const cells = [...document.querySelectorAll('#audit-map .cell')].map((c) => c.getBoundingClientRect());
              return Math.max(...cells.map((b) => b.right)) - Math.min(...cells.map((b) => b.left));
            }"""
        )
        assert wide > 0.75 * page.evaluate("document.querySelector('#audit-map').clientWidth"), width

    pages.looks(page, shots, "audit-here", widths, map_fills_the_page)
