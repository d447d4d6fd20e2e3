"""Home in Chromium: the wait for its scene, and the longest frames while it plays and while a head is entered and left.

    python -m benchmarks.scene [--rounds 3] [--json]

Measured with the model of reversal, and with the language model if `make models` has fetched it. A frame is the time between
two animation frames of the page, so it contains Streamlit's own work.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from playwright.sync_api import Browser, Page, expect

from benchmarks.chromium import RESTED, chromium, server, window
from benchmarks.measure import Machine, options, show
from xformer.model_files.models_here import LANGUAGE_MODEL, PREFIX, catalogue

SCENE = ".st-key-scene .scene"
PLAYED, ZOOMED = 6000, 2500
"""Milliseconds until the scene has played, and until a zoom is over."""
WATCH = """() => {
  const frames = [];
  window.watched = { frames, on: true };
  let last = performance.now();
  const tick = () => {
    const now = performance.now();
    frames.push(now - last);
    last = now;
    if (watched.on) requestAnimationFrame(tick);
  };
  requestAnimationFrame(tick);
}"""


def main() -> None:
    arguments = options(__doc__, rounds=3)
    machine = Machine.start(arguments.threads)
    languages = [LANGUAGE_MODEL] if f"{PREFIX}{LANGUAGE_MODEL}" in catalogue().entries else []
    with chromium() as browser, server("-m", "streamlit", "run", "app.py") as address:
        rows = [measured(browser, address, model, arguments.rounds) for model in ("reverse", *languages)]
    show("scene", machine, rows, [], arguments)


def measured(browser: Browser, address: str, model: str, rounds: int) -> dict[str, Any]:
    """Return the seconds to the scene, and the longest frame of each part in milliseconds, as medians over the rounds."""
    link = f"{address}/" if model == LANGUAGE_MODEL else f"{address}/?model={model}"
    waits, turns = [], []
    for _ in range(rounds + 1):  # the first one opens the model
        page = window(browser)
        before = time.perf_counter()
        page.goto(link)
        page.locator(SCENE).wait_for(timeout=120_000)
        waits.append(time.perf_counter() - before)
        again = page.locator(".st-key-scene").get_by_role("button", name="Again")
        expect(page.get_by_text("recorded; loading")).to_have_count(0, timeout=120_000)
        again.wait_for(timeout=120_000)
        page.wait_for_timeout(RESTED)
        playing = longest(page, again.click, PLAYED)
        page.locator(f"{SCENE} canvas").focus()
        page.keyboard.press("ArrowDown")
        page.wait_for_timeout(RESTED)
        entering = longest(page, partial(page.keyboard.press, "Enter"), ZOOMED)
        page.locator(".st-key-zoom_out").wait_for()
        leaving = longest(page, partial(page.keyboard.press, "Escape"), ZOOMED)
        page.locator(SCENE).wait_for()
        turns.append({"playing ms": playing, "entering a head ms": entering, "leaving it ms": leaving})
        page.close()
    medians = {part: statistics.median(turn[part] for turn in turns[1:]) for part in turns[0]}
    return {"model": model, "link to scene s": statistics.median(waits[1:]), **medians}


def longest(page: Page, act: Callable[[], object], milliseconds: int) -> float:
    """Return the longest frame, in milliseconds, from an act until some time after it."""
    page.evaluate(WATCH)
    act()
    page.wait_for_timeout(milliseconds)
    frames = page.evaluate("() => { watched.on = false; return watched.frames; }")
    return max(frames)


if __name__ == "__main__":
    main()
