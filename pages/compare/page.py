"""Compare: where do predictions differ? Two to four models on one input, two inputs of one model, or a steered model."""

from __future__ import annotations

from typing import Any

import streamlit as st

from pages.compare.cards import ask_variants, variants_in_link
from pages.compare.comparison import (
    Comparison,
    in_link,
    incomparable_reason,
    incompatibility_reason,
    look,
    state,
    wait_for_runs,
)
from pages.compare.input import ask_input, input_in_link
from pages.compare.minimal_pairs import pairs_panel
from pages.compare.panels import lengths_panel, lens_panel, many_panel, patching_panel, patterns_panel, rows_panel
from pages.compare.steering import steering_panel
from pages.compare.steps import (
    ask_pair,
    ask_step,
    compare_headline,
    compare_notes,
    places_of,
    steps_panel,
    take_step_of_link,
)
from pages.compare.texts import compares_texts, no_text_reason, texts_panel
from pages.shared import frame, models, run_weights
from pages.shared import link as link_of_screen
from pages.shared.background_job import TICK
from pages.shared.escape_markdown import escape_markdown
from pages.shared.layout import headline, what_to_notice
from pages.shared.link import chose
from pages.shared.picture import toolbar
from pages.shared.session import LookedAt
from pages.shared.widgets import choose, seed

MODES = {"models": "models", "pairs": "inputs", "steering": "steering"}
PANELS = {
    "steps": "Predictions",
    "attention": "Attention",
    "rows": "Heads",
    "lens": "Logit lens",
    "patching": "Patching",
    "many": "Many inputs",
    "lengths": "Input lengths",
}
TABS = ("steps", "attention")
"""The panels beside “More”, which has the others."""
OF_ALL_STEPS = ("steps", "many", "lengths")
"""Panels that do not show one step."""


def page() -> None:
    st.title("Compare :small[:gray[Where do two models disagree?]]", anchor=False)
    if not models.shipped() and not run_weights.trained():
        st.info("There is no model here yet. Train the shipped ones with `make checkpoints`, then reload this page.")
        return
    looked = look()
    if reason := "" if models.usable(looked.model) else no_text_reason(looked.model):
        st.info(escape_markdown(reason), icon=":material/info:")
        link_of_screen.share(in_link(looked))
        return
    with st.sidebar:
        what = choose("compare", MODES, "models", "Compare", key="compare_what", old={"players": "models"})
    draw = {"pairs": pairs_panel, "steering": steering_panel}.get(what)
    if draw is None and "a" not in st.query_params and compares_texts(looked.model):
        draw = texts_panel
    if draw is None:
        _variants(looked)
        return
    with frame.picture():
        draw(looked)


def _variants(looked: LookedAt) -> None:
    """Two to four models on one input."""
    if reason := incomparable_reason(looked.model):
        st.caption(f":material/info: {escape_markdown(reason)} It stays the model of the other screens.")
    with st.sidebar:
        variants = ask_variants(looked)
    link = in_link(looked) | variants_in_link(variants)
    if reason := incompatibility_reason(variants):
        st.info(escape_markdown(reason), icon=":material/compare_arrows:")
        link_of_screen.share(link)
        return
    with st.sidebar:
        comparison = ask_input(variants, looked)
    link |= input_in_link(comparison, looked)
    if comparison.has_decoder:
        link["mode"] = "forced" if comparison.forced else "free"
    link_of_screen.share(link)
    if not wait_for_runs(comparison):
        link_of_screen.wait()
        return
    take_step_of_link(comparison)
    ticks = _is_working(comparison)
    st.fragment(_stage, run_every=TICK if ticks else None)(comparison, link, ticks)


def _stage(comparison: Comparison, link: dict[str, str], ticks: bool) -> None:
    """Draw the part that a step or a panel changes; it reruns by itself only while a job is running (`ticks`)."""
    headline(compare_headline(comparison))
    bar = toolbar()
    with bar:
        panel = _ask_panel()
        pair = ask_pair(comparison)
    is_of_step = panel not in OF_ALL_STEPS
    with frame.picture():
        step = ask_step(comparison, detail=panel == "steps")
        link = link | {"panel": panel, "step": str(step)} | ({"pair": pair} if len(comparison.variants) > 2 else {})
        by_letter = comparison.readings(step) if is_of_step else {}
        readings, two = list(by_letter.values()), places_of(pair, list(by_letter))
        if panel == "steps":
            steps_panel(comparison, step)
        elif panel == "many":
            link |= many_panel(comparison)
        elif panel == "lengths":
            lengths_panel(comparison)
        elif two is None:
            st.info(
                f"Only one model takes {comparison.unit} {step}; the others have ended before.", icon=":material/flag:"
            )
        elif panel == "attention":
            link |= patterns_panel(comparison, step, [readings[at] for at in two], bar)
        elif panel == "patching":
            link |= patching_panel(comparison, step, [readings[at] for at in two])
        else:
            (rows_panel if panel == "rows" else lens_panel)(comparison, step, readings, two)
    what_to_notice(compare_notes(comparison))
    link_of_screen.share(link)
    if _is_working(comparison) != ticks:
        st.rerun()


def _ask_panel() -> str:
    """Ask for the panel: a few beside each other, the others behind “More”, which adds the chosen one to them."""
    key = "compare_panel"
    seed("panel", list(PANELS), "steps", key=key)
    tabs = [*TABS, *({st.session_state[key]} - {*TABS})]
    chosen = str(
        st.segmented_control(
            "Panel", tabs, format_func=PANELS.__getitem__, key=key, persist_state="session", required=True,
            label_visibility="collapsed", width="content",
        )
    )  # fmt: skip
    with st.popover("More", key="compare_more"):
        for name in [name for name in PANELS if name not in tabs]:
            look: dict[str, Any] = {"type": "tertiary", "width": "stretch", "key": f"compare_open_{name}"}
            st.button(PANELS[name], on_click=st.session_state.update, args=({key: name},), **look)
    chose("panel", chosen)
    return chosen


def _is_working(comparison: Comparison) -> bool:
    """Whether a job of the shown panel is running."""
    panel = st.session_state.get("compare_panel", "")
    abouts = {"many": comparison.about_variants, "lengths": comparison.about_variants, "patching": comparison.about}
    about, job = abouts.get(panel), state().jobs.get(panel)
    return about is not None and job is not None and job.is_running and job.about.startswith(about)


page()
