"""The curves of the chosen runs over each other: which figure, against what, on which scale, how smooth."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from pages.runs.table import MAX_DRAWN, runs_state, sweep_panel
from pages.shared import run_commands, run_store, run_weights, screens
from pages.shared.escape_markdown import escape_markdown
from pages.shared.layout import chart_spec, is_dark, what_to_notice
from pages.shared.session import choose_model
from pages.shared.widgets import seed
from xformer.formatting import percent
from xformer.training.entry import DAMAGED, ELSEWHERE, RESUMABLE, Entry
from xformer.training.run_store import exact_match, has_no_answer
from xformer.training.tables import REPORTING, event_files, flat, folder_name, metrics_csv
from xformer.training.transfer import to_file
from xformer.viz.training_curves import curves, curves_chart, run_colour

METRICS = {
    "held_out_exact_match": "exact match",
    "held_out_loss": "held-out loss",
    "loss": "training loss",
    "held_out_token_accuracy": "token accuracy",
    "gradient_norm": "gradient norm",
    "learning_rate": "learning rate",
    "tokens_per_second": "tokens per second",
    "best_head_score": "best head’s score",
}
FIRST = ("held_out_exact_match", "held_out_loss")
SMOOTHING = (0.0, 0.3, 0.6, 0.8, 0.9, 0.95)
SCALES = {"linear": "linear", "log": "log"}
AXES = {"step": "steps", "seconds": "seconds"}


def labels(entries: Sequence[Entry]) -> dict[str, str]:
    """What each run is called in a picture: its name, with the start of its id where two have the same."""
    names = [entry.name for entry in entries]
    return {
        entry.id: entry.name if names.count(entry.name) == 1 else f"{entry.name} · {entry.id[:4]}" for entry in entries
    }


def curves_panel(entries: Sequence[Entry], rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, str]:
    """Draw the curves of the chosen runs; what the link must say to draw them again."""
    entries = entries[:MAX_DRAWN]
    metrics = _ask_metrics()
    seed("x", list(AXES), "step", key="runs_x", called="horizontal axis")
    seed("scale", list(SCALES), "log", key="runs_scale", called="scale")
    seed("smooth", SMOOTHING, 0.0, key="runs_smooth", called="smoothing")
    controls = st.container(horizontal=True, gap="medium", vertical_alignment="bottom")
    x = controls.segmented_control(
        "Against", list(AXES), format_func=AXES.__getitem__, key="runs_x", persist_state="session", required=True
    )
    scale = controls.segmented_control(
        "Scale",
        list(SCALES),
        key="runs_scale",
        persist_state="session",
        required=True,
        help="Of losses, norms and rates; shares are always drawn from 0 to 1.",
    )
    assert x is not None  # this one and the other are required, and set before they are drawn
    assert scale is not None
    smoothing = controls.select_slider(
        "Smoothing",
        SMOOTHING,
        key="runs_smooth",
        persist_state="session",
        width=150,
        help="How much of the average before each new report keeps. The raw curve stays behind, faint.",
    )
    names, slots, dark = labels(entries), runs_state().colour_slots(), is_dark()
    colours = {names[entry.id]: run_colour(slots.get(entry.id, 0), dark) for entry in entries}
    found = {names[entry.id]: [_drawn(entry, flat(row)) for row in rows[entry.id]] for entry in entries}
    state = tuple(
        (entry.id, names[entry.id], colours[names[entry.id]], len(rows[entry.id]), str(rows[entry.id][-1:]))
        for entry in entries
    )
    for metric in metrics:
        if not any(metric in row for points in found.values() for row in points):
            st.caption(f"No chosen run has reported its {METRICS[metric]} yet.")
            continue

        def draw(metric: str = metric) -> Any:
            frame = curves(found, metric, x=x, smoothing=smoothing)
            return curves_chart(frame, metric, METRICS[metric], colours, x=x, log=scale == "log")

        spec = chart_spec((state, metric, x, scale, smoothing), draw)
        wide = st.container(key=f"wide_runs_{metric}")
        wide.vega_lite_chart(spec, theme="streamlit", key=f"runs_chart_{metric}", width="stretch")
    without = [names[entry.id] for entry in entries if not rows[entry.id] and entry.sweep is None]
    if without:
        st.caption(f"Without a curve: {len(without)} of the chosen runs, which have reported nothing yet.")
    return {
        "curves": ",".join(metrics),
        "x": x,
        "scale": scale,
        "smooth": str(smoothing),
    }


def _drawn(entry: Entry, row: dict[str, Any]) -> dict[str, Any]:
    """A report without the exact match of a text, which is none."""
    return {name: value for name, value in row.items() if name != FIRST[0]} if has_no_answer(entry) else row


def _ask_metrics() -> list[str]:
    if "runs_metrics" not in st.session_state:
        asked = [name for name in st.query_params.get("curves", ",".join(FIRST)).split(",") if name in METRICS]
        st.session_state["runs_metrics"] = asked or list(FIRST)
    chosen = st.multiselect(
        "Curves",
        list(METRICS),
        format_func=METRICS.__getitem__,
        key="runs_metrics",
        persist_state="session",
        placeholder="choose what to see",
        help="Each gets a picture of its own. Click a line to bring its run to the front, double-click to let go.",
    )
    return [name for name in METRICS if name in chosen]  # in one order, however they were clicked


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


def description(entry: Entry, mine: bool, every_tag: Sequence[str]) -> None:
    """Draw it; whoever does not control the run looks on."""
    _name_and_tags(entry, mine, every_tag)
    _facts(entry, mine)


def _name_and_tags(entry: Entry, mine: bool, every_tag: Sequence[str]) -> None:
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


def _rename(run: str) -> None:
    if not runs_state().attempt(lambda: run_commands.rename(run, st.session_state[f"runs_name_{run}"])):
        st.session_state.pop(f"runs_name_{run}_was", None)  # show what it is called still


def _tag(run: str) -> None:
    if not runs_state().attempt(lambda: run_commands.tag(run, st.session_state[f"runs_tags_{run}"])):
        st.session_state.pop(f"runs_tags_{run}_was", None)


def _share(run: str) -> None:
    runs_state().attempt(lambda: run_commands.share(run))


def downloads(entry: Entry, entries: Sequence[Entry], names: dict[str, str]) -> None:
    """The buttons of the selected run; metrics are those of all chosen `entries`, called by their `names`."""
    store = run_store.store()
    file = folder_name(entry.name)
    if steps := run_weights.steps_of(entry.id):
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


GOOD = 0.99

DIP = 0.02


def notes(entries: Sequence[Entry], rows: Mapping[str, Sequence[Mapping[str, Any]]], settings: pd.DataFrame) -> None:
    """The frame at the end of the screen."""
    what_to_notice(said) if (said := list(_notes(entries, rows, settings))) else None


def _notes(
    entries: Sequence[Entry], rows: Mapping[str, Sequence[Mapping[str, Any]]], settings: pd.DataFrame
) -> Iterator[str]:
    names = {run: escape_markdown(name) for run, name in labels(entries).items()}
    scored = {entry.id: exact_match(entry, rows[entry.id][-1]) for entry in entries if rows[entry.id]}
    scored = {run: share for run, share in scored.items() if share is not None}
    arrived = {run: step for run in scored if (step := first_at(rows[run], GOOD)) is not None}
    if len(entries) > 1 and arrived:
        first = min(arrived, key=lambda run: arrived[run]["step"])
        never = [names[run] for run in scored if run not in arrived]
        yield (
            f"**{names[first]}** needs the fewest steps to get {GOOD:.0%} of unseen sequences right: it does at step "
            f"{arrived[first]['step']:,}, after {arrived[first]['seconds']:.1f} s."
            + (f" Not there (yet): {', '.join(never[:4])}{' …' if len(never) > 4 else ''}." if never else "")
        )
    elif arrived:
        [run] = arrived
        yield (
            f"It first gets {GOOD:.0%} of unseen sequences right at step {arrived[run]['step']:,}, "
            f"after {arrived[run]['seconds']:.1f} s."
        )
    for run, row in list(arrived.items())[:1] if len(entries) == 1 else []:
        later = [found for found in rows[run] if found["step"] > row["step"] and _notes_share(found) is not None]
        low = min(later, key=lambda found: _notes_share(found) or 0.0, default=None)
        if low is not None and (_notes_share(low) or 0.0) < GOOD - DIP:
            again = first_at([found for found in later if found["step"] > low["step"]], GOOD)
            back = f", and is back at step {again['step']:,}" if again else ", and does not come back"
            rate = low.get("learning_rate")
            yield (
                f"Then it falls to {percent(_notes_share(low) or 0.0, 1)} at step {low['step']:,}{back}."
                + (f" The learning rate was {rate:.2g} there." if isinstance(rate, float) else "")
            )
    if len(entries) == 2 and all(entry.parent is None and entry.wanted != ELSEWHERE for entry in entries):
        one, other = (entry.id for entry in entries)
        apart = [name for name in settings.columns if not _equal(settings.at[one, name], settings.at[other, name])]
        if len(apart) == 1:
            [name] = apart
            yield (
                f"The two differ in one setting only: `{name}` is {escape_markdown(str(settings.at[one, name]))} in "
                f"**{names[one]}** "
                f"and {escape_markdown(str(settings.at[other, name]))} in **{names[other]}**."
                + (
                    " What is different about their curves comes from it."
                    if name not in REPORTING and entries[0].device == entries[1].device
                    else ""
                )
            )
        elif not apart and (shared := equal_reports(rows[one], rows[other])):
            yield (
                f"The two have the same settings, and the losses of all {shared:,} reports that they share are equal to the "
                "last digit: here a run is a function of its settings."
            )


def first_at(rows: Sequence[Mapping[str, Any]], share: float) -> Mapping[str, Any] | None:
    """The first report with so much exact match; None where there is none."""
    return next((row for row in rows if (value := _notes_share(row)) is not None and value >= share), None)


def equal_reports(one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> int:
    """How many reports two runs share, if all of these say the same loss; else 0."""
    mine, theirs = ({row["step"]: row.get("loss") for row in rows} for rows in (one, other))
    shared = mine.keys() & theirs.keys()
    return len(shared) if all(mine[step] is not None and mine[step] == theirs[step] for step in shared) else 0


def _notes_share(row: Mapping[str, Any]) -> float | None:
    """The exact match of a report; another program's may have none."""
    value = row.get("held_out_exact_match")
    return float(value) if isinstance(value, (int, float)) else None


def _equal(one: Any, other: Any) -> bool:
    return one == other or (pd.isna(one) and pd.isna(other))
