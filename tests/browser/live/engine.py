"""A tab of Chromium that runs the modules of a live page, read from the disk, without a network."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Browser, Page, Route

import xformer.widgets

SOURCES = Path(xformer.widgets.__file__).parent
ADDRESS = "http://live.test"

SCRIPT = """async (given) => {
  const [models, requests] = JSON.parse(given);
  const { makeLive } = await import("/live/run.js");
  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const lives = await Promise.all(models.map((model) => makeLive(bytes(model))));
  const encoded = (data) => {
    const raw = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
    let text = "";
    for (let at = 0; at < raw.length; at += 8192) text += String.fromCharCode(...raw.subarray(at, at + 8192));
    return btoa(text);
  };
  const isKept = (name, keep) => !keep || keep.includes(name.split(".").at(-1));
  const sent = ([name, { shape, data }]) => [name, [shape, encoded(data)]];
  const tensors = (trace, keep) => Object.fromEntries([...trace].filter(([name]) => isKept(name, keep)).map(sent));
  return JSON.stringify(requests.map(([model, call, request]) => {
    const live = lives[model];
    try {
      if (call === "textOf") return live.textOf(request);
      if (call === "parse") return live.parse(request);
      if (call === "model") return live.model;
      if (call === "unembed") return tensors(new Map([["logits", live.unembed(live.trace(request).trace.get(request.of))]]));
      const made = call === "decode" ? live.decode(request, request.most) : live[call](request);
      if (call === "decode") return made.map((step) => ({ ...step, probabilities: [...step.probabilities], trace: null }));
      if (call === "trace") return { ...made, trace: tensors(made.trace, request.keep), weights: null };
      return { ...made, trace: null, weights: null };
    } catch (error) {
      return { error: error.message };
    }
  }));
}"""


class Engine:
    """The engine in a tab. Each call is a tuple (model, function, request); all calls are made at once."""

    def __init__(self, browser: Browser) -> None:
        self.page: Page = browser.new_page()
        self.page.route("**/*", self._answer)
        self.page.goto(f"{ADDRESS}/index.html")

    def _answer(self, route: Route) -> None:
        path = route.request.url.removeprefix(ADDRESS)
        if path == "/index.html":
            route.fulfill(body="<!doctype html><title>engine</title>", content_type="text/html")
        else:
            route.fulfill(path=SOURCES / path.lstrip("/"), content_type="text/javascript")

    def calls(self, models: Sequence[bytes], requests: Sequence[tuple[int, str, Any]]) -> list[Any]:
        """Return the result of each call, or `{"error": sentence}` if it is rejected."""
        packed = [base64.b64encode(model).decode() for model in models]
        return json.loads(self.page.evaluate(SCRIPT, json.dumps([packed, requests])))  # text is faster than objects


def arrays(trace: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the activations of a trace from the browser."""
    return {name: np.frombuffer(base64.b64decode(data), "<f4").reshape(shape) for name, (shape, data) in trace.items()}


@contextmanager
def pages_from_disk(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Yield a function that opens an HTML file without a network, and assert at the end that no page had an error."""
    contexts, problems = [], list[str]()

    def refuse(route: Route) -> None:
        if route.request.url.startswith("file:"):
            route.continue_()
        else:
            problems.append(f"request of {route.request.url}")
            route.abort()

    def open_file(
        file: Path, state: str = "", *, width: int = 1280, height: int = 844, touch: bool = False, theme: Any = "light"
    ) -> Page:
        look: dict[str, Any] = {"has_touch": touch, "is_mobile": touch, "color_scheme": theme}
        context = browser.new_context(viewport={"width": width, "height": height}, **look)
        contexts.append(context)
        page = context.new_page()
        page.route("**/*", refuse)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(f"{file.as_uri()}#{state}")
        page.wait_for_function("window.xformerLive")
        return page

    yield open_file
    for context in contexts:
        context.close()
    assert problems == []
