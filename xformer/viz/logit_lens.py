"""Draw the logit lens: what the residual stream would say at each point, and where that is right.

viz.lens(reading, dark=False)
"""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import pandas as pd

from xformer.analysis.logit_lens import lens as lens_table
from xformer.reading import Reading
from xformer.viz import theme
from xformer.viz.charts import inks, layered, written
from xformer.viz.residual import ROOMY, TIGHT, around, flat_axis, place_labels, point_axis, row_height, thinned

WIDTH_OF_CELLS = 620
"""Pixels for all columns in a window of usual width: what is longer than its share is cut."""


def lens(
    reading: Reading,
    *,
    before: Reading | None = None,
    positions: Sequence[int] | None = None,
    title: str = "",
    named: bool = True,
    legend: bool = True,
    dark: bool = False,
) -> alt.LayerChart | alt.FacetChart:
    """`analysis.lens`: rows from the embedding down to the output, the answers under them where outputs are asked for.

    The colour is the probability of the likeliest token, which is written in the cell; where that is the answer it has an
    outline, and ✓ where answers are right or wrong. Under the output that says what follows a text stands "?". A cell whose
    token is another than in `before`, the original run, has a dashed frame. With many positions or points the numbers, then
    the tokens, are left to the hover. `named` writes the points beside the rows, which a second chart next to one that has
    them does not need.

    Args:
        reading: The run.
        before: The original run, to compare with.
        positions: The positions, from 0; all of them by default.
        title: The title of the chart.
        named: Whether rows have names.
        legend: Whether there is a legend.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.lens(reading)
    """
    frame, judged, answer = thinned(lens_table(reading, positions)), reading.has_right_answer, reading.answer_name
    places = place_labels(reading.tokens_of(reading.output_stack), sorted(frame["position"].unique()))
    points = list(dict.fromkeys(frame.sort_values("depth")["point"]))
    stops = theme.sequential(dark)
    has_answers = "right" in frame
    # The output after the end of a text has no right answer.
    is_open = frame["position"] == (-1 if reading.open_output is None else reading.open_output)
    right = frame["right"] & ~is_open if has_answers else pd.Series(False, index=frame.index)
    mark, verdicts = (f" {theme.RIGHT.mark}", (theme.RIGHT.word, theme.WRONG.word)) if judged else ("", ("yes", "no"))
    data = frame.assign(
        right=right,
        place=[places[position] for position in frame["position"]],
        says=[token + mark if ok else token for token, ok in zip(frame["token"], right, strict=True)],
        share=[f"{p:.2f}" for p in frame["probability"]],
        ink=inks(stops, frame["probability"], 0, 1),
        verdict=[verdicts[0] if ok else verdicts[1] for ok in right],
    )
    if has_answers:
        data = data.assign(
            answer=data["answer"].mask(is_open, "?"),
            answer_probability=data["answer_probability"].mask(is_open),
            verdict=data["verdict"].mask(is_open, "nobody knows"),
        )
    if before is not None:
        was = lens_table(before, positions).set_index(["depth", "position"])["token"]
        data["was"] = [was.get(cell) for cell in zip(data["depth"], data["position"], strict=True)]
        data["moved"] = data["was"] != data["token"]
    rows = [*points, answer] if has_answers else points
    high, n = row_height(len(rows)), len(places)
    x = alt.X("place:N", sort=list(places.values()), title="position · token read there", axis=flat_axis(n))
    y = alt.Y("point:N", sort=rows, title="after …" if named else None, axis=point_axis(named))
    hover = [
        alt.Tooltip("point:N", title="after"),
        alt.Tooltip("place:N", title="position · reads"),
        alt.Tooltip("token:N", title="likeliest token"),
        alt.Tooltip("probability:Q", title="its probability", format=".6f"),
    ]
    if has_answers:
        hover += [
            alt.Tooltip("verdict:N", title="which is" if judged else f"is what {answer}"),
            alt.Tooltip("answer:N", title=answer),
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
    limit = max(WIDTH_OF_CELLS // n, 20)
    ink, two_lines = written(), n <= ROOMY and high >= 30
    if n <= TIGHT and high >= 18:
        layers.append(
            base.mark_text(
                fontSize=15 if n <= ROOMY and legend and high >= 26 else 12,
                fontWeight="bold",
                dy=-6 if two_lines else 0,
                limit=limit,
            ).encode(color=ink, text="says:N")
        )
    if two_lines:
        layers.append(base.mark_text(fontSize=11, dy=10).encode(color=ink, text="share:N"))
    if has_answers and n <= 1.5 * TIGHT:
        answers = data.drop_duplicates("position").assign(point=answer)
        look = {"fontWeight": "bold", "limit": limit, "color": theme.pick(theme.TEXT, dark)}
        layers.append(
            alt.Chart(answers)
            .mark_text(fontSize=_answer_size(answers["answer"].tolist(), limit, n), **look)
            .encode(x, y, text="answer:N", tooltip=["place:N", "answer:N"])
        )
    return layered(*layers, height=high * len(rows) + around(title), title=title)


def _answer_size(answers: Sequence[str], limit: int, n: int) -> int:
    """The size of the answers' letters: smaller where one of them would not fit its column."""
    return 10 if n > TIGHT else 15 if 9 * max(map(len, answers), default=0) <= limit else 11
