"""Helpers that check that the code of each picture on a screen draws the same picture."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import chdir
from copy import deepcopy
from pathlib import Path
from typing import Any

import altair as alt
import plotly.graph_objects as go
import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from tests.pages.conftest import ROOT, Open


def assert_code_draws_what_is_shown(
    open_page: Open, monkeypatch: pytest.MonkeyPatch, page: str, link: Mapping[str, str], folder: Path = ROOT
) -> AppTest:
    """Open a screen, run the code of all its pictures in `folder`, and assert that it draws exactly the charts on screen."""
    shown = charts_shown(monkeypatch)
    app = open_page(page, **link)
    assert_code_draws(app, shown, folder)
    return app


def charts_shown(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return a list that records all charts shown from now on."""
    shown: list[dict[str, Any]] = []
    show_chart, show_figure = st.vega_lite_chart, st.plotly_chart

    def chart(spec: dict[str, Any], **more: Any) -> Any:
        shown.append(deepcopy(spec))  # Streamlit replaces an empty title in the given specification with a space
        return show_chart(spec, **more)

    def figure(figure: go.Figure, **more: Any) -> Any:
        shown.append(_numbers(figure))
        return show_figure(figure, **more)

    monkeypatch.setattr(st, "vega_lite_chart", chart)
    monkeypatch.setattr(st, "plotly_chart", figure)
    return shown


def files_offered(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[], bytes]]:
    """Return a dict that records all downloads offered from now on, by file name."""
    offered: dict[str, Callable[[], bytes]] = {}
    offer = st.download_button

    def noted(label: str, data: Any, file: str, *rest: Any, **more: Any) -> bool:
        offered[file] = data
        return offer(label, data, file, *rest, **more)

    monkeypatch.setattr(st, "download_button", noted)
    return offered


def assert_code_draws(app: AppTest, shown: list[dict[str, Any]], folder: Path = ROOT) -> None:
    """Run the code of all pictures in `folder` and assert that it draws the charts that were shown."""
    assert not app.exception
    made: list[Any] = []
    for element in app.code:
        picture = left_by(element.value, folder)["picture"]
        made += picture if isinstance(picture, list) else [picture]
    again = [without_names(chart.to_dict()) for chart in made if isinstance(chart, alt.TopLevelMixin)]
    again += [without_names(_numbers(figure)) for figure in made if isinstance(figure, go.Figure)]
    assert shown
    for spec in map(without_names, shown):
        assert spec in again


def left_by(code: str, folder: Path = ROOT) -> dict[str, Any]:
    """Run the code of a picture in `folder` without showing it, and return its variables."""
    names: dict[str, Any] = {}
    with chdir(folder):
        exec(compile(code.replace("show(picture)", ""), "footer", "exec"), names)
    return names


def _numbers(figure: go.Figure) -> dict[str, Any]:
    """Return a Plotly figure as plain values."""
    return json.loads(figure.to_json(engine="json"))


def without_names(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a chart without the numbers in Altair's generated names, and without its default configuration."""
    text = json.dumps({name: value for name, value in spec.items() if name != "config"})
    return json.loads(re.sub(r"(view|param|concat|layer)_\d+", r"\1", text))
