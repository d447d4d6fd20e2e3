"""Draw position encodings: their values, their effect by offset, and how far patterns move without them.

viz.position_values(reading, positions=range(64))
viz.position_curves(reading, dimensions=[0, 1, 8])
viz.position_offsets(reading, n=32)
viz.attention_moved(reading, before=original)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import altair as alt
import pandas as pd

from xformer.analysis.attention_patterns import attention as attention_table
from xformer.analysis.attention_patterns import attention_moved as moved_table
from xformer.analysis.positions import is_rotary
from xformer.analysis.positions import position_curves as curves_table
from xformer.analysis.positions import position_offsets as offsets_table
from xformer.analysis.positions import position_values as values_table
from xformer.arguments import Count
from xformer.reading import Reading
from xformer.viz import theme
from xformer.viz.attention_patterns import MAX_CELLS, pool_cells
from xformer.viz.charts import (
    PADDED,
    ROWS,
    Chart,
    category_colours,
    cell_colours,
    head_titles,
    heat_colour,
    layered,
    matrix_axes,
    numbers,
    small_squares,
    tooltips,
)
from xformer.viz.embeddings import rows_height, vector_heatmap

MAX_WITH_NUMBERS = 48
"""Largest number of heads whose values are written into the cells."""
_SIDES = [theme.resample(side, 101) for side in theme.in_both_themes(theme.SEQUENTIAL)]
FINE_STOPS = [theme.paired(*ends) for ends in zip(*_SIDES, strict=True)]
"""The scale in steps of a hundredth."""
MAX_POINTS_DRAWN = 600
"""Largest number of points per line for up to 8 heads; with more heads, fewer."""


def position_values(
    reading: Reading,
    *,
    positions: Sequence[int] | None = None,
    kind: str | None = None,
    stack: str | None = None,
    height: Count = 300,
    legend: bool = True,
) -> alt.Chart:
    """Draw `analysis.position_values` as rows [position × dimension]; for rotary positions, the cosine of each angle.

    Further arguments are those of `analysis.position_values`.

    Args:
        height: The height of the chart, in pixels.
        legend: Whether to draw a legend.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.position_values(reading)
    """
    table = values_table(reading, positions=positions, kind=kind, stack=stack).assign(token="")
    look: dict[str, Any] = {}
    if "cos" in table:
        table = table.rename(columns={"pair": "dimension", "cos": "value"})
        look = {"limit": 1.0, "columns": "pair of dimensions: cosine of the angle"}
    return vector_heatmap(table, rows="position", height=height, legend=legend, **look)


def position_curves(
    reading: Reading,
    *,
    dimensions: Sequence[int],
    positions: Sequence[int] | None = None,
    stack: str | None = None,
    trained: int | None = None,
    height: Count = 290,
) -> Chart:
    """Draw `analysis.position_curves` as one line per dimension; clicking the legend highlights some.

    Positions from `trained` on, which were not seen in training, are shaded.

    Further arguments are those of `analysis.position_curves`.

    Args:
        trained: The first position not seen in training.
        height: The height of the chart, in pixels.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.position_curves(reading, dimensions=[0, 1, 6, 7])
    """
    table = curves_table(reading, dimensions=dimensions, positions=positions, stack=stack)
    lines = _lines(table, "dimension", ("position", "position"), ("value", "value added to the stream"), "top")
    last = int(max(table["position"]))
    if trained is not None and trained <= last:
        shade = alt.Chart(pd.DataFrame({"from": [trained - 0.5], "to": [last]}))
        shade = shade.mark_rect(color=theme.MASKED, opacity=0.5)
        lines.insert(0, shade.encode(x=_whole("from", "position"), x2="to:Q"))
    return layered(*lines, height=height)


def position_offsets(
    reading: Reading, *, n: Count | None = None, kind: str | None = None, stack: str | None = None, height: Count = 300
) -> Chart:
    """Draw `analysis.position_offsets`: the effect of the position encoding by the offset from query to key.

    For biases added to the scores, each head has a line. For other encodings, the line is the mean product of position vectors
    at an offset, and the band its range over pairs of positions.

    Further arguments are those of `analysis.position_offsets`.

    Args:
        height: The height of the chart, in pixels.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.position_offsets(reading)
    """
    most = max(2, MAX_POINTS_DRAWN // max(1, reading.adapter.shape.n_heads // 8))
    table = offsets_table(reading, n=n, kind=kind, stack=stack, most=most)
    offset = ("offset", "offset = key − query")
    if "bias" in table:
        table = table.assign(head=table["head"] + 1)
        return layered(*_lines(table, "head", offset, ("bias", "bias added to the score"), "bottom"), height=height)
    hue = theme.PART_HUES["positions"]
    base = alt.Chart(table).encode(x=_whole(*offset))
    products = [alt.Tooltip(f"{name}:Q", format=".7g") for name in ("mean", "low", "high")]
    tooltip = [*tooltips("offset:Q"), *products, *tooltips(("pairs:Q", "pairs of positions"))]
    title = "rotated q · k" if is_rotary(reading, kind, stack) else "P[i] · P[j]"
    return layered(
        base.mark_area(color=hue, opacity=0.25).encode(y=alt.Y("low:Q", title=title), y2="high:Q"),
        base.mark_line(color=hue, strokeWidth=2.5).encode(y="mean:Q"),
        base.mark_circle(color=hue, size=40, opacity=1).encode(y="mean:Q", tooltip=tooltip),
        height=height,
    )


def attention_moved(
    reading: Reading, *, before: Reading, chosen: tuple[int, int] | None = None, title: str = ""
) -> Chart:
    """Draw `analysis.attention_moved` from 0 to 1, one row per layer and one column per head.

    Clicking a cell sets the selection "head" to its `cell`: "2.1" is the first head of the second layer.

    Further arguments are those of `analysis.attention_moved`.

    Args:
        chosen: The layer and the head to frame, from 0.
        title: The title of the chart.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> ablated = xformer.read("checkpoints/reverse", "3 7 12 9 1", edits="ablate:encoder.2.attn.1")
        >>> chart = xformer.viz.attention_moved(ablated, before=reading)
    """
    table = moved_table(reading, before=before)
    table = table.assign(name=head_titles(reading, table))
    table = table.assign(row=table["name"].str.rpartition(" · ")[0], column=table["head"] + 1)
    rows = list(dict.fromkeys(table["row"]))
    cells = [f"{rows.index(row) + 1}.{column}" for row, column in zip(table["row"], table["column"], strict=True)]
    table = table.assign(cell=cells, cell_colour=cell_colours(FINE_STOPS, table["moved"], 0, 1))
    base = alt.Chart(table).encode(
        x=alt.X("column:O", title="head", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("row:N", title=None, sort=rows, axis=alt.Axis(labelLimit=150, labelOverlap=True)),
        tooltip=[*tooltips(("name:N", "head")), alt.Tooltip("moved:Q", format=".7f")],
    )
    few = len(table) <= MAX_WITH_NUMBERS
    legend = None if few else alt.Legend(format=".0%", gradientLength=105, orient="bottom", titleOrient="left")
    click = alt.selection_point(name="head", fields=["cell"], on="click", clear=False)
    colour = heat_colour("moved:Q", theme.SEQUENTIAL, 0, 1, title="moved", legend=legend)
    layers = [base.mark_rect(cursor="pointer").encode(color=colour).add_params(click)]
    layers += numbers(base, alt.Text("moved:Q", format=".0%"), shown=few, size=12)
    if chosen is not None:
        here = alt.FieldEqualPredicate(field="cell", equal=f"{chosen[0] + 1}.{chosen[1] + 1}")
        layers.append(base.transform_filter(here).mark_rect(filled=False, stroke=theme.PRIMARY, strokeWidth=3))
    return layered(*layers, height=rows_height(len(rows), 270), autosize=ROWS, title=title)


def attention_guess(reading: Reading, *, layer: int, head: int, query: int, height: int, title: str = "") -> Chart:
    """Draw the empty grid of a head with the row of a query highlighted; clicking a cell sets the selection "cell".

    Masked cells are grey and cannot be selected. The chart has the size of `viz.attention` with the same `height`.
    """
    frame = pool_cells(attention_table(reading, layer=layer, head=head), MAX_CELLS)
    queries, keys = list(dict.fromkeys(frame["query"])), list(dict.fromkeys(frame["key"]))
    highlighted = queries[query * len(queries) // reading[f"{reading.attention[layer].path}.pattern"].shape[-2]]
    click = alt.selection_point(name="cell", fields=["query", "key"], on="click", clear=False)
    size = small_squares(len(queries), len(keys), height)
    across, down = matrix_axes(("key:N", "key", keys), ("query:N", "query", queries), size, limit=50)
    across, down = across.scale(domain=keys), down.scale(domain=queries)
    base = alt.Chart(frame[frame["allowed"]]).encode(across, down, tooltip=["query:N", "key:N"])
    empty = base.mark_rect(color=theme.SECONDARY_BACKGROUND, stroke=theme.MASKED, strokeWidth=0.5)
    here = base.transform_filter(alt.FieldEqualPredicate(field="query", equal=highlighted))
    here = here.mark_rect(color=theme.PRIMARY, opacity=0.35, cursor="pointer")
    view = alt.ViewBackground(fill=theme.MASKED)
    return layered(empty.add_params(click), here, **size, title=title, view=view, autosize=PADDED)


def _lines(
    table: pd.DataFrame, by: str, x: tuple[str, str], y: tuple[str, str], legend: Literal["top", "bottom"]
) -> list[alt.Chart]:
    """Draw a line for each value of `by`; `x` and `y` are (column, title)."""
    names = list(dict.fromkeys(table[by].tolist()))
    key = alt.Legend(symbolType="stroke", symbolStrokeWidth=4, orient=legend, columns=8)
    look = {"title": f"{by} (click to highlight)", "sort": names, "legend": key}
    colour = category_colours(f"{by}:N", names, theme.head_hues(len(names)), **look)
    picked = alt.selection_point(name="picked", fields=[by], bind="legend", toggle="true")
    tooltip = [*tooltips(f"{by}:N", f"{x[0]}:Q"), alt.Tooltip(f"{y[0]}:Q", format=".7g")]
    base = alt.Chart(table).encode(x=_whole(*x), y=alt.Y(f"{y[0]}:Q", title=y[1]), color=colour, tooltip=tooltip)
    lines, dots = base.mark_line(strokeWidth=2.5, interpolate="linear"), base.mark_circle(size=36)
    lit = lines.encode(opacity=alt.condition(picked, alt.value(1.0), alt.value(0.08)))
    return [lit.add_params(picked), dots.encode(opacity=alt.condition(picked, alt.value(0.9), alt.value(0.04)))]


def _whole(column: str, title: str) -> alt.X:
    """Return an axis of integers, such as positions or offsets."""
    axis = alt.Axis(tickMinStep=1, format="d", grid=False)
    return alt.X(f"{column}:Q", title=title, scale=alt.Scale(nice=False), axis=axis)
