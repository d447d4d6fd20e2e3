"""Tests of the figures that the “⋯” of a picture offers: their size, colours and title."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.pages.code_and_picture import files_offered
from tests.pages.conftest import Open, with_weights
from xformer.training.run_store import RunStore

RESIDUAL = "pages/residual/page.py"
Files = dict[str, Callable[[], bytes]]


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Files:
    return files_offered(monkeypatch)


def words(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_a_figure_follows_its_options(open_page: Open, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(RESIDUAL, model="reverse-small", input="3 7 12")
    [name] = [name for name in files if name.endswith(".svg")]
    picture = name.removeprefix("reverse-small-").removesuffix(".svg")
    usual = files[name]().decode()
    assert re.search(r'<svg[^>]* width="[\d.]+"', usual)
    assert words(usual)[0] == "reverse-small · “3 7 12”"
    assert any(line.startswith("xformer.read(") for line in words(usual))

    asked: list[dict[str, Any]] = []  # what these options draw is tested where figures are drawn
    monkeypatch.setattr("pages.shared.picture.svg", lambda charts, **options: asked.append(options) or "")
    app.selectbox(key=f"figure_size_{picture}").set_value("1 column, 3.4 in")
    app.selectbox(key=f"figure_colours_{picture}").set_value("Dark")
    app.checkbox(key=f"figure_title_{picture}").set_value(False).run()
    assert not app.exception
    files[name]()
    app.selectbox(key=f"figure_colours_{picture}").set_value("Grey")
    app.selectbox(key=f"figure_points_{picture}").set_value(12).run()
    files[name]()
    assert asked == [
        {"width": 3.4, "font_size": 8, "grey": False, "dark": True},
        {"width": 3.4, "font_size": 12, "grey": True, "dark": False},
    ]


def test_the_title_has_the_layer_and_the_head(open_page: Open, files: Files) -> None:
    open_page("pages/attention/page.py", model="reverse-small", input="3 7 12", head="2.1")
    name = next(name for name in files if name.endswith("-pattern.svg"))
    assert words(files[name]().decode())[0] == "reverse-small · layer 2 · head 1 · “3 7 12”"


def test_curves_of_runs_and_of_a_run_are_figures_too(open_page: Open, files: Files, runs: Path) -> None:
    store = RunStore(runs)
    one, two = with_weights(store, "one"), with_weights(store, "two")
    open_page("pages/runs/page.py", runs=f"{one},{two}", curves="held_out_exact_match")
    assert {"one", "two"} <= set(words(files["runs-curves.svg"]().decode()))
    open_page("pages/train/page.py", run=one)
    assert "0%" in words(files[f"{one}-training.svg"]().decode())  # the axis of a curve below the last frame
