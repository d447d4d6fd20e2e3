"""What the visitor looks at on the other screens: the first player is that, and Compare leaves it as it was.

The link's model, input, mask and edits mean here what they mean everywhere; who plays stands in a, b, c and d.
"""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from pages.compare.choice import Choice, read_choice, why_not_playable
from pages.shared import models, run_weights
from pages.shared.model_choice import choose_model
from pages.shared.resources import MASKS
from pages.shared.session import LookedAt, follow_the_link, looked_at
from xformer.errors import InputError

EARLIER_STEP = 200
"""Of a run its step nearest to this is a contrast to a later one."""


def look() -> LookedAt:
    """What is looked at; on a first visit what the link asks for, else the first player's model, else the usual one."""
    follow_the_link({"mask": MASKS})
    visit = st.session_state
    known = [*models.shipped(), *models.foreign_titles(), *run_weights.trained()]
    if visit.get("model") not in known and not _look_at_first(st.query_params.get("a", "")):
        choose_model(known[0])
    visit.setdefault("mask", MASKS[0])
    found = looked_at()
    assert found is not None
    model = models.resolved(found.model) or found.model
    if not found.input:
        visit["input"] = _usual_input(model)
    return LookedAt(model, str(visit["input"]), found.mask, found.edits)


def in_link(looked: LookedAt) -> dict[str, str]:
    """What is looked at, as every screen writes it into the link."""
    text = looked.input
    if not models.usable(looked.model):
        of = models.subject(looked.model).input
        try:
            text = of.text(of.read(text))
        except InputError:
            text = _usual_input(looked.model)
    return replace(looked, input=text).link


def first_choice(looked: LookedAt) -> Choice | None:
    """The player that is what is looked at; None where it cannot play."""
    if why_not_playable(looked.model) is not None:
        return None
    words = [looked.model, *([looked.mask] if looked.mask != MASKS[0] else []), *filter(None, [looked.edits])]
    for n in (len(words), 1):  # a change that does not fit the model is left out, as on its own screen
        try:
            return read_choice("~".join(words[:n]))
        except InputError:
            continue
    return None


def beside(choice: Choice) -> Choice:
    """A contrast to a player: the same without its changes; of a run an earlier step; else under another mask."""
    own = Choice(choice.model)
    if choice != own:
        return own
    if (of_run := models.run_and_step(choice.model)) is not None:
        earlier = [step for step in run_weights.steps_of(of_run[0]) if step < (of_run[1] or 0)]
        if earlier:
            return Choice(f"{of_run[0]}@{min(earlier, key=lambda step: abs(step - EARLIER_STEP))}")
    return replace(own, mask="full" if own.shape.is_causal else "causal")


def usual_choices() -> list[Choice]:
    """Who plays where nothing that is looked at can: the first model that can, and a contrast to it."""
    every = [models.resolved(name) or name for name in (*models.shipped(), *run_weights.trained())]
    own = Choice(next(name for name in every if why_not_playable(name) is None))
    return [own, beside(own)]


def _look_at_first(player: str) -> bool:
    """Have the model of a player in the link be what is looked at; False where there is none."""
    try:
        choice = read_choice(player)
    except InputError:
        return False
    st.session_state["mask"], st.session_state["edits"] = choice.mask, ",".join(choice.changes)
    return choose_model(choice.model)


def _usual_input(model: str) -> str:
    return "" if models.usable(model) else models.subject(model).input.default
