"""A trained external model in Chromium, if it was fetched: opened and changed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Visiting, see
from tests.browser.serving import launch, stop
from tests.real_models import real_model

pytestmark = pytest.mark.browser
NAME = "SmolLM2-135M-Instruct"
ONCE = " sausage louder bombing incorrect Elections Oswald tourist velvet harbour pencil"


@pytest.fixture(scope="module")
def served(browser: Browser) -> Iterator[str]:
    folder: Path = real_model(NAME)
    server, address = launch(XFORMER_MODELS=str(folder.parent), XFORMER_MODEL=str(folder))
    yield address
    stop(server)


def test_home_shows_the_recorded_run_until_the_model_is_open(served: str, visit: Visiting) -> None:
    visitor = visit(served, "/")
    page = visitor.page
    see(page, "Recorded run.")
    says = page.locator(".st-key-scene .says")
    expect(says).to_contain_text("Likeliest next token: ·Mary")
    see(page, "the model continues it token by token")
    assert "Likeliest next token: ·Mary" in says.inner_text()  # the animation has not started again
    page.get_by_role("button", name="Add a token").click()
    expect(page.locator(".st-key-input input")).to_have_value(re.compile(r"^When Mary and John .* drink to \w+"))
    page.get_by_text("Reversing numbers").click()
    see(page, "All tokens right")
    assert visitor.problems == []


def test_ablating_the_induction_head_raises_the_loss_on_a_repeat(served: str, visit: Visiting) -> None:
    visitor = visit(served, f"/attention?model=hf:{NAME}&input={(ONCE + ONCE).replace(' ', '+')}&head=19.7&scale=rest")
    page = visitor.page
    grid = page.locator(".st-key-attention .grid canvas").first
    expect(grid).to_have_attribute("aria-label", re.compile(r"^All 270 heads"))
    expect(page.locator(".st-key-attention .head .name")).to_have_text("layer 19 · head 7")
    see(page, "Verified against the original model")
    expect(page.locator(".st-key-attention .bar")).to_contain_text("largest without the first token")
    see(page, "Induction:")
    before = page.locator(".st-key-verdict").inner_text()
    page.get_by_role("button", name="Ablate 19.7").first.click()
    verdict = page.locator(".st-key-verdict", has_text="instead of")
    expect(verdict).to_be_visible()
    expect(page.locator(".st-key-attention .tag.silenced")).to_be_visible()
    [(now, was)] = re.findall(r"([\d.]+) bits instead of ([\d.]+)", verdict.inner_text())
    assert f"{was} bits" in before
    now, was = float(now), float(was)
    assert now > was + 0.3
    assert visitor.problems == []
