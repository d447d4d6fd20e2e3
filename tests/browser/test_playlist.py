"""The playlist in Chromium: collect, reorder, save and open views, and play them with presenter keys."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs, urlparse

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import Visiting, click, quiet, see, until
from xformer import playlist

pytestmark = pytest.mark.browser
LINK = "/attention?model=reverse&input=4+9+2+11&mask=causal&head=3.2"


def titles(page: Page) -> list[str]:
    return page.locator(".playlist .row input").evaluate_all("all => all.map(one => one.value)")


def ordered(page: Page, wanted: list[str]) -> None:
    """Wait until the views have these titles; a drop takes effect with a short delay."""
    until(lambda: titles(page) == wanted, page)


def view(page: Page, at: int) -> Locator:
    return page.locator(".playlist ol > li").nth(at)


def shown(page: Page, count: str, path: str, value: str) -> None:
    """Wait until the bar shows `count`, and the address and the title of the tab are those of the view."""
    expect(page.locator(".playlist .count")).to_have_text(count)
    there = "([path, value]) => location.pathname === path && location.search.includes(value)"
    page.wait_for_function(there, arg=[path, value])
    expect(page).to_have_title(
        f"{path[1:].capitalize()} · xformer"
    )  # written by the server, the address by the browser
    quiet(page)


def share(page: Page, words: str) -> None:
    if not page.get_by_role("button", name="Copy link").is_visible():
        page.get_by_role("button", name="Share").click()
    page.get_by_role("button", name=words, exact=True).click()


def test_views_are_collected_ordered_saved_opened_and_played(app: str, visit: Visiting, tmp_path: Path) -> None:
    visitor = visit(app, LINK)
    page = visitor.page
    page.wait_for_function("location.search.includes('panel=')")
    see(page, "right instead of 4")
    share(page, "Add this view")
    see(page, "Added to the playlist as view 1.")
    page.keyboard.press("Escape")
    click(page, "residual")
    see(page, "right instead of 4")
    page.wait_for_function("location.search.includes('model=')")
    quiet(page)
    share(page, "Add this view")
    see(page, "Added to the playlist as view 2.")
    share(page, "Open the playlist")
    page.get_by_label("Title of the playlist").fill("My <b>talk</b>")
    first, second = titles(page)
    assert first.startswith("layer 3 · head 2: ")  # the headline
    assert second == "Residual"  # no headline under a causal mask
    page.get_by_label("Title of view 2").fill("Where it is decided")
    view(page, 1).locator("summary").click()
    page.get_by_label("Speaker note of view 2").fill("Wait for $an$ answer.")

    # Reorder by dragging, and with the buttons, which keep the focus.
    view(page, 1).locator(".grip").drag_to(view(page, 0), target_position={"x": 60, "y": 4})
    ordered(page, ["Where it is decided", first])
    expect(page.get_by_label("Speaker note of view 1")).to_be_visible()
    page.get_by_role("button", name="Move view 1 down").press("Enter")
    ordered(page, [first, "Where it is decided"])
    page.get_by_role("button", name="Move view 2 up").press("Enter")
    ordered(page, ["Where it is decided", first])
    page.get_by_role("button", name="Remove view 2").click()
    ordered(page, ["Where it is decided"])
    page.get_by_role("button", name="Undo").click()
    ordered(page, ["Where it is decided", first])

    # Save as a file that the library reads, and open it again.
    with page.expect_download() as download:
        page.get_by_role("button", name="Save").click()
    assert download.value.suggested_filename == "my-b-talk-b.json"
    file = tmp_path / "talk.json"
    download.value.save_as(file)
    saved = playlist.load(file)
    assert [(item.screen, item.title) for item in saved.items] == [
        ("residual", "Where it is decided"),
        ("attention", first),
    ]
    assert saved.title == "My <b>talk</b>"
    assert saved.items[0].note == "Wait for $an$ answer."
    assert parse_qs(urlparse(LINK).query).items() <= parse_qs(urlparse(saved.items[1].link).query).items()
    page.get_by_role("button", name="Clear").click()
    see(page, "No views yet.")
    page.get_by_label("A playlist file").set_input_files(file)
    expect(page.get_by_label("Title of view 1")).to_have_value("Where it is decided")

    # Play with keys; the browser's Back and Forward move through the list.
    page.get_by_role("button", name="▶ Play").click()
    shown(page, "1 / 2", "/residual", "mask=causal")
    page.keyboard.press("PageDown")
    shown(page, "2 / 2", "/attention", "head=3.2")
    page.go_back()
    shown(page, "1 / 2", "/residual", "mask=causal")
    page.go_forward()
    shown(page, "2 / 2", "/attention", "head=3.2")
    page.locator(".st-key-input input").press("PageUp")  # keys in a text field do not move
    shown(page, "2 / 2", "/attention", "head=3.2")
    page.locator(".playlist .name").focus()
    page.keyboard.press("ArrowLeft")
    shown(page, "1 / 2", "/residual", "mask=causal")
    for _ in range(2):  # faster than the server draws: only the last view is opened
        page.keyboard.press("PageDown")
        page.keyboard.press("PageUp")
    page.keyboard.press("PageDown")
    shown(page, "2 / 2", "/attention", "head=3.2")
    page.reload()
    shown(page, "2 / 2", "/attention", "head=3.2")
    page.get_by_role("button", name="Stop playing").click()
    page.keyboard.press("PageUp")
    expect(page.locator(".playlist .count")).to_be_hidden()
    assert urlparse(page.url).path == "/attention"
    assert visitor.problems == []


def test_a_lesson_is_played_with_notes_in_a_separate_window(app: str, visit: Visiting) -> None:
    visitor = visit(app, "/attention?model=reverse&mask=as+trained&input=4+9+2+11&edits=ablate:encoder.1.attn.2")
    page = visitor.page
    page.wait_for_function("location.search.includes('panel=')")
    began = page.evaluate("history.length")
    quiet(page)
    share(page, "Open the playlist")
    page.get_by_label("Open the views of a lesson").select_option("masks")
    see(page, "“Masks” has 9 views.")
    page.get_by_role("button", name="▶ Play").click()
    shown(page, "1 / 9", "/attention", "model=reverse-small")
    assert "edits" not in page.url
    with page.expect_popup() as popup:
        page.get_by_role("button", name="Notes", exact=True).click()
    notes = popup.value
    expect(notes.locator("h1")).to_have_text("Every position can look everywhere")
    notes.keyboard.press("PageDown")
    expect(notes.locator("h1")).to_have_text("Take the future away")
    notes.keyboard.press("PageDown")
    shown(page, "3 / 9", "/attention", "mask=causal")
    see(page, "2 of 5 right")
    expect(notes.get_by_text("query 0 can see only itself")).to_be_visible()
    expect(notes.get_by_text("Next: Where does the weight go?")).to_be_visible()
    notes.close()
    assert page.evaluate("history.length") == began  # one Back leaves the screen
    on_screen = page.get_by_text("query 0 can see only itself").filter(visible=True)
    assert on_screen.count() == 0  # the audience sees this page
    page.get_by_role("button", name="Stop playing").click()
    assert visitor.problems == []
