"""Draw the logit lens: what the residual stream would say at each point, and where that is right.

lens_chart(lens(model, trace, labels, answers), reads, dark=False)
"""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import pandas as pd

from xformer.viz import theme
from xformer.viz.residual import ROOMY, TIGHT, around, flat_axis, place_labels, point_axis, written

ANSWER_ROW = "right answer"


def lens_chart(
    frame: pd.DataFrame,
    reads: Sequence[str],
    *,
    dark: bool,
    before: pd.DataFrame | None = None,
    title: str = "",
    named: bool = True,
    legend: bool = True,
) -> alt.LayerChart | alt.FacetChart:
    """A `lens` frame with answers: rows from the embedding down to the output, the right answers under them.

    The colour is the probability of the likeliest token, which is written in the cell; where it is right it carries ✓ and
    an outline. A cell whose token is another than in `before`, the frame of the original run, has a dashed frame. With many
    positions the numbers, then the tokens, are left to the hover. `named` writes the points beside the rows, which a second
    chart next to one that has them does not need.
    """
    places = place_labels(reads, sorted(frame["position"].unique()))
    points = list(dict.fromkeys(frame.sort_values("depth")["point"]))
    stops = theme.sequential(dark)
    data = frame.assign(
        place=[places[position] for position in frame["position"]],
        says=[
            f"{token} {theme.RIGHT.mark}" if right else token
            for token, right in zip(frame["token"], frame["right"], strict=True)
        ],
        share=[f"{p:.2f}" for p in frame["probability"]],
        ink=[theme.ink(stops[round(p * (len(stops) - 1))]) for p in frame["probability"]],
        verdict=[theme.RIGHT.word if right else theme.WRONG.word for right in frame["right"]],
    )
    if before is not None:
        was = before.set_index(["depth", "position"])["token"]
        data["was"] = [was.get(cell) for cell in zip(data["depth"], data["position"], strict=True)]
        data["moved"] = data["was"] != data["token"]
    answers = data.drop_duplicates("position").assign(point=ANSWER_ROW)
    n = len(places)
    x = alt.X("place:N", sort=list(places.values()), title="position · token read there", axis=flat_axis(n))
    y = alt.Y("point:N", sort=[*points, ANSWER_ROW], title="after …" if named else None, axis=point_axis(named))
    hover = [
        alt.Tooltip("point:N", title="after"),
        alt.Tooltip("place:N", title="position · reads"),
        alt.Tooltip("token:N", title="likeliest token"),
        alt.Tooltip("probability:Q", title="its probability", format=".6f"),
        alt.Tooltip("verdict:N", title="which is"),
        alt.Tooltip("answer:N", title="right answer"),
        alt.Tooltip("answer_probability:Q", title="probability of that", format=".6f"),
    ]
    if before is not None:
        hover.append(alt.Tooltip("was:N", title="in the original"))
    scale = alt.Scale(**theme.vega_scale(stops, 0, 1))
    key = alt.Legend(title="probability", format=".1f", gradientLength=160) if legend else None
    base = alt.Chart(data).encode(x, y)
    layers = [
        base.mark_rect(stroke=theme.pick(theme.BACKGROUND, dark), strokeWidth=1).encode(
            alt.Color("probability:Q", scale=scale, legend=key), tooltip=hover
        ),
        base.transform_filter("datum.right")
        .mark_rect(filled=False, stroke=theme.pick(theme.RIGHT.colour, dark), strokeWidth=3)
        .encode(tooltip=hover),
    ]
    if before is not None:
        layers.append(
            base.transform_filter("datum.moved")
            .mark_rect(filled=False, strokeWidth=1.5, strokeDash=[4, 3], width={"band": 0.92}, height={"band": 0.92})
            .encode(stroke=written(), tooltip=hover)
        )
    ink = written()
    if n <= TIGHT:
        lift = -6 if n <= ROOMY else 0
        layers.append(
            base.mark_text(fontSize=15 if n <= ROOMY and legend else 12, fontWeight="bold", dy=lift).encode(
                color=ink, text="says:N"
            )
        )
    if n <= ROOMY:
        layers.append(base.mark_text(fontSize=11, dy=11).encode(color=ink, text="share:N"))
    if n <= 1.5 * TIGHT:
        layers.append(
            alt.Chart(answers)
            .mark_text(fontSize=15 if n <= TIGHT else 10, fontWeight="bold", color=theme.pick(theme.TEXT, dark))
            .encode(x, y, text="answer:N", tooltip=["place:N", "answer:N"])
        )
    return alt.layer(*layers).properties(height=42 * (len(points) + 1) + around(title), title=title)
