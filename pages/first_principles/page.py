"""First principles: attention in small steps on an editable sentence, then in a trained model, then its components."""

from __future__ import annotations

from functools import partial

import streamlit as st

from pages.controls import embed
from pages.controls.text import what_to_notice
from pages.controls.widgets import choose_unlinked, seed
from pages.first_principles import steps
from pages.first_principles.code import code_panel
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
    seed("step", NAMES, NAMES[0], key="principle_step")
    step = st.session_state["principle_step"]
    sentence = steps.ask_sentence() if step in PANELS else None
    with embed.picture("steps"), st.container(horizontal=True, gap="xsmall", vertical_alignment="center"):
        choose_unlinked("Step", STEPS, "principle_step")
        following = NAMES[(NAMES.index(step) + 1) % len(NAMES)]
        button = partial(st.button, "Next", icon=":material/arrow_forward:", help="The next step", type="primary")
        go = partial(st.session_state.__setitem__, "principle_step", following)
        button(key="principle_next", on_click=go, disabled=step == NAMES[-1], shortcut="N")
        if sentence is not None:
            with st.popover("More", type="tertiary"):
                steps.ask_more(sentence)
    with embed.picture(), st.container(gap="xsmall"):
        if sentence is None:
            notes, link = ALONE[step]()
        else:
            notes, link = PANELS[step](sentence), steps.link_of(sentence)
    what_to_notice(notes)
    share({"step": step} | link)


page()
