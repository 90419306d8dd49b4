#!/usr/bin/env python3
"""Opens the audit's HTML page in Chromium and checks it against the JSON of the same audit.

audit_page_test.py COMMAND FOLDER: makes a small random model there. Exits with 77 where there is no Chromium.
"""

import copy
import json
import pathlib
import random
import shutil
import struct
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import chromium
import page_rules

LAYERS, HEADS, DIM, WIDTH = 3, 4, 8, 16
HOSTILE = "<img src=x onerror='window.broken = 1'> d_k 𝛔\u202egnp"  # a folder's name, and so the model's
SHOWN = HOSTILE.replace("\u202e", "\\u202e")


def make_model(folder, queries=1.0):
    random.seed(5)
    tensors = {}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name in ("q", "k"):
            size = 0.2 * 4 ** random.uniform(0, layer)
            tensors[f"{at}self_attn.{name}_proj.weight"] = (
                [HEADS * DIM, WIDTH],
                [random.gauss(0, size * (queries if name == "q" else 1)) for _ in range(HEADS * DIM * WIDTH)],
            )
        tensors[f"{at}input_layernorm.weight"] = ([WIDTH], [1.0] * WIDTH)
    tensors["model.layers.0.self_attn.q_proj.weight"][1][0] = float("nan")
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        piece = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(piece)]}
        data += piece
    text = json.dumps(header).encode()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(
        json.dumps({"model_type": "llama", "num_attention_heads": HEADS, "max_position_embeddings": 2048})
    )


def pointed(tree, path):
    for key in path.split("/")[1:]:
        key = key.replace("~1", "/").replace("~0", "~")
        tree = tree[int(key)] if isinstance(tree, list) else tree[key]
    return tree


def same(value, shown):
    if value is None or isinstance(value, str):
        return shown == ("null" if value is None else value)
    return float(shown) == float(value)


def click_cell(browser, index):
    """As a mouse does: where it is seen."""
    x, y = browser.run(
        f"(() => {{ const c = document.querySelectorAll('.cell')[{index}]; c.scrollIntoView({{block: 'center', behavior: 'instant'}});"
        "const b = c.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
    )
    for kind in ("mousePressed", "mouseReleased"):
        browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
    browser.settle()


def with_grounds(found):
    """The audit as if with embeddings, and layer 1 measured: inputs to the page, and nothing is claimed of them."""
    out = copy.deepcopy(found)
    for layer in out["layers"]:
        for head in layer["heads"]:
            if head["sigma"] is None:
                continue
            names = ("variance", "sigma", "unit_divisor", "ratio")
            head["embeddings"] = {**{name: 2 * head[name] for name in names}, "sigma_over_isotropic": 2.0}
            head["ground"] = "embeddings"
            if layer["layer"] == 1:
                head["measured"] = {
                    **{name: 3 * head[name] for name in names},
                    "sigma_over_isotropic": 3.0,
                    "largest_score": 9.5,
                    "a_new_number": 0.125,
                }
                head["ground"] = "measured"
    return out


def embedded(page, name, changed):
    """The page with other JSON inside it."""
    start = 'id="results">'
    text = page.read_text(encoding="utf-8")
    before = text.index(start) + len(start)
    other = page.with_name(name)
    other.write_text(
        text[:before] + json.dumps(changed).replace("<", "\\u003c") + text[text.index("</script", before) :],
        encoding="utf-8",
    )
    return other


def check_colours(browser, page, found):
    """The same number has the same colour on two pages, whatever else is on them; 1 parts blue from orange."""

    def cells(results, name):
        browser.open(embedded(page, name, results), 1280)
        return browser.run(
            "[...document.querySelectorAll('.cell:not(.unknown)')].map((c) => [Number(c.dataset.value), c.getAttribute('fill')])"
        )

    other = copy.deepcopy(found)
    places = [
        (n, h)
        for n, layer in enumerate(found["layers"])
        for h, head in enumerate(layer["heads"])
        if head["sigma"] is not None
    ]
    keys = str(found["judged_at"])
    kept = places[::2]  # half of them as they are, the others far beyond anything there is
    for n, h in set(places) - set(kept):
        other["layers"][n]["heads"][h]["sigma_over_critical"][keys] *= 40
    first, second = dict(cells(found, "first.html")), dict(cells(other, "second.html"))
    both = set(first) & set(second)
    assert len(both) == len(kept) and all(first[v] == second[v] for v in both), (first, second)
    assert max(second) > 4 * max(first), "the other page has larger numbers"
    for value, colour in {**first, **second}.items():
        red, _, blue = [int(x) for x in colour.removeprefix("rgb(").removesuffix(")").split(",")]
        assert (red > blue) == (value > 1), (value, colour)
    assert {value > 1 for value in first} == {True, False}, "both sides of 1 are there"
    bar = browser.run("[...document.querySelectorAll('#map .colour-bar text')].map((t) => t.textContent)")
    assert bar[0].startswith("σ/σc (a ratio)") and {"≤ 0.125", "1", "≥ 8"} <= set(bar), bar


