"""Draw the attention of long inputs: a measure of all heads, attention by distance and by token, and a map of one head."""

from __future__ import annotations

import math

import altair as alt
import numpy as np

from xformer.analysis.long_inputs import HEAD_SUMS
from xformer.analysis.long_inputs import attention_by_distance as distance_table
from xformer.analysis.long_inputs import attention_map as map_table
from xformer.analysis.long_inputs import attention_received as received_table
from xformer.analysis.long_inputs import head_sums as heads_table
from xformer.formatting import check_option
from xformer.layer_path import layer_title
from xformer.long_inputs import AttentionSummary
from xformer.viz.charts import PADDED, ROWS, heat_colour, layered, squares, tooltips
from xformer.viz.theme import MASKED, PRIMARY, SEQUENTIAL, TEXT

DRAWN = 1_000
"""The largest number of lines of `attention_received`; of neighbouring tokens, the one that receives most is drawn."""
LISTED, APART = 12, 20
"""The largest number of tokens that `attention_received` names, and the share of the text, 1 / APART, between two of them."""


def head_sums(summary: AttentionSummary, *, measure: str = "entropy") -> alt.TopLevelMixin:
    """Draw a measure of every head of a long input, a row per layer (`analysis.head_sums`).

    Args:
        summary: The sums of the run.
        measure: One of `analysis.long_inputs.HEAD_SUMS`.

    Returns:
        The chart; a measure without a meaning in a layer is grey.

    Example:
        >>> import xformer
        >>> summary = xformer.attention_summary("checkpoints/reverse", "3 7 12 9")
        >>> chart = xformer.viz.head_sums(summary, measure="diagonal")
    """
    check_option("measure", measure, tuple(HEAD_SUMS))
    table = heads_table(summary)
    two = summary.adapter.shape.is_encoder_decoder
    table["name"] = [layer_title(path, is_encoder_decoder=two) for path in table["layer"]]
    table["number"] = table["head"] + 1
    names, high = list(dict.fromkeys(table["name"])), float(np.nanmax([0.0, *table[measure].tolist()]))
    high = high if measure == "distance" and high > 0 else 1.0
    cells = alt.Chart(table).mark_rect(invalid=None)
    cells = cells.encode(
        alt.X("number:O", title="head", axis=alt.Axis(labelAngle=0, labelOverlap=True)),
        alt.Y("name:N", title=None, sort=names),
        heat_colour(f"{measure}:Q", SEQUENTIAL, 0, high, title=measure.replace("_", " "),
                    condition=[{"test": f"!isValid(datum.{measure})", "value": MASKED}]),
        tooltip=tooltips("name:N", ("number:O", "head"), (f"{measure}:Q", measure.replace("_", " "), ".3f")),
    )  # fmt: skip
    n_heads = max(len(one.entropy) for one in summary.sums.values())
    size = squares(len(names), n_heads, 22, 560)
    return cells.properties(title=HEAD_SUMS[measure], autosize=PADDED, **size)


def attention_by_distance(summary: AttentionSummary, *, layer: int, head: int | None = None) -> alt.TopLevelMixin:
    """Draw how far heads look, in bins that double (`analysis.attention_by_distance`).

    Further arguments are those of `analysis.attention_by_distance`.

    Returns:
        The chart: a bar per bin for one head, or a row of cells per head.

    Example:
        >>> import xformer
        >>> summary = xformer.attention_summary("checkpoints/reverse", "3 7 12 9")
        >>> chart = xformer.viz.attention_by_distance(summary, layer=2, head=1)
    """
    table = distance_table(summary, layer=layer, head=head)
    table["distance"] = [
        _bin(low, high) for low, high in zip(table["from_distance"], table["to_distance"], strict=True)
    ]
    bins, name = list(dict.fromkeys(table["distance"])), layer_title(summary.path(layer), is_encoder_decoder=False)
    x = alt.X("distance:O", title="distance from query to key, in tokens", sort=bins)
    if head is not None:
        bars = alt.Chart(table).mark_bar(color=PRIMARY)
        y = alt.Y("share:Q", title="share of the attention", scale=alt.Scale(domain=[0, 1]))
        chart = bars.encode(x, y, tooltip=tooltips("distance:O", ("share:Q", "share", ".3f")))
        return chart.properties(title=f"{name}, head {head + 1}", height=240, autosize=ROWS)
    table["number"] = table["head"] + 1
    cells = alt.Chart(table).mark_rect().encode(
        x, alt.Y("number:O", title="head"), heat_colour("share:Q", SEQUENTIAL, 0, 1, title="share"),
        tooltip=tooltips(("number:O", "head"), "distance:O", ("share:Q", "share", ".3f")),
    )  # fmt: skip
    return cells.properties(title=name, height=22 * table["head"].nunique(), autosize=ROWS)


