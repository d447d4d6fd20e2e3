"""Draw accuracy with its intervals, by position or length, and confusions of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import altair as alt
import pandas as pd

from xformer.analysis.comparison import Variant
from xformer.analysis.scoring import COMPARED_SAMPLES, SAMPLES, Agreement
from xformer.analysis.scoring import accuracy as accuracy_table
from xformer.analysis.scoring import accuracy_by_length as length_table
from xformer.analysis.scoring import confusion as confusion_table
from xformer.analysis.scoring import lengths_compared as compared_table
from xformer.reading import Reading
from xformer.viz import theme
from xformer.viz.charts import layered
from xformer.viz.generation import WIDTHS, Drawing, model_hues, short_names

_TITLES = {
    ("position", "token"): "token right",
    ("position", "exact"): "all right up to here",
    ("length", "token"): "tokens right",
    ("length", "exact"): "whole answer right",
}


def accuracy(
    counted: Agreement,
    by: Literal["position", "length"] = "position",
    measure: Literal["token", "exact"] = "token",
    *,
    height: int = 280,
    dark: bool = False,
) -> Drawing:
    """One line per model from 0 to 1, with its 95 % interval as a band.

    Args:
        counted: The answers that were counted, from `agreement`.
        by: "position" or "length".
        measure: "token" or "exact".
        height: The height of the chart, in pixels.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", changes="ablate:decoder.0.attn.0"),
        ... ]
        >>> counted = xformer.analysis.agreement(variants, samples=50)
        >>> chart = xformer.viz.accuracy(counted)
    """
    names = short_names(counted.models)
    frame = accuracy_table(counted, by)
    frame["model"] = [names[name] for name in frame["model"]]
    data = frame[frame["measure"] == measure]
    models = list(dict.fromkeys(data["model"]))
    data = data.assign(width=[0.5 * WIDTHS[models.index(model) % len(WIDTHS)] for model in data["model"]])
    title = "position in the answer" if by == "position" else "length of the answer"
    x = alt.X(f"{by}:Q", title=title, axis=alt.Axis(tickMinStep=1, format="d"), scale=alt.Scale(nice=False, padding=12))
    scale = alt.Scale(domain=[0, 1])
    name = _TITLES[by, measure]
    base = alt.Chart(data).encode(x, model_hues(models, dark))
    hover = [
        "model:N",
        alt.Tooltip(f"{by}:Q", title=title),
        alt.Tooltip("share:Q", title=name, format=".6f"),
        alt.Tooltip("low:Q", title="95 % from", format=".6f"),
        alt.Tooltip("high:Q", title="to", format=".6f"),
        alt.Tooltip("hits:Q", title="right"),
        alt.Tooltip("trials:Q", title="of"),
    ]
    return layered(
        base.mark_area(opacity=0.25).encode(alt.Y("low:Q", title=name, scale=scale), alt.Y2("high:Q")),
        base.mark_line().encode(
            alt.Y("share:Q", title=name, scale=scale), alt.StrokeWidth("width:Q", scale=None, legend=None)
        ),
        base.mark_point(size=70, filled=True, opacity=1).encode(
            alt.Y("share:Q", title=name, scale=scale), tooltip=hover
        ),
        height=height + 15 * len(models),
    )


def confusion(counted: Agreement, model: str, *, title: str = "", dark: bool = False) -> Drawing:
    """What one model says for each right token: shares of a row, which sum to 1; empty: never.

    The right ones lie on the diagonal, which is outlined.

    Args:
        counted: The answers that were counted, from `agreement`.
        model: The name of the variant.
        title: The title of the chart.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", changes="ablate:decoder.0.attn.0"),
        ... ]
        >>> counted = xformer.analysis.agreement(variants, samples=50)
        >>> chart = xformer.viz.confusion(counted, "ablated")
    """
    data = confusion_table(counted, model)
    came_up = set(data["right"]) | set(data["predicted"])
    order = [label for label in counted.labels if label in came_up]
    stops = theme.sequential(dark)
    crowded = len(order) > 30
    base = alt.Chart(data).encode(
        alt.X(
            "predicted:N",
            sort=order,
            scale=alt.Scale(domain=order),
            title="predicted token",
            axis=alt.Axis(labelAngle=-90, labelOverlap=crowded),
        ),
        alt.Y(
            "right:N",
            sort=order,
            scale=alt.Scale(domain=order),
            title="right token",
            axis=alt.Axis(labelOverlap=crowded),
        ),
        tooltip=[
            "model:N",
            alt.Tooltip("right:N", title="right token"),
            alt.Tooltip("predicted:N", title="predicted token"),
            alt.Tooltip("count:Q", title="times"),
            alt.Tooltip("share:Q", title="share of the row", format=".6f"),
        ],
    )
    diagonal = (
        alt.Chart(pd.DataFrame({"predicted": order, "right": order}))
        .mark_rect(filled=False, stroke=theme.pick(theme.RIGHT.colour, dark), strokeWidth=1.5)
        .encode(alt.X("predicted:N", sort=order), alt.Y("right:N", sort=order))
    )
    cells = base.mark_rect().encode(
        alt.Color(
            "share:Q",
            scale=alt.Scale(**theme.vega_scale(stops, 0, 1)),
            legend=alt.Legend(title="share", orient="bottom", gradientLength=140, format=".1f"),
        )
    )
    return layered(cells, diagonal, height=20 * len(order) + 130, title=title)


def accuracy_by_length(
    reading: Reading,
    *,
    lengths: Sequence[int] | None = None,
    samples: int = SAMPLES,
    seed: int = 1,
    table: pd.DataFrame | None = None,
    unit: str = "symbols",
    dark: bool = False,
) -> alt.TopLevelMixin:
    """Draw `analysis.accuracy_by_length`: whole answers with their 95 % intervals, and single tokens.

    The lengths that training showed are shaded.

    Args:
        reading: The run.
        lengths: The lengths of input to try; those that the model reads by default.
        samples: The number of random inputs.
        seed: The seed of the random numbers.
        table: The table of the analysis, where it exists already.
        unit: What a length counts.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.accuracy_by_length(reading, lengths=[3, 5], samples=20)
    """
    frame = length_table(reading, lengths=lengths, samples=samples, seed=seed) if table is None else table
    hues = {"whole answers": theme.head_hue(0, dark), "single tokens": theme.head_hue(1, dark)}
    names = {"exact_match": "whole answers", "token_accuracy": "single tokens"}
    long = frame.melt(["length", "low", "high", "samples", "trained"], list(names), "what", "share")
    long["what"] = [names[what] for what in long["what"]]
    x = alt.X(
        "length:Q", title=f"length of the input, in {unit}", scale=alt.Scale(nice=False), axis=alt.Axis(format="d")
    )
    y = alt.Y("share:Q", title="right", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%"))
    colour = alt.Color(
        "what:N", title=None, scale=alt.Scale(domain=list(hues), range=list(hues.values())),
        legend=alt.Legend(orient="top"),
    )  # fmt: skip
    tooltip = [
        "length:Q",
        alt.Tooltip("what:N", title="of"),
        alt.Tooltip("share:Q", title="right", format=".1%"),
        alt.Tooltip("samples:Q", title="inputs"),
        alt.Tooltip("trained:N", title="trained on"),
    ]
    shown = frame[frame["trained"]]["length"]
    ends = pd.DataFrame(
        {"from": [shown.min() - 0.5], "to": [shown.max() + 0.5]} if len(shown) else {"from": [], "to": []}
    )
    shade = (
        alt.Chart(ends)
        .mark_rect(opacity=0.12, color=theme.pick(theme.HEAD_HUES[0], dark))
        .encode(x="from:Q", x2="to:Q")
    )
    band = (
        alt.Chart(frame)
        .mark_area(opacity=0.25, color=hues["whole answers"])
        .encode(x, alt.Y("low:Q", title="right"), alt.Y2("high:Q"))
    )
    lines = alt.Chart(long).mark_line(point=alt.OverlayMarkDef(size=18)).encode(x, y, colour, tooltip=tooltip)
    return layered(shade, band, lines, height=300)


def lengths_compared(
    variants: Sequence[Variant],
    *,
    lengths: Sequence[int] | None = None,
    samples: int = COMPARED_SAMPLES,
    seed: int = 0,
    table: pd.DataFrame | None = None,
    unit: str = "symbols",
    dark: bool = False,
) -> Drawing:
    """Draw `analysis.lengths_compared`: a line a model with its 95 % interval.

    Points are filled where its training had inputs of that length.

    Args:
        variants: The variants.
        lengths: The lengths of input to try; those that the model reads by default.
        samples: The number of random inputs.
        seed: The seed of the random numbers.
        table: The table of the analysis, where it exists already.
        unit: What a length counts.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load(f"checkpoints/{name}", name) for name in ("reverse", "reverse-mirror")
        ... ]
        >>> chart = xformer.viz.lengths_compared(variants, lengths=[3, 5], samples=20)
    """
    frame = compared_table(variants, lengths=lengths, samples=samples, seed=seed) if table is None else table
    names = short_names([one.name for one in variants])
    data = frame.assign(
        model=[names[name] for name in frame["model"]],
        training=["trained on" if was else "never shown" for was in frame["trained"]],
    )
    models = list(dict.fromkeys(data["model"]))
    data = data.assign(width=[0.7 * WIDTHS[models.index(model) % len(WIDTHS)] for model in data["model"]])
    x = alt.X("length:Q", title=f"length of the input, in {unit}", scale=alt.Scale(nice=False, padding=8),
              axis=alt.Axis(format="d", tickMinStep=1))  # fmt: skip
    scale, title = alt.Scale(domain=[0, 1]), "whole answers right"
    y = alt.Y("exact_match:Q", title=title, scale=scale, axis=alt.Axis(format="%"))
    hover = [
        "model:N",
        "length:Q",
        alt.Tooltip("exact_match:Q", title=title, format=".1%"),
        alt.Tooltip("token_accuracy:Q", title="single tokens right", format=".1%"),
        alt.Tooltip("samples:Q", title="inputs"),
        alt.Tooltip("training:N", title="this length"),
    ]
    hues = model_hues(models, dark)
    base = alt.Chart(data).encode(x, hues)
    paper = theme.pick(theme.BACKGROUND, dark)
    points = base.mark_point(size=34, strokeWidth=1.5, opacity=1, filled=False)
    return layered(
        base.mark_area(opacity=0.18).encode(alt.Y("low:Q", title=title, scale=scale), alt.Y2("high:Q")),
        base.mark_line().encode(y, strokeWidth=alt.StrokeWidth("width:Q", scale=None)),
        points.transform_filter("!datum.trained").encode(y, fill=alt.value(paper), tooltip=hover),
        base.mark_point(size=34, opacity=1, filled=True).transform_filter("datum.trained").encode(y, tooltip=hover),
        height=320,
    )
