"""The playground: everything that can be set about a random head, two rules side by side, the command's own numbers."""

import csv
import io
import re
import subprocess

import pages
import pytest


def opened(visit, query="", **options):
    """visit: or stay."""
    page = visit(f"#playground{query}", **options)
    return page, pages.answered(page, "playground")


def test_shows_two_rules_with_the_commands_numbers(stay, command):
    page, box = opened(stay)
    assert box.locator("figure.chart").count() == 5
    assert pages.hold_against_command(box, command) > 500, "histograms, maps, rows, gradients and a table"
    table = box.locator(".more table").inner_text()
    for words in ("spread", "entropy", "effective keys", "tr J", "measured", "predicted"):
        assert words in table


# label of the slider, its state, what to press and how often, the value that gives
SETTINGS = [
    ("d_k", "dk", "ArrowLeft", 2, 32),
    ("n, keys", "keys", "ArrowRight", 2, 512),
    ("σ_q", "sigma_q", "ArrowRight", 2, 1.4),
    ("σ_k", "sigma_k", "ArrowLeft", 5, 0.5),
    ("mean", "mean", "ArrowRight", 4, 0.2),
    ("correlation", "correlation", "ArrowRight", 5, 0.1),
    ("dropout", "dropout", "ArrowRight", 2, 0.1),
    ("row shown", "row", "ArrowRight", 3, 4),
]


@pytest.mark.parametrize("label,state,key,presses,value", SETTINGS)
def test_a_slider_sets_what_it_says(stay, command, label, state, key, presses, value):
    page, box = opened(stay)
    form = page.get_by_role("form", name="What is computed")
    before = (
        box.locator("figure svg[role=img]").first.inner_html()
        if state != "row"
        else box.locator("figure svg[role=img]").nth(3).inner_html()
    )
    pages.move(page, form.get_by_role("slider", name=label), presses, key)
    pages.answered(page, "playground", **{state: value})
    after = (
        box.locator("figure svg[role=img]").first.inner_html()
        if state != "row"
        else box.locator("figure svg[role=img]").nth(3).inner_html()
    )
    assert after != before or state == "dropout"
    assert pages.hold_against_command(box, command) > 100


@pytest.mark.parametrize("label,state,value", [("soft-cap", "soft_cap", 20), ("sink", "sink", 0)])
def test_what_may_be_off_is_switched_on_and_off(stay, command, label, state, value):
    page, box = opened(stay)
    switch = page.get_by_role("checkbox", name=f"{label}: on")
    assert not switch.is_checked()
    switch.check()
    pages.answered(page, "playground", **{state: value})
    assert pages.hold_against_command(box, command) > 100
    page.wait_for_function(f"() => location.hash.includes('{state}={value}')")
    switch.uncheck()
    pages.answered(page, "playground", **{state: "null"})


def known_rules(command):
    """The names that the command says it knows, but for one that it refuses for a single random head."""
    refused = subprocess.run([command, "playground", "--rule", "pear"], capture_output=True, text=True)
    names = re.sub(r"\(.*?\)", "", refused.stderr.partition("known are ")[2])
    return {name.strip() for name in names.split(",")} - {"temperature"}


def test_any_rule_can_be_chosen_or_typed(stay, command):
    page, box = opened(stay)
    first = page.get_by_label("First rule", exact=True)
    rules = first.evaluate("e => [...e.options].map(o => o.value)")
    parts = {part.partition("(")[0] for rule in rules for part in rule.split("*")}
    assert known_rules(command) <= parts, "every rule that the command takes here is in the menu"
    first.select_option("sqrt_dk*ssmax(0.43)")
    pages.answered(page, "playground", rule="sqrt_dk*ssmax(0.43)")
    assert pages.hold_against_command(box, command) > 100
    first.select_option("…")
    page.get_by_label("First rule, typed").fill("dk(4)")
    pages.answered(page, "playground", rule="dk(4)")
    page.get_by_label("First rule, typed").fill("pear")
    refused = box.locator(".refused")
    refused.filter(has_text="pear").wait_for()
    page.get_by_label("First rule, typed").fill("dk(16)")
    pages.answered(page, "playground", rule="dk(16)")
    assert refused.inner_text() == ""


def test_every_rule_in_the_menu_is_computed(stay, command):
    page, box = opened(stay)
    first = page.get_by_label("First rule", exact=True)
    rules = [rule for rule in first.evaluate("e => [...e.options].map(o => o.value)") if rule != "…"]
    names = first.evaluate("e => [...e.options].map(o => o.textContent)")
    assert len(set(names)) == len(names) > 12
    for rule in rules:
        first.select_option(rule)
        pages.answered(page, "playground", rule=rule)
        assert box.locator(".refused").inner_text() == "", rule
        if rule in ("measured", "qk_norm", "cosine(10)", "soft_cap(50)"):
            assert pages.hold_against_command(box, command) > 100


