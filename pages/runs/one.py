"""One run in the hand: its name and tags, what can be done with it, and its way to every other screen."""

from __future__ import annotations

import math
from collections.abc import Sequence

import streamlit as st

from pages.runs.curves import labels
from pages.shared import models, run_commands, run_store, screens
from pages.shared.runs_bar import DELETED, attempt
from pages.shared.runs_table import CHOSEN, choose
from pages.shared.sidebar import choose_model
from xformer.training.latest_metrics import has_no_answer
from xformer.training.metric_files import event_files, folder_name, metrics_csv
from xformer.training.repair import DAMAGED
from xformer.training.run_store import ELSEWHERE, RESUMABLE, Entry
from xformer.training.transfer import to_file
from xformer.words import percent

TRAIN = screens.file_of("train")


def one_run(entries: Sequence[Entry], every_tag: Sequence[str], who: str) -> None:
    """The panel of one of the chosen runs."""
    names = labels(entries)
    by_id = {entry.id: entry for entry in entries}
    if st.session_state.get("runs_one") not in by_id:
        st.session_state["runs_one"] = entries[0].id
    run = st.selectbox("Run", list(by_id), format_func=names.__getitem__, key="runs_one", persist_state="session")
    entry = by_id[run]
    mine = run_store.may_control(entry, who)
    with st.container(border=True):
        _words(entry, mine, every_tag)
        _facts(entry, mine)
        _actions(entry, entries, names, mine, who)
        _open_on(entry)
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


def _words(entry: Entry, mine: bool, every_tag: Sequence[str]) -> None:
    name, tags = f"runs_name_{entry.id}", f"runs_tags_{entry.id}"
    if st.session_state.get(f"{name}_was") != entry.name:  # renamed elsewhere
        st.session_state[name] = st.session_state[f"{name}_was"] = entry.name
    if st.session_state.get(f"{tags}_was") != entry.tags:
        st.session_state[tags], st.session_state[f"{tags}_was"] = list(entry.tags), entry.tags
    st.text_input("Name", key=name, disabled=not mine, on_change=_rename, args=(entry.id,))
    st.multiselect(
        "Tags",
        sorted({*every_tag, *entry.tags}),
        key=tags,
        disabled=not mine,
        accept_new_options=True,
        max_selections=12,
        placeholder="type a new tag" if mine else "none",
        on_change=_tag,
        args=(entry.id,),
    )


def _facts(entry: Entry, mine: bool) -> None:
    of = f" of {entry.train['steps']:,}" if "steps" in entry.train else ""  # not so in a damaged one
    device = f" on {entry.device}" if entry.device else ""
    if not mine:
        st.caption("Started by someone else: you are looking on.")
    if entry.private and not run_store.is_open():  # there everyone may see everything
        with st.container(horizontal=True, vertical_alignment="center", key="runs_private"):
            st.caption(":material/lock: Only you see this run.", width="content")
            st.button("Share with everyone here", on_click=_share, args=(entry.id,), key=f"runs_share_{entry.id}")
    st.caption(f"**{entry.state}** · step {entry.step:,}{of} · {entry.seconds:.1f} s{device} · `{entry.id}`")
    if samples := entry.figures.get("samples"):
        share, loss = entry.figures.get("exact_match", 0.0), entry.figures.get("loss", 0.0)
        is_text = has_no_answer(entry)
        how = f"{loss / math.log(2):.3f} bits per character" if is_text else f"{percent(share)} exact match"
        st.caption(f"{how} on {samples:,} unseen inputs.")
    if entry.title != entry.name and entry.title:
        st.text(entry.title)
    if entry.message:
        st.text(entry.message)


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
        _files(entry, entries, names)


def _on_deleting(entry: Entry, mine: bool) -> str:
    if not mine:
        return "Only whoever started it can delete it."
    return "Stop it first, on the Train screen." if entry.is_active else "It can be taken back for an hour."


def _open_on(entry: Entry) -> None:
    """One press to each screen that shows a model, at the step that is chosen here."""
    steps = models.steps_of(entry.id)
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


def _files(entry: Entry, entries: Sequence[Entry], names: dict[str, str]) -> None:
    store = run_store.store()
    file = folder_name(entry.name)
    if steps := models.steps_of(entry.id):
        st.download_button(
            f"Weights of step {steps[-1]:,}",
            lambda: to_file(store, entry.id),
            f"{file}.safetensors",
            "application/octet-stream",
            on_click="ignore",
            key=f"runs_weights_{entry.id}",
            help="One safetensors file with settings, curve and figures; Import takes it in again, here or elsewhere.",
            width="stretch",
        )
    together = len(entries) > 1
    which = f", all {len(entries)} chosen" if together else ""
    called = {f"{names[one.id]} {one.id}": one for one in entries}
    st.download_button(
        f"Metrics, CSV{which}",
        lambda: metrics_csv({name: store.rows(one.id) for name, one in called.items()}),
        f"{'runs' if together else file}.csv",
        "text/csv",
        on_click="ignore",
        key="runs_csv",
        width="stretch",
    )
    st.download_button(
        f"Metrics for TensorBoard{which}",
        lambda: event_files(
            {name: store.rows(one.id) for name, one in called.items()},
            {name: one.created for name, one in called.items()},
        ),
        f"{'runs' if together else file}-tensorboard.zip",
        "application/zip",
        on_click="ignore",
        key="runs_events",
        help="Unpack it and run: tensorboard --logdir FOLDER",
        width="stretch",
    )


def _resume(run: str) -> None:
    attempt(lambda: run_commands.resume(run))


def _rename(run: str) -> None:
    if not attempt(lambda: run_commands.rename(run, st.session_state[f"runs_name_{run}"])):
        st.session_state.pop(f"runs_name_{run}_was", None)  # show what it is called still


def _tag(run: str) -> None:
    if not attempt(lambda: run_commands.tag(run, st.session_state[f"runs_tags_{run}"])):
        st.session_state.pop(f"runs_tags_{run}_was", None)


def _share(run: str) -> None:
    attempt(lambda: run_commands.share(run))


def _delete(run: str, name: str) -> None:
    if attempt(lambda: run_commands.delete(run)):
        st.session_state[DELETED] = (run, name)
        choose(*[other for other in st.session_state[CHOSEN] if other != run])


def _again(entry: Entry) -> None:
    """Queue a run with the same settings and choose it too."""

    def submit() -> None:
        run = run_commands.again(entry.id, entry.name)
        choose(*st.session_state[CHOSEN], run)

    attempt(submit)
