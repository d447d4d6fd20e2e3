"""Whether the code that stands at each picture of a screen draws the very picture that the screen shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from tests.pages.conftest import ROOT, Open


def open_and_watch(
    open_page: Open, monkeypatch: pytest.MonkeyPatch, page: str, link: Mapping[str, str]
) -> tuple[AppTest, list[Any]]:
    """The app at a page, and the charts that it drew."""
    monkeypatch.chdir(ROOT)
    drawn: list[Any] = []
    show_chart = st.altair_chart
    monkeypatch.setattr(st, "altair_chart", lambda chart, **more: drawn.append(chart) or show_chart(chart, **more))
    return open_page(page, **link), drawn


def assert_code_draws(app: AppTest, drawn: list[Any]) -> None:
    """Run the code of every picture: as many charts as were drawn, and each of them among those."""
    again = []
    for element in app.code:
        names: dict[str, Any] = {}
        exec(compile(element.value.replace("show(picture)", ""), "footer", "exec"), names)
        again.append(names["picture"])
    charts = [chart for chart in again if isinstance(chart, alt.TopLevelMixin)]
    assert len(charts) == len(drawn)
    specs = [chart.to_dict() for chart in drawn]
    assert all(chart.to_dict() in specs for chart in charts)
