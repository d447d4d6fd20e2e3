"""A self-contained HTML file of a view: it works offline and follows the theme of the browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, Page, expect

import xformer
from tests.training.tiny import random_model
from xformer.widgets.page import scene_page
from xformer.widgets.scene_data import scene_data

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


HEADS = """(canvas) => {
    const box = canvas.getBoundingClientRect(), tip = canvas.getRootNode().querySelector(".tip"), found = new Set();
    for (let down = 3; down < box.height; down += 5)
        for (let along = 3; along < box.width; along += 5) {
            canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + along, clientY: box.top + down }));
            const head = !tip.hidden && tip.textContent.match(/^Layer \\d+ · head \\d+/);
            if (head) found.add(head[0]);
        }
    return [...found];
}"""
"""The heads of the scene under a fine grid of points."""


@pytest.mark.parametrize("width", [320, 1280])
def test_no_head_of_a_deep_model_is_drawn_over_another(
    offline: tuple[Page, list[str]], tmp_path: Path, width: int
) -> None:
    page, _ = offline
    page.set_viewport_size({"width": width, "height": 720})
    reading = xformer.read(random_model("decoder", n_layers=30, n_heads=9), torch.tensor([[3, 1, 4]]))
    (tmp_path / "scene.html").write_text(scene_page(scene_data(reading)), "utf-8")
    page.goto((tmp_path / "scene.html").as_uri())
    page.locator(".scene .time").evaluate("node => { node.value = 1000; node.dispatchEvent(new Event('input')); }")
    found = page.locator(".scene canvas").evaluate(HEADS)
    assert set(found) == {f"Layer {layer} · head {head}" for layer in range(1, 31) for head in range(1, 10)}
