"""Runs: what have I trained? All runs in a table, the curves of the chosen ones, and links to the other screens."""

from __future__ import annotations

from typing import Any

import streamlit as st

from pages.runs.cards import MOST, cards, shipped_card
from pages.runs.chosen import TRAIN, curves_panel, run_notes, selected_run
from pages.runs.table import (
    ALWAYS,
    MAX_DRAWN,
    Filtered,
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
from pages.shared.layout import headline, what_to_notice
from pages.shared.session import upload
from xformer.errors import RunStoreError
from xformer.training.entry import Entry
from xformer.training.run_store import latest_rows

CARDS, TABLE = "cards", "table"
VIEWS = {CARDS: "Cards", TABLE: "Table"}
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
    store, entries = run_store.store(), run_store.entries()
    if not entries:
        _nothing_yet(who)
        st.query_params.clear()
        return
    latest = latest_rows(store)
    follow_the_link(entries, latest)
    every_setting = settings_that_differ(entries)
    found_at = st.container(key="runs_headline")
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="runs_toolbar"):
        view = _ask_view()
        shown = filters(
            entries, [*ALWAYS, *[name for name in every_setting.columns if name not in ALWAYS]], has_order=view == TABLE
        )
        st.space("stretch")
        _import(who)
    folded = fold(shown, runs_state().chosen if view == TABLE else ())
    if view == CARDS:
        some = folded.entries[:MOST]
        rows = {entry.id: store.rows(entry.id) for entry in some}
        cards(some, rows, entries, who)
        if len(some) < len(folded.entries):
            st.caption(f"The first {MOST} of {len(folded.entries)} runs; the table has all of them.")
        drawn, link = some, shown.link
    else:
        drawn, rows, link = _table(folded, len(entries), len(shown.entries), latest, who)
    notes = list(run_notes(drawn, rows, every_setting))
    with found_at:
        headline("".join(notes[:1]))
    if notes[1:]:
        what_to_notice(notes[1:])
    if st.query_params.to_dict() != link:
        st.query_params.from_dict(link)
    if was_alive and not any(map(_is_alive, entries)):
        st.rerun()  # to end the updates


def _ask_view() -> str:
    """Ask for cards or the table; a link with chosen runs is one of the table."""
    if "runs_view" not in st.session_state:
        is_table = "runs" in st.query_params or st.query_params.get("view") == TABLE
        st.session_state["runs_view"] = TABLE if is_table else CARDS
    st.segmented_control(
        "View", list(VIEWS), format_func=VIEWS.__getitem__, key="runs_view", required=True, persist_state="session",
        label_visibility="collapsed",
    )  # fmt: skip
    return st.session_state["runs_view"]


def _table(
    folded: Filtered, n: int, n_found: int, latest: dict[str, Any], who: str
) -> tuple[list[Entry], dict[str, Any], dict[str, str]]:
    """Draw the table and the curves of the chosen runs; returns these, their reports, and what the link keeps."""
    store, state, entries = run_store.store(), runs_state(), run_store.entries()
    settings = settings_that_differ(folded.entries)
    table(folded, latest, settings, who)
    by_id = {entry.id: entry for entry in entries}
    state.chosen = [run for run in state.chosen if run in by_id]
    chosen = [by_id[run] for run in state.chosen]
    n_settings = len(settings.columns.drop("steps", errors="ignore"))
    _caption(n, n_found, folded.entries, chosen, n_settings)
    rows = {entry.id: store.rows(entry.id) for entry in chosen[:MAX_DRAWN]}
    link = {"view": TABLE, "runs": ",".join(state.chosen)} | folded.link
    if chosen:
        curves_at, one_at = st.columns([9, 5], gap="medium")
        with curves_at, frame.picture():
            link |= curves_panel(chosen, rows)
        with one_at:
            selected_run(chosen, entries, who)
        if lost := sum(store.n_rows(run) - len(found) for run, found in rows.items()):
            words = "1 report of these runs is" if lost == 1 else f"{lost:,} reports of these runs are"
            st.caption(f":material/broken_image: {words} damaged in the run store and left out of the curves.")
    return chosen[:MAX_DRAWN], rows, link


def _caption(n: int, n_found: int, found: list[Entry], chosen: list[Entry], n_settings: int) -> None:
    hidden = len({entry.id for entry in chosen} - {entry.id for entry in found})
    words = [f"{n_found} of {n} runs" if n_found < n else f"{n} run{'s' if n > 1 else ''}"]
    if n_found > 1:
        words.append(f"settings that differ: {n_settings}" if n_settings else "equal settings")
    if n_found > len(found):
        words.append(f"{n_found - len(found)} models of sweeps not shown, tick a sweep to see its own")
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
    st.markdown(
        "Nothing has been trained here yet. A small model learns to reverse numbers in seconds; it will look like this:"
    )
    with st.container(horizontal=True, gap="small"):
        if st.button("Train the first one", icon=":material/school:", type="primary", key="runs_first"):
            st.switch_page(TRAIN)
        _import(who)
    shipped_card()


page()
