"""The picture of all heads; of a long input, a click on a head brings that head before the rest of the page.

Each head of a short input is in the browser already. Of a long one the browser has small pictures, and asks for the exact
weights of the head that is enlarged; that part runs alone, so that nobody waits for the panels below to see a head.
"""

from __future__ import annotations

import time

import streamlit as st

from pages.components.attention_view import Selection, attention_choice, attention_view
from xformer.reading import Reading
from xformer.viz.packing import AnyLayer, header_of, pack, pattern_layers

KEY = "attention"
SENT_AFTER = 0.04
"""Seconds within which Streamlit sends what is drawn; what it has not sent when a page runs again, it throws away."""
_SENT = "attention_head_sent"
"""The head whose exact weights the browser has."""
_WHOLE = "attention_page_runs"
"""Set while the whole page runs, and taken away by the part; the part finds nothing where it runs alone."""


def draw_heads(original: Reading, changed: Reading | None) -> tuple[Selection, int]:
    """Draw the heads of a run, with those of the changed run beside them. Returns what is chosen, and how many queries and keys
    of the enlarged head became one cell."""
    layers, other = _layers(original, changed)
    chosen = attention_choice(KEY, layers)
    packed = pack(layers, other, selected=(chosen.layer, chosen.head))
    header = header_of(packed)
    if all(layer["pool"] == [1, 1] for layer in header["layers"]):
        return attention_view(packed, key=KEY), 1
    st.session_state[_WHOLE] = (chosen.layer, chosen.head)
    # Streamlit keeps what a fragment is given for as long as the visit lasts: the readings hold no activations.
    return st.fragment(_draw)(packed, original, changed), max(header["exactPool"])


def _layers(original: Reading, changed: Reading | None) -> tuple[list[AnyLayer], list[AnyLayer] | None]:
    return pattern_layers(original), None if changed is None else pattern_layers(changed)


def _draw(packed: bytes, original: Reading, changed: Reading | None) -> Selection:
    drawn = st.session_state.pop(_WHOLE, None)
    if drawn is not None:
        st.session_state[_SENT] = drawn
        return attention_view(packed, key=KEY)
    layers, other = _layers(original, changed)
    chosen = attention_choice(KEY, layers)
    at = (chosen.layer, chosen.head)
    if at != st.session_state.get(_SENT):
        attention_view(pack(layers, other, selected=at), key=KEY)
        time.sleep(SENT_AFTER)
    st.rerun()  # for everything else that is said of the head
    return chosen
