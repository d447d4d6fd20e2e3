"""Draw what language models predict: where two are surprised along a text, and how steering changes the next token."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import pandas as pd

from xformer.analysis.differences import surprise_by_character as surprise_table
from xformer.analysis.generation import steering_by_scale as steering_table
from xformer.reading import Reading
from xformer.viz import theme
from xformer.viz.charts import Chart, hues, layered, tips
from xformer.viz.generation import model_hues

_MOST_WORDS = 90
"""Of more tokens only those of several characters are written."""


def surprise_by_character(readings: Sequence[Reading], *, dark: bool = False) -> Chart:
    """Bars of the bits by which two models are surprised along a text, the first upwards; a token is as wide as its text.

    Args:
        readings: The runs on the same text.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> chart = xformer.viz.surprise_by_character([xformer.read("checkpoints/characters", "import os")])
    """
    table = surprise_table(readings)
    models = list(dict.fromkeys(table["model"]))
    sign = [1 if name == models[0] else -1 for name in table["model"]]
    table = table.assign(
        bits_up=table["bits_per_character"] * sign,
        middle=(table["from"] + table["to"]) / 2,
        shown=[
            token if to > start + 1 or len(table) <= _MOST_WORDS else ""
            for token, start, to in zip(table["token"], table["from"], table["to"], strict=True)
        ],
    )
    axis = alt.Axis(labelExpr="abs(datum.value)", tickCount=6)
    bits = alt.Y("bits_up:Q", title="bits per character", axis=axis, scale=alt.Scale(padding=16))
    x = alt.X("from:Q", title="character of the text", scale=alt.Scale(nice=False), axis=alt.Axis(tickMinStep=1))
    hover = ["model:N", "token:N", *(alt.Tooltip(f"{name}:Q", format=".2f") for name in ("bits", "bits_per_character"))]
    base = alt.Chart(table)
    bars = base.mark_bar(stroke=theme.pick(theme.BACKGROUND, dark), strokeWidth=1)
    look = {"fontSize": 12, "color": theme.pick(theme.TEXT, dark)}
    up, down = (base.transform_filter(f"datum.bits_up {side} 0") for side in (">=", "<"))
    words = [up.mark_text(dy=-7, **look), down.mark_text(dy=9, **look)]
    words = [text.encode(alt.X("middle:Q"), bits, text="shown:N") for text in words]
    colour = model_hues(models, dark).legend(orient="top", columns=1, labelLimit=300)
    bars = bars.encode(x, bits, colour, x2="to:Q", y2=alt.Y2Datum(0), tooltip=hover)
    return layered(bars, *words, height=320)


def steering_by_scale(
    reading: Reading,
    towards: Reading,
    away: Reading,
    *,
    layer: int,
    scale: float | None = None,
    table: pd.DataFrame | None = None,
    dark: bool = False,
) -> Chart:
    """The probabilities of the likeliest next tokens, stacked over the scale of steering.

    Args:
        reading: The run.
        towards: A run of a text to steer towards.
        away: A run of a text to steer away from.
        layer: The layer, from 0.
        scale: The scale that is marked.
        table: That of `analysis.steering_by_scale` where it has been made already.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/characters", "import os")
        >>> towards, away = (xformer.read("checkpoints/characters", text) for text in ("return x", "import x"))
        >>> chart = xformer.viz.steering_by_scale(reading, towards, away, layer=1, scale=1)
    """
    table = steering_table(reading, towards, away, layer=layer) if table is None else table
    tokens = list(dict.fromkeys(table["token"]))
    table = table.assign(place=[tokens.index(token) for token in table["token"]])
    colours = [*theme.head_hues(len(tokens) - 1, dark), theme.pick(theme.MASKED, dark)]
    share = alt.Y("probability:Q", title="probability", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%"))
    colour = hues("token:N", tokens, colours, legend=alt.Legend(title="next token", labelFontSize=14))
    x, hover = alt.X("scale:Q", title="scale", scale=alt.Scale(nice=False)), tips("token:N", "scale:Q")
    hover += [alt.Tooltip("probability:Q", format=".3f")]
    areas = alt.Chart(table).mark_area(interpolate="monotone", opacity=0.9)
    areas = areas.encode(x, share.stack("zero"), colour, alt.Order("place:Q"), tooltip=hover)
    marked = pd.DataFrame({"scale": [] if scale is None else [scale]})
    rule = alt.Chart(marked).mark_rule(strokeWidth=2.5, color=theme.pick(theme.TEXT, dark)).encode(x="scale:Q")
    return layered(areas, rule, height=300)
