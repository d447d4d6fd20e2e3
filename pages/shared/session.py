"""What every screen begins with: the shared sidebar, and its state, which lives in the link.

    view = open_page("Attention", "Who looks at whom, in every layer and head?")

A copied link opens the same model, input and mask for someone else. A link that asks for something that is not here says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from pages.shared import models, resources, run_weights
from pages.shared.escape_markdown import escape_markdown
from pages.shared.input_kinds import kind_of
from pages.shared.link import asked
from pages.shared.link_widgets import not_here
from pages.shared.model_choice import ask_model, choose_model
from pages.shared.open_model import wait_until_open
from pages.shared.opened import Opened, said_in_sidebar
from pages.shared.view import View, ask_mask
from xformer.adapters.huggingface import HuggingFaceModel
from xformer.errors import InputError

LINKED = ("input", "mask", "edits")
"""What the sidebar keeps in the link, besides the model."""


def open_page(title: str, question: str) -> View:
    """Draw the heading and the sidebar; stop the page with one plain sentence where there is nothing to show."""
    return open_sidebar(title, question).view()


def open_sidebar(title: str, question: str) -> Opened:
    """As `open_page`, before the mask: for a screen that runs in part when only the changes are others."""
    st.title(f"{title} :small[:gray[{question}]]", anchor=False)
    if not (models.shipped() or models.foreign_titles() or run_weights.trained()):
        st.info("There is no model here yet. Train the shipped ones with `make checkpoints`, then reload this page.")
        st.stop()
    follow_the_link({"mask": resources.MASKS})
    with st.sidebar:
        model = ask_model()
    if problem := wait_until_open(model):  # the sidebar stands already, so that another can be chosen
        st.error(escape_markdown(problem))
        st.stop()
    with st.sidebar:
        if problem := models.usable(model):
            st.error(escape_markdown(problem))
            st.stop()
        subject = models.subject(model)
        if isinstance(subject, HuggingFaceModel):
            st.caption(f":material/verified: {str(subject.verification)[0].upper()}{str(subject.verification)[1:]}")
        asked_at, mask_at = st.container(), st.container()
        if kind_of(subject).is_tall:
            asked_at, mask_at = mask_at, asked_at
        source, too_much = (), ""
        with asked_at:
            try:
                source = kind_of(subject).ask(subject, model)
            except InputError as error:  # not even the usual input of a model with very many heads
                too_much = str(error)
    if too_much:
        with mask_at:
            ask_mask(subject.shape)
        st.error(escape_markdown(too_much))
        st.stop()
    return Opened(model, source, mask_at, said_in_sidebar())


@dataclass(frozen=True)
class LookedAt:
    """What the visitor looks at, on a screen that does not show it too."""

    model: str
    """As a link names it: a shipped model, or a run with its step."""
    input: str
    mask: str
    edits: str

    @property
    def link(self) -> dict[str, str]:
        """What the link of every screen says of it."""
        return {"model": self.model, "input": self.input, "mask": self.mask} | (
            {"edits": self.edits} if self.edits else {}
        )


def looked_at() -> LookedAt | None:
    """What the last screen with a model showed, for a screen that begins with it; None before there was one."""
    state = st.session_state
    if "model" not in state or "mask" not in state:
        return None
    model = str(state["model"])
    step = f"@{state['model_step']}" if state.get("model_step_of") == model and "model_step" in state else ""
    return LookedAt(model + step, str(state.get("input", "")), str(state["mask"]), str(state.get("edits", "")))


def follow_the_link(options: dict[str, tuple[str, ...]]) -> None:
    """Take over what the link asks for; say what it asks for in vain. A link that says all else and no edits has none."""
    if (model := asked("model")) is not None:
        st.session_state["edits"] = ""
        if not choose_model(model):
            if why := models.why_not(model):
                st.warning(f"{escape_markdown(why)} The usual model is shown.", icon=":material/link_off:")
            else:
                not_here("model", models.shipped())
    for name in LINKED:
        wanted = asked(name)
        if wanted is None or (
            name == "input" and wanted == st.session_state.get("window")
        ):  # more was typed than is shown
            continue
        if wanted in options.get(name, (wanted,)):
            st.session_state[name] = wanted
        else:
            not_here(name, options[name])