def check_map(browser, width):
    """It fills the width, by keyboard a head is chosen, and the choice stays where one is."""
    wide = browser.run(
        "(() => { const c = [...document.querySelectorAll('.cell')].map((c) => c.getBoundingClientRect()); "
        "return Math.max(...c.map((b) => b.right)) - Math.min(...c.map((b) => b.left)); })()"
    )
    assert wide > 0.75 * browser.run("document.querySelector('#map').clientWidth"), wide
    browser.run("document.querySelector('#map .canvas').focus()")
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowRight", "Enter"):
        browser.press(key)
    browser.settle()
    assert browser.run("document.querySelector('#head h2').textContent").startswith("Head 2.1: ")
    assert browser.run("document.activeElement === document.querySelector('#map .canvas')")
    said = browser.run("document.querySelector('#map [aria-live]').textContent")
    assert said.startswith("layer 2, head 1: "), said
    browser.run("document.activeElement.blur()")


def keeps_the_rules(browser):
    browser.settle()
    assert not browser.problems, browser.problems
    broken = page_rules.broken(browser.run)
    assert not broken, broken


def check_drift(browser, command, page, folder, width):
    """Two checkpoints: what moved, as numbers and on the map."""
    run = subprocess.run(
        [command, "audit", str(folder / HOSTILE), "--against", str(folder / "earlier"), "--json", "--html", str(page)],
        stdout=subprocess.PIPE,
        check=True,
    )
    found = json.loads(run.stdout)
    browser.open(page, width)
    text = browser.run("document.querySelector('#drift').textContent")
    assert (
        "What moved since the earlier checkpoint?" in text
        and "σ has become 0.500 times what it was at the median" in text
    ), text
    browser.run(
        "(() => { const s = document.querySelector('#map select'); s.value = 'growth'; s.dispatchEvent(new Event('change')); })()"
    )
    shown = browser.run("[...document.querySelectorAll('.cell')].map((c) => [c.dataset.path, c.dataset.value])")
    for where, value in shown:
        if where.startswith("/drift/"):
            assert same(pointed(found, where), value), (where, value)
    assert sum(where.startswith("/drift/") for where, _ in shown) == LAYERS * HEADS, shown
    keeps_the_rules(browser)


def check_grounds(browser, page, found, width):
    """σ stands side by side in every way it is known, and verdicts say what they stand on."""
    changed = with_grounds(found)
    browser.open(embedded(page, "grounds.html", changed), width)
    keeps_the_rules(browser)
    note = browser.run("document.querySelector('.ground-note').textContent")
    assert f"measured {HEADS} verdicts" in note, note
    assert f"on the embeddings {(LAYERS - 1) * HEADS - 1} verdicts" in note, note
    click_cell(browser, HEADS + 1)
    head = changed["layers"][1]["heads"][1]
    assert browser.run("document.querySelector('#head .ground').textContent") == "measured"
    sigmas = browser.run(
        "[...document.querySelectorAll('.sigmas div')].map((e) => [e.querySelector('dt').textContent, "
        "Number(e.querySelector('.v').dataset.value), e.className])"
    )
    assert sigmas == [
        ["σ from the weights", head["sigma"], ""],
        ["σ on the embeddings", 2 * head["sigma"], ""],
        ["σ measured", 3 * head["sigma"], "stands"],
    ], sigmas
    assert "a_new_number" in browser.run("document.querySelector('#head').textContent")
    titles = browser.run(
        "[...document.querySelectorAll('#heads thead button')].map((b) => b.textContent.replace(/ [▲▼]/, ''))"
    )
    assert titles[2:5] == ["σ weights", "σ embeddings", "σ measured"], titles
    row = browser.run(
        "[...document.querySelectorAll('#heads tbody tr')].find((r) => r.children[0].textContent === '1.1')"
        ".children[5].querySelector('.v').dataset.value"
    )
    assert float(row) == 3 * head["unit_divisor"], row
    pairs = browser.run(
        "[...document.querySelectorAll('[data-path]')].filter((e) => e.dataset.path && e.dataset.value !== 'undefined')"
        ".map((e) => [e.dataset.path, e.dataset.value])"
    )
    for where, value in pairs:
        assert same(pointed(changed, where), value), (where, value)
    browser.picture(str(page.with_name(f"grounds-{width}.png")))


