"""Delay of the panels of Compare: from the moment the ruler rests at another step to the last change on the page.

    python -m benchmarks.panels [--rounds 12] [--json]

Two models over 7 steps and four over 32: a model, and copies of it with ablated heads. The panels are redrawn for each
step. The peer is a Streamlit page that writes one line of text for each step of a slider; it alternates with the panels.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from playwright.sync_api import Browser, Page

from benchmarks.chromium import chromium, server, window
from benchmarks.measure import Machine, options, show

# Records when messages were sent to the server and when the page last changed, excluding the ruler itself.
WATCH = """const send = WebSocket.prototype.send;
window.sent = [];
WebSocket.prototype.send = function (...given) { window.sent.push(performance.now()); return send.apply(this, given); };
new MutationObserver((changes) => {
  const ours = changes.some(({ target }) => {
    const at = target.nodeType === 1 ? target : target.parentElement;
    return at?.closest("[data-testid=stMain]") && !at.closest(".sr, [data-testid=stSlider]");
  });
  if (ours) window.changed = performance.now();
}).observe(document, { subtree: true, childList: true, characterData: true, attributes: true });"""
RESTS_MS = 1000
"""A page that has not changed for this long is complete."""
COMPLETE = (
    f"(n) => window.sent.length > n && performance.now() - Math.max(window.sent[n], window.changed ?? 0) > {RESTS_MS}"
)
PANELS = {"attention": "where they looked", "rows": "heads", "lens": "when decided"}
HEADS = ("decoder.0.attn.0", "decoder.1.attn.0", "decoder.1.attn.1")


def main() -> None:
    arguments = options(__doc__, rounds=12)
    machine = Machine.start(arguments.threads)
    least = ("-m", "streamlit", "run", "benchmarks/apps/one_line.py")
    with chromium() as browser, server("app.py") as address, server(*least) as of_least:
        rows = list(measured(browser, address, of_least, arguments.rounds))
    show("panels of Compare", machine, rows, [], arguments)


def measured(browser: Browser, address: str, of_least: str, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each panel and number of models."""
    line = opened(browser, of_least)
    for players, n_symbols in ((2, 6), (4, 31)):
        symbols = "+".join(str(1 + (7 * place) % 19) for place in range(n_symbols))
        others = [f"&{name}=reverse-decoder~ablate:{head}" for name, head in zip("bcd", HEADS, strict=True)]
        link = f"{address}/compare?input={symbols}&a=reverse-decoder{''.join(others[: players - 1])}&mode=forced&step=0"
        for panel, words in PANELS.items():
            page = opened(browser, f"{link}&panel={panel}")
            found = [(step(page, turn), step(line, turn)) for turn in range(rounds + 2)][2:]
            page.close()
            yield {
                "panel": words,
                "players": players,
                "steps": n_symbols + 1,
                "s": statistics.median(ours for ours, _ in found),
                "slowest s": max(ours for ours, _ in found),
                "one line s": statistics.median(theirs for _, theirs in found),
                "times one line": statistics.median(ours / theirs for ours, theirs in found),
            }


def opened(browser: Browser, address: str) -> Page:
    """Open a page with a slider and wait until it has been drawn."""
    page = window(browser)
    page.add_init_script(WATCH)
    page.goto(address)
    page.get_by_role("slider").last.wait_for(timeout=60_000)
    page.wait_for_timeout(4000)
    return page


def step(page: Page, turn: int) -> float:
    """Return the seconds from sending another step to the server until the last resulting change."""
    n_sent = page.evaluate("window.sent.length")
    page.get_by_role("slider").last.press("ArrowLeft" if turn % 8 > 3 else "ArrowRight")
    page.wait_for_function(COMPLETE, arg=n_sent, timeout=60_000)
    return page.evaluate("(n) => window.changed - window.sent[n]", n_sent) / 1e3


if __name__ == "__main__":
    main()
