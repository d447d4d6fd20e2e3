"""The Runs screen in a real Chromium: tick, read the curves, delete and undo, take a file away and bring it back."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import Visit
from tests.pages.test_runs import add, with_weights
from xformer.training.book import Book

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
Visiting = Callable[..., Visit]
ROW = 36


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Book:
    """The book of the server that the test starts."""
    monkeypatch.setenv("XFORMER_RUNS", str(tmp_path / "runs"))
    return Book(tmp_path / "runs")


def tick(page: Page, row: int) -> None:
    """Press the box of a row, counted from 0."""
    canvas = page.get_by_test_id("stDataFrame").locator("canvas").first
    expect(canvas).to_be_visible(timeout=60_000)
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 16, box["y"] + ROW * (row + 1.5))  # a layer for scrolling lies over the canvas


def curve(page: Page) -> Locator:
    return page.get_by_test_id("stVegaLiteChart").first


def chosen(page: Page, runs: list[str]) -> None:
    """Wait until the link says that these runs are chosen."""
    page.wait_for_function(
        "(runs) => (new URL(location).searchParams.get('runs') || '') === runs", arg=",".join(runs), timeout=15_000
    )


def test_ticking_a_row_lays_its_curve_over_and_the_link_brings_it_to_others(
    book: Book, start_app: Callable[[], str], visit: Visiting
) -> None:
    one, two = add(book, "one", last=0.5, peak_lr=1e-4), add(book, "two", last=1.0)
    app = start_app()
    visitor = visit(app, f"/runs?runs={one}", "dark")
    page = visitor.page
    expect(curve(page)).to_be_visible(timeout=60_000)
    page.wait_for_timeout(1000)
    before = curve(page).screenshot()
    tick(page, 0)
    chosen(page, [one, two])
    expect(page.get_by_text("2 runs · they differ in 1 setting")).to_be_visible()
    expect(page.get_by_text("The two differ in one setting only")).to_be_visible()
    page.wait_for_timeout(1000)
    assert curve(page).screenshot() != before
    other = visit(app, page.url.removeprefix(app), "dark")
    expect(other.page.get_by_text("2 chosen")).to_be_visible(timeout=60_000)
    tick(page, 1)
    chosen(page, [two])
    assert visitor.problems == other.problems == []


def test_a_run_is_deleted_taken_back_and_opened_on_another_screen(
    book: Book, start_app: Callable[[], str], visit: Visiting
) -> None:
    run = with_weights(book, "mine")
    visitor = visit(start_app(), f"/runs?runs={run}")
    page = visitor.page
    page.get_by_role("button", name="Delete").click(timeout=60_000)
    expect(page.get_by_text("Nothing has been trained here yet")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    chosen(page, [run])
    page.get_by_role("button", name="Attention", exact=True).click()
    expect(page.get_by_text("Who looks at whom")).to_be_visible(timeout=30_000)
    page.wait_for_function("(model) => new URL(location).searchParams.get('model') === model", arg=f"{run}@12")
    expect(page.locator(".st-key-model input")).to_have_value("▸ mine")
    assert visitor.problems == []


def test_a_downloaded_file_comes_back_through_import_and_a_bad_one_is_refused(
    book: Book, start_app: Callable[[], str], visit: Visiting, tmp_path: Path
) -> None:
    run = with_weights(book, "mine")
    visitor = visit(start_app(), f"/runs?runs={run}")
    page = visitor.page
    page.get_by_text("Download", exact=True).click(timeout=60_000)
    with page.expect_download() as download:
        page.get_by_role("button", name=re.compile("Weights of step 12")).click()
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    assert file.name == "mine.safetensors"
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("Nothing has been trained here yet")).to_be_visible()
    page.get_by_text("Import", exact=True).click()
    page.locator("input[type=file]").set_input_files(file)
    page.wait_for_function("() => new URL(location).searchParams.get('runs')", timeout=15_000)
    [entry] = book.entries()
    assert (entry.name, entry.tags, entry.id == run) == ("mine", ("imported",), False)
    expect(page.get_by_text("1 run · 1 chosen")).to_be_visible()
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(b"no such thing")
    if not page.locator("input[type=file]").count():
        page.get_by_text("Import", exact=True).click()
    page.locator("input[type=file]").set_input_files(bad)
    expect(page.get_by_text("The file was not taken.")).to_be_visible()
    expect(page.get_by_test_id("stException")).to_have_count(0)
    assert visitor.problems == []
