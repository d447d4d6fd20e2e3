"""Loading time of each screen on a warm server, from the click to the last change of the page, measured in Chromium.

    python -m benchmarks.screens [--rounds 5] [--json]

by the sidebar   from another screen, which is the most frequent case
again            by its link, in a browser that has cached Streamlit's scripts on an earlier visit
first            by its link, with an empty cache: 2.7 to 4.6 MB to fetch and compile

An empty Streamlit page is the peer of the last two and alternates with them.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import Any

from playwright.sync_api import Browser, Page

from benchmarks.chromium import chromium, server, window
from benchmarks.measure import Machine, options, show
from pages.state.screens import screens

# Records the time of the latest change of the page, once it has a title.
LAST_CHANGE = """new MutationObserver(() => {
  if (document.querySelector("[data-testid=stMain] h1")) window.lastChange = performance.now();
}).observe(document, { subtree: true, childList: true, characterData: true });"""
RESTS_MS = 1500
"""A page that has not changed for this long is complete."""
COMPLETE = f"(since) => performance.now() - Math.max(since, window.lastChange ?? Infinity) > {RESTS_MS}"
CLICK = """(href) => {
  const clicked = performance.now();
  document.querySelector(`[data-testid=stTopNavLink][href$="${href}"]`).click();
  return clicked;
}"""
EMPTY = "a page with nothing on it"
SLOWEST = "the slowest that shows a model"


def main() -> None:
    arguments = options(__doc__, rounds=5)
    machine = Machine.start(arguments.threads)
    with chromium() as browser:
        rows = measured(browser, arguments.rounds)
    show("screens", machine, rows, [], arguments)


def measured(browser: Browser, rounds: int) -> list[dict[str, Any]]:
    """Return a row of medians for each screen; a warm-up round precedes the measured ones."""
    times: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    empty = ("-m", "streamlit", "run", "benchmarks/apps/empty.py")
    with server("app.py") as address, server(*empty) as empty_address:
        first = next(iter(screens()))
        links = {EMPTY: empty_address} | {name: f"{address}/{name if name != first else ''}" for name in screens()}
        for turn in range(-1, rounds):
            for name, link in links.items():
                page = window(browser)
                page.add_init_script(LAST_CHANGE)
                for visit in ("first", "again"):
                    page.goto(link)
                    seconds = last_change(page)
                    times[name][visit] += [seconds] if turn >= 0 else []
                    page.goto("about:blank")
                page.close()
            for name, seconds in by_the_sidebar(browser, address).items():
                times[name]["by the sidebar"] += [seconds] if turn >= 0 else []
    medians = {name: {way: statistics.median(found) for way, found in ways.items()} for name, ways in times.items()}
    of_a_model = [medians[name] for name, screen in screens().items() if screen.shows_a_model]
    medians[SLOWEST] = {way: max(row[way] for row in of_a_model) for way in ("by the sidebar", "again", "first")}
    return [
        {
            "screen": name,
            "by the sidebar s": ways.get("by the sidebar"),
            "again s": ways["again"],
            "first s": ways["first"],
            "times the empty page": ways["first"] / medians[EMPTY]["first"],
        }
        for name, ways in medians.items()
    ]


def by_the_sidebar(browser: Browser, address: str) -> dict[str, float]:
    """Return the seconds to open each screen in turn, for a new visitor."""
    page = window(browser)
    page.add_init_script(LAST_CHANGE)
    first, *others = screens()
    page.goto(address)
    last_change(page)
    found = {}
    for name in [*others, first]:
        clicked = page.evaluate(CLICK, f"/{'' if name == first else name}")
        found[name] = last_change(page, clicked)
    page.close()
    return found


def last_change(page: Page, since: float = 0.0) -> float:
    """Return the seconds from `since` on the page's clock (by default its start) to the last change of the complete page."""
    page.wait_for_function(COMPLETE, arg=since, timeout=60_000)
    return (page.evaluate("window.lastChange") - since) / 1e3


if __name__ == "__main__":
    main()
