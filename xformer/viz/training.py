"""Draw a training run: curves against its steps, with the step that is looked at, and when something first held.

    frame = metrics_frame(run store.rows(run))
    curve_chart(frame, LOSS, steps=700, dark=False)

Frames are wide, one row per step, so that a growing run only sends numbers: what the chart looks like does not depend on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from xformer.viz import theme
from xformer.viz.charts import layered

TALL = 200
"""From this height on the horizontal axis has room for its name."""
MOST = 400
"""Rows that a chart is given: more is wider than a screen."""
SCORES = ("held_out_exact_match", "held_out_token_accuracy")
COLUMNS = (
    "step", "loss", "held_out_loss", *SCORES, "gradient_norm", "learning_rate", "tokens_per_second", "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class Curves:
    """What one chart shows: columns of the frame with the names a person reads and their hues, and the vertical axis."""

    title: str
    names: Mapping[str, str]
    hues: tuple[theme.Pair, ...]
    axis: str
    format: str = ".4f"
    share: bool = False
    """Whether the values are shares, on the fixed domain from 0 to 1."""
    can_log: bool = False


BLUE, ORANGE = theme.HEAD_HUES[0], theme.HEAD_HUES[1]
LOSS = Curves("Loss", {"loss": "training", "held_out_loss": "held out"}, (BLUE, ORANGE), "nats a token", can_log=True)
ACCURACY = Curves(
    "Right on held-out examples",
    {"held_out_exact_match": "exact match", "held_out_token_accuracy": "tokens"},
    (BLUE, ORANGE),
    "share",
    ".2%",
    share=True,
)
GRADIENT = Curves("Gradient norm", {"gradient_norm": "norm"}, (BLUE,), "‖g‖", ".4g", can_log=True)
RATE = Curves("Learning rate", {"learning_rate": "rate"}, (BLUE,), "rate", ".3e")
BITS = Curves("Bits per character, on text it never reads", {"bits": "held out"}, (BLUE,), "bits", ".3f")
CURVES = {"loss": LOSS, "accuracy": ACCURACY, "bits": BITS, "gradient": GRADIENT, "rate": RATE}
"""What `metric_curves` draws."""
BEST = "best"
"""The column of a head frame that holds the best score of any head."""


def head_curves(title: str, heads: Mapping[str, str], hue_of: Sequence[int]) -> Curves:
    """Scores of heads by column; `hue_of` gives the number of the head whose hue a curve has."""
    hues = tuple(theme.HEAD_HUES[head % len(theme.HEAD_HUES)] for head in hue_of)
    return Curves(title, heads, hues, "score", ".4f", share=True)


def metrics_frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows of metrics as a table of numbers with the columns `COLUMNS`; what a row lacks or garbles is not a number."""
    frame = pd.DataFrame([{name: row.get(name) for name in COLUMNS} for row in rows], columns=list(COLUMNS))
    return pd.DataFrame({name: pd.to_numeric(frame[name], errors="coerce") for name in COLUMNS})


