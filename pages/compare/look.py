"""What the visitor looks at on the other screens: the first player is that, and Compare leaves it as it was.

The link's model, input, mask and edits mean here what they mean everywhere; who plays stands in a, b, c and d.
"""

from __future__ import annotations

import streamlit as st

from pages.compare.seat import Seat, read_seat, unplayable
from pages.shared import models
from pages.shared.resources import MASKS
from pages.shared.session import LookedAt, follow_the_link, looked_at
from pages.shared.sidebar import choose_model
from xformer.errors import InputError


def look() -> LookedAt:
    """What is looked at; on a first visit what the link asks for, else the first player's model, else the usual one."""
    follow_the_link({"mask": MASKS})
    state = st.session_state
    known = [*models.shipped(), *models.trained()]
    if state.get("model") not in known and not _look_at_first(st.query_params.get("a", "")):
        choose_model(known[0])
    state.setdefault("mask", MASKS[0])
    found = looked_at()
    assert found is not None
    model = models.resolved(found.model) or found.model
    if not found.input:
        state["input"] = _usual_input(model)
    return LookedAt(model, str(state["input"]), found.mask, found.edits)


def seat_of(looked: LookedAt) -> Seat | None:
    """The player that is what is looked at; None where it cannot play."""
    if unplayable(looked.model) is not None:
        return None
    words = [
        looked.model,
        *([looked.mask] if looked.mask != MASKS[0] else []),
        *([looked.edits] if looked.edits else []),
    ]
    for n in (len(words), 1):  # a change that does not fit the model is left out, as on its own screen
        try:
            return read_seat("~".join(words[:n]))
        except InputError:
            continue
    return None


def in_link(looked: LookedAt) -> dict[str, str]:
    """What is looked at, as every screen writes it into the link."""
    text = looked.input
    task = None if models.usable(looked.model) else models.checkpoint(looked.model).task
    if task is not None:
        try:
            text = task.vocabulary.text(task.vocabulary.read(text))
        except InputError:
            text = _usual_input(looked.model)
    found = {"model": looked.model, "input": text, "mask": looked.mask}
    return found | ({"edits": looked.edits} if looked.edits else {})


def _look_at_first(player: str) -> bool:
    """Have the model of a player in the link be what is looked at; False where there is none."""
    try:
        seat = read_seat(player)
    except InputError:
        return False
    st.session_state["mask"], st.session_state["edits"] = seat.mask, ",".join(seat.changes)
    return choose_model(seat.model)


def _usual_input(model: str) -> str:
    task = None if models.usable(model) else models.checkpoint(model).task
    return "" if task is None else task.rule.default
