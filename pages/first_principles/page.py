"""First principles: attention in small steps on an editable sentence, then in a trained model, then its components."""

from __future__ import annotations

import streamlit as st

from pages.first_principles import steps
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
ALONE = {"model": steps.model_panel, "parts": steps.parts_panel}
"""Steps that do not use the sentence."""
TITLES = ("Average", "q, k, v", "Scale", "Mask", "Heads", "Position", "Model", "Parts")
NAMES = [*PANELS, *ALONE]


def page() -> None:
    st.title("First principles :small[:gray[How attention works, step by step]]", anchor=False)
    seed("step", NAMES, NAMES[0], key="principle_step")
    step = st.session_state["principle_step"]
    sentence = steps.ask_sentence() if step in PANELS else None
    with frame.picture("steps"), st.container(horizontal=True, gap="xsmall", vertical_alignment="center"):
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
        at = NAMES.index(step)
        st.button("", icon=":material/arrow_forward:", help="The next step", type="primary", disabled=step == NAMES[-1],
                  on_click=_go, args=(at + 1,), key="principle_next", shortcut="N")  # fmt: skip
        if sentence is not None:
            with st.popover("More", type="tertiary"):
                steps.ask_more(sentence)
    with frame.picture(), st.container(gap="xsmall"):
        if sentence is None:
            notes, link = ALONE[step]()
        else:
            notes, link = PANELS[step](sentence), steps.link_of(sentence)
    what_to_notice(notes)
    share({"step": step} | link)


def _go(at: int) -> None:
    st.session_state["principle_step"] = NAMES[min(at, len(NAMES) - 1)]


page()
