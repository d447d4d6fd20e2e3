"""First principles: how does attention come about? Six small steps on a sentence that anyone can change, then a real model."""

from __future__ import annotations

import streamlit as st

from pages.first_principles import steps
from pages.first_principles.sentence import ask_sentence, link_of
from pages.first_principles.trained_head import model_panel
from pages.shared import frame
from pages.shared.layout import what_to_notice
from pages.shared.link import share
from pages.shared.widgets import seed

PANELS = {
    "average": steps.average_panel,
    "qkv": steps.qkv_panel,
    "scale": steps.scale_panel,
    "mask": steps.mask_panel,
    "heads": steps.heads_panel,
    "position": steps.position_panel,
}
END = "model"
"""The last step, which reads numbers instead of the sentence."""
TITLES = ("Average", "q, k, v", "Scale", "Mask", "Heads", "Position", "Model")
NAMES = [*PANELS, END]


def page() -> None:
    st.title("First principles :small[:gray[How does attention come about?]]", anchor=False)
    seed("step", NAMES, NAMES[0], key="principle_step")
    if st.session_state["principle_step"] == END:
        step = _ask_step()
        with frame.picture():
            notes, link = model_panel()
    else:
        sentence = ask_sentence()
        step = _ask_step()
        with frame.picture():
            notes, link = PANELS[step](sentence), link_of(sentence)
    what_to_notice(notes)
    share({"step": step} | link)


def _ask_step() -> str:
    at = NAMES.index(st.session_state["principle_step"])
    row = {"horizontal": True, "gap": "xsmall", "vertical_alignment": "center", "key": "principle_steps"}
    with frame.picture("steps"), st.container(**row):
        st.button(
            "",
            icon=":material/arrow_back:",
            help="The step before",
            disabled=at == 0,
            on_click=_go,
            args=(at - 1,),
            key="principle_back",
            shortcut="B",
        )
        st.segmented_control(
            "Step",
            NAMES,
            format_func=lambda name: f"{NAMES.index(name) + 1} {TITLES[NAMES.index(name)]}",
            required=True,
            key="principle_step",
            persist_state="session",
            label_visibility="collapsed",
            width="content",
        )
        last = at == len(NAMES) - 1
        st.button("Next", icon=":material/arrow_forward:", type="primary", disabled=last, on_click=_go, args=(at + 1,),
                  key="principle_next", shortcut="N")  # fmt: skip
    return str(st.session_state["principle_step"])


def _go(at: int) -> None:
    st.session_state["principle_step"] = NAMES[at]


page()
