"""Compare: where do two predictions part? Two to four players on one input, step by step, and what decided each step."""

from __future__ import annotations

import streamlit as st

from pages.compare.attention import patterns_panel, rows_panel
from pages.compare.input import ask_input, input_in_link
from pages.compare.lens import lens_panel
from pages.compare.look import in_link, look
from pages.compare.many import is_counting, many_panel
from pages.compare.match import Match, why_not_together
from pages.compare.notes import compare_notes
from pages.compare.patching import is_copying, patching_panel
from pages.compare.seat import unplayable
from pages.compare.seats import ask_seats, link_of
from pages.compare.steps import steps_panel
from pages.compare.wait import wait_for_plays
from pages.components.step_ruler import resting_step, step_ruler
from pages.shared import link as link_of_screen
from pages.shared import models
from pages.shared.ask import choose, not_here, seed
from pages.shared.background_job import TICK
from pages.shared.layout import is_dark, what_to_notice
from pages.shared.link import asked
from pages.shared.literal import literal
from xformer.analysis.deciding import Moment
from xformer.viz.theme import BACKGROUND

RULER = "compare_ruler"
PANELS = {
    "steps": "how sure",
    "attention": "where they looked",
    "rows": "each head",
    "lens": "when decided",
    "patching": "what carries it",
    "many": "many inputs",
}


def page() -> None:
    st.title("Compare :small[:gray[Where do two predictions part?]]", anchor=False)
    if not models.shipped() and not models.trained():
        st.info("There is no model here yet. Train the shipped ones with `make checkpoints`, then reload this page.")
        return
    looked = look()
    if why := unplayable(looked.model):
        st.caption(f":material/info: {literal(why)} It stays the model of the other screens.")
    seats = ask_seats(looked)
    shown = in_link(looked) | link_of(seats)
    if reason := why_not_together(seats):
        st.info(literal(reason), icon=":material/compare_arrows:")
        link_of_screen.share(shown)
        return
    match = ask_input(seats, looked)
    shown |= input_in_link(match, looked)
    if match.has_decoder:
        shown["mode"] = "forced" if match.forced else "free"
    link_of_screen.share(shown)
    if wait_for_plays(match):
        _note_opening_step(match)
        ticks = _is_working(match)
        st.fragment(_stage, run_every=TICK if ticks else None)(match, shown, ticks)


def _stage(match: Match, shown: dict[str, str], ticks: bool) -> None:
    """All that a step or a panel changes; the players and the input above are left alone.

    `ticks` says whether it runs again by itself, which it does only while something is worked on.
    """
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom", key="compare_choose"):
        panel = choose("panel", PANELS, "steps", "Panel", key="compare_panel", label_visibility="collapsed")
        pair = _ask_pair(match)
    _keep_in_view(panel)
    with st.container(key="compare_ruler_at"):
        step = step_ruler(
            match.data(),
            order=_order(match),
            told=st.session_state["compare_told"],
            key=RULER,
            detail=panel == "steps",
        )
    shown = shown | {"panel": panel, "step": str(step)} | ({"pair": pair} if len(match.seats) > 2 else {})
    moments: list[Moment] = [] if panel in ("steps", "many") else match.moments(step)
    two = _pair(pair, moments)
    if panel == "steps":
        steps_panel(match, step)
    elif panel == "many":
        shown |= many_panel(match)
    elif two is None:
        st.info(f"Only one player takes {match.unit} {step}; the others have ended before.", icon=":material/flag:")
    elif panel == "attention":
        shown |= patterns_panel(match, step, *two)
    elif panel == "rows":
        rows_panel(match, step, *two, moments)
    elif panel == "lens":
        lens_panel(match, step, *two, moments)
    else:
        shown |= patching_panel(match, step, *two)
    what_to_notice(compare_notes(match))
    link_of_screen.share(shown)
    if _is_working(match) != ticks:
        st.rerun()


def _keep_in_view(panel: str) -> None:
    """The ruler stays on the screen while one scrolls through a picture that it changes, where the window has room for both."""
    if panel in ("steps", "many"):
        rule = ""
    else:
        ground = BACKGROUND[is_dark()]
        rule = (
            "@media (min-height: 600px) { div:has(> .st-key-compare_ruler_at) "
            f"{{ position: sticky; top: 0; z-index: 20; background: {ground}; padding-top: 0.4rem; }} }}"
        )
    st.html(f"<style>{rule}</style>")


def _is_working(match: Match) -> bool:
    """Whether something that is looked at is being counted or copied."""
    return is_counting(match) or is_copying(match)


def _order(match: Match) -> str:
    return f"{match.order}|{match.names}"


def _note_opening_step(match: Match) -> None:
    """Where the ruler goes when it is new to the browser: where it rested, else the link's step, else the first parting."""
    last = max(map(len, match.plays())) - 1
    resting = resting_step(RULER, _order(match))
    told = match.parting() or 0
    if (wanted := asked("step")) is not None:
        if wanted.isascii() and wanted.isdecimal() and len(wanted) < 6 and int(wanted) <= last:
            told, resting = int(wanted), None
            st.session_state["compare_asked"] = (_order(match), told)
        else:
            not_here("step")
    by_link = st.session_state.get("compare_asked")
    if by_link is not None and by_link[0] == _order(match):
        told = by_link[1]
    st.session_state["compare_told"] = told if resting is None else min(resting, last)


def _ask_pair(match: Match) -> str:
    """Which two are laid side by side; of two players these two."""
    pairs = [f"{match.letters[a]}{match.letters[b]}" for a, b in match.pairs]
    if len(pairs) == 1:
        return pairs[0]
    seed("pair", pairs, pairs[0], key="compare_pair")
    pair = st.segmented_control(
        "Two of them",
        pairs,
        format_func=" | ".join,
        required=True,
        key="compare_pair",
        persist_state="session",
        label_visibility="collapsed",
        help="Which two are laid side by side.",
    )
    assert pair is not None  # required, and set before it is drawn
    return pair


def _pair(pair: str, moments: list[Moment]) -> tuple[Moment, Moment] | None:
    """The chosen two at a step, or the first two that take it; None where only one does."""
    by_letter = {at.name.split(" ")[0]: at for at in moments}
    if all(letter in by_letter for letter in pair):
        return by_letter[pair[0]], by_letter[pair[1]]
    return (moments[0], moments[1]) if len(moments) > 1 else None


page()
