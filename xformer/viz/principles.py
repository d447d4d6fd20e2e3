"""Pictures of the first principles: matrices with their numbers written in, variances, a softmax that saturates, costs.

matrix_chart(matrix_frame(x, words, dimensions), kind="signed", dark=False)
"""

from __future__ import annotations

from typing import Any, Literal

import altair as alt
import numpy as np
import pandas as pd

from xformer.viz import theme
from xformer.viz.residual import written

ROW = 34
AROUND = 26
"""Pixels of a matrix's height that its titles and names take."""
FRAMED = 2
"""The layer of a matrix that frames a row."""
SCALED, RAW = "with 1/√d", "without"
PARTS = ("Q, K, V = X W", "Q Kᵀ", "A V", "out = Z W_O")


def matrix_chart(
    frame: pd.DataFrame,
    *,
    kind: Literal["signed", "share"],
    dark: bool,
    rows: str = "",
    columns: str = "",
    limit: float | None = None,
    chosen: str = "",
    struck: bool = False,
    named: bool = True,
    extent: int = 30,
) -> alt.LayerChart | alt.FacetChart:
    """A matrix as coloured cells with its numbers: signed ones centred on zero, shares on the fixed scale from 0 to 1.

    `frame` is a `matrix_frame`; −∞ is written in grey. `chosen` names a row to frame, `limit` the largest magnitude of the
    colours; `struck` says that zeros are forbidden cells. Without `named` the rows have no names, as beside a matrix of the
    same rows; `extent` are the pixels for the names of the columns, so that neighbours can be made to align.
    """
    down, across = list(dict.fromkeys(frame["row"])), list(dict.fromkeys(frame["column"]))
    values = frame["value"].to_numpy(dtype=float)
    if kind == "signed":
        limit = limit or theme.signed_limit(values)
        stops, low, high = theme.diverging(dark), -limit, limit
    else:
        stops, low, high = theme.sequential(dark), 0.0, 1.0
    place = np.clip((np.nan_to_num(values, neginf=low) - low) / (high - low), 0, 1) * (len(stops) - 1)
    hidden = np.isneginf(values) | (struck & (values == 0.0))
    many = len(across) > 6
    digits = 1 if many and kind == "signed" else 2
    data = frame.assign(
        value=np.where(hidden, np.nan, values),
        hidden=hidden,
        shown=["−∞" if np.isneginf(value) else _written(value, digits) for value in values],
        exact=["−∞" if np.isneginf(value) else f"{value:.6f}" for value in values],
        ink=[
            theme.ink(theme.pick(theme.MASKED, dark)) if gone else theme.ink(stops[round(at)])
            for at, gone in zip(place, hidden, strict=True)
        ],
    )
    axis = {"ticks": False, "domain": False, "labelOverlap": False, "titleFontWeight": "normal"}
    base = alt.Chart(data).encode(
        alt.X(
            "column:N",
            sort=across,
            title=columns or None,
            axis=alt.Axis(
                orient="top",
                labelAngle=-40 if extent > 30 else 0,
                minExtent=extent,
                maxExtent=extent,
                labelLimit=52 if many else 84,
                **axis,
            ),
        ),
        alt.Y(
            "row:N",
            sort=down,
            title=(rows or None) if named else None,
            axis=alt.Axis(**axis, labels=named, labelLimit=84),
        ),
        tooltip=[
            alt.Tooltip("row:N", title=rows or "row"),
            alt.Tooltip("column:N", title=columns or "column"),
            alt.Tooltip("exact:N", title="value"),
        ],
    )
    scale = alt.Scale(**theme.vega_scale(stops, low, high))
    layers = [
        base.transform_filter("!datum.hidden").mark_rect().encode(color=alt.Color("value:Q", scale=scale, legend=None)),
        base.transform_filter("datum.hidden").mark_rect(color=theme.pick(theme.MASKED, dark)),
    ]
    frame_hue = theme.pick(theme.HEAD_HUES[1], dark)
    layers.append(
        base.transform_filter(alt.FieldEqualPredicate(field="row", equal=chosen)).mark_rect(
            fillOpacity=0, stroke=frame_hue, strokeWidth=2.5
        )
    )
    layers.append(base.mark_text(fontSize=12 if len(across) <= 6 else 10.5).encode(text="shown:N", color=written()))
    return alt.layer(*layers).properties(height=ROW * len(down) + AROUND + extent)


def frame_row(spec: dict[str, Any], row: str) -> dict[str, Any]:
    """The specification of a `matrix_chart` with another row framed: far cheaper than to draw it anew. Changes `spec`."""
    spec["layer"][FRAMED]["transform"][0]["filter"]["equal"] = row
    return spec


def variance_chart(frame: pd.DataFrame, *, dark: bool, d: int | None = None) -> alt.LayerChart | alt.FacetChart:
    """Measured variances against the width, on logarithmic axes, with the lines d and 1 that they should lie on."""
    measured = frame.melt("d", ["variance", "scaled"], "what", "value")
    names = {"variance": "q · k", "scaled": "q · k / √d"}
    measured["what"] = [names[what] for what in measured["what"]]
    theory = pd.concat(
        [
            pd.DataFrame({"d": frame["d"], "what": names["variance"], "value": frame["d"].astype(float)}),
            pd.DataFrame({"d": frame["d"], "what": names["scaled"], "value": 1.0}),
        ]
    )
    x = alt.X(
        "d:Q", title="d, the width of q and k", scale=alt.Scale(type="log", base=2, nice=False), axis=_powers(frame)
    )
    y = alt.Y(
        "value:Q",
        title="variance",
        scale=alt.Scale(type="log", domain=[0.5, 1024]),
        axis=alt.Axis(values=[1, 4, 16, 64, 256, 1024], format="d"),
    )
    colour = alt.Color(
        "what:N",
        title=None,
        scale=alt.Scale(domain=list(names.values()), range=[_hue(1, dark), _hue(0, dark)]),
        legend=alt.Legend(orient="top", symbolType="circle", symbolSize=90),
    )
    tooltip = [
        alt.Tooltip("d:Q"),
        alt.Tooltip("what:N", title="of"),
        alt.Tooltip("value:Q", format=".5f", title="variance"),
    ]
    layers: list[alt.Chart] = [
        alt.Chart(theory).mark_line(strokeDash=[5, 4], strokeWidth=1.5).encode(x, y, color=colour),
        alt.Chart(measured).mark_circle(size=70, opacity=1).encode(x, y, color=colour, tooltip=tooltip),
    ]
    return alt.layer(*_here(d, x, dark), *layers).properties(height=300)


