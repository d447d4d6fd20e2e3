"""Draw the residual stream: its length at each point, which parts add to a logit or a score, and the logit lens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from xformer.analysis.residual import answer_path as path_table
from xformer.analysis.residual import attribution as parts_table
from xformer.analysis.residual import lens as lens_table
from xformer.analysis.residual import norms as norms_table
from xformer.analysis.residual import strongest
from xformer.analysis.score_decomposition import why as why_table
from xformer.reading import Reading
from xformer.tasks.batch import IGNORED
from xformer.viz import theme
from xformer.viz.charts import Chart, above, heat, hues, inks, layered, tips, written
from xformer.viz.generation import RIGHT_SHARE

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
) -> Chart:
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
        alt.Y("point:N", sort=points, title="after …", axis=point_axis(len(points))),
    )
    legend = alt.Legend(title="length ‖x‖", gradientLength=120, format=".3~g")
    hover = tips("point:N", ("place:N", "position · reads"), ("length:Q", "", ".5f"))
    layers = [base.mark_rect().encode(heat("length:Q", stops, 0, limit, legend=legend), tooltip=hover)]
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
) -> Chart:
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
    of = {"position": position, "token": token, "lead": lead}
    frames = strongest({name: parts_table(run, **of) for name, run in runs.items()}, most)
    tokens = {run.explained(position) if token is None else token for run in runs.values()}
    name = reading.subject.labels[tokens.pop()] if len(tokens) == 1 else f"the {asked_for(reading, position)} token"
    target = f"the {'lead' if lead else 'logit'} of {name}"
    first, two = next(iter(frames.values())), len(frames) > 1
    data = pd.concat([frame.assign(run=name) for name, frame in frames.items()])
    data["hue"] = [_hue(row, dark) for row in data.to_dict("records")]
    parts = list(dict.fromkeys([*first["part"], *data["part"]]))
    y = alt.Y("part:N", sort=parts, title=None, axis=alt.Axis(labelLimit=260, labelOverlap=False))
    values = [0.0, *data["contribution"].tolist()]
    low, high = min(values), max(values)
    room = 0.1 * (high - low) or 1.0  # for the number beside the longest bar
    scale = alt.Scale(domain=[low - room, high + room], nice=False)
    x = alt.X("contribution:Q", title=f"adds to {target}", scale=scale)
    hover = tips("part:N", "run:N", ("contribution:Q", "", "+.6f"))
    base = alt.Chart(data).encode(x, y, tooltip=hover)
    colour, bars, now = alt.Color("hue:N", scale=None), [], base
    if two:
        base = base.encode(yOffset=alt.YOffset("run:N", sort=list(frames)))
        old, now = (base.transform_filter(alt.datum.run == name) for name in frames)
        bars.append(old.mark_bar(filled=False, strokeWidth=1.5).encode(stroke=alt.Stroke("hue:N", scale=None)))
    bars.append(now.mark_bar().encode(colour))
    ink = theme.pick(theme.TEXT, dark)
    number = {"fontSize": 11, "color": ink}
    text = alt.Text("contribution:Q", format="+.2f")
    labels = [
        base.transform_filter(alt.datum.contribution >= 0).mark_text(align="left", dx=4, **number).encode(text),
        base.transform_filter(alt.datum.contribution < 0).mark_text(align="right", dx=-4, **number).encode(text),
    ]
    zero = alt.Chart(pd.DataFrame({"at": [0.0]})).mark_rule(color=ink).encode(alt.X("at:Q", title=f"adds to {target}"))
    return layered(*bars, *labels, zero, height=(30 if two else 24) * len(parts) + _AROUND)


def asked_for(reading: Reading, position: int) -> str:
    """Which token a position is about, in a word."""
    if reading.example.labels[0, position] == IGNORED or reading.answer_name == "unchanged prediction":
        return "predicted"
    return "right" if reading.has_right_answer else "next"


def around(title: str) -> int:
    """The pixels of a chart's height that are not its cells: the axis and, where there is one, the title."""
    return _AROUND + (_TITLE if title else 0)


def point_axis(n: int) -> alt.Axis:
    """The `n` points of the stream beside their rows, of many only every fifth layer."""
    layer = "replace(datum.label, ' · feed-forward', '')"
    few = f"test(/^[a-z]+ [0-9]+ /, datum.label) ? test(/ [0-9]*[05] /, datum.label) ? {layer} : '' : datum.label"
    shown = few if n > MANY_POINTS else "datum.label"
    return alt.Axis(labelLimit=240, labelOverlap=False, ticks=False, labelFlush=False, labelExpr=shown)


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


