"""Draw the curves of a training run over its steps, with the shown step and annotated ones.

    frame = metrics_frame(rows)
    curve_chart(frame, LOSS, steps=700)

Frames are wide, one row per step, so that a growing run only sends numbers and the chart specification stays the same.
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

from xformer.arguments import Count
from xformer.doctor.faults.lab import PairedTraining
from xformer.formatting import check_option
from xformer.viz import theme
from xformer.viz.charts import Chart, category_colours, layered, tooltips

TALL = 200
"""Height from which the horizontal axis has a title."""
MOST = 400
"""Largest number of rows of a chart; more would exceed the pixels of a screen."""
SCORES = ("held_out_exact_match", "held_out_token_accuracy")
COLUMNS = (
    "step", "loss", "held_out_loss", *SCORES, "gradient_norm", "learning_rate", "tokens_per_second", "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class Curves:
    """The curves of one chart: columns of the frame with their display names and hues, and the vertical axis."""

    title: str
    names: Mapping[str, str]
    hues: tuple[str, ...]
    axis: str
    format: str = ".4f"
    share: bool = False
    """Whether the values are fractions, on the fixed domain from 0 to 1."""


BLUE, ORANGE = theme.HEAD_HUES[0], theme.HEAD_HUES[1]
LOSS = Curves("Loss", {"loss": "training", "held_out_loss": "held out"}, (BLUE, ORANGE), "nats per token")
SHARES_OF = {"held_out_exact_match": "exact match", "held_out_token_accuracy": "tokens"}
ACCURACY = Curves("Accuracy on held-out examples", SHARES_OF, (BLUE, ORANGE), "accuracy", ".2%", share=True)
GRADIENT = Curves("Gradient norm", {"gradient_norm": "norm"}, (BLUE,), "‖g‖", ".4g")
RATE = Curves("Learning rate", {"learning_rate": "rate"}, (BLUE,), "rate", ".3e")
BITS = Curves("Bits per character on held-out text", {"bits": "held out"}, (BLUE,), "bits", ".3f")
CURVES = {"loss": LOSS, "accuracy": ACCURACY, "bits": BITS, "gradient": GRADIENT, "rate": RATE}
"""The charts of `metric_curves`."""
BEST = "best"
"""The column of a head frame with the best score of any head."""


def head_curves(title: str, heads: Mapping[str, str], hue_of: Sequence[int]) -> Curves:
    """Return the curves of head scores by column; `hue_of` is the head, from 0, whose hue each curve has."""
    hues = tuple(theme.HEAD_HUES[head % len(theme.HEAD_HUES)] for head in hue_of)
    return Curves(title, heads, hues, "score", ".4f", share=True)


def metrics_frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows of metrics as a table with the columns `COLUMNS`; missing and malformed values are NaN."""
    frame = pd.DataFrame([{name: row.get(name) for name in COLUMNS} for row in rows], columns=list(COLUMNS))
    return pd.DataFrame({name: pd.to_numeric(frame[name], errors="coerce") for name in COLUMNS})


