"""Draw the residual stream: how long it is at each point, and which parts add to a logit.

viz.norms(reading, what="added")
viz.attribution(reading, position=3, lead=True)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from xformer.analysis.residual import attribution as parts_table
from xformer.analysis.residual import norms as norms_table
from xformer.analysis.residual import strongest
from xformer.reading import Reading
from xformer.tasks.batch import IGNORED
from xformer.viz import theme
from xformer.viz.charts import inks, layered, written

ROOMY, TIGHT = 12, 24
"""Up to so many positions a cell has room for its probability, and for its token."""
TALL = 410
"""Pixels for the rows of a heatmap, so that it stands on a projected screen together with what changes it."""
MANY_POINTS, MOST_POINTS = 24, 33
"""From more points on only some have a label; of a deeper model's stream only so many, evenly apart, are drawn."""
_AROUND, _TITLE = 72, 34
"""Pixels for the axis of a chart and for its title, which its height includes."""


def place_labels(reads: Sequence[str], positions: Sequence[int]) -> dict[int, str]:
    """Each position with the token that it reads, "3 · 12", so that repeats stay distinct."""
    return {position: f"{position} · {reads[position]}" for position in positions}


def norms(
    reading: Reading,
    *,
    what: str = "stream",
    limit: float | None = None,
    positions: Sequence[int] | None = None,
    title: str = "",
    dark: bool = False,
) -> alt.LayerChart | alt.FacetChart:
    """The lengths of `analysis.norms` ("stream" or "added") as a heatmap; colours run from 0 to `limit`, or to the largest.

    Args:
        reading: The run.
        what: "stream" or "added".
        limit: Where the colours end; at the largest value by default.
        positions: The positions, from 0; all of them by default.
        title: The title of the chart.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.norms(reading)
    """
    frame = norms_table(reading, positions)
    frame = frame.loc[frame["what"] == what]
    limit = max(frame["length"].tolist()) if limit is None else limit
    frame = thinned(frame)
    places = place_labels(reading.tokens_of(reading.output_stack), sorted(frame["position"].unique()))
    points = list(dict.fromkeys(frame.sort_values("depth")["point"]))
    stops = theme.sequential(dark)
    limit = limit or 1.0
    data = frame.assign(
        place=[places[position] for position in frame["position"]],
        shown=[f"{length:.1f}" for length in frame["length"]],
        ink=inks(stops, frame["length"], 0, limit),
    )
    n = len(places)
    base = alt.Chart(data).encode(
        alt.X("place:N", sort=list(places.values()), title="position · token read there", axis=flat_axis(n)),
        alt.Y("point:N", sort=points, title="after …", axis=point_axis(True, len(points))),
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
    if n <= ROOMY:
        layers.append(base.mark_text(fontSize=11).encode(color=written(), text="shown:N"))
    return layered(*layers, height=row_height(len(points)) * len(points) + around(title), title=title)


def thinned(frame: pd.DataFrame) -> pd.DataFrame:
    """A frame by depth with at most `MOST_POINTS` points of the stream, evenly apart, the first and the last among them."""
    depths = sorted(frame["depth"].unique())
    if len(depths) <= MOST_POINTS:
        return frame
    if len(depths) % 2 and len(depths) // 2 < MOST_POINTS:  # after each layer of two sublayers
        return frame.loc[frame["depth"].isin(depths[::2])]
    step = (len(depths) - 1) / (MOST_POINTS - 1)
    return frame.loc[frame["depth"].isin([depths[round(index * step)] for index in range(MOST_POINTS)])]


def row_height(n: int) -> int:
    """The pixels of each of `n` rows: as high as the screen allows, and no higher than looks well."""
    return max(12, min(42, TALL // n))


def attribution(
    reading: Reading,
    *,
    position: int,
    token: int | None = None,
    lead: bool = False,
    before: Reading | None = None,
    most: int = 12,
    dark: bool = False,
) -> alt.LayerChart | alt.FacetChart:
    """Bars of `analysis.attribution`, its `most` largest parts and the others as one; the run `before` as outlines.

    Heads have their own hues, the other parts those of their kind.

    Args:
        reading: The run.
        position: The position, from 0.
        token: The token's id; by default the one that stands there.
        lead: Subtract the logit of the strongest other token.
        before: The original run, to compare with.
        most: The number of parts that are drawn one by one.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.attribution(reading, position=0)
    """
    runs = {"original": before, "changed": reading} if before is not None else {"": reading}
    frames = strongest(
        {name: parts_table(run, position=position, token=token, lead=lead) for name, run in runs.items()}, most
    )
    tokens = {run.explained(position) if token is None else token for run in runs.values()}
    name = reading.subject.labels[tokens.pop()] if len(tokens) == 1 else f"the {_asked(reading, position)} token"
    target = f"the {'lead' if lead else 'logit'} of {name}"
    first = next(iter(frames.values()))
    rows: list[dict[str, Any]] = []
    for name, frame in frames.items():
        rows += [row | {"run": name, "hue": _hue(row, dark)} for row in frame.to_dict("records")]
    data = pd.DataFrame(rows)
    two = len(frames) > 1
    parts = list(dict.fromkeys([*first["part"], *data["part"]]))
    y = alt.Y("part:N", sort=parts, title=None, axis=alt.Axis(labelLimit=260, labelOverlap=False))
    values = [0.0, *(float(row["contribution"]) for row in rows)]
    low, high = min(values), max(values)
    room = 0.1 * (high - low) or 1.0  # for the number beside the longest bar
    x = alt.X(
        "contribution:Q", title=f"adds to {target}", scale=alt.Scale(domain=[low - room, high + room], nice=False)
    )
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
    return layered(*bars, *labels, zero, height=(30 if two else 24) * len(parts) + _AROUND)


def _asked(reading: Reading, position: int) -> str:
    """Which token a position is about, in a word."""
    if reading.example.labels[0, position] == IGNORED or reading.answer_name == "unchanged prediction":
        return "predicted"
    return "right" if reading.has_right_answer else "next"


def around(title: str) -> int:
    """The pixels of a chart's height that are not its cells: the axis and, where there is one, the title."""
    return _AROUND + (_TITLE if title else 0)


def point_axis(named: bool, n: int = 0) -> alt.Axis:
    """The `n` points of the stream beside their rows, of many only every fifth layer; or the rows without names."""
    layer = "replace(datum.label, ' · feed-forward', '')"
    few = f"test(/^[a-z]+ [0-9]+ /, datum.label) ? test(/ [0-9]*[05] /, datum.label) ? {layer} : '' : datum.label"
    shown = few if n > MANY_POINTS else "datum.label"
    return alt.Axis(labelLimit=240, labelOverlap=False, labels=named, ticks=False, labelFlush=False, labelExpr=shown)


def flat_axis(n: int) -> alt.Axis:
    """`n` positions above their columns, upright where there are too many to lie flat."""
    return alt.Axis(
        labelAngle=0 if n <= ROOMY else -90, orient="top", labelOverlap=n > TIGHT, labelFontSize=11, labelFlush=False
    )


def _hue(row: dict[str, Any], dark: bool) -> str:
    if row["head"] >= 0:
        return theme.head_hue(row["head"], dark)
    kind = "norm" if row["kind"] in ("bias", "others") else row["kind"]
    return theme.pick(theme.PART_HUES[kind], dark)
