"""Times the page in a headless browser: until its first figure is there, until a slider's answer is, a step of
training; and says how large it is. The first three have limits, and exit status 1 means that one was missed."""

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

LIMITS = {"first figure": 1000, "slider, 1,024 keys × d_k 64": 50}  # milliseconds
MOST_BYTES = 2_000_000


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def sizes(site):
    packed = {
        name: len(gzip.compress((site / name).read_bytes(), 9))
        for name in ("index.html", "worker.js", "rootdk.wasm", "rootdk.html")
    }
    whole = packed["index.html"] + packed["worker.js"] + packed["rootdk.wasm"]
    return {"index.html with its files": whole, "rootdk.html": packed["rootdk.html"]}


# A figure is alive when the engine has answered, and something is drawn.
FIRST_FIGURE = """() => new Promise(done => {
  const look = () => {
    const drawn = [...document.querySelectorAll("main [data-answered] svg")].some(svg =>
      svg.getBoundingClientRect().height > 50);
    drawn ? done(performance.now()) : requestAnimationFrame(look);
  };
  look();
})"""

SLIDER = """async ([args, rounds]) => {
  const engine = new rootdk.Engine(), times = [];
  await engine.ready;
  for (let seed = 0; seed < rounds; ++seed) {
    const start = performance.now();
    await engine.call("playground", {...args, seed});
    times.push(performance.now() - start);
  }
  engine.close();
  return times;
}"""

TRAINING = """async rounds => {
  const engine = new rootdk.Engine(), times = [];
  const {run} = await engine.call("train_start", {steps: 1000});
  for (let i = 0; i < rounds; ++i) {
    const start = performance.now();
    await engine.call("train_advance", {run, steps: 1});
    times.push(performance.now() - start);
  }
  engine.close();
  return times;
}"""


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
            told(f"first figure, {name}", times, LIMITS["first figure"])
        page = browser.new_page()
        page.goto(pages["index.html"])
        for words, args in (
            ("slider, 1,024 keys × d_k 64", {"keys": 1024}),
            ("the same, unscaled", {"keys": 1024, "rule": "none"}),
            ("slider, 256 keys × d_k 64", {}),
            ("slider, 1,024 keys × d_k 8, unscaled", {"keys": 1024, "dk": 8, "rule": "none"}),
            ("slider, 1,024 keys × d_k 512", {"keys": 1024, "dk": 512}),
        ):
            times = page.evaluate(SLIDER, [args, rounds])
            told(words, times[5:], LIMITS.get(words))  # the first ones run code that is not optimised yet
            print(f"{'   its first answer':44} {times[0]:8.1f} ms")
        told("a step of training", page.evaluate(TRAINING, 20)[3:])
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
