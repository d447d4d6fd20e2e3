"""What stands below an exported picture: how it is made again, and the link to what the screen shows, not to what it showed."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from urllib.parse import urlencode

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from tests.pages.code_and_picture import files_offered
from tests.pages.conftest import Open

SERVED = "http://localhost:8501/here"
ATTENTION, COMPARE = "pages/attention/page.py", "pages/compare/page.py"
Files = dict[str, Callable[[], bytes]]


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Files:
    """What a screen that is served somewhere offers."""
    monkeypatch.setattr(type(st.context), "url", property(lambda _: SERVED))
    return files_offered(monkeypatch)


def caption(drawn: bytes) -> str:
    """The words of a figure or a page, with the lines put together again that a figure breaks."""
    text = drawn.decode()
    lines = re.findall(r"<text[^>]*>([^<]*)</text>", text) or re.findall(r"<p>(.*?)</p>", text)
    return unescape("".join(lines))


def link_of(app: AppTest) -> str:
    return f"{SERVED}?{urlencode(app.query_params, doseq=True)}"


def test_the_caption_of_the_attention_view_follows_what_is_changed(open_page: Open, files: Files) -> None:
    app = open_page(ATTENTION, model="reverse-small", input="3 7 12")
    name = next(name for name in files if name.endswith("-pattern.svg"))
    first = link_of(app)
    assert first in caption(files[name]())
    app.segmented_control(key="mask").set_value("causal").run()
    assert "mask=causal" in link_of(app)
    text = caption(files[name.replace("svg", "html")]())
    assert link_of(app) in text
    assert first not in text
    assert "set_causal(True)" in text


def test_what_a_part_of_the_screen_writes_alone_is_in_the_link(files: Files) -> None:
    def screen() -> None:
        import streamlit as st

        from pages.shared import link

        link.begin("here")
        link.share({"model": "reverse", "panel": "heads"})
        link.finish()
        address = link.address()
        link.chose("panel", "lens")
        st.text(address()[0])

    app = AppTest.from_function(screen).run()
    assert app.text[0].value == f"{SERVED}?model=reverse&panel=lens"


def test_what_is_served_nowhere_has_no_link(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    offered = files_offered(monkeypatch)
    open_page(COMPARE)
    text = caption(offered["compare-steps.html"]())
    assert text.count("decode_steps(") == 2  # of both players
    assert "?" not in text
