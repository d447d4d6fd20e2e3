"""Pictures of positions: waves, products by offset, ALiBi's slopes, and one head's attention before and after.

Each takes a table that `xformer.analysis.positions` makes and returns an Altair chart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import altair as alt
import pandas as pd

from xformer.viz import theme
from xformer.viz.embeddings import rows_height

MOST_HEADS = 12
"""So many bars can be read beside a picture."""


def curves(
    table: pd.DataFrame,
    *,
    dark: bool,
    by: str = "dimension",
    x: str = "position",
    y: str = "value",
    trained: int | None = None,
    height: int = 380,
    legend: Literal["top", "bottom"] = "top",
) -> alt.LayerChart | alt.FacetChart:
    """Some lines over positions, one for each `by` (dimension or head); a click on the legend picks lines out.

    From position `trained` on, which training never showed the model, the picture is shaded.
    """
    lines = list(dict.fromkeys(table[by]))
    colour = alt.Color(
        f"{by}:N",
        title=f"{by} (click)",
        sort=lines,
        scale=alt.Scale(domain=lines, range=theme.head_hues(len(lines), dark)),
        legend=alt.Legend(symbolType="stroke", symbolStrokeWidth=4, orient=legend, columns=8),
    )
    picked = alt.selection_point(name="picked", fields=[by], bind="legend", toggle="true")
    tooltip = [alt.Tooltip(f"{by}:N"), alt.Tooltip(f"{x}:Q"), alt.Tooltip(f"{y}:Q", format=".7g")]
    base = alt.Chart(table).encode(
        x=alt.X(f"{x}:Q", title=_TITLES.get(x, x), scale=alt.Scale(nice=False), axis=_whole()),
        y=alt.Y(f"{y}:Q", title=_TITLES.get(y, y)),
        color=colour,
        tooltip=tooltip,
    )
    layers = [
        base.mark_line(strokeWidth=2.5, interpolate="linear")
        .encode(opacity=alt.condition(picked, alt.value(1.0), alt.value(0.08)))
        .add_params(picked),
        base.mark_circle(size=36).encode(opacity=alt.condition(picked, alt.value(0.9), alt.value(0.04))),
    ]
    return alt.layer(*_untrained(trained, int(max(table[x])), dark), *layers).properties(height=height)


def offset_band(table: pd.DataFrame, *, dark: bool, title: str, height: int = 300) -> alt.LayerChart | alt.FacetChart:
    """Mean by offset as a line, with the band from the lowest to the highest pair of positions. `table`: `by_offset`."""
    hue = theme.pick(theme.PART_HUES["positions"], dark)
    base = alt.Chart(table).encode(
        x=alt.X("offset:Q", title=_TITLES["offset"], scale=alt.Scale(nice=False), axis=_whole())
    )
    tooltip = [
        alt.Tooltip("offset:Q"),
        *(alt.Tooltip(f"{name}:Q", format=".7g") for name in ("mean", "low", "high")),
        alt.Tooltip("pairs:Q", title="pairs of positions"),
    ]
    return alt.layer(
        base.mark_area(color=hue, opacity=0.25).encode(y=alt.Y("low:Q", title=title), y2="high:Q"),
        base.mark_line(color=hue, strokeWidth=2.5).encode(y="mean:Q"),
        base.mark_circle(color=hue, size=40, opacity=1).encode(y="mean:Q", tooltip=tooltip),
    ).properties(height=height)


def pattern_heatmap(table: pd.DataFrame, *, dark: bool, height: int = 300) -> alt.LayerChart | alt.FacetChart:
    """One head's attention [query × key] on the fixed scale from 0 to 1; what may not be looked at is grey.

    `table`: see `pattern_table`.
    """
    labelled = table.assign(
        row=[f"{p} · {t}" if t else str(p) for p, t in zip(table["query"], table["query token"], strict=True)],
        column=[f"{p} · {t}" if t else str(p) for p, t in zip(table["key"], table["key token"], strict=True)],
    )
    rows, columns = list(dict.fromkeys(labelled["row"])), list(dict.fromkeys(labelled["column"]))

    def axis(angle: int) -> alt.Axis:
        return alt.Axis(
            labelAngle=angle,
            labelOverlap="parity" if len(rows) > 14 else False,
            ticks=False,
            domain=False,
            labelLimit=90,
        )

    base = alt.Chart(labelled).encode(
        x=alt.X("column:N", title="key", sort=columns, axis=axis(-90)),
        y=alt.Y("row:N", title="query", sort=rows, axis=axis(0)),
        tooltip=[
            alt.Tooltip("row:N", title="query"),
            alt.Tooltip("column:N", title="key"),
            alt.Tooltip("weight:Q", format=".7f"),
            alt.Tooltip("allowed:N", title="may look"),
        ],
    )
    scale = alt.Scale(**theme.vega_scale(theme.sequential(dark), 0.0, 1.0))
    legend = alt.Legend(title="weight", gradientLength=105, values=[0, 0.5, 1])
    return alt.layer(
        base.transform_filter("datum.allowed")
        .mark_rect()
        .encode(color=alt.Color("weight:Q", scale=scale, legend=legend)),
        base.transform_filter("!datum.allowed").mark_rect(color=theme.pick(theme.MASKED, dark)),
    ).properties(height=rows_height(len(rows), height, around=100))


def moved_bars(table: pd.DataFrame, *, dark: bool) -> alt.Chart:
    """How far each head's attention moved, 0 to 1; of more than `MOST_HEADS` heads those that moved furthest, in that order.

    `table` has where, head (from 1) and moved; heads keep their hues.
    """
    table = table if len(table) <= MOST_HEADS else table.nlargest(MOST_HEADS, "moved")
    heads = sorted({int(head) for head in table["head"]})
    hues = theme.head_hues(max(heads), dark)
    table = table.assign(name=[f"{w} · head {h}" for w, h in zip(table["where"], table["head"], strict=True)])
    return (
        alt.Chart(table)
        .mark_bar()
        .encode(
            x=alt.X("moved:Q", title="share that moved", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(tickCount=5)),
            y=alt.Y("name:N", title=None, sort=list(table["name"]), axis=alt.Axis(labelLimit=190, labelOverlap=False)),
            color=alt.Color(
                "head:N", scale=alt.Scale(domain=heads, range=[hues[head - 1] for head in heads]), legend=None
            ),
            tooltip=[alt.Tooltip("name:N", title="head"), alt.Tooltip("moved:Q", format=".7f")],
        )
        .properties(height=60 + max(60, 26 * len(table)))
    )


def _whole() -> alt.Axis:
    """Positions and offsets are whole numbers."""
    return alt.Axis(tickMinStep=1, format="d", grid=False)


def _untrained(trained: int | None, last: int, dark: bool) -> Sequence[alt.Chart]:
    if trained is None or trained > last:
        return ()
    shade = alt.Chart(pd.DataFrame({"from": [trained - 0.5], "to": [last]}))
    return (
        shade.mark_rect(color=theme.pick(theme.MASKED, dark), opacity=0.5).encode(
            x=alt.X("from:Q", title=_TITLES["position"], scale=alt.Scale(nice=False), axis=_whole()), x2="to:Q"
        ),
    )


_TITLES = {
    "position": "position",
    "value": "value that is added",
    "offset": "offset = key − query",
    "bias": "added to the score",
    "cos": "cos of the angle",
}
