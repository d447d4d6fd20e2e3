"""The buttons of one edge, and of whatever else is switched on and off in a run."""

from __future__ import annotations

from typing import Literal

import streamlit as st

from pages.components.attention_view import Selection
from pages.shared.escape_markdown import escape_markdown
from pages.shared.view import switched_on, toggle_intervention
from xformer.viz.packing import AnyLayer


def follow_cutting_click(layer: AnyLayer, chosen: Selection) -> None:
    """While “A click cuts” is on, turn a newly clicked cell into a cut edge and run again."""
    cell = (layer.name, chosen.head, chosen.query, chosen.key)
    before = st.session_state.get("last_cell")
    st.session_state["last_cell"] = cell
    is_new = before is not None and cell != before and chosen.query is not None and chosen.key is not None
    if st.session_state.get("click_cuts") and is_new:
        _toggle_edge("cut", f"{layer.name}.{chosen.head}.{chosen.query}-{chosen.key}")
        st.rerun()


def edge_button(
    layer: AnyLayer,
    chosen: Selection,
    heads: str,
    on: frozenset[str],
    width: Literal["stretch", "content"] = "stretch",
) -> None:
    """Cut or open the locked edge in one head, or in all of its layer ("*")."""
    query, key = chosen.query, chosen.key
    assert query is not None
    assert key is not None
    edge = f"{query} “{escape_markdown(layer.query_labels[query])}” → {key} “{escape_markdown(layer.key_labels[key])}”"
    masked = not bool(layer.allowed[min(chosen.head, layer.allowed.shape[0] - 1), query, key])
    at = f"{layer.name}.{heads}.{query}-{key}"
    is_cut, is_open = f"cut:{at}" in on, f"open:{at}" in on
    kind = "cut" if is_cut else "open" if is_open or masked else "cut"
    verb = "Mend the cut" if is_cut else "Close again" if is_open else "Open" if masked else "Cut"
    st.button(
        f"{verb} {edge}{' in all heads' if heads == '*' else ''}",
        on_click=_toggle_edge,
        args=(kind, at),
        type="primary" if is_cut or is_open else "secondary",
        width=width,
        help="In every head of this layer." if heads == "*" else "In this head only.",
        key=f"switch_{kind}:{at}",
    )


def _toggle_edge(kind: str, at: str) -> None:
    """Cut or open an edge. One that was changed before gets its own mask back instead: nothing is both cut and open."""
    there = [text for text in (f"cut:{at}", f"open:{at}") if text in switched_on()]
    toggle_intervention(*(there or [f"{kind}:{at}"]))


def switch(
    label: str,
    text: str,
    on: frozenset[str],
    help: str,
    *,
    disabled: bool = False,
    width: Literal["stretch", "content"] = "stretch",
) -> None:
    st.button(
        label,
        on_click=toggle_intervention,
        args=(text,),
        type="primary" if text in on else "secondary",
        width=width,
        help=help,
        disabled=disabled and text not in on,
        key=f"switch_{text}",
    )
