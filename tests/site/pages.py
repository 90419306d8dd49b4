"""What the tests of the site's parts share: waiting for a figure's answer, reading what the page shows, holding it
against the command."""

import json
import math
import shlex
import subprocess
import time
import xml.etree.ElementTree

import accessibility
import page_rules
import shown

SLIDER_STEP = {"ArrowRight": 1, "ArrowLeft": -1}


def answered(page, name, **values):
    """Waits until the figure has drawn the engine's answer for what is set now, and for these values; returns its
    box."""
    box = page.locator(f'[data-live="{name}"]')
    box.scroll_into_view_if_needed()
    page.wait_for_function(
        """([name, values]) => {
          const box = document.querySelector(`[data-live="${name}"]`), asked = box && box.dataset.answered && JSON.parse(box.dataset.answered);
          return asked && Object.entries(values).every(([key, value]) => String(asked[key]) === String(value) || Number(asked[key]) === value);
        }""",
        arg=[name, values],
    )
    return box


def answered_where(page, name, condition):
    """The same for a condition on them, in JavaScript: "asked.dk < 16"."""
    page.wait_for_function(
        f"""name => {{
          const {{answered}} = document.querySelector(`[data-live="${{name}}"]`).dataset, asked = answered && JSON.parse(answered);
          return asked && {condition};
        }}""",
        arg=name,
    )


def settled(page):
    """Waits until charts are drawn for the width there is, and nothing is being computed or moves."""
    page.wait_for_function(
        """() => [...document.querySelectorAll('figure.chart .canvas')].every(canvas => {
          const svg = canvas.querySelector(':scope > svg'), wide = canvas.clientWidth;
          return !wide || (svg && Math.abs(svg.getBoundingClientRect().width - Math.max(240, wide)) <= 1);
        }) && !document.querySelector('[aria-busy=true]') && document.getAnimations().every(a => a.playState !== 'running')"""
    )
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def watch_shifts(page):
    """From the first on: what was before is buffered. What follows within half a second of a click or a key is what
    was asked for, and does not count."""
    page.evaluate(
        """() => {
          globalThis.shifts = [];
          const keep = list => shifts.push(...list.getEntries().filter(e => !e.hadRecentInput).map(
            e => [e.value, ...e.sources.map(s => s.node && s.node.nodeName + '.' + s.node.className)]));
          new PerformanceObserver(keep).observe({type: 'layout-shift', buffered: true});
        }"""
    )