def test_a_mouse_drags_a_slider(stay, command):
    page, box = opened(stay)
    keys = page.get_by_role("form", name="What is computed").get_by_role("slider", name="n, keys")
    pages.drag(page, keys, 0)
    pages.answered(page, "playground", keys=2)
    pages.drag(page, keys, 1)
    pages.answered(page, "playground", keys=4096)
    pages.drag(page, keys, 0.5)
    pages.answered_where(page, "playground", "asked.keys > 32 && asked.keys < 256")
    assert pages.hold_against_command(box, command) > 100


def test_a_row_has_one_number_wherever_it_stands(stay):
    page, box = opened(stay, "?row=4")
    assert page.get_by_label("row shown, exactly").input_value() == "4"
    assert "query 4" in box.locator("figcaption", has_text="heaviest first").inner_text()
    assert "--row 3" in box.locator(".how").text_content(), "the command counts from 0"
    assert box.locator("svg .row-frame").count() == 2
    maps = box.locator("figcaption", has_text="at most 32 × 64")
    assert "is marked" in maps.inner_text()
    page, box = opened(stay, "?row=40")
    assert box.locator("svg .row-frame").count() == 0
    assert "Query 40" in maps.inner_text() and "marked" not in maps.inner_text()
    for row in (0, 65, 100, 1.5):
        page = stay(f"#playground?row={row}")
        box.locator(".refused").filter(has_text=f"row: {row:,}").wait_for()


@pytest.mark.parametrize(
    "query, line", [("?keys=1048576", "keys: 1,048,576"), ("?dk=65536&keys=8192", "dk × keys"), ("?dk=1.5", "dk: 1.5")]
)
def test_what_one_would_wait_for_is_refused_at_once(stay, query, line):
    page, box = opened(stay)
    stay("#playground" + query)
    box.locator(".refused").filter(has_text=line).wait_for(timeout=5000)
    stay("#playground?dk=32")
    pages.answered(page, "playground", dk=32)
    assert box.locator(".refused").inner_text() == ""


def test_a_number_is_typed_exactly_and_nonsense_is_refused_in_a_line(stay, command):
    page, box = opened(stay)
    page.get_by_label("d_k, exactly").fill("70")
    pages.answered(page, "playground", dk=70)
    assert pages.hold_against_command(box, command) > 100
    page.get_by_label("d_k, exactly").fill("0")
    box.locator(".refused").filter(has_text="dk: 0").wait_for()
    page.get_by_label("d_k, exactly").fill("")
    page.get_by_label("d_k, exactly").blur()
    page.get_by_role("button", name="Start over").click()
    pages.answered(page, "playground", dk=64)
    page.wait_for_function("() => location.hash === '#playground'")


def test_a_link_shows_the_same_head(visit, stay):
    query = "?dk=32&keys=128&rule=dk(8)&other=none&sigma_q=1.4&mean=0.1&correlation=0.02&soft_cap=15&sink=1&dropout=0.1&causal=1&seed=7&row=5"
    page, box = opened(stay, query)
    words = box.locator(".says").inner_text()
    assert page.evaluate("location.hash") == "#playground" + query
    page, box = opened(visit, page.evaluate("location.hash").removeprefix("#playground"))
    assert box.locator(".says").inner_text() == words
    assert page.get_by_label("seed").input_value() == "7"


def test_the_numbers_can_be_taken_along(stay):
    page, box = opened(stay)
    for figure in box.locator("figure.chart").all():
        name, text = pages.saved(page, figure.get_by_role("button", name="Save as CSV"))
        rows = list(csv.reader(io.StringIO(text)))
        assert name.startswith("rootdk-playground") and len(rows) > 5 and len({len(r) for r in rows}) == 1
        name, text = pages.saved(page, figure.get_by_role("button", name="Save as SVG"))
        assert text.startswith("<?xml") and "var(" not in text


def test_a_finger_sets_it_on_a_phone(visit):
    page, box = opened(visit, width=390)
    slider = page.get_by_role("form", name="What is computed").get_by_role("slider", name="n, keys")
    slider.scroll_into_view_if_needed()
    size = slider.bounding_box()
    page.touchscreen.tap(size["x"] + 0.3 * size["width"], size["y"] + size["height"] / 2)
    pages.answered_where(page, "playground", "asked.keys < 256")


@pytest.mark.parametrize(
    "query", ["?dk=1&keys=2", "?dk=1024&keys=4096&other=dk", "?soft_cap=5&sink=2&dropout=0.5&causal=1&mean=1&sigma_q=5"]
)
def test_labels_stay_apart_at_the_ends_of_the_sliders(visit, query):
    page, _ = opened(visit, query, calm=True)
    pages.labels_apart(page)


@pytest.mark.parametrize("widths", [pages.PHONE, pages.DESK])
def test_is_fit_to_be_shown_to_anybody(visit, shots, widths):
    page, _ = opened(visit, width=widths[0], calm=True)
    pages.looks(page, shots, "playground", widths)
