"""Runs: what have I trained? A card for each run, or a table of all runs with the curves of the chosen ones."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from pages.compute import run_commands, run_thumbnail, visible_runs
from pages.compute.call import is_dark
from pages.controls import embed
from pages.controls.text import escape_markdown, headline, what_to_notice
from pages.controls.widgets import choose_unlinked, table_of_rows, validate_text
from pages.runs.chosen import MAX_DRAWN, Rows, alarms_words, curves_panel, run_notes, run_panel, runs_state
from pages.state import screens
from pages.state.link import begin_part, share, take_parameter
from pages.state.session import upload
from xformer.errors import InputError, RunStoreError
from xformer.formatting import percent
from xformer.presets import PRESETS
from xformer.training.limits import n_models
from xformer.training.run_record import DAMAGED, RunRecord
from xformer.training.run_store import exact_match, latest_rows
from xformer.training.tables import differing, overview
from xformer.viz.theme import head_hue, pick
from xformer.viz.training_curves import dot

CARDS, TABLE = "cards", "table"
VIEWS = {CARDS: "Cards", TABLE: "Table"}
POLL = 2.0
"""Seconds between two updates while a run is queued or in training."""
MENU = 440
"""The height of a card's menu in CSS pixels."""
MAX_CARDS = 12
MAX_SETTINGS = 3
SHIPPED = "reverse-small"
"""The shipped model whose card serves as an example of a run."""
MAX_FIND = 80
FEW = 8
"""Number of runs up to which there is no filter."""
BELOW = "↳ "
Records = Sequence[RunRecord]


def page() -> None:
    visitor = visible_runs.visitor()
    st.title("Runs :small[:gray[What have I trained?]]", anchor=False)
    try:
        alive = any(_is_alive(entry) for entry in visible_runs.entries())
    except RunStoreError as error:
        st.error(escape_markdown(str(error)))
        return
    st.fragment(_runs, run_every=POLL if alive else None)(visitor, alive)


def _is_alive(entry: RunRecord) -> bool:
    return entry.is_active or entry.state == "queued"


def _runs(visitor: str, was_alive: bool) -> None:
    try:
        _body(visitor, was_alive)
    except RunStoreError as error:  # the store became unreadable after the page was opened
        st.error(escape_markdown(str(error)))


def _body(visitor: str, was_alive: bool) -> None:
    begin_part()
    _messages()
    store, entries = visible_runs.store(), visible_runs.entries()
    if not entries:
        _nothing_yet(visitor)
        share({})
        return
    latest = latest_rows(store)
    _follow_the_link(entries, latest)
    finding_at = st.container(key="runs_headline")
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="runs_toolbar"):
        st.session_state.setdefault("runs_view", CARDS)
        view = choose_unlinked("View", VIEWS, "runs_view")
        found = _filter_runs(entries)
        st.space("stretch")
        _import(visitor)
    _cluster()
    some = _collapse_sweeps(found, runs_state().chosen if view == TABLE else ())
    drawn, rows, link = some[:MAX_CARDS] if view == CARDS else [], {}, {}
    if not some:
        _no_match()
    elif view == TABLE:
        _table(some, latest, visitor)
    if view == TABLE:
        drawn, rows, more = _chosen(some, found, entries, visitor)
        link = {"view": TABLE, "runs": ",".join(runs_state().chosen)} | more
    elif some:
        rows = {entry.id: store.rows(entry.id) for entry in drawn}
        _cards(drawn, rows, entries, visitor)
        if len(drawn) < len(some):
            st.caption(f"The first {MAX_CARDS} of {len(some)} runs; the table has all of them.")
    link |= {"find": text} if (text := st.session_state["runs_text"][:MAX_FIND]) else {}
    notes = list(run_notes(drawn, rows, differing(entries)))
    with finding_at:
        headline("".join(notes[:1]))
    what_to_notice(notes[1:])
    share(link)
    if was_alive and not any(map(_is_alive, entries)):
        st.rerun()  # ends the periodic updates


def _no_match() -> None:
    with st.container(border=True, horizontal=True, vertical_alignment="center"):
        st.markdown("No runs match.", width="stretch")
        clear = partial(st.session_state.__setitem__, "runs_text", "")
        st.button("Show all runs", icon=":material/filter_alt_off:", key="runs_show_all", on_click=clear)


