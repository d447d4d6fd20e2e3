"""What every benchmark in a browser begins with: Chromium, and a server of ours to look at."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.serving import ARGUMENTS, launch, stop

RESTED = 2000
"""Milliseconds after which a new window has come to rest."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser while the block runs; without one on the PATH the benchmark ends with a sentence."""
    executable = shutil.which("chromium")
    if executable is None:
        sys.exit("This benchmark needs chromium on the PATH.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
        yield browser
        browser.close()


def window(browser: Browser) -> Page:
    """A window of a first-time visitor, open before an address is typed: opening it, Chromium
    loads pages of its own, a second of a core that is not ours."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.wait_for_timeout(RESTED)
    return page


@contextmanager
def server(*script: str) -> Iterator[str]:
    """A Streamlit server while the block runs; its address."""
    process, address = launch(script)
    try:
        yield address
    finally:
        stop(process)
