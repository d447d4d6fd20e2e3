"""The selected run: its name and tags, what can be done with it, and its way to every other screen."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from pages.runs.curves import labels
from pages.runs.description import description
from pages.runs.downloads import downloads
from pages.runs.table import runs_state, sweep_panel
from pages.shared import run_commands, run_store, run_weights, screens
from pages.shared.model_choice import choose_model
from xformer.training.entry import DAMAGED, ELSEWHERE, RESUMABLE, Entry

TRAIN = screens.file_of("train")


def selected_run(entries: Sequence[Entry], all_entries: Sequence[Entry], who: str) -> None:
    """The panel of one of the chosen runs."""
    names = labels(entries)
    by_id = {entry.id: entry for entry in entries}
    state = runs_state()
    if state.to_select in by_id:
        st.session_state["runs_one"] = state.to_select
    if st.session_state.get("runs_one") not in by_id:
        st.session_state["runs_one"] = entries[0].id
    state.to_select = None
    run = st.selectbox("Run", list(by_id), format_func=names.__getitem__, key="runs_one", persist_state="session")
    entry = by_id[run]
    mine = run_store.may_control(entry, who)
    with st.container(border=True):
        description(entry, mine, sorted({tag for one in all_entries for tag in one.tags}))
        _actions(entry, entries, names, mine, who)
        _open_on(entry) if entry.sweep is None else sweep_panel(entry, all_entries)
        st.button(
            "Delete",
            icon=":material/delete:",
            disabled=entry.is_active or not mine,
            help=_on_deleting(entry, mine),
            on_click=_delete,
            args=(run, entry.name),
            key=f"runs_delete_{run}",
            type="tertiary",
        )


def _actions(entry: Entry, entries: Sequence[Entry], names: dict[str, str], mine: bool, who: str) -> None:
    run = entry.id
    if st.button("Open in Train", type="primary", width="stretch", key=f"runs_train_{run}"):
        st.switch_page(TRAIN, query_params={"run": run})
    again_at, files_at = st.columns(2, gap="small")
    is_ours = entry.wanted != ELSEWHERE  # another program's is gone on with there
    if mine and is_ours and entry.state in RESUMABLE and not entry.is_active:
        again_at.button("Resume", on_click=_resume, args=(run,), width="stretch", key=f"runs_resume_{run}")
    else:
        again_at.button(
            "Train again",
            width="stretch",
            help="A new run with the same settings, from the start: on a CPU it ends in the same bits.",
            on_click=_again,
            args=(entry,),
            disabled=not is_ours or not who or entry.state == DAMAGED,
            key=f"runs_again_{run}",
        )
    with files_at, st.popover("Download", width="stretch"):
        downloads(entry, entries, names)


def _on_deleting(entry: Entry, mine: bool) -> str:
    if not mine:
        return "Only whoever started it can delete it."
    if entry.is_active:
        return "Stop it first, on the Train screen."
    return f"It{' and its models' if entry.sweep else ''} can be taken back for an hour."


def _open_on(entry: Entry) -> None:
    """One press to each screen that shows a model, at the step that is chosen here."""
    steps = run_weights.steps_of(entry.id)
    if not steps:
        st.caption("It has no weights to look at yet.")
        return
    step, key = steps[-1], f"runs_step_{entry.id}"
    if len(steps) > 1:
        if (
            st.session_state.get(key) in (None, st.session_state.get(f"{key}_latest"))
            or st.session_state[key] not in steps
        ):
            st.session_state[key] = steps[-1]  # it goes along while nobody has moved it
        st.session_state[f"{key}_latest"] = steps[-1]
        step = st.select_slider("Open its step", steps, key=key, persist_state="session", format_func="{:,}".format)
    else:
        st.caption(f"Open its step {step:,}")
    columns = st.columns(2, gap="xsmall")
    for number, (name, page) in enumerate(screens.of_a_model().items()):
        if columns[number % 2].button(name, key=f"runs_open_{name}_{entry.id}", width="stretch"):
            choose_model(f"{entry.id}@{step}")
            st.switch_page(page)


def _resume(run: str) -> None:
    runs_state().attempt(lambda: run_commands.resume(run))


def _delete(run: str, name: str) -> None:
    if runs_state().attempt(lambda: run_commands.delete(run)):
        runs_state().deleted = (run, name)
        runs_state().choose(*[other for other in runs_state().chosen if other != run])


def _again(entry: Entry) -> None:
    """Queue a run with the same settings and choose it too."""

    def submit() -> None:
        run = run_commands.again(entry.id, entry.name)
        runs_state().choose(*runs_state().chosen, run)

    runs_state().attempt(submit)
