"""The Train screen in Chromium: start a run, scrub and embed its timeline; pause, step, resume and stop."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import Visiting, see

pytestmark = pytest.mark.browser


def button(page: Page, key: str) -> Locator:
    return page.locator(f".st-key-{key}").get_by_role("button").first


def state(page: Page) -> Locator:
    return page.get_by_test_id("stProgress")


def picture(page: Page) -> str:
    """Return the enlarged head as a data URL."""
    return page.locator(".tp .large").evaluate("(canvas) => canvas.toDataURL()")


def shows(page: Page, step: str) -> None:
    expect(page.locator(".tp .step")).to_have_text(re.compile(f"^step {step}$"))


def test_one_click_trains_a_model_whose_timeline_is_scrubbed_and_embedded(app: str, visit: Visiting) -> None:
    visitor = visit(app, "/train?run=new")
    page = visitor.page
    button(page, "start_reverse-mirror").click()
    expect(state(page)).to_contain_text("Finished after")
    shows(page, "300 of 300")
    expect(page.locator(".tp .telling")).to_contain_text("best of all heads")
    score = page.locator(".tp .score").inner_text()
    assert float(score.rsplit(" ", 1)[1]) > 0.9, score
    expect(page.locator(".tp .chip.wrong")).to_have_count(0)
    expect(page.locator(".st-key-headline")).to_contain_text("anti-diagonal appears at step")

    last = picture(page)
    page.locator(".tp .ruler").focus()
    page.keyboard.press("Home")
    shows(page, "0 of 300")
    assert picture(page) != last
    page.wait_for_function("() => new URL(location).searchParams.get('step') === '0'")
    page.keyboard.press("ArrowRight")
    shows(page, "10 of 300")
    expect(page).to_have_url(re.compile(r"step=10$"))
    button(page, "run_more").click()
    see(page, "Fork from step 10")
    page.keyboard.press("Escape")
    shared = page.url
    page.locator(".tp .pace").click(click_count=2)
    expect(page.locator(".tp .pace")).to_have_text("4×")
    page.locator(".tp .play").click()
    expect(page.locator(".tp .play")).to_have_text("❚❚ Pause")
    shows(page, "300 of 300")
    assert picture(page) == last

    other = visit(app, f"{shared.removeprefix(app)}&embed=true")
    shows(other.page, "10 of 300")
    for wide, tall in ((960, 540), (1280, 720)):  # common slide sizes
        other.page.set_viewport_size({"width": wide, "height": tall})
        other.page.wait_for_function(
            "tall => { const main = document.querySelector('[data-testid=stMain]'); "
            "return main.clientHeight === tall && main.scrollHeight <= tall; }",
            arg=tall,
        )
    assert visitor.problems == other.problems == []


def test_pause_step_resume_stop(app: str, visit: Visiting) -> None:
    visitor = visit(app, "/train?run=new")
    page = visitor.page
    button(page, "start_reverse-seq2seq").click()
    shows(page, ".*")
    # A window so low that the row is next to the header, which must not cover it.
    page.set_viewport_size({"width": 1280, "height": 720})
    button(page, "run_pause").click(position={"x": 20, "y": 4})
    expect(state(page)).to_contain_text("Paused at step")
    at = int(re.search(r"step ([\d,]+) of", state(page).inner_text())[1].replace(",", ""))  # type: ignore[index]
    button(page, "run_step").click()
    expect(state(page)).to_contain_text(f"Paused at step {at + 1:,} of")
    shows(page, f"{at + 1:,} of 1,200")
    box = page.locator(".st-key-probe_row input")
    box.fill("5 3 9 1")
    box.press("Enter")
    expect(page.locator(".tp .lane").first.locator(".word")).to_have_text(["5", "3", "9", "1", "end"])
    button(page, "run_resume").click()
    expect(state(page)).to_contain_text("Training on the CPU")
    expect(button(page, "run_pause")).to_be_enabled()
    button(page, "run_stop").click()
    expect(state(page)).to_contain_text("Stopped at step")
    expect(button(page, "run_resume")).to_be_visible()
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_function(
        "() => document.querySelector('.st-key-share').getBoundingClientRect().bottom "
        "<= document.querySelector('.st-key-run_name').getBoundingClientRect().top"
    )
    assert visitor.problems == []
