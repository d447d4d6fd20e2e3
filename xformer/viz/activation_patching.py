"""Draw the effects of activation patching and of ablating each head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import altair as alt
import pandas as pd

from xformer.analysis import minimal_pairs
from xformer.analysis.ablation import Head
from xformer.analysis.ablation import head_effects as effects_table
from xformer.analysis.activation_patching import GROUPS, PartKind
from xformer.analysis.activation_patching import patching as patching_table
from xformer.analysis.activation_patching import patching_map as map_table
from xformer.analysis.attention_patterns import SCORES, TASK, head_scores
from xformer.analysis.minimal_pairs import Token
from xformer.arguments import Count
from xformer.errors import InputError, UnavailableError
from xformer.formatting import check_option
from xformer.reading import Reading
from xformer.viz import theme
from xformer.viz.charts import (
    ROWS,
    Chart,
    cell_colours,
    cell_number,
    head_titles,
    heat_colour,
    label_layers,
    layered,
    numbers,
    place_labels,
    tooltips,
)
from xformer.viz.generation import short_names
from xformer.viz.residual import TIGHT, row_height

MAX_PARTS = 20


def patching(
    readings: Sequence[Reading], *, everywhere: bool = False, out_of: int = 0, table: pd.DataFrame | None = None
) -> Chart:
    """Draw the `MAX_PARTS` largest effects of `analysis.patching` as bars: 0 is no effect, 1 the source run's result.

    Heads have their own hues, other parts the hue of their kind; ⇒ marks patches that change the answer to the source run's.

    Further arguments are those of `analysis.patching`.

    Args:
        out_of: The index of the source reading, 0 or 1.
        table: The table of the analysis, if already computed.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", edits="ablate:decoder.0.attn.0"),
        ... ]
        >>> runs = [xformer.analysis.decode_steps(variant, (3, 7, 12, 9)) for variant in variants]
        >>> readings = [run[1] for run in runs]  # at the second step
        >>> chart = xformer.viz.patching(readings)
    """
    table = patching_table(readings, everywhere=everywhere) if table is None else table
    full_names = [reading.adapter.name for reading in (readings[out_of], readings[1 - out_of])]
    names = short_names(full_names)
    source, into = (names[name] for name in full_names)
    shown = table.loc[table["source"] == full_names[0]].head(MAX_PARTS)
    kinds = shown["component"].map({"residual": "sum", "feed-forward": "feed_forward"}).fillna("attention")
    data = shown.assign(
        hue=[theme.part_hue(kind, head - 1) for kind, head in zip(kinds, shown["head"], strict=True)],
        text=shown["restored"].map("{:+.2f}".format) + ("  ⇒ " + shown["says"]).where(shown["turns"], ""),
        turned=shown["turns"].map({True: "yes", False: "no"}),
    )
    shares = data["restored"].tolist()
    low, high = min(0.0, *shares), max(1.0, *shares)
    room = 0.22 * (high - low)
    name, ends = f"fraction restored: {source} → {into}", [low - (room if low < 0 else 0), high + room]
    x = alt.X("restored:Q", title=name, scale=alt.Scale(domain=ends, nice=False))
    axis = alt.Axis(labelLimit=260, labelOverlap=False)
    y = alt.Y("part:N", sort=data["part"].tolist(), title="patched part", axis=axis)
    hover = tooltips(
        "part:N", ("restored:Q", "fraction restored", "+.6f"), ("difference:Q", "logit difference", "+.6f")
    )
    hover += tooltips(("says:N", "prediction"), ("turned:N", "changes the answer"))
    base = alt.Chart(data).encode(x, y, tooltip=hover)
    number = {"fontSize": 12, "color": theme.TEXT}
    known = pd.DataFrame({"at": [0.0, 1.0], "is": [f"{into}, unpatched", f"same as {source}"]})
    rules = alt.Chart(known).mark_rule(color=theme.TEXT, strokeDash=[4, 3])
    return layered(
        rules.encode(alt.X("at:Q", title=name), tooltip=alt.Tooltip("is:N")),
        base.mark_bar().encode(alt.Color("hue:N", scale=None)),
        base.transform_filter("datum.restored >= 0").mark_text(align="left", dx=5, **number).encode(text="text:N"),
        base.transform_filter("datum.restored < 0").mark_text(align="right", dx=-5, **number).encode(text="text:N"),
        height=24 * len(data),
        autosize=ROWS,
        title=f"Activations of {source} patched into {into}",
    )


FAINT = 0.1
"""Smallest limit of the colour scale, so that negligible effects stay pale."""

LETTERS = 24
"""Letters of column labels that fit side by side, even on a phone; longer labels are slanted."""

UNWRITTEN = 0.005
"""Shares below this would round to 0.00 and are not written."""


def patching_map(
    reading: Reading,
    source: Reading,
    *,
    part: PartKind = "stream",
    answers: Sequence[Token] | None = None,
    position: int | None = None,
    exact: bool | Sequence[int] = False,
    groups: Count = GROUPS,
    show: Literal["measured", "estimated"] | None = None,
    chosen: int | None = None,
    table: pd.DataFrame | None = None,
) -> Chart:
    """Draw `analysis.patching_map`: blue moves the prediction towards the source run's; unmeasured cells are grey.

    Rows are layers, from the embedding down; columns are positions, heads or groups of neurons.

    Further arguments are those of `analysis.patching_map`.

    Args:
        show: The values to draw; the measured ones by default, if there are any.
        chosen: The row of the table whose cell is framed.
        table: The table of the analysis, if already computed.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> other = xformer.read("checkpoints/reverse", "3 7 5 9 1")
        >>> chart = xformer.viz.patching_map(reading, other)
    """
    check_option("show", show, (None, "measured", "estimated"))
    if table is None:
        table = map_table(reading, source, part=part, answers=answers, position=position, exact=exact, groups=groups)
    kind = show or ("estimated" if exact is False else "measured")
    values = table[kind].to_numpy(dtype=float)
    limit = max(FAINT, theme.signed_limit(values))
    data = table.assign(
        cell=range(len(table)),
        column=_columns(table, part, is_encoder_decoder=reading.is_encoder_decoder),
        value=values,
        share=[cell_number(value) if abs(value) >= UNWRITTEN else "" for value in values],
        cell_colour=cell_colours(theme.DIVERGING, values, -limit, limit),
    )
    rows, columns = (list(dict.fromkeys(data[name])) for name in ("where", "column"))
    n, high = len(columns), max(row_height(len(rows)), min(60, 240 // len(rows)))
    title = {"stream": "position · token", "head": "head", "neurons": "neurons"}[part]
    flat = n * max(map(len, columns)) <= LETTERS
    axis = alt.Axis(labelAngle=0 if flat else -60, orient="top", labelOverlap=flat or n > TIGHT, labelLimit=150)
    y = alt.Y("where:N", sort=rows, title=None, axis=alt.Axis(labelLimit=240, labelOverlap=False, labelFlush=False))
    hover = tooltips(("where:N", "layer"), ("column:N", title))
    hover += [alt.Tooltip(f"{name}:Q", format="+.6f") for name in ("measured", "estimated") if name in table]
    legend = alt.Legend(title=["share", kind], format="+.2f", gradientLength=max(36, min(160, high * len(rows) - 48)))
    colour = heat_colour("value:Q", theme.DIVERGING, -limit, limit, legend=legend)
    shade = alt.condition("isValid(datum.value)", colour, alt.value(theme.MASKED))
    base = alt.Chart(data).encode(alt.X("column:N", sort=columns, title=title, axis=axis), y)
    click = alt.selection_point(name="cell", fields=["cell"], on="click", clear=False)
    frame = base.transform_filter(alt.datum.cell == (-1 if chosen is None else chosen))
    cells = base.mark_rect(stroke=theme.BACKGROUND, strokeWidth=1, cursor="pointer")
    return layered(
        cells.encode(color=shade, tooltip=hover).add_params(click),
        frame.mark_rect(filled=False, stroke=theme.TEXT, strokeWidth=2.5),
        *numbers(base, "share:N", shown=n <= TIGHT),
        height=high * len(rows),
        autosize=ROWS,
    )


def _columns(table: pd.DataFrame, part: PartKind, *, is_encoder_decoder: bool) -> list[str]:
    """Return the column label of each cell."""
    if part == "head":
        return [str(head + 1) for head in table["head"]]
    if part == "neurons":
        groups = table["group"].tolist()
        ranges = [f"{first}–{last}" for first, last in zip(table["first_neuron"], table["last_neuron"], strict=True)]
        is_same_width = len(set(ranges)) == len(set(groups))
        return ranges if is_same_width else [f"group {group + 1}" for group in groups]
    changed = (" → " + table["source_token"]).mask(table["token"] == table["source_token"], "")
    places = table["position"].astype(str) + " · " + table["token"] + changed
    return (table["stack"] + " " + places if is_encoder_decoder else places).tolist()


NAMED = 5
"""How many heads are labelled for their effect, and how many for their score."""
WIDTH, HEIGHT, FONT = 560, 320, 11
"""Size of the plot and of its labels, in CSS pixels, for which labels are placed."""


def score_title(score: str) -> str:
    """Return the display name of a score column: "task" for "task_pattern", "anti-diagonal" for "anti_diagonal"."""
    return "task" if score == TASK else score.replace("_", "-")


def head_effects(
    reading: Reading,
    *,
    score: str = "previous",
    look: str = "answer",
    without_first: bool = False,
    position: int | None = None,
    token: int | None = None,
    against: int | None = None,
    exact: bool | Sequence[Head] = True,
    table: pd.DataFrame | None = None,
) -> Chart:
    """Plot the effect of ablating each head (`analysis.head_effects`) over a score of `analysis.head_scores`.

    Filled points are measured, hollow ones estimated. Only measured heads are labelled, unless none is measured.

    Further arguments are those of `analysis.head_effects`.

    Args:
        score: A column of `analysis.head_scores`.
        look: The positions that the score covers: "answer" or "source".
        without_first: Leave the first token out, as a query and as a key.
        table: The table of the analysis, if already computed.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.head_effects(reading, score="anti_diagonal")
    """
    scores = head_scores(reading, look=look, without_first=without_first)
    if score not in scores or score in ("layer", "head"):
        raise InputError(f"The scores of a head are {', '.join([TASK, *SCORES, 'induction'])}, got {score!r}.")
    if table is None:
        table = effects_table(reading, position=position, token=token, against=against, exact=exact)
    goal = minimal_pairs.title(reading, minimal_pairs.of_run(reading, position, token, against))
    frame = table.merge(scores[["layer", "head", score]], on=["layer", "head"]).rename(columns={score: "score"})
    frame = frame.astype({"score": float}).dropna(subset="score")
    if frame.empty:
        raise UnavailableError(f"No head has the score {score!r} on this input: no query has such a key.")
    frame = frame.assign(
        name=head_titles(reading, frame),
        effect=frame["measured"].fillna(frame["estimated"]),
        known=["estimated" if missing else "measured" for missing in frame["measured"].isna()],
    )
    known = frame if bool(frame["measured"].isna().all()) else frame.dropna(subset="measured")
    strong = known.sort_values("effect", key=lambda effect: -effect.abs(), kind="stable").head(NAMED)
    alike = known.sort_values("score", ascending=False, kind="stable").head(NAMED)
    named = pd.concat([strong, alike]).drop_duplicates("name")
    points = named[["score", "effect"]].to_numpy(dtype=float)
    named = named.assign(side=place_labels(points, named["name"].tolist(), width=WIDTH, height=HEIGHT, size=FONT))
    ink = theme.TEXT
    title = score_title(score)
    effects = [alt.Tooltip(f"{name}:Q", format="+.4f") for name in ("estimated", "measured")]
    base = alt.Chart(frame).encode(
        alt.X("score:Q", title=f"{title} score (fraction of attention)"),
        alt.Y("effect:Q", title=["effect of ablation", f"on the {goal}"]),
        tooltip=[*tooltips("name:N", ("score:Q", f"{title} score", ".3f")), *effects],
    )
    hue = theme.PART_HUES["attention"]
    return layered(
        alt.Chart(pd.DataFrame({"at": [0.0]})).mark_rule(color=ink, strokeDash=[4, 3]).encode(alt.Y("at:Q")),
        base.transform_filter("datum.known == 'measured'").mark_circle(size=70, color=hue, opacity=0.8),
        base.transform_filter("datum.known == 'estimated'").mark_point(size=50, color=hue, opacity=0.8),
        *label_layers(alt.Chart(named).encode(alt.X("score:Q"), alt.Y("effect:Q")), "name:N", size=FONT, color=ink),
        height=HEIGHT,
    )
