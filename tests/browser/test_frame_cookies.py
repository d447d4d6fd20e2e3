"""In a cross-site frame a visitor can only watch, even on a server in open mode; the server enforces this."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest
from playwright.sync_api import expect

from pages.server.access import COOKIE
from tests.attack.visitor import Visitor
from tests.browser.conftest import PATIENCE, Visiting
from xformer.presets import preset
from xformer.training.run_store import RunStore


@pytest.fixture
def run(app_runs: Path) -> str:
    """A stopped run."""
    return RunStore(app_runs).add(preset("reverse-small"), owner="here", state="stopped")


@pytest.mark.parametrize(
    ("cookie", "is_embedded", "may"), [(None, False, True), ("", False, False), (None, True, False), ("", True, False)]
)
def test_commands_need_the_cookie_and_a_page_that_is_not_embedded(
    app: str, app_runs: Path, run: str, cookie: str | None, is_embedded: bool, may: bool
) -> None:
    with Visitor(app, cookie=cookie, is_embedded=is_embedded) as visitor:
        visitor.open("runs", f"runs={run}")
        screen = visitor.open_menu(f"runs_menu_{run}")
        assert screen.find(f"runs_delete_{run}"), "the screen has the button, even if it is disabled"
        visitor.press(f"runs_delete_{run}")
    assert (RunStore(app_runs).entry(run).deleted is not None) == may


def test_the_cookie_is_set_with_a_page_but_not_with_a_picture_for_slides(app: str) -> None:
    for query, comes in (("", True), ("?embed=true", False)):
        asked = urllib.request.Request(f"{app}/runs{query}", headers={"Accept": "text/html"})
        with urllib.request.urlopen(asked) as page:
            assert (COOKIE in str(page.headers.get_all("Set-Cookie"))) == comes


@pytest.mark.browser
def test_in_a_browser_only_a_frame_of_the_same_site_has_the_cookie(
    visit: Visiting, app: str, slides_server: int, app_runs: Path, run: str
) -> None:
    """The visitor has the app open in a tab, too. The framed page is a whole one, without `embed=true`."""
    page = visit(app, f"/runs?runs={run}").page.context.new_page()
    page.set_default_timeout(PATIENCE)
    menu, delete = (f".st-key-runs_{part}_{run} button" for part in ("menu", "delete"))
    frame = page.frame_locator("iframe")
    for site, may in (("localhost", False), ("127.0.0.1", True)):
        page.goto(f"http://{site}:{slides_server}/?{app}/runs?runs={run}")
        frame.locator(menu).first.click()
        expect(frame.locator(delete).first).to_be_enabled(enabled=may)
    assert RunStore(app_runs).entry(run).deleted is None
    frame.locator(delete).first.click()
    expect(frame.locator(delete)).to_have_count(0)
    assert RunStore(app_runs).entry(run).deleted is not None
    page.close()
