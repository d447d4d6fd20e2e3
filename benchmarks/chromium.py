"""What every benchmark in a browser begins with: Chromium, and a server of ours to look at."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

from tests.browser.serving import ARGUMENTS, launch, stop


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


@contextmanager
def server(*script: str) -> Iterator[str]:
    """A Streamlit server while the block runs; its address."""
    process, address = launch(script)
    try:
        yield address
    finally:
        stop(process)
