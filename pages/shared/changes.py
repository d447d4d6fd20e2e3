"""What is changed in the run on the screen: switched on and off, and listed where nobody can forget it."""

from __future__ import annotations

import streamlit as st

from pages.shared import resources
from pages.shared.escape_markdown import escape_markdown
from pages.shared.view import View
from xformer.errors import EditError
from xformer.interventions import Intervention, join, parse
from xformer.model_shape import ModelShape


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


def interventions_on(shape: ModelShape) -> tuple[Intervention, ...]:
    """The interventions that are on; those that do not fit this model are dropped aloud."""
    kept: list[str] = []
    for word in switched_on():
        try:
            parse(",".join([*kept, word]), shape)
        except EditError as error:
            st.warning(f"A change was left out. {escape_markdown(str(error))}", icon=":material/link_off:")
        else:
            kept.append(word)
    found = parse(",".join(kept), shape)
    st.session_state["edits"] = join(found)
    return found


def _clear_changes() -> None:
    st.session_state["edits"] = ""
    st.session_state["mask"] = resources.MASKS[0]


def _use_own_mask() -> None:
    st.session_state["mask"] = resources.MASKS[0]


def show_chips(view: View) -> None:
    """What is switched on, where nobody can forget it; a click takes it back."""
    # The container is there even when it is empty: were it to appear, everything below would be built anew in the browser.
    with st.container(horizontal=True, gap="small", vertical_alignment="center", key="chips"):
        if not view.is_changed:
            return
        st.markdown("**Changed:**", width="content")
        for mask in resources.mask_words(view.mask):
            st.button(mask, icon=":material/close:", on_click=_use_own_mask, key="chip_mask")
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
