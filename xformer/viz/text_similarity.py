"""Draw how alike a model finds whole texts.

viz.similarity("models/all-MiniLM-L6-v2", ["A cat sat.", "A cat was sitting.", "Shares fell."])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import altair as alt
import pandas as pd

from xformer.analysis.text_similarity import Pooling
from xformer.analysis.text_similarity import similarity as similarity_table
from xformer.errors import InputError
from xformer.reading import Readable, Reading
from xformer.viz import theme
from xformer.viz.charts import inks, layered, written

MOST_NUMBERED = 8
"""Up to so many texts a cell has room for its number."""
_ROW, _AROUND = 36, 44
"""Pixels for a row of the heat map, and for its axes."""


def similarity(
    model: Readable | Reading,
    texts: Sequence[str],
    *,
    what: Literal["map", "layers"] = "map",
    layer: int | None = None,
    pooling: Pooling | None = None,
    tokenizer: Any = None,
    dark: bool = False,
) -> alt.LayerChart | alt.FacetChart:
    """The cosines of `analysis.similarity` at one layer (the last by default) as a heat map from −1 to 1.

    With what="layers" each pair of texts has a line over the layers instead, with a larger point at that layer.

    Args:
        model: A model, or a reading of it.
        texts: The texts.
        what: "map" at one layer, or "layers".
        layer: The layer, from 0; the last by default.
        pooling: How the vectors of a text become one; the model's own way by default.
        tokenizer: The tokenizer of a loaded Hugging Face model.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> chart = xformer.viz.similarity("checkpoints/characters", ["import os", "import sys", "return None"])
    """
    table = similarity_table(model, texts, pooling=pooling, tokenizer=tokenizer)
    layers = sorted(set(table["layer"]))
    shown = layers[-1] if layer is None else layer
    if shown not in layers:
        raise InputError(f"There are the layers {layers[0]} to {layers[-1]}, got {layer}.")
    if what == "layers":
        return _lines(table, shown, dark)
    return _heat_map(table.loc[table["layer"] == shown], texts, dark)


def _heat_map(table: pd.DataFrame, texts: Sequence[str], dark: bool) -> alt.LayerChart | alt.FacetChart:
    stops = theme.diverging(dark)
    rows = [f"{number} · {text}" for number, text in enumerate(texts, 1)]
    columns = [str(number) for number in range(1, len(texts) + 1)]
    data = table.assign(
        one=[rows[first] for first in table["first"]],
        other=[columns[second] for second in table["second"]],
        other_text=[rows[second] for second in table["second"]],
        shown=[f"{value + 0.0:.2f}".replace("-0.00", "0.00").replace("-", "−") for value in table["cosine"]],
        ink=inks(stops, table["cosine"], -1, 1),
    )
    is_numbered = len(texts) <= MOST_NUMBERED
    axis = {"ticks": False, "domain": False, "title": None}
    legend = None if is_numbered else alt.Legend(title="cosine", gradientLength=120, format=".2~g")
    base = alt.Chart(data).encode(
        alt.X("other:N", sort=columns, axis=alt.Axis(orient="top", labelAngle=0, labelOverlap="parity", **axis)),
        alt.Y("one:N", sort=rows, axis=alt.Axis(labelLimit=150, labelOverlap="parity", **axis)),
        tooltip=[
            alt.Tooltip("one:N", title="text"),
            alt.Tooltip("other_text:N", title="other text"),
            alt.Tooltip("cosine:Q", format=".6f"),
        ],
    )
    cells = base.mark_rect().encode(
        alt.Color("cosine:Q", scale=alt.Scale(**theme.vega_scale(stops, -1.0, 1.0)), legend=legend)
    )
    numbers = base.mark_text(fontSize=12 if len(texts) <= 5 else 10).encode(text="shown:N", color=written())
    layers = [cells, numbers] if is_numbered else [cells]
    return layered(*layers, height=max(4, min(_ROW, 600 // len(texts))) * len(texts) + _AROUND)


def _lines(table: pd.DataFrame, layer: int, dark: bool) -> alt.LayerChart | alt.FacetChart:
    data = table.loc[table["first"] < table["second"]]
    pairs = [f"{first + 1}, {second + 1}" for first, second in zip(data["first"], data["second"], strict=True)]
    data = data.assign(pair=pairs, is_shown=data["layer"] == layer)
    order = list(dict.fromkeys(pairs))
    x = alt.X("layer:O", title="after layer (0: embeddings)", axis=alt.Axis(labelAngle=0, labelOverlap="parity"))
    y = alt.Y("cosine:Q", title="cosine", scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=4))
    colour = alt.Color(
        "pair:N",
        sort=order,
        title="texts",
        scale=alt.Scale(domain=order, range=theme.head_hues(len(order), dark)),
        legend=alt.Legend(orient="top", columns=3),
    )
    tooltip = [alt.Tooltip("pair:N", title="texts"), "layer:O", alt.Tooltip("cosine:Q", format=".6f")]
    base = alt.Chart(data).encode(x, y, colour, tooltip=tooltip)
    marked = base.transform_filter(alt.datum.is_shown).mark_point(filled=True, size=110, opacity=1)
    return layered(base.mark_line(point=True), marked, height=240)
