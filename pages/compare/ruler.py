"""The ruler that steps through the answers: where it begins, and that it stays in view above a picture that it changes."""

from __future__ import annotations

import streamlit as st

from pages.compare.comparison import Comparison, state
from pages.components.step_ruler import resting_step, step_ruler
from pages.shared.layout import is_dark
from pages.shared.link import asked
from pages.shared.link_widgets import not_here
from xformer.viz.theme import BACKGROUND

RULER = "compare_ruler"


def take_step_of_link(comparison: Comparison) -> None:
    """A step that the link asks for is where the ruler of this comparison begins."""
    if (wanted := asked("step")) is None:
        return
    last = max(map(len, comparison.rollouts())) - 1
    if wanted.isascii() and wanted.isdecimal() and len(wanted) < 6 and int(wanted) <= last:
        state().linked_step = (comparison.about, int(wanted))
    else:
        not_here("step")


def ask_step(comparison: Comparison, *, detail: bool, stays: bool) -> int:
    """Draw the ruler and return the step where it rests.

    It begins where it rested, else at the link's step, else where they part first. `detail` adds the numbers of a step, and
    with `stays` it remains on the screen while one scrolls.
    """
    ground = BACKGROUND[is_dark()]
    rule = (
        "@media (min-height: 600px) { div:has(> .st-key-compare_ruler_at) "
        f"{{ position: sticky; top: 0; z-index: 20; background: {ground}; padding-top: 0.4rem; }} }}"
    )
    st.html(f"<style>{rule if stays else ''}</style>")
    about, linked = state().linked_step or ("", 0)
    order, start = comparison.about, comparison.divergence() or 0
    if about == comparison.about:
        order, start = f"{about}|{linked}", linked  # what a link asks for anew moves the ruler anew
    if (resting := resting_step(RULER, order)) is not None:
        start = min(resting, max(map(len, comparison.rollouts())) - 1)
    with st.container(key="compare_ruler_at"):
        return step_ruler(comparison.data(), order=order, start=start, key=RULER, detail=detail)
