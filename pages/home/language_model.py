"""Home with a language model: the recorded run while it is being loaded, and the next token at a temperature."""

from __future__ import annotations

from pathlib import Path

import streamlit as st
import torch
from streamlit.delta_generator import DeltaGenerator

from pages.components.elements import scene
from pages.compute import models
from pages.compute.cached_runs import MASKS
from pages.compute.call import picture_call
from pages.compute.picture import footer, shown, toolbar
from pages.controls import embed
from pages.home.panels import sample_panel
from pages.state.session import choose_model, part
from pages.state.view import View
from xformer import viz
from xformer.decoding import Sampling
from xformer.model_files.models_here import LANGUAGE_MODEL, PREFIX

RECORDED = Path(__file__).with_name("recorded.scene")
"""The scene of the language model's default input, written by `make recorded`."""
HOTTEST = 2.0
"""The highest temperature that can be chosen."""


def recorded_scene(model: str) -> DeltaGenerator | None:
    """Draw the recorded run in place of a model that is being loaded; return where to write the progress.

    Returns None if there is no recording of this model, this input, this mask and these changes.
    """
    state = st.session_state
    is_default = not state.get("input") and not state.get("edits") and state.get("mask", MASKS[0]) == MASKS[0]
    if model != f"{PREFIX}{LANGUAGE_MODEL}" or not is_default or not RECORDED.exists():
        return None
    st.container(key="chips")
    with st.container():  # in place of the one that Streamlit draws around the fragment with the live scene
        with toolbar():
            model_switch(model)
            words = st.container(width="content").empty()
        with embed.picture():
            scene(RECORDED.read_bytes(), key="scene")
    return words


def model_switch(model: str) -> None:
    """Draw the choice between the language model and the default model of a task, if both are here."""
    language = f"{PREFIX}{LANGUAGE_MODEL}"
    options = {language: "A language model", next(iter(models.shipped()), ""): "Reversing numbers"}
    if language not in models.external_titles() or model not in options:
        return

    def choose() -> None:
        choose_model(st.session_state["home_model"])
        st.session_state["input"] = ""

    st.session_state["home_model"] = model
    ask = st.segmented_control
    ask("Model", list(options), format_func=options.__getitem__, key="home_model", on_change=choose, required=True,
        label_visibility="collapsed", width="content")  # fmt: skip


def next_token_panel(view: View) -> None:
    """Draw the likeliest next tokens at a temperature, and buttons that add one to the text or write on."""
    part(_next_token, view)


def _next_token(view: View) -> None:
    run, before = view.compared
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        help = "0: the likeliest token. 1: the model’s own probabilities. Above 1: more even ones."
        temperature = st.slider("Temperature", 0.0, HOTTEST, 1.0, 0.1, key="next_temperature", help=help, width=260)

        def add() -> None:
            sampling, generator = Sampling(temperature=temperature), torch.Generator()
            generator.seed()  # another token at each click
            q = sampling.distribution(run.logits[0, run.open_output].detach().double().cpu())  # [vocab]
            st.session_state["input"] = view.input.decode([*run.ids(), sampling.choose(q, generator)])

        st.button(
            "Add a token", icon=":material/casino:", key="next_add", on_click=add, help="Draws one of these tokens."
        )
    call = picture_call(viz.next_tokens, run, temperature=temperature, **before)
    shown(view, call, "next_tokens")
    footer(view, "next_tokens", [call])
    sample_panel(view, temperature)
