"""The story, used as a reader would: eight steps, their sliders, what they say; the same picture from a link; figures
saved."""

import csv
import io
import re
import xml.etree.ElementTree

import pages
import pytest

# Of each step: a slider and what its state is called.
STEPS = {
    1: ("d_k", "dk"),
    2: ("d_k", "dk"),
    3: ("d_k", "dk"),
    4: ("d_k", "dk"),
    5: ("d_k", "dk"),
    6: ("power of d_k to divide by", "power"),
    7: ("mean of each component", "mean"),
    8: ("spread of components", "others_spread"),
}


def sentence(box):
    return box.locator(".says").inner_text()


def test_opens_with_three_sentences_and_one_picture(visit, command):
    page = visit()
    assert page.locator("h1").inner_text().startswith("Why attention is divided by")
    told = page.locator(".lead p").all_inner_texts()
    assert len(told) == 3
    assert page.evaluate("document.querySelectorAll('.opening-story figure').length") == 1
    box = pages.answered(page, "story/opening", dk=64)
    assert "freeze" in sentence(box)
    assert pages.hold_against_command(box, command) > 0
    assert page.locator("#part-story section.step").count() == 8


# Each with what else is said of it.
TERMS = {
    "query": "queries",
    "key": "keys",
    "score": "scores",
    "softmax": "",
    "row": "rows",
    "weights": "weight",
    "frozen": "freez\\w*",
    "gradient": "gradients",
    "spread": "",
    "variance": "",
    "effective keys": "",
    "critical spread": "σ_c|beyond critical",
    "soft": "",
    "jacobian": "",
    "tr j": "",
    "shut": "",
    "sharp": "sharp\\w+",
    "standard deviations": "standard deviation",
    "initialisation": "initialiser\\w*",
    "correlated": "correlation",
    "qk-norm": "",
    "soft-cap": "",
    "qk-clip": "",
    "ssmax": "",
}


def test_every_term_is_defined_where_it_first_stands(stay):
    """In all that is read on the way: lead, steps, names of controls, drawings, captions and conclusions. Headings are
    excepted, and the list of them, which say what a step will explain."""
    page = stay(calm=True)
    for name in ("story/opening", *(f"story/{step}" for step in STEPS), "story/trained"):
        pages.answered(page, name)
    passages = page.evaluate(
        """() => {
          const out = [], story = document.querySelector('#part-story');
          const read = '.lead p, .told p, .says, figcaption, .control, .canvas text, .remark p';
          for (const e of story.querySelectorAll(read)) {
            if (!e.getClientRects().length || e.parentElement.closest(read)) continue;
            const defined = [...e.querySelectorAll('dfn')].map(d => d.textContent.toLowerCase());
            out.push([e.textContent.toLowerCase(), defined]);
          }
          return out;
        }"""
    )
    assert len(passages) > 100
    defined = [term for _, terms in passages for term in terms]
    assert sorted(defined) == sorted(set(TERMS)), "each once"
    for term, more in TERMS.items():
        word = re.compile(rf"(?<![\w-])(?:{term}{'|' + more if more else ''})(?![\w-])")
        first, terms = next((text, terms) for text, terms in passages if word.search(text))
        assert term in terms, f"{term}: {first}"


@pytest.mark.parametrize("step", STEPS)
def test_a_step_answers_its_slider_with_another_sentence(stay, command, step, tmp_path):
    page = stay(f"#story?step={step}")
    name = f"story/{step}"
    box = pages.answered(page, name)
    assert page.locator(f"#step-{step} h2").inner_text()
    before = sentence(box)
    label, state = STEPS[step]
    slider = pages.slider(box, label)
    shown = slider.get_attribute("aria-valuetext")
    pages.move(page, slider, 3)
    assert slider.get_attribute("aria-valuetext") != shown
    pages.answered(page, name, **{state: float(slider.get_attribute("aria-valuetext"))})
    assert sentence(box) != before
    page.wait_for_function(f"() => location.hash.includes('{state}=')")
    picture = box.locator("svg[role=img]").first.get_attribute("aria-label")
    assert any(c.isdigit() for c in picture)
    files = box.get_by_role("button", name=".npy", include_hidden=True)
    if files.count():
        box.locator(".how summary").click()
        for button in files.all():
            with page.expect_download() as download:
                button.click()
            download.value.save_as(tmp_path / download.value.suggested_filename)
    assert pages.hold_against_command(box, command, folder=tmp_path) > 3


