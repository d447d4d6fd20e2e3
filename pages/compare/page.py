"""Compare: where do two predictions part? Two to four players on one input, step by step, and what decided each step."""

from __future__ import annotations

import streamlit as st

from pages.compare.cards import ask_players, players_in_link
from pages.compare.comparison import (
    Comparison,
    in_link,
    look,
    state,
    wait_for_rollouts,
    why_not_playable,
    why_not_together,
)
from pages.compare.input import ask_input, input_in_link
from pages.compare.minimal_pairs import pairs_panel
from pages.compare.panels import lengths_panel, lens_panel, many_panel, patching_panel, patterns_panel, rows_panel
from pages.compare.steering import steering_panel
from pages.compare.steps import ask_pair, ask_step, compare_notes, places_of, steps_panel, take_step_of_link
from pages.compare.texts import compares_texts, texts_panel, why_no_text
from pages.shared import frame, models, run_weights
from pages.shared import link as link_of_screen
from pages.shared.background_job import TICK
from pages.shared.escape_markdown import escape_markdown
from pages.shared.layout import what_to_notice
from pages.shared.link_widgets import choose

MODES = {"players": "two to four models", "pairs": "two inputs of one model", "steering": "one model, steered"}
PANELS = {
    "steps": "how sure",
    "attention": "where they looked",
    "rows": "heads",
    "lens": "when decided",
    "patching": "what carries it",
    "many": "many inputs",
    "lengths": "how long",
}
OF_ALL_STEPS = ("steps", "many", "lengths")
"""Panels that do not look at one step."""


def page() -> None:
    st.title("Compare :small[:gray[Where do two predictions part?]]", anchor=False)
    if not models.shipped() and not run_weights.trained():
        st.info("There is no model here yet. Train the shipped ones with `make checkpoints`, then reload this page.")
        return
    looked = look()
    if why := "" if models.usable(looked.model) else why_no_text(looked.model):
        st.info(escape_markdown(why), icon=":material/info:")
        link_of_screen.share(in_link(looked))
        return
    with st.container(horizontal=True, gap="small", key="compare_what_row"):
        what = choose("compare", MODES, "players", "Compare", key="compare_what", label_visibility="collapsed")
        beside = st.container(horizontal=True, gap="small", width="content")
    if what == "pairs":
        with frame.picture():
            pairs_panel(looked, beside)
        return
    if what == "steering":
        with frame.picture():
            steering_panel(looked)
        return
    if "a" not in st.query_params and compares_texts(looked.model):
        with frame.picture():
            texts_panel(looked)
        return
    if why := why_not_playable(looked.model):
        st.caption(f":material/info: {escape_markdown(why)} It stays the model of the other screens.")
    choices = ask_players(looked)
    shown = in_link(looked) | players_in_link(choices)
    if reason := why_not_together(choices):
        st.info(escape_markdown(reason), icon=":material/compare_arrows:")
        link_of_screen.share(shown)
        return
    comparison = ask_input(choices, looked)
    shown |= input_in_link(comparison, looked)
    if comparison.has_decoder:
        shown["mode"] = "forced" if comparison.forced else "free"
    link_of_screen.share(shown)
    if not wait_for_rollouts(comparison):
        link_of_screen.wait()
        return
    take_step_of_link(comparison)
    ticks = _is_working(comparison)
    st.fragment(_stage, run_every=TICK if ticks else None)(comparison, shown, ticks)


def _stage(comparison: Comparison, shown: dict[str, str], ticks: bool) -> None:
    """All that a step or a panel changes; the players and the input above are left alone.

    `ticks` says whether it runs again by itself, which it does only while something is worked on.
    """
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom", key="compare_choose"):
        panel = choose("panel", PANELS, "steps", "Panel", key="compare_panel", label_visibility="collapsed")
        pair = ask_pair(comparison)
    is_of_step = panel not in OF_ALL_STEPS
    with frame.picture():
        step = ask_step(comparison, detail=panel == "steps", stays=is_of_step)
        shown = shown | {"panel": panel, "step": str(step)} | ({"pair": pair} if len(comparison.choices) > 2 else {})
        readings = comparison.readings(step) if is_of_step else []
        two = places_of(pair, readings)
        if panel == "steps":
            steps_panel(comparison, step)
        elif panel == "many":
            shown |= many_panel(comparison)
        elif panel == "lengths":
            lengths_panel(comparison)
        elif two is None:
            st.info(
                f"Only one player takes {comparison.unit} {step}; the others have ended before.", icon=":material/flag:"
            )
        elif panel == "attention":
            shown |= patterns_panel(comparison, step, [readings[at] for at in two])
        elif panel == "rows":
            rows_panel(comparison, step, readings, two)
        elif panel == "lens":
            lens_panel(comparison, step, readings, two)
        else:
            shown |= patching_panel(comparison, step, [readings[at] for at in two])
    what_to_notice(compare_notes(comparison))
    link_of_screen.share(shown)
    if _is_working(comparison) != ticks:
        st.rerun()


def _is_working(comparison: Comparison) -> bool:
    """Whether something that is looked at is being counted or copied."""
    panel = st.session_state.get("compare_panel", "")
    about = {"many": comparison.players, "lengths": comparison.players, "patching": comparison.about}.get(panel)
    job = state().jobs.get(panel)
    return about is not None and job is not None and job.is_running and job.about.startswith(about)


page()
