"""Times the page in a headless browser: until its first figure is there, from a slider's event until its answer is
drawn, a step of training; and says how large it is. Most have limits, and exit status 1 means that one was missed. All
but the first figure is measured by a page that anybody can open: build/site/bench.html, from a server.
"""

import functools
import gzip
import http.server
import json
import os
import pathlib
import shutil
import statistics
import sys
import threading

import machine
from playwright.sync_api import sync_playwright

MOST_TO_FIRST_FIGURE = 1000  # milliseconds; the other limits are bench.html's
MOST_BYTES = 2_000_000
BESIDE = ("index.html", "worker.js", "rootdk.wasm", "sample-trained.safetensors", "sample-untrained.safetensors")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def sizes(site):
    """As a server sends them, samples and all."""
    packed = lambda *names: sum(len(gzip.compress((site / name).read_bytes(), 9)) for name in names)
    return {"index.html with its files": packed(*BESIDE), "rootdk.html": packed("rootdk.html")}


# A figure is alive when the engine has answered, and something is drawn.
FIRST_FIGURE = """() => new Promise(done => {
  const look = () => {
    const drawn = [...document.querySelectorAll("main [data-answered] svg")].some(svg =>
      svg.getBoundingClientRect().height > 50);
    drawn ? done(performance.now()) : requestAnimationFrame(look);
  };
  look();
})"""


def main(site, rounds=40):
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    pages = {
        "index.html": f"http://127.0.0.1:{server.server_port}/index.html",
        "rootdk.html": (site / "rootdk.html").resolve().as_uri(),
    }
    missed, kept, load = [], {}, os.getloadavg()[0]

    def told(name, times, limit=None):
        middle = statistics.median(times)
        kept[name] = {"median_ms": middle, "fastest_ms": min(times), "slowest_ms": max(times)}
        bound = "" if limit is None else f"   at most {limit} ms"
        print(f"{name:44} {middle:8.1f} ms   {min(times):8.1f} to {max(times):8.1f}{bound}")
        if limit is not None and middle > limit:
            missed.append(name)

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        print(f"Chromium {browser.version}, {os.cpu_count()} cores, load {load:.1f}")
        version = browser.version
        for name, address in pages.items():
            times = []
            for _ in range(5):
                context = browser.new_context()
                page = context.new_page()
                page.goto(address, wait_until="commit")
                times.append(page.evaluate(FIRST_FIGURE))
                context.close()
            told(f"first figure, {name}", times, MOST_TO_FIRST_FIGURE)
        page = browser.new_page(viewport={"width": 1320, "height": 1200})
        page.goto(pages["index.html"].replace("index.html", f"bench.html?rounds={rounds}"))
        page.wait_for_selector("[data-done]", timeout=600_000)
        for words, row in page.evaluate("measured").items():
            told(words, row["times"], row["most"])
        browser.close()
    server.shutdown()
    for name, size in sizes(site).items():
        kept[name] = {"compressed_bytes": size}
        print(f"{name:44} {size:8,} bytes compressed   at most {MOST_BYTES:,}")
        if size > MOST_BYTES:
            missed.append(name)
    result = {
        "machine": machine.describe(),
        "browser": f"Chromium {version}",
        "load_before": load,
        "nice": os.nice(0),
        "rows": kept,
    }
    (site.parent / "bench-site.json").write_text(json.dumps(result, indent=1) + "\n")
    if missed:
        sys.exit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), *map(int, sys.argv[2:]))
