"""Attention views for notebooks: ours and BertViz's views of the same arrays, as pages in Chromium.

    pip install --no-deps --target PEER bertviz
    npm install --prefix PEER d3@5.7.0 jquery@2.1.4 requirejs@2.3.6
    python -m benchmarks.notebook --peer PEER [--layers 12 --heads 12 --tokens 128] [--rounds 3] [--limit 300] [--json]

made      seconds to create the HTML
bytes     size of the page in UTF-8; BertViz's pages load another 0.4 MB of scripts, served here from the folder PEER
painted   seconds from opening the page to the frame after everything is drawn

BertViz's head view draws one layer and its model view all layers; both pages hold all weights as decimal numbers. Ours
draws all heads with one enlarged, and stores one compressed byte per weight, plus exact weights of the enlarged head or, if
they fit, of all heads. cdnjs has jQuery 2.0.0; npm has only 2.1.4, which behaves the same here.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from playwright.sync_api import Browser, Error, Route

import xformer
from benchmarks.chromium import chromium
from benchmarks.measure import Machine, options, show

HOW_TO_GET_IT = (
    "BertViz is not installed, so only ours was measured: pip install --no-deps --target PEER bertviz && "
    "npm install --prefix PEER d3@5.7.0 jquery@2.1.4 requirejs@2.3.6, then --peer PEER."
)
SCRIPTS = {
    "require.min.js": "requirejs/require.js",
    "d3.min.js": "d3/dist/d3.min.js",
    "jquery.min.js": "jquery/dist/jquery.min.js",
}
"""Scripts that BertViz's pages load from cdnjs.cloudflare.com, and their paths in node_modules."""
OURS = "[data-ms]"
PAINTED = "() => new Promise((done) => requestAnimationFrame(() => setTimeout(() => done(performance.now() / 1000))))"
ENOUGH = 60.0
"""A view whose turns took longer than this in total, in seconds, is not measured again."""
View = tuple[str, str, Callable[[], str]]
"""The name, a selector for an element that exists once everything is drawn, and a function that returns the page."""


def main() -> None:
    sizes = {name: {"type": int, "default": n} for name, n in (("layers", 12), ("heads", 12), ("tokens", 128))}
    more: dict[str, dict[str, Any]] = {"peer": {"type": Path}, "limit": {"type": float, "default": 300.0}}
    arguments = options(__doc__, rounds=3, **sizes, **more)
    machine = Machine.start(arguments.threads)
    draw, n = torch.Generator().manual_seed(0), arguments.tokens
    scores = 2 * torch.randn(arguments.layers, 1, arguments.heads, n, n, generator=draw)
    attention, tokens = list(scores.softmax(dim=-1)), [f"token{position}" for position in range(n)]
    views: list[View] = [("xformer.attention_view", OURS, lambda: xformer.attention_view(attention, tokens).html())]
    views += bertviz_views(arguments.peer, attention, tokens)
    with chromium() as browser:
        trials = [Trial(*view) for view in views]
        for _ in range(arguments.rounds):
            for trial in trials:
                trial.take(browser, arguments.peer, arguments.limit)
    rows = [trial.row() for trial in trials]
    for row in rows:
        row |= {
            f"{name} ×": row[name] / rows[0][name] if row[name] else None for name in ("made s", "bytes", "painted s")
        }
    notes = [f"{trial.name} was not painted: {trial.problem}" for trial in trials if trial.problem]
    notes += [f"{arguments.layers} layers × {arguments.heads} heads × {n} tokens; × is the ratio to ours."]
    notes += [] if len(views) > 1 else [HOW_TO_GET_IT]
    show("notebook", machine, rows, notes, arguments)


def bertviz_views(peer: Path | None, attention: list[torch.Tensor], tokens: list[str]) -> list[View]:
    """Return both views of BertViz if it is in that folder or installed; otherwise none."""
    sys.path += [] if peer is None else [str(peer)]
    try:
        from bertviz import head_view, model_view  # pyright: ignore[reportMissingImports]
    except ImportError:
        return []

    def page(view: Callable[..., Any]) -> str:
        return view(attention, list(tokens), html_action="return").data

    found = (("bertviz.head_view", head_view), ("bertviz.model_view", model_view))
    return [(name, "#vis svg line", lambda view=view: page(view)) for name, view in found]


@dataclass
class Trial:
    """The measurements of one view."""

    name: str
    there: str
    make: Callable[[], str]
    made: list[float] = field(default_factory=list)
    painted: list[float] = field(default_factory=list)
    n_bytes: int = 0
    problem: str = ""

    def take(self, browser: Browser, peer: Path | None, limit: float) -> None:
        """Take a turn, unless the previous ones failed or took too long."""
        if self.problem or sum(self.painted) > ENOUGH:
            return
        if not self.made:
            self.make()  # warm-up: imports happen only once
        start = time.perf_counter()
        text = self.make()
        self.made.append(time.perf_counter() - start)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "page.html"
            self.n_bytes = file.write_bytes(text.encode())
            try:
                self.painted.append(paint(browser, file, self.there, peer, limit))
            except Error as error:
                self.problem = str(error).splitlines()[0]

    def row(self) -> dict[str, Any]:
        """Return the medians; `painted s` is None if the view was not drawn in time."""
        seconds = statistics.median(self.painted) if self.painted else None
        row = {"view": self.name, "made s": statistics.median(self.made), "bytes": self.n_bytes, "painted s": seconds}
        return row | {"turns": len(self.painted)}


def paint(browser: Browser, file: Path, there: str, peer: Path | None, limit: float) -> float:
    """Return the seconds from opening a page to the frame after everything is drawn. Raises `Error` after `limit` seconds."""

    def serve(route: Route) -> None:
        script = (
            None if peer is None else peer / "node_modules" / SCRIPTS.get(route.request.url.rpartition("/")[2], "-")
        )
        if script is not None and script.is_file():
            route.fulfill(path=script, content_type="text/javascript")
        else:
            route.abort()

    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.route("https://cdnjs.cloudflare.com/**", serve)
    try:
        page.goto(file.as_uri(), wait_until="commit")
        page.wait_for_selector(there, state="attached", timeout=1000 * limit)
        return page.evaluate(PAINTED)
    finally:
        page.close()


if __name__ == "__main__":
    main()
