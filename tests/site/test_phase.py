"""The phase map: computed cell by cell, the command's numbers, and a click sets the playground."""

import csv
import io
import math
import re

import accessibility
import pages

COARSE = 6 * 6  # cells that come first: every other of every other row
ALL = 11 * 12


def opened(visit, query="", cells=COARSE, **options):
    page = visit(f"#phase{query}", **options)
    page.wait_for_function(f"() => document.querySelector('#part-phase progress').value >= {cells}")
    return page, page.locator('[data-live="phase"]')


def cell(page, dk, keys):
    return page.locator(f'#part-phase rect.cell[data-dk="{dk}"][data-keys="{keys}"]')


def middle(page, dk, keys):
    """Of a cell, on the screen. While others are being computed all of them are drawn anew, so that none can be
    held."""
    page.locator("#part-phase .canvas").scroll_into_view_if_needed()
    return page.evaluate(
        """([dk, keys]) => {
          const box = document.querySelector(`#part-phase rect.cell[data-dk="${dk}"][data-keys="${keys}"]`).getBoundingClientRect();
          return [box.x + box.width / 2, box.y + box.height / 2];
        }""",
        [dk, keys],
    )


def chosen(page, dk, keys):
    page.locator(".readout h3", has_text=f"d_k = {dk}, {keys} keys").wait_for()


def test_cells_are_the_commands(stay, command):
    page, box = opened(stay)
    _, text = pages.saved(page, box.get_by_role("button", name="Save as CSV"))
    rows = {(int(r["dk"]), int(r["keys"])): r for r in csv.DictReader(io.StringIO(text))}
    assert len(rows) >= COARSE
    for dk, keys in [(1, 4), (64, 1024), (16, 64), (1024, 4), (4, 4096)]:
        wanted = pages.run(command, f"rootdk phase --dk {dk} --keys {keys} --rules none --queries 32 --batches 3")[
            "points"
        ][0]
        row = rows[dk, keys]
        assert pages.same(row["sigma"], wanted["sigma"]) and row["frozen"] == str(wanted["frozen"]).lower()
        for name in ("p_max", "entropy", "trace_j"):
            low, high = wanted[name]["ci95"]
            assert low <= float(row[name]) <= high
            assert pages.same(row[f"{name}_theory"], wanted[name]["theory"])
    shown = cell(page, 64, 1024).get_attribute("data-value")
    assert shown == rows[64, 1024]["p_max"]
    # The line parts what is frozen from what is not: unscaled, d_k > 2 ln n.
    assert all((r["frozen"] == "true") == (dk > 2 * math.log(keys)) for (dk, keys), r in rows.items())


def test_a_click_sets_the_playground(stay):
    page, box = opened(stay)
    page.mouse.click(*middle(page, 16, 64))
    chosen(page, 16, 64)
    page.wait_for_function("() => location.hash.includes('dk=16') && location.hash.includes('keys=64')")
    page.get_by_role("tab", name="Playground").click()
    pages.answered(page, "playground", dk=16, keys=64, rule="none")
    page.go_back()
    page.get_by_role("button", name="Open in the playground").click()
    pages.answered(page, "playground", dk=16, keys=64, rule="none", other="sqrt_dk")
    page.go_back()
    page.mouse.click(*middle(page, 16, 64))
    pages.answered(page, "playground", dk=16, keys=64)
    page.get_by_role("tabpanel", name="Playground").wait_for()  # a second click opens it


def test_arrow_keys_walk_over_it_and_enter_sets_and_opens_the_playground(stay):
    page, box = opened(stay)
    box.locator(".canvas").focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    said = box.locator("figure [aria-live=polite]").inner_text().replace("\n", "")
    dk, keys = re.match(r"d_k = ([\d,]+), ([\d,]+) keys", said).groups()
    page.keyboard.press("Enter")
    chosen(page, dk, keys)
    page.wait_for_function(
        "() => document.getElementById('spoken').textContent.includes('The playground is set to it')"
    )
    page.keyboard.press("Enter")
    pages.answered(page, "playground", dk=dk.replace(",", ""), keys=keys.replace(",", ""))


def test_what_is_not_on_the_map_falls_back_to_the_default(stay):
    page, _ = opened(stay, "?show=banana&dk=7&keys=9")
    assert page.locator("#part-phase").get_by_label("Show").input_value() == "p_max"
    assert "banana" not in page.locator("#part-phase").get_by_label("Show").inner_text()
    chosen(page, 64, "1,024")


def test_numbers_have_a_digit_before_the_point_and_an_interval_two_ends(stay):
    page, box = opened(stay, cells=ALL)
    written = box.locator("svg .in-cell").all_text_contents()
    assert len(written) > 50 and all(re.fullmatch(r"[01]|0\.\d\d", text) for text in written), written
    page.mouse.click(*middle(page, 1024, 64))
    chosen(page, "1,024", 64)
    for low, high in (text.split(" – ") for text in page.locator(".readout small").all_inner_texts()):
        assert low != high


def test_its_drawing_stands_alone_and_has_every_cell(stay):
    page, box = opened(stay, cells=ALL)
    drawing = pages.saved_drawing(page, box.get_by_role("button", name="Save as SVG"))
    assert len(drawing["rects"]) > ALL and drawing["title"] == "Phase map"


def test_a_tap_chooses_a_cell(visit):
    page, _ = opened(visit, width=390, calm=True)
    page.touchscreen.tap(*middle(page, 4, 16))
    chosen(page, 4, 16)
    assert accessibility.findings(page) == [], "while it is being computed"


def test_finished_it_is_fit_to_be_shown_to_anybody(stay, shots):
    page, _ = opened(stay, cells=ALL)
    pages.looks(page, shots, "phase", (*pages.DESK, *pages.PHONE))


# From here on of another rule: the map that all tests above have is gone.
def test_another_rule_and_another_measure(stay):
    page, box = opened(stay)
    page.locator("#part-phase").get_by_label("Show").select_option("trace_j")
    assert "tr J" in box.locator("svg[role=img]").first.get_attribute("aria-label")
    page.locator("#part-phase").get_by_label("Rule", exact=True).select_option("sqrt_dk")
    page.wait_for_function("() => document.querySelector('#part-phase progress').value >= 20")
    page.wait_for_function("() => location.hash.startsWith('#phase?')")
    page.locator("#part-phase .says").filter(has_text="Soft").wait_for()


def test_the_line_is_spoken_of_where_there_is_one(stay):
    page, box = opened(stay, "?rule=sqrt_dk", cells=3)
    box.locator("figcaption", has_text="Every cell is soft").wait_for()
    page, box = opened(stay, cells=12)
    box.locator("figcaption", has_text="The line separates soft from frozen").wait_for()
