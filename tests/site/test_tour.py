"""The page that `rootdk tour` writes: the site in one file, and in its first part what the tour measured."""

import csv
import io
import json
import subprocess

import pages
import pytest


@pytest.fixture(scope="module")
def tour(command, tmp_path_factory):
    """(its address, its results)"""
    folder = tmp_path_factory.mktemp("tour")
    done = subprocess.run([command, "tour", "--quick", "--out", folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "The engine is in the report" in done.stdout
    assert sorted(f.name for f in folder.iterdir()) == ["report.html", "results.json"]
    return (folder / "report.html").as_uri(), json.loads((folder / "results.json").read_text(encoding="utf-8"))


def test_shows_every_chapter_with_the_numbers_of_its_results(visit, tour):
    address, results = tour
    page = visit(of=address)
    part = page.get_by_role("tabpanel", name="The tour")
    part.wait_for()  # it opens with what was asked for
    titles = [title.split(". ", 1)[1] for title in part.locator("section[data-experiment] h2").all_inner_texts()]
    assert [t.replace("_\n", "_") for t in titles] == [c["title"] for c in results["chapters"]]
    shown = part.evaluate(
        "p => [...p.querySelectorAll('[data-path]')].filter(e => e.dataset.value !== undefined).map(e => [e.dataset.path, e.dataset.value])"
    )
    assert len(shown) > 1000
    for path, value in shown:
        assert pages.same(value, pages.at_pointer(results, path), relative=0, absolute=0), path
    for number in range(1, len(results["chapters"]) + 1):
        conclusion = part.locator(f'[data-path="/chapters/{number - 1}/conclusion"]').first
        assert conclusion.get_attribute("data-value") == results["chapters"][number - 1]["conclusion"]


def test_the_engine_answers_in_the_other_parts(visit, tour, command):
    address, results = tour
    page = visit(of=address)
    part = page.get_by_role("tabpanel", name="The tour")
    part.get_by_role("link", name="Work it through with other scores").first.click()
    scores = results["chapters"][0]["data"]["raw_scores"]
    box = pages.answered(page, "own", text=", ".join(f"{x:g}" for x in scores), dk=results["chapters"][0]["data"]["dk"])
    assert pages.hold_against_command(box, command, relative=1e-12, absolute=1e-300) > 10
    page.go_back()
    part.wait_for()


@pytest.mark.parametrize(
    "words, name, values",
    [
        ("Move d_k and watch the variance", "story", {"step": 2}),
        ("Move the mean and the correlation", "story", {"mean": 0.5, "correlation": 0.2}),
        ("Compute the map here", "phase", {}),
        ("Train it here", "train", {}),
        ("Try rules on a random head", "playground", {}),
    ],
)
def test_chapters_lead_to_where_they_can_be_tried(stay, tour, words, name, values):
    page = stay("#tour", of=tour[0], calm=True)
    page.get_by_role("link", name=words).focus()
    page.keyboard.press("Enter")
    page.locator(f"#part-{name}").wait_for()
    page.wait_for_function(
        "words => words.every(w => location.hash.includes(w))",
        arg=[f"#{name}", *(f"{key}={value}" for key, value in values.items())],
    )


def test_a_chapter_has_an_address(visit, tour):
    page = visit(of=tour[0], calm=True)
    page.get_by_role("navigation", name="Chapters of the tour").get_by_role("link", name="5. ").click()
    page.wait_for_function("() => location.hash === '#tour?chapter=5'")
    page.goto("about:blank")
    page = visit(of=tour[0], address="#tour?chapter=5", calm=True)
    page.wait_for_function("() => Math.abs(document.getElementById('experiment-5').getBoundingClientRect().top) < 120")
    lonely = visit("#tour")
    lonely.get_by_role("tabpanel", name="The story").wait_for()
    assert lonely.get_by_role("tab", name="The tour").count() == 0, "a page without results has no such part"


def test_a_finger_goes_through_it(visit, tour):
    page = visit(of=tour[0], width=390, calm=True)
    page.get_by_role("navigation", name="Chapters of the tour").get_by_role("link", name="2. ").tap()
    page.wait_for_function("() => location.hash === '#tour?chapter=2'")
    page.wait_for_function("() => Math.abs(document.getElementById('experiment-2').getBoundingClientRect().top) < 120")
    figure = page.locator("#experiment-2 figure.chart").first
    figure.locator("svg .mark").first.tap()
    figure.locator(".tip:visible").wait_for()
    page.get_by_role("tab", name="Playground").tap()
    page.get_by_role("tabpanel", name="Playground").wait_for()


def test_every_figure_can_be_taken_along(visit, tour):
    page = visit(of=tour[0], calm=True)
    part = page.get_by_role("tabpanel", name="The tour")
    figures = part.locator("figure.chart")
    for place in range(figures.count()):
        figure = figures.nth(place)
        figure.scroll_into_view_if_needed()
        name, text = pages.saved(page, figure.get_by_role("button", name="Save as CSV"))
        rows = list(csv.reader(io.StringIO(text)))
        assert name.startswith("rootdk-tour-") and len(rows) > 1 and {len(row) for row in rows} == {3}, name
        name, text = pages.saved(page, figure.get_by_role("button", name="Save as SVG"))
        assert text.startswith("<?xml") and "var(" not in text, name


def test_static_has_no_engine(command, tmp_path):
    done = subprocess.run([command, "tour", "--quick", "--static", "--out", tmp_path], capture_output=True, text=True)
    assert done.returncode == 0 and "The engine" not in done.stdout, done.stdout
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "engine-wasm" not in page and len(page) < 1_200_000


@pytest.mark.parametrize("widths", [pages.PHONE, pages.DESK])
def test_is_fit_to_be_shown_to_anybody(visit, shots, tour, widths):
    page = visit(of=tour[0], width=widths[0], calm=True)
    page.get_by_role("tabpanel", name="The tour").wait_for()
    pages.looks(page, shots, "tour", widths)
