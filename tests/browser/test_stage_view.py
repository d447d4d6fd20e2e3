"""The stage view in Chromium: the picture alone, enlarged to the window of a projector, and still in use."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Visiting, quiet, see, until

pytestmark = pytest.mark.browser
LINK = "/attention?model=reverse&input=4+9+2+11&mask=as+trained&head=3.2"
NAME = "xformer_stage_view"
LEAST = 24.0
"""The smallest type for an audience, in pixels of a window 1920 wide."""


def test_key_f_shows_the_picture_alone_with_large_type(app: str, visit: Visiting) -> None:
    visitor = visit(app, LINK)
    page = visitor.page
    page.set_viewport_size({"width": 1920, "height": 1080})
    see(page, "layer 3 · head 2")
    quiet(page)
    page.locator(".st-key-input input").press("f")  # typing an f is no command
    assert page.frame(NAME) is None
    page.locator(".st-key-input input").fill("4 9 2 11")
    page.locator("h1").click()
    page.keyboard.press("f")
    page.wait_for_selector(f"iframe[name={NAME}]")
    frame = page.frame_locator(f"iframe[name={NAME}]")
    name = frame.locator(".st-key-attention .head .name")
    expect(name).to_have_text("layer 3 · head 2")
    for hidden in ("[data-testid=stSidebar]", "[data-testid=stHeader]", "h1"):
        expect(frame.locator(hidden).first).to_be_hidden()
    box = page.locator(f"iframe[name={NAME}]").bounding_box()
    assert box == {"x": 0, "y": 0, "width": 1920, "height": 1080}
    size = frame.locator(".st-key-attention .readout").first.evaluate(
        "node => parseFloat(getComputedStyle(node).fontSize)"
    )
    assert size * 1920 / frame.locator("html").evaluate("() => innerWidth") >= LEAST
    frame.locator(".st-key-attention .grid canvas").first.press("ArrowRight")
    expect(name).to_have_text("layer 3 · head 3")
    until(lambda: "head=3.3" in page.frame(NAME).url, page)  # type: ignore[union-attr]
    page.keyboard.press("Escape")
    expect(page.locator(f"iframe[name={NAME}]")).to_have_count(0)
    expect(page.locator(".st-key-attention .head .name")).to_have_text("layer 3 · head 3")  # what was shown last
    assert visitor.problems == []
    page.set_viewport_size({"width": 1280, "height": 720})


def test_the_present_menu_opens_the_stage_view_which_survives_a_reload(app: str, visit: Visiting) -> None:
    visitor = visit(app, LINK)
    page = visitor.page
    quiet(page)
    page.get_by_role("button", name="Present").click()
    page.get_by_role("button", name="Stage view").click()
    expect(page.locator(f"iframe[name={NAME}]")).to_be_visible()
    page.reload()
    frame = page.frame_locator(f"iframe[name={NAME}]")
    expect(frame.locator(".st-key-attention .head .name")).to_have_text("layer 3 · head 2")
    frame.locator("body").press("f")
    expect(page.locator(f"iframe[name={NAME}]")).to_have_count(0)
    assert visitor.problems == []


def test_a_lesson_opened_in_the_stage_view_has_its_keys(app: str, visit: Visiting) -> None:
    visitor = visit(app, "/learn")
    page, frame = visitor.page, visitor.page.frame_locator(f"iframe[name={NAME}]")
    expect(page.locator(".lessons .card")).to_have_count(8)
    quiet(page)
    page.keyboard.press("f")
    frame.locator(".lessons .card").first.click()
    frame.locator(".live label.field input").press("f")  # typing an f is no command
    frame.locator(".lesson-title").click()
    page.keyboard.press("f")
    page.wait_for_url("**/lesson/attention#*")  # what was shown last
    expect(page.locator(f"iframe[name={NAME}]")).to_have_count(0)
    assert visitor.problems == []


def test_a_large_window_enlarges_pictures_which_stay_in_use(app: str, visit: Visiting) -> None:
    page = visit(app, "/compare?a=reverse&b=reverse~ablate:encoder.2.attn.1").page
    page.set_viewport_size({"width": 1920, "height": 1080})
    sheet = page.locator(".sr .sheet").bounding_box()
    assert sheet is not None
    assert sheet["height"] > 0.4 * 1080
    page.mouse.click(sheet["x"] + 0.9 * sheet["width"], sheet["y"] + 0.9 * sheet["height"])
    expect(page.locator(".sr .slider")).to_have_attribute("aria-valuenow", "5")  # the last of six
    page.goto(f"{app}/residual?model=reverse")
    cell = page.locator("svg [aria-label^='position · input token: 5']").last
    cell.hover()
    expect(page.locator("#vg-tooltip-element")).to_contain_text("5 · ")
    chart = page.locator("[data-testid=stVegaLiteChart] svg").first.bounding_box()
    assert chart is not None
    assert chart["height"] > 0.5 * 1080
    page.set_viewport_size({"width": 1280, "height": 720})
