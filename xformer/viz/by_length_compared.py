"""Draw how long several models can go on: one curve a player, with filled points where its training had that length.

viz.lengths_compared(contenders)
"""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import pandas as pd

from xformer.analysis.comparison import Contender
from xformer.analysis.scoring import BY_LENGTH_COMPARED_SAMPLES
from xformer.analysis.scoring import lengths_compared as table_of
from xformer.viz import theme
from xformer.viz.charts import layered
from xformer.viz.divergence import WIDTHS, Drawing, player_hues, short_names


def lengths_compared(
    contenders: Sequence[Contender],
    *,
    lengths: Sequence[int] | None = None,
    samples: int = BY_LENGTH_COMPARED_SAMPLES,
    seed: int = 0,
    table: pd.DataFrame | None = None,
    unit: str = "symbols",
    dark: bool = False,
) -> Drawing:
    """`analysis.lengths_compared`: whole answers right at each length, a line a player with its 95 % interval; points are
    filled where its training had inputs of that length. `table` is that of the analysis where it is there already."""
    frame = table_of(contenders, lengths=lengths, samples=samples, seed=seed) if table is None else table
    names = short_names([one.name for one in contenders])
    data = frame.assign(
        player=[names[name] for name in frame["player"]],
        training=["trained on" if was else "never shown" for was in frame["trained"]],
    )
    players = list(dict.fromkeys(data["player"]))
    data = data.assign(width=[0.7 * WIDTHS[players.index(player) % len(WIDTHS)] for player in data["player"]])
    x = alt.X("length:Q", title=f"length of the input, in {unit}", scale=alt.Scale(nice=False, padding=8),
              axis=alt.Axis(format="d", tickMinStep=1))  # fmt: skip
    scale, title = alt.Scale(domain=[0, 1]), "whole answers right"
    y = alt.Y("exact_match:Q", title=title, scale=scale, axis=alt.Axis(format="%"))
    hover = [
        alt.Tooltip("player:N"),
        alt.Tooltip("length:Q"),
        alt.Tooltip("exact_match:Q", title=title, format=".1%"),
        alt.Tooltip("token_accuracy:Q", title="single tokens right", format=".1%"),
        alt.Tooltip("samples:Q", title="inputs"),
        alt.Tooltip("training:N", title="this length"),
    ]
    hues = player_hues(players, dark)
    base = alt.Chart(data).encode(x, hues)
    paper = theme.pick(theme.BACKGROUND, dark)
    points = base.mark_point(size=34, strokeWidth=1.5, opacity=1, filled=False)
    return layered(
        base.mark_area(opacity=0.18).encode(alt.Y("low:Q", title=title, scale=scale), alt.Y2("high:Q")),
        base.mark_line().encode(y, strokeWidth=alt.StrokeWidth("width:Q", scale=None)),
        points.transform_filter("!datum.trained").encode(y, fill=alt.value(paper), tooltip=hover),
        base.mark_point(size=34, opacity=1, filled=True).transform_filter("datum.trained").encode(y, tooltip=hover),
        height=320,
    )
