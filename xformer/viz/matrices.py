"""Draw the matrices of one attention with their numbers in the cells.

viz.matrix(xformer.analysis.principles.Sentence("the cat saw the dog").average(), which="weights")
"""

from __future__ import annotations

import altair as alt
import numpy as np

from xformer.analysis.principles import AFTER, BEFORE, Mixed
from xformer.analysis.principles import matrix as matrix_table
from xformer.viz import theme
from xformer.viz.charts import layered
from xformer.viz.residual import written

ROW_HEIGHT = 34
AROUND = 26
"""Pixels of a matrix's height that its names take."""
MANY_COLUMNS = 6
"""More are named and numbered in smaller letters."""


def matrix(
    mixed: Mixed,
    *,
    which: str,
    n_columns: int | None = None,
    row: int | None = None,
    named: bool = True,
    extent: int = 30,
    dark: bool = False,
) -> alt.LayerChart | alt.FacetChart:
    """`analysis.matrix` as coloured cells with its numbers: weights on the fixed scale from 0 to 1, all else centred on zero.

    A forbidden cell is grey. `row` is framed. Without `named` the rows have no names, as beside a matrix of the same rows;
    `extent` are the pixels for the names of the columns, so that neighbours can be made to align.
    """
    frame, is_share = matrix_table(mixed, which=which, n_columns=n_columns), which == "weights"
    down, across = list(dict.fromkeys(frame["row"])), list(dict.fromkeys(frame["column"]))
    values = frame["value"].to_numpy(dtype=float)
    limit = 1.0 if is_share else theme.signed_limit(values)
    stops, low = (theme.sequential(dark), 0.0) if is_share else (theme.diverging(dark), -limit)
    place = np.clip((np.nan_to_num(values, neginf=low) - low) / (limit - low), 0, 1) * (len(stops) - 1)
    hidden = np.isneginf(values) | (is_share & (mixed.mask in (BEFORE, AFTER)) & (values == 0.0))
    many = len(across) > MANY_COLUMNS
    digits = 1 if many and not is_share else 2
    inks = [
        theme.pick(theme.MASKED, dark) if gone else stops[round(at)] for at, gone in zip(place, hidden, strict=True)
    ]
    data = frame.assign(
        value=np.where(hidden, np.nan, values),
        hidden=hidden,
        shown=["−∞" if np.isneginf(value) else _in_a_cell(value, digits) for value in values],
        exact=["−∞" if np.isneginf(value) else f"{value:.6f}" for value in values],
        ink=[theme.ink(colour) for colour in inks],
    )
    axis = {"ticks": False, "domain": False, "labelOverlap": False, "titleFontWeight": "normal"}
    above = alt.Axis(
        orient="top",
        labelAngle=-40 if extent > 30 else 0,
        minExtent=extent,
        maxExtent=extent,
        labelLimit=52 if many else 84,
        **axis,
    )
    base = alt.Chart(data).encode(
        alt.X("column:N", sort=across, title=None, axis=above),
        alt.Y("row:N", sort=down, title=None, axis=alt.Axis(**axis, labels=named, labelLimit=84)),
        tooltip=[alt.Tooltip("row:N"), alt.Tooltip("column:N"), alt.Tooltip("exact:N", title="value")],
    )
    colour = alt.Color("value:Q", scale=alt.Scale(**theme.vega_scale(stops, low, limit)), legend=None)
    followed = base.transform_filter(alt.FieldEqualPredicate(field="row", equal="" if row is None else down[row]))
    layers = [
        base.transform_filter("!datum.hidden").mark_rect().encode(color=colour),
        base.transform_filter("datum.hidden").mark_rect(color=theme.pick(theme.MASKED, dark)),
        followed.mark_rect(fillOpacity=0, stroke=theme.head_hue(1, dark), strokeWidth=2.5),
        base.mark_text(fontSize=10.5 if many else 12).encode(text=alt.Text("shown:N"), color=written()),
    ]
    return layered(*layers, height=ROW_HEIGHT * len(down) + AROUND + extent)


def _in_a_cell(value: float, digits: int) -> str:
    """A number as it stands in its cell, with a true minus sign and no −0."""
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")