def main(command, folder):
    path = chromium.find()
    if not path:
        print("skipped: there is no chromium here (Debian: chromium)")
        return 77
    folder = pathlib.Path(folder)
    shutil.rmtree(folder, ignore_errors=True)
    make_model(folder / HOSTILE)
    make_model(folder / "earlier", queries=2)  # their σ has halved since
    page = folder / "audit.html"
    run = subprocess.run(
        [command, "audit", str(folder / HOSTILE), "--json", "--html", str(page)], stdout=subprocess.PIPE, check=True
    )
    found = json.loads(run.stdout)
    assert found["model"] == HOSTILE, found["model"]
    browser = chromium.Browser(path)
    try:
        for width, dark in ((1280, False), (390, True), (2560, False)):
            browser.open(page, width, dark)
            assert not browser.problems, browser.problems
            assert len(browser.requests) == 1, browser.requests
            assert browser.run("window.broken") is None, "a string of the JSON was run as a script"
            keeps_the_rules(browser)
            assert browser.run(page_rules.SHIFT) == 0, "moves while it comes up"
            assert browser.run("document.querySelector('#model').textContent") == SHOWN
            assert browser.run("document.querySelector('h1').textContent") == found["headline"]
            assert found["headline"].startswith(f"1 of {LAYERS * HEADS} heads is not finite"), found["headline"]
            note = browser.run("document.querySelector('.ground-note').textContent")
            assert f"from the weights alone {LAYERS * HEADS - 1} verdicts, which would hold if" in note, note
            cells = browser.run("[...document.querySelectorAll('.cell')].map((c) => [c.dataset.path, c.dataset.value])")
            assert len(cells) == LAYERS * HEADS, cells
            heading = "document.querySelector('#head h2').textContent"
            assert browser.run(heading) == "Head 0.0: not finite", browser.run(heading)  # the worst comes first
            check_map(browser, width)
            click_cell(browser, 9)
            head = found["layers"][2]["heads"][1]
            assert browser.run(heading) == f"Head 2.1: {head['verdict'].replace('_', ' ')}", browser.run(heading)
            assert browser.run("document.querySelector('#head .ground').textContent") == "from the weights alone"
            names = "[...document.querySelectorAll('.sigmas dt')].map((e) => e.textContent)"
            assert browser.run(names) == ["σ from the weights"]
            assert browser.run("document.querySelector('.fix code').textContent") == f"layer 2, head 1: {head['fix']}"
            # spectrum, curve, entropy
            assert browser.run("document.querySelectorAll('#head figure.chart').length") == 3
            assert browser.run(
                "[...document.querySelectorAll('#head figure.chart')].every((f) => f.querySelectorAll('.mark').length > 1)"
            )
            # Whatever is shown says where in the JSON it is, and is that.
            shown = browser.run(
                "[...document.querySelectorAll('[data-path]')].filter((e) => e.dataset.path && e.dataset.value !== 'undefined').map((e) => [e.dataset.path, e.dataset.value])"
            )
            assert len(shown) > (LAYERS * HEADS) * len(
                ("cell", "σ", "divisor", "ratio", "σ/σ_c", "entropy", "p_max", "bound", "rank", "verdict")
            ), len(shown)
            for where, value in shown:
                assert same(pointed(found, where), value), (where, value)
            assert browser.run("document.querySelector('.cell.picked') === document.querySelectorAll('.cell')[9]")
            browser.run("document.querySelector('.fix button').click()")
            browser.settle()
            assert browser.run("document.querySelector('.fix button').textContent") == "Copied"
            # Every quantity draws; sorting sorts; filters leave what passes.
            for choice in browser.run(
                "[...document.querySelectorAll('#map select')].flatMap((s, k) => [...s.options].map((o) => [k, o.value]))"
            ):
                k, value = choice
                browser.run(
                    f"(() => {{ const s = document.querySelectorAll('#map select')[{k}]; s.value = {json.dumps(value)}; s.dispatchEvent(new Event('change')); }})()"
                )
                assert browser.run("document.querySelectorAll('.cell').length") == LAYERS * HEADS, value
            column = "[...document.querySelectorAll('#heads tbody tr')].map((r) => Number(r.children[2].querySelector('.v').dataset.value)).filter(Number.isFinite)"
            falling = browser.run(column)
            assert falling == sorted(falling, reverse=True) and len(falling) == LAYERS * HEADS - 1, falling
            browser.run("document.querySelectorAll('#heads thead button')[2].click()")
            assert browser.run(column) == sorted(falling)
            browser.run(
                "(() => { const s = document.querySelector('#heads select'); s.value = 'not_finite'; s.dispatchEvent(new Event('change')); })()"
            )
            assert browser.run("document.querySelectorAll('#heads tbody tr').length") == 1
            assert browser.run("document.querySelectorAll('.cell.dimmed').length") == LAYERS * HEADS - 1
            keeps_the_rules(browser)
            browser.picture(str(folder / f"audit-{width}{'-dark' if dark else ''}.png"))
            check_grounds(browser, page, found, width)
            check_drift(browser, command, folder / "drift.html", folder, width)
        check_colours(browser, page, found)
    finally:
        browser.close()
    print("the page shows what the JSON says")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
