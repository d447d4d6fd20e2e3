"""Draw neurons: their activations as a map, how many of them fire, and what some of them say.

activation_map(trace["encoder.0.ffn.post"][0].numpy(), tokens, order, signed=False, limit=2.0, dark=False)
"""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Float, Int

from xformer.viz import theme

TALL = 380
"""Pixels for the rows of a picture, so that it stands on a screen together with what changes it."""
MOST_NEURONS, MOST_TOKENS = 1024, 40
"""So many neurons have a column of the map, and so many tokens one of the promotions."""
FIRES, RESTS, DEAD = "fires at an average position", "silent there, fires elsewhere", "dead: fires nowhere"


def by_mean(values: Float[np.ndarray, "pos neuron"]) -> Int[np.ndarray, " neuron"]:
    """The neurons in the order of their mean over the positions, the most active first."""
    return np.argsort(-values.mean(axis=0), kind="stable")


def activation_map(
    values: Float[np.ndarray, "pos neuron"],
    tokens: Sequence[str],
    order: Int[np.ndarray, " neuron"],
    *,
    signed: bool,
    limit: float,
    dark: bool,
    chosen: int | None = None,
    first: int = 0,
) -> go.Figure:
    """The activations with the neurons from left to right in `order`; drag to zoom into a range of them.

    Colours run from 0 to `limit`, or with `signed` from −`limit` to `limit`; give two maps the same to compare them.
    `chosen` marks one neuron with a triangle. Only the first `MOST_NEURONS` of `order` are drawn.
    `first` is the position of the first row.
    """
    is_sorted = not np.array_equal(order, np.arange(values.shape[1]))
    order = order[:MOST_NEURONS]
    n_pos, n_neurons = len(values), len(order)
    places = [f"{position} · {token}" for position, token in enumerate(tokens, first)]
    stops = theme.diverging(dark) if signed else theme.sequential(dark)
    figure = go.Figure(
        go.Heatmap(
            z=np.ascontiguousarray(values[:, order], dtype=np.float32),
            x=np.arange(n_neurons),
            y=np.arange(n_pos),
            customdata=np.broadcast_to(order.astype(np.int32), (n_pos, n_neurons)).copy(),
            text=[[place] * n_neurons for place in places],
            hovertemplate="neuron %{customdata}<br>position %{text}<br>activation %{z:.5f}<extra></extra>",
            zmin=-limit if signed else 0.0,
            zmax=limit,
            colorscale=theme.plotly_scale(stops),
            colorbar={"title": {"text": "activation"}, "thickness": 12, "outlinewidth": 0, "tickformat": ".2~f"},
        )
    )
    if chosen is not None and chosen in order:
        figure.add_annotation(
            x=int(np.flatnonzero(order == chosen)[0]), y=0, yref="paper", yanchor="top", yshift=3,
            text="▲", showarrow=False, font={"size": 15, "color": theme.pick(theme.PART_HUES["feed_forward"], dark)},
        )  # fmt: skip
    step = max(1, n_pos // 24)
    figure.update_yaxes(
        autorange="reversed",
        tickvals=np.arange(0, n_pos, step),
        ticktext=places[::step],
        title="position · token",
        showgrid=False,
    )
    title = "neurons, the most active on average first" if is_sorted else "neuron"
    ticks = np.linspace(0, n_neurons - 1, 9).round().astype(int)
    figure.update_xaxes(
        title=title, showgrid=False, tickvals=ticks, ticktext=[f"#{order[i]}" if is_sorted else str(i) for i in ticks],
        tickangle=0, ticklabelstandoff=12,
    )  # fmt: skip
    figure.update_layout(height=110 + min(TALL, max(150, 24 * n_pos)), margin={"l": 10, "r": 10, "t": 12, "b": 10})
    return figure


def activity_chart(frame: pd.DataFrame, titles: dict[str, str], *, dark: bool) -> alt.LayerChart | alt.FacetChart:
    """An `activity` frame as one bar for each layer and what it was counted over, cut into firing, resting and dead.

    `titles` names the layers.
    """
    rows = []
    for row in frame.to_dict("records"):
        where = f"{titles[row['layer']]} · {row['over']}"
        shares = {FIRES: row["share_at_once"], RESTS: row["share_ever"] - row["share_at_once"], DEAD: row["share_dead"]}
        for order, (state, share) in enumerate(shares.items()):
            rows.append(
                {
                    "where": where,
                    "state": state,
                    "share": share,
                    "order": order,
                    "dead": row["dead"],
                    "of": row["neurons"],
                }
            )
    data = pd.DataFrame(rows)
    sort = list(dict.fromkeys(data["where"]))
    strong = theme.pick(theme.PART_HUES["feed_forward"], dark)
    faint = theme.resample([theme.pick(theme.BACKGROUND, dark), strong], 4)[1]
    colours = alt.Scale(domain=[FIRES, RESTS, DEAD], range=[strong, faint, theme.pick(theme.TEXT, dark)])
    ink = theme.pick(theme.TEXT, dark)
    y = alt.Y("where:N", sort=sort, title=None, axis=alt.Axis(labelLimit=320, labelOverlap=False))
    bars = (
        alt.Chart(data)
        .mark_bar(stroke=theme.pick(theme.BACKGROUND, dark))
        .encode(
            alt.X(
                "share:Q",
                scale=alt.Scale(domain=[0, 1]),
                title="share of the layer's neurons",
                axis=alt.Axis(format="%"),
            ),
            y,
            alt.Color("state:N", scale=colours, legend=alt.Legend(title=None, orient="top", labelLimit=320)),
            alt.Order("order:Q"),
            tooltip=[
                "where:N",
                "state:N",
                alt.Tooltip("share:Q", format=".3%"),
                "dead:Q",
                alt.Tooltip("of:Q", title="neurons"),
            ],
        )
    )
    said = data[data["order"] == 2].assign(text=lambda d: [f"{dead} dead" for dead in d["dead"]])
    names = (
        alt.Chart(said).mark_text(align="left", dx=6, fontSize=12, color=ink).encode(alt.XDatum(1.0), y, text="text:N")
    )
    return alt.layer(bars, names).properties(
        height=max(16, min(30, TALL // len(sort))) * len(sort) + 90,
        padding={"left": 12, "right": 5, "top": 5, "bottom": 5},
    )


def promotion_chart(
    effect: Float[np.ndarray, "neuron vocab"], neurons: Sequence[int], labels: Sequence[str], *, dark: bool
) -> alt.LayerChart | alt.FacetChart:
    """What each of some neurons adds to each logit: one row per neuron, one column per token; the strongest is written.

    Of more than `MOST_TOKENS` tokens those are shown whose logits any of the neurons changes most.
    """
    limit = theme.signed_limit(effect)
    if len(labels) > MOST_TOKENS:
        kept = np.sort(np.argsort(-np.abs(effect).max(axis=0), kind="stable")[:MOST_TOKENS])
        effect, labels = effect[:, kept], [labels[int(token)] for token in kept]
    names = [f"#{neuron}" for neuron in neurons]
    data = pd.DataFrame(
        {
            "neuron": np.repeat(names, len(labels)),
            "token": np.tile(np.asarray(labels, dtype=object), len(names)),
            "adds": np.asarray(effect, dtype=np.float64).ravel(),
        }
    )
    best = data.loc[data.groupby("neuron", sort=False)["adds"].idxmax()]
    stops = theme.diverging(dark)
    inks = [theme.ink(stops[round((value / limit + 1) / 2 * (len(stops) - 1))]) for value in best["adds"]]
    x = alt.X(
        "token:N",
        sort=list(labels),
        title="token whose logit it changes",
        axis=alt.Axis(labelAngle=-90, labelOverlap=False),
    )
    y = alt.Y("neuron:N", sort=names, title=None, axis=alt.Axis(labelOverlap=False))
    cells = (
        alt.Chart(data)
        .mark_rect()
        .encode(
            x,
            y,
            alt.Color(
                "adds:Q",
                scale=alt.Scale(**theme.vega_scale(stops, -limit, limit)),
                legend=alt.Legend(title="adds to the logit", orient="top", gradientLength=160, format="+.2~f"),
            ),
            tooltip=["neuron:N", "token:N", alt.Tooltip("adds:Q", title="adds to the logit", format="+.5f")],
        )
    )
    ink = alt.condition(alt.datum.ink == "#ffffff", alt.value("#ffffff"), alt.value(theme.TEXT[0]))
    hover = ["neuron:N", "token:N", alt.Tooltip("adds:Q", title="adds to the logit", format="+.5f")]
    top = alt.Chart(best.assign(ink=inks)).mark_text(fontSize=12, fontWeight="bold")
    top = top.encode(x, y, color=ink, text="token:N", tooltip=hover)
    return alt.layer(cells, top).properties(height=28 * len(names) + 110)


def neuron_chart(
    values: dict[str, Float[np.ndarray, " pos"]], tokens: Sequence[str], *, dark: bool, first: int = 0
) -> alt.Chart:
    """One neuron's activation at each position from `first` on, side by side for each run named in `values`."""
    places = [f"{position} · {token}" for position, token in enumerate(tokens, first)]
    data = pd.DataFrame(
        [
            {"place": place, "run": name, "activation": float(value)}
            for name, row in values.items()
            for place, value in zip(places, row, strict=True)
        ]
    )
    strong = theme.pick(theme.PART_HUES["feed_forward"], dark)
    colours = alt.Scale(domain=list(values), range=[strong, theme.pick(theme.HEAD_HUES[1], dark)][: len(values)])
    legend = alt.Legend(title=None, orient="top") if len(values) > 1 else None
    axis = alt.Axis(labelAngle=0 if len(places) <= 8 else -90, labelOverlap=len(places) > 24)
    chart = alt.Chart(data).mark_bar().encode(
        alt.X("place:N", sort=places, title="position · token", axis=axis),
        alt.Y("activation:Q", title="activation"),
        alt.Color("run:N", scale=colours, legend=legend),
        tooltip=["place:N", "run:N", alt.Tooltip("activation:Q", format=".5f")],
    )  # fmt: skip
    return (chart.encode(xOffset=alt.XOffset("run:N", sort=list(values))) if len(values) > 1 else chart).properties(
        height=300
    )
