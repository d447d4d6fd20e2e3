"""Runs: what have I trained? All runs in a table, the curves of the chosen ones, and links to the other screens."""

from __future__ import annotations

from typing import Any

import streamlit as st

from pages.runs.cards import MOST, cards, shipped_card
from pages.runs.chosen import TRAIN, curves_panel, run_notes
from pages.runs.table import (
    MAX_DRAWN,
    MAX_FIND,
    find,
    fold,
    follow_the_link,
    messages,
    nothing_found,
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
    finding_at = st.container(key="runs_headline")
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="runs_toolbar"):
        view = _ask_view()
        found = find(entries)
        st.space("stretch")
        _import(who)
    some = fold(found, runs_state().chosen if view == TABLE else ())
    drawn, rows, link = [], {}, {}
    if not some:
        nothing_found()
    elif view == CARDS:
        drawn = some[:MOST]
        rows = {entry.id: store.rows(entry.id) for entry in drawn}
        cards(drawn, rows, entries, who)
        if len(drawn) < len(some):
            st.caption(f"The first {MOST} of {len(some)} runs; the table has all of them.")
    else:
        table(some, latest, settings_that_differ(some), who)
    if view == TABLE:
        drawn, rows, more = _chosen(some, found, entries, who)
        link = {"view": TABLE, "runs": ",".join(runs_state().chosen)} | more
    link |= {"find": text} if (text := st.session_state["runs_text"][:MAX_FIND]) else {}
    notes = list(run_notes(drawn, rows, settings_that_differ(entries)))
    with finding_at:
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


def _chosen(
    shown: list[Entry], found: list[Entry], entries: list[Entry], who: str
) -> tuple[list[Entry], dict[str, Any], dict[str, str]]:
    """Draw the curves of the chosen runs; returns these, their reports, and what the link keeps of the curves."""
    store, state, link = run_store.store(), runs_state(), {}
    by_id = {entry.id: entry for entry in entries}
    state.chosen = [run for run in state.chosen if run in by_id]
    chosen = [by_id[run] for run in state.chosen]
    _caption(len(entries), len(found), shown, chosen)
    rows = {entry.id: store.rows(entry.id) for entry in chosen[:MAX_DRAWN]}
    if chosen:
        with frame.picture():
            link = curves_panel(chosen, rows)
        cards(chosen[:MAX_DRAWN], rows, entries, who, chosen)
        if lost := sum(store.n_rows(run) - len(found) for run, found in rows.items()):
            words = "1 report of these runs is" if lost == 1 else f"{lost:,} reports of these runs are"
            st.caption(f":material/broken_image: {words} damaged in the run store and left out of the curves.")
    return chosen[:MAX_DRAWN], rows, link


def _caption(n: int, n_found: int, found: list[Entry], chosen: list[Entry]) -> None:
    hidden = len({entry.id for entry in chosen} - {entry.id for entry in found})
    words = [f"{n_found} of {n} runs" if n_found < n else f"{n} run{'s' if n > 1 else ''}"]
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
