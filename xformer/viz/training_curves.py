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
from jaxtyping import Float

from xformer.bugs.lab import Lesson
from xformer.viz import theme
from xformer.viz.charts import layered
from xformer.viz.theme import HEAD_HUES

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
        .encode(alt.Y("value:Q", title=curves.axis, scale=scale, axis=axis), color=colour, detail="curve:N")
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
        .encode(opacity=alt.condition(near, alt.value(0.35), alt.value(0.0)), tooltip=hover)
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
    """One of `CURVES` of a `metrics_frame`, with the step that is looked at and steps worth a word.

    Args:
        frame: The metrics, from `metrics_frame`.
        what: The column that is drawn.
        steps: Where the axis of steps ends.
        shown: The step that is marked.
        marks: Words at some steps.
        log: Whether the axis is logarithmic.
        height: The height of the chart, in pixels.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> from xformer.viz.training_curves import metrics_frame
        >>> metrics = metrics_frame(xformer.load("checkpoints/reverse").card["curve"])
        >>> chart = xformer.viz.metric_curves(metrics, what="loss", steps=800)
    """
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


POINTS = 500
"""The most points of a run that are drawn."""

HEIGHT = 330

LINE = 17
"""Pixels between two names at the right."""

BELOW = 66
"""Pixels that the horizontal axis takes of a picture's height."""

SHARES = ("held_out_exact_match", "held_out_token_accuracy", "best_head_score")
"""Metrics between 0 and 1."""


def smoothed(values: Float[np.ndarray, "row"], weight: float) -> Float[np.ndarray, "row"]:
    """The exponential moving average without the pull of its start at zero (Kingma & Ba 2015, §3).

        m_t = w m_(t−1) + (1 − w) y_t        ŷ_t = m_t / (1 − w^t)

    Raises ValueError unless 0 ≤ `weight` < 1; 0 leaves the values as they are.
    """
    if not 0 <= weight < 1:
        raise ValueError(f"A weight of smoothing is at least 0 and below 1, received {weight}; try 0.6.")
    average, result = 0.0, np.empty(len(values))
    for t, value in enumerate(values, start=1):
        average = weight * average + (1 - weight) * value
        result[t - 1] = average / (1 - weight**t)
    return result


def thinned(frame: pd.DataFrame, points: int = POINTS) -> pd.DataFrame:
    """At most so many rows, at equal distances, the first and the last among them."""
    if len(frame) <= points:
        return frame
    return frame.iloc[np.unique(np.linspace(0, len(frame) - 1, points).round().astype(int))]


def curves(
    rows: Mapping[str, Sequence[Mapping[str, Any]]], metric: str, *, x: str = "step", smoothing: float = 0.0
) -> pd.DataFrame:
    """What is drawn, at most `POINTS` rows per run: run, step, seconds, value (smoothed), raw.

    `rows` are the metrics of each run by its name; rows without the metric, or without a finite one, are left out.
    """
    frames = []
    for name, found in rows.items():
        points = [row for row in found if _is_number(row.get(metric)) and _is_number(row.get(x))]
        frame = pd.DataFrame(
            {
                "run": name,
                "step": [row["step"] for row in points],
                "seconds": [float(row.get("seconds", 0.0)) for row in points],
                "raw": [float(row[metric]) for row in points],
            }
        )
        # Smoothed before it is thinned: else the curve would depend on how many points there is room for.
        frame["value"] = smoothed(frame["raw"].to_numpy(dtype=float), smoothing)
        frames.append(thinned(frame))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def curves_chart(
    frame: pd.DataFrame,
    metric: str,
    title: str,
    colours: Mapping[str, str],
    *,
    x: str = "step",
    log: bool = False,
    height: int = HEIGHT,
) -> alt.LayerChart | alt.FacetChart:
    """The `curves` of runs, x being "step" or "seconds". A click on a line or a name brings that run to the front.

    Shares are drawn from 0 to 1. On a logarithmic scale what is not above zero is left out. Where values are smoothed the
    raw ones stay behind, faint.
    """
    log = log and metric not in SHARES
    if log:
        frame = frame.loc[(frame["value"] > 0) & (frame["raw"] > 0)]
    is_smooth = bool((frame["raw"] - frame["value"]).abs().gt(1e-12).any())
    domain = [0.0, 1.0] if metric in SHARES else padded(frame["raw" if is_smooth else "value"].tolist(), log)
    scale = alt.Scale(domain=domain, type="log" if log else "linear", nice=False)
    share = metric in SHARES
    y = alt.Y("value:Q", title=title, scale=scale, axis=alt.Axis(format=".0%" if share else "~g", tickCount=5))
    last_x = max(frame[x].tolist()) if len(frame) else 1.0
    across = alt.X(f"{x}:Q", title=x, scale=alt.Scale(domain=[0, last_x], nice=False))
    front = alt.selection_point(fields=["run"], name="front", on="click", clear="dblclick")
    names = [name for name in colours if name in set(frame["run"])]
    colour = alt.Color("run:N", scale=alt.Scale(domain=names, range=[colours[name] for name in names]), legend=None)
    lit = alt.condition(front, alt.value(1.0), alt.value(0.12))
    exact = [
        "run:N",
        alt.Tooltip("step:Q", format=","),
        alt.Tooltip("seconds:Q", format=".2f"),
        alt.Tooltip("value:Q", title=f"{title}, smoothed" if is_smooth else title, format=".6g"),
        *([alt.Tooltip("raw:Q", title=f"{title}, raw", format=".6g")] if is_smooth else []),
    ]
    base = alt.Chart(frame).encode(across, colour)
    layers: list[alt.Chart] = []
    if is_smooth:
        faint = alt.condition(front, alt.value(0.38), alt.value(0.06))
        layers.append(base.mark_line(strokeWidth=1, clip=True).encode(alt.Y("raw:Q", scale=scale), opacity=faint))
    layers.append(base.mark_line(strokeWidth=2.5, clip=True).encode(y, opacity=lit))
    # Invisible large points are easier to hover than the line.
    near = alt.selection_point(name="near", on="pointerover", nearest=True, fields=["run", x], empty=False)
    layers.append(
        base.mark_point(size=70, filled=True, clip=True)
        .encode(y, opacity=alt.condition(near, alt.value(1.0), alt.value(0.0)), tooltip=exact)
        .add_params(near, front)
    )
    layers.append(_names(frame, x, last_x, y, domain, log, height - BELOW, names, lit))
    return layered(*layers, height=height)


