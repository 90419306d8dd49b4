#!/usr/bin/env python3
"""Opens the HTML report in Chromium and checks it against the JSON it was made from.

page_test.py COMMAND MAKER D3 FOLDER: COMMAND is rootdk, whose quick tour is looked at; MAKER turns JSON on standard
input into the page; screenshots go to FOLDER. Exits with 77 where there is no Chromium. To the results of the tour the
test adds what no tour has (runs that diverge, strings that try to break out of the page); these are inputs to the page,
and nothing is claimed of them.
"""

import copy
import json
import math
import os
import pathlib
import random
import re
import struct
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import chromium
import page_rules
import shown

HOSTILE = "</script><script>window.broken = 1</script><!-- <img src=x onerror='window.broken = 1'> \u2028\u2029 & \" ' \\ d_k é 𝛔"


def made(maker, results):
    text = results if isinstance(results, str) else json.dumps(results, ensure_ascii=False)
    return subprocess.run([maker], input=text.encode(), stdout=subprocess.PIPE, check=True).stdout


def with_all_parts(results):
    """The results, a chapter of training, and histograms: whatever the page can show."""
    out = copy.deepcopy(results)
    rules = []
    for place, rule in enumerate(("none", "sqrt_dk", "dk")):
        runs = []
        for seed in (2, 3):
            steps, later = list(range(1, 61, 3)), [20, 40, 60]
            wave = [math.sin(0.1 * s + place + 0.2 * seed) for s in steps]
            column = {
                name: [base + spread * w for w in wave]
                for name, base, spread in (
                    ("loss", 1.5, 0.5),
                    ("accuracy", 0.5, 0.3),
                    ("gradient_norm", 2, 1),
                    ("sigma", 3, 1),
                    ("entropy", 1.2, 0.4),
                    ("p_max", 0.5, 0.1),
                    ("score_max", 9, 4),
                )
            }
            if rule == "none":
                column["loss"][-1] = None  # diverged
            runs.append(
                {
                    "seed": seed,
                    "outcome": "finished",
                    "steps": {"step": steps, **column},
                    "evaluations": {"step": later, "loss": [2.0, 1.0, 0.5], "accuracy": [0.25, 0.5, 0.875]},
                }
            )
        rules.append(
            {
                "rule": rule,
                "dk": 64,
                "standing": "level",
                "learning_rate": 0.003,
                "seeds": 2,
                "diverged": place,
                "median": 0.875,
                "worst": 0.75,
                "best": 0.9,
                "steps_to_goal": None if place == 0 else 40,
                "first_sigma": 8.0,
                "last_sigma": 2.5,
                "conclusion": "Said of " + rule + ".",
                "runs": runs,
            }
        )
    for chapter in out["chapters"]:
        if chapter["data"]["experiment"] == "bench":
            chapter["data"]["rows"][0]["of_peak"] = 1.35  # of a peak that was measured while others had the machine
    data = {"experiment": "train", "task": "recall " + HOSTILE, "measure": "accuracy", "complete": True, "rules": rules}
    out["chapters"].append(
        {
            "id": "train",
            "title": "Training " + HOSTILE,
            "lead": HOSTILE,
            "conclusion": HOSTILE,
            "complete": False,
            "seconds": 1.0,
            "data": data,
        }
    )
    out["chapters"].append(
        {
            "id": "new",
            "title": "What this page does not know",
            "lead": "?",
            "conclusion": "It says so.",
            "complete": True,
            "data": {"experiment": "__proto__"},
        }
    )
    out["chapters"][0]["data"]["histograms"] = [
        {"rule": rule, "dk": 64, "edges": [spread * (k - 4) for k in range(9)], "counts": [1, 8, 28, 56, 56, 28, 8, 1]}
        for rule, spread in (("none", 8.0), ("sqrt_dk", 1.0), ("dk", 0.125))
    ]
    return out


