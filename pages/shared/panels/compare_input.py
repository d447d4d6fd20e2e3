"""One input for all players: typed, an example, random, or one on which they are found to differ."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import get_args

import streamlit as st

from pages.shared.ask import seed
from pages.shared.literal import literal
from pages.shared.panels.compare_job import TICK, Job
from pages.shared.panels.compare_match import Match, check_input, task_of
from pages.shared.panels.compare_seat import Seat
from xformer.analysis.disagreement import Search, Want, search
from xformer.errors import InputError
from xformer.tasks import Task

INPUT = "compare_input"
SEARCH = "compare_search"
MODES = {"free": "free-running", "forced": "forced"}
WITHIN = 5000
"""Inputs that a search looks at before it says that it found none."""


def ask_input(seats: Sequence[Seat]) -> Match:
    """What the players read, and how they go on; the last good input where this one cannot be read."""
    task = task_of(seats[0])
    _begin(task)
    seed("mode", list(MODES), "free", key="compare_mode")
    has_decoder = any(seat.checkpoint.config.architecture != "encoder" for seat in seats)
    row = st.container(horizontal=True, gap="small", vertical_alignment="bottom", key="compare_input_row")
    row.text_input(
        "Input",
        key=INPUT,
        persist_state="session",
        max_chars=2000,
        help=task.rule.typed,
        label_visibility="collapsed",
        icon=":material/input:",
        placeholder=task.rule.typed,
    )
    with row.popover("Examples", key="compare_examples"):
        for purpose, text in task.rule.examples().items():
            st.button(
                purpose, on_click=_type, args=(text,), width="stretch", type="tertiary", key=f"compare_ex_{purpose}"
            )
    row.button("Random", on_click=_type_random, args=(task,), key="compare_random")
    find_at = row.container(width="content")
    if has_decoder:
        row.segmented_control(
            "They go on",
            list(MODES),
            format_func=MODES.__getitem__,
            required=True,
            key="compare_mode",
            persist_state="session",
            label_visibility="collapsed",
            width="content",
            help="Free-running, each goes on with what it said. Forced, each is given the right answer so far.",
        )
    forced = has_decoder and st.session_state["compare_mode"] == "forced"
    match = Match(tuple(seats), _source(seats, task), forced)
    with find_at:
        _ask_search(match)
    if remark := task.rule.remark(match.source):
        st.caption(f":material/info: {remark}")
    _follow_search(match)
    return match


def is_searching() -> bool:
    job = st.session_state.get(SEARCH)
    return isinstance(job, Job) and job.is_running


def _source(seats: Sequence[Seat], task: Task) -> tuple[int, ...]:
    try:
        source = tuple(task.vocabulary.read(str(st.session_state[INPUT])))
        check_input(seats, source)
    except InputError as error:
        st.error(literal(str(error)), icon=":material/edit:")
        for text in (st.session_state.get("compare_good", ""), task.rule.default):
            try:
                source = tuple(task.vocabulary.read(text))
                check_input(seats, source)
            except InputError:
                continue
            st.caption(f"Still showing {literal(text)}.")
            return source
        st.stop()
    st.session_state["compare_good"] = task.vocabulary.text(list(source))
    return source


def _begin(task: Task) -> None:
    """What stands in the box at first: the link's input, or a usual one; and again where the players' task has changed."""
    if (found := st.session_state.pop("compare_found", None)) is not None:
        _type(found)
    before = st.session_state.get("compare_task", task.config.name)
    st.session_state["compare_task"] = task.config.name
    if INPUT not in st.session_state:
        _type(st.query_params.get("input", task.rule.default))
    elif before != task.config.name:
        try:
            task.vocabulary.read(str(st.session_state[INPUT]))
        except InputError:
            _type(task.rule.default)


def _type(text: str) -> None:
    st.session_state[INPUT] = text


def _type_random(task: Task) -> None:
    _type(task.vocabulary.text(task.draw(random.getrandbits(32))))


def _ask_search(match: Match) -> None:
    with st.popover("Find a difference", icon=":material/search:", key="compare_find_open"):
        want = st.radio(
            "Find me one on which they differ",
            get_args(Want),
            key="compare_want",
            persist_state="session",
            captions=("the first that turns up", "the fewest tokens to read", "both sides sure of themselves"),
        )
        st.button(
            "Find", type="primary", key="compare_find", on_click=_start_search, args=(match, want), width="stretch"
        )
        st.caption(
            f"At most {WITHIN:,} fresh inputs of the task are looked at. What counts is each player's likeliest token given "
            "the right answer so far; no dice are thrown and no tokens replaced."
        )


def _about(match: Match) -> str:
    return "|".join(seat.text for seat in match.seats)


def _start_search(match: Match, want: Want) -> None:
    # Another seed each time: a second click finds another one.
    work = search(match.players(), want, within=WITHIN, seed=random.getrandbits(31), task=match.task)
    st.session_state[SEARCH] = Job(work, _about(match))


def _follow_search(match: Match) -> None:
    """How far the search has come; what it found is typed into the box."""
    job = st.session_state.get(SEARCH)
    if isinstance(job, Job) and job.about != _about(match):
        del st.session_state[SEARCH]
    ticks = is_searching()
    st.fragment(_search_status, run_every=TICK if ticks else None)(match, ticks)


def _search_status(match: Match, ticks: bool) -> None:
    job: Job[Search] | None = st.session_state.get(SEARCH)
    # The container is there even when it is empty: were it to appear, everything below would be built anew in the browser.
    with st.container(key="compare_search_status", horizontal=True, vertical_alignment="center", gap="small"):
        if job is None:
            return
        job.advance()
        report = job.latest
        if job.problem:
            st.warning(literal(job.problem), icon=":material/search_off:")
        elif report is not None:
            st.markdown(f":material/search: {_told(job, match)}", width="content")
        if job.is_running and report is not None:
            st.progress(report.looked / report.within, width=260)
            st.button("Cancel", key="compare_search_cancel", on_click=job.cancel)
        else:
            st.button("", icon=":material/close:", type="tertiary", key="compare_search_close", on_click=_forget)
        if ticks and not job.is_running:
            if report is not None and report.found is not None:
                st.session_state["compare_found"] = match.task.vocabulary.text(list(report.found.source))
            st.rerun()


def _forget() -> None:
    st.session_state.pop(SEARCH, None)


def _told(job: Job[Search], match: Match) -> str:
    """The state of the search in words."""
    report = job.latest
    assert report is not None
    said = f"Cancelled: {report.sentence}" if job.cancelled else report.sentence
    found = report.found
    if job.is_running or found is None:
        return said
    free = (
        ""
        if not match.has_decoder or match.forced or found.in_free_running
        else f" That is at step {found.step} when all are forced; free-running they part earlier or elsewhere."
    )
    return f"{said}{free}"
