"""The rows of a chart without Altair's limit of 5,000 for a table, and without its look at each single number of other data.

alt.Chart(inline(frame))        cells of one number or word each, to four digits
alt.Chart(InlineRows(rows))     rows that stand in the chart itself, as they are: also lists for `transform_flatten`
"""

from __future__ import annotations

import json
from typing import Any

import altair as alt
import pandas as pd


def inline(frame: pd.DataFrame) -> dict[str, Any]:
    """A table as the data of a chart. Streamlit sends it as Arrow, in which Vega finds no lists."""
    return {"values": json.loads(str(frame.round(4).to_json(orient="records")))}


class InlineRows(alt.Data):
    """`altair.Data(values=rows)` of what is JSON already."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        super().__init__(values=rows)

    def to_dict(self, *_: Any, **__: Any) -> dict[str, Any]:
        """As Altair's, without a look at the rows."""
        return {"values": self._kwds["values"]}

    def copy(self, *_: Any, **__: Any) -> InlineRows:
        """Nobody changes them."""
        return self

    def __deepcopy__(self, _: Any) -> InlineRows:
        return self
