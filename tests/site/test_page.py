"""What holds on every tab: nothing moves by itself, and motion is left out for those who ask for that."""

import conftest
import pages
import pytest


def playground(page):
    pages.answered(page, "playground")
    pages.move(page, page.get_by_role("form", name="What is computed").get_by_role("slider", name="n, keys"), 2)
    pages.answered(page, "playground", keys=512)


def phase(page):
    page.wait_for_function("() => document.querySelector('#part-phase progress').value >= 36")


def own(page):
    pages.answered(page, "own")
    page.get_by_label("Scores, or vectors").fill("3, 1, 4, 1, 5, 9, 2, 6")
    pages.answered(page, "own", text="3, 1, 4, 1, 5, 9, 2, 6")
    page.get_by_role("button", name="Use a random head").click()
    page.locator(".whatif .says").wait_for()


def train(page):
    page.get_by_role("button", name="Train", exact=True).click()
    page.wait_for_selector("#part-train[data-mode=done]")


def audit(page):
    page.wait_for_selector(".found[data-answered]")


TABS = {
    "#playground": playground,
    "#phase": phase,
    "#own": own,
    "#train?steps=12&dk=8": train,
    "#audit?sample=1": audit,
}


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("address", TABS)
def test_nothing_moves_when_numbers_come(visit, address, width):
    page = visit(address, width=width)
    pages.watch_shifts(page)
    TABS[address](page)
    pages.settled(page)
    assert pages.shifted(page) == []


def test_from_a_disk_it_says_which_page_to_open(visit):
    page = visit(of=(conftest.SITE / "index.html").as_uri())
    page.locator("[data-live='story/opening'] .refused", has_text="open rootdk.html").wait_for()
    page.get_by_role("tab", name="Train it here").click()
    page.get_by_role("button", name="Train", exact=True).click()
    page.locator("[data-live=train] .refused", has_text="open rootdk.html").wait_for()
    page.get_by_role("button", name="Go on", exact=True).wait_for()
    page.get_by_role("tab", name="Audit it here").click()
    page.get_by_role("button", name="Use the sample").click()
    page.locator(".audit-files .refused", has_text="open rootdk.html").wait_for()


def test_a_fault_of_the_page_is_said_too(visit, visitor):
    page = visit("#own")
    pages.answered(page, "own")
    page.evaluate("() => { rootdk.Engine.prototype.call = () => Promise.reject(new TypeError('a fault')); }")
    page.get_by_label("Scores, or vectors").fill("1, 2")
    page.locator("[data-live=own] .refused", has_text="a fault").wait_for()
    assert visitor.problems.pop() == "error: a fault", "and thrown"


def test_a_file_dropped_beside_its_place_does_not_replace_the_page(stay):
    page = stay("#train")
    let_through = page.evaluate(
        """() => {
          const transfer = new DataTransfer();
          transfer.items.add(new File(["x"], "model.gguf"));
          const drop = (node, kind, what) => node.dispatchEvent(new DragEvent(kind, {dataTransfer: what, bubbles: true, cancelable: true}));
          const head = document.querySelector("#part-train .part-head"), words = new DataTransfer();
          words.setData("text/plain", "words");
          return {file: drop(head, "dragover", transfer) || drop(head, "drop", transfer), words: drop(head, "drop", words),
                  input: drop(document.querySelector("#part-train input[type=file]"), "drop", transfer)};
        }"""
    )
    assert let_through == {"file": False, "words": True, "input": True}


def test_the_chosen_tab_is_whole_on_a_phone(stay):
    """It lies beside what fades at the edge of the bar, whichever it is."""
    page = stay("#story", width=390, calm=True)
    for place in range(page.get_by_role("tab").count()):
        page.get_by_role("tab").nth(place).focus()
        page.keyboard.press("Enter")
        tab = page.get_by_role("tab", selected=True).bounding_box()
        bar = page.locator("#tabs").bounding_box()
        assert tab["x"] + tab["width"] <= bar["x"] + bar["width"] - 40, place


def test_the_chosen_tab_is_in_sight_when_a_phone_is_turned(visit):
    page = visit("#audit", width=390, calm=True)
    page.set_viewport_size({"width": 844, "height": 390})  # where all tabs fit, the first is at the left again
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_function("""() => {
      const tab = document.querySelector("[role=tab][aria-selected=true]").getBoundingClientRect();
      return tab.left >= 0 && tab.right <= innerWidth - 40;
    }""")


@pytest.mark.parametrize("width", [390, 1280])
def test_numbers_beneath_a_slider_stay_within_its_track(stay, width):
    page = stay("#train", width=width, calm=True)
    for address in ("#train", "#playground", "#story"):
        page.evaluate("address => (location.hash = address)", address)
        page.locator(f"#part-{address[1:]} .ticks").first.wait_for()
        out = page.evaluate(
            """() => [...document.querySelectorAll(".part:not([hidden]) .ticks")].flatMap((row) => {
              const track = row.getBoundingClientRect();
              return [...row.children].map((t) => [t.textContent, t.getBoundingClientRect()])
                  .filter(([, t]) => t.width && (t.left < track.left - 0.5 || t.right > track.right + 0.5)).map(([text]) => text);
            })"""
        )
        assert out == [], address


@pytest.mark.parametrize("calm", [True, False])
def test_nothing_glides_for_who_wants_no_motion(visit, calm):
    page = visit(calm=calm)
    pages.answered(page, "story/opening")
    top = page.evaluate(
        """() => {
          document.querySelector('.eight-steps [data-step="6"]').click();
          return document.getElementById('step-6').getBoundingClientRect().top;
        }"""
    )
    assert (abs(top) < 120) == calm, "at once, or on its way"
    page.wait_for_function("() => Math.abs(document.getElementById('step-6').getBoundingClientRect().top) < 120")
    moving = page.evaluate(
        """() => [...document.querySelectorAll('*')].filter(e => {
          const {transitionDuration, animationName} = getComputedStyle(e);
          return animationName !== 'none' || transitionDuration.split(', ').some(t => parseFloat(t) > 0);
        }).length"""
    )
    assert moving == 0 or not calm
    # What runs by itself once it is asked to goes on step by step, slowly.
    pause = page.evaluate(
        """() => {
          const set = setInterval, pauses = [];
          globalThis.setInterval = (what, pause) => (pauses.push(pause), set(what, pause));
          document.querySelector('[data-live="story/opening"] .play').click();
          return pauses[0];
        }"""
    )
    assert (pause >= 900) == calm
