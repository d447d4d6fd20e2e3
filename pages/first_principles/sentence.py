"""The sentence of First principles, the row that is followed, and the predictions: kept for the visit, and in the link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import streamlit as st

from pages.controls.text import escape_markdown, headline
from pages.controls.widgets import seed, validate_text, warn_unknown
from pages.state.link import keep_widget_value, set_parameter, take_parameter
from xformer.analysis.principles import Sentence
from xformer.errors import InputError

USUAL = "the cat saw the dog"
MAX_TYPED = 120
D_OF_WORDS = (2, 4, 8)
SEEDS = range(1, 100)
LARGEST = 4.0
"""Largest absolute value of a number set by hand."""
TEXT, OWN, ROW, WIDTH, SEED, STEP = (f"principle_{name}" for name in ("text", "own", "row", "d", "seed", "step"))
PREDICT, PREDICTED = "principle_predict", "principle_predicted"
"""The session keys of the switch, and of the steps whose questions have been answered or skipped."""
PROBLEM = "principle_problem"
"""The session key for the reason why the last change was rejected."""


def ask_sentence() -> Sentence:
    """Return the sentence of the link or of the last change. A rejected change leaves it as it was and shows an error."""
    st.session_state.setdefault(TEXT, USUAL)
    st.session_state.setdefault(OWN, None)
    seed("d", D_OF_WORDS, 4, key=WIDTH)
    seed("seed", SEEDS, 3, key=SEED)
    if (wanted := take_parameter("text")) is not None:
        _set_text(wanted[:MAX_TYPED])
    if (wanted := take_parameter("vector")) is not None:
        word, _, numbers = wanted.rpartition(":")
        try:
            st.session_state[OWN] = (word, tuple(float(number) for number in numbers.split(",")))
        except ValueError:
            st.session_state[OWN] = None
        if _current().own is None:
            warn_unknown("vector")
    if problem := st.session_state.pop(PROBLEM, ""):
        st.error(escape_markdown(problem), icon=":material/edit:")
    return _current()


def _current() -> Sentence:
    """Return the sentence of the session, with the vector set by hand where it fits the words and the width."""
    sentence = Sentence(st.session_state[TEXT], st.session_state[WIDTH], st.session_state[SEED])
    own = st.session_state[OWN]
    if own is None or own[0] not in sentence.words or len(own[1]) != sentence.d:
        return sentence
    return replace(sentence, own=own) if all(abs(value) <= LARGEST for value in own[1]) else sentence


def ask_more(sentence: Sentence) -> None:
    """Draw widgets for the width and the seed, and for resetting a vector set by hand."""
    st.caption("Click a word or a number of X to change it.")
    st.segmented_control("Numbers per word", D_OF_WORDS, required=True, key=WIDTH, persist_state="session")
    st.button("New vectors", icon=":material/casino:", on_click=_draw_again, key="principle_redraw", shortcut="V")
    if sentence.own is not None:
        st.button("Reset vector", on_click=st.session_state.__setitem__, args=(OWN, None), key="principle_own_undo")


def link_of(sentence: Sentence) -> dict[str, str]:
    """Return what the link keeps of a sentence."""
    own = {}
    if sentence.own is not None:
        word, values = sentence.own
        own = {"vector": f"{word}:{','.join(f'{value:g}' for value in values)}"}
    return {"text": sentence.text, "d": str(sentence.d), "seed": str(sentence.seed)} | own


def followed_row(names: Sequence[str], usual: int = 1) -> int:
    """Return the row that the headline and the animation follow."""
    seed("row", range(len(names)), min(usual, len(names) - 1), key=ROW)
    set_parameter("row", str(st.session_state[ROW]))
    return st.session_state[ROW]


def _draw_again() -> None:
    """Select the next seed. A callback."""
    st.session_state[SEED] = st.session_state[SEED] % SEEDS[-1] + 1


def change(sent: Mapping[str, Any]) -> None:
    """Apply what the browser sent: the end of the questions, the followed row, a changed word, or a changed number."""
    sentence = _current()
    words = sentence.words
    match sent:
        case {"predicted": str(step)}:
            st.session_state[PREDICTED] |= {step} & {st.session_state[STEP]}
        case {"row": int(row)}:
            st.session_state[ROW] = row  # `followed_row` checks it
        case {"word": [int(row), str(text)]} if 0 <= row <= len(words):
            _set_text(" ".join([*words[:row], text, *words[row + 1 :]]))
        case {"number": [int(row), int(at), int() | float() as value]} if (
            0 <= row < len(words) and 0 <= at < sentence.d
        ):
            values = [round(number, 4) for number in sentence.x[row].tolist()]
            values[at] = min(max(round(float(value), 4), -LARGEST), LARGEST)
            st.session_state[OWN] = (words[row], tuple(values))


def _set_text(text: str) -> None:
    try:
        st.session_state[TEXT] = " ".join(Sentence(validate_text(text, MAX_TYPED)).words)
    except InputError as error:
        st.session_state[PROBLEM] = str(error)


def ask_predict() -> None:
    """Draw the switch that asks for a number of each matrix before it is shown. Links from Learn turn it on."""
    if (wanted := take_parameter("predict")) is not None:
        st.session_state[PREDICT] = wanted == "1"
        if wanted not in ("0", "1"):
            warn_unknown("prediction mode")
    st.session_state.setdefault(PREDICT, False)
    st.session_state.setdefault(PREDICTED, set())
    keep_widget_value(PREDICT)
    if st.toggle("Predict before each step", key=PREDICT, persist_state="session"):
        set_parameter("predict", "1")
    else:
        st.session_state[PREDICTED] = set()


QUESTIONS = {
    "scale": (
        "q and k each have 64 independent numbers of mean 0 and variance 1. What is the standard deviation of q · k?",
        ("1", "8", "64"),
        "8",
        "64 products of variance 1 add up to a variance of 64, and √64 = 8. So the scores are divided by √64.",
    ),
    "code": (
        "What does the code of a causal attention do between the product of q and k and the softmax?",
        ("It masks the scores, then norms them", "It scales the scores, then masks them", "It adds the values"),
        "It scales the scores, then masks them",
        "The scores are divided by √d_head, and those of later tokens become −∞, so that the softmax gives them 0.",
    ),
    "parts": (
        "Without which component can a transformer without a mask not tell the order of its words?",
        ("The norm", "The feed-forward network", "The positional encoding"),
        "The positional encoding",
        "Attention is a weighted sum, and norms and feed-forward networks compute each word alone: none depends on the order.",
    ),
}
"""The questions of the steps without matrices: question, options, the right one, and why."""


def is_question_open(step: str) -> bool:
    """Draw the question of a step without matrices, if the visitor predicts; return whether it has no answer yet."""
    if not st.session_state[PREDICT] or step not in QUESTIONS:
        return False
    question, options, right, why = QUESTIONS[step]
    st.markdown(f"**{question}**")
    key = f"principle_question_{step}"
    picked = st.radio(question, options, index=None, horizontal=True, key=key, label_visibility="collapsed")
    if picked is None:
        return True
    if picked == right:
        st.success(why, icon=":material/check:")
    else:
        st.info(f"It is “{right}”. {why}", icon=":material/lightbulb:")
    return False


def tell(finding: str) -> None:
    """Draw the finding of a step as its headline; nothing while the visitor predicts the numbers that it tells."""
    is_open = st.session_state[PREDICT] and st.session_state[STEP] not in st.session_state[PREDICTED]
    headline("" if is_open else finding)
