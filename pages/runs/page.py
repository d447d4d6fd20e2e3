"""Runs: what have I trained? All runs in a table, the curves of the chosen ones, and links to the other screens."""

from __future__ import annotations

import streamlit as st

from pages.runs.chosen import TRAIN, curves_panel, run_notes, selected_run
from pages.runs.table import (
    ALWAYS,
    MAX_DRAWN,
    filters,
    fold,
    follow_the_link,
    messages,
    runs_state,
    settings_that_differ,
    table,
)
from pages.shared import frame, run_store
from pages.shared.escape_markdown import escape_markdown
from pages.shared.layout import what_to_notice
from pages.shared.session import upload
from xformer.errors import RunStoreError
from xformer.training.entry import Entry
from xformer.training.run_store import latest_rows

POLL = 2.0
"""Seconds between two updates while a run is queued or trained."""


def page() -> None:
    who = run_store.who()
    st.title("Runs :small[:gray[What have I trained?]]", anchor=False)
    try:
        alive = any(_is_alive(entry) for entry in run_store.entries())
    except RunStoreError as error:
        st.error(escape_markdown(str(error)))
        return
    st.fragment(_runs, run_every=POLL if alive else None)(who, alive)


def _is_alive(entry: Entry) -> bool:
    return entry.is_active or entry.state == "queued"


def _runs(who: str, was_alive: bool) -> None:
    try:
        _body(who, was_alive)
    except RunStoreError as error:  # the store was damaged after the page was opened
        st.error(escape_markdown(str(error)))


def _body(who: str, was_alive: bool) -> None:
    messages()
    store, state = run_store.store(), runs_state()
    entries = run_store.entries()
    if not entries:
        _nothing_yet(who)
        st.query_params.clear()
        return
    latest = latest_rows(store)
    follow_the_link(entries, latest)
    every_setting = settings_that_differ(entries)
    shown = filters(entries, [*ALWAYS, *[name for name in every_setting.columns if name not in ALWAYS]])
    folded = fold(shown)
    settings = settings_that_differ(folded.entries)
    table(folded, latest, settings, who)
    by_id = {entry.id: entry for entry in entries}
    state.chosen = [run for run in state.chosen if run in by_id]
    chosen = [by_id[run] for run in state.chosen]
    summary_at, import_at = st.columns([5, 1], vertical_alignment="center")
    with summary_at:
        n_settings = len(settings.columns.drop("steps", errors="ignore"))
        _caption(len(entries), shown.entries, chosen, n_settings, len(shown.entries) - len(folded.entries))
    with import_at:
        _import(who)
    link = {"runs": ",".join(state.chosen)} | shown.link
    if chosen:
        curves_at, one_at = st.columns([9, 5], gap="medium")
        rows = {entry.id: store.rows(entry.id) for entry in chosen[:MAX_DRAWN]}
        with curves_at, frame.picture():
            link |= curves_panel(chosen, rows)
        with one_at:
            selected_run(chosen, entries, who)
        if lost := sum(store.n_rows(run) - len(found) for run, found in rows.items()):
            words = "1 report of these runs is" if lost == 1 else f"{lost:,} reports of these runs are"
            st.caption(f":material/broken_image: {words} damaged in the run store and left out of the curves.")
        if notes := list(run_notes(chosen[:MAX_DRAWN], rows, every_setting)):
            what_to_notice(notes)
    if st.query_params.to_dict() != link:
        st.query_params.from_dict(link)
    if was_alive and not any(map(_is_alive, entries)):
        st.rerun()  # to end the updates


def _caption(n: int, found: list[Entry], chosen: list[Entry], n_settings: int, n_folded: int) -> None:
    hidden = len(chosen) - len({entry.id for entry in found} & {entry.id for entry in chosen})
    words = [f"{len(found)} of {n} runs" if len(found) < n else f"{n} run{'s' if n > 1 else ''}"]
    if len(found) > 1:
        differ = f"they differ in {n_settings} setting{'s' if n_settings > 1 else ''}, each a column at the right"
        words.append(differ if n_settings else "all with equal settings")
    if n_folded:
        words.append(f"{n_folded} models of sweeps not shown, tick a sweep to see its own")
    words.append(f"{len(chosen)} chosen" if chosen else "tick the boxes on the left to see curves")
    if hidden:
        words.append(f"{hidden} of them hidden by the filter")
    if len(chosen) > MAX_DRAWN:
        words.append(f"the first {MAX_DRAWN} are drawn")
    st.caption(" · ".join(words) + ".")


def _import(who: str) -> None:
    with st.popover("Import", icon=":material/upload_file:", key="runs_import_open"):
        upload(who, lambda result: runs_state().choose(*runs_state().chosen, result.run), key="runs_import")


def _nothing_yet(who: str) -> None:
    with st.container(border=True):
        st.subheader("Nothing has been trained here yet", anchor=False)
        st.markdown(
            "A small model learns to reverse numbers in a few seconds. Start one, and it appears here with its curve, its "
            "settings and its weights at every step. Or import a file."
        )
        with st.container(horizontal=True):
            if st.button("Train the first one", icon=":material/school:", type="primary", key="runs_first"):
                st.switch_page(TRAIN)
            _import(who)


page()
