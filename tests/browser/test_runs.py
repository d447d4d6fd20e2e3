"""The Runs screen in Chromium: ticking a row adds its curve, and the link reproduces the choice."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import Visiting, drawn, see, until
from tests.pages.runs.test_page import add
from xformer.training import jobs
from xformer.training.run_store import RunStore

pytestmark = pytest.mark.browser
ROW = 36


@pytest.fixture
def store(app_runs: Path) -> RunStore:
    """The run store of the server, empty."""
    store = RunStore(app_runs)
    for entry in store.entries():
        jobs.stop(store, entry.id)
    while any(entry.is_active for entry in store.entries()):
        jobs.reconcile(store)
        time.sleep(0.05)
    for entry in [*store.entries(), *store.entries(deleted=True)]:
        store.change(entry.id, deleted=1.0)
    jobs.empty_bin(store)
    return store


def tick(page: Page, row: int) -> None:
    """Click the checkbox of a row, counted from 0."""
    canvas = page.get_by_test_id("stDataFrame").locator("canvas").first
    expect(canvas).to_be_visible()
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 16, box["y"] + ROW * (row + 1.5))  # by position: a scrolling layer covers the canvas


def curve(page: Page) -> Locator:
    return page.get_by_test_id("stVegaLiteChart").first


def chosen(page: Page, runs: list[str]) -> None:
    """Wait until the link lists these runs as chosen."""
    page.wait_for_function("(runs) => (new URL(location).searchParams.get('runs') || '') === runs", arg=",".join(runs))


def test_ticking_a_row_adds_its_curve_and_the_link_keeps_the_choice(store: RunStore, app: str, visit: Visiting) -> None:
    add(store, "older", last=2.0)  # chosen by default, but not by the link
    one, two = add(store, "one", last=0.5, peak_lr=1e-4), add(store, "two", last=1.0)
    visitor = visit(app, f"/runs?runs={one}", "dark")
    page = visitor.page
    expect(curve(page)).to_be_visible()
    expect(page.get_by_role("button", name="Share")).to_be_in_viewport(ratio=1)
    expect(page.get_by_test_id("stSidebar")).to_have_count(0)  # a screen without a model has no sidebar
    before = drawn(curve(page))
    tick(page, 0)
    chosen(page, [one, two])
    see(page, "3 runs · 2 chosen")
    see(page, "The two runs differ in only one setting")
    until(lambda: curve(page).screenshot() != before, page)
    link = page.url
    tick(page, 1)
    chosen(page, [two])
    back = "(link) => { history.replaceState({}, '', link); dispatchEvent(new PopStateEvent('popstate')); }"
    page.evaluate(back, f"/runs?view=table&runs={one}")  # the link takes precedence over ticked rows
    see(page, "3 runs · 1 chosen")
    chosen(page, [one])
    other = visit(app, link.removeprefix(app), "dark")
    see(other.page, "2 chosen")
    assert visitor.problems == other.problems == []
