"""Navigation in Chromium: the selection is kept, one Back leaves a screen, and small windows show what matters."""

from __future__ import annotations

from urllib.parse import parse_qs, urlparse

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Visiting, click, quiet, until

pytestmark = pytest.mark.browser
WANTED = {"model": "reverse", "mask": "causal", "input": "1 2 3 4"}


def linked(page: Page) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlparse(page.url).query).items()}


def test_navigation_keeps_the_selection_and_one_back_leaves_a_screen(app: str, visit: Visiting) -> None:
    visitor = visit(app, "/attention?model=reverse&mask=causal&input=1+2+3+4")
    page = visitor.page
    page.wait_for_function("location.search.includes('head=')")
    began = page.evaluate("history.length")
    path = ["feed_forward", "bug_lab", "residual"]
    for screen in path:
        click(page, screen)
        if screen != "bug_lab":  # it shows its own models
            assert linked(page).items() >= WANTED.items(), screen
            expect(page.locator(".st-key-input input")).to_have_value("1 2 3 4")
    assert page.evaluate("history.length") == began + len(path)
    page.go_back()
    page.wait_for_function("location.pathname === '/bug_lab'")
    expect(page.get_by_role("heading", name="Bug lab")).to_be_visible()
    page.go_back()
    page.wait_for_function("location.pathname === '/feed_forward'")
    expect(page.get_by_role("heading", name="Feed-forward")).to_be_visible()
    quiet(page)
    page.go_forward()
    page.wait_for_function("location.pathname + location.search === '/bug_lab?round=1'")
    page.go_forward()
    page.wait_for_function("location.pathname === '/residual'")
    quiet(page)  # parameters of Bug lab may stay in the address until the screen writes its own link
    page.wait_for_function("location.search.includes('model=')")
    assert linked(page).items() >= WANTED.items()
    # Streamlit ends a session if a run refers to an element that the browser has discarded in the meantime.
    for wait in (0, 30):
        for way in ("back", "back", "forward", "forward"):
            page.evaluate(f"history.{way}()")
            page.wait_for_timeout(wait)
    quiet(page)
    expect(page.get_by_test_id("stApp")).to_have_attribute("data-test-connection-state", "CONNECTED")
    assert visitor.problems == []


def test_on_a_projector_model_input_and_mask_are_in_view(app: str, visit: Visiting) -> None:
    for model, typed in (("reverse", "input"), ("digits", "digit_pad")):
        page = visit(app, f"/attention?model={model}&mask=as+trained").page
        page.set_viewport_size({"width": 1280, "height": 720})
        for key in ("model", typed, "mask"):
            expect(page.locator(f".st-key-{key}").first).to_be_in_viewport(ratio=1)
        expect(page.locator("h1")).to_be_in_viewport(ratio=1)
        strip = "document.querySelector('.st-key-strip')?.getBoundingClientRect().bottom <= 166"
        page.wait_for_function(strip)  # leaves enough space for the picture
    cut = page.locator('[data-testid="stTopNavLink"] [data-testid="stMarkdownContainer"]')
    too_long = "all => all.filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.innerText)"
    assert cut.evaluate_all(too_long) == []


LEAVE = """(way) => new Promise((done) => {
    addEventListener("popstate", () => done(), { once: true });
    setTimeout(done, 5000); // if there is no entry to go to
    history[way]();
})"""


def test_late_or_early_addresses_from_streamlit_do_not_damage_the_history(app: str, visit: Visiting) -> None:
    """Simulates a busy machine on a bare page with the script, which gets the addresses that Streamlit would send."""
    page = visit(app, "").page
    page.goto(f"{app}/_stcore/health")
    page.add_script_tag(path="pages/state/history.js")

    def sent(*links: str) -> None:
        page.evaluate("links => links.forEach(link => history.pushState({}, '', link))", links)

    def shown() -> str:
        return page.evaluate("location.pathname + location.search")

    def leave(way: str) -> None:
        page.evaluate(LEAVE, way)

    page.locator("body").click()
    sent("/attention?head=1.1", "/residual?pos=0")
    leave("back")
    sent("/positions?late", "/attention?head=1.1")  # Back was pressed twice; the screen in between sends its address
    leave("forward")
    assert shown() == "/residual?pos=0"
    page.locator("body").click()
    sent("/positions?show=attention")
    sent("/positions?show=vectors", "/embeddings?show=vectors")  # the next screen's parameters arrive before its path
    leave("back")
    assert shown() == "/positions?show=attention"


OVERFLOW = "document.querySelector('[data-testid=stMain]').scrollWidth"


def test_on_a_phone_the_controls_are_a_sheet_and_pictures_keep_their_size(app: str, visit: Visiting) -> None:
    """Squeezed into 390 pixels, the cells of the lens would overlap."""
    visitor = visit(app, "/residual?model=reverse-small", width=390)
    page = visitor.page
    chart = page.locator("[class*='st-key-wide_lens_'] canvas, [class*='st-key-wide_lens_'] svg.marks").first
    expect(chart).to_be_visible()
    wide = chart.bounding_box()
    assert wide is not None
    assert wide["width"] > 450
    until(lambda: page.evaluate(OVERFLOW) <= 390, page)
    page.evaluate("document.querySelector('[data-testid=stMain]').scrollTo(0, 0)")
    opener, sheet = page.get_by_test_id("stExpandSidebarButton"), page.get_by_test_id("stSidebar")
    expect(page.locator(".st-key-strip")).to_be_in_viewport(ratio=1)
    expect(sheet).to_be_hidden()
    opener.click()
    for key in ("model", "input", "mask"):
        expect(sheet.locator(f".st-key-{key}")).to_be_in_viewport(ratio=1)
    sheet.get_by_text("Attention", exact=True).click()
    page.wait_for_url("**/attention**")
    expect(sheet).to_be_hidden()
    expect(page.locator(".st-key-attention")).to_contain_text("exact values")
    quiet(page)
    head, grid = (page.locator(f".st-key-attention {part} canvas").first.bounding_box() for part in (".stage", ".grid"))
    assert head is not None
    assert grid is not None
    assert head["y"] + head["height"] <= grid["y"]  # the enlarged head is above the grid
    assert page.evaluate(OVERFLOW) <= 390