@pytest.mark.parametrize("dk, same", [(1, False), (2, False), (4, False), (16, True), (48, True), (512, True)])
def test_what_is_said_of_dividing_by_dk_holds_at_that_dk(stay, dk, same):
    page = stay(f"#story?step=5&dk={dk}")
    said = sentence(pages.answered(page, "story/5", dk=dk))
    assert said.startswith("Divided by d") == same and ("every key counts the same" in said) == same, said
    share = float(page.locator('[data-live="story/5"] .says [data-path$="/exp_entropy"]').get_attribute("data-value"))
    assert (share > 0.95 * 64) == same


@pytest.mark.parametrize("step", [4, 5])
@pytest.mark.parametrize("dk, measured", [(1, 4), (8, None), (48, None), (64, 64)])
def test_what_was_measured_elsewhere_is_said_to_be(stay, step, dk, measured):
    page = stay(f"#story?step={step}&dk={dk}")
    box = pages.answered(page, f"story/{step}", dk=dk)
    points = '.says [data-path*="/gradient/points/"][data-path$="/dk"]'
    at = int(box.locator(points).first.get_attribute("data-value"))
    assert measured is None or at == measured
    assert ("the nearest measured" in sentence(box)) == (at != dk)


def test_a_mouse_drags_the_slider(stay, command):
    page = stay("#story?step=3")
    box = pages.answered(page, "story/3", dk=64)
    dk = pages.slider(box, "d_k")
    for share, value in ((1, 512), (0, 1)):
        pages.drag(page, dk, share)
        pages.answered(page, "story/3", dk=value)
        assert dk.get_attribute("aria-valuetext") == str(value)
    assert pages.hold_against_command(box, command) > 128
    page.wait_for_function("() => location.hash.includes('dk=1')")


@pytest.mark.parametrize("query", ["dk=1e30", "dk=1.5", "dk=0", "others_keys=1e9", "dk=4096"])
def test_what_a_step_cannot_compute_is_said_in_a_line(stay, query):
    name = query.partition("=")[0]
    page = stay("#story?step=8")
    box = pages.answered(page, "story/8")
    before = sentence(box)
    stay(f"#story?step=8&{query}")
    box.locator(".refused").filter(has_text=f"{name}: ").wait_for(timeout=5000)
    assert "e+" not in page.locator("#part-story").inner_text()
    assert sentence(box) == before, "what was shown stays"
    stay("#story?step=8&dk=32")
    pages.answered(page, "story/8", dk=32)
    assert box.locator(".refused").inner_text() == ""


def test_one_key_receives_and_two_receive(stay):
    said = {}
    page = stay("#story?step=3")
    for dk in (1, 2, 3, 4, 6, 8, 12, 16):
        page = stay(f"#story?step=3&dk={dk}")
        box = pages.answered(page, "story/3", dk=dk)
        count, words = re.search(r"row shown (\d+) (keys? receives?) less", sentence(box)).groups()
        said[count] = words
        assert words == ("key receives" if count == "1" else "keys receive")
    assert len(said) > 1, said


def test_a_charts_own_menu_is_in_the_address(stay, visit):
    page = stay("#story?step=8")
    box = pages.answered(page, "story/8")
    box.locator("figure select").select_option("trace_j")
    page.wait_for_function("() => location.hash.includes('others_show=trace_j')")
    other = visit(page.evaluate("location.hash"))
    same = pages.answered(other, "story/8")
    assert same.locator("figure select").input_value() == "trace_j"
    assert same.locator("svg[role=img]").inner_html() == box.locator("svg[role=img]").inner_html()
    stay("#story?step=8&others_show=banana")
    assert box.locator("figure select").input_value() == "effective_keys"


def test_what_is_none_of_the_choices_is_the_first(stay):
    page = stay("#story?step=2&components=banana&divide=pear")
    box = pages.answered(page, "story/2", components="normal")
    assert "banana" not in box.inner_text()
    assert page.locator('[data-live="story/3"]').get_by_role("radio", name="nothing").is_checked()


