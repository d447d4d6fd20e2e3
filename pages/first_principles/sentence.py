"""The sentence that all first principles are shown on: the boxes in which a visitor changes it, and its link."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from pages.first_principles.own_vector import ask_own
from pages.shared.escape_markdown import escape_markdown
from pages.shared.link import asked, carry
from pages.shared.widgets import seed, typed
from xformer.analysis.principles import Sentence
from xformer.errors import InputError

USUAL = "the cat saw the dog"
MOST_TYPED = 120
"""Characters that are read of what is typed."""
WIDTHS = (2, 4, 8)
SEEDS = range(1, 100)


def ask_sentence() -> Sentence:
    """The box for the sentence, the width, the seed, and one vector to set by hand."""
    _begin()
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom", key="principle_ask"):
        st.text_input("A sentence of 2 to 8 words: change one and see", key="principle_text", persist_state="session",
                      width="stretch")  # fmt: skip
        st.segmented_control(
            "Numbers per word", WIDTHS, required=True, key="principle_d", persist_state="session", width="content"
        )
        st.button("New vectors", icon=":material/casino:", on_click=draw_again, key="principle_redraw",
                  help="Draw another vector for every word.")  # fmt: skip
        text, problem = _text()
        drawn = Sentence(text, int(st.session_state["principle_d"]), st.session_state["principle_seed"])
        sentence = replace(drawn, own=ask_own(drawn))
    if problem:
        st.error(escape_markdown(problem), icon=":material/edit:")
        st.caption("Still showing the last sentence that could be read.")
    return sentence


def link_of(sentence: Sentence) -> dict[str, str]:
    """What the link keeps of a sentence."""
    own = {}
    if sentence.own is not None:
        word, values = sentence.own
        own = {"vector": f"{word}:{','.join(f'{value:g}' for value in values)}"}
    return {"text": sentence.text, "d": str(sentence.d), "seed": str(sentence.seed)} | own


def ask_row(sentence: Sentence, label: str = "Follow the row of") -> int:
    """Which word's row is followed; its position."""
    positions = list(range(len(sentence.words)))
    usual = min(1, len(positions) - 1)
    seed("row", positions, usual, key="principle_row")
    st.segmented_control(
        label,
        positions,
        format_func=lambda position: escape_markdown(sentence.names[position]),
        required=True,
        key="principle_row",
        persist_state="session",
    )
    return int(st.session_state["principle_row"])


def draw_again() -> None:
    """The next seed. A callback."""
    st.session_state["principle_seed"] = st.session_state["principle_seed"] % SEEDS[-1] + 1


def _begin() -> None:
    seed("d", WIDTHS, 4, key="principle_d")
    seed("seed", SEEDS, 3, key="principle_seed")
    if (wanted := asked("text")) is not None:
        st.session_state["principle_text"] = wanted[:MOST_TYPED]
    st.session_state.setdefault("principle_text", USUAL)
    carry("principle_text")


def _text() -> tuple[str, str]:
    """The sentence as it was typed, or the last that could be read, with what is wrong."""
    try:
        words = Sentence(typed(st.session_state["principle_text"], MOST_TYPED)).words
    except InputError as error:
        return st.session_state.get("principle_last", USUAL), str(error)
    st.session_state["principle_last"] = " ".join(words)
    return " ".join(words), ""
