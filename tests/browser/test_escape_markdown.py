"""Escaped text is shown literally by Streamlit's Markdown renderer in the browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from pages.controls.text import WORD_JOINER
from tests.browser.cases import TYPED
from tests.browser.conftest import Visiting
from tests.browser.serving import launch, stop

MADE_OF_IT = (
    "a, img, code, em, strong, del, ul, ol, h1, blockquote, table, b, script, .katex, span[style],"
    "[data-testid=stIconMaterial]"
)
READ = f"""(box) => [...box.querySelectorAll('[data-testid=stMarkdownContainer]')].map(
    (text) => [text.textContent, text.querySelectorAll('{MADE_OF_IT}').length])"""


@pytest.fixture
def literal(browser: Browser) -> Iterator[str]:
    server, address = launch(("-m", "streamlit", "run", "tests/browser/apps/literal_app.py"))
    yield address
    stop(server)


@pytest.mark.browser
def test_escaped_text_is_shown_literally(literal: str, visit: Visiting) -> None:
    page = visit(literal).page
    page.wait_for_selector(f".st-key-button{len(TYPED) - 1} button")
    for index, text in enumerate(TYPED):
        shown = page.locator(f".st-key-typed{index}").evaluate(READ)
        assert len(shown) == 3
        for words, made in shown:
            assert words.replace(WORD_JOINER, "").split() == text.split(), text
            assert made == 0, text
