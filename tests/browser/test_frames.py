"""A picture in slides: a local page with the iframe that the app copies."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import FrameLocator, Page, expect

from tests.browser.conftest import PATIENCE, Visiting, click_in_scene

pytestmark = pytest.mark.browser
LINK = "/attention?model=reverse&input=3+7+12+9&mask=causal&head=3.2"


SCROLLS = "main => main.scrollHeight > main.clientHeight"


def fits(slide: Page, frame: FrameLocator) -> None:
    """Assert that the frame does not scroll once everything is drawn."""
    main = frame.get_by_test_id("stMain")
    for _ in range(40):
        if not main.evaluate(SCROLLS):
            return
        slide.wait_for_timeout(100)
    heights = main.evaluate("main => [main.scrollHeight, main.clientHeight]")
    pytest.fail(f"heights of the content and of the frame: {heights}")


def test_copied_iframe_shows_only_the_picture(app: str, visit: Visiting, tmp_path: Path) -> None:
    page = visit(app, LINK).page
    page.wait_for_function("location.search.includes('panel=')")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Share").click()
    page.get_by_role("button", name="Copy as iframe").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("The iframe is copied. It works on this machine only.")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith(f'<iframe src="{app}/attention?')
    for part in ("mask=causal", "head=3.2", "embed=true", "embed_options=light_theme", 'width="1280" height="720"'):
        assert part in copied
    assert "panel=" not in copied  # it is the default

    (tmp_path / "slide.html").write_text(f"<!doctype html><body style='margin: 0'>{copied}")
    slide = page.context.new_page()
    slide.set_default_timeout(PATIENCE)
    slide.set_viewport_size({"width": 1300, "height": 740})
    slide.goto((tmp_path / "slide.html").as_uri())  # test_frame_cookies uses slides from a server
    frame = slide.frame_locator("iframe")
    expect(frame.locator(".av .head .name")).to_have_text("layer 3 · head 2")
    expect(frame.locator(".st-key-chip_mask")).to_be_visible()
    expect(frame.locator(".st-key-strip")).to_be_visible()
    expect(frame.locator(".st-key-verdict")).to_contain_text("right")
    chips, picture = (frame.locator(one).bounding_box() for one in (".st-key-chips", ".av"))
    assert chips is not None
    assert picture is not None
    assert chips["y"] + chips["height"] <= picture["y"]
    for hidden in ("stSidebar", "stHeading", "stDataFrame"):
        expect(frame.get_by_test_id(hidden).filter(visible=True)).to_have_count(0)
    fits(slide, frame)
    frame.locator(".av .grid .base").focus()
    slide.keyboard.press("]")
    expect(frame.locator(".av .head .name")).to_have_text("layer 3 · head 3")
    frame.locator(".st-key-chip_mask button").click()  # changes can be undone in the frame
    expect(frame.locator(".st-key-chip_mask")).to_have_count(0)

    show = "src => { document.querySelector('iframe').src = src }"
    slide.evaluate(show, f"{app}/?embed=true&embed_options=dark_theme&model=reverse")
    click_in_scene(frame.locator(".st-key-scene"), "head 1. Click")
    expect(frame.locator(".av .head .name")).to_be_visible()
    expect(frame.get_by_test_id("stApp")).to_have_css("background-color", "rgb(16, 20, 28)")
    expect(frame.get_by_test_id("stSidebar").filter(visible=True)).to_have_count(0)
    assert slide.url == (tmp_path / "slide.html").as_uri()
    slide.close()
