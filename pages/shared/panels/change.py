"""“Change the run”: silence or solo the chosen head, cut or open the chosen edge, switch positions off, replace a token."""

from __future__ import annotations

import streamlit as st

from pages.shared.components.attention_view import Selection
from pages.shared.literal import literal
from pages.shared.session import switched_on, toggle_intervention
from pages.shared.view import View
from xformer.viz.packing import PatternLayer


def change_panel(view: View, layer: PatternLayer, chosen: Selection) -> None:
    """Buttons that change what runs; what is on stands as chips at the top of the page, and in its link."""
    path, head = layer.name, chosen.head
    on = view.on
    where = f"{layer.title}, head {head + 1}"
    st.caption(
        "The model runs again with each change, and original, changed and difference stand side by side above. "
        "Everything that is on is listed under the heading."
    )
    first, second, third = st.columns(3, gap="medium")
    with first:
        st.markdown("**This head**")
        _switch(f"Silence {where}", f"silence:{path}.{head}", on, "Its z becomes 0.")
        alone = view.checkpoint.config.n_heads == 1
        _switch(f"Solo {where}", f"solo:{path}.{head}", on, "All other heads of its layer become 0.", disabled=alone)
        st.markdown("**Positions**")
        none = view.checkpoint.config.positions == "none"
        _switch("Positions off", "positions:off", on, "Nothing tells the model where a token is.", disabled=none)
    with second:
        st.markdown("**One edge**")
        if chosen.query is None or chosen.key is None:
            st.caption("Click a cell of the matrix: that query and key can then be cut apart.")
        else:
            _edge_buttons(path, head, chosen.query, chosen.key, layer, on)
        st.toggle(
            "A click cuts",
            key="click_cuts",
            persist_state="session",
            help="While this is on, every cell you click is cut in this head (or mended, if it was cut).",
        )
    with third:
        if view.task.rule.is_image:
            st.markdown("**One pixel**")
            _replace_pixel(view)
        else:
            st.markdown("**One token**")
            _replace_token(view)


def follow_cutting_click(layer: PatternLayer, chosen: Selection) -> None:
    """While “A click cuts” is on, turn a newly clicked cell into a cut edge and run again."""
    cell = (layer.name, chosen.head, chosen.query, chosen.key)
    before = st.session_state.get("last_cell")
    st.session_state["last_cell"] = cell
    is_new = before is not None and cell != before and chosen.query is not None and chosen.key is not None
    if st.session_state.get("click_cuts") and is_new:
        toggle_intervention(f"cut:{layer.name}.{chosen.head}.{chosen.query}-{chosen.key}")
        st.rerun()


def _edge_buttons(path: str, head: int, query: int, key: int, layer: PatternLayer, on: frozenset[str]) -> None:
    edge = f"{query} “{literal(layer.query_labels[query])}” → {key} “{literal(layer.key_labels[key])}”"
    masked = not bool(layer.allowed[min(head, layer.allowed.shape[0] - 1), query, key])
    kind, verb = ("open", "Open") if masked else ("cut", "Cut")
    _switch(f"{verb} {edge}", f"{kind}:{path}.{head}.{query}-{key}", on, "In this head only.")
    _switch("… in all heads of this layer", f"{kind}:{path}.*.{query}-{key}", on, "In every head of this layer.")


def _replace_token(view: View) -> None:
    positions, label = range(len(view.source)), view.task.vocabulary.labels
    st.selectbox(
        "Position",
        positions,
        format_func=lambda position: (
            f"{position}: {label[view.source[position]]}" if position < len(view.source) else "–"
        ),
        key="replace_position",
    )
    tokens = range(1, 1 + view.task.vocabulary.symbols)
    st.selectbox("becomes", tokens, format_func=lambda token: label[token], key="replace_token")
    st.button("Replace", on_click=_replace, width="stretch", key="replace")


def _replace_pixel(view: View) -> None:
    side = view.task.image_side
    st.selectbox(
        "Pixel",
        range(side * side),
        format_func=lambda pixel: f"y{pixel // side + 1} x{pixel % side + 1}: ink {view.source[pixel]}",
        key="replace_position",
    )
    st.selectbox("gets the ink", range(view.checkpoint.config.n_inputs), key="replace_token")
    st.button("Replace", on_click=_replace, width="stretch", key="replace")


def _replace() -> None:
    """One replacement a position: the new one takes the old one's place.

    The two values are read now: arguments of a callback would be those of the run before the last keystroke.
    """
    position, token = st.session_state["replace_position"], int(st.session_state["replace_token"])
    kept = [word for word in switched_on() if not word.startswith(f"token:{position}.")]
    st.session_state["edits"] = ",".join([*kept, f"token:{position}.{token}"])


def _switch(label: str, text: str, on: frozenset[str], help: str, *, disabled: bool = False) -> None:
    st.button(
        label,
        on_click=toggle_intervention,
        args=(text,),
        type="primary" if text in on else "secondary",
        width="stretch",
        help=help,
        disabled=disabled and text not in on,
        key=f"switch_{text}",
    )