def saturation_chart(
    frame: pd.DataFrame, what: Literal["largest", "gradient"], *, dark: bool, d: int | None = None
) -> alt.LayerChart | alt.FacetChart:
    """The mean largest weight, or the mean largest entry of the softmax's Jacobian, with the scale and without."""
    title, top = {
        "largest": ("largest weight of a row", 1.0),
        "gradient": ("largest p (1 − p)", 0.25),
    }[what]
    x = alt.X(
        "d:Q", title="d, the width of q and k", scale=alt.Scale(type="log", base=2, nice=False), axis=_powers(frame)
    )
    base = alt.Chart(frame).encode(
        x,
        alt.Y(f"{what}:Q", title=title, scale=alt.Scale(domain=[0, top])),
        color=alt.Color(
            "scale:N",
            title=None,
            scale=alt.Scale(domain=[RAW, SCALED], range=[_hue(1, dark), _hue(0, dark)]),
            legend=alt.Legend(orient="top", symbolStrokeWidth=4),
        ),
        tooltip=["d:Q", "scale:N", alt.Tooltip(f"{what}:Q", format=".5f")],
    )
    return alt.layer(
        *_here(d, x, dark), base.mark_line(strokeWidth=2.5), base.mark_circle(size=50, opacity=1)
    ).properties(height=300)


def weight_bars(frame: pd.DataFrame, *, dark: bool) -> alt.LayerChart | alt.FacetChart:
    """The weights of one row as bars from 0 to 1. `frame`: key, score, weight."""
    base = alt.Chart(frame).encode(
        alt.X("key:O", title="key", axis=alt.Axis(labelAngle=0)),
        alt.Y("weight:Q", title="weight", scale=alt.Scale(domain=[0, 1])),
        tooltip=["key:O", alt.Tooltip("score:Q", format=".4f"), alt.Tooltip("weight:Q", format=".6f")],
    )
    text = (
        base.transform_filter("datum.weight >= 0.05")
        .mark_text(dy=-8, color=theme.pick(theme.TEXT, dark))
        .encode(text=alt.Text("weight:Q", format=".2f"))
    )
    return alt.layer(base.mark_bar(color=_hue(0, dark)), text).properties(height=300)


def cost_chart(frame: pd.DataFrame, *, dark: bool) -> alt.LayerChart | alt.FacetChart:
    """Multiplications of each way to have heads, stacked by part, with the sum that torch measured behind. `frame`: `costs`."""
    order = list(dict.fromkeys(frame["heads"]))
    bars = (
        alt.Chart(frame)
        .mark_bar()
        .encode(
            alt.Y("heads:N", sort=order, title=None, axis=alt.Axis(labelLimit=140)),
            alt.X(
                "count:Q", title="multiplications", axis=alt.Axis(labelExpr="format(datum.value, '~s')", tickCount=5)
            ),
            color=alt.Color(
                "part:N",
                title=None,
                sort=list(PARTS),
                scale=alt.Scale(domain=list(PARTS), range=theme.head_hues(len(PARTS), dark)),
                legend=alt.Legend(orient="top", columns=4, labelLimit=140),
            ),
            order=alt.Order("rank:Q"),
            tooltip=[
                alt.Tooltip("heads:N"),
                alt.Tooltip("part:N"),
                alt.Tooltip("count:Q", format=",", title="from the shapes"),
                alt.Tooltip("measured:Q", format=",", title="whole layer, measured"),
            ],
        )
        .transform_calculate(rank=f"indexof({list(PARTS)!r}, datum.part)")
    )
    sums = frame.drop_duplicates("heads").assign(shown=[f"{m:,}" for m in frame.drop_duplicates("heads")["measured"]])
    words = (
        alt.Chart(sums)
        .mark_text(align="left", dx=6, color=theme.pick(theme.TEXT, dark))
        .encode(alt.Y("heads:N", sort=order, title=None), alt.X("measured:Q"), text="shown:N")
    )
    room = alt.Chart(pd.DataFrame({"measured": [1.18 * max(frame["measured"])]}))
    return alt.layer(bars, words, room.mark_point(opacity=0).encode(alt.X("measured:Q"))).properties(height=200)


def _written(value: float, digits: int) -> str:
    """A number as it stands in its cell, with a true minus sign and no −0."""
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")


def _here(d: int | None, x: alt.X, dark: bool) -> list[alt.Chart]:
    """A line at the width that is looked at."""
    if d is None:
        return []
    rule = alt.Chart(pd.DataFrame({"d": [d]})).mark_rule(
        color=theme.pick(theme.TEXT, dark), opacity=0.35, strokeWidth=2
    )
    return [rule.encode(x)]


def _powers(frame: pd.DataFrame) -> alt.Axis:
    return alt.Axis(values=sorted(set(frame["d"].tolist())), format="d", grid=False, labelAngle=0)


def _hue(head: int, dark: bool) -> str:
    return theme.head_hue(head, dark)
