"""Fixtures with a running app and Chromium. Without a browser the tests are skipped, or fail if one is required."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from tests.browser.serving import ARGUMENTS, launch, stop

PATIENCE = 120_000
"""Timeout in milliseconds for everything that a test waits for; generous, because a busy machine is slow."""
SHORT_LIVED = "--js-flags=--single-threaded"
"""Another Chromium option: no page is open long enough to benefit from concurrent compilation."""
expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="session", autouse=True)
def _clicks_meet_one_element() -> Iterator[None]:
    """Make clicks wait for a unique element: while Streamlit redraws, an old and a new button briefly coexist."""
    click = Locator.click

    def click_the_one(self: Locator, **how: Any) -> None:
        expect(self).to_have_count(1)
        click(self, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Locator, "click", click_the_one)
        yield


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    executable = shutil.which("chromium")
    if executable is None:
        reason = "no chromium on the PATH: the screens were NOT tested in a browser"
        if os.environ.get("XFORMER_REQUIRE_BROWSER"):
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=[*ARGUMENTS, SHORT_LIVED])
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def app_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs folder of `app`."""
    return tmp_path_factory.mktemp("app") / "runs"


@pytest.fixture(scope="session")
def slides_server() -> Iterator[int]:
    """The port of another server, whose pages contain a frame with the URL in their query."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Slides) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


class Server:
    """The local server of `app`, which a test can kill and restart at the same address."""

    def __init__(self, **env: str) -> None:
        self._env = env
        self.process, self.address = launch(**env)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def start(self) -> None:
        self.process, _ = launch(port=urlsplit(self.address).port or 0, **self._env)


@pytest.fixture(scope="session")
def server(app_runs: Path, slides_server: int) -> Iterator[Server]:
    """One server for all tests; the slides server may frame its pages under both of its host names."""
    frames = f"http://localhost:{slides_server} http://127.0.0.1:{slides_server}"
    server = Server(XFORMER_RUNS=str(app_runs), XFORMER_OPEN="", XFORMER_FRAMES=frames)
    yield server
    stop(server.process)


@pytest.fixture(scope="session")
def app(browser: Browser, server: Server, tabs: list[Page]) -> str:
    """The address of the server, after checking that a deep link works as its first request."""
    page = browser.new_context().new_page()
    page.set_default_timeout(PATIENCE)
    visitor = Visit(page, server.address, tabs).open("/attention?model=reverse&input=4+9+2+11&mask=causal&head=3.2")
    expect(page.locator(".st-key-attention .head .name")).to_have_text("layer 3 · head 2")
    expect(page.locator(".st-key-input input")).to_have_value("4 9 2 11")
    see(page, "right instead of 4")
    assert visitor.problems == []
    visitor.leave()
    return server.address


class Slides(BaseHTTPRequestHandler):
    """Serves pages that contain a frame with the URL in their query."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        source = self.path.partition("?")[2]
        self.wfile.write(f"<iframe src='{source}' width=1200 height=800></iframe>".encode())

    def log_message(self, format: str, *args: object) -> None: ...


class Visit:
    """A visitor's tab, which records errors and requests to other hosts."""

    def __init__(self, page: Page, address: str, tabs: list[Page]) -> None:
        self.page, self.address, self._tabs = page, address, tabs
        self.problems: list[str] = []
        self._hearing: dict[str, Callable[[Any], None]] = {
            "console": lambda message: self._hear(message.type, message.text, message.location.get("url", "")),
            "pageerror": lambda error: self.problems.append(f"page error: {error}"),
            "request": lambda request: self._check_request(request.url),
        }
        for event, hear in self._hearing.items():
            page.on(event, hear)  # type: ignore[call-overload]

    def open(self, path: str) -> Visit:
        self.page.goto(self.address + path)
        self.page.wait_for_selector("h1", state="attached")  # attached only: it is hidden in a frame
        return self

    def leave(self) -> None:
        """Leave the app and return the tab, emptied, for the next test."""
        if self._hearing:
            while self._hearing:
                self.page.remove_listener(*self._hearing.popitem())
            self.forget()
            self._tabs.append(self.page)

    def forget(self) -> None:
        """Clear storage, cookies, permissions and history of the tab."""
        # A bare page of the same origin, so that Chromium keeps the process and its compiled code of Streamlit.
        self.page.goto(f"{self.address}/_stcore/health")
        self.page.evaluate("localStorage.clear(), sessionStorage.clear()")
        self.page.context.clear_cookies()
        self.page.context.clear_permissions()
        chromium = self.page.context.new_cdp_session(self.page)
        chromium.send("Page.resetNavigationHistory")  # the history holds at most 50 entries
        chromium.detach()

    def _hear(self, kind: str, text: str, url: str) -> None:
        if kind == "error":
            self.problems.append(f"{kind}: {text} ({url})")

    def _check_request(self, url: str) -> None:
        if not url.startswith((self.address, self.address.replace("http", "ws"), "data:", "blob:")):
            self.problems.append(f"request to another host: {url}")


