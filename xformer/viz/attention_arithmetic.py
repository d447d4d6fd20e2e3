"""Pictures of one attention cell, step by step: q, k and their product; the scores and weights of its row; what it writes.

viz.attention_steps(reading, layer=1, head=0, query=5, key=2)
"""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import pandas as pd

from xformer.analysis.principles import attention_cell, dimensions, head_output, softmax_of_cell, strongest
from xformer.reading import Reading
from xformer.viz.charts import layered
from xformer.viz.theme import MASKED, PART_HUES, diverging, signed_limit, vega_scale

ROW = 30
AXIS = 80
"""Pixels that the axis and its title take of a chart's height."""
MOST_KEYS = 48
"""So many keys are drawn."""
MOST_NUMBERS = 20
"""Up to so many dimensions across the whole screen have their number written into the cell."""
STEPS = ("product", "scores", "weights", "z", "out")
AnyChart = alt.Chart | alt.LayerChart | alt.FacetChart


def attention_steps(
    reading: Reading, *, layer: int, head: int, query: int, key: int, step: str | None = None, dark: bool = False
) -> AnyChart | alt.VConcatChart:
    """The arithmetic of a cell: one of `STEPS`, or all of them below each other.

    "product": q, k, and q·k by dimension. "scores" and "weights" of the query with each key, see `analysis.attention_steps`;
    of more than `MOST_KEYS` keys those with the largest weights. "z": what the values are mixed to. "out": what that writes.
    """
    at = {"layer": layer, "head": head, "query": query, "key": key}
    if step is None:
        charts = [attention_steps(reading, **at, step=one, dark=dark) for one in STEPS]
        return alt.vconcat(*charts).resolve_scale(x="independent", y="independent", color="independent")
    if step == "out":
        return _vector(
            head_output(reading, layer=layer, head=head, query=query).tolist(), step, "dimension of the stream", dark
        )
    cell = attention_cell(reading, **at)
    if step == "product":
        return _products(dimensions(cell), dark)
    if step == "z":
        return _vector(cell.z.tolist(), step, "dimension of the value", dark)
    row = strongest(softmax_of_cell(cell), MOST_KEYS, key)
    return _scores(row, key, dark) if step == "scores" else _weights(row, key, dark)


def _products(dimensions: pd.DataFrame, dark: bool) -> AnyChart:
    """Three strips over the dimensions of the head: q, k, and q·k by dimension, each on one scale centred on zero."""
    frame = dimensions.melt("dimension", var_name="vector", value_name="value")
    return _strips(frame, ["q", "k", "product"], "dimension of the head", dark)


def _vector(values: Sequence[float], name: str, axis: str, dark: bool) -> AnyChart:
    """One vector as a strip, on a scale centred on zero."""
    frame = pd.DataFrame({"dimension": range(len(values)), "vector": name, "value": list(values)})
    return _strips(frame, [name], axis, dark)


def _scores(row: pd.DataFrame, key: int, dark: bool) -> AnyChart:
    """The scores of a query with each key; a masked key has none, and says so."""
    row, base = _by_key(row, key, dark)
    bars = base.mark_bar().encode(y=alt.Y("score:Q", title="score"))
    masked = row[~row["allowed"]]
    if masked.empty:
        return bars.properties(height=190)
    words = alt.Chart(masked).mark_text(text="masked", angle=270, fontSize=11, color="#8a93a6")
    return (bars + words.encode(x=_key_axis(row), y=alt.datum(0))).properties(height=190)


def _weights(row: pd.DataFrame, key: int, dark: bool) -> AnyChart:
    """The weights that softmax makes of the scores, on the fixed scale from 0 to 1."""
    _, base = _by_key(row, key, dark)
    weight = alt.Y("weight:Q", title="weight", scale=alt.Scale(domain=[0, 1]))
    return base.mark_bar().encode(y=weight).properties(height=190)


def _by_key(row: pd.DataFrame, key: int, dark: bool) -> tuple[pd.DataFrame, alt.Chart]:
    """A chart with the keys along x, the chosen one standing out."""
    labels = [f"{index} {token}" for index, token in zip(row["key"], row["token"], strict=True)]
    row = row.assign(label=labels, chosen=row["key"] == key)
    base = alt.Chart(row).encode(
        x=_key_axis(row),
        color=alt.ColorValue(
            **alt.condition("datum.allowed", alt.value(PART_HUES["attention"][dark]), alt.value(MASKED[dark]))
        ),
        opacity=alt.OpacityValue(**alt.condition("datum.chosen", alt.value(1.0), alt.value(0.5))),
        tooltip=[
            alt.Tooltip("label:N", title="key"),
            alt.Tooltip("score:Q", format=".6f"),
            alt.Tooltip("exp:Q", title="exp(score − largest)", format=".6f"),
            alt.Tooltip("weight:Q", format=".6f"),
            alt.Tooltip("allowed:N"),
        ],
    )
    return row, base


def _key_axis(row: pd.DataFrame) -> alt.X:
    axis = alt.Axis(labelAngle=0, labelOverlap=True)
    return alt.X("label:N", sort=row["label"].tolist(), title="key: position and token", axis=axis)


def _strips(frame: pd.DataFrame, order: list[str], axis: str, dark: bool) -> AnyChart:
    limit = signed_limit(frame["value"].to_numpy())
    n = int(frame["dimension"].to_numpy().max()) + 1
    base = alt.Chart(frame).encode(
        x=alt.X("dimension:O", title=axis, axis=alt.Axis(labelAngle=0, labelOverlap=True)),
        y=alt.Y("vector:N", sort=order, title=None),
        tooltip=[
            alt.Tooltip("vector:N"),
            alt.Tooltip("dimension:O"),
            alt.Tooltip("value:Q", format=".6f"),
        ],
    )
    scale = alt.Scale(**vega_scale(diverging(dark), -limit, limit))
    cells = base.mark_rect().encode(color=alt.Color("value:Q", scale=scale, legend=None))
    layers = [cells]
    if n <= (MOST_NUMBERS if axis.endswith("stream") else MOST_NUMBERS // 2):  # the others have half the room
        strong = f"abs(datum.value) > {0.55 * limit}"
        light, deep = ("#131722", "#ffffff") if not dark else ("#eef1f7", "#10141c")
        layers.append(
            base.mark_text(fontSize=11).encode(
                text=alt.Text("value:Q", format=".2f"),
                color=alt.ColorValue(**alt.condition(strong, alt.value(deep), alt.value(light))),
            )
        )
    return layered(*layers, height=ROW * len(order) + AXIS)