def stopped(results, first):
    """As if each experiment had been interrupted: nothing finished, or one row, in turn."""
    out = with_all_parts(results)
    for place, chapter in enumerate(out["chapters"]):
        chapter["complete"] = chapter["data"]["complete"] = False
        for name in ("rows", "points", "rules", "square_terms", "critical_line"):
            if name in chapter["data"]:
                del chapter["data"][name][(place + first) % 2 :]
    for chapter in out["chapters"]:
        # the tour's own: stopped while rates were tried
        if chapter["id"] == "train" and chapter is not out["chapters"][-2]:
            for rule in chapter["data"]["rules"]:
                rule["runs"] = []
    for rule in out["chapters"][-2]["data"]["rules"]:
        for run in rule["runs"]:
            del run["steps"]["entropy"], run["evaluations"]
    return out


def pointed(results, pointer):
    node = results
    for key in pointer.split("/")[1:]:
        key = key.replace("~1", "/").replace("~0", "~")
        node = node[int(key)] if isinstance(node, list) else node[key]
    return node


class Checker:
    def __init__(self, browser, results, what):
        self.browser, self.results, self.what, self.failures, self.numbers = browser, results, what, [], 0

    def fail(self, message):
        self.failures.append(f"{self.what}: {message}")

    def same(self, pointer, value):
        """The attribute says what the JSON says, to the last bit."""
        try:
            wanted = pointed(self.results, pointer)
        except (KeyError, IndexError, ValueError):
            self.fail(f"{pointer} is not in the JSON")
            return None
        if isinstance(wanted, (int, float)) and not isinstance(wanted, bool):
            right = float(value) == float(wanted)
        else:
            right = value == (wanted if isinstance(wanted, str) else json.dumps(wanted))
        if not right:
            self.fail(f"{pointer} is {wanted!r}, but the page has {value!r}")
        self.numbers += 1
        return wanted

    def values(self, within="document"):
        """Everything shown as text: the attribute is exact, the text right to its last digit."""
        for pointer, value, text in self.browser.run(
            f"[...{within}.querySelectorAll('.v[data-path]')].map((e) => [e.dataset.path, e.dataset.value, e.textContent])"
        ):
            wanted = self.same(pointer, value)
            if not shown.says(text, wanted):
                self.fail(f"{pointer} is {wanted!r}, but {text!r} is shown")

    def marks(self):
        """Every chart has marks, each with its value, and stands where the chart's scale puts that value."""
        charts = self.browser.run(
            """[...document.querySelectorAll('figure.chart')].map((f) => [...f.querySelectorAll('svg .mark')].map((m) => {
            const place = /translate\\(([^,]+),([^)]+)\\)/.exec(m.getAttribute('transform') || '') || [];
            const c = m.dataset.channel, scale = m.closest('[data-scale]');
            return {path: m.dataset.path, value: m.dataset.value, count: m.dataset.count ?? null, channel: c || null, scale: scale && JSON.parse(scale.dataset.scale),
                    at: c ? Number(c === 'tx' ? place[1] : c === 'ty' ? place[2] : m.getAttribute(c)) : null, d: m.getAttribute('d')};
        }))"""
        )
        if not charts:
            self.fail("no charts")
        for index, marks in enumerate(charts):
            if not marks:
                self.fail(f"chart {index} has no marks")
            for mark in marks:
                if mark["count"] is not None:
                    line = pointed(self.results, mark["path"])
                    drawn = len(re.findall("[ML]", mark["d"] or ""))
                    if int(mark["count"]) != len(line) or drawn < sum(v is not None for v in line):
                        self.fail(f"{mark['path']} has {len(line)} values, but {drawn} are drawn")
                    continue
                value = self.same(mark["path"], mark["value"])
                if mark["channel"] and value is not None:
                    self.place(mark, value)
        return len(charts)

    def place(self, mark, value):
        (a, b), (c, d) = mark["scale"]["domain"], mark["scale"]["range"]
        if mark["scale"]["type"] == "log":
            a, b, value = math.log(a), math.log(b), math.log(value)
        on = lambda v: c + (v - a) / (b - a) * (d - c)
        wanted = abs(on(value) - on(0)) if mark["channel"] in ("height", "width") else on(value)
        if not abs(mark["at"] - wanted) < 1e-3:  # pixels; positions are doubles written out in full
            self.fail(f"{mark['path']} is drawn at {mark['at']}, its scale says {wanted}")

    def pointing(self):
        """Hovering and arrow keys show values, toggles take marks away and bring them back, every choice draws."""
        count = self.browser.run("document.querySelectorAll('figure.chart').length")
        for k in range(count):
            figure = f"document.querySelectorAll('figure.chart')[{k}]"
            self.browser.run(
                f"{figure}.querySelector('.canvas').focus(), {figure}.scrollIntoView({{block: 'center', behavior: 'instant'}})"
            )
            self.browser.press("ArrowRight")
            said = self.browser.run(f"{figure}.querySelector('[aria-live]').textContent")
            if not re.search(r"\d", said):
                self.fail(f"chart {k}: an arrow key said {said!r}")
            self.values(figure)
            ring = self.browser.run(
                f"(() => {{ const b = {figure}.querySelector('.ring').getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; }})()"
            )
            self.browser.press("Escape")
            self.browser.move(*ring)
            self.browser.settle()
            if self.browser.run(f"{figure}.querySelector('.tip').hidden"):
                self.fail(f"chart {k}: nothing shows on hovering")
            self.browser.move(1, 1)
            toggled = self.browser.run(
                f"""(() => {{ const f = {figure}, marks = () => f.querySelectorAll('svg .mark').length, out = [];
                for (const b of f.querySelectorAll('.controls button')) {{ const all = marks(); b.click(); const less = marks(); b.click(); out.push([all, less, marks()]); }}
                return out; }})()"""
            )
            if len(toggled) > 1 and any(not (less < every and again == every) for every, less, again in toggled):
                self.fail(f"chart {k}: toggles change marks by {toggled}")
            options = self.browser.run(
                f"""[...{figure}.querySelectorAll('select')].flatMap((s) => [...s.options].map((o) => {{
                s.value = o.value; s.dispatchEvent(new Event('change')); return [o.text, {figure}.querySelectorAll('svg .mark').length]; }}))"""
            )
            for name, marks in options:
                if not marks:
                    self.fail(f"chart {k}: {name} draws nothing")
            self.marks()
        for line in page_rules.broken(
            self.browser.run, {"labels apart": page_rules.LABELS_APART, "inside": page_rules.INSIDE}
        ):
            self.fail(f"with the last of all choices, {line}")

    def manners(self, width):
        """Nothing from outside, nothing beyond the page's edge, names for what needs them."""
        outside = [url for url in self.browser.requests if not url.startswith("file://")]
        if outside or len(self.browser.requests) != 1:
            self.fail(f"asks for {self.browser.requests}")
        for line in page_rules.broken(self.browser.run):
            self.fail(line)
        moved = self.browser.run(page_rules.SHIFT)
        if moved:
            self.fail(f"the page moves while it comes up, by {moved}")
        if self.browser.run("window.broken") is not None:
            self.fail("a string of the JSON was run as a script")
        chapters = len(self.results["chapters"])
        if self.browser.run("document.querySelectorAll('section[data-experiment]').length") != chapters:
            self.fail("not every chapter has a section")
        unnamed = self.browser.run(
            """[...document.querySelectorAll('svg[role=img], .canvas, .scroll, select, nav, section, math')].filter((e) =>
            !e.getAttribute('aria-label') && !e.getAttribute('aria-labelledby') && !e.closest('label')).map((e) => e.outerHTML.slice(0, 80))"""
        )
        if unnamed:
            self.fail(f"without a name: {unnamed}")
        bare = self.browser.run(
            """[...document.querySelectorAll('section[data-experiment]')].filter((s) => s.querySelector('figure') &&
            !(s.querySelector('math') && s.querySelector('table') && s.querySelector('.conclusion p') && s.querySelector('.question'))).map((s) => s.id)"""
        )
        if bare:
            self.fail(f"sections without formula, table, question or conclusion: {bare}")
        twice = self.browser.run(
            "[...document.querySelectorAll('[id]')].map((e) => e.id).filter((id, k, all) => all.indexOf(id) !== k)"
        )
        if twice:
            self.fail(f"ids used twice: {twice}")