def test_one_slider_moves_scores_weights_and_gradient(stay, command):
    page = stay("#story?step=3&dk=8")
    box = pages.answered(page, "story/3", dk=8)
    marks = lambda: box.evaluate("box => [...box.querySelectorAll('svg .mark')].map(e => e.dataset.value)")
    spread = lambda: box.evaluate("box => box.querySelector('svg .span').getBBox().width")
    one, narrow = marks(), spread()
    pages.move(page, pages.slider(box, "d_k"), 8)
    pages.answered(page, "story/3", dk=128)
    two, wide = marks(), spread()
    assert len(one) == len(two) == 128 and one != two, "64 weights and 64 gradients"
    assert wide > 2 * narrow
    assert "Frozen" in sentence(box)
    box.get_by_role("radio", name="√d_k", exact=True).check(force=True)
    pages.answered(page, "story/3", dk=128, divide="sqrt_dk")
    assert "Soft" in sentence(box)
    assert pages.hold_against_command(box, command) > 128


def test_a_link_shows_the_same_picture(stay, visit):
    page = stay("#story?step=3")
    box = pages.answered(page, "story/3")
    pages.move(page, pages.slider(box, "d_k"), 4)
    box.get_by_role("radio", name="d_k", exact=True).check(force=True)
    pages.answered(page, "story/3", dk=256, divide="dk")
    page.wait_for_function("() => location.hash.includes('divide=dk') && location.hash.includes('dk=256')")
    address = page.evaluate("location.hash")
    other = visit(address)
    same = pages.answered(other, "story/3", dk=256, divide="dk")
    assert sentence(same) == sentence(box)
    assert same.locator("svg[role=img]").first.inner_html() == box.locator("svg[role=img]").first.inner_html()
    assert other.evaluate("document.querySelector('#step-3').getBoundingClientRect().top") < 300, (
        "it opens where the other was"
    )


def test_an_address_that_makes_no_sense_shows_the_beginning(visit, stay):
    page = visit("#nowhere?dk=pear&step=99&divide=%00&power=NaN")
    box = pages.answered(page, "story/opening")
    assert "d_k = 64" in sentence(box).replace("\n", "")
    page = stay("#story?dk=-5&keys=1e99&mean=Infinity")
    page.locator('[data-live="story/opening"] .refused').filter(has_text="dk").wait_for()


def test_tabs_go_by_mouse_and_keys_and_back_again(visit):
    page = visit()
    page.get_by_role("tab", name="Playground").click()
    page.get_by_role("tabpanel", name="Playground").wait_for()
    assert page.evaluate("location.hash") == "#playground"
    page.get_by_role("tab", name="Playground").focus()
    page.keyboard.press("ArrowRight")
    page.get_by_role("tabpanel", name="Phase map").wait_for()
    page.go_back()
    page.get_by_role("tabpanel", name="Playground").wait_for()
    page.go_back()
    page.get_by_role("tabpanel", name="The story").wait_for()


def test_the_link_is_copied(visit):
    page = visit("#story?dk=16", clipboard=True)
    pages.answered(page, "story/opening", dk=16)
    page.get_by_role("button", name="Copy link").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()").endswith("#story?dk=16")


