"""Home: what is this model, and where does my input go?"""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from pages.compute.call import picture_call
from pages.compute.models import card_of_model
from pages.compute.picture import footer, panel, shown
from pages.controls.widgets import seed
from pages.home.language_model import next_token_panel, recorded_scene
from pages.home.panels import (
    answer_panel,
    class_panel,
    continuation_panel,
    filled_panel,
    how_long_panel,
    mistakes_panel,
    published_panel,
    show_parts,
    training_panel,
)
from pages.home.zoom import zoom_panel
from pages.state.link import set_parameter
from pages.state.session import View, open_sidebar, part
from pages.state.view import prediction_panel
from xformer import viz
from xformer.counting import n_parameters, parameters_by_part
from xformer.formatting import percent
from xformer.training.evaluate import lengths_of
from xformer.viz.diagram import described

LEARNED = 0.5
"""Exact match at or above which a model counts as having learned its task; below it, the page adds a caveat."""


def page() -> None:
    view = open_sidebar("See a transformer think", "Where does my input go?", recorded_scene).view()
    part(zoom_panel, view, f"**{view.input.instruction}**{_has_it_learned(view)}")
    answer = st.container()
    left_out = {"wrong"} if not view.shape.image else set()
    left_out |= {"training", "numbers"} if view.task is None else set()
    left_out |= {"length"} if view.task is None or not lengths_of(view.config, view.own.task) else set()
    more = {name: words for name, (words, _) in MORE.items() if name not in left_out}
    seed("more", list(more), None)  # none at first: their pictures would delay the scene
    words = more.__getitem__
    chosen = st.segmented_control(
        "More about this model", list(more), format_func=words, key="more", persist_state="session"
    )
    set_parameter("more", chosen or "")
    view.share()
    if chosen is not None:
        panel(MORE[chosen][1], view)
    with answer:  # last, because a large model is slow
        panel(ANSWERS.get(view.input.kind, _answer(view)), view)


def _answer(view: View) -> Callable[[View], None]:
    """Return the panel for the predictions of a model whose input kind is not in `ANSWERS`."""
    if view.input.is_open_ended:
        return continuation_panel if view.task is not None else next_token_panel
    return filled_panel if view.original().output in ("masked_token", "pair_next_token") else prediction_panel


def _has_it_learned(view: View) -> str:
    """Return a caveat if the model is not known to have learned its task, else ""."""
    if view.task is None:
        return ""
    card = card_of_model(view.model)
    figures = card.get("figures") or card.get("reported")
    if not isinstance(figures, dict):
        return " That is its task; the model has not been scored on it."
    if view.input.is_open_ended or figures["exact_match"] >= LEARNED:
        return ""
    share = percent(figures["exact_match"], 1)
    return f" That is its task; at this step it gets only {share} of unseen inputs completely right."


def _inside(view: View) -> None:
    """Draw the parts of the model, with their equations, shapes and numbers of parameters."""
    call = picture_call(viz.model_diagram, view.original())
    with st.container(key="scroll_diagram"):
        shown(view, call, "diagram")
    footer(view, "diagram", [call], described(view.original()).frame)


def _parameters(view: View) -> None:
    config = view.config
    st.subheader(f"{n_parameters(config):,} parameters", anchor=False)
    show_parts(parameters_by_part(config))


ANSWERS = {"symbols": answer_panel, "image": class_panel}
"""The panel for the predictions of a model, by the kind of its input; for all others see `_answer`."""
MORE: dict[str, tuple[str, Callable[[View], None]]] = {
    "inside": ("What is inside", _inside),
    "wrong": ("What it gets wrong", mistakes_panel),
    "length": ("How long it can go", how_long_panel),
    "training": ("How it was trained", training_panel),
    "numbers": ("Its learned numbers", _parameters),
    "paper": ("The paper’s sizes", lambda _: published_panel()),
}

page()
