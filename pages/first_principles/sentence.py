"""The sentence of First principles: the widgets that change it, one vector set by hand, and its matrices side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import streamlit as st

from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.link import asked, carry
from pages.shared.picture import shown
from pages.shared.widgets import choose, not_here, seed, typed
from xformer import viz
from xformer.analysis.principles import Mixed, Sentence, matrix, word_vectors
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


def ask_row(sentence: Sentence) -> int:
    """Ask for the word whose row is followed; returns its position."""
    names = {position: escape_markdown(name) for position, name in enumerate(sentence.names)}
    return choose("row", names, min(1, len(names) - 1), "Follow the row of", key="principle_row")


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


class NoModel(NamedTuple):
    """Where a picture of this screen stands, in place of a `View`: no model is looked at."""

    model: str = "first-principles"


PLACE = NoModel()


@dataclass(frozen=True, eq=False)
class Picture:
    """One matrix of an attention, with its heading and a word about it."""

    title: str
    mixed: Mixed
    which: str
    about: str = ""
    n_columns: int | None = None

    @property
    def columns(self) -> list[str]:
        """The names of its columns."""
        return list(matrix(self.mixed, which=self.which, n_columns=self.n_columns)["column"].unique())


def show_matrices(pictures: Sequence[Picture], name: str, row: int | None = None) -> list[Call]:
    """Draw matrices of the same rows from left to right, the first with the names of the rows; `row` is framed in all."""
    columns = [picture.columns for picture in pictures]
    widths = [len(names) + (0.5 if index else 2.4) for index, names in enumerate(columns)]
    longest = max(len(column) for names in columns for column in names)
    calls = []
    for index, (place, picture) in enumerate(zip(st.columns(widths, gap="small"), pictures, strict=True)):
        look = {"row": row, "named": not index, "extent": min(28 + 5 * longest, 76)}
        options = {"which": picture.which, "n_columns": picture.n_columns, **look}
        calls.append(Call(viz.matrix, (picture.mixed,), options))
        with place:
            st.markdown(f"**{picture.title}**" + (f"  \n:small[{picture.about}]" if picture.about else ""))
            shown(PLACE, calls[-1], f"{name}_{index}")
    return calls
