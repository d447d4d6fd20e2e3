"""The one word of a sentence whose vector a visitor sets by hand: its sliders, and what the link says of it."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from pages.shared.link import asked
from pages.shared.widgets import not_here
from xformer.analysis.principles import Sentence, word_vectors

LARGEST = 4.0
"""How far from zero a number can be set."""
Vector = tuple[str, tuple[float, ...]]
"""A word and its numbers."""


def ask_own(sentence: Sentence) -> Vector | None:
    """Sliders for one word's vector, behind a button; None while it is as drawn.

    What is in a closed popover is not in the browser, so a slider begins with its default there, not with what the session
    was told: whenever another vector is set from elsewhere, the sliders become others, with other defaults.
    """
    words, d = sentence.words, sentence.d
    own = _kept(words, d)
    turn = st.session_state.setdefault("principle_own_turn", 0)
    base = st.session_state.setdefault("principle_own_base", own)
    with st.popover("Set a vector", icon=":material/tune:", help="Set the numbers of one word by hand."):
        different = list(dict.fromkeys(words))
        first = different.index(own[0]) if own is not None else 0
        word = st.selectbox("Word", different, index=first, key=f"principle_own_word_{turn}_{' '.join(different)}")
        drawn = word_vectors([word], d, sentence.seed)[0].tolist()
        start = base[1] if base is not None and base[0] == word and len(base[1]) == d else drawn
        for index, value in enumerate(start):
            key = f"principle_x{index}_{turn}_{word}_{d}_{sentence.seed}"
            shown = round(min(max(value, -LARGEST), LARGEST), 1)
            now = own[1] if own is not None and own[0] == word else drawn
            st.slider(
                f"x{index + 1}",
                -LARGEST,
                LARGEST,
                shown,
                0.1,
                key=key,
                on_change=_set,
                args=(word, tuple(now), index, key),
            )
        st.button("As drawn", on_click=_unset, disabled=own is None, key="principle_own_undo", width="stretch")
    return own


def _set(word: str, now: tuple[float, ...], index: int, key: str) -> None:
    """The one number that was moved; the others stay as they are, to the last digit that a link can carry."""
    values = [round(number, 4) for number in now]
    values[index] = round(st.session_state[key], 1)
    before = st.session_state["principle_own"]
    st.session_state["principle_own"] = (word, tuple(values))
    if before is not None and before[0] != word:
        _turn()


def _unset() -> None:
    st.session_state["principle_own"] = None
    _turn()


def _turn() -> None:
    st.session_state["principle_own_turn"] += 1
    st.session_state["principle_own_base"] = st.session_state["principle_own"]


def _kept(words: Sequence[str], d: int) -> Vector | None:
    """What was set, where it still fits the words and the width; on the first run what the link asks for."""
    if (wanted := asked("vector")) is not None:
        st.session_state["principle_own"] = _linked(wanted, words, d)
        st.session_state["principle_own_turn"] = st.session_state.get("principle_own_turn", -1) + 1
        st.session_state["principle_own_base"] = st.session_state["principle_own"]
    st.session_state.setdefault("principle_own", None)
    own = st.session_state["principle_own"]
    return own if own is not None and own[0] in words and len(own[1]) == d else None


def _linked(wanted: str, words: Sequence[str], d: int) -> Vector | None:
    word, _, numbers = wanted.rpartition(":")
    try:
        values = tuple(float(number) for number in numbers.split(","))
    except ValueError:
        values = ()
    if word in words and len(values) == d and all(abs(value) <= LARGEST for value in values):
        return word, values
    not_here("vector")
    return None
