"""Watching a model learn, in a real Chromium: one press, the picture forms, pause, step, resume, stop, reload, scrub."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import Visit, see

pytestmark = pytest.mark.browser
Visiting = Callable[..., Visit]


def button(page: Page, key: str) -> Locator:
    return page.locator(f".st-key-{key}").get_by_role("button").first


def state(page: Page) -> Locator:
    return page.get_by_test_id("stProgress")


def shown_step(page: Page) -> int:
    found = re.match(r"step ([\d,]+) of", page.locator(".tp .step").inner_text())
    assert found is not None
    return int(found[1].replace(",", ""))


def picture(page: Page) -> str:
    """What the enlarged head looks like."""
    return page.locator(".tp .large").evaluate("(canvas) => canvas.toDataURL()")


def start(visitor: Visit, preset: str) -> Page:
    page = visitor.page
    button(page, f"start_{preset}").click()
    expect(page.locator(".tp .step")).to_be_visible()
    return page


@pytest.fixture(scope="module")
def trained(app: str) -> dict[str, str]:
    """The link of a run that one press started and that is finished; trained by whichever test comes first."""
    return {}


@pytest.fixture
def finished(app: str, visit: Visiting, trained: dict[str, str]) -> Visit:
    """A visitor who has started a run and seen its timeline grow to its end, or has the link of that run."""
    visitor = visit(app, trained.get("link", "/train?run=new"))
    if not trained:
        start(visitor, "reverse-mirror")
    expect(state(visitor.page)).to_contain_text("Finished after")
    expect(visitor.page.locator(".tp .step")).to_have_text("step 300 of 300")
    trained["link"] = visitor.page.url.removeprefix(app)
    return visitor


def test_one_press_and_the_anti_diagonal_appears(finished: Visit) -> None:
    page = finished.page
    expect(page.locator(".tp .telling")).to_contain_text("best of all heads")
    score = page.locator(".tp .score").inner_text()
    assert float(score.rsplit(" ", 1)[1]) > 0.9, score
    expect(page.locator(".tp .chip.wrong")).to_have_count(0)
    expect(page.locator(".st-key-headline")).to_contain_text("anti-diagonal appears at step")
    assert finished.problems == []


def test_a_film_is_played_and_scrubbed_without_the_server_and_its_link_opens_the_step(
    app: str, visit: Visiting, finished: Visit
) -> None:
    page = finished.page
    last = picture(page)
    ruler = page.locator(".tp .ruler")
    ruler.focus()
    page.keyboard.press("Home")
    expect(page.locator(".tp .step")).to_have_text("step 0 of 300")
    assert picture(page) != last
    page.wait_for_function("() => new URL(location).searchParams.get('step') === '0'")
    page.keyboard.press("ArrowRight")
    first_step = shown_step(page)
    assert first_step > 0
    link = re.compile(rf"step={first_step}$")
    expect(page).to_have_url(link)
    button(page, "run_more").click()
    see(page, f"Fork from step {first_step}")
    page.keyboard.press("Escape")
    shared = page.url
    page.locator(".tp .pace").click(click_count=2)
    expect(page.locator(".tp .pace")).to_have_text("4×")
    page.locator(".tp .play").click()
    expect(page.locator(".tp .play")).to_have_text("❚❚ Pause")
    expect(page.locator(".tp .step")).to_have_text("step 300 of 300")
    assert picture(page) == last
    finished.leave()
    other = visit(app, shared.removeprefix(app))
    expect(other.page.locator(".tp .step")).to_have_text(f"step {first_step} of 300")
    assert finished.problems == other.problems == []


def test_pause_step_resume_stop_reload(app: str, visit: Visiting) -> None:
    visitor = visit(app, "/train?run=new")
    page = start(visitor, "reverse-seq2seq")
    page.set_viewport_size(
        {"width": 1280, "height": 720}
    )  # so low that the row stands beside the header: it is not under it
    button(page, "run_pause").click(position={"x": 20, "y": 4})
    expect(state(page)).to_contain_text("Paused at step")
    at = int(re.search(r"step ([\d,]+) of", state(page).inner_text())[1].replace(",", ""))  # type: ignore[index]
    button(page, "run_step").click()
    expect(state(page)).to_contain_text(f"Paused at step {at + 1:,} of")
    expect(page.locator(".tp .step")).to_have_text(f"step {at + 1:,} of 1,200")
    box = page.locator(".st-key-probe_row input")
    box.fill("5 3 9 1")
    box.press("Enter")
    expect(page.locator(".tp .lane").first.locator(".word")).to_have_text(["5", "3", "9", "1", "end"])
    page.reload()
    expect(state(page)).to_contain_text(f"Paused at step {at + 1:,} of")
    button(page, "run_resume").click()
    expect(state(page)).to_contain_text("Training on the CPU")
    expect(button(page, "run_pause")).to_be_enabled()
    button(page, "run_stop").click()
    expect(state(page)).to_contain_text("Stopped at step")
    expect(button(page, "run_resume")).to_be_visible()
    assert visitor.problems == []


def test_the_player_fits_a_frame(app: str, visit: Visiting, finished: Visit) -> None:
    link = finished.page.url
    finished.leave()
    framed = visit(app, f"{link.removeprefix(app)}&embed=true").page
    expect(framed.locator(".tp .step")).to_be_visible()
    for wide, tall in ((960, 540), (1280, 720)):  # both sides change, as those of a slide do
        framed.set_viewport_size({"width": wide, "height": tall})
        framed.wait_for_function(
            "tall => { const main = document.querySelector('[data-testid=stMain]'); "
            "return main.clientHeight === tall && main.scrollHeight <= tall; }",
            arg=tall,
        )
