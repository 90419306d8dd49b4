"""The phase map: computed cell by cell, the command's numbers, and a click sets the playground."""

import csv
import io
import math
import re

import pages
import pytest

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


def test_another_rule_and_another_measure(visit):
    page, box = opened(visit)
    page.get_by_label("Show").select_option("trace_j")
    assert "tr J" in box.locator("svg[role=img]").first.get_attribute("aria-label")
    page.locator("#part-phase").get_by_label("Rule", exact=True).select_option("sqrt_dk")
    page.wait_for_function("() => document.querySelector('#part-phase progress').value >= 20")
    page.wait_for_function("() => location.hash.startsWith('#phase?')")
    page.locator("#part-phase .says").filter(has_text="Soft").wait_for()


@pytest.mark.parametrize("widths", [pages.PHONE, pages.DESK])
def test_is_fit_to_be_shown_to_anybody_and_a_tap_chooses_a_cell(visit, shots, widths):
    page, _ = opened(visit, width=widths[0], calm=True, cells=COARSE if widths == pages.PHONE else ALL)
    if widths == pages.PHONE:
        page.touchscreen.tap(*middle(page, 4, 16))
        chosen(page, 4, 16)
    pages.looks(page, shots, "phase", widths)