def _messages() -> None:
    """Show why the last command was refused, and offer to restore a deleted run."""
    state = runs_state()
    with st.container(key="runs_bar"):  # always drawn: if it appeared, the browser would rebuild everything below
        if state.problem:
            st.warning(escape_markdown(state.problem), icon=":material/warning:")
            state.problem = ""
        if state.deleted:
            run, name = state.deleted
            with st.container(horizontal=True, vertical_alignment="center", gap="small", border=True):
                st.markdown(f":material/delete: Deleted “{escape_markdown(name)}”. It can be restored for an hour.")
                st.button("Undo", icon=":material/undo:", on_click=_undelete, args=(run,), key="runs_undo")
                st.button("Dismiss", on_click=setattr, args=(state, "deleted", None), type="tertiary")


def _cluster() -> None:
    """Draw the load of the Ray cluster that trains the runs, or an error if it cannot be reached; nothing without one."""
    with st.container(key="runs_cluster"):  # always drawn: if it appeared, the browser would rebuild everything below
        if (found := visible_runs.cluster()) is None:
            return
        if found.problem:
            st.caption(f":material/cloud_off: {escape_markdown(found.problem)} Runs continue when it is back.")
            return
        gpus = f" · {found.free_gpus:g} of {found.gpus:g} GPUs" if found.gpus else ""
        nodes = f"{found.nodes:g} node{'s' if found.nodes != 1 else ''}"
        st.caption(f":material/hub: Ray: {found.free_cpus:g} of {found.cpus:g} CPUs{gpus} free on {nodes}.")


def _undelete(run: str) -> None:
    state = runs_state()
    if state.attempt(lambda: run_commands.undelete(run)):
        state.choose(*state.chosen, run)
    state.deleted = None


def _follow_the_link(entries: Sequence[RunRecord], latest: Mapping[str, Any]) -> None:
    """Choose the runs in the link, and show the table; at the start of a visit without them, the latest runs with metrics."""
    state, link = runs_state(), take_parameter("runs")
    if take_parameter("view") == TABLE or link is not None:
        st.session_state["runs_view"] = TABLE
    if link is None:
        if state.has_begun:
            return
        found = [entry.id for entry in entries if entry.id in latest and not entry.sweep_of][:4]
        found = found or [entry.id for entry in entries if entry.sweep is not None][:1]
    else:
        wanted, known = [run for run in link.split(",") if run], {entry.id for entry in entries}
        found = [run for run in wanted if run in known]
        if len(found) < len(wanted):
            words = "The link asks for runs that do not exist here; they may have been deleted."
            st.warning(words, icon=":material/link_off:")
    state.choose(*found[:MAX_DRAWN])


def _filter_runs(entries: Sequence[RunRecord]) -> list[RunRecord]:
    """Draw the filter if there are more than `FEW` runs or the link has a filter, and return the matching runs."""
    wanted = take_parameter("find") or ""
    if wanted or "runs_text" not in st.session_state:
        st.session_state["runs_text"] = wanted.replace(",", " ").strip()[:MAX_FIND]
    text = st.session_state["runs_text"]
    if text or sum(not entry.sweep_of for entry in entries) > FEW:
        ask = partial(st.text_input, label_visibility="collapsed", icon=":material/search:", width=260)
        text = ask("Find", key="runs_text", placeholder="name, tag, task, state …", persist_state="session")
    try:
        words = validate_text(text or "", MAX_FIND).lower().split()
    except InputError as error:
        st.warning(escape_markdown(str(error)), icon=":material/search_off:")
        words = []
    return [entry for entry in entries if all(word in _search_text(entry) for word in words)]


def _search_text(entry: RunRecord) -> str:
    task = entry.task.get("name", "")
    return f"{entry.name} {' '.join(entry.tags)} {entry.title} {entry.preset} {entry.id} {task} {entry.state}".lower()


def _collapse_sweeps(found: list[RunRecord], ticked: Sequence[str]) -> list[RunRecord]:
    """Hide the models of sweeps unless the sweep or one of its models is ticked, or a filter is set."""
    if st.session_state["runs_text"]:
        return found
    listed = {entry.id for entry in found}
    opened = {*ticked, *(entry.sweep_of for entry in found if entry.id in ticked)}
    return [entry for entry in found if entry.sweep_of not in listed or entry.sweep_of in opened]


