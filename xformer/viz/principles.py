"""Draw the computation of one attention cell step by step: q, k and their product, scores and weights of its row, z and out.

viz.attention_steps(reading, layer=1, head=0, query=5, key=2)
"""

from __future__ import annotations

from typing import Any

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
from xformer.arguments import Count, Seed
from xformer.formatting import check_option
from xformer.reading import Reading
from xformer.viz import theme
from xformer.viz.charts import (
    ROWS,
    Chart,
    category_colours,
    cell_colours,
    cell_number,
    heat_colour,
    layered,
    numbered,
    numbers,
    tooltips,
)
from xformer.viz.theme import DIVERGING, MASKED, PART_HUES, signed_limit

ROW = 30
MAX_KEYS = 48
"""Largest number of keys that are drawn."""
MAX_NUMBERS = 20
"""Largest number of dimensions, across a whole screen, whose values are written into the cells; half on half a screen."""
STEPS = ("product", "scores", "weights", "z", "out")


def attention_steps(
    reading: Reading, *, layer: int, head: int, query: int, key: int, step: str | None = None
) -> Chart | alt.VConcatChart:
    """Draw the arithmetic of an attention cell: one of `STEPS`, or all of them stacked.

    "product" shows q, k and q·k by dimension; "scores" and "weights" those of the query with each key (see
    `analysis.attention_steps`), for the `MAX_KEYS` largest weights; "z" the weighted sum of the values; "out" what the head
    writes to the residual stream.

    Further arguments are those of `analysis.attention_steps`.

    Args:
        step: One of `STEPS`; all of them by default.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.attention_steps(reading, layer=2, head=1, query=0, key=4)
    """
    at = {"layer": layer, "head": head, "query": query, "key": key}
    if step is None:
        charts = [attention_steps(reading, **at, step=one) for one in STEPS]
        for chart in charts:
            chart.autosize = alt.Undefined  # only a whole figure can have one
        return alt.vconcat(*charts).resolve_scale(x="independent", y="independent", color="independent")
    check_option("step", step, STEPS)
    if step == "out":
        vector = head_output(reading, layer=layer, head=head, query=query)
        return _strips(_as_frame(step, vector), "dimension of the residual stream", most=MAX_NUMBERS)
    cell = attention_cell(reading, **at)
    if step == "z":
        return _strips(_as_frame(step, cell.z), "dimension of the value")
    if step == "product":  # q, k, and q·k by dimension
        frame = dimensions(cell).melt("dimension", var_name="vector", value_name="value")
        return _strips(frame, "dimension of the head")
    return _bars(strongest(softmax_of_cell(cell), MAX_KEYS, key), "score" if step == "scores" else "weight", key)


def _as_frame(name: str, vector: Any) -> pd.DataFrame:
    return pd.DataFrame({"dimension": range(len(vector)), "vector": name, "value": vector.tolist()})


def _bars(row: pd.DataFrame, what: str, key: int) -> Chart:
    """Draw the scores or weights of a query with each key; the chosen key is opaque, and masked ones are labelled."""
    labels = numbered(row, "key")
    row = row.assign(label=labels, chosen=row["key"] == key)
    axis = alt.Axis(labelAngle=0, labelOverlap=True)
    base = alt.Chart(row).encode(alt.X("label:N", sort=labels, title="key: position and token", axis=axis))
    hover = tooltips(("label:N", "key"), ("score:Q", "", ".6f"), ("exp:Q", "exp(score − max)", ".6f"))
    hover += tooltips(("weight:Q", "", ".6f"), "allowed:N")
    bars = base.mark_bar().encode(
        alt.Y(f"{what}:Q", title=what, scale=alt.Scale(domain=[0, 1]) if what == "weight" else alt.Undefined),
        color=alt.condition("datum.allowed", alt.value(PART_HUES["attention"]), alt.value(MASKED)),
        opacity=alt.condition("datum.chosen", alt.value(1.0), alt.value(0.5)),
        tooltip=hover,
    )
    words = base.transform_filter("!datum.allowed").mark_text(text="masked", angle=270, fontSize=11, color="#8a93a6")
    return layered(bars, *([words.encode(y=alt.datum(0))] if what == "score" else []), height=190)