def every_nth(frame: pd.DataFrame, most: int = MOST) -> pd.DataFrame:
    """Thin a table evenly to about `most` rows, keeping the last one."""
    stride = -(-len(frame) // most)
    if stride <= 1:
        return frame
    return frame.iloc[sorted({*range(0, len(frame), stride), len(frame) - 1})]


def with_marks(frame: pd.DataFrame, shown: int | None, marks: Iterable[tuple[int, str]] = ()) -> pd.DataFrame:
    """Append rows to the frame that are not points of a curve: the shown step and annotated steps."""
    rows = [(step, "marked", note) for step, note in marks]
    if shown is not None:
        rows.append((shown, "shown", f"step {shown:,}"))
    points, marked = frame.assign(mark="", note=""), pd.DataFrame(rows, columns=["step", "mark", "note"])
    return pd.concat([points, marked], ignore_index=True) if rows else points


def domain_of(frame: pd.DataFrame, columns: Sequence[str], log: bool = False) -> tuple[float, float]:
    """Return the domain of an axis, in round numbers, so that it rarely changes while a run continues.

    Vega would compute it before the data have arrived, and warn of an infinite extent.
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
    """Round up to the next of 1, 1.5, 2, 3, 4, 5 and 7.5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next((n * power for n in (1, 1.5, 2, 3, 4, 5, 7.5, 10) if n * power >= value), 10 * power)


def curve_chart(frame: pd.DataFrame, curves: Curves, *, steps: int, log: bool = False, height: int = 220) -> Chart:
    """Draw curves over the steps from 0 to `steps`, from a frame with or without marks (`with_marks`).

    Hovering shows all values of the nearest step. On a logarithmic axis, values of 0 or less are left out.
    """
    if "mark" not in frame.columns:
        frame = with_marks(frame, None)
    columns = list(curves.names)
    log = log and not curves.share
    domain = (0.0, 1.0) if curves.share else domain_of(frame, columns, log)
    x = alt.X("step:Q", title="step" if height >= TALL else None, scale=alt.Scale(domain=[0, steps], nice=False),
              axis=alt.Axis(format=",d", tickCount=6))  # fmt: skip
    axis = alt.Axis(format=".0%" if curves.share else ".3~g", tickCount=5)
    y = alt.Y("value:Q", title=curves.axis, scale=axis_scale(domain, log), axis=axis)
    words = " : ".join(f"datum.curve == '{column}' ? {name!r}" for column, name in curves.names.items())
    legend = alt.Legend(orient="top", labelLimit=200, symbolStrokeWidth=3, padding=0) if len(columns) == 2 else None
    colour = category_colours("name:N", list(curves.names.values()), curves.hues, title=None, legend=legend)
    few = len(columns) <= 4
    base = alt.Chart(frame).encode(x)
    points, marked, shown = (base.transform_filter(f"datum.mark == '{mark}'") for mark in ("", "marked", "shown"))
    lines = (
        points.transform_fold([*columns], as_=["curve", "value"])
        .transform_filter("isValid(datum.value)" + (" && datum.value > 0" if log else ""))
        .transform_calculate(name=f"{words} : ''")
        .mark_line(strokeWidth=2.5 if few else 1.5, opacity=1.0 if few else 0.75)
        .encode(y, colour, detail="curve:N")
    )
    ink = theme.TEXT
    now = shown.mark_rule(color=theme.PRIMARY, strokeWidth=2.5)
    values = [(f"{name}:Q", title, curves.format) for name, title in curves.names.items()][:20]
    hover = tooltips(("step:Q", "", ","), *values)
    return layered(
        lines,
        hovered(points, ink, hover).properties(name="hovered"),  # otherwise the view is named after the data
        marked.mark_rule(color=ink, strokeDash=[4, 3], opacity=0.6).encode(tooltip=alt.Tooltip("note:N", title="mark")),
        now.encode(tooltip=alt.Tooltip("note:N", title="shown above")),
        height=height,
    )


def axis_scale(domain: Sequence[float], log: bool, **look: Any) -> alt.Scale:
    """Return a linear or logarithmic scale over `domain`."""
    return alt.Scale(domain=list(domain), type="log" if log else "linear", nice=False, **look)


def hovered(base: alt.Chart, ink: str, tooltip: list[Any]) -> alt.Chart:
    """Return a rule at the step nearest to the pointer, with a tooltip."""
    when = {"on": "pointermove", "clear": "pointerout", "empty": False}
    near = alt.selection_point(name="near", nearest=True, fields=["step"], **when)
    opacity = alt.condition(near, alt.value(0.35), alt.value(0.0))
    return base.mark_rule(color=ink, strokeWidth=1).encode(opacity=opacity, tooltip=tooltip).add_params(near)


def metric_curves(
    frame: pd.DataFrame,
    *,
    what: str,
    steps: int,
    shown: int | None = None,
    marks: Mapping[int, str] | None = None,
    log: bool = False,
    height: Count = 220,
) -> Chart:
    """Draw one of `CURVES` from a `metrics_frame`, with the shown step and annotated steps.

    Args:
        frame: The metrics, from `metrics_frame`.
        what: The chart to draw, a key of `CURVES`.
        steps: The end of the step axis.
        shown: The step to mark.
        marks: Annotations by step.
        log: Whether the vertical axis is logarithmic.
        height: The height of the chart, in pixels.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> from xformer.viz.training_curves import metrics_frame
        >>> metrics = metrics_frame(xformer.load("checkpoints/reverse").card["curve"])
        >>> chart = xformer.viz.metric_curves(metrics, what="loss", steps=800)
    """
    check_option("what", what, CURVES)
    bits = frame["held_out_loss"] / math.log(2)  # per character
    columns = frame.assign(bits=bits).loc[:, ["step", *CURVES[what].names]]
    data = with_marks(every_nth(columns), shown, (marks or {}).items())
    return curve_chart(data, CURVES[what], steps=steps, log=log, height=height)


def head_frame(table: pd.DataFrame) -> tuple[pd.DataFrame, dict[tuple[str, int], str]]:
    """Pivot a `head_table` (step, layer, head, score) to a wide frame with the best score; also return each head's column."""
    pairs = list(zip(table["layer"], table["head"], strict=True))
    columns = {pair: f"head{i}" for i, pair in enumerate(dict.fromkeys(pairs))}
    named = table.assign(column=[columns[pair] for pair in pairs])
    frame = named.pivot(index="step", columns="column", values="score").reindex(columns=list(columns.values()))
    return frame.assign(**{BEST: frame.max(axis=1)}).reset_index(), columns


POINTS = 500
"""Largest number of points drawn per run."""

SHARES = (*SCORES, "best_head_score")
"""Metrics between 0 and 1."""


def smoothed(values: Float[np.ndarray, "row"], weight: float) -> Float[np.ndarray, "row"]:
    """Return the exponential moving average with bias correction (Kingma & Ba 2015, §3).

        m_t = w m_(t−1) + (1 − w) y_t        ŷ_t = m_t / (1 − w^t)

    Raises ValueError unless 0 ≤ `weight` < 1; 0 leaves the values as they are.
    """
    if not 0 <= weight < 1:
        raise ValueError(f"The smoothing weight is at least 0 and below 1, got {weight}; try 0.6.")
    return pd.Series(values).ewm(alpha=1 - weight).mean().to_numpy()


def curves(
    rows: Mapping[str, Sequence[Mapping[str, Any]]], metric: str, *, x: str = "step", smoothing: float = 0.0
) -> pd.DataFrame:
    """Return the data of `curves_chart`, about `POINTS` rows per run: run, step, seconds, value (smoothed), raw.

    `rows` holds the metrics of each run by name; rows without a finite value of the metric are left out.
    """
    frames = []
    for name, of_run in rows.items():
        kept = [{"step": row.get("step"), "seconds": row.get("seconds"), "raw": row.get(metric)} for row in of_run]
        frame: Any = pd.DataFrame(kept, columns=["step", "seconds", "raw"]).apply(pd.to_numeric, errors="coerce")
        frame = frame.replace([np.inf, -np.inf], np.nan).dropna(subset=["raw", x])
        # Smooth before thinning, so that the curve does not depend on the number of points drawn.
        frame = frame.assign(run=name, value=smoothed(frame["raw"].to_numpy(dtype=float), smoothing))
        frames.append(every_nth(frame, POINTS))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def curves_chart(
    frame: pd.DataFrame, metric: str, title: str, colours: Mapping[str, str], *, x: str = "step", log: bool = False
) -> Chart:
    """Draw the `curves` of runs over x, "step" or "seconds". Clicking a line or a name brings that run to the front.

    Fractions are drawn from 0 to 1. On a logarithmic scale, values of 0 or less are left out. If values are smoothed, the raw
    ones are drawn faintly behind them. Names are in the order of the last values.
    """
    share = metric in SHARES
    log = log and not share
    if log:
        frame = frame.loc[(frame["value"] > 0) & (frame["raw"] > 0)]
    is_smooth = bool((frame["raw"] - frame["value"]).abs().gt(1e-12).any())
    scale = axis_scale((0.0, 1.0) if share else domain_of(frame, ["raw" if is_smooth else "value"], log), log)
    y = alt.Y("value:Q", title=title, scale=scale, axis=alt.Axis(format=".0%" if share else "~g", tickCount=5))
    last_x = max(frame[x].tolist()) if len(frame) else 1.0
    across = alt.X(f"{x}:Q", title=x, scale=alt.Scale(domain=[0, last_x], nice=False))
    front = alt.selection_point(fields=["run"], name="front", bind="legend", on="click", clear="dblclick")
    ends: dict[str, float] = frame.groupby("run")["value"].last().to_dict()
    names = sorted(ends, key=lambda name: -ends[name])
    look = {"symbolStrokeWidth": 4, "symbolType": "stroke", "symbolOpacity": 1}
    legend = alt.Legend(orient="right", title=None, labelLimit=160, **look)
    colour = category_colours("run:N", names, [colours[name] for name in names], sort=names, legend=legend)
    base = alt.Chart(frame).encode(across, colour)
    exact = tooltips("run:N", ("step:Q", "", ","), ("seconds:Q", "", ".2f"))
    exact += tooltips(("value:Q", f"{title}, smoothed" if is_smooth else title, ".6g"))
    exact += tooltips(("raw:Q", f"{title}, raw", ".6g")) if is_smooth else []
    layers: list[alt.Chart] = []
    if is_smooth:
        faint = alt.condition(front, alt.value(0.38), alt.value(0.06))
        layers.append(base.mark_line(strokeWidth=1, clip=True).encode(alt.Y("raw:Q", scale=scale), opacity=faint))
    lit = alt.condition(front, alt.value(1.0), alt.value(0.12))
    layers.append(base.mark_line(strokeWidth=2.5, clip=True).encode(y, opacity=lit))
    # Invisible large points are easier to hover than the line.
    near = alt.selection_point(name="near", on="pointerover", nearest=True, fields=["run", x], empty=False)
    points = base.mark_point(size=70, filled=True, clip=True).add_params(near, front)
    opacity = alt.condition(near, alt.value(1.0), alt.value(0.0))
    return layered(*layers, points.encode(y, opacity=opacity, tooltip=exact), height=330)


def dot(colour: str | None) -> str:
    """Return a small coloured disc as a data URL for a table column; an empty image for None."""
    disc = "" if colour is None else f"<circle cx='10' cy='10' r='7' fill='%23{colour.removeprefix('#')}'/>"
    return f"data:image/svg+xml;utf8,<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 20 20'>{disc}</svg>"


NAMES = {"right": "right", "wrong": "with bug"}


PAIRED_TRAINING_CURVES = {
    "loss": Curves("Training loss", NAMES, (BLUE, ORANGE), "nats per token"),
    "tokens": Curves("Accuracy on unseen inputs", NAMES, (BLUE, ORANGE), "token accuracy", ".1%", share=True),
    "gradient": Curves("Gradient norm", NAMES, (BLUE, ORANGE), "‖g‖ before clipping", ".3g"),
}


def paired_training_curves(training: PairedTraining, *, what: str) -> Chart:
    """Draw the training of two models, one of them with a bug.

    Args:
        training: The two training runs, from `faults.lab.train_both`.
        what: "loss", "tokens" (the token accuracy on unseen inputs) or "gradient" (its norm).

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> from xformer.doctor.faults.lab import train_both
        >>> training = train_both("checkpoints/reverse-small", "init_too_large", steps=4)
        >>> chart = xformer.viz.paired_training_curves(training, what="loss")
    """
    check_option("what", what, PAIRED_TRAINING_CURVES)
    rows = pd.DataFrame(training.rows)
    frame = pd.DataFrame({side: rows.get(f"{what}_{side}", math.nan) for side in NAMES}).assign(step=rows["step"])
    return curve_chart(frame, PAIRED_TRAINING_CURVES[what], steps=training.steps, log=what == "gradient", height=260)