def _names(
    frame: pd.DataFrame,
    x: str,
    last_x: float,
    y: alt.Y,
    domain: list[float],
    log: bool,
    height: int,
    names: list[str],
    lit: Any,
) -> alt.Chart:
    """Each run's name right of the picture, as high as its line ends, apart enough to be read."""
    ends = dict(zip(frame["run"].tolist(), frame["value"].tolist(), strict=True))  # the last value of each run
    wanted = [height * (1 - share_of(ends[name], domain, log)) for name in names]
    table = pd.DataFrame(
        {
            "run": names,
            "shown": [name if len(name) <= 22 else f"{name[:21]}…" for name in names],
            "value": [value_at(1 - pixel / height, domain, log) for pixel in spread(wanted, LINE, LINE / 2, height)],
            x: last_x,
        }
    )
    return (
        alt.Chart(table)
        .mark_text(align="left", dx=8, fontSize=13, fontWeight=600)
        .encode(
            x=f"{x}:Q",
            y=y,
            text="shown:N",
            opacity=lit,
            tooltip=alt.Tooltip("run:N"),
            color=alt.Color("run:N", legend=None),
        )
    )


def padded(values: Sequence[float], log: bool) -> list[float]:
    """From a little below the least to a little above the largest; from zero on a linear scale where nothing is below."""
    if not values:
        return [0.1, 1.0] if log else [0.0, 1.0]
    low, high = min(values), max(values)
    if log:
        room = max(1.05, (high / low) ** 0.04)
        return [low / room, high * room]
    room = 0.04 * (high - low) or 0.04 * abs(high) or 1.0
    return [0.0 if low >= 0 else low - room, high + room]


def share_of(value: float, domain: Sequence[float], log: bool) -> float:
    """How high a value is between the ends of an axis: 0 at the bottom, 1 at the top, never outside."""
    low, high = domain
    share = math.log(value / low) / math.log(high / low) if log else (value - low) / (high - low)
    return min(1.0, max(0.0, share))


def value_at(share: float, domain: Sequence[float], log: bool) -> float:
    """What stands so high on an axis: the inverse of `share_of`, and the same line beyond the ends."""
    low, high = domain
    return low * (high / low) ** share if log else low + share * (high - low)


def spread(wanted: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """Places as near to those wanted as it goes, at least `apart` from each other; from `low` to `high` where there is room."""
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    places = [0.0] * len(wanted)
    below = low - apart
    for index in order:
        below = places[index] = max(wanted[index], below + apart)
    above = high + apart
    for index in reversed(order):
        above = places[index] = min(places[index], above - apart)
    if order and (lift := low - places[order[0]]) > 0:  # more names than fit: they run over the lower edge
        places = [place + lift for place in places]
    return places


def dot(colour: str | None) -> str:
    """A small disc of a colour as an image's address, for a column of a table; an empty image for no colour."""
    if colour is None:
        return "data:image/svg+xml;utf8,<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 20 20'/>"
    return (
        "data:image/svg+xml;utf8,<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 20 20'>"
        f"<circle cx='10' cy='10' r='7' fill='%23{colour.removeprefix('#')}'/></svg>"
    )


def run_colour(slot: int, dark: bool) -> str:
    """The colour of the run in that place of the choice; they start over after twelve."""
    return theme.pick(theme.HEAD_HUES[slot % len(theme.HEAD_HUES)], dark)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


NAMES = {"right": "right", "wrong": "with bug"}

HUES = (HEAD_HUES[0], HEAD_HUES[1])

BUG_LESSON_CURVES = {
    "loss": Curves("Training loss", NAMES, HUES, "nats per token"),
    "tokens": Curves("Right on unseen inputs", NAMES, HUES, "tokens", ".1%", share=True),
    "gradient": Curves("Length of the gradient", NAMES, HUES, "‖g‖ before clipping", ".3g", can_log=True),
}


def lesson_curves(lesson: Lesson, *, what: str, dark: bool = False) -> alt.LayerChart | alt.FacetChart:
    """How two models learn side by side, one of them with a bug.

    `what` is "loss", "tokens", the share of tokens that are right on unseen inputs, or "gradient".

    Args:
        lesson: Two trainings, from `bugs.lesson.train_both`.
        what: "loss", "tokens" or "gradient".
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> from xformer.bugs.lab import train_both
        >>> lesson = train_both("checkpoints/reverse-small", "init-too-large", steps=4)
        >>> chart = xformer.viz.lesson_curves(lesson, what="loss")
    """
    rows = pd.DataFrame(lesson.rows)
    frame = pd.DataFrame({side: rows.get(f"{what}_{side}", math.nan) for side in NAMES}).assign(step=rows["step"])
    return curve_chart(
        frame, BUG_LESSON_CURVES[what], steps=lesson.steps, dark=dark, log=what == "gradient", height=260
    )
