"""One input for all players: typed, an example, random, or one on which they are found to differ."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import get_args

import streamlit as st

from pages.compare.match import Match, check_input, symbols_of, task_of
from pages.compare.seat import Seat
from pages.shared import models
from pages.shared.ask import seed
from pages.shared.background_job import TICK, Job
from pages.shared.link import asked, carry
from pages.shared.literal import literal
from pages.shared.session import LookedAt
from pages.shared.typed import typed
from xformer.analysis.disagreement import Search, Want, search
from xformer.errors import InputError
from xformer.tasks import Task

INPUT = "compare_input"
MOST_TYPED = 2_000
"""Characters: each player goes through all of them."""
SEEN = "compare_input_seen"
"""Where the session keeps the input of the other screens that this one has taken over last."""
SEARCH = "compare_search"
MODES = {"free": "free-running", "forced": "forced"}
OPEN_MODES = {"free": "go on", "forced": "along it"}
WANT = "compare_want"
WITHIN = 5000
"""Inputs that a search looks at before it says that it found none."""


def ask_input(seats: Sequence[Seat], looked: LookedAt) -> Match:
    """What the players read, and how they go on; the last good input where this one cannot be read.

    It is the input of the other screens, wherever the model there reads the same tokens as the players here.
    """
    task = task_of(seats[0])
    shares = is_shared(seats, looked)
    _begin(task, looked if shares else None)
    seed("mode", list(MODES), "free", key="compare_mode")
    carry(INPUT)
    has_decoder = any(seat.checkpoint.config.architecture != "encoder" for seat in seats)
    row = st.container(horizontal=True, gap="small", vertical_alignment="bottom", key="compare_input_row")
    row.text_input(
        "Input",
        key=INPUT,
        persist_state="session",
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
    is_open = task.rule.is_open_ended
    if has_decoder:
        row.segmented_control(
            "They go on",
            list(MODES),
            format_func=(OPEN_MODES if is_open else MODES).__getitem__,
            required=True,
            key="compare_mode",
            persist_state="session",
            label_visibility="collapsed",
            width="content",
            help="Go on: each writes on after the whole text. Along it: each says what comes next at every character."
            if is_open
            else "Free-running, each goes on with what it said. Forced, each is given the right answer so far.",
        )
    forced = has_decoder and st.session_state["compare_mode"] == "forced"
    source, is_as_typed = _source(seats, task)
    match = Match(tuple(seats), source, forced)
    if shares and is_as_typed:
        st.session_state["input"] = st.session_state[SEEN] = task.vocabulary.text(list(source))
    with find_at:
        _ask_search(match)
    if remark := task.rule.remark(match.source):
        st.caption(f":material/info: {remark}")
    _follow_search(match)
    return match


def is_shared(seats: Sequence[Seat], looked: LookedAt) -> bool:
    """Whether the model of the other screens reads what the players read, so that all have one input."""
    if models.usable(looked.model) is not None:
        return False
    task = models.checkpoint(looked.model).task
    return task is not None and symbols_of(task) == symbols_of(task_of(seats[0]))


def input_in_link(match: Match, looked: LookedAt) -> dict[str, str]:
    """The input as the link carries it: under its own name where the other screens have another one."""
    if is_shared(match.seats, looked):
        return {"input": str(st.session_state["input"])}
    return {"reads": match.task.vocabulary.text(list(match.source))}


def is_searching() -> bool:
    job = st.session_state.get(SEARCH)
    return isinstance(job, Job) and job.is_running


def _source(seats: Sequence[Seat], task: Task) -> tuple[tuple[int, ...], bool]:
    """What is read, and whether that is what stands in the box."""
    try:
        source = tuple(task.vocabulary.read(typed(st.session_state[INPUT], MOST_TYPED)))
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
            return source, False
        st.stop()
    st.session_state["compare_good"] = task.vocabulary.text(list(source))
    return source, True


def _begin(task: Task, looked: LookedAt | None) -> None:
    """What stands in the box: the input of the other screens where it is read here, else what stood there, or a usual one."""
    state = st.session_state
    own = asked("reads")
    if (found := state.pop("compare_found", None)) is not None:
        _type(found)
    elif looked is not None and state.get(SEEN) != looked.input:
        _type(looked.input)
        state[SEEN] = looked.input
    elif looked is None and own is not None:
        _type(own)
    elif looked is None and SEEN in state:  # the others have another input now; this one keeps what it has
        del state[SEEN]
    before = state.get("compare_task", task.config.name)
    state["compare_task"] = task.config.name
    is_new = INPUT not in state
    if is_new or (before != task.config.name and looked is None and own is None and not _fits(task, str(state[INPUT]))):
        _type(task.rule.default)


def _fits(task: Task, text: str) -> bool:
    """Whether what stood there for another task can stay; a model of texts can read anything, which is no reason to."""
    try:
        task.vocabulary.read(text)
    except InputError:
        return False
    return not task.rule.is_open_ended


def _type(text: str) -> None:
    st.session_state[INPUT] = text


def _type_random(task: Task) -> None:
    _type(task.vocabulary.text(task.draw(random.getrandbits(32))))


def _ask_search(match: Match) -> None:
    with st.popover("Find a difference", icon=":material/search:", key="compare_find_open"):
        seed("want", get_args(Want), get_args(Want)[0], key=WANT)
        want = st.radio(
            "Find me one on which they differ",
            get_args(Want),
            key=WANT,
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
