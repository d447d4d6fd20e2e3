"""Where two players looked when they decided a step: a layer's whole patterns and their difference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import streamlit as st

from pages.compare.compared import Compared
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.link_widgets import choose
from pages.shared.picture import footer, shown, table
from xformer import analysis, viz
from xformer.analysis.differences import MEAN, deciding_layers, why_incomparable
from xformer.names import layer_title
from xformer.reading import Reading

ONE_LINE = 24
"""Characters of a title over one of three pictures; a longer name is given by its letter, so that they stand level."""
MOST_BUTTONS = 12
"""More layers are a list."""
MAX_BLOCKS = 32
"""Rows and columns of a pattern that are drawn one by one; longer ones are drawn in blocks."""
ROUNDING = 1e-5
"""Differences of weights below this are float32's rounding."""


def patterns_panel(comparison: Compared, step: int, two: Sequence[Reading]) -> dict[str, str]:
    """Draw where both looked, whole patterns of a layer; returns what the link keeps."""
    if reason := why_incomparable(*two):
        st.info(f"{escape_markdown(reason)} “heads” shows each player’s own.", icon=":material/compare_arrows:")
        return {}
    one = two[0]
    layers = {path: layer_title(path, is_pair=one.is_pair) for path in deciding_layers(one)}
    look: dict[str, Any] = {"label_visibility": "collapsed", "width": "content"}
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        many = {"widget": st.selectbox, "width": 180} if len(layers) > MOST_BUTTONS else {}
        path = choose("layer", layers, list(layers)[-1], "Layer", key="compare_layer", **(look | many))
        n_heads = one[f"{path}.pattern"].shape[1]
        numbers = {str(head): str(head) for head in range(1, n_heads + 1)}
        heads = {"mean": "mean of heads"} | numbers if n_heads > 1 else numbers
        asked = choose("head", heads, next(iter(heads)), "Head", key="compare_head", **look)
    head = MEAN if asked == "mean" else int(asked) - 1
    options = {
        "layer": [site.path for site in one.attention].index(path),
        "head": head,
        "max_blocks": MAX_BLOCKS,
    }
    names = [reading.subject.name for reading in two]
    titles = {
        "one": names[0] if len(names[0]) <= ONE_LINE else names[0][0],
        "other": names[1] if len(names[1]) <= ONE_LINE else names[1][0],
        "difference": f"Difference: {names[1][0]} − {names[0][0]}",
    }
    frame = table(comparison, analysis.pattern_difference, two, **options)
    calls = [Call(viz.pattern_difference, (two,), {**options, "show": show, "table": frame}) for show in titles]
    for place, call, title in zip(st.columns(3, gap="small"), calls, titles.values(), strict=True):
        with place:
            st.markdown(f"**{escape_markdown(title)}**")
            shown(comparison, call, f"compare_cells_{call.options['show']}")
    st.caption(_summary(frame, names[0][0], names[1][0], comparison.unit))
    which = "the mean of its heads" if head == MEAN else f"head {head + 1}"
    size = frame["key_end"].iloc[0] - frame["key"].iloc[0] + 1
    blocks = (
        f" These are large patterns, so a cell stands for {size} queries and {size} keys: the weights on its keys are added "
        "up, and averaged over its queries."
        if size > 1
        else ""
    )
    st.caption(
        f"Who looks at whom in {layers[path]}, {which}: the row with ▶ decided {comparison.unit} {step}. In "
        f"the difference, blue is where the second looks more, orange where it looks less. Grey cells are masked.{blocks}"
    )
    footer(comparison, "patterns", calls, frame)
    return {"layer": path, "head": asked}


def _summary(frame: pd.DataFrame, a: str, b: str, unit: str) -> str:
    """The largest difference of two patterns, in words."""
    largest = frame.loc[frame["difference"].abs().idxmax()]
    if abs(largest["difference"]) < ROUNDING:
        return f"{a} and {b} look alike here, to within {ROUNDING:g}: any difference is in what they do with it."
    row = frame.loc[frame["decides"]]
    here = row.loc[row["difference"].abs().idxmax()]
    is_pooled = largest["query"] != largest["query_end"]
    deciding = f"rows with the one that decided this {unit}" if is_pooled else f"row that decided this {unit}"
    return (
        f"The largest difference is {largest['difference']:+.3f}, from query {_span(largest, 'query')} to key "
        f"{_span(largest, 'key')}; in the {deciding} it is {here['difference']:+.3f}, to key {_span(here, 'key')}"
        + ("." if is_pooled else f" ({escape_markdown(str(here['key_token']))}).")
    )


def _span(row: pd.Series, at: str) -> str:
    """A position, or the block of positions from its first to its last."""
    first, last = row.to_dict()[at], row.to_dict()[f"{at}_end"]
    return str(first) if first == last else f"{first}–{last}"
