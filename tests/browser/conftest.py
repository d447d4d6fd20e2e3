"""A running app and a real Chromium. Without a browser these tests are skipped aloud, or fail where one is required."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.serving import ARGUMENTS, launch, stop


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    executable = shutil.which("chromium")
    if executable is None:
        reason = "no chromium on the PATH: the screens were NOT tested in a browser"
        if os.environ.get("XFORMER_REQUIRE_BROWSER"):
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture
def start_app() -> Iterator[Callable[[], str]]:
    """Start a fresh server; returns its address. It is stopped when the test is over."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> str:
        server, address = launch()
        started.append(server)
        return address

    yield start
    for server in started:
        stop(server)


@pytest.fixture(scope="session")
def app(browser: Browser) -> Iterator[str]:
    """One server for all tests that do not need a cold one."""
    server, address = launch()
    yield address
    stop(server)


class Visit:
    """A visitor's tab, with everything that went wrong in it."""

    def __init__(self, page: Page, address: str) -> None:
        self.page, self.address = page, address
        self.problems: list[str] = []
        page.on("console", lambda message: self._hear(message.type, message.text, message.location.get("url", "")))
        page.on("pageerror", lambda error: self.problems.append(f"page error: {error}"))
        page.on("request", lambda request: self._check_request(request.url))

    def open(self, path: str) -> Visit:
        self.page.goto(self.address + path)
        self.page.wait_for_selector("h1", timeout=60_000)
        return self

    def _hear(self, kind: str, text: str, url: str) -> None:
        # On a deep link Streamlit first asks for its health below that path, to find out where it is served from.
        if kind == "error" and not url.endswith(("/_stcore/health", "/_stcore/host-config")):
            self.problems.append(f"{kind}: {text} ({url})")

    def _check_request(self, url: str) -> None:
        if not url.startswith((self.address, self.address.replace("http", "ws"), "data:", "blob:")):
            self.problems.append(f"request to elsewhere: {url}")


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Visit]]:
    """`visit(address, "/attention?model=reverse", theme="dark")`: a fresh visitor at that link."""
    contexts = []

    def visit(address: str, path: str = "/", theme: str = "light", width: int = 1280) -> Visit:
        context = browser.new_context(color_scheme=theme, viewport={"width": width, "height": 900})  # type: ignore[arg-type]
        contexts.append(context)
        return Visit(context.new_page(), address).open(path)

    yield visit
    for context in contexts:
        context.close()
