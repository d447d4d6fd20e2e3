"""“Change the run”: ablate or solo the chosen head, cut or open the chosen edge, switch positions off, replace a token."""

from __future__ import annotations

from typing import Any, Literal

import streamlit as st

from pages.components.attention_view import Selection
from pages.shared.escape_markdown import escape_markdown
from pages.shared.view import View, switched_on, toggle_intervention
from pages.shared.widgets import find_tokens
from xformer.analysis.embeddings import token_labels
from xformer.model_shape import READ_ONLY
from xformer.viz.packing import AnyLayer

Width = Literal["stretch", "content"]
MOST_LISTED = 500
"""Tokens in the list of replacements; of a longer vocabulary they are found by a search."""


def head_tools(view: View, layer: AnyLayer, chosen: Selection) -> None:
    """The buttons at the picture: ablate the enlarged head, cut the locked edge."""
    path, head, on = layer.name, chosen.head, view.on
    if view.shape.is_read_only:
        return
    title, ablated = f"{chosen.layer + 1}.{head + 1}", f"ablate:{path}.{head}"
    words = f"Ablated: {title}" if ablated in on else f"Ablate {title}"
    switch(words, ablated, on, "Sets its output z to zero.", width="content")
    if chosen.query is not None and chosen.key is not None:
        edge_button(layer, chosen, str(head), on, width="content")


def change_panel(view: View, layer: AnyLayer, chosen: Selection) -> None:
    """Buttons that change the run. Active changes are listed at the top of the page and in its link."""
    on = view.on
    if view.shape.is_read_only:
        st.info(READ_ONLY, icon=":material/visibility:")
        if view.input.replacements:
            _replace_token(view)
        return
    first, second, third = st.columns(3, gap="medium")
    with first:
        st.markdown("**Heads and positions**")
        alone, is_only = f"solo:{layer.name}.{chosen.head}", view.shape.heads[layer.name] == 1
        words = f"Only head {chosen.head + 1}" if alone in on else f"Solo head {chosen.head + 1}"
        switch(words, alone, on, "Ablates all other heads of its layer.", disabled=is_only)
        words = "Positions are off" if "positions:off" in on else "Positions off"
        explained = "Removes all position information."
        switch(words, "positions:off", on, explained, disabled=not view.shape.can_drop_positions)
    with second:
        st.markdown("**One edge**")
        if chosen.query is None or chosen.key is None:
            st.caption("Click a cell of the matrix to cut that edge.")
        else:
            edge_button(layer, chosen, "*", on)
        explained = "A click on a cell cuts that edge in this head, or restores it."
        st.toggle("Click to cut a connection", key="click_cuts", persist_state="session", help=explained)
    with third:
        if view.shape.image:
            st.markdown("**One pixel**")
            _replace_pixel(view)
        elif view.input.replacements:
            st.markdown("**One token**")
            _replace_token(view)


def _replace_token(view: View) -> None:
    label = token_labels(view.subject)
    names = {position: f"{position}: {label[token]}" for position, token in enumerate(view.source)}
    st.selectbox("Position", list(names), format_func=lambda at: names.get(at, "–"), key="replace_position")
    found = _found_tokens(view)
    st.selectbox("becomes", found, format_func=lambda token: label[token], key="replace_token", disabled=not found)
    st.button("Replace", on_click=_replace, width="stretch", key="replace", disabled=not found)


def _found_tokens(view: View) -> list[int]:
    """The tokens to choose from: those of a short vocabulary, or the results of a search."""
    tokens, label = view.input.replacements, token_labels(view.subject)
    if len(tokens) <= MOST_LISTED:
        return list(tokens)
    explained = "Part of a token; · stands for the space before a word."
    text = st.text_input(f"Search {len(tokens):,} tokens", key="replace_search", help=explained)
    found = find_tokens(label, text, MOST_LISTED) if text else list(tokens)[:MOST_LISTED]
    if not found:
        st.caption("No token contains that.")
    return [token for token in found if token in tokens]


def _replace_pixel(view: View) -> None:
    side = view.shape.image
    st.selectbox(
        "Pixel",
        range(side * side),
        format_func=lambda pixel: f"y{pixel // side + 1} x{pixel % side + 1}: ink {view.source[pixel]}",
        key="replace_position",
    )
    st.selectbox("gets the ink", range(view.shape.n_inputs), key="replace_token")
    st.button("Replace", on_click=_replace, width="stretch", key="replace")


def _replace() -> None:
    """Replace a token, or an earlier replacement at that position. A callback.

    It reads the widgets itself: its arguments would be those of the run before the last keystroke.
    """
    if st.session_state["replace_token"] is None:
        return
    position, token = st.session_state["replace_position"], int(st.session_state["replace_token"])
    kept = [word for word in switched_on() if not word.startswith(f"token:{position}.")]
    st.session_state["edits"] = ",".join([*kept, f"token:{position}.{token}"])


def follow_cutting_click(layer: AnyLayer, chosen: Selection) -> None:
    """While “Click to cut a connection” is on, cut the edge of a newly clicked cell and run again."""
    cell = (layer.name, chosen.head, chosen.query, chosen.key)
    before = st.session_state.get("last_cell")
    st.session_state["last_cell"] = cell
    is_new = before is not None and cell != before and chosen.query is not None and chosen.key is not None
    if st.session_state.get("click_cuts") and is_new:
        _toggle_edge("cut", f"{layer.name}.{chosen.head}.{chosen.query}-{chosen.key}")
        st.rerun()


def edge_button(layer: AnyLayer, chosen: Selection, heads: str, on: frozenset[str], width: Width = "stretch") -> None:
    """Cut or open the locked edge in one head, or in all of its layer ("*")."""
    query, key = chosen.query, chosen.key
    assert query is not None
    assert key is not None
    edge = f"{query} “{escape_markdown(layer.query_labels[query])}” → {key} “{escape_markdown(layer.key_labels[key])}”"
    masked = not bool(layer.allowed[min(chosen.head, layer.allowed.shape[0] - 1), query, key])
    at = f"{layer.name}.{heads}.{query}-{key}"
    is_cut, is_open = f"cut:{at}" in on, f"open:{at}" in on
    kind = "cut" if is_cut else "open" if is_open or masked else "cut"
    verb = "Restore" if is_cut else "Close again" if is_open else "Open" if masked else "Cut"
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
    """Cut or open an edge; if it was changed before, restore it instead."""
    there = [text for text in (f"cut:{at}", f"open:{at}") if text in switched_on()]
    toggle_intervention(*(there or [f"{kind}:{at}"]))


def switch(
    label: str, text: str, on: frozenset[str], help: str, *, disabled: bool = False, width: Width = "stretch"
) -> None:
    """A button that switches one intervention on and off."""
    is_on = text in on
    look: dict[str, Any] = {"type": "primary" if is_on else "secondary", "disabled": disabled and not is_on}
    st.button(label, on_click=toggle_intervention, args=(text,), width=width, help=help, key=f"switch_{text}", **look)