def every_nth(frame: pd.DataFrame, most: int = MOST) -> pd.DataFrame:
    """At most about `most` rows, evenly spread, with the last one."""
    stride = -(-len(frame) // most)
    if stride <= 1:
        return frame
    return frame.iloc[sorted({*range(0, len(frame), stride), len(frame) - 1})]


def with_marks(frame: pd.DataFrame, shown: int | None, marks: Iterable[tuple[int, str]] = ()) -> pd.DataFrame:
    """The frame with rows that are no points of a curve: the step that is looked at, and steps worth a word."""
    rows = [(step, "marked", note) for step, note in marks]
    if shown is not None:
        rows.append((shown, "shown", f"step {shown:,}"))
    steps, kinds, notes = zip(*rows, strict=True) if rows else ((), (), ())
    no_point = [math.nan] * len(rows)
    data: dict[str, list[Any]] = {str(name): [*values, *no_point] for name, values in frame.items()}
    data["step"] = [*frame["step"], *steps]
    data["mark"], data["note"] = ([*[""] * len(frame), *of] for of in (kinds, notes))
    return pd.DataFrame(data)  # to put two frames together takes several times as long, and this is done every second


def domain_of(frame: pd.DataFrame, columns: Sequence[str], log: bool = False) -> tuple[float, float]:
    """From where to where an axis goes: round numbers, so that a run that goes on seldom moves it.

    Vega would find it out by itself, but looks before the data are there, and complains of an infinite extent.
    """
    values = frame[list(columns)].to_numpy(dtype=float, na_value=float("nan"))
    values = values[np.isfinite(values) & ((values > 0) | (not log))]
    if not len(values):
        return (0.1, 1.0) if log else (0.0, 1.0)
    low, high = float(values.min()), float(values.max())
    if log:
        decades = math.floor(math.log10(low)), math.ceil(math.log10(high))
        return 10.0 ** decades[0], 10.0 ** max(decades[1], decades[0] + 1)
    if low == high == 0:
        return 0.0, 1.0
    return (0.0 if low >= 0 else -_round_up(-low)), _round_up(high) if high > 0 else 0.0


def _round_up(value: float) -> float:
    """The next round number: one, one and a half, two, three, four, five or seven and a half times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next((n * power for n in (1, 1.5, 2, 3, 4, 5, 7.5, 10) if n * power >= value), 10 * power)


def curve_chart(
    frame: pd.DataFrame, curves: Curves, *, steps: int, dark: bool, log: bool = False, height: int = 220
) -> alt.LayerChart | alt.FacetChart:
    """Curves over the steps from 0 to `steps`, from a frame that `with_marks` made or one without marks.

    The nearest step shows all its numbers under the pointer. On a logarithmic axis, values of 0 or less are left out.
    """
    if "mark" not in frame.columns:
        frame = with_marks(frame, None)
    columns = list(curves.names)
    log = log and curves.can_log
    domain = (0.0, 1.0) if curves.share else domain_of(frame, columns, log)
    scale: Any = alt.Scale(domain=domain, type="log" if log else "linear", nice=False)
    x = alt.X(
        "step:Q",
        title="step" if height >= TALL else None,
        scale=alt.Scale(domain=[0, steps], nice=False),
        axis=alt.Axis(format=",d", tickCount=6),
    )
    axis = alt.Axis(format=".0%" if curves.share else ".3~g", tickCount=5)
    words = " : ".join(f"datum.curve == '{column}' ? {name!r}" for column, name in curves.names.items())
    colour = alt.Color(
        "name:N",
        title=None,
        scale=alt.Scale(domain=list(curves.names.values()), range=[theme.pick(hue, dark) for hue in curves.hues]),
        legend=alt.Legend(orient="top", labelLimit=200, symbolStrokeWidth=3, padding=0)
        if 1 < len(columns) <= 2
        else None,
    )
    base = alt.Chart(frame).encode(x)
    lines = (
        base.transform_filter("datum.mark == ''")
        .transform_fold([*columns], as_=["curve", "value"])
        .transform_filter("isValid(datum.value)" + (" && datum.value > 0" if log else ""))
        .transform_calculate(name=f"{words} : ''")
        .mark_line(strokeWidth=2.5 if len(columns) <= 4 else 1.5, opacity=1.0 if len(columns) <= 4 else 0.75)
        .encode(alt.Y("value:Q", title=curves.axis, scale=scale, axis=axis), color=colour, detail=alt.Detail("curve:N"))
    )
    ink = theme.pick(theme.TEXT, dark)
    layers: list[Any] = [lines]
    near = alt.selection_point(
        nearest=True, on="pointermove", clear="pointerout", fields=["step"], empty=False, name="near"
    )
    hover = [alt.Tooltip("step:Q", format=",")]
    hover += [alt.Tooltip(f"{column}:Q", title=name, format=curves.format) for column, name in curves.names.items()][
        :20
    ]
    points = base.transform_filter("datum.mark == ''")
    layers.append(
        points.mark_rule(color=ink, strokeWidth=1)
        .encode(opacity=alt.OpacityValue(**alt.condition(near, alt.value(0.35), alt.value(0.0))), tooltip=hover)
        .add_params(near)
        .properties(name="hovered")  # else the view is named after the data
    )
    marked = base.transform_filter("datum.mark == 'marked'")
    layers.append(
        marked.mark_rule(color=ink, strokeDash=[4, 3], opacity=0.6).encode(
            tooltip=[alt.Tooltip("note:N", title="here")]
        )
    )
    layers.append(
        base.transform_filter("datum.mark == 'shown'")
        .mark_rule(color=theme.pick(theme.PRIMARY, dark), strokeWidth=2.5)
        .encode(tooltip=[alt.Tooltip("note:N", title="shown above")])
    )
    return layered(*layers, height=height)


def metric_data(
    frame: pd.DataFrame, what: str, shown: int | None = None, marks: Mapping[int, str] | None = None
) -> pd.DataFrame:
    """The rows of a `metrics_frame` that `metric_curves` draws; bits per character are the held-out loss / ln 2."""
    columns = frame.assign(bits=frame["held_out_loss"] / math.log(2)).loc[:, ["step", *CURVES[what].names]]
    return with_marks(every_nth(columns), shown, (marks or {}).items())


def metric_curves(
    frame: pd.DataFrame,
    *,
    what: str,
    steps: int,
    shown: int | None = None,
    marks: Mapping[int, str] | None = None,
    log: bool = False,
    height: int = 220,
    dark: bool = False,
) -> alt.LayerChart | alt.FacetChart:
    """One of `CURVES` of a `metrics_frame`, with the step that is looked at and steps worth a word."""
    data = metric_data(frame, what, shown, marks)
    return curve_chart(data, CURVES[what], steps=steps, dark=dark, log=log, height=height)


def head_frame(table: pd.DataFrame) -> tuple[pd.DataFrame, dict[tuple[str, int], str]]:
    """A `head_table` (step, layer, head, score) as a wide frame with the best score, and the column of each head."""
    pairs = list(zip(table["layer"], table["head"], strict=True))
    columns = {pair: f"head{i}" for i, pair in enumerate(dict.fromkeys(pairs))}
    wide: dict[int, dict[str, float]] = {}
    for step, pair, score in zip(table["step"], pairs, table["score"], strict=True):
        wide.setdefault(step, {"step": step})[columns[pair]] = score
    frame = pd.DataFrame([wide[step] for step in sorted(wide)], columns=["step", *columns.values()])
    return frame.assign(**{BEST: frame[list(columns.values())].max(axis=1)}), columns
