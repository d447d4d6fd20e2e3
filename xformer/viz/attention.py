"""From a trace to what the attention view draws: every layer's patterns with their masks, titles and token labels.

layers = pattern_layers(trace, labels)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import altair as alt
import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from xformer.names import layer_title as layer_title
from xformer.viz.packing import PatternLayer
from xformer.viz.planes import block_max, factor
from xformer.viz.theme import MASKED, diverging, sequential, vega_scale

if TYPE_CHECKING:
    from xformer.trace import Trace

MOST = 64
"""So many positions a side are drawn one by one; a chart of more would be as heavy as a film."""


def pattern_layers(
    trace: Trace, labels: Sequence[str], target_labels: Sequence[str] | None = None, item: int = 0
) -> list[PatternLayer]:
    """The attention layers of one input of a trace, in the order the input meets them.

    `labels` name the tokens of the input, `target_labels` those of an encoder-decoder's target. A trace recorded without
    its masks shows every cell as allowed.
    """
    layers = []
    read = {"encoder": tuple(labels), "decoder": tuple(labels if target_labels is None else target_labels)}
    for site in trace.sites():
        path, queries, keys = site.path, read[site.query_stack], read[site.key_stack]
        pattern = trace[f"{path}.pattern"][item].float().numpy(force=True)  # [head, query, key]
        is_masked = f"{path}.mask" in trace
        allowed = trace[f"{path}.mask"][item].numpy(force=True) if is_masked else np.ones((1, 1, 1), dtype=bool)
        size = trace[f"{path}.z"][item].float().norm(dim=-1).mean(dim=-1).tolist() if f"{path}.z" in trace else ()
        title = layer_title(path, is_pair=target_labels is not None)
        layers.append(PatternLayer(path, title, pattern, allowed, queries, keys, tuple(size)))
    return layers


def pattern_frame(
    pattern: Float[np.ndarray, "query key"],
    allowed: Bool[np.ndarray, "query key"],
    query_labels: Sequence[str],
    key_labels: Sequence[str],
) -> pd.DataFrame:
    """One row for each cell: query, key (position, from 0, and token), whether the mask allows it, and its weight (none where
    not)."""
    queries = [f"{position} {label}" for position, label in enumerate(query_labels)]
    keys = [f"{position} {label}" for position, label in enumerate(key_labels)]
    return pattern_cells(pattern, allowed, queries, keys)


def pattern_cells(
    pattern: Float[np.ndarray, "query key"],
    allowed: Bool[np.ndarray, "query key"],
    queries: Sequence[str],
    keys: Sequence[str],
) -> pd.DataFrame:
    """The same for rows and columns that have their names already."""
    return pd.DataFrame(
        {
            "query": np.repeat(queries, len(keys)),
            "key": np.tile(keys, len(queries)),
            "allowed": allowed.ravel(),
            "weight": np.where(allowed, pattern, np.nan).ravel(),
        }
    )


def head_frame(
    trace: Trace, attention: str, head: int, query_labels: Sequence[str], key_labels: Sequence[str], item: int = 0
) -> pd.DataFrame:
    """The cells of one head of a trace, counted from 0 in its layer; see `pattern_frame`."""
    pattern = trace[f"{attention}.pattern"][item, head].float().numpy(force=True)  # [query, key]
    allowed = np.ones(pattern.shape, dtype=bool)
    if f"{attention}.mask" in trace:
        allowed = trace[f"{attention}.mask"][item, head].numpy(force=True)  # [query, key]
    return pattern_frame(pattern, allowed, query_labels, key_labels)


def head_chart(frame: pd.DataFrame, *, own_scale: bool = False, dark: bool = False) -> alt.TopLevelMixin:
    """One head as a heatmap, on the fixed scale from 0 to 1 or up to its own largest weight; masked cells are grey, never the
    colour of a zero. More than `MOST` positions a side are pooled by their largest weight."""
    frame = pooled(frame, MOST)
    top = float(np.nanmax(frame["weight"], initial=0.0)) if own_scale else 1.0
    return _heatmap(frame, "weight", vega_scale(sequential(dark), 0, top or 1.0), "", dark)


def changed_chart(
    before: pd.DataFrame, after: pd.DataFrame, *, own_scale: bool = False, dark: bool = False
) -> alt.TopLevelMixin:
    """A head in the original and in a changed run, both on one scale, and by how much each weight changed."""
    moved = after.assign(weight=after["weight"].fillna(0.0) - before["weight"].fillna(0.0))
    moved["allowed"] = before["allowed"] | after["allowed"]
    moved["weight"] = moved["weight"].where(moved["allowed"])
    weights = np.concatenate([before["weight"].to_numpy(), after["weight"].to_numpy()])
    top = float(np.nanmax(weights, initial=0.0)) if own_scale else 1.0
    limit = float(np.nanmax(np.abs(moved["weight"]), initial=0.0)) if own_scale else 1.0
    scale = vega_scale(sequential(dark), 0, top or 1.0)
    signed = vega_scale(diverging(dark), -(limit or 1.0), limit or 1.0)
    charts = [
        _heatmap(pooled(before, MOST), "weight", scale, "original", dark),
        _heatmap(pooled(after, MOST), "weight", scale, "changed", dark),
        _heatmap(pooled(moved, MOST, signed=True), "difference", signed, "changed − original", dark),
    ]
    return alt.hconcat(*charts).resolve_scale(color="independent")


def pooled(frame: pd.DataFrame, most: int, *, signed: bool = False) -> pd.DataFrame:
    """The cells of a head in blocks, at most `most` a side: of each the largest weight, of a difference the one farthest from
    0. A block is masked where all of it is. Up to `most` positions a side nothing changes."""
    queries, keys = list(dict.fromkeys(frame["query"])), list(dict.fromkeys(frame["key"]))
    if max(len(queries), len(keys)) <= most:
        return frame
    tall, wide = factor(len(queries), most), factor(len(keys), most)

    def blocks(values: np.ndarray) -> np.ndarray:
        return block_max(block_max(values.reshape(len(queries), len(keys)), tall, axis=0), wide, axis=1)

    def named(labels: list[str], n: int) -> list[str]:
        return [
            labels[at] + (f" … {labels[min(at + n, len(labels)) - 1]}" if n > 1 else "")
            for at in range(0, len(labels), n)
        ]

    weight = frame["weight"].to_numpy(float)
    allowed = frame["allowed"].to_numpy(bool)
    high = blocks(np.where(allowed, weight, -np.inf))
    if signed:
        low = -blocks(np.where(allowed, -weight, -np.inf))
        high = np.where(-low > high, low, high)
    seen = np.isfinite(high)
    return pattern_cells(np.where(seen, high, 0.0), seen, named(queries, tall), named(keys, wide))


def _heatmap(frame: pd.DataFrame, what: str, scale: dict[str, Any], title: str, dark: bool) -> alt.Chart:
    queries, keys = list(dict.fromkeys(frame["query"])), list(dict.fromkeys(frame["key"]))
    cell = max(6, min(30, 420 // max(len(queries), len(keys))))
    colour = alt.Color("weight:Q", scale=alt.Scale(**scale), title=what)
    return (
        alt.Chart(frame, title=title)
        .mark_rect()
        .encode(
            x=alt.X("key:N", sort=keys, title="key: what it looks at", axis=alt.Axis(labelOverlap=True)),
            y=alt.Y("query:N", sort=queries, title="query: the position that looks", axis=alt.Axis(labelOverlap=True)),
            color=alt.condition("datum.allowed", colour, alt.value(MASKED[dark])),
            tooltip=["query:N", "key:N", "allowed:N", alt.Tooltip("weight:Q", title=what, format=".6f")],
        )
        .properties(width=cell * len(keys), height=cell * len(queries))
    )