def _strips(frame: pd.DataFrame, axis: str, *, most: int = MAX_NUMBERS // 2) -> Chart:
    """Draw one strip per vector, on a common scale centred on zero, with its numbers for up to `most` dimensions."""
    limit, stops, order = signed_limit(frame["value"].to_numpy()), DIVERGING, list(dict.fromkeys(frame["vector"]))
    frame = frame.assign(cell_colour=cell_colours(stops, frame["value"], -limit, limit))
    base = alt.Chart(frame).encode(
        alt.X("dimension:O", title=axis, axis=alt.Axis(labelAngle=0, labelOverlap=True)),
        alt.Y("vector:N", sort=order, title=None),
        tooltip=["vector:N", "dimension:O", alt.Tooltip("value:Q", format=".6f")],
    )
    cells = base.mark_rect().encode(heat_colour("value:Q", stops, -limit, limit, legend=None))
    text = numbers(base, alt.Text("value:Q", format=".2f"), shown=len(set(frame["dimension"])) <= most)
    return layered(cells, *text, height=ROW * len(order), autosize=ROWS)


def attention_costs(*, n_tokens: Count, d_model: Count, n_heads: Count) -> Chart:
    """Draw `analysis.attention_costs` for each head layout, stacked by part, with the total measured by PyTorch.

    The arguments are those of `analysis.attention_costs`.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> chart = xformer.viz.attention_costs(n_tokens=128, d_model=512, n_heads=8)
    """
    frame = costs_table(n_tokens=n_tokens, d_model=d_model, n_heads=n_heads)
    parts, order = (list(dict.fromkeys(frame[name])) for name in ("part", "heads"))
    y = alt.Y("heads:N", sort=order, title=None, axis=alt.Axis(labelLimit=140))
    # Space beyond the longest bar for its total.
    scale = alt.Scale(domain=[0, 1.18 * max(frame["measured"])], nice=False)
    axis = alt.Axis(labelExpr="format(datum.value, '~s')", tickCount=5)
    look = {"title": None, "sort": parts, "legend": alt.Legend(orient="top", columns=4, labelLimit=140)}
    colour = category_colours("part:N", parts, theme.head_hues(len(parts)), **look)
    hover = tooltips(
        "heads:N", "part:N", ("count:Q", "from the shapes", ","), ("measured:Q", "layer total, measured", ",")
    )
    bars = alt.Chart(frame).mark_bar().transform_calculate(rank=f"indexof({parts!r}, datum.part)")
    count = alt.X("count:Q", title="multiplications", scale=scale, axis=axis)
    sums = frame.drop_duplicates("heads")
    words = alt.Chart(sums.assign(shown=[f"{n:,}" for n in sums["measured"]]))
    words = words.mark_text(align="left", dx=6, color=theme.TEXT)
    words = words.encode(y, alt.X("measured:Q"), text="shown:N")
    return layered(bars.encode(y, count, colour, order="rank:Q", tooltip=hover), words, height=200)


HEIGHT = 300


def product_variances(*, d: Count | None = None, seed: Seed = 0) -> Chart:
    """Draw `analysis.product_variances` over the width, on logarithmic axes, with the expected lines d and 1.

    Further arguments are those of `analysis.product_variances`.

    Args:
        d: The width of queries and keys to mark.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> chart = xformer.viz.product_variances()
    """
    frame = variances_table(seed=seed)
    names = {"variance": "q · k", "scaled": "q · k / √d"}
    theory = frame.assign(variance=frame["d"].astype(float), scaled=1.0)
    long = [one.rename(columns=names).melt("d", list(names.values()), "what", "value") for one in (theory, frame)]
    lines, points = map(alt.Chart, long)
    scale = alt.Scale(type="log", domain=[0.5, 1024])
    y = alt.Y("value:Q", title="variance", scale=scale, axis=alt.Axis(values=[1, 4, 16, 64, 256, 1024], format="d"))
    legend = alt.Legend(orient="top", symbolType="circle", symbolSize=90)
    colour = category_colours("what:N", list(names.values()), theme.head_hues(2)[::-1], title=None, legend=legend)
    tooltip = tooltips("d:Q", ("what:N", "product"), ("value:Q", "variance", ".5f"))
    return layered(
        *_here(d),
        lines.mark_line(strokeDash=[5, 4], strokeWidth=1.5).encode(_width(), y, colour),
        points.mark_circle(size=70, opacity=1).encode(_width(), y, colour, tooltip=tooltip),
        height=HEIGHT,
    )


def softmax_saturation(*, what: str = "gradient", d: Count | None = None, seed: Seed = 0) -> Chart:
    """Draw `analysis.softmax_saturation` over the width, with scaled and unscaled scores.

    Further arguments are those of `analysis.softmax_saturation`.

    Args:
        what: "largest" for the largest weight of a row, "gradient" for the largest derivative of the softmax.
        d: The width of queries and keys to mark.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> chart = xformer.viz.softmax_saturation()
    """
    check_option("what", what, ("largest", "gradient"))
    title, top = {"largest": ("largest weight of a row", 1.0), "gradient": ("largest p (1 − p)", 0.25)}[what]
    legend = alt.Legend(orient="top", symbolStrokeWidth=4)
    base = alt.Chart(saturation_table(seed=seed)).encode(
        _width(),
        alt.Y(f"{what}:Q", title=title, scale=alt.Scale(domain=[0, top])),
        category_colours("scale:N", [RAW, SCALED], theme.head_hues(2)[::-1], title=None, legend=legend),
        tooltip=["d:Q", "scale:N", alt.Tooltip(f"{what}:Q", format=".5f")],
    )
    lines, points = base.mark_line(strokeWidth=2.5), base.mark_circle(size=50, opacity=1)
    return layered(*_here(d), lines, points, height=HEIGHT)


def softmax_row(*, d: Count, scaled: bool = True, seed: Seed = 0) -> Chart:
    """Draw the weights of `analysis.softmax_row` as bars from 0 to 1.

    The arguments are those of `analysis.softmax_row`.

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
    text = base.transform_filter("datum.weight >= 0.05").mark_text(dy=-8, color=theme.TEXT)
    text = text.encode(text=alt.Text("weight:Q", format=".2f"))
    return layered(base.mark_bar(color=theme.head_hue(0)), text, height=HEIGHT)


def _here(d: int | None) -> list[alt.Chart]:
    """Return a line at the width `d`."""
    if d is None:
        return []
    look = {"color": theme.TEXT, "opacity": 0.35, "strokeWidth": 2}
    return [alt.Chart(pd.DataFrame({"d": [d]})).mark_rule(**look).encode(_width())]


def _width() -> alt.X:
    axis = alt.Axis(values=list(WIDTHS), format="d", grid=False, labelAngle=0)
    return alt.X("d:Q", title="d, the width of q and k", scale=alt.Scale(type="log", base=2, nice=False), axis=axis)


ROW_HEIGHT = 34

MANY_COLUMNS = 6
"""Beyond this many columns, labels and numbers are smaller."""


def matrix(mixed: Mixed, *, what: str, n_columns: Count | None = None, row: int | None = None) -> Chart:
    """Draw `analysis.matrix` as coloured cells with numbers: weights on a scale from 0 to 1, other values centred on zero.

    Masked cells are grey.

    Further arguments are those of `analysis.matrix`.

    Args:
        row: The row to frame, from 0.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> sentence = xformer.analysis.principles.Sentence("the cat saw the dog", d=4)
        >>> chart = xformer.viz.matrix(sentence.attention(), what="weights")
    """
    frame, is_share = matrix_table(mixed, what=what, n_columns=n_columns), what == "weights"
    down, across = list(dict.fromkeys(frame["row"])), list(dict.fromkeys(frame["column"]))
    values = frame["value"].to_numpy(dtype=float)
    limit = 1.0 if is_share else theme.signed_limit(values)
    stops, low = (theme.SEQUENTIAL, 0.0) if is_share else (theme.DIVERGING, -limit)
    hidden = np.isneginf(values) | (is_share & (mixed.mask in (BEFORE, AFTER)) & (values == 0.0))
    many = len(across) > MANY_COLUMNS
    digits = 1 if many and not is_share else 2
    data = frame.assign(
        value=np.where(hidden, np.nan, values),
        hidden=hidden,
        shown=["−∞" if np.isneginf(value) else cell_number(value, digits) for value in values],
        exact=["−∞" if np.isneginf(value) else f"{value:.6f}" for value in values],
        cell_colour=np.where(hidden, theme.MASKED, cell_colours(stops, values, low, limit)),
    )
    extent = min(28 + 5 * max(map(len, across)), 76)  # pixels for the column labels
    axis = {"ticks": False, "domain": False, "labelOverlap": False, "titleFontWeight": "normal"}
    wide = {"minExtent": extent, "maxExtent": extent, "labelLimit": 52 if many else 84}
    above = alt.Axis(orient="top", labelAngle=-40 if extent > 30 else 0, **wide, **axis)
    base = alt.Chart(data).encode(
        alt.X("column:N", sort=across, title=None, axis=above),
        alt.Y("row:N", sort=down, title=None, axis=alt.Axis(**axis, labelLimit=84)),
        tooltip=["row:N", "column:N", alt.Tooltip("exact:N", title="value")],
    )
    colour = heat_colour("value:Q", stops, low, limit, legend=None)
    framed = base.transform_filter(alt.FieldEqualPredicate(field="row", equal="" if row is None else down[row]))
    layers = [
        base.transform_filter("!datum.hidden").mark_rect().encode(color=colour),
        base.transform_filter("datum.hidden").mark_rect(color=theme.MASKED),
        framed.mark_rect(fillOpacity=0, stroke=theme.head_hue(1), strokeWidth=2.5),
        *numbers(base, "shown:N", size=10.5 if many else 12),
    ]
    return layered(*layers, height=ROW_HEIGHT * len(down), autosize=ROWS)