def _import(visitor: str) -> None:
    with st.popover("Import", icon=":material/upload_file:", key="runs_import_open"):
        upload(visitor, lambda new: runs_state().choose(*runs_state().chosen, new.run), key="runs_import", records=True)


def _nothing_yet(visitor: str) -> None:
    st.markdown("Nothing has been trained here yet. A small model learns to reverse numbers in seconds, like this one:")
    with st.container(horizontal=True, gap="small"):
        if st.button("Train the first model", icon=":material/school:", type="primary", key="runs_first"):
            st.switch_page(screens.file_of("train"))
        _import(visitor)
    with st.container(border=True, width=run_thumbnail.CARD, gap="xsmall", key="card_shipped"):
        run_thumbnail.draw_shipped(SHIPPED)
        st.markdown(f"**{PRESETS[SHIPPED].title}**  \n:small[{SHIPPED}, shipped]")


def _cards(entries: Records, rows: Mapping[str, Rows], all_runs: Records, visitor: str, chosen: Records = ()) -> None:
    """Draw a card for each run with its reports `rows`; the metrics of the `chosen` runs can be downloaded together."""
    settings = differing(entries)
    with st.container(horizontal=True, gap="small", key="cards"):
        for entry in entries:
            with st.container(border=True, width=run_thumbnail.CARD, gap="xsmall", key=f"card_{entry.id}"):
                menu = _card(entry, rows[entry.id], settings.loc[entry.id], all_runs)
            with menu, st.container(height=MENU, width=380, border=False):  # a menu that grows later would not fit
                if menu.open:
                    run_panel(entry, chosen or [entry], all_runs, visitor)


def _card(entry: RunRecord, rows: Rows, settings: pd.Series, all_entries: Sequence[RunRecord]) -> Any:
    """Draw the card of a run with its thumbnail, state and settings; return its menu."""
    score = exact_match(entry, rows[-1] if rows else {})
    status = entry.state + (alarms_words(entry) if score is None else f" · **{percent(score, 1)}** exact match")
    shown, shown_rows = entry, rows
    if entry.sweep is not None:
        status = f"{entry.state} · {n_models(entry)} models, one in the picture"
        if models := [run for run in all_entries if run.sweep_of == entry.id]:
            shown = max(models, key=lambda run: run.figures.get("exact_match", -1.0))
            shown_rows = visible_runs.store().rows(shown.id)
    if not run_thumbnail.draw_run(shown, shown_rows):
        st.caption("Its picture appears with its first weights.")
    st.markdown(f"**{escape_markdown(entry.name)}**  \n:small[{status}]")
    if entry.message and entry.state in (DAMAGED, "failed"):
        st.text(entry.message)
    values = {name: f"{value:g}" if isinstance(value, float) else value for name, value in settings.dropna().items()}
    known = [f"{name} {value}" for name, value in values.items()]
    if chips := [f"`{' '.join(chip.replace('`', ' ').split())}`" for chip in known[:MAX_SETTINGS]]:
        rest = len(known) - MAX_SETTINGS
        st.markdown(" ".join(chips + [f":small[+{rest}]"] * (rest > 0)))
    return st.popover("Open", icon=":material/movie:", width="stretch", key=f"runs_menu_{entry.id}", on_change="rerun")


def _comparison_table(entries: Sequence[RunRecord], latest: Mapping[str, Any]) -> pd.DataFrame:
    """Return the overview and the settings of runs, the latest first, with the models of each sweep right below it."""
    table, sweeps = overview(entries, latest), {entry.id: entry.name for entry in entries if entry.sweep is not None}
    equal = [name for name in ("device", "tags") if len(set(map(str, table[name]))) <= 1]
    settings = differing(entries).drop(columns=["steps"], errors="ignore")  # already in the overview
    table = pd.concat([table.drop(columns=[*equal, "created"]), settings, table["created"]], axis=1)
    members = {entry.id: entry for entry in entries if entry.sweep_of in sweeps}
    for run, member in members.items():
        table.loc[run, "name"] = BELOW + member.name.removeprefix(f"{sweeps[member.sweep_of]} · ")
    order = [entry.id for entry in entries]
    top = {run: order.index(members[run].sweep_of if run in members else run) for run in order}
    return table.loc[sorted(order, key=lambda run: (top[run], run in members, order.index(run)))]


