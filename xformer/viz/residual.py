"""Draw the residual stream: what it would say at each point, how long it is, and which parts add to a logit.

lens_chart(lens(model, trace, labels, answers), reads, dark=False)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from xformer.viz import theme

ANSWER_ROW = "right answer"
_ROOMY, _TIGHT = 12, 24
"""Up to so many positions a cell has room for its probability, and for its token."""


def place_labels(reads: Sequence[str], positions: Sequence[int]) -> dict[int, str]:
    """Each position with the token that it reads, "3 · 12", so that repeats stay distinct."""
    return {position: f"{position} · {reads[position]}" for position in positions}


def lens_chart(frame: pd.DataFrame, reads: Sequence[str], *, dark: bool, title: str = "") -> alt.LayerChart:
    """A `lens` frame with answers: rows from the embedding down to the output, the right answers under them.

    The colour is the probability of the likeliest token, which is written in the cell; where it is right it carries ✓ and
    an outline. With many positions the numbers, then the tokens, are left to the hover.
    """
    places = place_labels(reads, sorted(frame["position"].unique()))
    points = list(dict.fromkeys(frame.sort_values("depth")["point"]))
    stops = theme.sequential(dark)
    data = frame.assign(
        place=frame["position"].map(places),
        says=[
            f"{token} {theme.RIGHT.mark}" if right else token
            for token, right in zip(frame["token"], frame["right"], strict=True)
        ],
        share=[f"{p:.2f}" for p in frame["probability"]],
        ink=[theme.ink(stops[round(p * (len(stops) - 1))]) for p in frame["probability"]],
        verdict=[theme.RIGHT.word if right else theme.WRONG.word for right in frame["right"]],
    )
    answers = data.drop_duplicates("position").assign(point=ANSWER_ROW)
    n = len(places)
    x = alt.X("place:N", sort=list(places.values()), title="position · token read there", axis=_flat(n))
    y = alt.Y("point:N", sort=[*points, ANSWER_ROW], title="after …", axis=alt.Axis(labelLimit=240))
    hover = [
        alt.Tooltip("point:N", title="after"),
        alt.Tooltip("place:N", title="position · reads"),
        alt.Tooltip("token:N", title="likeliest token"),
        alt.Tooltip("probability:Q", title="its probability", format=".6f"),
        alt.Tooltip("verdict:N", title="which is"),
        alt.Tooltip("answer:N", title="right answer"),
        alt.Tooltip("answer_probability:Q", title="probability of that", format=".6f"),
    ]
    scale = alt.Scale(**theme.vega_scale(stops, 0, 1))
    legend = alt.Legend(title="probability", format=".1f", gradientLength=160)
    base = alt.Chart(data).encode(x, y)
    layers = [
        base.mark_rect(stroke=theme.pick(theme.BACKGROUND, dark), strokeWidth=1).encode(
            alt.Color("probability:Q", scale=scale, legend=legend), tooltip=hover
        ),
        base.transform_filter("datum.right")
        .mark_rect(filled=False, stroke=theme.pick(theme.RIGHT.colour, dark), strokeWidth=3)
        .encode(tooltip=hover),
    ]
    ink = alt.Color("ink:N", scale=None)
    if n <= _TIGHT:
        lift = -6 if n <= _ROOMY else 0
        layers.append(
            base.mark_text(fontSize=15 if n <= _ROOMY else 12, fontWeight="bold", dy=lift).encode(ink, text="says:N")
        )
    if n <= _ROOMY:
        layers.append(base.mark_text(fontSize=11, dy=11).encode(ink, text="share:N"))
    layers.append(
        alt.Chart(answers)
        .mark_text(fontSize=15 if n <= _TIGHT else 10, fontWeight="bold", color=theme.pick(theme.TEXT, dark))
        .encode(x, y, text="answer:N", tooltip=["place:N", "answer:N"])
    )
    return alt.layer(*layers).properties(height=40 * (len(points) + 1), title=title)


def norm_chart(
    frame: pd.DataFrame, what: str, reads: Sequence[str], limit: float, *, dark: bool, title: str = ""
) -> alt.LayerChart:
    """The lengths of a `norms` frame ("stream" or "added") as a heatmap; colours run from 0 to `limit`."""
    frame = frame[frame["what"] == what]
    places = place_labels(reads, sorted(frame["position"].unique()))
    points = list(dict.fromkeys(frame.sort_values("depth")["point"]))
    stops = theme.sequential(dark)
    limit = limit or 1.0
    shade = [min(1.0, length / limit) for length in frame["length"]]
    data = frame.assign(
        place=frame["position"].map(places),
        shown=[f"{length:.1f}" for length in frame["length"]],
        ink=[theme.ink(stops[round(s * (len(stops) - 1))]) for s in shade],
    )
    n = len(places)
    base = alt.Chart(data).encode(
        alt.X("place:N", sort=list(places.values()), title="position · token read there", axis=_flat(n)),
        alt.Y(
            "point:N", sort=points, title="after …" if what == "stream" else "added by …", axis=alt.Axis(labelLimit=240)
        ),
    )
    layers = [
        base.mark_rect().encode(
            alt.Color(
                "length:Q",
                scale=alt.Scale(**theme.vega_scale(stops, 0, limit)),
                legend=alt.Legend(title="length ‖x‖", gradientLength=120, format=".3~g"),
            ),
            tooltip=[
                "point:N",
                alt.Tooltip("place:N", title="position · reads"),
                alt.Tooltip("length:Q", format=".5f"),
            ],
        )
    ]
    if n <= _ROOMY:
        layers.append(base.mark_text(fontSize=12).encode(alt.Color("ink:N", scale=None), text="shown:N"))
    return alt.layer(*layers).properties(height=30 * len(points), title=title)


def attribution_chart(frames: Mapping[str, pd.DataFrame], target: str, *, dark: bool) -> alt.LayerChart:
    """Bars of `attribution` frames by the name of the run; of two runs the first is drawn as an outline for comparison.

    Heads have their own hues, the other parts those of their kind. `target` names what the parts sum to.
    """
    first = next(iter(frames.values()))
    rows: list[dict[str, Any]] = []
    for name, frame in frames.items():
        rows += [row | {"run": name, "hue": _hue(row, dark)} for row in frame.to_dict("records")]
    data = pd.DataFrame(rows)
    two = len(frames) > 1
    parts = list(dict.fromkeys([*first["part"], *data["part"]]))
    y = alt.Y("part:N", sort=parts, title="part, in the order of the stream", axis=alt.Axis(labelLimit=260))
    x = alt.X("contribution:Q", title=f"adds to {target}")
    hover = ["part:N", "run:N", alt.Tooltip("contribution:Q", format="+.6f")]
    base = alt.Chart(data).encode(x, y, tooltip=hover)
    if two:
        base = base.encode(yOffset=alt.YOffset("run:N", sort=list(frames)))
        old, new = list(frames)
        bars = [
            base.transform_filter(alt.datum.run == old)
            .mark_bar(filled=False, strokeWidth=1.5)
            .encode(stroke=alt.Stroke("hue:N", scale=None)),
            base.transform_filter(alt.datum.run == new).mark_bar().encode(alt.Color("hue:N", scale=None)),
        ]
    else:
        bars = [base.mark_bar().encode(alt.Color("hue:N", scale=None))]
    ink = theme.pick(theme.TEXT, dark)
    number = {"fontSize": 11, "color": ink}
    text = alt.Text("contribution:Q", format="+.2f")
    labels = [
        base.transform_filter(alt.datum.contribution >= 0).mark_text(align="left", dx=4, **number).encode(text),
        base.transform_filter(alt.datum.contribution < 0).mark_text(align="right", dx=-4, **number).encode(text),
    ]
    zero = alt.Chart(pd.DataFrame({"at": [0.0]})).mark_rule(color=ink).encode(alt.X("at:Q", title=f"adds to {target}"))
    return alt.layer(*bars, *labels, zero).properties(height=(34 if two else 24) * len(parts))


def _flat(n: int) -> alt.Axis:
    return alt.Axis(labelAngle=0 if n <= _ROOMY else -90, orient="top", labelOverlap=False)


def _hue(row: dict[str, Any], dark: bool) -> str:
    if row["head"]:
        return theme.head_hue(row["head"] - 1, dark)
    return theme.pick(theme.PART_HUES["norm" if row["kind"] == "bias" else row["kind"]], dark)
