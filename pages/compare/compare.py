"""Compare: where do two predictions part? Two to four players on one input, step by step, and what decided each step."""

from __future__ import annotations

import streamlit as st

from pages.shared import models
from pages.shared.ask import choose, not_here, seed
from pages.shared.components.step_ruler import resting_step, step_ruler
from pages.shared.layout import what_to_notice
from pages.shared.literal import literal
from pages.shared.panels.compare_attention import attention_panel
from pages.shared.panels.compare_code import footer
from pages.shared.panels.compare_input import ask_input
from pages.shared.panels.compare_job import TICK
from pages.shared.panels.compare_lens import lens_panel
from pages.shared.panels.compare_many import is_counting, many_panel
from pages.shared.panels.compare_match import Match, why_not_together
from pages.shared.panels.compare_notes import compare_notes, frames
from pages.shared.panels.compare_patching import patching_panel
from pages.shared.panels.compare_seats import ask_seats, link_of
from xformer.analysis.deciding import Moment
from xformer.errors import XformerError

RULER = "compare_ruler"
PANELS = {
    "attention": "where they looked",
    "lens": "when it was decided",
    "patching": "what carries the difference",
    "many": "over many inputs",
}


def page() -> None:
    st.title("Compare :small[:gray[Where do two predictions part?]]", anchor=False)
    if not models.shipped() and not models.trained():
        st.info("There is no model here yet. Train the shipped ones with `make checkpoints`, then reload this page.")
        return
    seats = ask_seats()
    if reason := why_not_together(seats):
        st.info(literal(reason), icon=":material/compare_arrows:")
        _share(link_of(seats))
        return
    match = ask_input(seats)
    try:
        match.plays()
    except XformerError as error:
        st.error(literal(str(error)), icon=":material/error:")
        return
    _note_opening_step(match)
    ticks = is_counting(match)
    st.fragment(_stage, run_every=TICK if ticks else None)(match, ticks)


def _stage(match: Match, ticks: bool) -> None:
    """All that a step or a panel changes; the players and the input above are left alone.

    `ticks` says whether it runs again by itself, which it does only while something is counted.
    """
    step = step_ruler(match.data(), order=_order(match), told=st.session_state["compare_told"], key=RULER)
    _footer(match, step)
    moments = match.moments(step)
    link = {"step": str(step)}
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom", key="compare_choose"):
        panel = choose("panel", PANELS, "attention", "Panel", key="compare_panel", label_visibility="collapsed")
        pair = _ask_pair(match, moments)
    link |= {"panel": panel} | ({"pair": pair} if len(match.seats) > 2 else {})
    two = _pair(match, pair, moments)
    if panel == "many":
        link |= many_panel(match)
    elif two is None:
        st.info(f"Only one player takes {match.unit} {step}; the others have ended before.", icon=":material/flag:")
    elif panel == "attention":
        link |= attention_panel(match, step, *two, moments)
    elif panel == "lens":
        lens_panel(match, step, *two, moments)
    else:
        link |= patching_panel(match, step, *two)
    what_to_notice(compare_notes(match, step, *(two or (None, None))))
    text = match.task.vocabulary.text(list(match.source))
    mode = {"mode": "forced" if match.forced else "free"} if match.has_decoder else {}
    _share(link_of(match.seats) | {"input": text} | mode | link)
    if is_counting(match) != ticks:
        st.rerun()


def _order(match: Match) -> str:
    return f"{match.order}|{match.names}"


def _note_opening_step(match: Match) -> None:
    """Where the ruler goes when it is new to the browser: where it rested, else the link's step, else the first parting."""
    last = max(map(len, match.plays())) - 1
    resting = resting_step(RULER, _order(match))
    told = match.parting() or 0
    if "compare_told" not in st.session_state and (asked := st.query_params.get("step")) is not None:
        if asked.isascii() and asked.isdecimal() and len(asked) < 6 and int(asked) <= last:
            told = int(asked)
            st.session_state["compare_asked"] = (_order(match), told)
        else:
            not_here("step")
    by_link = st.session_state.get("compare_asked")
    if by_link is not None and by_link[0] == _order(match):
        told = by_link[1]
    st.session_state["compare_told"] = told if resting is None else min(resting, last)


def _ask_pair(match: Match, moments: list[Moment]) -> str:
    """Which two are laid side by side; of two players these two."""
    pairs = [f"{match.letters[a]}{match.letters[b]}" for a, b in match.pairs]
    if len(pairs) == 1:
        return pairs[0]
    seed("pair", pairs, pairs[0], key="compare_pair")
    return st.segmented_control(
        "Two of them",
        pairs,
        format_func=" | ".join,
        required=True,
        key="compare_pair",
        persist_state="session",
        label_visibility="collapsed",
        help="Which two are laid side by side.",
    )


def _pair(match: Match, pair: str, moments: list[Moment]) -> tuple[Moment, Moment] | None:
    """The chosen two at a step, or the first two that take it; None where only one does."""
    by_letter = {at.name.split(" ")[0]: at for at in moments}
    if all(letter in by_letter for letter in pair):
        return by_letter[pair[0]], by_letter[pair[1]]
    return (moments[0], moments[1]) if len(moments) > 1 else None


def _footer(match: Match, step: int) -> None:
    steps, _ = frames(match)
    lines = [
        "from xformer.analysis.parting import top_frame",
        "from xformer.viz.decoding import top_chart",
        f"top_chart(top_frame(plays, 5, [{step}]), dark=False)",
    ]
    footer(match, lines, steps, "steps")


def _share(link: dict[str, str]) -> None:
    if st.query_params.to_dict() != link:
        st.query_params.from_dict(link)


page()
