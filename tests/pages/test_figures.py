"""Tests of the figures that the “⋯” of a picture offers: their size, colours and title."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pages.code_and_picture import files_offered
from tests.pages.conftest import Open
from tests.pages.test_runs import with_weights
from xformer.training.run_store import RunStore
from xformer.viz.theme import BACKGROUND

RESIDUAL, FEED_FORWARD = "pages/residual/page.py", "pages/feed_forward/page.py"
Files = dict[str, Callable[[], bytes]]


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Files:
    return files_offered(monkeypatch)


def words(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_a_figure_follows_its_options(open_page: Open, files: Files) -> None:
    app = open_page(RESIDUAL, model="reverse", input="3 7 12")
    [name] = [name for name in files if name.endswith(".svg")]
    picture = name.removeprefix("reverse-").removesuffix(".svg")
    usual = files[name]().decode()
    assert re.search(r'<svg[^>]* width="[\d.]+"', usual)
    assert words(usual)[0] == "reverse · “3 7 12”"
    assert any(line.startswith("xformer.read(") for line in words(usual))

    app.selectbox(key=f"figure_size_{picture}").set_value("1 column, 3.4 in")
    app.selectbox(key=f"figure_colours_{picture}").set_value("Dark")
    app.checkbox(key=f"figure_title_{picture}").set_value(False).run()
    assert not app.exception
    chosen = files[name]().decode()
    assert 'width="3.4in"' in chosen
    assert f'fill="{BACKGROUND[1]}"' in chosen
    assert not [line for line in words(chosen) if "reverse" in line]

    app.selectbox(key=f"figure_colours_{picture}").set_value("Grey")
    app.selectbox(key=f"figure_points_{picture}").set_value(12).run()
    grey = files[name]().decode()
    assert f'fill="{BACKGROUND[0]}"' in grey
    assert all(len(set(re.findall("..", colour))) == 1 for colour in re.findall(r'stop-color="#(\w{6})"', grey))


def test_the_title_has_the_layer_and_the_head(open_page: Open, files: Files) -> None:
    open_page("pages/attention/page.py", model="reverse", input="3 7 12", head="3.2")
    name = next(name for name in files if name.endswith("-pattern.svg"))
    assert words(files[name]().decode())[0] == "reverse · layer 3 · head 2 · “3 7 12”"


def test_curves_of_runs_and_of_a_run_are_figures_too(open_page: Open, files: Files, runs: Path) -> None:
    store = RunStore(runs)
    one, two = with_weights(store, "one"), with_weights(store, "two")
    open_page("pages/runs/page.py", runs=f"{one},{two}", curves="held_out_exact_match")
    assert {"one", "two"} <= set(words(files["runs-curves.svg"]().decode()))
    open_page("pages/train/page.py", run=one)
    assert "0%" in words(files[f"{one}-training.svg"]().decode())  # the axis of a curve below the last frame
