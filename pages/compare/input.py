"""The common input of the compared models: typed, an example, random, or found by a search for a difference."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, get_args

import streamlit as st

from pages.compare.comparison import Comparison, ModelSettings, check_input, state, symbols_of
from pages.shared import models
from pages.shared.background_job import TICK, Job
from pages.shared.escape_markdown import escape_markdown
from pages.shared.link import asked, carry
from pages.shared.session import LookedAt
from pages.shared.widgets import choose, seed, typed
from xformer.adapters import Input, TaskModel
from xformer.analysis.comparison import Search, Want, search
from xformer.errors import InputError

INPUT = "compare_input"
MOST_TYPED = 2_000
"""Maximum characters; each model processes all of them."""
SEARCH = "search"
WITHIN = 5000
"""Inputs that a search tries."""
MODES = {"free": "Free-running", "forced": "Teacher-forced"}


def ask_input(variants: Sequence[ModelSettings], looked: LookedAt) -> Comparison:
    """Ask for the input and the decoding mode; an unreadable input is replaced by the last readable one.

    The input is that of the other screens where their model reads the same tokens.
    """
    of, shares = variants[0].subject.input, is_shared(variants, looked)
    _begin(of, looked if shares else None)
    carry(INPUT)
    st.text_input("Input", key=INPUT, persist_state="session", help=of.typed, placeholder=of.typed)
    row = st.container(horizontal=True, gap="small", key="compare_input_row")
    with row.popover("Examples", key="compare_examples"):
        for purpose, text in of.examples().items():
            key = f"compare_ex_{purpose}"
            st.button(purpose, on_click=_type, args=(text,), width="stretch", type="tertiary", key=key)
    row.button("Random", on_click=_type_random, args=(of,), key="compare_random")
    find_at = st.container()
    forced = _ask_forced(variants)
    source, is_as_typed = _source(variants, of)
    comparison = Comparison(tuple(variants), source, forced)
    if shares and is_as_typed:
        st.session_state["input"] = state().shared_input = of.text(source)
    with find_at:
        _ask_search(comparison)
    if remark := of.remark(source):
        st.caption(f":material/info: {remark}")
    job = state().job(SEARCH, comparison.about_variants)
    ticks = job is not None and job.is_running
    st.fragment(_search_status, run_every=TICK if ticks else None)(comparison, ticks)
    return comparison


def is_shared(variants: Sequence[ModelSettings], looked: LookedAt) -> bool:
    """Whether the model of the other screens reads the same tokens, so that all screens have one input."""
    if models.usable(looked.model) is not None:
        return False
    subject = models.subject(looked.model)
    return isinstance(subject, TaskModel) and symbols_of(subject.task) == symbols_of(variants[0].subject.task)


def input_in_link(comparison: Comparison, looked: LookedAt) -> dict[str, str]:
    """The input as a parameter of the link: `reads` where the other screens have another input."""
    if is_shared(comparison.variants, looked):
        return {"input": str(st.session_state["input"])}
    return {"reads": comparison.input.text(comparison.source)}


def _ask_forced(variants: Sequence[ModelSettings]) -> bool:
    """Whether decoding is teacher-forced; an encoder predicts all positions at once and has no choice."""
    if all(variant.shape.architecture == "encoder" for variant in variants):
        seed("mode", list(MODES), "free", key="compare_mode")
        return False
    given = "the text up to it" if variants[0].subject.input.goes_on else "the right answer up to it"
    help = f"Free-running: each step is given the model’s own tokens. Teacher-forced: each step is given {given}."
    look: dict[str, Any] = {"help": help}
    return choose("mode", MODES, "free", "Decoding", key="compare_mode", **look) == "forced"


def _source(variants: Sequence[ModelSettings], of: Input) -> tuple[tuple[int, ...], bool]:
    """The input as tokens, and whether it is the typed one."""

    def read(text: str) -> tuple[int, ...]:
        source = of.read(text)
        check_input(variants, source)
        return source

    try:
        source = read(typed(st.session_state[INPUT], MOST_TYPED))
    except InputError as error:
        st.error(escape_markdown(str(error)), icon=":material/edit:")
        for text in (state().good_input, of.default):
            try:
                source = read(text)
            except InputError:
                continue
            st.caption(f"Still showing {escape_markdown(text)}.")
            return source, False
        st.stop()
    state().good_input = of.text(source)
    return source, True


def _begin(of: Input, looked: LookedAt | None) -> None:
    """Fill the text field: with a found input, the input of the other screens, that of the link, or an example."""
    ours, own = state(), asked("reads")
    if ours.found_input is not None:
        _type(ours.found_input)
        ours.found_input = None
    elif looked is not None and ours.shared_input != looked.input:
        _type(looked.input)
        ours.shared_input = looked.input
    elif looked is None and own is not None:
        _type(own)
    elif looked is None:
        ours.shared_input = None
    is_other_task, ours.task = ours.task not in ("", of.name), of.name
    was_shared = looked is not None or own is not None
    text = st.session_state.get(INPUT)
    if text is None or (is_other_task and not was_shared and not _fits(of, str(text))):
        _type(of.default)


def _fits(of: Input, text: str) -> bool:
    """Whether the input of another task can stay; a language model could read any, so there it does not."""
    try:
        of.read(text)
    except InputError:
        return False
    return not of.goes_on


def _type(text: str) -> None:
    st.session_state[INPUT] = text


def _type_random(of: Input) -> None:
    _type(of.random(random.getrandbits(32)))


def _ask_search(comparison: Comparison) -> None:
    with st.popover("Find a difference", icon=":material/search:", key="compare_find_open", width="stretch"):
        seed("want", get_args(Want), get_args(Want)[0], key="compare_want")
        want = st.radio(
            "Find an input on which they differ",
            get_args(Want),
            key="compare_want",
            persist_state="session",
            captions=("the first one found", "the fewest tokens to read", "both models with a high probability"),
        )
        st.button(
            "Find", type="primary", key="compare_find", on_click=_start_search, args=(comparison, want), width="stretch"
        )
        st.caption(
            f"Tries at most {WITHIN:,} new inputs of the task. Compared are the likeliest tokens under teacher forcing, "
            "without sampling and without replaced tokens."
        )


def _start_search(comparison: Comparison, want: Want) -> None:
    # Another seed each time: a second click finds another input.
    work = search(comparison.loaded(), want, within=WITHIN, seed=random.getrandbits(31))
    state().begin(SEARCH, comparison.about_variants, work)


def _search_status(comparison: Comparison, ticks: bool) -> None:
    """Show the progress of the search; its result becomes the input."""
    job: Job[Search] | None = state().job(SEARCH, comparison.about_variants)
    # The container is always there: if it appeared, the browser would rebuild everything below.
    with st.container(key="compare_search_status", horizontal=True, vertical_alignment="center", gap="small"):
        if job is None:
            return
        job.advance()
        report = job.latest
        if job.problem:
            st.warning(escape_markdown(job.problem), icon=":material/search_off:")
        elif report is not None:
            st.markdown(f":material/search: {_search_result(job, report, comparison)}", width="content")
        if job.is_running and report is not None:
            st.progress(report.looked / report.within, width=260)
            st.button("Cancel", key="compare_search_cancel", on_click=job.cancel)
        else:
            forget = {"on_click": state().jobs.pop, "args": (SEARCH, None)}
            st.button("", icon=":material/close:", type="tertiary", key="compare_search_close", **forget)
        if ticks and not job.is_running:
            if report is not None and report.found is not None:
                state().found_input = comparison.input.text(report.found.source)
            st.rerun()


def _search_result(job: Job[Search], report: Search, comparison: Comparison) -> str:
    summary, found = f"Cancelled: {report.sentence}" if job.cancelled else report.sentence, report.found
    is_seen = not comparison.has_decoder or comparison.forced or (found is not None and found.in_free_running)
    if job.is_running or found is None or is_seen:
        return summary
    return (
        f"{summary} That is at step {found.step} under teacher forcing; free-running they differ earlier or elsewhere."
    )
