"""What holds on every tab: nothing moves by itself, and motion is left out for those who ask for that."""

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
