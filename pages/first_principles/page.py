"""First principles: attention in small steps on an editable sentence, then in a trained model, then its components."""

from __future__ import annotations

from functools import partial

import streamlit as st

from pages.controls import embed
from pages.controls.text import what_to_notice
from pages.controls.widgets import choose_unlinked, seed
from pages.first_principles import steps
from pages.first_principles.code import code_panel
from pages.first_principles.sentence import STEP, ask_more, ask_predict, ask_sentence, is_question_open, link_of
from pages.state.link import share

PANELS = {
    "average": steps.average_panel,
    "qkv": steps.qkv_panel,
    "scale": steps.scale_panel,
    "mask": steps.mask_panel,
    "heads": steps.heads_panel,
    "position": steps.position_panel,
}
ALONE = {"model": steps.model_panel, "code": code_panel, "parts": steps.parts_panel}
"""Steps that do not use the sentence."""
NAMES = [*PANELS, *ALONE]
TITLES = ("Average", "q, k, v", "Scale", "Mask", "Heads", "Position", "Model", "Code", "Parts")
STEPS = {name: f"{number} {title}" for number, (name, title) in enumerate(zip(NAMES, TITLES, strict=True), 1)}


def page() -> None:
    st.title("First principles :small[:gray[How attention works, step by step]]", anchor=False)
    seed("step", NAMES, NAMES[0], key=STEP)
    step = st.session_state[STEP]
    sentence = ask_sentence() if step in PANELS else None
    with embed.picture("steps"), st.container(horizontal=True, gap="xsmall", vertical_alignment="center"):
        choose_unlinked("Step", STEPS, STEP)
        following = NAMES[(NAMES.index(step) + 1) % len(NAMES)]
        button = partial(st.button, "Next", icon=":material/arrow_forward:", help="The next step", type="primary")
        go = partial(st.session_state.__setitem__, STEP, following)
        button(key="principle_next", on_click=go, disabled=step == NAMES[-1], shortcut="N")
        if sentence is not None:
            with st.popover("More", type="tertiary"):
                ask_more(sentence)
        ask_predict()
    notes, link = list[str](), {} if sentence is None else link_of(sentence)
    with embed.picture(), st.container(gap="xsmall"):
        if not is_question_open(step):
            if sentence is None:
                notes, link = ALONE[step]()
            else:
                notes = PANELS[step](sentence)
    what_to_notice(notes)
    share({"step": step} | link)


page()
