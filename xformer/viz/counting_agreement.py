"""Draw how often players are right: shares with their intervals by position or length, and who says what for what.

counted = xformer.analysis.agreement(contenders)
viz.accuracy(counted, "position", "token")
viz.confusion(counted, "original")
"""

from __future__ import annotations

from typing import Literal

import altair as alt
import pandas as pd

from xformer.analysis.scoring import Agreement
from xformer.analysis.scoring import accuracy as accuracy_table
from xformer.analysis.scoring import confusion as confusion_table
from xformer.viz import theme
from xformer.viz.charts import layered
from xformer.viz.divergence import WIDTHS, Drawing, player_hues, short_names

_TITLES = {
    ("position", "token"): "token right",
    ("position", "exact"): "all right up to here",
    ("length", "token"): "tokens right",
    ("length", "exact"): "whole answer right",
}


def accuracy(
    counted: Agreement,
    by: Literal["position", "length"] = "position",
    measure: Literal["token", "exact"] = "token",
    *,
    height: int = 280,
    dark: bool = False,
) -> Drawing:
    """One line per player from 0 to 1, with its 95 % interval as a band."""
    names = short_names(counted.players)
    frame = accuracy_table(counted, by)
    frame["player"] = [names[name] for name in frame["player"]]
    data = frame[frame["measure"] == measure]
    players = list(dict.fromkeys(data["player"]))
    data = data.assign(width=[0.5 * WIDTHS[players.index(player) % len(WIDTHS)] for player in data["player"]])
    title = "position in the answer" if by == "position" else "length of the answer"
    x = alt.X(f"{by}:Q", title=title, axis=alt.Axis(tickMinStep=1, format="d"), scale=alt.Scale(nice=False, padding=12))
    scale = alt.Scale(domain=[0, 1])
    name = _TITLES[by, measure]
    base = alt.Chart(data).encode(x, player_hues(players, dark))
    hover = [
        alt.Tooltip("player:N"),
        alt.Tooltip(f"{by}:Q", title=title),
        alt.Tooltip("share:Q", title=name, format=".6f"),
        alt.Tooltip("low:Q", title="95 % from", format=".6f"),
        alt.Tooltip("high:Q", title="to", format=".6f"),
        alt.Tooltip("hits:Q", title="right"),
        alt.Tooltip("trials:Q", title="of"),
    ]
    return layered(
        base.mark_area(opacity=0.25).encode(alt.Y("low:Q", title=name, scale=scale), alt.Y2("high:Q")),
        base.mark_line().encode(
            alt.Y("share:Q", title=name, scale=scale), alt.StrokeWidth("width:Q", scale=None, legend=None)
        ),
        base.mark_point(size=70, filled=True, opacity=1).encode(
            alt.Y("share:Q", title=name, scale=scale), tooltip=hover
        ),
        height=height + 15 * len(players),
    )


def confusion(counted: Agreement, player: str, *, title: str = "", dark: bool = False) -> Drawing:
    """What one player says for each right token: shares of a row, which sum to 1; empty: never.

    The right ones lie on the diagonal, which is outlined.
    """
    data = confusion_table(counted, player)
    came_up = set(data["right"]) | set(data["predicted"])
    order = [label for label in counted.labels if label in came_up]
    stops = theme.sequential(dark)
    crowded = len(order) > 30
    base = alt.Chart(data).encode(
        alt.X(
            "predicted:N",
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
            alt.Tooltip("player:N"),
            alt.Tooltip("right:N", title="right token"),
            alt.Tooltip("predicted:N", title="said token"),
            alt.Tooltip("count:Q", title="times"),
            alt.Tooltip("share:Q", title="share of the row", format=".6f"),
        ],
    )
    diagonal = (
        alt.Chart(pd.DataFrame({"predicted": order, "right": order}))
        .mark_rect(filled=False, stroke=theme.pick(theme.RIGHT.colour, dark), strokeWidth=1.5)
        .encode(alt.X("predicted:N", sort=order), alt.Y("right:N", sort=order))
    )
    cells = base.mark_rect().encode(
        alt.Color(
            "share:Q",
            scale=alt.Scale(**theme.vega_scale(stops, 0, 1)),
            legend=alt.Legend(title="share", orient="bottom", gradientLength=140, format=".1f"),
        )
    )
    return layered(cells, diagonal, height=20 * len(order) + 130, title=title)
