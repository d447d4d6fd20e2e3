"""What the last line of a script shows."""

from __future__ import annotations

from pathlib import Path

import altair as alt
import pandas as pd
import plotly.graph_objects as go
import pytest

from xformer.viz.export import show

TABLE = pd.DataFrame({"x": [1, 2], "y": [3.5, 4.5]})


def pages(said: str) -> list[str]:
    start = "The picture is in "
    return [line.removeprefix(start) for line in said.splitlines() if line.startswith(start)]


def test_charts_and_figures_are_written_to_a_page_each(capsys: pytest.CaptureFixture[str]) -> None:
    show([alt.Chart(TABLE, title="of Altair").mark_point().encode(x="x"), go.Figure(layout_title_text="of Plotly")])
    written = [Path(name) for name in pages(capsys.readouterr().out)]
    words = [path.read_text(encoding="utf-8") for path in written]
    for path in written:
        path.unlink()
    assert ["of Altair" in words[0], "of Plotly" in words[1]] == [True, True]


def test_a_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    show(TABLE)
    assert "4.5" in capsys.readouterr().out
