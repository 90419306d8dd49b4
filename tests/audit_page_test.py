#!/usr/bin/env python3
"""Opens the audit's HTML page in Chromium and checks it against the JSON of the same audit.

audit_page_test.py COMMAND FOLDER: makes a small random model there. Exits with 77 where there is no Chromium.
"""

import json
import pathlib
import random
import shutil
import struct
import subprocess
import sys

import chromium

LAYERS, HEADS, DIM, WIDTH = 3, 4, 8, 16
HOSTILE = "<img src=x onerror='window.broken = 1'> d_k 𝛔"  # a folder's name, and so the model's


def make_model(folder):
    random.seed(5)
    tensors = {}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name in ("q", "k"):
            size = 0.2 * 4 ** random.uniform(0, layer)
            tensors[f"{at}self_attn.{name}_proj.weight"] = ([HEADS * DIM, WIDTH], [random.gauss(0, size) for _ in range(HEADS * DIM * WIDTH)])
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
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "num_attention_heads": HEADS, "max_position_embeddings": 2048}))


def pointed(tree, path):
    for key in path.split("/")[1:]:
        key = key.replace("~1", "/").replace("~0", "~")
        tree = tree[int(key)] if isinstance(tree, list) else tree[key]
    return tree


def same(value, shown):
    if value is None or isinstance(value, str):
        return shown == ("null" if value is None else value)
    return float(shown) == float(value)


def main(command, folder):
    path = chromium.find()
    if not path:
        print("skipped: there is no chromium here (Debian: chromium)")
        return 77
    folder = pathlib.Path(folder)
    shutil.rmtree(folder, ignore_errors=True)
    make_model(folder / HOSTILE)
    page = folder / "audit.html"
    run = subprocess.run([command, "audit", str(folder / HOSTILE), "--json", "--html", str(page)], stdout=subprocess.PIPE, check=True)
    found = json.loads(run.stdout)
    assert found["model"] == HOSTILE, found["model"]
    browser = chromium.Browser(path)
    try:
        for width, dark in ((1200, False), (390, True)):
            browser.open(page, width, dark)
            assert not browser.problems, browser.problems
            assert len(browser.requests) == 1, browser.requests
            assert browser.run("window.broken") is None, "a string of the JSON was run as a script"
            assert browser.run("document.documentElement.scrollWidth") <= width, "scrolls sideways"
            assert browser.run("document.querySelector('h1').textContent") == HOSTILE
            cells = browser.run("[...document.querySelectorAll('.cell')].map((c) => [c.dataset.path, c.dataset.value])")
            assert len(cells) == LAYERS * HEADS, cells
            heading = "document.querySelector('#head h2').textContent"
            assert browser.run(heading) == "Head 0.0: not_finite", browser.run(heading)  # the worst comes first
            browser.run("document.querySelectorAll('.cell')[9].dispatchEvent(new MouseEvent('click', {bubbles: true}))")
            browser.settle()
            head = found["layers"][2]["heads"][1]
            assert browser.run(heading) == f"Head 2.1: {head['verdict']}", browser.run(heading)
            assert browser.run("document.querySelector('.fix code').textContent") == f"layer 2, head 1: {head['fix']}"
            assert browser.run("document.querySelectorAll('#head figure.chart').length") == 3  # spectrum, curve, entropy
            assert browser.run("[...document.querySelectorAll('#head figure.chart')].every((f) => f.querySelectorAll('.mark').length > 1)")
            # Whatever is shown says where in the JSON it is, and is that.
            shown = browser.run("[...document.querySelectorAll('[data-path]')].filter((e) => e.dataset.path && e.dataset.value !== 'undefined').map((e) => [e.dataset.path, e.dataset.value])")
            assert len(shown) > (LAYERS * HEADS) * len(("cell", "σ", "divisor", "ratio", "σ/σ_c", "entropy", "p_max", "bound", "rank", "verdict")), len(shown)
            for where, value in shown:
                assert same(pointed(found, where), value), (where, value)
            assert browser.run("document.querySelector('.cell.chosen') === document.querySelectorAll('.cell')[9]")
            browser.run("document.querySelector('.fix button').click()")
            browser.settle()
            assert browser.run("document.querySelector('.fix button').textContent") == "Copied"
            # Every quantity draws; sorting sorts; filters leave what passes.
            for choice in browser.run("[...document.querySelectorAll('#map select')].flatMap((s, k) => [...s.options].map((o) => [k, o.value]))"):
                k, value = choice
                browser.run(f"(() => {{ const s = document.querySelectorAll('#map select')[{k}]; s.value = {json.dumps(value)}; s.dispatchEvent(new Event('change')); }})()")
                assert browser.run("document.querySelectorAll('.cell').length") == LAYERS * HEADS, value
            column = "[...document.querySelectorAll('#heads tbody tr')].map((r) => Number(r.children[2].querySelector('.v').dataset.value)).filter(Number.isFinite)"
            falling = browser.run(column)
            assert falling == sorted(falling, reverse=True) and len(falling) == LAYERS * HEADS - 1, falling
            browser.run("document.querySelectorAll('#heads thead button')[2].click()")
            assert browser.run(column) == sorted(falling)
            browser.run("(() => { const s = document.querySelector('#heads select'); s.value = 'not_finite'; s.dispatchEvent(new Event('change')); })()")
            assert browser.run("document.querySelectorAll('#heads tbody tr').length") == 1
            assert browser.run("document.querySelectorAll('.cell.dimmed').length") == LAYERS * HEADS - 1
            assert not browser.problems, browser.problems
            browser.picture(str(folder / f"audit-{width}.png"))
    finally:
        browser.close()
    print("the page shows what the JSON says")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
