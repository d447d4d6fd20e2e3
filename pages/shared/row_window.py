"""Which positions are shown where there are more than fit on a screen: a slider, and the words that say so."""

from __future__ import annotations

import streamlit as st

from pages.shared.link import chose
from pages.shared.widgets import seed


def ask_window(n: int, most: int, key: str) -> range:
    """The positions on show: all `n` of them, or `most` of them from the one that a slider is set to."""
    if n <= most:
        return range(n)
    seed("from", range(n - most + 1), 0, key=key, called="first position")
    first = st.slider(f"First of the {most} positions shown", 0, n - most, key=key, persist_state="session", width=420)
    chose("from", str(first))
    return range(first, first + most)


def window_words(shown: range, n: int) -> str:
    """ "Positions 32 to 63 of 510", or "All 6 positions"."""
    if len(shown) < n:
        return f"Positions {shown.start} to {shown.stop - 1} of {n}"
    return f"All {n} positions" if n > 1 else "The one position"


def every_nth(step: int) -> str:
    """What a caption says where only some columns are drawn; nothing where all are."""
    return "" if step == 1 else f", of which every {({2: '2nd', 3: '3rd'}).get(step, f'{step}th')} is drawn"
