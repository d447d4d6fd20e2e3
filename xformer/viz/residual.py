"""Draw the residual stream: its norm at each point, the contributions of parts to a logit or score, and the logit lens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import altair as alt
import pandas as pd

from xformer.adapters.adapter import UNCHANGED_PREDICTION
from xformer.analysis.attention_patterns import names_at
from xformer.analysis.residual import answer_path as path_table
from xformer.analysis.residual import attribution as parts_table
from xformer.analysis.residual import lens as lens_table
from xformer.analysis.residual import norms as norms_table
from xformer.analysis.residual import strongest
from xformer.analysis.score_decomposition import score_attribution as score_table
from xformer.arguments import Count, Size
from xformer.formatting import check_option
from xformer.reading import Reading
from xformer.tasks.batch import IGNORED
from xformer.viz import theme
from xformer.viz.charts import (
    ROWS,
    TEXT_COLOUR,
    Chart,
    category_colours,
    cell_colours,
    heat_colour,
    layered,
    numbers,
    tooltips,
    top_title,
)
from xformer.viz.generation import RIGHT_SHARE

ROOMY, TIGHT = 12, 24
"""Largest numbers of positions at which cells still have room for the probability, and for the token."""
TALL = 410
"""Pixels of the rows of a heatmap, so that it fits on a projected screen with its controls."""
MAX_POINTS, LAST_LAYERS, MAX_GROUPS = 24, 6, 6
"""Largest number of points of the stream that are all drawn. Of more, the last layers have their own rows, others share one."""


def with_places(frame: pd.DataFrame, tokens: Sequence[str]) -> tuple[pd.DataFrame, list[str]]:
    """Add a column `place`, each position with its input token, "3 · 12"; also return the places in order."""
    places = {position: f"{position} · {tokens[position]}" for position in sorted(frame["position"].unique())}
    return frame.assign(place=[places[position] for position in frame["position"]]), list(places.values())


def norms(
    reading: Reading,
    *,
    what: str = "stream",
    limit: Size | None = None,
    positions: Sequence[int] | None = None,
    title: str = "",
) -> Chart:
    """Draw the norms of the residual stream (`analysis.norms`) as a heatmap over points and positions.

    Further arguments are those of `analysis.norms`.

    Args:
        what: "stream" for the stream, "added" for what each part adds to it.
        limit: The end of the colour scale; the largest norm by default.
        title: The title of the chart.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.norms(reading)
    """
    check_option("what", what, ("stream", "added"))
    frame = norms_table(reading, positions)
    frame = frame.loc[frame["what"] == what]
    limit = max(frame["length"].tolist()) if limit is None else limit
    n = reading[f"{reading.output_stack}.0.resid_pre"].shape[1]
    frame, places = with_places(thinned(frame), names_at(reading, reading.output_stack, n))
    points = list(dict.fromkeys(frame.sort_values("depth")["point"]))
    stops = theme.SEQUENTIAL
    limit = limit or 1.0
    data = frame.assign(
        shown=frame["length"].map("{:.1f}".format), cell_colour=cell_colours(stops, frame["length"], 0, limit)
    )
    base = alt.Chart(data).encode(
        alt.X("place:N", sort=places, title="position · input token", axis=flat_axis(len(places))),
        alt.Y("point:N", sort=points, title="after …", axis=point_axis()),
    )
    legend = alt.Legend(title="norm ‖x‖", gradientLength=120, format=".3~g")
    hover = tooltips("point:N", ("place:N", "position · input"), ("length:Q", "norm", ".5f"))
    cells = base.mark_rect().encode(heat_colour("length:Q", stops, 0, limit, legend=legend), tooltip=hover)
    text = numbers(base, "shown:N", shown=len(places) <= ROOMY)
    return layered(cells, *text, height=row_height(len(points)) * len(points), autosize=ROWS, title=title)


def thinned(frame: pd.DataFrame) -> pd.DataFrame:
    """Thin a table by depth to at most `MAX_POINTS` points of the stream, so that each row has a readable label.

    Only the point after each layer is kept. If there are still too many, all but the last `LAST_LAYERS` layers are drawn in
    groups, as the stream after the last layer of the group: "layers 5–8".
    """
    points = pd.Series(dict(zip(frame["depth"], frame["point"], strict=True))).sort_index()
    if len(points) <= MAX_POINTS:
        return frame
    layers = points.str.extract(r"layer (\d+)", expand=False).fillna("0").astype(int)
    ends = layers.drop_duplicates(keep="last")  # the embedding counts as layer 0
    n = len(ends) - 1
    size = max(1, math.ceil((n - LAST_LAYERS) / MAX_GROUPS))
    kept = sorted({0, *range(n - LAST_LAYERS, 0, -size), *range(max(n - LAST_LAYERS, 0) + 1, n + 1)})
    names = {}
    for before, at in zip([-1, *kept], kept, strict=False):
        name = str(points[ends.index[at]]).removesuffix(" · feed-forward")
        first, last = int(ends.iloc[before]) + 1, int(ends.iloc[at])
        is_group = before >= 0 and at - before > 1
        names[ends.index[at]] = name.replace(f"layer {last}", f"layers {first}–{last}") if is_group else name
    frame = frame.loc[frame["depth"].isin(list(names))]
    return frame.assign(point=[names[depth] for depth in frame["depth"]])


def row_height(n: int) -> int:
    """Return the height of each of `n` rows in pixels: 12 to 42, so that they fill at most `TALL` if possible."""
    return max(12, min(42, TALL // n))


def attribution(
    reading: Reading,
    *,
    position: int,
    token: int | None = None,
    lead: bool = False,
    before: Reading | None = None,
    most: Count = 12,
) -> Chart:
    """Draw `analysis.attribution` as bars: the `most` largest parts, and the others as one; the run `before` as outlines.

    Heads have their own hues, other parts the hue of their kind.

    Further arguments are those of `analysis.attribution`.

    Args:
        before: The original run, to compare with.
        most: The number of parts that have their own bars.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.attribution(reading, position=0)
    """
    runs = {"original": before, "changed": reading} if before is not None else {"": reading}
    target = {"position": position, "token": token, "lead": lead}
    frames = strongest({name: parts_table(run, **target) for name, run in runs.items()}, most)
    tokens = {run.explained(position) if token is None else token for run in runs.values()}
    name = (
        reading.adapter.token_labels[tokens.pop()]
        if len(tokens) == 1
        else f"the {answer_kind(reading, position)} token"
    )
    axis_title = f"contribution to the {'lead' if lead else 'logit'} of {name}"
    first, two = next(iter(frames.values())), len(frames) > 1
    data = pd.concat([frame.assign(run=name) for name, frame in frames.items()])
    kinds = data["kind"].replace({"bias": "norm", "others": "norm"})
    data["hue"] = [theme.part_hue(kind, head) for kind, head in zip(kinds, data["head"], strict=True)]
    parts = list(dict.fromkeys([*first["part"], *data["part"]]))
    y = alt.Y("part:N", sort=parts, title=None, axis=alt.Axis(labelLimit=260, labelOverlap=False))
    values = [0.0, *data["contribution"].tolist()]
    low, high = min(values), max(values)
    room = 0.1 * (high - low) or 1.0  # for the number next to the longest bar
    x = alt.X("contribution:Q", title=axis_title, scale=alt.Scale(domain=[low - room, high + room], nice=False))
    base = alt.Chart(data).encode(x, y, tooltip=tooltips("part:N", "run:N", ("contribution:Q", "", "+.6f")))
    colour, bars, now = alt.Color("hue:N", scale=None), [], base
    if two:
        base = base.encode(yOffset=alt.YOffset("run:N", sort=list(frames)))
        old, now = (base.transform_filter(alt.datum.run == name) for name in frames)
        bars.append(old.mark_bar(filled=False, strokeWidth=1.5).encode(stroke=alt.Stroke("hue:N", scale=None)))
    bars.append(now.mark_bar().encode(colour))
    number = {"fontSize": 11, "color": theme.TEXT}
    text = alt.Text("contribution:Q", format="+.2f")
    labels = [
        base.transform_filter(alt.datum.contribution >= 0).mark_text(align="left", dx=4, **number).encode(text),
        base.transform_filter(alt.datum.contribution < 0).mark_text(align="right", dx=-4, **number).encode(text),
    ]
    zero = alt.Chart(pd.DataFrame({"at": [0.0]})).mark_rule(color=theme.TEXT).encode(alt.X("at:Q", title=axis_title))
    return layered(*bars, *labels, zero, height=(30 if two else 24) * len(parts), autosize=ROWS)


def answer_kind(reading: Reading, position: int) -> str:
    """Return a one-word description of the target token at a position."""
    if reading.example.labels[0, position] == IGNORED or reading.answer_name == UNCHANGED_PREDICTION:
        return "predicted"
    return "right" if reading.has_right_answer else "next"


def point_axis() -> alt.Axis:
    """Return the axis of points of the stream."""
    return alt.Axis(labelLimit=240, labelOverlap=False, ticks=False, labelFlush=False)


def flat_axis(n: int, orient: Literal["top", "bottom"] = "top") -> alt.Axis:
    """Return the axis of `n` positions above or below the columns, with vertical labels if there are many."""
    angle = 0 if n <= ROOMY else -90
    return alt.Axis(labelAngle=angle, orient=orient, labelOverlap=True, labelFontSize=11, labelFlush=False)


SHOWN = 7
"""Number of sources on each side with their own row or column; the others share one."""
RANKED = 10
"""Number of pairs drawn as bars."""
CELL = 26
OTHERS, HEADS = "all others", "all heads"
_SHORT = {"feed-forward": "ffn"}


def score_attribution(
    reading: Reading,
    *,
    layer: int,
    head: int,
    query: int,
    key: int,
    against: int | None = None,
    opened: Sequence[str] | None = None,
    table: pd.DataFrame | None = None,
) -> alt.HConcatChart:
    """Draw `analysis.score_attribution`: the pairs of sources that contribute most to a key's score advantage, and all pairs.

    The advantage is in nats, over the second key or the mean of the others.

    Further arguments are those of `analysis.score_attribution`.

    Args:
        opened: The layers ("layer 3") whose heads are drawn separately, the heads of other layers together; by default, all.
        table: The table of the analysis, if already computed.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.score_attribution(reading, layer=2, head=1, query=0, key=4)
    """
    if table is None:
        table = score_table(reading, layer=layer, head=head, query=query, key=key, against=against)
    frame = table.replace({"query_source": _SHORT, "key_source": _SHORT}, regex=True)
    ranked = frame.head(RANKED).assign(pair=lambda f: f["query_source"] + "  ×  " + f["key_source"])
    cells, orders = _gathered(frame if opened is None else _closed(frame, opened))
    limit = max(map(abs, [*cells["advantage"].tolist(), *ranked["advantage"].tolist()])) or 1.0
    colour = heat_colour("advantage:Q", theme.DIVERGING, -limit, limit, legend=None)
    parts = {"score": "contribution to the score (nats)", "advantage": "contribution to the advantage (nats)"}
    hover = tooltips(("query_source", "query source"), ("key_source", "key source"))
    hover += tooltips(*((f"{name}:Q", title, ".4f") for name, title in parts.items()))
    bars = alt.Chart(ranked, title="Largest contributions of pairs", width=140, height=24 * len(ranked)).mark_bar()
    x = alt.X("advantage:Q", title="advantage (nats)")
    y = alt.Y("pair:N", sort=ranked["pair"].tolist(), title=None, axis=alt.Axis(labelLimit=260))
    rows, columns = orders
    size: dict[str, Any] = {"width": CELL * len(columns), "height": CELL * len(rows)}
    matrix = alt.Chart(cells, title="Query source × key source", **size).mark_rect()
    axis: dict[str, Any] = {"labelLimit": 140, "labelOverlap": False}
    across = alt.X("key_source:N", sort=columns, title=None, axis=alt.Axis(labelAngle=-45, **axis))
    down = alt.Y("query_source:N", sort=rows, title=None, axis=alt.Axis(**axis))
    charts = [bars.encode(x, y, colour, tooltip=hover), matrix.encode(across, down, colour, tooltip=hover)]
    return alt.hconcat(*charts, spacing=24)


def _closed(frame: pd.DataFrame, opened: Sequence[str]) -> pd.DataFrame:
    """Merge the heads of each layer into one source, except in opened layers."""

    def of_layer(source: str) -> str:
        layer, is_head, _ = source.rpartition(" · head ")
        return f"{layer} · {HEADS}" if is_head and layer not in opened else source

    sources = {side: [of_layer(source) for source in frame[side].tolist()] for side in ("query_source", "key_source")}
    return pd.DataFrame(frame.assign(**sources).groupby([*sources], as_index=False)[["score", "advantage"]].sum())


def _gathered(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[list[str]]]:
    """Merge all but the strongest sources into one row and one column; return the sums and the order on both sides."""
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
"""Pixels of all columns in a typical window; texts that are wider than their column are truncated."""


def lens(
    reading: Reading,
    *,
    before: Reading | None = None,
    positions: Sequence[int] | None = None,
    title: str = "",
    legend: bool = True,
    position: int | None = None,
) -> Chart:
    """Draw the logit lens (`analysis.lens`): rows from the embedding up to the output, and the answers above them.

    Each cell shows the likeliest token, coloured by its probability. Cells that predict the answer are outlined, and marked ✓
    if answers can be right or wrong; the answer after the end of a text is "?". Cells whose token differs from the run `before`
    have a dashed frame. With many positions or points, the probabilities, then the tokens, are only in the tooltips.

    Further arguments are those of `analysis.lens`.

    Args:
        before: The original run, to compare with.
        title: The title of the chart.
        legend: Whether to draw a legend.
        position: The position to frame; clicking a cell selects its `position`.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.lens(reading)
    """
    frame, judged, answer = thinned(lens_table(reading, positions)), reading.has_right_answer, reading.answer_name
    frame, places = with_places(frame, reading.tokens_of(reading.output_stack))
    points = list(dict.fromkeys(frame.sort_values("depth")["point"]))
    has_answers = "right" in frame
    # The output at the end of a text has no right answer.
    is_open = frame["position"] == (-1 if reading.open_output is None else reading.open_output)
    right = frame["right"] & ~is_open if has_answers else pd.Series(False, index=frame.index)
    mark, verdicts = (f" {theme.RIGHT.mark}", (theme.RIGHT.word, theme.WRONG.word)) if judged else ("", ("yes", "no"))
    data = frame.assign(
        right=right,
        says=(frame["token"] + mark).where(right, frame["token"]),
        share=frame["probability"].map("{:.2f}".format),
        cell_colour=cell_colours(theme.SEQUENTIAL, frame["probability"], 0, 1),
        verdict=[verdicts[0] if ok else verdicts[1] for ok in right],
    )
    if has_answers:
        data.loc[is_open, ["answer", "answer_probability", "verdict"]] = "?", math.nan, "unknown"
    if before is not None:
        was = lens_table(before, positions).set_index(["depth", "position"])["token"]
        data["was"] = [was.get(cell) for cell in zip(data["depth"], data["position"], strict=True)]
        data["moved"] = data["was"] != data["token"]
    rows = [answer, *reversed(points)] if has_answers else points[::-1]
    high, n = row_height(len(rows)), len(places)
    x = alt.X("place:N", sort=places, title="position · input token", axis=flat_axis(n, "bottom"))
    y = alt.Y("point:N", sort=rows, title="after …", axis=point_axis())
    hover = tooltips(("point:N", "after"), ("place:N", "position · input"), ("token:N", "likeliest token"))
    hover += tooltips(("probability:Q", "its probability", ".6f"))
    if has_answers:
        verdict = "prediction is" if judged else f"is what {answer}"
        hover += tooltips(("verdict:N", verdict), ("answer:N", answer), RIGHT_SHARE)
    if before is not None:
        hover += tooltips(("was:N", "in the original"))
    key = alt.Legend(title="probability", format=".1f", gradientLength=160) if legend else None
    colour = heat_colour("probability:Q", theme.SEQUENTIAL, 0, 1, legend=key)
    base = alt.Chart(data).encode(x, y)
    cells = base.mark_rect(stroke=theme.BACKGROUND, strokeWidth=1)
    outlined = base.transform_filter("datum.right").mark_rect(filled=False, stroke=theme.RIGHT.colour, strokeWidth=3)
    layers = [cells.encode(colour, tooltip=hover), outlined.encode(tooltip=hover)]
    if before is not None:
        look = {"filled": False, "strokeWidth": 1.5, "strokeDash": [4, 3], "stroke": TEXT_COLOUR}
        moved = base.transform_filter("datum.moved").mark_rect(**look, width={"band": 0.92}, height={"band": 0.92})
        layers.append(moved.encode(tooltip=hover))
    if position is not None:
        framed = base.transform_filter(alt.datum.position == position)
        look = {"filled": False, "strokeWidth": 2.5 if high >= 18 else 1, "stroke": theme.PRIMARY}
        layers.append(framed.mark_rect(**look, width={"band": 1.0}, height={"band": 1.0}))
        layers[0] = layers[0].add_params(alt.selection_point(name="cell", fields=["position"], on="click"))
    limit = max(WIDTH_OF_CELLS // n - 2, 20)
    two_lines = n <= ROOMY and high >= 30
    size = 10 if high < 18 or n > ROOMY else 15 if legend and high >= 26 else 12
    look = {"size": size, "fontWeight": "bold" if high >= 18 else "normal", "dy": -6 if two_lines else 0}
    layers += numbers(base, "says:N", shown=n <= TIGHT, **look, limit=limit)
    layers += numbers(base, "share:N", shown=two_lines, dy=10)
    if has_answers and n <= 1.5 * TIGHT:
        answers = data.drop_duplicates("position").assign(point=answer)
        size = _answer_size(answers["answer"].tolist(), limit, n)
        look = {"fontSize": size, "fontWeight": "bold", "limit": limit, "color": theme.TEXT}
        words = alt.Chart(answers).mark_text(**look)
        layers.append(words.encode(x, y, text="answer:N", tooltip=["place:N", "answer:N"]))
    return layered(*layers, height=high * len(rows), autosize=ROWS, title=title)


def answer_path(reading: Reading, *, position: int, before: Reading | None = None, title: str = "") -> Chart:
    """Draw `analysis.answer_path`: a bar for the contribution of each step to the answer's margin, from the embedding up.

    Next to the bars are the answer's probability and rank. If the margin cannot be decomposed, the bars are the probability.

    Further arguments are those of `analysis.answer_path`.

    Args:
        before: The original run, whose probability is given in brackets.
        title: The title of the chart.

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
    if is_split:  # a row holds the contributions since the row below it
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
    rows = ["", *frame["point"].tolist()[::-1]]  # as many as `lens` has with its row of answers, so that both line up
    high = row_height(len(rows))
    colour = category_colours("for_it:N", [True, False], [theme.DIVERGING[-4], theme.DIVERGING[3]], legend=None)
    what = f"contribution to the margin of {frame['answer'].iloc[0]}" if is_split else "probability of the answer"
    hover = tooltips("point:N", "token:N", "answer:N", "rank:Q", ("answer_probability:Q", "", ".6f"))
    hover += tooltips(("adds:Q", "contribution to the margin", "+.4f")) if is_split else []
    axis = alt.Axis(tickCount=4, title=what)
    y = alt.Y("point:N", scale=alt.Scale(domain=rows), title=None, axis=point_axis())
    base = alt.Chart(data).encode(y, tooltip=hover)
    look = {"align": "left", "dx": 8, "fontSize": 12 if high >= 18 else 10, "color": theme.TEXT}
    text = base.mark_text(**look)
    head = alt.Chart(pd.DataFrame({"point": [""], "says": ["probability · rank"]})).mark_text(**look, fontWeight="bold")
    opacity = alt.condition("datum.first", alt.value(1), alt.value(0.7))
    return layered(
        base.mark_bar(height={"band": 0.7}).encode(alt.X(f"{value}:Q", axis=axis), color=colour),
        text.encode(x=alt.value("width"), text="says:N", opacity=opacity),
        head.encode(y, x=alt.value("width"), text="says:N"),
        height=high * len(rows),
        autosize=ROWS,
        **top_title(title),
    )


def _share(p: float) -> str:
    return "<1%" if p < 0.005 else ">99%" if p > 0.995 else f"{p:.0%}"


def _answer_size(answers: Sequence[str], limit: int, n: int) -> int:
    """Return the font size of the answers: smaller if one would not fit its column."""
    return 10 if n > TIGHT else 15 if 9 * max(map(len, answers), default=0) <= limit else 11
