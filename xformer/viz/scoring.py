"""Draw accuracy with its confidence intervals, by position or length, and confusion matrices of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import altair as alt
import pandas as pd

from xformer.analysis.comparison import Variant
from xformer.analysis.scoring import COMPARED_SAMPLES, SAMPLES, Agreement
from xformer.analysis.scoring import accuracy as accuracy_table
from xformer.analysis.scoring import accuracy_by_length as length_table
from xformer.analysis.scoring import confusion as confusion_table
from xformer.analysis.scoring import lengths_compared as compared_table
from xformer.arguments import Count, Seed
from xformer.formatting import check_option
from xformer.reading import Reading
from xformer.viz import theme
from xformer.viz.charts import ROWS, Chart, category_colours, heat_colour, layered, tooltips
from xformer.viz.generation import WIDTHS, model_hues, short_names

_TITLES = {
    ("position", "token"): "token right",
    ("position", "exact"): "all tokens right up to here",
    ("length", "token"): "tokens right",
    ("length", "exact"): "whole answer right",
}


def accuracy(
    counted: Agreement, by: Literal["position", "length"] = "position", measure: Literal["token", "exact"] = "token"
) -> Chart:
    """Draw the accuracy of each model as a line from 0 to 1, with its 95% confidence interval as a band.

    Further arguments are those of `analysis.accuracy`.

    Args:
        by: "position" or "length".
        measure: "token" for single tokens, "exact" for whole answers.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", edits="ablate:decoder.0.attn.0"),
        ... ]
        >>> counted = xformer.analysis.agreement(variants, samples=50)
        >>> chart = xformer.viz.accuracy(counted)
    """
    check_option("by", by, ("position", "length"))
    check_option("measure", measure, ("token", "exact"))
    frame: Any = accuracy_table(counted, by)
    names = short_names(counted.models)
    data = frame[frame["measure"] == measure].assign(model=frame["model"].map(names), trained=True)
    title = "position in the answer" if by == "position" else "length of the answer"
    x = alt.X(f"{by}:Q", title=title, axis=alt.Axis(tickMinStep=1, format="d"), scale=alt.Scale(nice=False, padding=12))
    name = _TITLES[by, measure]
    hover = tooltips("model:N", (f"{by}:Q", title), ("share:Q", name, ".6f"), ("low:Q", "95% interval from", ".6f"))
    hover += tooltips(("high:Q", "to", ".6f"), ("hits:Q", "number right"), ("trials:Q", "out of"))
    return layered(*_lines(data, x, ("share", name), hover), height=280 + 15 * data["model"].nunique())


def _lines(data: pd.DataFrame, x: alt.X, y: tuple[str, str], hover: list[Any]) -> list[alt.Chart]:
    """Draw a line per model from 0 to 1 with its interval as a band; points are filled where the model was trained.

    `y` is (column, title). The first model's line is widest, so that lines that coincide stay visible.
    """
    models = list(dict.fromkeys(data["model"]))
    data = data.assign(width=[0.6 * WIDTHS[models.index(model) % len(WIDTHS)] for model in data["model"]])
    scale, axis = alt.Scale(domain=[0, 1]), alt.Axis(format="%")
    share, low = (alt.Y(f"{name}:Q", title=y[1], scale=scale, axis=axis) for name in (y[0], "low"))
    base = alt.Chart(data).encode(x, model_hues(models))
    look: dict[str, Any] = {"size": 45, "opacity": 1}
    hollow = base.mark_point(strokeWidth=1.5, filled=False, **look).transform_filter("!datum.trained")
    return [
        base.mark_area(opacity=0.2).encode(low, alt.Y2("high:Q")),
        base.mark_line().encode(share, alt.StrokeWidth("width:Q", scale=None, legend=None)),
        hollow.encode(share, fill=alt.value(theme.BACKGROUND), tooltip=hover),
        base.mark_point(filled=True, **look).transform_filter("datum.trained").encode(share, tooltip=hover),
    ]


def confusion(counted: Agreement, model: str) -> Chart:
    """Draw the confusion matrix of one model: the share of each predicted token per right token; rows sum to 1.

    The diagonal, where predictions are right, is outlined; pairs that never occurred are empty.

    The arguments are those of `analysis.confusion`.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", edits="ablate:decoder.0.attn.0"),
        ... ]
        >>> counted = xformer.analysis.agreement(variants, samples=50)
        >>> chart = xformer.viz.confusion(counted, "ablated")
    """
    data = confusion_table(counted, model)
    seen = set(data["right"]) | set(data["predicted"])
    order = [label for label in counted.labels if label in seen]
    axis: dict[str, Any] = {"labelOverlap": len(order) > 30}
    scale = alt.Scale(domain=order)
    x = alt.X("predicted:N", sort=order, scale=scale, title="predicted token", axis=alt.Axis(labelAngle=-90, **axis))
    y = alt.Y("right:N", sort=order, scale=scale, title="right token", axis=alt.Axis(**axis))
    hover = tooltips("model:N", ("right:N", "right token"), ("predicted:N", "predicted token"), ("count:Q", "count"))
    hover += tooltips(("share:Q", "share of the row", ".6f"))
    legend = alt.Legend(title="share", orient="bottom", gradientLength=140, format=".1f")
    colour = heat_colour("share:Q", theme.SEQUENTIAL, 0, 1, legend=legend)
    diagonal = alt.Chart(pd.DataFrame({"predicted": order, "right": order})).encode(x, y)
    return layered(
        alt.Chart(data).mark_rect().encode(x, y, colour, tooltip=hover),
        diagonal.mark_rect(filled=False, stroke=theme.RIGHT.colour, strokeWidth=1.5),
        height=20 * len(order),
        autosize=ROWS,
    )


def accuracy_by_length(
    reading: Reading,
    *,
    lengths: Sequence[int] | None = None,
    samples: Count = SAMPLES,
    seed: Seed = 1,
    table: pd.DataFrame | None = None,
    unit: str = "symbols",
) -> alt.TopLevelMixin:
    """Draw `analysis.accuracy_by_length`: the accuracy of whole answers, with 95% intervals, and of single tokens.

    The lengths seen in training are shaded.

    Further arguments are those of `analysis.accuracy_by_length`.

    Args:
        table: The table of the analysis, if already computed.
        unit: The unit of the length.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.accuracy_by_length(reading, lengths=[3, 5], samples=20)
    """
    frame = length_table(reading, lengths=lengths, samples=samples, seed=seed) if table is None else table
    names = {"exact_match": "whole answers", "token_accuracy": "single tokens"}
    long = frame.melt(["length", "low", "high", "samples", "trained"], list(names), "what", "share").replace(names)
    whole, single = theme.head_hues(2)
    scale = alt.Scale(nice=False)
    x = alt.X("length:Q", title=f"length of the input, in {unit}", scale=scale, axis=alt.Axis(format="d"))
    y = alt.Y("share:Q", title="accuracy", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%"))
    colour = category_colours(
        "what:N", list(names.values()), [whole, single], title=None, legend=alt.Legend(orient="top")
    )
    tooltip = tooltips("length:Q", ("what:N", "measure"), ("share:Q", "accuracy", ".1%"), ("samples:Q", "inputs"))
    tooltip += tooltips(("trained:N", "seen in training"))
    shown = frame[frame["trained"]]["length"]
    ends = pd.DataFrame({"from": [shown.min() - 0.5], "to": [shown.max() + 0.5]}).dropna()
    band = alt.Chart(frame).mark_area(opacity=0.25, color=whole)
    return layered(
        alt.Chart(ends).mark_rect(opacity=0.12, color=whole).encode(x="from:Q", x2="to:Q"),
        band.encode(x, alt.Y("low:Q", title="accuracy"), alt.Y2("high:Q")),
        alt.Chart(long).mark_line(point=alt.OverlayMarkDef(size=18)).encode(x, y, colour, tooltip=tooltip),
        height=300,
    )


def lengths_compared(
    variants: Sequence[Variant],
    *,
    lengths: Sequence[int] | None = None,
    samples: Count = COMPARED_SAMPLES,
    seed: Seed = 0,
    table: pd.DataFrame | None = None,
    unit: str = "symbols",
) -> Chart:
    """Draw `analysis.lengths_compared`: the accuracy of each model by input length, with 95% intervals.

    Points are filled at lengths that the model was trained on.

    Further arguments are those of `analysis.lengths_compared`.

    Args:
        table: The table of the analysis, if already computed.
        unit: The unit of the length.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load(f"checkpoints/{name}", name) for name in ("reverse", "reverse-mirror")
        ... ]
        >>> chart = xformer.viz.lengths_compared(variants, lengths=[3, 5], samples=20)
    """
    frame: Any = compared_table(variants, lengths=lengths, samples=samples, seed=seed) if table is None else table
    data = frame.assign(
        model=frame["model"].map(short_names([one.name for one in variants])),
        training=frame["trained"].map({True: "seen in training", False: "not seen in training"}),
    )
    x = alt.X("length:Q", title=f"length of the input, in {unit}", scale=alt.Scale(nice=False, padding=8),
              axis=alt.Axis(format="d", tickMinStep=1))  # fmt: skip
    title = "whole answers right"
    hover = tooltips("model:N", "length:Q", ("exact_match:Q", title, ".1%"))
    hover += tooltips(("token_accuracy:Q", "single tokens right", ".1%"))
    hover += tooltips(("samples:Q", "inputs"), ("training:N", "this length"))
    return layered(*_lines(data, x, ("exact_match", title), hover), height=320)
