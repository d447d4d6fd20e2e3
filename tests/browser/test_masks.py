"""The Masks screen in Chromium: marks on the tokens, the picture in view, a phone, and the link."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Visiting, quiet

pytestmark = pytest.mark.browser
LINK = "/masks?model=characters&input=import+os&rule=causal,window:3"


def test_a_click_on_a_token_starts_a_document(app: str, visit: Visiting) -> None:
    visitor = visit(app, LINK)
    page = visitor.page
    page.set_viewport_size({"width": 1280, "height": 720})
    charts = page.locator(".st-key-mask_pictures [data-testid='stVegaLiteChart']")
    expect(charts).to_have_count(3)
    quiet(page)
    page.get_by_role("button", name="Mark tokens").click()
    page.get_by_role("button", name="4 · r").click()
    page.wait_for_function("decodeURIComponent(location.search).includes('documents:4')")
    quiet(page)
    expect(page.locator(".st-key-what_to_notice")).to_contain_text("2 documents at 0, 4")
    page.reload()
    expect(page.locator(".st-key-what_to_notice")).to_contain_text("causal, window 3, 2 documents at 0, 4")
    assert visitor.problems == []


def test_controls_and_pictures_are_in_view_together(app: str, visit: Visiting) -> None:
    page = visit(app, LINK).page
    page.set_viewport_size({"width": 1280, "height": 720})
    charts = page.locator(".st-key-mask_pictures [data-testid='stVegaLiteChart']")
    expect(charts).to_have_count(3)
    quiet(page)
    for place in (page.locator(".st-key-mask_rules"), *charts.all()):
        box = place.bounding_box()
        assert box is not None
        assert box["y"] + 0.85 * box["height"] <= 720, box


def test_nothing_is_wider_than_a_phone(app: str, visit: Visiting) -> None:
    page = visit(app, LINK).page
    page.set_viewport_size({"width": 390, "height": 844})
    expect(page.locator(".st-key-mask_pictures [data-testid='stVegaLiteChart']")).to_have_count(3)
    quiet(page)
    width = page.evaluate("() => document.querySelector('[data-testid=stMain]').scrollWidth")
    assert width <= 390
