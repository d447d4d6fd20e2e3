"""Setup shared by all browser benchmarks: Chromium and a server of the app."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.serving import ARGUMENTS, launch, stop

RESTED = 2000
"""Milliseconds until a new window is idle."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run Chromium while the block runs. Exits with a message if it is not on the PATH."""
    executable = shutil.which("chromium")
    if executable is None:
        sys.exit("This benchmark needs chromium on the PATH.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
        yield browser
        browser.close()


def window(browser: Browser) -> Page:
    """Return an idle window of a first-time visitor, because opening one costs Chromium a second of a core."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.wait_for_timeout(RESTED)
    return page


@contextmanager
def server(*script: str) -> Iterator[str]:
    """Run a Streamlit server while the block runs, and yield its address."""
    process, address = launch(script)
    try:
        yield address
    finally:
        stop(process)
