"""Numbers of one's own: pasted scores and vectors, dropped arrays, every step of explain and whatif."""

import json
import subprocess
import urllib.parse

import pages
import pytest

numpy = pytest.importorskip("numpy")


def opened(visit, query="", **options):
    page = visit(f"#own{query}", **options)
    return page, pages.answered(page, "own")


def test_works_through_the_textbooks_row(stay, command):
    page, box = opened(stay)
    assert pages.hold_against_command(box, command, relative=1e-12, absolute=1e-15) > 60
    text = box.locator(".worked").inner_text()
    for number in ("1,202,604", "1,387,386", "0.867", "0.419"):
        assert number in text
    assert "0.867" in box.locator(".says").inner_text()


@pytest.mark.parametrize(
    "text,wanted",
    [
        ("14, 10, 12", {"scores": "14,10,12"}),
        ("[14 10\t12]", {"scores": "14,10,12"}),
        ("−20; 3", {"q": "-20", "k": ["3"]}),
        ("-20, 3.5, 1e1, .25", {"scores": "-20,3.5,10,0.25"}),
        ("q = 1, 0, 1, 0\nk = 0 1 1 1\nk1: 1,1,0,0", {"q": "1,0,1,0", "k": ["0,1,1,1", "1,1,0,0"]}),
    ],
)
def test_understands_what_people_paste(stay, command, text, wanted):
    page, box = opened(stay)
    page.get_by_label("Scores, or vectors").fill(text)
    pages.answered(page, "own", text=text)
    words = box.locator(".how [data-at]").text_content()
    for name, value in wanted.items():
        for one in value if isinstance(value, list) else [value]:
            assert f"--{name} {one}" in words or f"--{name}={one}" in words, words
    assert pages.hold_against_command(box, command, relative=1e-12, absolute=1e-15) > 10


@pytest.mark.parametrize(
    "text,line",
    [
        ("14, pear, 12", '"pear" is not a number'),
        ("", "nothing yet"),
        ("1, 2\n1, 2, 3", "line 2 has 3 numbers, but the query on line 1 has 2"),
        ("<img src=x onerror=alert(1)>", "is not a number"),
        ("14, 1e999", '"1e999" is not a number'),
    ],
)
def test_says_in_a_line_what_is_wrong(stay, text, line):
    page, box = opened(stay)
    before = box.locator(".worked").inner_text()
    page.get_by_label("Scores, or vectors").fill(text)
    box.locator(".refused").filter(has_text=line).wait_for()
    assert box.locator(".worked").inner_text() == before, "what was shown stays"
    page.get_by_label("Scores, or vectors").fill("1, 2")
    pages.answered(page, "own", text="1, 2")
    assert box.locator(".refused").inner_text() == ""


def test_examples_rules_and_dk_can_be_chosen_and_passed_on(visit, stay, command):
    page, box = opened(stay)
    page.get_by_role("button", name="−20, 3, 25, −15").click()
    pages.answered(page, "own", text="-20, 3, 25, -15")
    page.get_by_role("checkbox", name="8/").check()
    page.get_by_role("checkbox", name="not divided").uncheck()
    box = pages.answered(page, "own", rules="sqrt_dk,dk,dk(8)")
    assert pages.hold_against_command(box, command, relative=1e-12, absolute=1e-15) > 60
    page.wait_for_function(
        "() => location.hash.includes('rules=sqrt_dk&rules=dk&rules=dk(8)') && !location.hash.includes('rules=none')"
    )
    words = box.locator(".says").inner_text()
    other, same = opened(visit, page.evaluate("location.hash").removeprefix("#own"))
    assert same.locator(".says").inner_text() == words
    assert other.get_by_label("Scores, or vectors").input_value() == "-20, 3, 25, -15"


def arrays(folder):
    draw = numpy.random.default_rng(5)
    shapes = {"q": (2, 16, 32), "k": (2, 48, 32), "v": (2, 48, 8)}
    paths = {}
    for name, shape in shapes.items():
        paths[name] = folder / f"layer0_{name}.npy"
        numpy.save(paths[name], draw.standard_normal(shape).astype(numpy.float32) * 1.5)
    return paths


