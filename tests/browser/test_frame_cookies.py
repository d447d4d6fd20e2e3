"""A frame of another site only looks on, on a server where everyone may do everything; the server says so, not the page."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from pages.shared.serving.access import COOKIE
from tests.attack.visitor import Visitor
from tests.browser.serving import launch, stop
from xformer.presets import preset
from xformer.training.run_store import RunStore


class Slides(BaseHTTPRequestHandler):
    """A page of another server, with the frame in it that its address names."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        source = self.path.partition("?")[2]
        self.wfile.write(f"<iframe src='{source}' width=1200 height=800></iframe>".encode())

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture(scope="module")
def slides() -> Iterator[int]:
    """The port of the other server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Slides) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("frames") / "runs"


@pytest.fixture(scope="module")
def app(folder: Path, slides: int) -> Iterator[str]:
    """A server for this machine alone, whose whole pages the slides may frame under either name of this machine."""
    frames = f"http://localhost:{slides} http://127.0.0.1:{slides}"
    server, address = launch(XFORMER_RUNS=str(folder), XFORMER_OPEN="", XFORMER_FRAMES=frames)
    yield address
    stop(server)


@pytest.fixture
def run(folder: Path) -> str:
    """A run that stands still."""
    return RunStore(folder).add(preset("reverse-small"), owner="here", state="stopped")


@pytest.mark.parametrize(
    ("cookie", "is_embedded", "may"), [(None, False, True), ("", False, False), (None, True, False), ("", True, False)]
)
def test_a_connection_orders_only_with_the_cookie_and_without_the_claim(
    app: str, folder: Path, run: str, cookie: str | None, is_embedded: bool, may: bool
) -> None:
    with Visitor(app, cookie=cookie, is_embedded=is_embedded) as visitor:
        visitor.open("runs", f"runs={run}")
        screen = visitor.open_menu(f"runs_menu_{run}")
        assert screen.find(f"runs_delete_{run}"), "the screen has the button, be it one that cannot be pressed"
        visitor.press(f"runs_delete_{run}")
    assert (RunStore(folder).entry(run).deleted is not None) == may


def test_the_cookie_comes_with_a_page_and_not_with_a_picture_for_slides(app: str) -> None:
    for query, comes in (("", True), ("?embed=true", False)):
        asked = urllib.request.Request(f"{app}/runs{query}", headers={"Accept": "text/html"})
        with urllib.request.urlopen(asked) as page:
            assert (COOKIE in str(page.headers.get_all("Set-Cookie"))) == comes


@pytest.mark.browser
@pytest.mark.parametrize(("site", "may"), [("localhost", False), ("127.0.0.1", True)])
def test_in_a_browser_only_a_frame_of_the_same_site_has_the_cookie(
    browser: Browser, app: str, slides: int, folder: Path, run: str, site: str, may: bool
) -> None:
    """The visitor has the app open by itself, too; the framed page is a whole one, which does not say that it is in a frame."""
    page = browser.new_page()
    try:
        page.goto(app)
        page.wait_for_selector("h1")
        page.goto(f"http://{site}:{slides}/?{app}/runs?runs={run}")
        frame = page.frame_locator("iframe")
        menu = f".st-key-runs_menu_{run} button"
        frame.locator(menu).first.click()
        key = f".st-key-runs_delete_{run} button"
        button = frame.locator(key).first
        expect(button).to_be_enabled(enabled=may)
        if may:
            button.click()
            expect(frame.locator(key)).to_have_count(0)
        if not may:  # by itself, the page of the same browser may
            page.goto(f"{app}/runs?runs={run}")
            page.locator(menu).first.click()
            expect(page.locator(key).first).to_be_enabled()
        assert (RunStore(folder).entry(run).deleted is not None) == may
    finally:
        page.context.close()
