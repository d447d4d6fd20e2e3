"""Live pages in Chromium: their size, the time to the first picture, and the time of a change.

    pip install --no-deps --target PEER bertviz
    python -m benchmarks.live [--peer PEER] [--rounds 5] [--json]

bytes     size of each shipped model's page, in which the model runs, next to BertViz's page of the same attention
first     time from opening the page to the frame after the first picture
toggle    time from a change of the mask to the frame after the changed picture: both runs, all heads, and the difference
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser

import xformer
from benchmarks.chromium import chromium
from benchmarks.measure import Machine, options, show
from benchmarks.notebook import bertviz_views
from xformer.adapters.own_models import TaskModel
from xformer.live.export import live_page

MODELS = sorted(path.parent.name for path in Path("checkpoints").glob("*/model.safetensors"))
FIRST = """() => new Promise((done) => {
  const look = () => {
    const shown = document.querySelector("#live .av .grid canvas")?.width && document.getElementById("live").dataset.ms;
    if (shown) requestAnimationFrame(() => setTimeout(() => done(performance.now())));
    else requestAnimationFrame(look);
  };
  look();
})"""
TOGGLE = """(mask) => new Promise((done) => {
  const start = performance.now();
  window.xformerLive.page.show({ mask });
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
})"""


def main() -> None:
    arguments = options(__doc__, rounds=5, peer={"type": Path})
    machine = Machine.start(arguments.threads)
    rows = []
    with chromium() as browser, tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            file = Path(folder) / f"{name}.html"
            size = file.write_bytes(live_page(f"checkpoints/{name}").encode())
            turns = [taken(browser, file) for _ in range(arguments.rounds)]
            row: dict[str, Any] = {"model": name, "bytes": size}
            row |= {what: statistics.median(turn[what] for turn in turns) for what in ("first ms", "toggle ms")}
            rows.append(row | peer_bytes(name, arguments.peer))
    show("live pages", machine, rows, ["Medians. BertViz's pages load another 0.4 MB of scripts."], arguments)


def taken(browser: Browser, file: Path) -> dict[str, float]:
    """Return the times of one visit in milliseconds."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    try:
        page.goto(file.as_uri(), wait_until="commit")
        first = page.evaluate(FIRST)
        toggles = [page.evaluate(TOGGLE, mask) for mask in 3 * ("causal", "full", "trained")]
        return {"first ms": first, "toggle ms": statistics.median(toggles)}
    finally:
        page.close()


def peer_bytes(name: str, peer: Path | None) -> dict[str, Any]:
    """Return the size of BertViz's model view of the page's default input; None without BertViz, or for an encoder-decoder."""
    checkpoint = xformer.load(f"checkpoints/{name}")
    assert checkpoint.task is not None
    reading = xformer.read(checkpoint, TaskModel(checkpoint.model, checkpoint.task).input.default)
    patterns = [pattern for site, pattern in zip(reading.layer_paths, reading.trace.patterns().values(), strict=True)]
    views = [] if reading.is_encoder_decoder else bertviz_views(peer, patterns, reading.tokens)
    return {"BertViz bytes": len(views[1][2]().encode()) if views else None}


if __name__ == "__main__":
    main()