Visiting = Callable[..., Visit]
"""The type of the fixture `visit`."""


@pytest.fixture(scope="session")
def tabs() -> list[Page]:
    """Tabs for reuse, each in its own browser context, because opening one takes longer than most tests."""
    return []


@contextmanager
def visiting(browser: Browser, tabs: list[Page]) -> Iterator[Visiting]:
    """Yield a function that opens a link as a new visitor: `visit(address, "/attention?model=reverse", theme="dark")`.

    With the path "" no page is opened yet.
    """
    visits: list[Visit] = []

    def visit(address: str, path: str = "/", theme: str = "light", width: int = 1280) -> Visit:
        if not tabs:
            tabs.append(browser.new_context().new_page())
        page = tabs.pop()
        page.set_default_timeout(PATIENCE)
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=theme, reduced_motion="no-preference")  # type: ignore[arg-type]
        page.mouse.move(0, 0)
        visits.append(Visit(page, address, tabs))
        return visits[-1].open(path) if path else visits[-1]

    yield visit
    for visitor in visits:
        visitor.leave()


@pytest.fixture
def visit(browser: Browser, tabs: list[Page]) -> Iterator[Visiting]:
    with visiting(browser, tabs) as visit:
        yield visit


def see(page: Page, words: str, exact: bool = False) -> None:
    """Wait until a text is visible; while Streamlit redraws, it may briefly appear twice."""
    expect(page.get_by_text(words, exact=exact).filter(visible=True).first).to_be_visible()


def click(page: Page, screen: str) -> None:
    """Open another screen by the navigation, and wait until its link is written."""
    page.locator(f'[data-testid="stTopNavLink"][href$="/{screen}"]').first.click()
    page.wait_for_function("screen => location.pathname === '/' + screen && location.search", arg=screen)


def quiet(page: Page) -> None:
    """Wait until the script run of the screen has ended."""
    expect(page.get_by_test_id("stApp")).to_have_attribute("data-test-script-state", "notRunning")


def until(holds: Callable[[], bool], page: Page) -> None:
    """Wait until a condition holds that cannot be expressed as a locator."""
    deadline = time.monotonic() + PATIENCE / 1000
    while not holds():
        assert time.monotonic() < deadline
        page.wait_for_timeout(50)


def drawn(place: Locator) -> bytes:
    """Return a screenshot of an element once it no longer changes."""
    pictures = [b"", place.screenshot()]
    while pictures[-1] != pictures[-2]:
        place.page.wait_for_timeout(100)
        pictures.append(place.screenshot())
    return pictures[-1]


POINT = """(canvas, words) => {
    const box = canvas.getBoundingClientRect(), tip = canvas.getRootNode().querySelector(".tip");
    for (let down = box.height - 8; down > 0; down -= 24)
        for (let along = 8; along < box.width; along += 40) {
            const at = { clientX: box.left + along, clientY: box.top + down };
            canvas.dispatchEvent(new PointerEvent("pointermove", at));
            if (!tip.hidden && tip.textContent.includes(words)) return { x: along, y: down };
        }
    return null;
}"""
"""Find the point at which the tooltip of the scene contains a text, searching from the bottom up."""


def click_in_scene(scene: Locator, words: str) -> None:
    """Click the part of the scene whose tooltip contains a text."""
    canvas = scene.locator("canvas")
    until(lambda: canvas.evaluate(POINT, words) is not None, canvas.page)
    position = canvas.evaluate(POINT, words)
    canvas.hover(position=position)
    expect(scene.locator(".tip")).to_contain_text(words)
    canvas.click(position=position)
