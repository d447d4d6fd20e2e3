"""Draw the logit lens: what the residual stream would say at each point, and where that is right.

viz.lens(reading, dark=False)
"""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import pandas as pd

from xformer.analysis.logit_lens import answer_path as path_table
from xformer.analysis.logit_lens import lens as lens_table
from xformer.reading import Reading
from xformer.viz import theme
from xformer.viz.charts import Chart, above, heat, hues, inks, layered, tips, written
from xformer.viz.generation import RIGHT_SHARE
from xformer.viz.residual import ROOMY, TIGHT, around, flat_axis, place_labels, point_axis, row_height, thinned

WIDTH_OF_CELLS = 540
"""Pixels for all columns in a window of usual width: what is longer than its share is cut."""


def lens(
    reading: Reading,
    *,
    before: Reading | None = None,
    positions: Sequence[int] | None = None,
    title: str = "",
    legend: bool = True,
    position: int | None = None,
    dark: bool = False,
) -> Chart:
    """`analysis.lens`: rows from the embedding up to the output, the answers above them where outputs are asked for.

    The colour is the probability of the likeliest token, which is written in the cell; where that is the answer it has an
    outline, and ✓ where answers are right or wrong. Under the output that says what follows a text stands "?". A cell whose
    token is another than in `before`, the original run, has a dashed frame. With many positions or points the numbers, then
    the tokens, are left to the hover.

    Args:
        reading: The run.
        before: The original run, to compare with.
        positions: The positions, from 0; all of them by default.
        title: The title of the chart.
        legend: Whether there is a legend.
        position: The position with a frame; a click on a cell selects its `position`.
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
            verdict=data["verdict"].mask(is_open, "unknown"),
        )
    if before is not None:
        was = lens_table(before, positions).set_index(["depth", "position"])["token"]
        data["was"] = [was.get(cell) for cell in zip(data["depth"], data["position"], strict=True)]
        data["moved"] = data["was"] != data["token"]
    rows = [answer, *reversed(points)] if has_answers else points[::-1]
    high, n = row_height(len(rows)), len(places)
    x = alt.X("place:N", sort=list(places.values()), title="position · token read there", axis=flat_axis(n))
    y = alt.Y("point:N", sort=rows, title="after …", axis=point_axis(len(points)))
    hover = tips(("point:N", "after"), ("place:N", "position · reads"), ("token:N", "likeliest token"))
    hover += tips(("probability:Q", "its probability", ".6f"))
    if has_answers:
        hover += tips(("verdict:N", "which is" if judged else f"is what {answer}"), ("answer:N", answer), RIGHT_SHARE)
    if before is not None:
        hover += tips(("was:N", "in the original"))
    key = alt.Legend(title="probability", format=".1f", gradientLength=160) if legend else None
    colour = heat("probability:Q", stops, 0, 1, legend=key)
    base = alt.Chart(data).encode(x, y)
    cells = base.mark_rect(stroke=theme.pick(theme.BACKGROUND, dark), strokeWidth=1)
    outline = {"filled": False, "stroke": theme.pick(theme.RIGHT.colour, dark), "strokeWidth": 3}
    outlined = base.transform_filter("datum.right").mark_rect(**outline)
    layers = [cells.encode(colour, tooltip=hover), outlined.encode(tooltip=hover)]
    if before is not None:
        look = {"filled": False, "strokeWidth": 1.5, "strokeDash": [4, 3]}
        moved = base.transform_filter("datum.moved").mark_rect(**look, width={"band": 0.92}, height={"band": 0.92})
        layers.append(moved.encode(stroke=written(), tooltip=hover))
    if position is not None:
        framed = base.transform_filter(alt.datum.position == position)
        look = {"filled": False, "strokeWidth": 2.5 if high >= 18 else 1, "stroke": theme.pick(theme.PRIMARY, dark)}
        layers.append(framed.mark_rect(**look, width={"band": 1.0}, height={"band": 1.0}))
        layers[0] = layers[0].add_params(alt.selection_point(name="cell", fields=["position"], on="click"))
    limit = max(WIDTH_OF_CELLS // n - 2, 20)
    ink, two_lines = written(), n <= ROOMY and high >= 30
    if n <= TIGHT:
        size = 10 if high < 18 or n > ROOMY else 15 if legend and high >= 26 else 12
        look = {"fontSize": size, "fontWeight": "bold" if high >= 18 else "normal", "dy": -6 if two_lines else 0}
        layers.append(base.mark_text(**look, limit=limit).encode(color=ink, text="says:N"))
    if two_lines:
        layers.append(base.mark_text(fontSize=11, dy=10).encode(color=ink, text="share:N"))
    if has_answers and n <= 1.5 * TIGHT:
        answers = data.drop_duplicates("position").assign(point=answer)
        size = _answer_size(answers["answer"].tolist(), limit, n)
        look = {"fontSize": size, "fontWeight": "bold", "limit": limit, "color": theme.pick(theme.TEXT, dark)}
        words = alt.Chart(answers).mark_text(**look)
        layers.append(words.encode(x, y, text="answer:N", tooltip=["place:N", "answer:N"]))
    return layered(*layers, height=high * len(rows) + around(title), title=title)


def answer_path(
    reading: Reading, *, position: int, before: Reading | None = None, title: str = "", dark: bool = False
) -> Chart:
    """`analysis.answer_path` from the embedding up to the output: a bar for what each step adds to the answer's margin.

    Beside it stand the probability of the answer and its rank. Where the margin cannot be split the bars are the probability.

    Args:
        reading: The run.
        position: The position, from 0.
        before: The original run, whose probability is marked by a line.
        title: The title of the chart.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.answer_path(reading, position=0)
    """
    whole = path_table(reading, position=position)
    frame = thinned(whole)
    is_split = bool(whole["adds"].notna().all())
    value = "adds" if is_split else "answer_probability"
    if is_split:  # a row holds what was added since the row below it
        sums = whole["adds"].cumsum().loc[frame.index]
        frame = frame.assign(adds=sums.diff().fillna(sums.iloc[0]))
    data = frame.assign(
        says=[f"{_share(p)} · #{rank:,}" for p, rank in zip(frame["answer_probability"], frame["rank"], strict=True)],
        for_it=frame[value] >= 0,
        first=frame["rank"] == 1,
    )
    if before is not None:
        was = path_table(before, position=position).loc[frame.index, "answer_probability"]
        data["says"] = [f"{text} (was {_share(p)})" for text, p in zip(data["says"], was, strict=True)]
    rows, high = frame["point"].tolist()[::-1], row_height(len(frame))
    stops = theme.diverging(dark)
    colour = hues("for_it:N", [True, False], [stops[-4], stops[3]], legend=None)
    ink = theme.pick(theme.TEXT, dark)
    what = f"adds to the margin of {frame['answer'].iloc[0]}" if is_split else "probability of the answer"
    hover = ["point:N", "token:N", "answer:N", "rank:Q", alt.Tooltip("answer_probability:Q", format=".6f")]
    hover += tips(("adds:Q", "adds to the margin", "+.4f")) if is_split else []
    axis = alt.Axis(orient="top", tickCount=4, title=what)
    y = alt.Y("point:N", sort=rows, title=None, axis=point_axis(len(rows)))
    base = alt.Chart(data).encode(y, tooltip=hover)
    text = base.mark_text(align="left", dx=8, fontSize=12 if high >= 18 else 10, color=ink)
    return layered(
        base.mark_bar(height={"band": 0.7}).encode(alt.X(f"{value}:Q", axis=axis), color=colour),
        text.encode(
            x=alt.value("width"), text="says:N", opacity=alt.condition("datum.first", alt.value(1), alt.value(0.7))
        ),
        height=high * len(rows) + around(title),
        padding={"left": 5, "top": 5, "bottom": 5, "right": 100 if before is None else 190},
        **above(title),
    )


def _share(p: float) -> str:
    return "<1 %" if p < 0.005 else ">99 %" if p > 0.995 else f"{p:.0%}".replace("%", " %")


def _answer_size(answers: Sequence[str], limit: int, n: int) -> int:
    """The size of the answers' letters: smaller where one of them would not fit its column."""
    return 10 if n > TIGHT else 15 if 9 * max(map(len, answers), default=0) <= limit else 11