def shifted(page):
    """What moved by itself, when all of it comes to a hundredth of the window: a tenth of what is called good."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
    shifts = page.evaluate("shifts")
    return shifts if sum(value for value, *_ in shifts) >= 0.01 else []


DESK, PHONE = (1280, 2560), (390,)


def looks(page, shots, name, widths, more=lambda width: None, axe=True):
    """At each width, light and dark: a picture that is kept, and nothing that a rule of ours forbids. axe-core, which
    takes seconds for a long page, looks at the first width, in the dark at what the dark changes, the contrasts; what
    is different at other widths are places, which are ours to watch. axe: without, where it has seen such a page."""
    for width in widths:
        page.set_viewport_size({"width": width, "height": {390: 844, 1280: 800, 2560: 1440}[width]})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.evaluate("scrollTo({top: 0, behavior: 'instant'})")
            settled(page)
            page.screenshot(path=shots / f"{name}-{width}-{scheme}.png", full_page=True)
            settled(page)
            rules = accessibility.ALL if scheme == "light" else accessibility.CONTRAST
            found = accessibility.findings(page, rules if axe and width == widths[0] else None)
            assert found == [], (width, scheme)
        more(width)


def labels_apart(page, widths=(390, 1280)):
    """What is drawn for extreme numbers: no label on another or on a mark, nothing beyond the page, at each width."""
    for width in widths:
        page.set_viewport_size({"width": width, "height": 800})
        settled(page)
        assert page_rules.broken(page.evaluate) == [], width


def at_pointer(node, pointer):
    for key in pointer.split("/")[1:]:
        key = key.replace("~1", "/").replace("~0", "~")
        node = node[int(key)] if isinstance(node, list) else node[key]
    return node


# The fused kernels of the page have 4 lanes and no fused multiply-add: f32 is rounded otherwise, 6e-8 a step, some
# hundred steps deep. What is of size 1 or above agrees to this; what is below, to this of what it was computed from: a
# weight of 1e-4 comes from scores of 30, and a quantile in the tail of gradients from gradients of 1.
SINGLE = 1e-5
# Which would let any small number pass: those keep this many digits, but where they count for nothing.
SMALL, NOTHING = 1e-3, 1e-6


def same(shown, wanted, relative=None, absolute=None):
    """Without tolerances: as the fused kernels allow."""
    if isinstance(wanted, str) or isinstance(wanted, bool) or wanted is None:
        return shown == {True: "true", False: "false", None: "null"}.get(wanted, wanted)
    shown = float(shown)
    if relative is None:
        apart = abs(shown - wanted)
        return apart <= SINGLE * max(1.0, abs(wanted)) and apart <= SMALL * abs(wanted) + NOTHING
    return math.isclose(shown, wanted, rel_tol=relative, abs_tol=absolute)


def run(command, words, folder=None):
    """The object that the command prints for the command line that the page gives. folder: where the files lie that it
    names."""
    words = shlex.split(words)
    assert words[0] == "rootdk"
    done = subprocess.run([command, *words[1:], "--json"], capture_output=True, text=True, timeout=300, cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def hold_against_command(box, command, relative=None, absolute=None, folder=None):
    """Every number and mark that the figure shows is the command's, for the command line that the figure gives, and
    what a person reads says it to its last digit. Returns how many."""
    results = {}
    for at, words in box.evaluate(
        "box => [...box.querySelectorAll('.how [data-at]')].map(e => [e.dataset.at, e.textContent])"
    ):
        results[at] = run(command, words, folder)
    assert results
    checked = 0
    for path, value, text in held(box):
        at = max((a for a in results if path.startswith(a + "/")), key=len, default=None)
        assert at is not None, path
        if path.endswith("/conclusion"):
            assert text == shown.typeset(value), path
            continue  # its words may round a number that differs in the last place
        wanted = at_pointer(results[at], path[len(at) :])
        exact = float(value) if isinstance(wanted, (int, float)) and not isinstance(wanted, bool) else wanted
        assert text is None or shown.says(text, exact), f"{path}: {text!r} is shown, but it is {value}"
        assert same(value, wanted, relative, absolute), f"{path}: the page has {value}, the command {wanted}"
        checked += 1
    return checked


def held(box):
    """(where it comes from, exact value, text) of all that the figure shows; a mark without words has no text, and a
    share on an axis of shares is written without its %."""
    return box.evaluate(
        """box => [...box.querySelectorAll('[data-path]')].filter(e => e.dataset.value !== undefined).map(e => [
          e.dataset.path, e.dataset.value,
          e.matches('text.mark') ? `${e.textContent} %` : e.matches('.mark') ? null : e.textContent])"""
    )


def drag(page, slider, to):
    """As somebody with a mouse does: from the thumb, in a few moves, to that share of the track."""
    slider.scroll_into_view_if_needed()
    track, at = slider.bounding_box(), slider.evaluate("e => Number(e.value) / Number(e.max)")
    half = track["height"] / 2  # about half a thumb
    place = lambda share: (track["x"] + half + share * (track["width"] - 2 * half), track["y"] + half)
    page.mouse.move(*place(at))
    page.mouse.down()
    page.mouse.move(*place(to), steps=6)
    page.mouse.up()


def move(page, slider, presses, key="ArrowRight"):
    """As somebody at a keyboard moves it."""
    slider.focus()
    for _ in range(presses):
        page.keyboard.press(key)


def slider(box, label):
    return box.get_by_role("slider", name=label)


def saved_drawing(page, button):
    """What a button saves as SVG, which needs nothing but itself: {"title", "texts", "rects", "marks"}."""
    name, text = saved(page, button)
    assert name.endswith(".svg") and "var(" not in text and "class=" not in text and "href" not in text, name
    root = xml.etree.ElementTree.fromstring(text)
    found = lambda *tags: [e for tag in tags for e in root.iter(f"{{http://www.w3.org/2000/svg}}{tag}")]
    drawn = {
        "title": found("title")[0].text,
        "texts": ["".join(e.itertext()) for e in found("text")],
        "rects": found("rect"),
        "marks": found("path", "circle", "line"),
    }
    assert float(root.get("width")) > 240 and drawn["texts"] and found("desc")[0].text
    return drawn


_last_saved = 0.0


def saved(page, button):
    """Name and text of what a button saves. Chromium drops what a page saves beyond ten files a second: nobody clicks
    that fast."""
    global _last_saved
    time.sleep(max(0.0, _last_saved + 0.125 - time.monotonic()))
    with page.expect_download() as download:
        button.click()
    _last_saved = time.monotonic()
    return download.value.suggested_filename, download.value.path().read_text(encoding="utf-8")
