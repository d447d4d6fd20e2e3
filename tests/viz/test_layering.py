"""A layered chart is what Altair makes of it, without the table being written as text for every layer."""

from __future__ import annotations

import re
from typing import Any

import altair as alt
import pandas as pd
import pytest

from xformer.viz.charts import layered

TABLE = pd.DataFrame({"x": [1, 2], "y": [0.5, 0.25]})


def charts() -> list[alt.Chart]:
    base = alt.Chart(TABLE).encode(alt.X("x:Q"), alt.Y("y:Q"))
    return [base.mark_line(), base.mark_point(size=80), base.transform_filter("datum.x > 1").mark_text()]


def plain(chart: Any) -> str:
    """The chart, but for the names that Altair makes up."""
    return re.sub(r"view_\w+", "view", str(chart.to_dict()))


@pytest.mark.parametrize("more", [[], [alt.Chart(pd.DataFrame({"x": [3]})).mark_rule().encode(alt.X("x:Q"))]])
def test_it_is_the_chart_of_altair(more: list[alt.Chart]) -> None:
    ours, theirs = layered(*charts(), *more, height=90), alt.layer(*charts(), *more).properties(height=90)
    assert plain(ours) == plain(theirs)
    assert ours.to_dict()["datasets"] == theirs.to_dict()["datasets"]


def test_the_layers_stay_as_they_were_and_their_table_is_not_written_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = charts()

    def written(table: pd.DataFrame) -> str:
        raise AssertionError("the table was written as text")

    monkeypatch.setattr(pd.DataFrame, "__repr__", written)
    layered(*parts)
    assert all(part.data is TABLE for part in parts)
    with pytest.raises(AssertionError, match="written as text"):
        alt.layer(*parts)