SHOWN = 7
"""So many sources of each side have a row or a column of their own; the others share one."""
RANKED = 10
CELL = 26
OTHERS, HEADS = "all others", "all heads"
_SHORT = {"feed-forward": "ffn"}


def why(
    reading: Reading,
    *,
    layer: int,
    head: int,
    query: int,
    key: int,
    against: int | None = None,
    opened: Sequence[str] | None = None,
    table: pd.DataFrame | None = None,
    dark: bool = False,
) -> alt.HConcatChart:
    """`analysis.why`: the pairs with the largest contributions to a key's advantage in nats, and all pairs as a matrix.

    Of the layers `opened` ("layer 3") the matrix has each head for itself, of the others all heads together; None: each of all.
    `table` is that of `analysis.why` where it has been made already.

    Args:
        reading: The run.
        layer: The layer, from 0.
        head: The head, from 0.
        query: The query's position, from 0.
        key: The key's position, from 0.
        against: A second key or token to compare with.
        opened: The layers whose heads are drawn one by one; all by default.
        table: The table of the analysis, where it exists already.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.why(reading, layer=2, head=1, query=0, key=4)
    """
    if table is None:
        table = why_table(reading, layer=layer, head=head, query=query, key=key, against=against)
    frame = table.replace({"query_source": _SHORT, "key_source": _SHORT}, regex=True)
    ranked = frame.head(RANKED).assign(pair=lambda f: f["query_source"] + "  ×  " + f["key_source"])
    cells, orders = _gathered(frame if opened is None else _closed(frame, opened))
    limit = max(map(abs, [*cells["advantage"].tolist(), *ranked["advantage"].tolist()])) or 1.0
    colour = heat("advantage:Q", theme.diverging(dark), -limit, limit, legend=None)
    hover = tips(("query_source", "at the query"), ("key_source", "at the key"))
    hover += tips(("score:Q", "adds to the score, nats", ".4f"), ("advantage:Q", "adds to the advantage, nats", ".4f"))
    bars = alt.Chart(ranked, title="Largest contributions of pairs", width=140, height=24 * len(ranked)).mark_bar()
    x = alt.X("advantage:Q", title="nats of advantage")
    y = alt.Y("pair:N", sort=ranked["pair"].tolist(), title=None, axis=alt.Axis(labelLimit=260))
    rows, columns = orders
    size: dict[str, Any] = {"width": CELL * len(columns), "height": CELL * len(rows)}
    matrix = alt.Chart(cells, title="At the query × at the key", **size).mark_rect()
    axis: dict[str, Any] = {"labelLimit": 140, "labelOverlap": False}
    across = alt.X("key_source:N", sort=columns, title=None, axis=alt.Axis(labelAngle=-45, **axis))
    down = alt.Y("query_source:N", sort=rows, title=None, axis=alt.Axis(**axis))
    charts = [bars.encode(x, y, colour, tooltip=hover), matrix.encode(across, down, colour, tooltip=hover)]
    return alt.hconcat(*charts, spacing=24)


def _closed(frame: pd.DataFrame, opened: Sequence[str]) -> pd.DataFrame:
    """The heads of a layer as one source, but for those layers that are opened."""

    def of_layer(source: str) -> str:
        layer, is_head, _ = source.rpartition(" · head ")
        return f"{layer} · {HEADS}" if is_head and layer not in opened else source

    sources = {side: [of_layer(source) for source in frame[side].tolist()] for side in ("query_source", "key_source")}
    summed = frame.assign(**sources).groupby([*sources], as_index=False)
    return pd.DataFrame(summed[["score", "advantage"]].sum())


def _gathered(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[list[str]]]:
    """The strongest sources, and what all others add as one row and one column, so that it sums to the same; both orders."""
    columns, orders = {}, []
    for side in ("query_source", "key_source"):
        strength: Any = frame["advantage"].abs().groupby(frame[side], sort=False).sum()
        sizes: dict[str, float] = strength.to_dict()
        order = sorted(sizes, key=lambda source: -sizes[source])
        if len(order) > SHOWN + 1:
            order = [*order[:SHOWN], OTHERS]
        columns[side] = [source if source in order else OTHERS for source in frame[side].tolist()]
        orders.append(order)
    summed = frame.assign(**columns).groupby(["query_source", "key_source"], as_index=False)
    return pd.DataFrame(summed[["score", "advantage"]].sum()), orders


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
    hover = tips("point:N", "token:N", "answer:N", "rank:Q", ("answer_probability:Q", "", ".6f"))
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
