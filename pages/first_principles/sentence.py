"""The sentence of First principles, which its visitor changes where it stands, and its matrices on screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import streamlit as st

from pages.components.matrices import matrices
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.link import asked, chose
from pages.shared.widgets import not_here, seed, typed
from xformer import viz
from xformer.analysis.principles import Sentence
from xformer.errors import InputError
from xformer.widgets.matrices_data import Shown, matrices_data

USUAL = "the cat saw the dog"
MOST_TYPED = 120
"""Characters that are read of what is typed."""
WIDTHS = (2, 4, 8)
SEEDS = range(1, 100)
LARGEST = 4.0
"""How far from zero a number can be set."""
TEXT, OWN, ROW, WIDTH, SEED = (f"principle_{name}" for name in ("text", "own", "row", "d", "seed"))
PROBLEM = "principle_problem"
"""Why the last change was not made."""


def ask_sentence() -> Sentence:
    """The sentence as the link or the last change has it; a change that could not be made leaves it, and says why."""
    st.session_state.setdefault(TEXT, USUAL)
    st.session_state.setdefault(OWN, None)
    seed("d", WIDTHS, 4, key=WIDTH)
    seed("seed", SEEDS, 3, key=SEED)
    if (wanted := asked("text")) is not None:
        _set_text(wanted[:MOST_TYPED])
    sentence = Sentence(st.session_state[TEXT], st.session_state[WIDTH], st.session_state[SEED])
    if (wanted := asked("vector")) is not None:
        word, _, numbers = wanted.rpartition(":")
        st.session_state[OWN] = (word, _numbers(numbers.split(",")))
        if _own(sentence) is None:
            not_here("vector")
    if problem := st.session_state.pop(PROBLEM, ""):
        st.error(escape_markdown(problem), icon=":material/edit:")
    return replace(sentence, own=_own(sentence))


def ask_more(sentence: Sentence) -> None:
    """Widgets for the width and the seed, and for the vector set by hand to be as drawn again."""
    st.caption("Click a word or a number of X to change it.")
    st.segmented_control("Numbers per word", WIDTHS, default=sentence.d, required=True, key=f"{WIDTH}_{sentence.d}",
                         on_change=_set_width, args=(f"{WIDTH}_{sentence.d}",))  # fmt: skip
    st.button("New vectors", icon=":material/casino:", on_click=draw_again, key="principle_redraw", shortcut="V",
              help="Draw another vector for every word.")  # fmt: skip
    if sentence.own is not None:
        st.button("Vector as drawn", on_click=st.session_state.__setitem__, args=(OWN, None), key="principle_own_undo")


def link_of(sentence: Sentence) -> dict[str, str]:
    """What the link keeps of a sentence."""
    own = {}
    if sentence.own is not None:
        word, values = sentence.own
        own = {"vector": f"{word}:{','.join(f'{value:g}' for value in values)}"}
    return {"text": sentence.text, "d": str(sentence.d), "seed": str(sentence.seed)} | own


def followed_row(names: Sequence[str], usual: int = 1) -> int:
    """The row that the headline and the animation follow."""
    seed("row", range(len(names)), min(usual, len(names) - 1), key=ROW)
    chose("row", str(st.session_state[ROW]))
    return st.session_state[ROW]


def draw_again() -> None:
    """The next seed. A callback."""
    st.session_state[SEED] = st.session_state[SEED] % SEEDS[-1] + 1


def change(sent: Mapping[str, Any]) -> None:
    """Make the change that the browser sent: of the row that is followed, of a word, or of a number of a vector."""
    sentence = Sentence(st.session_state[TEXT], st.session_state[WIDTH], st.session_state[SEED])
    words = sentence.words
    match sent:
        case {"row": int(row)}:
            st.session_state[ROW] = row  # `followed_row` checks it
        case {"word": [int(row), str(text)]} if 0 <= row <= len(words):
            _set_text(" ".join([*words[:row], text, *words[row + 1 :]]))
        case {"number": [int(row), int(column), int() | float() as value]} if (
            0 <= row < len(words) and 0 <= column < sentence.d
        ):
            own = _own(sentence)
            values = [round(number, 4) for number in replace(sentence, own=own).x[row].tolist()]
            values[column] = min(max(round(float(value), 4), -LARGEST), LARGEST)
            st.session_state[OWN] = (words[row], tuple(values))


def _set_text(text: str) -> None:
    try:
        st.session_state[TEXT] = " ".join(Sentence(typed(text, MOST_TYPED)).words)
    except InputError as error:
        st.session_state[PROBLEM] = str(error)


def _set_width(key: str) -> None:
    st.session_state[WIDTH] = st.session_state[key]


def _own(sentence: Sentence) -> tuple[str, tuple[float, ...]] | None:
    """The vector set by hand, where it fits the words and the width."""
    own = st.session_state[OWN]
    if own is None or own[0] not in sentence.words or len(own[1]) != sentence.d:
        return None
    return own if all(abs(value) <= LARGEST for value in own[1]) else None


def _numbers(texts: Sequence[str]) -> tuple[float, ...]:
    try:
        return tuple(float(text) for text in texts)
    except ValueError:
        return ()


class NoModel(NamedTuple):
    """Where a picture of this screen stands, in place of a `View`: no model is looked at."""

    model: str = "first-principles"


PLACE = NoModel()


def show_matrices(shown: Sequence[Shown], step: str, row: int, **more: Any) -> list[Call]:
    """Draw matrices in which the numbers of `row` are followed; returns the calls that draw them as figures."""
    matrices(matrices_data(shown, step=step, row=row, **more), key=f"matrices_{step}", changed=change)
    drawn = [one for one in shown if one.drawn]
    return [
        Call(viz.matrix, (one.mixed,), {"which": one.which, "n_columns": one.n_columns, "row": row}) for one in drawn
    ]
