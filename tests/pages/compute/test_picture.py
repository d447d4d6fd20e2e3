"""The figures in the “⋯” menu of a picture: size, colours, title, and a caption with the call and the link."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable
from html import unescape
from typing import Any
from urllib.parse import urlencode

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from tests.pages.code_and_picture import files_offered
from tests.pages.conftest import Open
from xformer.viz.packing import SCALES, pack_selection

RESIDUAL, ATTENTION, COMPARE = "pages/residual/page.py", "pages/attention/page.py", "pages/compare/page.py"
SERVED = "http://localhost:8501/here"
Files = dict[str, Callable[[], bytes]]
Asked = list[tuple[list[Any], dict[str, Any]]]


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Files:
    return files_offered(monkeypatch)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Records the charts and options of figures instead of drawing them, which other tests cover."""
    found: Asked = []
    monkeypatch.setattr("pages.compute.picture.svg", lambda charts, **options: found.append((charts, options)) or "")
    return found


def test_a_figure_follows_its_options(open_page: Open, files: Files, asked: Asked) -> None:
    app = open_page(RESIDUAL, model="reverse-small", input="3 7 12")
    [name] = [name for name in files if name.endswith(".svg")]
    files[name]()
    picture = name.removeprefix("reverse-small-").removesuffix(".svg")
    app.selectbox(key=f"figure_size_{picture}").set_value("1 column, 3.4 in")
    app.selectbox(key=f"figure_colours_{picture}").set_value("Dark")
    app.checkbox(key=f"figure_title_{picture}").set_value(False).run()
    assert not app.exception
    files[name]()
    app.selectbox(key=f"figure_colours_{picture}").set_value("Grey")
    app.selectbox(key=f"figure_points_{picture}").set_value(12).run()
    files[name]()
    usual, dark, grey = (options for _, options in asked)
    assert usual["title"] == "reverse-small · “3 7 12”"
    assert any(line.startswith("xformer.read(") for line in usual["caption"].splitlines())
    assert (usual["width"], usual["font_size"], usual["grey"], usual["dark"]) == (None, None, False, False)
    assert dark == {"width": 3.4, "font_size": 8, "grey": False, "dark": True}
    assert grey == {"width": 3.4, "font_size": 12, "grey": True, "dark": False}


def caption(drawn: bytes) -> str:
    """Return the text of a figure or a page, with wrapped lines joined again."""
    text = drawn.decode()
    lines = re.findall(r"<text[^>]*>([^<]*)</text>", text) or re.findall(r"<p>(.*?)</p>", text)
    return unescape("".join(lines))


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the screens an address."""
    monkeypatch.setattr(type(st.context), "url", property(lambda _: SERVED))


def link_of(app: AppTest) -> str:
    return f"{SERVED}?{urlencode(app.query_params, doseq=True)}"


@pytest.mark.usefixtures("served")
def test_caption_of_the_attention_view_follows_the_changes(open_page: Open, files: Files) -> None:
    app = open_page(ATTENTION, model="reverse-small", input="3 7 12")
    name = next(name for name in files if name.endswith("-pattern.html"))
    first = link_of(app)
    assert first in caption(files[name]())
    app.segmented_control(key="mask").set_value("causal").run()
    assert "mask=causal" in link_of(app)
    text = caption(files[name]())
    assert link_of(app) in text
    assert first not in text
    assert "set_causal(True)" in text


def test_figure_of_the_attention_view_names_the_mask_and_the_changes(
    open_page: Open, files: Files, asked: Asked
) -> None:
    link = {"mask": "causal", "edits": "ablate:encoder.0.attn.0,token:1.4"}
    open_page(ATTENTION, model="reverse-small", input="3 7 12", head="1.1", **link)
    files["reverse-small-pattern.svg"]()
    [(charts, options)] = asked
    assert options["title"] == (
        "reverse-small · layer 1 · head 1 · “3 7 12” · with causal mask, layer 1 · head 1 ablated, position 1 reads 4"
    )
    assert len(charts) == 3  # all heads, the matrix, the arcs


def test_code_and_page_of_the_attention_view_draw_what_it_shows(open_page: Open, files: Files) -> None:
    link = {"model": "reverse", "input": "3 7 12", "head": "3.2", "scale": "own", "view": "arcs", "arcs": "1.3"}
    app = open_page(ATTENTION, **link)
    code = app.code[0].value
    assert (
        "attention_grid(r, scale='own'), xformer.viz.attention_arcs(r, layer=2, scale='own', heads=[0, 1, 2])" in code
    )
    planes = re.search(r'id="planes">([^<]*)<', files["reverse-pattern.html"]().decode())
    assert planes is not None
    selection = pack_selection((2, 1), look=(SCALES.index("own"), 2, (0, 1, 2)))
    assert b64decode(planes[1]).endswith(selection)


def test_caption_has_no_link_without_an_address(open_page: Open, files: Files) -> None:
    open_page(COMPARE)
    text = caption(files["compare-steps.html"]())
    assert text.count("decode_steps(") == 2  # one for each model
    assert "?" not in text
