"""Draw interventions: what copied activations restore, and what silencing each head does."""

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
from xformer.analysis.activation_patching import patching_map as patching_map_table
from xformer.analysis.attention_patterns import SCORES, TASK, head_scores
from xformer.analysis.minimal_pairs import Token
from xformer.errors import InputError
from xformer.reading import Reading
from xformer.viz import theme
from xformer.viz.charts import Chart, head_titles, heat, inks, label_layers, layered, place_labels, tips, written
from xformer.viz.generation import short_names
from xformer.viz.residual import TIGHT, around, row_height

MOST_PARTS = 20


def patching(
    readings: Sequence[Reading],
    *,
    everywhere: bool = False,
    out_of: int = 0,
    table: pd.DataFrame | None = None,
    dark: bool = False,
) -> Chart:
    """The `MOST_PARTS` parts of one reading that tell most as bars; 0 leaves the other run as it was, 1 is this one's.

    Heads have their own hues, the other parts those of their kind; ⇒ marks a copy that turns the answer, and to what. `table`
    is that of `analysis.patching` where it has been made already.

    Args:
        readings: The runs to compare.
        everywhere: Copy parts at every position, not only at the one that decides.
        out_of: Which reading the parts come from, 0 or 1.
        table: The table of the analysis, where it exists already.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", changes="ablate:decoder.0.attn.0"),
        ... ]
        >>> runs = [xformer.analysis.decode_steps(variant, (3, 7, 12, 9)) for variant in variants]
        >>> readings = [run[1] for run in runs]  # at the second step
        >>> chart = xformer.viz.patching(readings)
    """
    table = patching_table(readings, everywhere=everywhere) if table is None else table
    whole = [reading.subject.name for reading in (readings[out_of], readings[1 - out_of])]
    names = short_names(whole)
    source, into = (names[name] for name in whole)
    shown = table.loc[table["source"] == whole[0]].head(MOST_PARTS)
    data = shown.assign(
        hue=[_hue(row, dark) for row in shown.to_dict("records")],
        text=[
            f"{share:+.2f}  ⇒ {says}" if turns else f"{share:+.2f}"
            for share, says, turns in zip(shown["restored"], shown["says"], shown["turns"], strict=True)
        ],
        turned=["yes" if turns else "no" for turns in shown["turns"]],
    )
    shares = data["restored"].tolist()
    low, high = min(0.0, *shares), max(1.0, *shares)
    room = 0.22 * (high - low)
    name, ends = f"share restored: {source} → {into}", [low - (room if low < 0 else 0), high + room]
    x = alt.X("restored:Q", title=name, scale=alt.Scale(domain=ends, nice=False))
    axis = alt.Axis(labelLimit=260, labelOverlap=False)
    y = alt.Y("part:N", sort=data["part"].tolist(), title="what is copied", axis=axis)
    hover = tips("part:N", ("restored:Q", "share restored", "+.6f"), ("difference:Q", "logit difference", "+.6f"))
    hover += tips(("says:N", "now says"), ("turned:N", "answer turns"))
    base = alt.Chart(data).encode(x, y, tooltip=hover)
    ink = theme.pick(theme.TEXT, dark)
    number = {"fontSize": 12, "color": ink}
    known = pd.DataFrame({"at": [0.0, 1.0], "is": [f"{into} as it was", f"as in {source}"]})
    rules = alt.Chart(known).mark_rule(color=ink, strokeDash=[4, 3])
    return layered(
        rules.encode(alt.X("at:Q", title=name), tooltip=alt.Tooltip("is:N")),
        base.mark_bar().encode(alt.Color("hue:N", scale=None)),
        base.transform_filter("datum.restored >= 0").mark_text(align="left", dx=5, **number).encode(text="text:N"),
        base.transform_filter("datum.restored < 0").mark_text(align="right", dx=-5, **number).encode(text="text:N"),
        height=24 * len(data) + 144,
        title=f"Out of {source}, into {into}",
    )


