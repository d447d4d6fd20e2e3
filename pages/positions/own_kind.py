"""How this model does it: the waves or vectors that it adds, the angles by which it turns, or what it takes off its scores."""

from __future__ import annotations

import streamlit as st
from torch import Tensor

from pages.positions.pictures import added, by_offset, what_is_done
from pages.shared.layout import is_dark
from pages.shared.link import asked, chose
from pages.shared.notebook import footer, heading
from pages.shared.row_window import ask_window, every_nth, window_words
from pages.shared.view import View
from xformer.analysis import positions as analysis
from xformer.viz import positions as viz
from xformer.viz.embeddings import every

ROWS = 128
"""So many positions are drawn at a time."""
MOST_WAVES = 8


def own_positions_panel(view: View, side: str | None) -> None:
    """Draw what this model adds or turns at each position."""
    kind = view.checkpoint.config.position_kind
    n = positions_of(view, side)
    shown = ask_window(n, ROWS, "positions_from")
    if kind.acts_on == "stream":
        left, right = st.columns([3, 2], gap="large")
        with left:
            _curves(view, shown, side)
    else:
        right = st.container()
    picture = what_is_done(view, kind, shown, side, 330)
    assert picture is not None
    with right:
        heading("The whole of it" if kind.acts_on == "stream" else "Cosine of the angle")
        picture.show(view, "position_matrix")
        width = view.checkpoint.config.d_model if kind.acts_on == "stream" else len(set(picture.table["pair"]))
        what = "dimensions" if kind.acts_on == "stream" else "pairs of dimensions"
        row = (
            "A row is what is added to the token that stands there."
            if kind.acts_on == "stream"
            else "A row is by how much queries and keys are turned there: 1 is not at all, −1 half a turn."
        )
        st.caption(f"{window_words(shown, n)} × {width} {what}{every_nth(every(len(shown), width))}. {row}")
        picture.footer(view, "matrix")


def offsets_panel(view: View, side: str | None) -> None:
    """Draw what two positions make of each other in this model, by how far apart they are."""
    kind = view.checkpoint.config.position_kind
    n = min(positions_of(view, side), max(2, view.longest_trained(side)))
    picture = by_offset(view, kind, n, side, 300)
    assert picture is not None
    heading("Two positions, by how far apart")
    picture.show(view, "offsets")
    if caption := kind.offset_caption(view.checkpoint.config):
        st.caption(caption)
    else:
        width = (picture.table["high"] - picture.table["low"]).max()
        st.caption(
            f"Dot product of two positions by how far apart they are, among the first {n} positions; the band runs from the "
            f"lowest to the highest pair and is at most {width:.3g} wide."
        )
    picture.footer(view, "offsets")


def positions_of(view: View, side: str | None) -> int:
    """How many positions there are to draw: all that the model can have, or where they hang on the end, those of the input."""
    config = view.checkpoint.config
    return config.max_len if config.position_kind.keeps_keys else len(view.original().ids(side))


def _curves(view: View, shown: range, side: str | None) -> None:
    kind = view.checkpoint.config.position_kind
    found = added(view, kind, shown.stop, side)
    assert found is not None
    vectors, lines = found
    heading("Some of its dimensions")
    waves, dark = _ask_waves(vectors), is_dark()
    longest = view.longest_trained(side)
    trained = longest if kind.keeps_keys and longest < shown.stop else None
    table = analysis.curve_table(vectors[shown.start :], waves, shown.start)
    chart = viz.curves(table, dark=dark, trained=trained, height=290)
    st.altair_chart(chart, width="stretch", key="curves")
    shaded = f" Shaded: from position {trained} on, beyond the longest input of its task." if trained else ""
    st.caption(f"{kind.vector_caption}{shaded} Click a dimension in the legend to pick it out, again to take it back.")
    code = [
        "from xformer.analysis import positions as analysis",
        "from xformer.viz import positions as viz",
        *lines[1:],
        f"table = analysis.curve_table(vectors[{shown.start}:], {waves}, {shown.start})",
        f"viz.curves(table, dark={dark}, trained={trained}, height=290)",
    ]
    footer(view, code, table, "curves", changed=False)


def _ask_waves(vectors: Tensor) -> list[int]:
    """The dimensions on show: those of the link, else those chosen, else the fastest sine and cosine and a few slower ones."""
    d_model = vectors.shape[1]
    kept = st.session_state.get("waves")
    if (wanted := asked("waves")) is not None:
        words = [int(word) for word in wanted.split("-") if word.isascii() and word.isdecimal() and len(word) < 6]
        kept = list(dict.fromkeys(word for word in words if word < d_model))[:MOST_WAVES]
        if len(kept) != len(wanted.split("-")):
            st.warning("The link asks for dimensions that this model does not have.", icon=":material/link_off:")
    if not kept or any(dimension >= d_model for dimension in kept):
        kept = sorted(
            {0, min(1, d_model - 1), *(share * d_model // 8 * 2 for share in (1, 2, 3))} & set(range(d_model))
        )
    st.session_state["waves"] = kept
    chosen = st.multiselect(
        "Dimensions",
        list(range(d_model)),
        key="waves",
        persist_state="session",
        max_selections=MOST_WAVES,
        label_visibility="collapsed",
    )
    waves = chosen or [0]
    chose("waves", "-".join(map(str, waves)))
    return waves
