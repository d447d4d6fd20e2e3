"""From a trace to what the attention view draws: every layer's patterns with their masks, titles and token labels.

layers = pattern_layers(trace, labels)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import altair as alt
import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from xformer.viz.packing import PatternLayer
from xformer.viz.theme import MASKED, sequential, vega_scale

if TYPE_CHECKING:
    from xformer.trace import Trace


def pattern_layers(
    trace: Trace, labels: Sequence[str], target_labels: Sequence[str] | None = None, item: int = 0
) -> list[PatternLayer]:
    """The attention layers of one input of a trace, in the order the input meets them.

    `labels` name the tokens of the input, `target_labels` those of an encoder-decoder's target. A trace recorded without
    its masks shows every cell as allowed.
    """
    layers = []
    for path in trace.attention_layers():
        in_target = path.startswith("decoder.") and target_labels is not None
        queries = tuple((target_labels if in_target else labels) or ())
        keys = tuple(labels) if path.endswith("cross_attn") else queries
        pattern = trace[f"{path}.pattern"][item].float().numpy(force=True)  # [head, query, key]
        allowed = trace[f"{path}.mask"][item].numpy(force=True)  # [head, query, key]
        layers.append(
            PatternLayer(path, layer_title(path, is_pair=target_labels is not None), pattern, allowed, queries, keys)
        )
    return layers


def layer_title(path: str, *, is_pair: bool = False) -> str:
    """An attention layer in words: "layer 2", and in an encoder-decoder "encoder 1", "decoder 1 · cross"."""
    stack, index, kind = path.split(".")
    if not is_pair:
        return f"layer {int(index) + 1}"
    suffix = {"self_attn": " · self", "cross_attn": " · cross"}.get(kind, "")
    return f"{stack} {int(index) + 1}{suffix}"


def pattern_frame(
    pattern: Float[np.ndarray, "query key"],
    allowed: Bool[np.ndarray, "query key"],
    query_labels: Sequence[str],
    key_labels: Sequence[str],
) -> pd.DataFrame:
    """One row a cell: query, key (position and token), whether the mask allows it, and its weight (none where not)."""
    queries = [f"{position} {label}" for position, label in enumerate(query_labels)]
    keys = [f"{position} {label}" for position, label in enumerate(key_labels)]
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
    """The cells of one head of a trace; see `pattern_frame`."""
    pattern = trace[f"{attention}.pattern"][item, head].float().numpy(force=True)  # [query, key]
    allowed = trace[f"{attention}.mask"][item, head].numpy(force=True)  # [query, key]
    return pattern_frame(pattern, allowed, query_labels, key_labels)


def head_chart(frame: pd.DataFrame, *, dark: bool = False) -> alt.TopLevelMixin:
    """One head as a heatmap on the fixed scale from 0 to 1; masked cells are grey, never the colour of a zero."""
    queries, keys = list(dict.fromkeys(frame["query"])), list(dict.fromkeys(frame["key"]))
    scale = alt.Scale(**vega_scale(sequential(dark), 0, 1))
    colour = alt.condition("datum.allowed", alt.Color("weight:Q", scale=scale, title="weight"), alt.value(MASKED[dark]))
    return (
        alt.Chart(frame)
        .mark_rect()
        .encode(
            x=alt.X("key:N", sort=keys, title="key: what it looks at"),
            y=alt.Y("query:N", sort=queries, title="query: the position that looks"),
            color=colour,
            tooltip=["query:N", "key:N", "allowed:N", alt.Tooltip("weight:Q", format=".6f")],
        )
        .properties(width=30 * len(keys), height=30 * len(queries))
    )
