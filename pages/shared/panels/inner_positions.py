"""Positions that act inside attention: how rotary ones turn queries and keys, and what ALiBi takes off the scores."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from pages.shared.layout import is_dark
from pages.shared.view import View
from xformer.analysis import positions as analysis
from xformer.viz import positions as viz
from xformer.viz.embeddings import vector_heatmap


def inner_positions_panel(view: View) -> None:
    """Draw what a model does that adds nothing to its vectors."""
    config = view.checkpoint.config
    if config.positions == "none":
        st.caption("Nothing is added and nothing is turned. A causal mask is then all that tells order.")
        return
    n = min(config.max_len, 64)
    left, right = st.columns(2, gap="large")
    if config.positions == "alibi":
        with left:
            alibi(view, n, 300)
        with right:
            st.caption("Nothing is added to the vectors: each head takes its slope times the distance off its scores.")
        return
    with left:
        rotary_waves(view, n, 300)
    with right:
        rotary_offset(view, n, 300)


def rotary_waves(view: View, n: int, height: int, key: str = "own") -> None:
    """The cosine of the angle of every pair of dimensions at `n` positions."""
    table = analysis.angle_table(n, _width(view), view.checkpoint.config.position_base)
    heat = pd.DataFrame({"position": table["position"], "token": "", "dimension": table["pair"], "value": table["cos"]})
    chart = vector_heatmap(
        heat,
        dark=is_dark(),
        limit=1.0,
        rows="position",
        columns="pair: cos of its angle",
        height=height,
        legend=key == "own",
    )
    st.altair_chart(chart, width="stretch", key=f"rotary_waves_{key}")


def rotary_offset(view: View, n: int, height: int, key: str = "own") -> None:
    """What a query makes of its own key, turned by as many positions as they are apart."""
    band = analysis.by_offset(analysis.rotary_itself(n, _width(view), view.checkpoint.config.position_base))
    chart = viz.offset_band(band, dark=is_dark(), title="turned q · k", height=height)
    st.altair_chart(chart, width="stretch", key=f"rotary_offset_{key}")
    st.caption(
        "Queries and keys are turned, pair by pair, by an angle that grows with the position; the score of a query "
        "with its own key then depends on the offset alone. (Su et al. 2021, §3.4)"
    )


def alibi(view: View, n: int, height: int, key: str = "own") -> None:
    """What each head takes off its scores, by the offset."""
    table = analysis.alibi_table(n, min(view.checkpoint.config.n_heads, 12))
    table = table.assign(head=table["head"] + 1)
    chart = viz.curves(table, dark=is_dark(), by="head", x="offset", y="bias", height=height, legend="bottom")
    st.altair_chart(chart, width="stretch", key=f"alibi_{key}")


def _width(view: View) -> int:
    """The head's dimensions, made even: rotary positions turn them in pairs."""
    d_head = view.checkpoint.config.d_head
    return d_head + d_head % 2
