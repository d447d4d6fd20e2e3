"""One input for all players: typed, an example, random, or one on which they are found to differ."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import get_args

import streamlit as st

from pages.compare.comparison import Choice, Comparison, check_input, state, symbols_of
from pages.shared import models
from pages.shared.background_job import TICK, Job
from pages.shared.escape_markdown import escape_markdown
from pages.shared.link import asked, carry
from pages.shared.link_widgets import seed
from pages.shared.session import LookedAt
from pages.shared.typed import typed
from xformer.adapters import Input, TaskModel
from xformer.analysis.comparison import Search, Want, search
from xformer.errors import InputError

INPUT = "compare_input"
MOST_TYPED = 2_000
"""Characters: each player goes through all of them."""


def ask_input(choices: Sequence[Choice], looked: LookedAt) -> Comparison:
    """What the players read, and how they go on; the last good input where this one cannot be read.

    It is the input of the other screens, wherever the model there reads the same tokens as the players here.
    """
    of, shares = choices[0].subject.input, is_shared(choices, looked)
    _begin(of, looked if shares else None)
    carry(INPUT)
    row = st.container(horizontal=True, gap="small", vertical_alignment="bottom", key="compare_input_row")
    row.text_input(
        "Input",
        key=INPUT,
        persist_state="session",
        help=of.typed,
        label_visibility="collapsed",
        icon=":material/input:",
        placeholder=of.typed,
    )
    with row.popover("Examples", key="compare_examples"):
        for purpose, text in of.examples().items():
            st.button(
                purpose, on_click=_type, args=(text,), width="stretch", type="tertiary", key=f"compare_ex_{purpose}"
            )
    row.button("Random", on_click=_type_random, args=(of,), key="compare_random")
    find_at = row.container(width="content")
    with row:
        forced = ask_forced(choices)
    source, is_as_typed = _source(choices, of)
    comparison = Comparison(tuple(choices), source, forced)
    if shares and is_as_typed:
        st.session_state["input"] = state().shared_input = of.text(source)
    with find_at:
        ask_search(comparison)
    if remark := of.remark(source):
        st.caption(f":material/info: {remark}")
    follow_search(comparison)
    return comparison


def is_shared(choices: Sequence[Choice], looked: LookedAt) -> bool:
    """Whether the model of the other screens reads what the players read, so that all have one input."""
    if models.usable(looked.model) is not None:
        return False
    subject = models.subject(looked.model)
    return isinstance(subject, TaskModel) and symbols_of(subject.task) == symbols_of(choices[0].subject.task)


def input_in_link(comparison: Comparison, looked: LookedAt) -> dict[str, str]:
    """The input as the link carries it: under its own name where the other screens have another one."""
    if is_shared(comparison.choices, looked):
        return {"input": str(st.session_state["input"])}
    return {"reads": comparison.input.text(comparison.source)}


def _source(choices: Sequence[Choice], of: Input) -> tuple[tuple[int, ...], bool]:
    """What is read, and whether that is what stands in the box."""
    ours = state()

    def read(text: str) -> tuple[int, ...]:
        source = of.read(text)
        check_input(choices, source)
        return source

    try:
        source = read(typed(st.session_state[INPUT], MOST_TYPED))
    except InputError as error:
        st.error(escape_markdown(str(error)), icon=":material/edit:")
        for text in (ours.good_input, of.default):
            try:
                source = read(text)
            except InputError:
                continue
            st.caption(f"Still showing {escape_markdown(text)}.")
            return source, False
        st.stop()
    ours.good_input = of.text(source)
    return source, True


def _begin(of: Input, looked: LookedAt | None) -> None:
    """What stands in the box: the input of the other screens where it is read here, else what stood there, or a usual one."""
    ours, own = state(), asked("reads")
    if ours.found_input is not None:
        _type(ours.found_input)
        ours.found_input = None
    elif looked is not None and ours.shared_input != looked.input:
        _type(looked.input)
        ours.shared_input = looked.input
    elif looked is None:
        if own is not None:
            _type(own)
        else:  # the others have another input now; this one keeps what it has
            ours.shared_input = None
    is_other_task, ours.task = ours.task not in ("", of.name), of.name
    was_shared = looked is not None or own is not None
    text = st.session_state.get(INPUT)
    if text is None or (is_other_task and not was_shared and not _fits(of, str(text))):
        _type(of.default)


def _fits(of: Input, text: str) -> bool:
    """Whether what stood there for another task can stay; a model of texts can read anything, which is no reason to."""
    try:
        of.read(text)
    except InputError:
        return False
    return not of.goes_on


def _type(text: str) -> None:
    st.session_state[INPUT] = text


def _type_random(of: Input) -> None:
    _type(of.random(random.getrandbits(32)))


MODES = {"free": "free-running", "forced": "forced"}

OPEN_MODES = {"free": "go on", "forced": "along it"}


def ask_forced(choices: Sequence[Choice]) -> bool:
    """Whether all are led along the right answer; only who writes one token after the other can be."""
    seed("mode", list(MODES), "free", key="compare_mode")
    if all(choice.shape.architecture == "encoder" for choice in choices):
        return False
    is_open = choices[0].subject.input.goes_on
    mode = st.segmented_control(
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
    return mode == "forced"


SEARCH = "search"

WITHIN = 5000
"""Inputs that a search looks at before it says that it found none."""


def ask_search(comparison: Comparison) -> None:
    """The button, and what is looked for."""
    with st.popover("Find a difference", icon=":material/search:", key="compare_find_open"):
        seed("want", get_args(Want), get_args(Want)[0], key="compare_want")
        want = st.radio(
            "Find me one on which they differ",
            get_args(Want),
            key="compare_want",
            persist_state="session",
            captions=("the first that turns up", "the fewest tokens to read", "both sides sure of themselves"),
        )
        st.button("Find", type="primary", key="compare_find", on_click=_start, args=(comparison, want), width="stretch")
        st.caption(
            f"At most {WITHIN:,} fresh inputs of the task are looked at. What counts is each player’s likeliest token given "
            "the right answer so far; no dice are thrown and no tokens replaced."
        )


def follow_search(comparison: Comparison) -> None:
    """How far the search has come; what it found is typed into the box."""
    job = state().job(SEARCH, comparison.players)
    ticks = job is not None and job.is_running
    st.fragment(_status, run_every=TICK if ticks else None)(comparison, ticks)


def _start(comparison: Comparison, want: Want) -> None:
    # Another seed each time: a second click finds another one.
    work = search(comparison.contenders(), want, within=WITHIN, seed=random.getrandbits(31))
    state().begin(SEARCH, comparison.players, work)


def _status(comparison: Comparison, ticks: bool) -> None:
    job: Job[Search] | None = state().job(SEARCH, comparison.players)
    # The container is there even when it is empty: were it to appear, everything below would be built anew in the browser.
    with st.container(key="compare_search_status", horizontal=True, vertical_alignment="center", gap="small"):
        if job is None:
            return
        job.advance()
        report = job.latest
        if job.problem:
            st.warning(escape_markdown(job.problem), icon=":material/search_off:")
        elif report is not None:
            st.markdown(f":material/search: {_summary(job, report, comparison)}", width="content")
        if job.is_running and report is not None:
            st.progress(report.looked / report.within, width=260)
            st.button("Cancel", key="compare_search_cancel", on_click=job.cancel)
        else:
            st.button("", icon=":material/close:", type="tertiary", key="compare_search_close", on_click=_forget)
        if ticks and not job.is_running:
            if report is not None and report.found is not None:
                state().found_input = comparison.input.text(report.found.source)
            st.rerun()


def _forget() -> None:
    state().jobs.pop(SEARCH, None)


def _summary(job: Job[Search], report: Search, comparison: Comparison) -> str:
    """The state of the search in words."""
    summary, found = f"Cancelled: {report.sentence}" if job.cancelled else report.sentence, report.found
    is_seen = not comparison.has_decoder or comparison.forced or (found is not None and found.in_free_running)
    if job.is_running or found is None or is_seen:
        return summary
    return f"{summary} That is at step {found.step} when all are forced; free-running they part earlier or elsewhere."
