"""What every screen begins with: the shared sidebar, and its state, which lives in the link.

    view = open_page("Attention", "Who looks at whom, in every layer and head?")

A copied link opens the same model, input and mask for someone else. A link that asks for something that is not here says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from pages.shared import models, resources
from pages.shared.ask import not_here
from pages.shared.link import asked
from pages.shared.literal import literal
from pages.shared.sidebar import ask_input, ask_mask, ask_model, choose_model
from pages.shared.view import View
from xformer import ModelConfig
from xformer.errors import EditError, InputError
from xformer.interventions import Intervention, join, parse

LINKED = ("input", "mask", "edits")
"""What the sidebar keeps in the link, besides the model."""


def open_page(title: str, question: str) -> View:
    """Draw the heading and the sidebar; stop the page with one plain sentence where there is nothing to show."""
    st.title(f"{title} :small[:gray[{question}]]", anchor=False)
    if not models.shipped() and not models.trained():
        st.info("There is no model here yet. Train the shipped ones with `make checkpoints`, then reload this page.")
        st.stop()
    follow_the_link({"mask": resources.MASKS})
    with st.sidebar:
        model = ask_model()
        if problem := models.usable(model):
            st.error(literal(problem))
            st.stop()
        checkpoint = models.checkpoint(model)
        task = checkpoint.task
        assert task is not None
        asked_at, mask_at = st.container(), st.container()
        if task.rule.is_image:  # which takes so much room that the mask would be out of sight below it
            asked_at, mask_at = mask_at, asked_at
        source, too_much = (), ""
        with asked_at:
            try:
                source = ask_input(task, checkpoint.config.max_len, model)
            except InputError as error:  # not even the usual input of a model with very many heads
                too_much = str(error)
        with mask_at:
            mask = ask_mask()
    if too_much:
        st.error(literal(too_much))
        st.stop()
    view = View(model, source, mask, checkpoint, task, _interventions(checkpoint.config))
    _show_chips(view)
    return view


@dataclass(frozen=True)
class LookedAt:
    """What the visitor looks at, on a screen that does not show it too."""

    model: str
    """As a link names it: a shipped model, or a run with its step."""
    input: str
    mask: str
    edits: str


def looked_at() -> LookedAt | None:
    """What the last screen with a model showed, for a screen that begins with it; None before there was one."""
    state = st.session_state
    if "model" not in state or "mask" not in state:
        return None
    model = str(state["model"])
    step = f"@{state['model_step']}" if state.get("model_step_of") == model and "model_step" in state else ""
    return LookedAt(model + step, str(state.get("input", "")), str(state["mask"]), str(state.get("edits", "")))


def switched_on() -> list[str]:
    """The texts of the interventions that are asked for, whether or not they fit the model."""
    return [word for word in st.session_state.get("edits", "").split(",") if word]


def toggle_intervention(*texts: str) -> None:
    """Add interventions, or take them back where they are there already. A callback, or followed by `st.rerun()`."""
    there = switched_on()
    for text in texts:
        if text in there:
            there.remove(text)
        else:
            there.append(text)
    st.session_state["edits"] = ",".join(there)


def _interventions(config: ModelConfig) -> tuple[Intervention, ...]:
    """The interventions that are on; those that do not fit this model are dropped aloud."""
    kept: list[str] = []
    for word in switched_on():
        try:
            parse(",".join([*kept, word]), config)
        except EditError as error:
            st.warning(f"A change was left out. {literal(str(error))}", icon=":material/link_off:")
        else:
            kept.append(word)
    found = parse(",".join(kept), config)
    st.session_state["edits"] = join(found)
    return found


def _clear_changes() -> None:
    st.session_state["edits"] = ""
    st.session_state["mask"] = resources.MASKS[0]


def _use_own_mask() -> None:
    st.session_state["mask"] = resources.MASKS[0]


def _show_chips(view: View) -> None:
    """What is switched on, where nobody can forget it; a click takes it back."""
    # The container is there even when it is empty: were it to appear, everything below would be built anew in the browser.
    with st.container(horizontal=True, gap="small", vertical_alignment="center", key="chips"):
        if not view.is_changed:
            return
        st.markdown("**Changed:**", width="content")
        if view.mask != resources.MASKS[0]:
            st.button(f"{view.mask} mask", icon=":material/close:", on_click=_use_own_mask, key="chip_mask")
        for intervention in view.interventions:
            st.button(
                view.name_of(intervention),
                icon=":material/close:",
                on_click=toggle_intervention,
                args=(intervention.text,),
                key=f"chip_{intervention.text}",
            )
        if len(view.interventions) + (view.mask != resources.MASKS[0]) > 1:
            st.button("Undo all", on_click=_clear_changes, type="tertiary", key="chip_all")


def follow_the_link(options: dict[str, tuple[str, ...]]) -> None:
    """Take over what the link asks for; say what it asks for in vain. A link that says all else and no edits has none."""
    if (model := asked("model")) is not None:
        st.session_state["edits"] = ""
        if not choose_model(model):
            if why := models.why_not(model):
                st.warning(f"{literal(why)} The usual model is shown.", icon=":material/link_off:")
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
