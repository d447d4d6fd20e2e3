"""First principles and the Bug lab in a real Chromium: keys walk the steps, a word changes the numbers, both are trained."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Visit, see

pytestmark = pytest.mark.browser
Visiting = Callable[..., Visit]


def test_keys_walk_the_steps_and_words_are_words_whatever_is_in_them_in_both_themes(app: str, visit: Visiting) -> None:
    visitor = visit(app, "/first_principles?text=to+be+or+not")
    page = visitor.page
    see(page, "is its own mirror image")
    expect(page.get_by_test_id("stVegaLiteChart")).to_have_count(4)
    page.locator("h1").click()
    page.keyboard.press("n")
    see(page, "is no longer a mirror image")
    page.emulate_media(color_scheme="dark")
    expect(page.get_by_test_id("stApp")).not_to_have_css("background-color", "rgb(255, 255, 255)")
    page.keyboard.press("b")
    see(page, "is its own mirror image")
    box = page.get_by_label(re.compile("A sentence of 2 to 8 words"))
    box.fill("<b>to</b> *be* nn")
    box.press("Enter")
    expect(page.get_by_test_id("stText").filter(has_text="0 <b>to</b> +")).to_be_visible()
    page.wait_for_function("() => new URL(location).searchParams.get('step') === 'average'")
    assert visitor.problems == []


def test_a_bug_is_seen_named_and_trained(app: str, visit: Visiting) -> None:
    visitor = visit(app, "/bug_lab?model=reverse-mirror&bug=no-scale&show=diagnosis&own=1")
    page = visitor.page
    see(page, "named from its trace and its weights")
    page.get_by_text("Scaling after the softmax", exact=True).click()
    see(page, "A = softmax(Q Kᵀ) / √d_head", exact=True)
    page.get_by_text("Train both", exact=True).first.click()
    page.get_by_test_id("stBaseButton-primary").filter(has_text="Train both").click()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_test_id("stBaseButton-primary").filter(has_text="Train both").click()
    see(page, "step 200 of 200")
    see(page, "After 200 steps of training")
    assert visitor.problems == []
