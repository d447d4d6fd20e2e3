"""First principles: how does attention come about? Six small steps on a sentence that anyone can change, then a real model."""

from __future__ import annotations

import streamlit as st

from pages.first_principles import steps as principle_average
from pages.first_principles import steps as principle_heads
from pages.first_principles import steps as principle_mask
from pages.first_principles import steps as principle_position
from pages.first_principles import steps as principle_qkv
from pages.first_principles import steps as principle_scale
from pages.first_principles import trained_head as principle_model
from pages.first_principles.sentence import ask_sentence, link_of
from pages.shared import frame
from pages.shared.layout import what_to_notice
from pages.shared.link import share
from pages.shared.widgets import seed

STEPS = {
    "average": (principle_average.TITLE, principle_average.average_panel),
    "qkv": (principle_qkv.QKV_TITLE, principle_qkv.qkv_panel),
    "scale": (principle_scale.SCALE_TITLE, principle_scale.scale_panel),
    "mask": (principle_mask.MASK_TITLE, principle_mask.mask_panel),
    "heads": (principle_heads.HEADS_TITLE, principle_heads.heads_panel),
    "position": (principle_position.POSITION_TITLE, principle_position.position_panel),
}
END = "model"
"""The last step, which reads numbers in place of the sentence."""
TITLES = {name: title for name, (title, _) in STEPS.items()} | {END: principle_model.TITLE}
NAMES = list(TITLES)


def page() -> None:
    st.title("First principles :small[:gray[How does attention come about?]]", anchor=False)
    seed("step", NAMES, NAMES[0], key="principle_step")
    if st.session_state["principle_step"] == END:
        step = _ask_step()
        with frame.picture():
            link, notes = principle_model.model_panel()
        what_to_notice(notes)
        share({"step": step} | link)
        return
    sentence = ask_sentence()
    step = _ask_step()
    with frame.picture():
        link, notes = STEPS[step][1](sentence)
    what_to_notice(notes)
    share({"step": step} | link_of(sentence) | link)


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
            format_func=lambda name: f"{NAMES.index(name) + 1} {TITLES[name]}",
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
