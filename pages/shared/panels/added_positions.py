"""Positions that are added to the vectors: their waves, their matrix, and what two of them make of each other."""

from __future__ import annotations

import streamlit as st
from torch import Tensor

from pages.shared.layout import is_dark
from pages.shared.notebook import footer
from pages.shared.view import View
from xformer.analysis import positions as analysis
from xformer.analysis.embeddings import vector_table
from xformer.viz import positions as viz
from xformer.viz.embeddings import MOST_CELLS, vector_heatmap

_WAVES = {
    "sinusoidal": "Even dimensions are sines, odd ones cosines; the further right in the vector, the slower the wave.",
    "learned": "No shape is built in: each position’s numbers are learned, and stay random where training never came.",
    "mirror": "What is added to an input of this length: counted from the start, plus counted from the end.",
}


def added_positions_panel(view: View, side: str | None) -> list[int]:
    """Draw what this model adds on one side; returns the dimensions chosen, for the link."""
    config = view.checkpoint.config
    is_mirror = config.positions == "mirror"
    n = len(view.original().tokens(side)) if is_mirror else min(config.max_len, 128)
    vectors = analysis.added_positions(view.checkpoint.model, n, side)
    assert vectors is not None
    longest = n if is_mirror else view.longest_trained(side)
    trained = longest if longest < n else None
    lines = [
        "from xformer.analysis import positions as analysis",
        "from xformer.viz import positions as viz",
        f"vectors = analysis.added_positions(checkpoint.model, {n}, {side!r})",
    ]
    _seed_waves(config.d_model)
    left, right = st.columns([3, 2], gap="large")
    with left:
        waves = _curves(view, vectors, trained, lines)
    with right:
        _matrix(view, vectors, side, lines)
    _offsets(view, vectors[:trained] if trained else vectors, trained, lines)
    return waves


def _curves(view: View, vectors: Tensor, trained: int | None, lines: list[str]) -> list[int]:
    dimensions = list(range(vectors.shape[1]))
    chosen = st.multiselect("Dimensions", dimensions, key="waves", persist_state="session", max_selections=8)
    waves = chosen or [0]
    table = analysis.curve_table(vectors, waves)
    st.altair_chart(viz.curves(table, dark=is_dark(), trained=trained), width="stretch", key="curves")
    shaded = f" Shaded: from position {trained} on, beyond the longest input in training." if trained else ""
    st.caption(
        f"{_WAVES[view.checkpoint.config.positions]}{shaded} "
        "Click a dimension in the legend to pick it out, again to take it back."
    )
    draw = f"viz.curves(analysis.curve_table(vectors, {waves}), dark=False, trained={trained})"
    footer(view, [*lines, draw], table, "curves")
    return waves


def _matrix(view: View, vectors: Tensor, side: str | None, lines: list[str]) -> None:
    n, d_model = vectors.shape
    is_mirror = view.checkpoint.config.positions == "mirror"
    shown = vectors[: max(1, MOST_CELLS // d_model)]
    heat = vector_table(shown, [""] * len(shown))
    chart = vector_heatmap(heat, dark=is_dark(), rows="position", height=390)
    st.altair_chart(chart, width="stretch", key="position_matrix")
    st.caption(
        f"{'All' if len(shown) == view.checkpoint.config.max_len or is_mirror else 'The first'} {len(shown)} positions × "
        f"{d_model} dimensions: a row is what is added to the token that stands there."
    )
    code = [
        "from xformer.analysis.embeddings import vector_table",
        "from xformer.viz.embeddings import vector_heatmap",
        *lines[:1],
        f"vectors = analysis.added_positions(checkpoint.model, {n if is_mirror else len(shown)}, {side!r})",
        f'vector_heatmap(vector_table(vectors, [""] * {len(shown)}), dark=False, rows="position")',
    ]
    footer(view, code, heat, "matrix")


def _offsets(view: View, used: Tensor, trained: int | None, lines: list[str]) -> None:
    band = analysis.by_offset(analysis.dot_products(used))
    chart = viz.offset_band(band, dark=is_dark(), title="P[i] · P[j]")
    st.altair_chart(chart, width="stretch", key="offsets")
    width = (band["high"] - band["low"]).max()
    st.caption(
        f"Dot product of two positions by how far apart they are, over the {len(used)} positions"
        f"{' that training showed it' if trained else ''}; the band runs from the lowest to the highest pair and is at "
        f"most {width:.3g} wide."
    )
    code = [
        *lines,
        f"table = analysis.by_offset(analysis.dot_products(vectors[:{len(used)}]))",
        'viz.offset_band(table, dark=False, title="P[i] · P[j]")',
    ]
    footer(view, code, band, "offsets")


def _seed_waves(d_model: int) -> None:
    """The dimensions on show: those of the link, else the fastest sine and cosine and a few slower waves."""
    usual = sorted(
        {
            0,
            min(1, d_model - 1),
            *(share * d_model // 8 * 2 for share in (1, 2, 3) if share * d_model // 8 * 2 < d_model),
        }
    )
    kept = st.session_state.get("waves")
    if kept and all(dimension < d_model for dimension in kept):
        return
    asked = "" if kept is not None else st.query_params.get("waves", "")
    words = [int(word) for word in asked.split("-") if word.isascii() and word.isdecimal() and len(word) < 6]
    found = list(dict.fromkeys(word for word in words if word < d_model))[:8]
    if asked and len(found) != len(asked.split("-")):
        st.warning("The link asks for dimensions that this model does not have.", icon=":material/link_off:")
    st.session_state["waves"] = found or usual