def test_dropped_arrays_are_put_under_every_rule(visit, command, tmp_path):
    page, _ = opened(visit)
    paths = arrays(tmp_path)
    for name, path in paths.items():
        page.get_by_label(f"{name}.npy").set_input_files(path)
    page.locator(".whatif .says").wait_for()
    page.get_by_label("causal").check()
    page.wait_for_function("() => document.querySelector('.whatif figcaption') !== null")
    wanted = json.loads(
        subprocess.run(
            [command, "whatif", *map(str, paths.values()), "--causal", "--json"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )
    page.wait_for_function(
        "rows => Math.abs(Number(document.querySelector('.whatif [data-path$=\"/rows/0/sigma\"]').dataset.value) - rows) < 1e-4",
        arg=wanted["rows"][0]["sigma"],
    )
    shown = page.evaluate(
        "[...document.querySelectorAll('.whatif [data-path]')].map(e => [e.dataset.path, e.dataset.value])"
    )
    assert len(shown) > 100
    for path, value in shown:
        if not path.endswith("/conclusion"):
            assert pages.same(value, pages.at_pointer(wanted, path.removeprefix("/own/whatif"))), path


def test_a_file_is_dropped_on_the_page_and_sorted_by_its_name(visit, tmp_path):
    page, _ = opened(visit)
    paths = arrays(tmp_path)
    data = page.evaluate_handle(
        """files => {
          const out = new DataTransfer();
          for (const [name, bytes] of files) out.items.add(new File([new Uint8Array(bytes)], name));
          return out;
        }""",
        [[path.name, list(path.read_bytes())] for name, path in paths.items() if name != "v"],
    )
    page.dispatch_event(".drop", "drop", {"dataTransfer": data})
    page.locator(".whatif .says").wait_for()
    assert "layer0_k.npy" in page.locator(".files").inner_text()


@pytest.mark.parametrize("content,line", [(b"hello", "q"), (b"\x93NUMPY\x01\x00\xff\xff{}", "q")])
def test_a_file_that_is_no_array_is_refused_in_a_line(visit, tmp_path, content, line):
    page, _ = opened(visit)
    good = arrays(tmp_path)["k"]
    bad = tmp_path / "q.npy"
    bad.write_bytes(content)
    page.get_by_label("k.npy").set_input_files(good)
    page.get_by_label("q.npy").set_input_files(bad)
    page.locator(".own-arrays .refused").filter(has_text=line).wait_for()


def test_a_random_head_is_at_hand(visit):
    page, _ = opened(visit)
    page.get_by_role("button", name="Use a random head").click()
    page.locator(".whatif .says").wait_for()
    assert page.locator(".whatif figure.chart").count() == 1
    _, text = pages.saved(page, page.locator(".whatif").get_by_role("button", name="Save as CSV"))
    assert text.startswith("rule,")


def test_a_thousand_scores_do_not_make_a_thousand_columns(stay, command):
    page, box = opened(stay)
    text = ", ".join(str((7 * i) % 23) for i in range(1000))
    page.get_by_label("Scores, or vectors").fill(text)
    pages.answered(page, "own", text=text)
    assert box.locator(".worked th[scope=col]").count() < 100
    assert "the first 24 of 1,000 keys" in box.locator(".worked").inner_text()
    _, saved = pages.saved(page, box.get_by_role("button", name="Save as CSV"))
    assert len(saved.splitlines()) == 1 + 3 * 1000


def test_its_drawing_stands_alone(stay):
    page, box = opened(stay)
    drawing = pages.saved_drawing(page, box.get_by_role("button", name="Save as SVG"))
    assert len(drawing["rects"]) > 9


def test_by_keyboard_alone(visit, command):
    page, box = opened(visit)
    page.get_by_label("Scores, or vectors").focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("3, 1, 4")
    pages.answered(page, "own", text="3, 1, 4")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")  # the second example
    page.keyboard.press("Enter")
    pages.answered(page, "own", text="50, 10, 5", dk=100)
    while page.evaluate("document.activeElement.type") != "checkbox":
        page.keyboard.press("Tab")
    page.keyboard.press("Space")
    box = pages.answered(page, "own", rules="sqrt_dk,dk")
    assert pages.hold_against_command(box, command, relative=1e-12, absolute=1e-15) > 40
    page.locator("[data-live=own] .canvas").focus()
    page.keyboard.press("ArrowRight")
    said = box.locator("figure [aria-live=polite]").first.inner_text()
    assert said.startswith("key 1: q·k 50"), said


def test_a_finger_sets_it_on_a_phone(visit):
    page, box = opened(visit, width=390)
    page.get_by_role("button", name="50, 10, 5").tap()
    pages.answered(page, "own", text="50, 10, 5", dk=100)
    page.get_by_role("checkbox", name="8/").tap()
    box = pages.answered(page, "own", rules="none,sqrt_dk,dk,dk(8)")
    box.locator("svg .mark").first.tap()
    box.locator(".tip:visible", has_text="key 1").wait_for()
    page.get_by_role("button", name="Use a random head").tap()
    page.locator(".whatif .says").wait_for()


@pytest.mark.parametrize("text", ["50, 10, 5", "1e-9, 5e8, 3.25", ", ".join(str(i % 7) for i in range(60))])
def test_labels_stay_apart(visit, text):
    page, _ = opened(visit, "?" + urllib.parse.urlencode({"text": text}), calm=True)
    pages.labels_apart(page)


@pytest.mark.parametrize("widths", [pages.PHONE, pages.DESK])
def test_is_fit_to_be_shown_to_anybody(visit, shots, widths):
    page, _ = opened(visit, width=widths[0], calm=True)
    page.get_by_role("button", name="Use a random head").click()
    page.locator(".whatif .says").wait_for()
    pages.looks(page, shots, "own", widths)
