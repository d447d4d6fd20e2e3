"""The Compare screen in Chromium: keyboard steps, the first difference, changing a model, background counting."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from pages.compare.comparison import Comparison, ModelSettings
from tests.browser.conftest import Visiting, see

pytestmark = pytest.mark.browser
INPUT = [3, 7, 12, 9, 4, 11]
LINK = "/compare?input=" + "+".join(map(str, INPUT))
SILENCED = "decoder.1.attn.0"


def ruler(page: Page) -> Locator:
    found = page.get_by_role("slider", name="step that is shown").last
    expect(found).to_be_visible()
    return found


def at(page: Page, step: int) -> None:
    expect(ruler(page)).to_have_attribute("aria-valuenow", str(step))


def in_link(page: Page, name: str, value: str) -> None:
    page.wait_for_function("([name, value]) => new URL(location).searchParams.get(name) === value", arg=[name, value])


def test_ruler_opens_at_the_first_difference_and_the_server_follows_when_it_stops(app: str, visit: Visiting) -> None:
    settings = [ModelSettings("reverse-decoder"), ModelSettings("reverse-decoder", edits=(f"ablate:{SILENCED}",))]
    runs = Comparison(tuple(settings), tuple(INPUT), forced=False).runs()
    own, changed = ([run.labels[token] for token in run.predicted] for run in runs)
    divergence = next(step for step, (x, y) in enumerate(zip(own, changed, strict=False)) if x != y)
    visitor = visit(app, f"{LINK}&a=reverse-decoder&b=reverse-decoder~ablate:{SILENCED}&panel=rows")
    page = visitor.page
    at(page, divergence)
    shown = ruler(page).get_attribute("aria-valuetext") or ""
    last, predicted = len(own) - 1, own[divergence]
    assert shown.startswith(f"step {divergence} of {last}, the first difference: A predicts {predicted}, ")
    assert f"; B predicts {changed[divergence]}, " in shown
    expect(page.get_by_role("button", name=f"First difference: {divergence}")).to_be_visible()
    see(page, f"They first differ at step {divergence}.")
    see(page, f"The row that predicts step {divergence}")
    ruler(page).focus()
    for key, step in (("Home", 0), ("ArrowRight", 1), ("End", len(own) - 1), ("Home", 0)):
        page.keyboard.press(key)
        at(page, step)
        assert f"A predicts {own[step]}, " in (ruler(page).get_attribute("aria-valuetext") or "")
    page.keyboard.press("ArrowUp")
    at(page, 1)
    in_link(page, "step", "1")
    see(page, "The row that predicts step 1")
    expect(ruler(page)).to_be_focused()  # the rerun did not affect the ruler
    page.keyboard.press("d")
    at(page, divergence)
    page.keyboard.press("Home")
    page.keyboard.press(" ")
    expect(page.get_by_role("button", name="❚❚ Pause")).to_be_visible()
    at(page, len(own) - 1)
    expect(page.get_by_role("button", name="▶ Play")).to_be_visible()
    in_link(page, "step", str(len(own) - 1))
    page.get_by_text("Predictions", exact=True).click()
    in_link(page, "panel", "steps")
    assert visitor.problems == []


def test_a_model_is_changed_in_its_popover(app: str, visit: Visiting) -> None:
    visitor = visit(app, f"{LINK}&a=reverse-small&b=reverse-small~causal")
    page = visitor.page
    at(page, 0)
    page.get_by_role("button", name=re.compile("causal mask")).click()
    chosen = page.get_by_test_id("stPopoverBody").get_by_role("radio", name="causal")
    expect(chosen).to_be_checked()
    page.get_by_test_id("stPopoverBody").get_by_text("as trained", exact=True).first.click()
    in_link(page, "b", "reverse-small")
    expect(page.get_by_role("button", name="No difference")).to_be_visible()
    page.get_by_role("button", name="as trained").last.click()  # a popover closes when its label changes
    page.get_by_role("combobox", name="Changes").fill("token:0.5")
    page.keyboard.press("Enter")
    in_link(page, "b", "reverse-small~token:0.5")
    assert visitor.problems == []


def test_counting_runs_to_completion_in_the_background(app: str, visit: Visiting) -> None:
    visitor = visit(app, f"{LINK}&a=reverse-mirror&b=reverse-mirror~causal&panel=many&samples=5000")
    see(visitor.page, "Exact match on 5,000 new inputs")
    expect(visitor.page.get_by_role("button", name="Cancel")).to_have_count(0)
    assert visitor.problems == []
