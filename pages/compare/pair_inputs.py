"""The two inputs of a minimal pair: typed, shipped, or the second made from the first by changing one token that matters."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pages.shared.byte_cache import shared
from pages.shared.input_kinds.kind import MOST_TYPED
from pages.shared.link import asked, carry
from pages.shared.typed import typed
from xformer.adapters import ModelAdapter, TaskModel
from xformer.analysis.minimal_pairs import one_token_changed, pairs
from xformer.errors import InputError

FIRST, SECOND = "input", "pair_other"
"""The boxes; the first is the input of the other screens."""
_STATE = "pair_inputs"
DRAWN = 20
"""So many images are drawn to find one that shows something else."""


@dataclass
class _Proposed:
    """What this visit was proposed last: the second input follows the first until somebody types one."""

    model: str = ""
    second: str = ""


def ask_inputs(subject: ModelAdapter, model: str, beside: DeltaGenerator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The two sources. Raises `InputError` with one sentence where one of them cannot be read."""
    _begin(subject, model)
    one, other = st.columns(2, gap="small")
    look: dict[str, Any] = {"persist_state": "session", "label_visibility": "collapsed", "help": subject.input.typed}
    one.text_input("First input", key=FIRST, icon=":material/looks_one:", **look)
    other.text_input("Second input", key=SECOND, icon=":material/looks_two:", **look)
    with beside:
        st.button("", icon=":material/swap_horiz:", key="pair_swap", help="Swap the two.", on_click=_swap)
        _examples(subject, model)
        if isinstance(subject, TaskModel) and not subject.input.missing and not subject.shape.image:
            st.button("Random", key="pair_random", on_click=_draw, args=(subject,))
    return _read(subject, FIRST, "first"), _read(subject, SECOND, "second")


def _begin(subject: ModelAdapter, model: str) -> None:
    """What stands in the boxes: what the link asks for, what was typed, or a second input that belongs to the first."""
    visit, wanted, proposed = st.session_state, asked("other"), _proposed()
    text = str(visit.get(FIRST, ""))
    if not text or (model != proposed.model and not _fits(subject, text)):
        visit[FIRST] = text = subject.input.default
    if wanted is not None:
        visit[SECOND] = wanted
    elif visit.get(SECOND, "") == proposed.second or (
        model != proposed.model and not _fits(subject, str(visit[SECOND]))
    ):
        visit[SECOND] = proposed.second = propose(subject, model, text)
    proposed.model = model
    carry(FIRST)
    carry(SECOND)


def propose(subject: ModelAdapter, model: str, text: str) -> str:
    """The second input to a first one: the same where no change is known to matter, or it cannot be read."""

    def make() -> str:
        try:
            other = one_token_changed(subject, subject.input.read(text))
        except InputError:
            return text
        if other is None and subject.shape.image:
            return _another_image(subject, text)
        return text if other is None else subject.input.text(other)

    return shared.get(("second input", model, text), make)


def _another_image(subject: ModelAdapter, text: str) -> str:
    """One that shows something else: no single patch makes another digit."""
    answer = subject.frame(subject.input.read(text)).answer
    drawn = (subject.input.random(seed) for seed in range(DRAWN if not subject.input.missing else 0))
    return next((other for other in drawn if subject.frame(subject.input.read(other)).answer != answer), text)


def _examples(subject: ModelAdapter, model: str) -> None:
    drawer = st.popover("Pairs", key="pair_examples", on_change="rerun")
    if not drawer.open:  # each takes a moment to be made
        return
    with drawer:
        found = shared.get(("pairs", model), lambda: pairs(subject))
        if not found:
            st.caption("No pairs are known for this model. Type two inputs that differ in a token.")
        for purpose, texts in found.items():
            st.button(
                purpose, on_click=_type, args=texts, width="stretch", type="tertiary", key=f"pair_example_{purpose}"
            )


def _read(subject: ModelAdapter, key: str, which: str) -> tuple[int, ...]:
    try:
        return subject.input.read(typed(st.session_state[key], MOST_TYPED))
    except InputError as error:
        raise InputError(f"The {which} input: {error}") from None


def _fits(subject: ModelAdapter, text: str) -> bool:
    try:
        subject.frame(subject.input.read(text))
    except InputError:
        return False
    return True


def _proposed() -> _Proposed:
    return st.session_state.setdefault(_STATE, _Proposed())


def _type(one: str, other: str) -> None:
    st.session_state[FIRST], st.session_state[SECOND] = one, other


def _swap() -> None:
    _type(str(st.session_state[SECOND]), str(st.session_state[FIRST]))


def _draw(subject: ModelAdapter) -> None:
    text = subject.input.random(random.getrandbits(32))
    _type(text, _proposed().second)  # a second one is made for it