@pytest.mark.parametrize("step", [0, *STEPS])
def test_a_figure_is_saved_as_svg_and_its_numbers_as_csv(stay, step):
    page = stay(f"#story?step={step}")
    box = pages.answered(page, f"story/{step}" if step else "story/opening")
    name, text = pages.saved(page, box.get_by_role("button", name="Save as SVG"))
    assert name.startswith("rootdk-") and name.endswith(".svg")
    svg = xml.etree.ElementTree.fromstring(text)
    assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(" not in text and "class=" not in text and "color-mix" not in text and "oklab" not in text
    assert len(svg.findall(".//{http://www.w3.org/2000/svg}text")) > 3
    name, text = pages.saved(page, box.get_by_role("button", name="Save as CSV"))
    assert name.endswith(".csv")
    rows = list(csv.reader(io.StringIO(text)))
    assert len(rows) > 3 and len({len(row) for row in rows}) == 1
    assert all(row[-1] not in ("undefined", "NaN", "[object Object]") for row in rows)


def test_the_numbers_saved_are_the_commands(stay, command):
    page = stay("#story?step=3")
    box = pages.answered(page, "story/3")
    _, text = pages.saved(page, box.get_by_role("button", name="Save as CSV"))
    result = pages.run(
        command,
        box.locator(".how [data-at]").inner_text()
        if box.locator(".how").get_attribute("open")
        else box.locator(".how [data-at]").text_content(),
    )
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == len(result["row"]["p"])
    for row, p, score in zip(rows, result["row"]["p"], result["row"]["scores"]):
        assert pages.same(row["weight"], p) and pages.same(row["score"], score)


def test_arrow_keys_read_a_figure_out(stay):
    page = stay("#story?step=6")
    box = pages.answered(page, "story/6")
    box.locator(".canvas").focus()
    page.keyboard.press("ArrowRight")
    said = box.locator("figure [aria-live=polite]").inner_text()
    assert "d_k = 4" in said.replace("\n", "") and "spread" in said
    box.locator(".tip").wait_for()
    page.keyboard.press("Escape")
    box.locator(".tip").wait_for(state="hidden")


def test_a_finger_does_what_a_mouse_does(visit):
    page = visit("", width=390)
    box = pages.answered(page, "story/opening")
    track = pages.slider(box, "d_k")
    size = track.bounding_box()
    page.touchscreen.tap(size["x"] + 0.2 * size["width"], size["y"] + size["height"] / 2)
    pages.answered_where(page, "story/opening", "asked.dk < 16")
    canvas = box.locator(".canvas").bounding_box()
    page.touchscreen.tap(canvas["x"] + 40, canvas["y"] + 60)
    box.locator(".tip").wait_for()
    page.get_by_role("tab", name="Phase map").tap()
    page.get_by_role("tabpanel", name="Phase map").wait_for()


def test_play_runs_through_the_sizes_and_stops(stay):
    page = stay("#story")
    box = pages.answered(page, "story/opening", dk=64)
    page.evaluate(
        """() => {
          const set = setInterval, clear = clearInterval;
          globalThis.ticking = new Set();
          globalThis.setInterval = (...what) => (id => (ticking.add(id), id))(set(...what));
          globalThis.clearInterval = id => (ticking.delete(id), clear(id));
        }"""
    )
    box.get_by_role("button", name="Run through d_k").click()
    assert page.evaluate("ticking.size") == 1
    pages.answered_where(page, "story/opening", "asked.dk > 100")
    box.get_by_role("button", name="Stop").click()
    assert page.evaluate("ticking.size") == 0, "nothing moves it any more"
    box.get_by_role("button", name="Run through d_k").wait_for()
    assert float(pages.slider(box, "d_k").get_attribute("aria-valuetext")) > 100


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_moves_when_numbers_come(visit, width):
    page = visit("", width=width)
    pages.watch_shifts(page)
    for step in STEPS:
        page.evaluate(f"document.getElementById('step-{step}').scrollIntoView({{behavior: 'instant'}})")
        pages.answered(page, f"story/{step}")
    box = page.locator('[data-live="story/3"]')
    box.scroll_into_view_if_needed()
    pages.move(page, pages.slider(box, "d_k"), 5)
    pages.answered(page, "story/3")
    pages.settled(page)
    assert pages.shifted(page) == []


@pytest.mark.parametrize(
    "query",
    [
        "?dk=1&power=0&spread=4&mean=1&correlation=0.5",
        "?dk=512&power=1&spread=0.2&keys=1024&divide=dk&others_spread=4&others_keys=4096",
    ],
)
def test_labels_stay_apart_at_the_ends_of_the_sliders(visit, query):
    page = visit("#story" + query, calm=True)
    for name in ("story/opening", *(f"story/{step}" for step in STEPS)):
        pages.answered(page, name)
    pages.labels_apart(page)


@pytest.mark.parametrize("widths", [pages.PHONE, pages.DESK])
def test_is_fit_to_be_shown_to_anybody(visit, shots, widths):
    page = visit("", width=widths[0], calm=True)
    for name in ("story/opening", *(f"story/{step}" for step in STEPS)):
        pages.answered(page, name)
    pages.looks(page, shots, "story", widths)
