"""How this model does it: the waves or vectors that it adds, the angles by which it turns, or what it takes off its scores."""

from __future__ import annotations

import streamlit as st

from pages.shared.link import asked, chose
from pages.shared.picture import heading, picture, table
from pages.shared.row_window import ask_window, every_nth, window_words
from pages.shared.view import View
from xformer import analysis, viz
from xformer.viz.embeddings import every

MOST_ROWS_DRAWN = 128
"""So many positions are drawn at a time."""
MOST_WAVES = 8


def own_positions_panel(view: View, side: str | None) -> None:
    """Draw what this model adds or turns at each position."""
    config = view.config
    is_added, n = config.position_kind.acts_on == "stream", positions_of(view, side)
    shown = ask_window(n, MOST_ROWS_DRAWN, "positions_from")
    if is_added:
        left, right = st.columns([3, 2], gap="large")
        with left:
            _curves(view, shown, side)
    else:
        right = st.container()
    with right:
        heading("The whole of it" if is_added else "Cosine of the angle")
        picture(view, "matrix", viz.position_values, view.original(), positions=shown, stack=side, height=330)
        width = config.d_model if is_added else (config.d_head + 1) // 2
        what = "dimensions" if is_added else "pairs of dimensions"
        row = (
            "A row is what is added to the token that stands there."
            if is_added
            else "A row is by how much queries and keys are turned there: 1 is not at all, −1 half a turn."
        )
        st.caption(f"{window_words(shown, n)} × {width} {what}{every_nth(every(len(shown), width))}. {row}")


def offsets_panel(view: View, side: str | None) -> None:
    """Draw what two positions make of each other in this model, by how far apart they are."""
    n = min(positions_of(view, side), max(2, view.longest_trained(side)))
    heading("Two positions, by how far apart")
    picture(view, "offsets", viz.position_offsets, view.original(), n=n, stack=side)
    if caption := view.config.position_kind.offset_caption(view.config):
        st.caption(caption)
    else:
        band = table(view, analysis.position_offsets, view.original(), n=n, stack=side)
        st.caption(
            f"Dot product of two positions by how far apart they are, among the first {n} positions; the band runs from the "
            f"lowest to the highest pair and is at most {(band['high'] - band['low']).max():.3g} wide."
        )


def positions_of(view: View, side: str | None) -> int:
    """How many positions there are to draw: all that the model can have, or where they hang on the end, those of the input."""
    config = view.config
    return config.max_len if config.position_kind.keeps_keys else len(view.original().tokens_of(side))


def _curves(view: View, shown: range, side: str | None) -> None:
    kind, longest = view.config.position_kind, view.longest_trained(side)
    heading("Some of its dimensions")
    waves = ask_waves(view.shape.d_model)
    trained = longest if kind.keeps_keys and longest < shown.stop else None
    of = {"dimensions": waves, "positions": shown, "stack": side}
    picture(view, "curves", viz.position_curves, view.original(), trained=trained, **of)
    shaded = f" Shaded: from position {trained} on, beyond the longest input of its task." if trained else ""
    st.caption(f"{kind.vector_caption}{shaded} Click a dimension in the legend to pick it out, again to take it back.")


def ask_waves(d_model: int) -> list[int]:
    """The dimensions on show: those of the link, else those chosen, else the fastest sine and cosine and a few slower ones."""
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