def attended(command, folder):
    """What rootdk attend --html puts into its page, of four heads of random numbers."""
    random.seed(7)
    arrays = []
    for name in ("q", "k", "v"):
        numbers = [random.gauss(0, 2) for _ in range(4 * 16 * 8)]
        header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 4, 16, 8), }".ljust(117).encode() + b"\n"
        arrays.append(os.path.join(folder, f"{name}.npy"))
        with open(arrays[-1], "wb") as file:
            file.write(
                b"\x93NUMPY\x01\0"
                + struct.pack("<H", len(header))
                + header
                + struct.pack(f"<{len(numbers)}f", *numbers)
            )
    page = os.path.join(folder, "attended.html")
    subprocess.run([command, "attend", *arrays, "--html", page, "--force"], stdout=subprocess.DEVNULL, check=True)
    with open(page, encoding="utf-8") as file:
        text = file.read()
    start = text.index('id="results">') + len('id="results">')
    return json.loads(text[start : text.index("</script", start)])


def main(command, maker, d3, folder):
    browser_path = chromium.find()
    if not browser_path:
        print("skipped: there is no chromium here (Debian: chromium)")
        return 77
    os.makedirs(folder, exist_ok=True)
    tour = os.path.join(folder, "tour")
    subprocess.run([command, "tour", "--quick", "--static", "--out", tour], stdout=subprocess.DEVNULL, check=True)
    with open(os.path.join(tour, "results.json"), encoding="utf-8") as file:
        text = file.read()
    results = json.loads(text)
    with open(os.path.join(tour, "report.html"), "rb") as file:
        if file.read() != made(maker, text):
            print("FAILED the tour's report.html is not the page of its results.json")
            return 1
    nothing = {**results, "chapters": [], "rules": [], "machine": None}
    cases = [
        ("tour", results),
        ("all", with_all_parts(results)),
        ("stopped", stopped(results, 0)),
        ("stopped later", stopped(results, 1)),
        ("empty", nothing),
        ("attend", attended(command, folder)),
    ]
    failures, seen = [], []
    browser = chromium.Browser(browser_path)
    try:
        for name, case in cases:
            page = made(maker, case)
            with open(d3, "rb") as file:
                if file.read() not in page:
                    failures.append(f"{name}: D3 is not in the page as it is")
            path = os.path.join(os.path.abspath(folder), f"{name}.html")
            with open(path, "wb") as file:
                file.write(page)
            for width, dark in ((1280, False), (390, False), (2560, False), (1280, True), (390, True), (2560, True)):
                browser.open(path, width, dark)
                check = Checker(browser, case, f"{name}, {width} px{', dark' if dark else ''}")
                check.manners(width)
                check.values()
                charts = check.marks() if case["chapters"] else 0

                browser.picture(os.path.join(folder, f"{name}-{width}-{'dark' if dark else 'light'}.png"))
                if not dark and name != "tour":  # "all" has all of its charts
                    check.pointing()
                failures += check.failures + [f"{check.what}: {problem}" for problem in browser.problems]
                seen.append(f"{check.what}: {charts} charts, {check.numbers} values")
            browser.printed(os.path.join(folder, f"{name}.pdf"))
    finally:
        browser.close()
    print("\n".join(seen))
    for failure in failures[:40]:
        print("FAILED", failure)
    print(f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
