"""Pictures of one attention cell, step by step: q, k and their product; the scores and weights of its row; what it writes.

viz.attention_steps(reading, layer=1, head=0, query=5, key=2)
"""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import numpy as np
import pandas as pd

from xformer.analysis.principles import (
    AFTER,
    BEFORE,
    RAW,
    SCALED,
    WIDTHS,
    Mixed,
    attention_cell,
    dimensions,
    head_output,
    softmax_of_cell,
    strongest,
)
from xformer.analysis.principles import attention_costs as costs_table
from xformer.analysis.principles import matrix as matrix_table
from xformer.analysis.principles import product_variances as variances_table
from xformer.analysis.principles import softmax_row as row_table
from xformer.analysis.principles import softmax_saturation as saturation_table
from xformer.reading import Reading
from xformer.viz import theme
from xformer.viz.charts import inks, layered, written
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

    Args:
        reading: The run.
        layer: The layer, from 0.
        head: The head, from 0.
        query: The query's position, from 0.
        key: The key's position, from 0.
        step: The step, from 0.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.attention_steps(reading, layer=2, head=1, query=0, key=4)
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
        color=alt.condition("datum.allowed", alt.value(PART_HUES["attention"][dark]), alt.value(MASKED[dark])),
        opacity=alt.condition("datum.chosen", alt.value(1.0), alt.value(0.5)),
        tooltip=[
            alt.Tooltip("label:N", title="key"),
            alt.Tooltip("score:Q", format=".6f"),
            alt.Tooltip("exp:Q", title="exp(score − largest)", format=".6f"),
            alt.Tooltip("weight:Q", format=".6f"),
            "allowed:N",
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
        tooltip=["vector:N", "dimension:O", alt.Tooltip("value:Q", format=".6f")],
    )
    scale = alt.Scale(**vega_scale(diverging(dark), -limit, limit))
    cells = base.mark_rect().encode(color=alt.Color("value:Q", scale=scale, legend=None))
    layers = [cells]
    if n <= (MOST_NUMBERS if axis.endswith("stream") else MOST_NUMBERS // 2):  # the others have half the room
        strong = f"abs(datum.value) > {0.55 * limit}"
        light, deep = ("#131722", "#ffffff") if not dark else ("#eef1f7", "#10141c")
        layers.append(
            base.mark_text(fontSize=11).encode(
                text=alt.Text("value:Q", format=".2f"), color=alt.condition(strong, alt.value(deep), alt.value(light))
            )
        )
    return layered(*layers, height=ROW * len(order) + AXIS)


def attention_costs(
    *, n_tokens: int, d_model: int, n_heads: int, dark: bool = False
) -> alt.LayerChart | alt.FacetChart:
    """`analysis.attention_costs` of each way to have heads, stacked by part, with the sum that torch measured behind.

    Args:
        n_tokens: The number of tokens.
        d_model: The width of the stream.
        n_heads: The number of heads.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> chart = xformer.viz.attention_costs(n_tokens=128, d_model=512, n_heads=8)
    """
    frame = costs_table(n_tokens=n_tokens, d_model=d_model, n_heads=n_heads)
    parts = list(dict.fromkeys(frame["part"]))
    order = list(dict.fromkeys(frame["heads"]))
    bars = (
        alt.Chart(frame)
        .mark_bar()
        .encode(
            alt.Y("heads:N", sort=order, title=None, axis=alt.Axis(labelLimit=140)),
            alt.X(
                "count:Q", title="multiplications", axis=alt.Axis(labelExpr="format(datum.value, '~s')", tickCount=5)
            ),
            color=alt.Color(
                "part:N",
                title=None,
                sort=parts,
                scale=alt.Scale(domain=parts, range=theme.head_hues(len(parts), dark)),
                legend=alt.Legend(orient="top", columns=4, labelLimit=140),
            ),
            order="rank:Q",
            tooltip=[
                "heads:N",
                "part:N",
                alt.Tooltip("count:Q", format=",", title="from the shapes"),
                alt.Tooltip("measured:Q", format=",", title="whole layer, measured"),
            ],
        )
        .transform_calculate(rank=f"indexof({parts!r}, datum.part)")
    )
    sums = frame.drop_duplicates("heads").assign(shown=[f"{m:,}" for m in frame.drop_duplicates("heads")["measured"]])
    words = (
        alt.Chart(sums)
        .mark_text(align="left", dx=6, color=theme.pick(theme.TEXT, dark))
        .encode(alt.Y("heads:N", sort=order, title=None), alt.X("measured:Q"), text="shown:N")
    )
    room = alt.Chart(pd.DataFrame({"measured": [1.18 * max(frame["measured"])]}))
    return layered(bars, words, room.mark_point(opacity=0).encode(alt.X("measured:Q")), height=200)


HEIGHT = 300


def product_variances(*, d: int | None = None, seed: int = 0, dark: bool = False) -> alt.LayerChart | alt.FacetChart:
    """`analysis.product_variances` against the width, on logarithmic axes, with the lines d and 1 that they should lie on.

    `d` is the width with a line of its own.

    Args:
        d: The width of queries and keys.
        seed: The seed of the random numbers.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> chart = xformer.viz.product_variances()
    """
    frame = variances_table(seed=seed)
    measured = frame.melt("d", ["variance", "scaled"], "what", "value")
    names = {"variance": "q · k", "scaled": "q · k / √d"}
    measured["what"] = [names[what] for what in measured["what"]]
    theory = pd.concat(
        [
            pd.DataFrame({"d": frame["d"], "what": names["variance"], "value": frame["d"].astype(float)}),
            pd.DataFrame({"d": frame["d"], "what": names["scaled"], "value": 1.0}),
        ]
    )
    y = alt.Y(
        "value:Q",
        title="variance",
        scale=alt.Scale(type="log", domain=[0.5, 1024]),
        axis=alt.Axis(values=[1, 4, 16, 64, 256, 1024], format="d"),
    )
    colour = alt.Color(
        "what:N",
        title=None,
        scale=alt.Scale(domain=list(names.values()), range=[theme.head_hue(1, dark), theme.head_hue(0, dark)]),
        legend=alt.Legend(orient="top", symbolType="circle", symbolSize=90),
    )
    tooltip = ["d:Q", alt.Tooltip("what:N", title="of"), alt.Tooltip("value:Q", format=".5f", title="variance")]
    layers: list[alt.Chart] = [
        alt.Chart(theory).mark_line(strokeDash=[5, 4], strokeWidth=1.5).encode(_width(), y, color=colour),
        alt.Chart(measured).mark_circle(size=70, opacity=1).encode(_width(), y, color=colour, tooltip=tooltip),
    ]
    return layered(*_here(d, dark), *layers, height=HEIGHT)


def softmax_saturation(
    *, what: str = "gradient", d: int | None = None, seed: int = 0, dark: bool = False
) -> alt.LayerChart | alt.FacetChart:
    """`analysis.softmax_saturation` with the scale and without: the "largest" weight, or the largest "gradient".

    Args:
        what: What is drawn.
        d: The width of queries and keys.
        seed: The seed of the random numbers.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> chart = xformer.viz.softmax_saturation()
    """
    frame = saturation_table(seed=seed)
    title, top = {"largest": ("largest weight of a row", 1.0), "gradient": ("largest p (1 − p)", 0.25)}[what]
    base = alt.Chart(frame).encode(
        _width(),
        alt.Y(f"{what}:Q", title=title, scale=alt.Scale(domain=[0, top])),
        color=alt.Color(
            "scale:N",
            title=None,
            scale=alt.Scale(domain=[RAW, SCALED], range=[theme.head_hue(1, dark), theme.head_hue(0, dark)]),
            legend=alt.Legend(orient="top", symbolStrokeWidth=4),
        ),
        tooltip=["d:Q", "scale:N", alt.Tooltip(f"{what}:Q", format=".5f")],
    )
    return layered(
        *_here(d, dark), base.mark_line(strokeWidth=2.5), base.mark_circle(size=50, opacity=1), height=HEIGHT
    )


def softmax_row(*, d: int, scaled: bool = True, seed: int = 0, dark: bool = False) -> alt.LayerChart | alt.FacetChart:
    """The weights of `analysis.softmax_row` as bars from 0 to 1.

    Args:
        d: The width of queries and keys.
        scaled: Divide the scores by √d.
        seed: The seed of the random numbers.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> chart = xformer.viz.softmax_row(d=64)
    """
    base = alt.Chart(row_table(d=d, scaled=scaled, seed=seed)).encode(
        alt.X("key:O", title="key", axis=alt.Axis(labelAngle=0)),
        alt.Y("weight:Q", title="weight", scale=alt.Scale(domain=[0, 1])),
        tooltip=["key:O", alt.Tooltip("score:Q", format=".4f"), alt.Tooltip("weight:Q", format=".6f")],
    )
    text = (
        base.transform_filter("datum.weight >= 0.05")
        .mark_text(dy=-8, color=theme.pick(theme.TEXT, dark))
        .encode(text=alt.Text("weight:Q", format=".2f"))
    )
    return layered(base.mark_bar(color=theme.head_hue(0, dark)), text, height=HEIGHT)


def _here(d: int | None, dark: bool) -> list[alt.Chart]:
    """A line at the width that is looked at."""
    if d is None:
        return []
    rule = alt.Chart(pd.DataFrame({"d": [d]})).mark_rule(
        color=theme.pick(theme.TEXT, dark), opacity=0.35, strokeWidth=2
    )
    return [rule.encode(_width())]


def _width() -> alt.X:
    return alt.X(
        "d:Q",
        title="d, the width of q and k",
        scale=alt.Scale(type="log", base=2, nice=False),
        axis=alt.Axis(values=list(WIDTHS), format="d", grid=False, labelAngle=0),
    )


ROW_HEIGHT = 34

AROUND = 26
"""Pixels of a matrix's height that its names take."""

MANY_COLUMNS = 6
"""More are named and numbered in smaller letters."""


def matrix(
    mixed: Mixed,
    *,
    which: str,
    n_columns: int | None = None,
    row: int | None = None,
    dark: bool = False,
) -> alt.LayerChart | alt.FacetChart:
    """`analysis.matrix` as coloured cells with its numbers: weights on the fixed scale from 0 to 1, all else centred on zero.

    A forbidden cell is grey. `row` is framed.

    Args:
        mixed: The attention of a `principles.Sentence`.
        which: The matrix: "x", "q", "k", "v", "scores", "weights" or "out".
        n_columns: The number of columns to keep, from the first.
        row: The row that has a frame.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> sentence = xformer.analysis.principles.Sentence("the cat saw the dog", d=4)
        >>> chart = xformer.viz.matrix(sentence.attention(), which="weights")
    """
    frame, is_share = matrix_table(mixed, which=which, n_columns=n_columns), which == "weights"
    down, across = list(dict.fromkeys(frame["row"])), list(dict.fromkeys(frame["column"]))
    values = frame["value"].to_numpy(dtype=float)
    limit = 1.0 if is_share else theme.signed_limit(values)
    stops, low = (theme.sequential(dark), 0.0) if is_share else (theme.diverging(dark), -limit)
    hidden = np.isneginf(values) | (is_share & (mixed.mask in (BEFORE, AFTER)) & (values == 0.0))
    many = len(across) > MANY_COLUMNS
    digits = 1 if many and not is_share else 2
    data = frame.assign(
        value=np.where(hidden, np.nan, values),
        hidden=hidden,
        shown=["−∞" if np.isneginf(value) else _in_a_cell(value, digits) for value in values],
        exact=["−∞" if np.isneginf(value) else f"{value:.6f}" for value in values],
        ink=np.where(hidden, theme.ink(theme.pick(theme.MASKED, dark)), inks(stops, values, low, limit)),
    )
    extent = min(28 + 5 * max(map(len, across)), 76)  # pixels for the names of the columns
    axis = {"ticks": False, "domain": False, "labelOverlap": False, "titleFontWeight": "normal"}
    above = alt.Axis(
        orient="top",
        labelAngle=-40 if extent > 30 else 0,
        minExtent=extent,
        maxExtent=extent,
        labelLimit=52 if many else 84,
        **axis,
    )
    base = alt.Chart(data).encode(
        alt.X("column:N", sort=across, title=None, axis=above),
        alt.Y("row:N", sort=down, title=None, axis=alt.Axis(**axis, labelLimit=84)),
        tooltip=["row:N", "column:N", alt.Tooltip("exact:N", title="value")],
    )
    colour = alt.Color("value:Q", scale=alt.Scale(**theme.vega_scale(stops, low, limit)), legend=None)
    followed = base.transform_filter(alt.FieldEqualPredicate(field="row", equal="" if row is None else down[row]))
    layers = [
        base.transform_filter("!datum.hidden").mark_rect().encode(color=colour),
        base.transform_filter("datum.hidden").mark_rect(color=theme.pick(theme.MASKED, dark)),
        followed.mark_rect(fillOpacity=0, stroke=theme.head_hue(1, dark), strokeWidth=2.5),
        base.mark_text(fontSize=10.5 if many else 12).encode(text="shown:N", color=written()),
    ]
    return layered(*layers, height=ROW_HEIGHT * len(down) + AROUND + extent)


def _in_a_cell(value: float, digits: int) -> str:
    """A number as it stands in its cell, with a true minus sign and no −0."""
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")
