"""A self-contained HTML file of a view: it works offline and follows the theme of the browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

import xformer

pytestmark = pytest.mark.browser
INPUT = "3 7 12 9"


@pytest.fixture
def offline(browser: Browser) -> Iterator[tuple[Page, list[str]]]:
    """A page without a network, and a list of its errors and requests."""
    page, wrong = browser.new_page(viewport={"width": 1280, "height": 720}), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("request", lambda sent: None if sent.url.startswith(("file:", "data:")) else wrong.append(sent.url))
    page.context.set_offline(True)
    yield page, wrong
    page.close()


def test_saved_view_is_exact_and_follows_the_theme(offline: tuple[Page, list[str]], tmp_path: Path) -> None:
    page, wrong = offline
    reading = xformer.read("checkpoints/reverse", INPUT)
    xformer.save_html(reading, tmp_path / "view.html", layer=2, head=1)
    page.goto((tmp_path / "view.html").as_uri())
    expect(page.locator(".av .head .name")).to_have_text("layer 3 · head 2")
    expect(page.locator("figcaption")).to_contain_text(f"reverse reads “{' '.join(reading.tokens)}”")
    page.locator(".av .grid .base").focus()
    page.keyboard.press("]")
    expect(page.locator(".av .head .name")).to_have_text("layer 3 · head 3")
    expect(page.locator(".av")).to_have_attribute("data-exact", "2.2")
    expect(page.locator(".av .tag", has_text="exact")).to_be_visible()
    page.locator(".av .stage .pane.matrix .base").first.click(position={"x": 80, "y": 80})
    weight = reading["encoder.2.attn.pattern"][0, 2, 0, 0].item()
    expect(page.locator(".av .readout .text")).to_have_text(f"query 0 '3' → key 0 '3': {weight:.4f}")
    pictures, ground = [], "getComputedStyle(document.body).backgroundColor"
    for theme, colour in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(16, 20, 28)")):
        page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        page.wait_for_function(f"{ground} === '{colour}'")
        page.wait_for_timeout(300)
        pictures.append(page.locator(".av .grid .base").evaluate("canvas => canvas.toDataURL()"))
    assert pictures[0] != pictures[1], "the canvas was not redrawn"
    assert not wrong