def _bin(low: int, high: int) -> str:
    return str(low) if low == high else f"{low:,} to {high:,}".replace("-", "−")


def attention_received(summary: AttentionSummary, *, layer: int, head: int | None = None) -> alt.TopLevelMixin:
    """Draw how much each token of a long input is attended to, along the text (`analysis.attention_received`).

    Further arguments are those of `analysis.attention_received`.

    Returns:
        The chart. The tokens that receive most are named.

    Example:
        >>> import xformer
        >>> summary = xformer.attention_summary("checkpoints/reverse", "3 7 12 9")
        >>> chart = xformer.viz.attention_received(summary, layer=2)
    """
    whole = received_table(summary, layer=layer, head=head)
    bins = whole["position"] // math.ceil(len(whole) / DRAWN)
    table = whole.loc[whole.groupby(bins)["received"].idxmax()]
    named: list[int] = []
    for at in table.nlargest(10 * LISTED, "received")["position"].tolist():
        if len(named) < LISTED and all(abs(at - other) * APART > len(whole) for other in named):
            named.append(at)
    best = table[table["position"].isin(named)]
    lines = alt.Chart(table).mark_rule(color=PRIMARY).encode(
        alt.X("position:Q", title="position of the key", scale=alt.Scale(domain=[0, max(1, len(whole) - 1)], nice=False)),
        alt.Y("received:Q", title="attention received, in queries"),
        y2=alt.datum(0),
        tooltip=tooltips("position:Q", "token:N", ("received:Q", "received", ".2f")),
    )  # fmt: skip
    names = (
        alt.Chart(best).mark_text(dy=-6, fontSize=12, color=TEXT).encode(x="position:Q", y="received:Q", text="token:N")
    )
    name = layer_title(summary.path(layer), is_encoder_decoder=False)
    title = name if head is None else f"{name}, head {head + 1}"
    return layered(lines, names, title=title, height=200, autosize=ROWS)


def attention_map(
    summary: AttentionSummary,
    *,
    layer: int,
    head: int,
    queries: tuple[int, int] | None = None,
    keys: tuple[int, int] | None = None,
    cells: int = 64,
) -> alt.TopLevelMixin:
    """Draw a map of one head over a long input, or over a part of it (`analysis.attention_map`).

    Further arguments are those of `analysis.attention_map`. `xformer.attention_map` is the same picture to scroll and enlarge.

    Returns:
        The chart: the largest weight of each block, on a scale of roots, so that small weights are seen.

    Example:
        >>> import xformer
        >>> summary = xformer.attention_summary("checkpoints/reverse", "3 7 12 9")
        >>> chart = xformer.viz.attention_map(summary, layer=2, head=1)
    """
    table = map_table(summary, layer=layer, head=head, queries=queries, keys=keys, cells=cells)
    permitted = summary.layer(layer).permitted
    q0, q1, k0, k1 = (table[name].to_numpy() for name in ("from_query", "to_query", "from_key", "to_key"))
    rows = zip(q0.tolist(), q1.tolist(), k0.tolist(), k1.tolist(), strict=True)
    table["masked"] = [_is_masked(permitted[low : high + 1].tolist(), first, last) for low, high, first, last in rows]
    table = table.assign(bottom=q1 + 1, right=k1 + 1)
    scale = alt.Scale(type="sqrt", domain=[0, 1], range=list(SEQUENTIAL), interpolate="rgb")
    n = math.isqrt(len(table))
    down = alt.Scale(domain=[int(q0.min()), int(q1.max()) + 1], reverse=True, nice=False)
    across = alt.Scale(domain=[int(k0.min()), int(k1.max()) + 1], nice=False)
    marks = alt.Chart(table).mark_rect(strokeWidth=0).encode(
        alt.X("from_key:Q", title="key", scale=across), alt.Y("from_query:Q", title="query", scale=down),
        x2="right:Q", y2="bottom:Q",
        color=alt.Color("largest:Q", scale=scale, title="largest weight",
                        condition=[{"test": "datum.masked", "value": MASKED}]),
        tooltip=tooltips("from_query:Q", "to_query:Q", "from_key:Q", "to_key:Q", ("largest:Q", "largest", ".4f"),
                         ("mean:Q", "mean", ".6f")),
    )  # fmt: skip
    name = layer_title(summary.path(layer), is_encoder_decoder=summary.adapter.shape.is_encoder_decoder)
    return marks.properties(title=f"{name}, head {head + 1}", autosize=PADDED, **squares(n, n, 40, 520))


def _is_masked(permitted: list[list[int]], first: int, last: int) -> bool:
    """Whether the mask permits none of the keys from `first` to `last` to any query with these ranges of keys."""
    return all(end <= first or begin > last or begin == end for begin, end in permitted)
