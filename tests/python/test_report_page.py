"""The report of a watch, looked at in Chromium: what is drawn is what the JSON says."""

from __future__ import annotations

import json
import pathlib
import re
import sys

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import chromium  # noqa: E402
import page_rules  # noqa: E402
import rootdk  # noqa: E402

HOSTILE = "</script><img src=x onerror='window.broken = 1'>"


class Layer(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)


@pytest.fixture(scope="module")
def browser():
    path = chromium.find()
    if path is None:
        pytest.skip("no Chromium")
    opened = chromium.Browser(path)
    yield opened
    opened.close()


def test_what_is_drawn_is_what_was_measured(browser, tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(Layer(), Layer())
    model.add_module(HOSTILE.replace(".", "·"), Layer())
    with rootdk.watch(model, on=rootdk.Alarm(max_score=0.1, call=lambda e: None)) as w:
        for size in (1.0, 2.0, 3.0):
            model(size * torch.randn(1, 3, 9, 8))
    path = w.report(tmp_path / "report.html")
    data = json.loads(re.search(r'id="results">(.*?)</script>', path.read_text(), re.S)[1])
    assert len(data["heads"]) == 9 and data["seen"] == 3 and data["every"] == 1

    def set_to(control, value):
        browser.run(f"""(() => {{
            const control = document.getElementById("{control}");
            control.value = "{value}";
            control.dispatchEvent(new Event("input"));
        }})()""")
        browser.settle()

    def drawn():
        return browser.run("[...document.querySelectorAll('#map rect.cell')].map((r) => Number(r.dataset.value))")

    for width, dark in ((1280, False), (390, True), (2560, True)):
        browser.open(path, width, dark)
        assert browser.run(page_rules.SHIFT) == 0  # before choices, which may move things
        for name in ("sigma_ratio", "entropy"):
            set_to("statistic", name)
            assert drawn() == data["values"][name][2]
        set_to("step", 0)
        assert drawn() == data["values"]["entropy"][0]
        assert browser.run("document.querySelectorAll('#time path.layer').length") == 3
        assert browser.run("document.querySelector('#time canvas').width") == 3
        assert browser.run("document.querySelectorAll('#alarms li').length") == len(w.alarms) > 0
        assert "9 heads" in browser.run("document.getElementById('lead').textContent")
        # Choosing an alarm shows its step, and its head in the table.
        browser.run("document.querySelector('#alarms button').click()")
        assert browser.run("document.querySelector('.bar output').textContent") == str(w.alarms[0].step)
        shown = browser.run("document.querySelector('#head caption').textContent")
        assert shown == f"layer {w.alarms[0].layer}, head {w.alarms[0].head}, at step {w.alarms[0].step}"
        # Whatever carries a path shows what the JSON has there.
        wrong = browser.run("""(() => {
            const all = JSON.parse(document.getElementById("results").textContent);
            const at = (path) => path.split("/").slice(1).reduce((node, key) => node?.[key.replace(/~1/g, "/").replace(/~0/g,
            "~")], all); return [...document.querySelectorAll("[data-path]")].filter((n) => String(at(n.dataset.path)) !==
            n.dataset.value).length;
        })()""")
        assert wrong == 0 and browser.run("document.querySelectorAll('[data-path]').length") > 100
        assert page_rules.broken(browser.run) == []
        # The finding is the title, with what the first alarm says; the map says its numbers as text, too.
        title = browser.run("document.querySelector('h1').textContent")
        assert title.startswith(w.alarms[0].words.split(":")[0]) and w.alarms[0].layer in title
        assert w.alarms[0].what == "raw_max"
        assert "largest raw score (c·q·k) of every head at step" in browser.run(
            "document.querySelector('#map svg').getAttribute('aria-label')"
        )
        # Arrow keys and Enter choose a head, and one stays where one was.
        browser.run("document.querySelector('#map .canvas').focus()")
        for key in ("ArrowRight", "ArrowDown", "ArrowRight", "Enter"):
            browser.press(key)
        browser.settle()
        assert browser.run("document.querySelector('#head caption').textContent").startswith("layer 1, head 1, at step")
        assert browser.run("document.activeElement === document.querySelector('#map .canvas')")
        assert browser.run("window.broken") is None
        assert browser.problems == [] and [r for r in browser.requests if not r.startswith("file:")] == []


class UnfollowedAttention(torch.nn.Module):
    def forward(self, x):
        with torch._C.DisableTorchFunction():
            return torch.softmax(x @ x.transpose(-1, -2), -1) @ x


def test_what_was_not_seen_and_masks_of_numbers_are_on_the_page(browser, tmp_path):
    class Masked(torch.nn.Module):
        def forward(self, x):
            mask = torch.zeros(9, 9).masked_fill(torch.ones(9, 9, dtype=torch.bool).triu(1), -1e9)
            return torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    with pytest.warns(RuntimeWarning, match="UnfollowedAttention"):
        with rootdk.watch(torch.nn.Sequential(Masked(), UnfollowedAttention())) as w:
            w.model(torch.randn(1, 3, 9, 8))
    browser.open(w.report(tmp_path / "report.html"), 1280)
    assert "UnfollowedAttention" in browser.run("document.getElementById('unseen').textContent")
    assert "1 place that looks like attention was not seen" in browser.run(
        "document.getElementById('lead').textContent"
    )
    assert "−1×10⁹ and lower numbers" in browser.run("document.getElementById('made').textContent")
    assert browser.problems == []


def test_an_empty_watch_has_a_page(browser, tmp_path):
    with rootdk.watch() as w:
        pass
    browser.open(w.report(tmp_path / "empty.html"), 800)
    assert browser.problems == [] and "0 steps" in browser.run("document.getElementById('lead').textContent")