def _hue(row: dict[str, object], dark: bool) -> str:
    head, component = row["head"], str(row["component"])
    if isinstance(head, int) and head:
        return theme.head_hue(head - 1, dark)
    kind = {"residual": "sum", "feed-forward": "feed_forward"}.get(component, "attention")
    return theme.pick(theme.PART_HUES[kind], dark)


FAINT = 0.1
"""The end of the colour scale where no part carries more: what is next to nothing does not look like much."""

LETTERS = 24
"""So many letters of names stand side by side over the columns, also on a phone; more stand aslant."""

UNWRITTEN = 0.005
"""A share that would be written as 0 is not written."""


def patching_map(
    reading: Reading,
    source: Reading,
    *,
    part: PartKind = "stream",
    answers: Sequence[Token] | None = None,
    position: int | None = None,
    exact: bool | Sequence[int] = False,
    groups: int = GROUPS,
    show: Literal["measured", "estimated"] | None = None,
    chosen: int | None = None,
    table: pd.DataFrame | None = None,
    dark: bool = False,
) -> Chart:
    """Draw `analysis.patching_map`: blue is towards the other run; a cell that is not measured is grey.

    Rows are layers from the embedding down, columns positions, heads or groups of neurons.

    Args:
        reading: The run that is patched.
        source: The run of the other input.
        part: What a cell is; see `analysis.patching_map`, as for `answers`, `position`, `exact` and `groups`.
        answers: The two tokens that are compared.
        position: The output at which they are.
        exact: Whether the cells are measured, or the numbers of those that are.
        groups: The number of groups of neurons in a layer.
        show: Which of the two values is drawn; without it the measured ones where there are some.
        chosen: The number of the cell (its row in the table) that has a frame.
        table: That of `analysis.patching_map` where it has been made already.
        dark: Whether it stands on a dark page.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> other = xformer.read("checkpoints/reverse", "3 7 5 9 1")
        >>> chart = xformer.viz.patching_map(reading, other)
    """
    if table is None:
        table = patching_map_table(
            reading, source, part=part, answers=answers, position=position, exact=exact, groups=groups
        )
    kind = show or ("estimated" if exact is False else "measured")
    values = table[kind].to_numpy(dtype=float)
    limit = max(FAINT, theme.signed_limit(values))
    stops = theme.diverging(dark)
    data = table.assign(
        cell=range(len(table)),
        column=_columns(table, part, is_pair=reading.is_pair),
        value=values,
        share=[f"{value:.2f}".replace("-", "−") if abs(value) >= UNWRITTEN else "" for value in values],
        ink=inks(stops, values, -limit, limit),
    )
    rows, columns = (list(dict.fromkeys(data[name])) for name in ("where", "column"))
    n, high = len(columns), max(row_height(len(rows)), min(60, 240 // len(rows)))
    title = {"stream": "position · token", "head": "head", "neurons": "neurons"}[part]
    flat = n * max(map(len, columns)) <= LETTERS
    axis = alt.Axis(labelAngle=0 if flat else -60, orient="top", labelOverlap=flat or n > TIGHT, labelLimit=150)
    x = alt.X("column:N", sort=columns, title=title, axis=axis)
    beside = alt.Axis(labelLimit=240, labelOverlap=False, labelFlush=False)
    y = alt.Y("where:N", sort=rows, title=None, axis=beside)
    hover = tips(("where:N", "layer"), ("column:N", title))
    hover += [alt.Tooltip(f"{name}:Q", format="+.6f") for name in ("measured", "estimated") if name in table]
    length = max(36, min(160, high * len(rows) - 48))
    legend = alt.Legend(title=["share", kind], format="+.2f", gradientLength=length)
    colour = heat("value:Q", stops, -limit, limit, legend=legend)
    shade = alt.condition("isValid(datum.value)", colour, alt.value(theme.pick(theme.MASKED, dark)))
    base = alt.Chart(data).encode(x, y)
    click = alt.selection_point(name="cell", fields=["cell"], on="click", clear=False)
    frame = base.transform_filter(alt.datum.cell == (-1 if chosen is None else chosen))
    layers: list[alt.Chart] = [
        base.mark_rect(stroke=theme.pick(theme.BACKGROUND, dark), strokeWidth=1, cursor="pointer")
        .encode(color=shade, tooltip=hover)
        .add_params(click),
        frame.mark_rect(filled=False, stroke=theme.pick(theme.TEXT, dark), strokeWidth=2.5),
    ]
    if n <= TIGHT:
        layers.append(base.mark_text(fontSize=11).encode(color=written(), text="share:N"))
    return layered(*layers, height=high * len(rows) + around(""))


def _columns(table: pd.DataFrame, part: PartKind, *, is_pair: bool) -> list[str]:
    """What stands above each cell's column."""
    if part == "head":
        return [str(head + 1) for head in table["head"]]
    if part == "neurons":
        groups = table["group"].tolist()
        ranges = [f"{first}–{last}" for first, last in zip(table["first_neuron"], table["last_neuron"], strict=True)]
        are_wide_alike = len(set(ranges)) == len(set(groups))
        return ranges if are_wide_alike else [f"group {group + 1}" for group in groups]
    names = []
    for stack, position, token, other in zip(
        table["stack"], table["position"], table["token"], table["source_token"], strict=True
    ):
        read = token if token == other else f"{token} → {other}"
        names.append(f"{f'{stack} ' if is_pair else ''}{position} · {read}")
    return names


NAMED = 5
"""This many of the heads with the largest effects have their names beside them, and of those with the highest scores."""
WIDTH, HEIGHT, FONT = 560, 320, 11
"""What the names are laid out for."""


def score_title(score: str) -> str:
    """A column of `analysis.head_scores` in words: "task" for "task_pattern", "anti-diagonal" for "anti_diagonal"."""
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
    dark: bool = False,
) -> Chart:
    """Draw `analysis.head_effects` over a score of `analysis.head_scores`.

    Filled points are measured; hollow ones are not, and stand at their estimate. Names stand beside measured heads only, unless
    none is measured. `table` is that of `analysis.head_effects` where it has been made already.

    Args:
        reading: The run.
        score: A column of `analysis.head_scores`.
        look: "answer" or "source": the positions that count.
        without_first: Leave the first token out, as a query and as a key.
        position: The position, from 0.
        token: The token's id.
        against: A second key or token to compare with.
        exact: Measure all heads, or only those given as (layer, head), from 0.
        table: The table of the analysis, where it exists already.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.head_effects(reading, score="anti_diagonal")
    """
    scores = head_scores(reading, look=look, without_first=without_first)
    if score not in scores or score in ("layer", "head"):
        raise InputError(f"A head has the scores {', '.join([TASK, *SCORES, 'induction'])}, got {score!r}.")
    if table is None:
        table = effects_table(reading, position=position, token=token, against=against, exact=exact)
    goal = minimal_pairs.title(reading, minimal_pairs.of_run(reading, position, token, against))
    frame = table.merge(scores[["layer", "head", score]], on=["layer", "head"]).rename(columns={score: "score"})
    frame = frame.astype({"score": float}).dropna(subset="score")
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
    ink = theme.pick(theme.TEXT, dark)
    title = score_title(score)
    effects = [alt.Tooltip(f"{name}:Q", format="+.4f") for name in ("estimated", "measured")]
    base = alt.Chart(frame).encode(
        alt.X("score:Q", title=f"{title} score: share of its attention"),
        alt.Y("effect:Q", title=["added by silencing it", f"to the {goal}"]),
        tooltip=[*tips("name:N", ("score:Q", f"{title} score", ".3f")), *effects],
    )
    hue = theme.pick(theme.PART_HUES["attention"], dark)
    return layered(
        alt.Chart(pd.DataFrame({"at": [0.0]})).mark_rule(color=ink, strokeDash=[4, 3]).encode(alt.Y("at:Q")),
        base.transform_filter("datum.known == 'measured'").mark_circle(size=70, color=hue, opacity=0.8),
        base.transform_filter("datum.known == 'estimated'").mark_point(size=50, color=hue, opacity=0.8),
        *label_layers(alt.Chart(named).encode(alt.X("score:Q"), alt.Y("effect:Q")), "name:N", size=FONT, color=ink),
        height=HEIGHT,
    )
