"""Waiting times of a visitor, measured in Chromium: a large grid of heads, toggles, and a cold start.

    python -m benchmarks.browser [--rounds 20] [--json]

grid      bytes sent, time from data to painted, and time per frame of hovering, at 6 layers × 12 heads; a peer's page with the
          same content took 13 MB of HTML and 14 s at 64 tokens, 53 MB and 118 s at 128, on a comparable machine
toggles   click to new pixels, alternating with a toggle that changes one line of text on the same page
cold      server start to the first painted map, and the waiting time of a second visitor
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator
from typing import Any

from playwright.sync_api import Browser, Page

from benchmarks.chromium import chromium, server, window
from benchmarks.measure import Machine, options, show

# Resolves with the milliseconds from the click until the watched text has changed and the frame has been drawn.
CLICK = """([target, watched]) => new Promise((done, fail) => {
  const old = watched.textContent, start = performance.now();
  const look = () => {
    if (watched.textContent !== old) requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
    else if (performance.now() - start > 20000) fail("nothing changed");
    else requestAnimationFrame(look);
  };
  target.click();
  requestAnimationFrame(look);
})"""

HOVER = """(canvas) => new Promise((done) => {
  const box = canvas.getBoundingClientRect(), frames = [];
  let step = 0;
  const move = () => {
    const x = box.left + box.width * (0.3 + 0.6 * ((step * 7) % 31) / 31);
    const y = box.top + box.height * (0.3 + 0.6 * (step % 29) / 29);
    const start = performance.now();
    canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: x, clientY: y, bubbles: true }));
    requestAnimationFrame(() => setTimeout(() => {
      frames.push(performance.now() - start);
      if (++step < 60) move(); else done(frames);
    }));
  };
  move();
})"""

# Checked in each frame; the view is inside its own shadow tree.
PAINTED = """() => Array.from(document.querySelectorAll(".st-key-attention *")).some(
  (one) => one.shadowRoot?.querySelector("[data-ms]")
)"""


def main() -> None:
    arguments = options(__doc__, rounds=20)
    machine = Machine.start(arguments.threads)
    with chromium() as browser:
        tables = {
            "grid": list(grid(browser)),
            "toggles": list(toggles(browser, arguments.rounds)),
            "cold": cold(browser),
        }
    for name, rows in tables.items():
        show(name, machine, rows, [], arguments)


def grid(browser: Browser) -> Iterator[dict[str, Any]]:
    """Measure 6 layers × 12 heads at 64, 128 and 512 tokens."""
    with server("-m", "streamlit", "run", "benchmarks/apps/grid.py") as address:
        for tokens in (64, 128, 512):
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            received: list[int] = []
            page.on(
                "websocket",
                lambda socket, got=received: socket.on("framereceived", lambda frame: got.append(len(frame))),
            )
            page.goto(f"{address}/?tokens={tokens}&layers=6&heads=12")
            root = page.locator(".st-key-attention [data-ms]").first
            root.wait_for(timeout=60_000)
            page.wait_for_timeout(1500)
            packed = int(page.get_by_text(" bytes").first.inner_text().split()[0])
            hover = page.locator(".st-key-attention .detail canvas").first.evaluate(HOVER)
            yield {
                "tokens": tokens,
                "packed bytes": packed,
                "received bytes": sum(received),
                "data to painted ms": float(root.get_attribute("data-ms") or "nan"),
                "hover frame median ms": statistics.median(hover),
                "hover frame p95 ms": sorted(hover)[int(0.95 * len(hover))],
            }
            page.close()


GOAL = 1.2
"""Largest ratio to a line of text that nine toggles of ten should meet."""
TOGGLES = (
    ("mask, causal and back", [".st-key-mask button >> text=causal", ".st-key-mask button >> text=as trained"]),
    ("ablate a head", ["[class*='st-key-switch_ablate'] button"] * 2),
    ("positions off", ["[class*='st-key-switch_positions'] button"] * 2),
)


def toggles(browser: Browser, rounds: int) -> Iterator[dict[str, Any]]:
    """Alternate each toggle of the Attention screen with the line of text, `rounds` times."""
    with server("-m", "streamlit", "run", "benchmarks/apps/toggles.py") as address:
        for name, targets in TOGGLES:
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(f"{address}/?screen=attention&model=reverse&panel=change")
            page.locator(".st-key-strip .strip").wait_for(timeout=60_000)
            page.wait_for_timeout(2500)
            text, picture = [], []
            for turn in range(rounds + 2):
                text.append(click(page, ".st-key-yardstick input", ".stText"))
                picture.append(click(page, targets[turn % 2], ".st-key-strip .strip"))
            text, picture = text[2:], picture[2:]
            ratios = [b / a for a, b in zip(text, picture, strict=True)]
            repeats = [b / a for a, b in itertools.pairwise(text)]  # noise of the machine on identical work
            yield {
                "toggle": name,
                "text ms": statistics.median(text),
                "toggle ms": statistics.median(picture),
                "ratio": statistics.median(ratios),
                f"% within {GOAL} ×": 100 * statistics.mean(ratio <= GOAL for ratio in ratios),
                f"% of text within {GOAL} × the text before": 100 * statistics.mean(ratio <= GOAL for ratio in repeats),
            }
            page.close()


def click(page: Page, target: str, watched: str) -> float:
    """Return the milliseconds from a click to the new text on the screen, then pause so that turns do not overlap."""
    handles = [page.locator(selector).first.element_handle() for selector in (target, watched)]
    elapsed = page.evaluate(CLICK, handles)
    page.wait_for_timeout(400)
    return elapsed


def cold(browser: Browser) -> list[dict[str, Any]]:
    """Measure the parts of the time from starting the server to the first painted map."""
    windows = [window(browser) for _ in range(2)]
    started = time.perf_counter()
    with server("app.py") as address:
        up = time.perf_counter()
        waits = []
        for page in windows:
            before = time.perf_counter()
            page.goto(f"{address}/attention")
            page.wait_for_function(PAINTED, timeout=60_000)
            waits.append(time.perf_counter() - before)
            page.close()
    return [
        {"part": "start of the process to the server answering", "s": up - started},
        {"part": "start of the process to the first visitor's painted map", "s": up - started + waits[0]},
        {"part": "first visitor, as soon as the server answers: link to painted map", "s": waits[0]},
        {"part": "second visitor: link to painted map", "s": waits[1]},
    ]


if __name__ == "__main__":
    main()
