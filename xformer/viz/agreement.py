"""Draw how often players are right: shares with their intervals by position or length, and who says what for what.

share_chart(agreement.by_position(), "position", "token", dark=False)
confusion_chart(agreement.confusion(), "original", labels, dark=False)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import altair as alt
import pandas as pd

from xformer.viz import theme
from xformer.viz.decoding import WIDTHS, player_hues

_TITLES = {
    ("position", "token"): "token right",
    ("position", "exact"): "all right up to here",
    ("length", "token"): "tokens right",
    ("length", "exact"): "whole answer right",
}


def share_chart(
    frame: pd.DataFrame,
    group: Literal["position", "length"],
    measure: Literal["token", "exact"],
    *,
    dark: bool,
    height: int = 280,
) -> alt.LayerChart | alt.FacetChart:
    """One line per player from 0 to 1 of a `by_position` or `by_length` table, with its 95 % interval as a band."""
    data = frame[frame["measure"] == measure]
    players = list(dict.fromkeys(data["player"]))
    data = data.assign(width=[0.5 * WIDTHS[players.index(player) % len(WIDTHS)] for player in data["player"]])
    title = "position in the answer" if group == "position" else "length of the answer"
    x = alt.X(
        f"{group}:Q", title=title, axis=alt.Axis(tickMinStep=1, format="d"), scale=alt.Scale(nice=False, padding=12)
    )
    scale = alt.Scale(domain=[0, 1])
    name = _TITLES[group, measure]
    base = alt.Chart(data).encode(x, player_hues(players, dark))
    hover = [
        "player:N",
        alt.Tooltip(f"{group}:Q", title=title),
        alt.Tooltip("share:Q", title=name, format=".6f"),
        alt.Tooltip("low:Q", title="95 % from", format=".6f"),
        alt.Tooltip("high:Q", title="to", format=".6f"),
        alt.Tooltip("hits:Q", title="right"),
        alt.Tooltip("trials:Q", title="of"),
    ]
    return alt.layer(
        base.mark_area(opacity=0.25).encode(alt.Y("low:Q", title=name, scale=scale), alt.Y2("high:Q")),
        base.mark_line().encode(
            alt.Y("share:Q", title=name, scale=scale), alt.StrokeWidth("width:Q", scale=None, legend=None)
        ),
        base.mark_point(size=70, filled=True, opacity=1).encode(
            alt.Y("share:Q", title=name, scale=scale), tooltip=hover
        ),
    ).properties(height=height + 15 * len(players))


def confusion_chart(
    frame: pd.DataFrame, player: str, labels: Sequence[str], *, dark: bool, title: str = ""
) -> alt.LayerChart | alt.FacetChart:
    """What one player of a `confusion` table says for each right token: shares of a row, which sum to 1; empty: never.

    `labels` give the order of the tokens. The right ones lie on the diagonal, which is outlined.
    """
    data = frame[frame["player"] == player]
    came_up = set(data["right"]) | set(data["said"])
    order = [label for label in labels if label in came_up]
    stops = theme.sequential(dark)
    crowded = len(order) > 30
    base = alt.Chart(data).encode(
        alt.X(
            "said:N",
            sort=order,
            scale=alt.Scale(domain=order),
            title="said token",
            axis=alt.Axis(labelAngle=-90, labelOverlap=crowded),
        ),
        alt.Y(
            "right:N",
            sort=order,
            scale=alt.Scale(domain=order),
            title="right token",
            axis=alt.Axis(labelOverlap=crowded),
        ),
        tooltip=[
            "player:N",
            alt.Tooltip("right:N", title="right token"),
            alt.Tooltip("said:N", title="said token"),
            alt.Tooltip("count:Q", title="times"),
            alt.Tooltip("share:Q", title="share of the row", format=".6f"),
        ],
    )
    diagonal = (
        alt.Chart(pd.DataFrame({"said": order, "right": order}))
        .mark_rect(filled=False, stroke=theme.pick(theme.RIGHT.colour, dark), strokeWidth=1.5)
        .encode(alt.X("said:N", sort=order), alt.Y("right:N", sort=order))
    )
    cells = base.mark_rect().encode(
        alt.Color(
            "share:Q",
            scale=alt.Scale(**theme.vega_scale(stops, 0, 1)),
            legend=alt.Legend(title="share", orient="bottom", gradientLength=140, format=".1f"),
        )
    )
    return alt.layer(cells, diagonal).properties(height=20 * len(order) + 130, title=title)
