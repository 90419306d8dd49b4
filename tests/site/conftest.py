"""A browser, the site behind a server of its own, and the command to hold it against.

ROOTDK_SITE: the folder that ./run site wrote (build/site); ROOTDK_COMMAND: rootdk (build/release/bin/rootdk). Every
page is watched: an error or a warning in the console, or a request to anywhere else, fails the test that opened it.
"""

import functools
import http.server
import os
import pathlib
import shutil
import sys
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
SITE = pathlib.Path(os.environ.get("ROOTDK_SITE", ROOT / "build/site"))
# the command's numbers are the same with any, and the browser wants the other cores
os.environ.setdefault("OMP_NUM_THREADS", "1")
COMMAND = pathlib.Path(os.environ.get("ROOTDK_COMMAND", ROOT / "build/release/bin/rootdk"))


# A file goes to one worker as a whole. The longest first, so that all workers end at about the same time.
LONGEST = ("test_train", "test_tour", "test_standing", "test_story", "test_engine")


def pytest_collection_modifyitems(items):
    def place(item):
        name = item.module.__name__
        return LONGEST.index(name) if name in LONGEST else len(LONGEST)

    items.sort(key=place)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="session")
def served():
    if not (SITE / "index.html").exists():
        pytest.skip(f"{SITE}/index.html is not there: ./run site builds it")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=SITE))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


@pytest.fixture(scope="session")
def command():
    if not COMMAND.exists():
        pytest.skip(f"{COMMAND} is not there")
    return str(COMMAND)


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if not path:
        pytest.skip("there is no Chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


# Longer than anything takes, on a machine that has other things to do: it is never waited for, but where something is
# amiss.
PATIENCE = 240_000


class Visitor:
    """Opens pages, as a phone has them below 600 pixels, and notes what goes wrong on them."""

    def __init__(self, browser, served):
        self.browser, self.served, self.problems = browser, served, []
        self.contexts, self.kept = {}, {}

    def context(self, width, height, dark, touch, calm, clipboard):
        """One for all pages that are looked at in the same way."""
        options = (width, height, dark, touch, calm, clipboard)
        if options not in self.contexts:
            phone = width < 600 if touch is None else touch
            self.contexts[options] = self.browser.new_context(
                viewport={"width": width, "height": height or (844 if width < 600 else 1440 if width > 2000 else 800)},
                color_scheme="dark" if dark else "light",
                reduced_motion="reduce" if calm else "no-preference",
                has_touch=phone,
                is_mobile=phone,
                permissions=["clipboard-read", "clipboard-write"] if clipboard else [],
            )
            self.contexts[options].set_default_timeout(PATIENCE)
        return self.contexts[options]

    def open(self, address="", of=None, width=1280, height=None, dark=False, touch=None, calm=False, clipboard=False):
        page = self.context(width, height, dark, touch, calm, clipboard).new_page()
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on(
            "console", lambda m: self.problems.append(f"{m.type}: {m.text}") if m.type in ("error", "warning") else None
        )
        own = (of or self.served, "blob:", "data:")
        page.on("request", lambda r: None if r.url.startswith(own) else self.problems.append(f"request: {r.url}"))
        page.goto((of or self.served + "index.html") + address)
        return page

    def go(self, module, address="#story", **options):
        """A page that stays open for all tests of a module; only its address changes, as when a link is followed."""
        key = (module, *sorted(options.items()))
        if key not in self.kept:
            self.kept[key] = self.open(address, **options)
        page = self.kept[key]
        page.evaluate(
            """address => {
              document.activeElement?.blur();
              scrollTo({top: 0, behavior: "instant"});
              history.replaceState(null, "", address);
              dispatchEvent(new HashChangeEvent("hashchange"));
            }""",
            address,
        )
        return page

    def leave(self, module):
        for key in [key for key in self.kept if key[0] == module]:
            self.kept.pop(key).close()

    def check(self):
        problems = self.problems[:]
        self.problems.clear()
        assert not problems, problems


@pytest.fixture(scope="session")
def visitor(browser, served):
    visitor = Visitor(browser, served)
    yield visitor
    for context in visitor.contexts.values():
        context.close()


@pytest.fixture
def visit(visitor):
    """visit("#playground?dk=16", width=390): a page of the test's own. of: the address of another page than the
    site's."""
    opened = []

    def open_page(address="", **options):
        opened.append(visitor.open(address, **options))
        return opened[-1]

    yield open_page
    for page in opened:
        page.close()
    visitor.check()


@pytest.fixture(scope="module")
def left(request, visitor):
    yield
    visitor.leave(request.module.__name__)


@pytest.fixture
def stay(request, visitor, left):
    """stay("#playground?dk=16"): like visit, but the page is the one that the tests before had, at another address.
    What is in the address is as it says; what is not (files that were chosen) is as they left it."""
    yield lambda address="#story", **options: visitor.go(request.module.__name__, address, **options)
    visitor.check()


@pytest.fixture(scope="session")
def shots():
    """Where pictures of the pages go, to be looked at."""
    folder = ROOT / "build/site-shots"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