def _table(entries: Sequence[RunRecord], latest: Mapping[str, Any], visitor: str) -> None:
    """Draw the table; ticked rows are the chosen runs."""
    state = runs_state()
    lines = _comparison_table(entries, latest)
    slots, dark = state.colour_slots(), is_dark()
    state.rows = list(lines.index)
    lines.insert(0, "●", [dot(pick(head_hue(slots[run]), dark) if run in slots else None) for run in lines.index])
    if not visible_runs.is_open():
        mine = {run.id: "only you" if run.private else "you" for run in entries if visitor and run.owner == visitor}
        lines.insert(2, "owner", [mine.get(run, "others") for run in lines.index])
    # Rows are ticked by index, so another order, or a choice made elsewhere, needs another key.
    stamp = hashlib.sha1(",".join(state.rows).encode()).hexdigest()[:12]
    key = f"runs_table_{state.generation}_{stamp}"
    ticked = [place for place, run in enumerate(lines.index) if run in state.chosen]
    column, help = st.column_config, "The share of unseen sequences that are right in full."
    columns = {
        "●": column.ImageColumn("", width=36, pinned=True, help="The colour of the run’s curves below."),
        "name": column.TextColumn(width=170, pinned=True),
        "step": column.NumberColumn(format="localized", width=70),
        "steps": column.NumberColumn("of", format="localized", width=70),
        "exact_match": column.ProgressColumn("exact match", format="percent", width=130, help=help),
        "loss": column.NumberColumn(format="%.3g", width=85, help="The last training loss in nats."),
        "seconds": column.NumberColumn(format="%.1f", width=75, help="Training time."),
        "created": column.DatetimeColumn(format="distance", width=130),
        "peak_lr": column.NumberColumn(format="%g"),
    }
    alt = "The runs, one per row; tick rows to compare their curves."
    table_of_rows(lines, columns, key, 432, alt, "multi-row", ticked, lambda: _choose_ticked(key))


def _choose_ticked(key: str) -> None:
    """Choose the ticked runs; those chosen earlier keep their order, and so their colours."""
    state, rows = runs_state(), st.session_state[key]["selection"]["rows"]
    ticked = [state.rows[row] for row in rows if row < len(state.rows)]
    kept = [run for run in state.chosen if run in ticked or run not in state.rows]
    state.chosen = [*kept, *[run for run in ticked if run not in kept]]


def _chosen(
    shown: list[RunRecord], found: list[RunRecord], entries: list[RunRecord], visitor: str
) -> tuple[list[RunRecord], dict[str, Any], dict[str, str]]:
    """Draw the curves of the chosen runs; return these runs, their reports, and the link parameters of the curves."""
    store, state, link = visible_runs.store(), runs_state(), {}
    by_id = {entry.id: entry for entry in entries}
    state.chosen = [run for run in state.chosen if run in by_id]
    chosen = [by_id[run] for run in state.chosen[:MAX_DRAWN]]
    n = len(entries)
    words = [f"{len(found)} of {n} runs" if len(found) < n else f"{n} run{'s' if n > 1 else ''}"]
    if len(found) > len(shown):
        words.append(f"{len(found) - len(shown)} models of sweeps hidden, tick a sweep to see its models")
    words.append(f"{len(chosen)} chosen" if chosen else "tick the boxes on the left to see curves")
    if hidden := len({entry.id for entry in chosen} - {entry.id for entry in shown}):
        words.append(f"{hidden} of them hidden by the filter")
    st.caption(" · ".join(words) + ".")
    rows = {entry.id: store.rows(entry.id) for entry in chosen}
    if chosen:
        with embed.picture():
            link = curves_panel(chosen, rows)
        _cards(chosen, rows, entries, visitor, chosen)
        if lost := sum(store.n_rows(run) - len(found) for run, found in rows.items()):
            words = "1 report of these runs is" if lost == 1 else f"{lost:,} reports of these runs are"
            st.caption(f":material/broken_image: {words} damaged in the run store and left out of the curves.")
    return chosen, rows, link


page()
