"""The sentence that all first principles are shown on: its words, their vectors, and whatever of them a visitor changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st
import torch
from torch import Tensor

from pages.shared.ask import not_here, seed
from pages.shared.link import asked, carry
from pages.shared.literal import literal
from pages.shared.typed import typed
from xformer.analysis import principles
from xformer.errors import InputError

USUAL = "the cat saw the dog"
WIDTHS = (2, 4, 8)
SEEDS = range(1, 100)


@dataclass(frozen=True)
class Sentence:
    """A few words with vectors of d numbers, drawn from a seed; `own` is the one word whose vector was set by hand."""

    words: tuple[str, ...]
    d: int
    seed: int
    own: tuple[str, tuple[float, ...]] | None = None

    @property
    def x(self) -> Tensor:
        """[pos, d]"""
        drawn = principles.word_vectors(self.words, self.d, self.seed)
        if self.own is not None:
            drawn[[word == self.own[0] for word in self.words]] = torch.tensor(self.own[1])
        return drawn

    @property
    def names(self) -> list[str]:
        """The words with their positions."""
        return principles.numbered(self.words)

    def dimensions(self, letter: str = "x") -> list[str]:
        """The names of the columns of a matrix of vectors."""
        return [f"{letter}{index}" for index in range(1, self.d + 1)]

    def code(self) -> list[str]:
        """The lines that make `words` and `x` in a notebook."""
        lines = [
            "import torch",
            "from xformer.analysis import principles",
            "from xformer.viz.principles import *",
            f"words = {list(self.words)!r}",
            f"x = principles.word_vectors(words, {self.d}, {self.seed})",
        ]
        if self.own is not None:
            lines.append(f"x[[word == {self.own[0]!r} for word in words]] = torch.tensor({list(self.own[1])})")
        return lines

    def link(self) -> dict[str, str]:
        own = {} if self.own is None else {"vector": f"{self.own[0]}:{','.join(f'{v:g}' for v in self.own[1])}"}
        return {"text": " ".join(self.words), "d": str(self.d), "seed": str(self.seed)} | own


def ask_sentence() -> Sentence:
    """The box for the sentence, the width, the seed, and one vector to set by hand."""
    _begin()
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom", key="principle_ask"):
        st.text_input("A sentence of 2 to 8 words: change one and see", key="principle_text", persist_state="session",
                      width="stretch")  # fmt: skip
        st.segmented_control(
            "Numbers per word", WIDTHS, required=True, key="principle_d", persist_state="session", width="content"
        )
        d = int(st.session_state["principle_d"])
        st.button("New vectors", icon=":material/casino:", on_click=_redraw, key="principle_redraw",
                  help="Draw another vector for every word.")  # fmt: skip
        words, problem = _words()
        own = _ask_own(words, d)
    if problem:
        st.error(literal(problem), icon=":material/edit:")
        st.caption("Still showing the last sentence that could be read.")
    return Sentence(words, d, st.session_state["principle_seed"], own)


def ask_row(sentence: Sentence, label: str = "Follow the row of") -> int:
    """Which word's row is followed; its position."""
    positions = list(range(len(sentence.words)))
    usual = min(1, len(positions) - 1)
    seed("row", positions, usual, key="principle_row")
    st.segmented_control(
        label,
        positions,
        format_func=lambda position: literal(sentence.names[position]),
        required=True,
        key="principle_row",
        persist_state="session",
    )
    return int(st.session_state["principle_row"])


def _begin() -> None:
    seed("d", WIDTHS, 4, key="principle_d")
    seed("seed", SEEDS, 3, key="principle_seed")
    if (wanted := asked("text")) is not None:
        st.session_state["principle_text"] = wanted[:120]
    st.session_state.setdefault("principle_text", USUAL)
    carry("principle_text")


def _redraw() -> None:
    st.session_state["principle_seed"] = st.session_state["principle_seed"] % SEEDS[-1] + 1


def _words() -> tuple[tuple[str, ...], str]:
    try:
        words = tuple(principles.words_of(typed(st.session_state["principle_text"], 120)))
    except InputError as error:
        return st.session_state.get("principle_last", tuple(USUAL.split())), str(error)
    st.session_state["principle_last"] = words
    return words, ""


def _ask_own(words: Sequence[str], d: int) -> tuple[str, tuple[float, ...]] | None:
    """Sliders for one word's vector, behind a button; None while it is as drawn.

    What is in a closed popover is not in the browser, so a slider begins with its default there, not with what the session
    was told: whenever another vector is set from elsewhere, the sliders become others, with other defaults.
    """
    own = _kept(words, d)
    turn = st.session_state.setdefault("principle_own_turn", 0)
    base = st.session_state.setdefault("principle_own_base", own)
    with st.popover("Set a vector", icon=":material/tune:", help="Set the numbers of one word by hand."):
        different = list(dict.fromkeys(words))
        first = different.index(own[0]) if own is not None else 0
        word = st.selectbox("Word", different, index=first, key=f"principle_own_word_{turn}_{' '.join(different)}")
        drawn_with = st.session_state["principle_seed"]
        drawn = principles.word_vectors([word], d, drawn_with)[0].tolist()
        start = base[1] if base is not None and base[0] == word and len(base[1]) == d else drawn
        for index, value in enumerate(start):
            key = f"principle_x{index}_{turn}_{word}_{d}_{drawn_with}"
            shown = round(min(max(value, -4.0), 4.0), 1)
            now = own[1] if own is not None and own[0] == word else drawn
            st.slider(
                f"x{index + 1}", -4.0, 4.0, shown, 0.1, key=key, on_change=_set, args=(word, tuple(now), index, key)
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


def _kept(words: Sequence[str], d: int) -> tuple[str, tuple[float, ...]] | None:
    """What was set, where it still fits the words and the width; on the first run what the link asks for."""
    if (wanted := asked("vector")) is not None:
        st.session_state["principle_own"] = _linked(wanted, words, d)
        st.session_state["principle_own_turn"] = st.session_state.get("principle_own_turn", -1) + 1
        st.session_state["principle_own_base"] = st.session_state["principle_own"]
    st.session_state.setdefault("principle_own", None)
    own = st.session_state["principle_own"]
    return own if own is not None and own[0] in words and len(own[1]) == d else None


def _linked(wanted: str, words: Sequence[str], d: int) -> tuple[str, tuple[float, ...]] | None:
    word, _, numbers = wanted.rpartition(":")
    try:
        values = tuple(float(number) for number in numbers.split(","))
    except ValueError:
        values = ()
    if word in words and len(values) == d and all(abs(value) <= 4 for value in values):
        return word, values
    not_here("vector")
    return None
