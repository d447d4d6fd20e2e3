"""The chosen runs on the Runs screen: their curves, the actions on a run, and notes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from pages.compute import models, run_commands, visible_runs
from pages.compute.call import themed_spec
from pages.compute.picture import figure_files, menu
from pages.controls.text import escape_markdown
from pages.controls.widgets import choose
from pages.state import screens
from pages.state.link import address, take_parameter
from pages.state.session import open_on
from xformer.errors import CheckpointError, XformerError
from xformer.formatting import percent
from xformer.integrations.health_alarms import Alarm
from xformer.integrations.health_archive import to_archive
from xformer.integrations.health_record import HealthRecord
from xformer.training.card import to_file
from xformer.training.limits import n_models
from xformer.training.run_record import DAMAGED, ELSEWHERE, RESUMABLE, RunRecord
from xformer.training.run_store import exact_match, has_no_answer
from xformer.training.tables import REPORTING, event_files, flat, folder_name, metrics_csv
from xformer.viz.theme import head_hue
from xformer.viz.training_curves import curves, curves_chart

METRICS = {
    "held_out_exact_match": "exact match",
    "held_out_loss": "held-out loss",
    "loss": "training loss",
    "held_out_token_accuracy": "token accuracy",
    "gradient_norm": "gradient norm",
    "learning_rate": "learning rate",
    "tokens_per_second": "tokens per second",
    "best_head_score": "best head’s score",
    "entropy_p50/median": "attention entropy, median of the heads",
    "score_max/max": "largest score before softmax",
}
FIRST = ("held_out_exact_match", "held_out_loss")
SMOOTHING = {weight: f"{weight:g}" for weight in (0.0, 0.3, 0.6, 0.8, 0.9, 0.95)}
SCALES = {"linear": "linear", "log": "log"}
AXES = {"step": "steps", "seconds": "seconds"}
MAX_DRAWN = 12
"""The number of run colours, and so the maximum number of runs that are drawn."""
MAX_ALARMS = 3
GOOD = 0.99
"""The exact match at which the notes compare runs."""
Rows = Sequence[Mapping[str, Any]]
"""The reports of a run."""


@dataclass
class RunsState:
    """The session state of the Runs screen; filters and sort order are kept by their widgets."""

    has_begun: bool = False
    """Whether runs have been chosen yet, by the link or by default."""
    chosen: list[str] = field(default_factory=list)
    generation: int = 0
    """How often runs were chosen outside the table, which then needs a new key."""
    rows: list[str] = field(default_factory=list)
    """The runs of the table's rows."""
    colours: dict[str, int] = field(default_factory=dict)
    """The colour index of each chosen run."""
    problem: str = ""
    deleted: tuple[str, str] | None = None
    """The id and the name of the last deleted run, which can be restored."""

    def choose(self, *runs: str) -> None:
        """Choose these runs."""
        self.has_begun, self.chosen = True, list(dict.fromkeys(runs))
        self.generation += 1

    def attempt(self, what: Callable[[], object]) -> bool:
        """Run a command in a callback; return False if it is refused, in which case the screen shows why."""
        try:
            what()
        except XformerError as error:
            self.problem = str(error)
            return False
        return True

    def colour_slots(self) -> dict[str, int]:
        """Return the colour index of each chosen run; a run keeps its colour while others are added and removed."""
        drawn = self.chosen[:MAX_DRAWN]
        kept = {run: slot for run, slot in self.colours.items() if run in drawn}
        free = (slot for slot in range(MAX_DRAWN) if slot not in kept.values())
        self.colours = {run: kept[run] if run in kept else next(free) for run in drawn}
        return self.colours


def runs_state() -> RunsState:
    """Return the state of this session."""
    return st.session_state.setdefault("runs_state", RunsState())


def curves_panel(entries: Sequence[RunRecord], rows: Mapping[str, Rows]) -> dict[str, str]:
    """Draw the curves of the chosen runs; return their link parameters."""
    entries = entries[:MAX_DRAWN]
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        metrics = _ask_metrics()
        x, scale, smoothing = _ask_look()
    names, slots = visible_runs.labels(entries), runs_state().colour_slots()
    found = {names[entry.id]: [_drawn(entry, flat(row)) for row in rows[entry.id]] for entry in entries}
    state = str((names, slots, {run: (len(reports), reports[-1:]) for run, reports in rows.items()}))

    def draw(metric: str) -> Any:
        frame = curves(found, metric, x=x, smoothing=smoothing)
        colours = {names[entry.id]: head_hue(slots.get(entry.id, 0)) for entry in entries}
        return curves_chart(frame, metric, METRICS[metric], colours, x=x, log=scale == "log")

    shown = [metric for metric in metrics if any(metric in row for points in found.values() for row in points)]
    for metric in metrics:
        if metric not in shown:
            st.caption(f"No chosen run has reported its {METRICS[metric]} yet.")
            continue
        spec = themed_spec((state, metric, x, scale, smoothing), partial(draw, metric))
        wide = st.container(key=f"wide_runs_{metric}")
        wide.vega_lite_chart(spec, theme="streamlit", key=f"runs_chart_{metric}", width="stretch")
    if shown:
        with menu("runs_curves"):
            figure_files(lambda: [draw(metric) for metric in shown], address(), "curves", "runs")
    return {"curves": ",".join(metrics)}


def _ask_look() -> tuple[str, str, float]:
    """Draw the choices of the horizontal axis, the scale and the smoothing, and return them."""
    with st.popover("More"):
        x = choose("x", AXES, "Against", key="runs_x", called="horizontal axis")
        help = "For losses, norms and rates. Shares are always drawn from 0 to 1."
        scale = choose("scale", SCALES, "Scale", default="log", key="runs_scale", help=help)
        help = "Exponential moving average: the weight of the previous average at each report. The raw curve is drawn faintly."
        smoothing = choose("smooth", SMOOTHING, "Smoothing", key="runs_smooth", widget=st.select_slider, help=help)
    return x, scale, smoothing


def _drawn(entry: RunRecord, row: dict[str, Any]) -> dict[str, Any]:
    """Return a report, without the exact match if the task is a text."""
    return {name: value for name, value in row.items() if name != FIRST[0]} if has_no_answer(entry) else row


def _ask_metrics() -> list[str]:
    wanted = take_parameter("curves")
    if wanted is not None or "runs_metrics" not in st.session_state:
        known = [name for name in (wanted or "").split(",") if name in METRICS]
        st.session_state["runs_metrics"] = known or list(FIRST)
    ask = partial(st.multiselect, key="runs_metrics", persist_state="session", placeholder="choose metrics")
    help = "Each metric has its own chart. Click a line to highlight its run, double-click to reset."
    chosen = ask("Curves", list(METRICS), format_func=METRICS.__getitem__, help=help)
    return [name for name in METRICS if name in chosen]


def run_panel(entry: RunRecord, entries: Sequence[RunRecord], all_entries: Sequence[RunRecord], visitor: str) -> None:
    """Draw the name, tags and status of a run, and the actions on it; metrics can be downloaded for all `entries`."""
    is_mine = visible_runs.may_control(entry, visitor)
    screens.link("train", "Watch it train", "movie", run=entry.id)
    _name_and_tags(entry, is_mine, sorted({tag for run in all_entries for tag in run.tags}))
    _status(entry, is_mine)
    _actions(entry, entries, visible_runs.labels(entries), is_mine, visitor)
    _open_on(entry) if entry.sweep is None else _sweep(entry, all_entries)
    help = "Only the owner can delete a run, and not during training. It can be restored for an hour."
    delete, is_off = partial(_delete, entry.id, entry.name), entry.is_active or not is_mine
    button = partial(st.button, "Delete", icon=":material/delete:", type="tertiary", help=help)
    button(on_click=delete, key=f"runs_delete_{entry.id}", disabled=is_off)


def _name_and_tags(entry: RunRecord, is_mine: bool, every_tag: Sequence[str]) -> None:
    name, tags = f"runs_name_{entry.id}", f"runs_tags_{entry.id}"
    for key, value in ((name, entry.name), (tags, entry.tags)):
        if st.session_state.get(f"{key}_was") != value:  # changed elsewhere
            st.session_state[f"{key}_was"] = value
            st.session_state[key] = list(value) if isinstance(value, tuple) else value

    def change(key: str, command: Callable[[str, Any], object]) -> None:
        if not runs_state().attempt(lambda: command(entry.id, st.session_state[key])):
            st.session_state.pop(f"{key}_was", None)  # show the old value again

    st.text_input("Name", key=name, disabled=not is_mine, on_change=partial(change, name, run_commands.rename))
    options, placeholder = sorted({*every_tag, *entry.tags}), "type a new tag" if is_mine else "none"
    ask = partial(st.multiselect, key=tags, disabled=not is_mine, accept_new_options=True, max_selections=12)
    ask("Tags", options, placeholder=placeholder, on_change=partial(change, tags, run_commands.tag))


def _status(entry: RunRecord, is_mine: bool) -> None:
    of = f" of {entry.train['steps']:,}" if "steps" in entry.train else ""  # missing in a damaged entry
    device = "" if entry.device in (None, ELSEWHERE) else f" on {entry.device}"
    device += f" of {escape_markdown(entry.node)}" if device and entry.node else ""
    if not is_mine:
        st.caption("Started by someone else; you can only watch.")
    if entry.private and not visible_runs.is_open():  # on an open server everyone sees every run
        with st.container(horizontal=True, vertical_alignment="center", key="runs_private"):
            st.caption(":material/lock: Only you can see this run.", width="content")
            share = partial(_command, run_commands.share, entry.id)
            st.button("Share with everyone here", key=f"runs_share_{entry.id}", on_click=share)
    st.caption(f"**{entry.state}** · step {entry.step:,}{of} · {entry.seconds:.1f} s{device} · `{entry.id}`")
    if samples := entry.figures.get("samples"):
        share_right, loss = entry.figures.get("exact_match", 0.0), entry.figures.get("loss", 0.0)
        is_text = has_no_answer(entry)
        score = f"{loss / math.log(2):.3f} bits per character" if is_text else f"{percent(share_right)} exact match"
        st.caption(f"{score} on {samples:,} unseen inputs.")
    if entry.title != entry.name and entry.title:
        st.text(entry.title)
    if not _recorded(entry) and entry.message:
        st.text(entry.message)


def _command(command: Callable[..., object], *arguments: Any) -> None:
    """Send a command to a run. A callback."""
    runs_state().attempt(lambda: command(*arguments))


def _actions(
    entry: RunRecord, entries: Sequence[RunRecord], names: dict[str, str], is_mine: bool, visitor: str
) -> None:
    run = entry.id
    if entry.wanted == ELSEWHERE:  # only the program that started a run can continue it
        with st.popover("Download", width="stretch"):
            _downloads(entry, entries, names)
        return
    again_at, files_at = st.columns(2, gap="small")
    if is_mine and entry.state in RESUMABLE and not entry.is_active:
        resume = partial(_command, run_commands.resume, run)
        again_at.button("Resume", width="stretch", key=f"runs_resume_{run}", on_click=resume)
    else:
        again, is_off = partial(_again, entry), not visitor or entry.state == DAMAGED
        help = "A new run with the same settings and seed. On a CPU it is identical, bit for bit."
        draw = partial(again_at.button, "Train again", width="stretch", help=help)
        draw(key=f"runs_again_{run}", on_click=again, disabled=is_off)
    with files_at, st.popover("Download", width="stretch"):
        _downloads(entry, entries, names)


def _open_on(entry: RunRecord) -> None:
    """Draw buttons that open the latest step of the run on other screens; the Train screen can open any step."""
    steps, is_ours = visible_runs.steps_of(entry.id), entry.wanted != ELSEWHERE
    if not steps:
        note = "Its weights are not on this server, so no other screen can run it; Train shows the recorded attention."
        if (visible_runs.store().folder_of(entry.id) / "weights").is_dir():
            note = "Its weights are in the Transformers format; in Python, xformer.read(folder, inputs) reads them."
        st.caption("It has no weights yet." if is_ours else note)
    elif not is_ours and (reason := models.usable(f"{entry.id}@{steps[-1]}")):
        st.caption(escape_markdown(reason))
    else:
        open_on(entry.id, steps[-1], key=f"runs_open_{entry.id}")


def alarms_words(entry: RunRecord) -> str:
    """Return the number of alarms recorded from another program's training, after a dot; "" if there are none."""
    n = len(_alarms(entry))
    return f" · **{n} alarm{'s' * (n != 1)}**" if n else ""


def _alarms(entry: RunRecord) -> Sequence[Alarm]:
    folder = visible_runs.store().folder_of(entry.id)
    try:
        return HealthRecord.load(folder, probes=False).alarms if HealthRecord.is_in(folder) else ()
    except CheckpointError:  # the Train screen shows the reason
        return ()


def _recorded(entry: RunRecord) -> bool:
    """Draw the last losses of another program's training, and its alarms; return whether there are any alarms."""
    if entry.wanted != ELSEWHERE:
        return False
    last = next(reversed(visible_runs.store().rows(entry.id)), {})
    found = {"of training": last.get("loss"), "of the probe": last.get("held_out_loss")}
    if words := [f"{value:.3g} {name}" for name, value in found.items() if value is not None]:
        st.caption(f"Loss at step {last['step']:,}: {', '.join(words)}.")
    alarms = _alarms(entry)
    for alarm in alarms[:MAX_ALARMS]:
        label = f"Step {alarm.frame:,}: {alarm.rule.replace('_', ' ')}"
        screens.link("train", label, "warning", run=entry.id, step=str(alarm.frame))
    if len(alarms) > MAX_ALARMS:
        st.caption(f"and {len(alarms) - MAX_ALARMS} more on the Train screen.")
    return bool(alarms)


def _sweep(entry: RunRecord, entries: Sequence[RunRecord]) -> None:
    """Draw a button that chooses the models of a sweep."""
    models = [run for run in entries if run.sweep_of == entry.id]
    st.caption(f"A sweep of {n_models(entry)} models; {len(models)} of them are runs, listed below it in the table.")
    if models:
        best = sorted(models, key=lambda run: -run.figures.get("exact_match", -1.0))[:MAX_DRAWN]
        words = "Choose its models" if len(models) <= MAX_DRAWN else f"Choose its {MAX_DRAWN} best models"
        runs = [run.id for run in best]
        choose = partial(runs_state().choose, *runs, entry.id)
        st.button(words, width="stretch", on_click=choose, key=f"runs_models_{entry.id}")


def _delete(run: str, name: str) -> None:
    if runs_state().attempt(lambda: run_commands.delete(run)):
        runs_state().deleted = (run, name)
        runs_state().choose(*[other for other in runs_state().chosen if other != run])


def _again(entry: RunRecord) -> None:
    """Queue a run with the same settings and add it to the chosen ones. A callback."""
    state = runs_state()
    state.attempt(lambda: state.choose(*state.chosen, run_commands.again(entry.id, entry.name)))


def _downloads(entry: RunRecord, entries: Sequence[RunRecord], names: dict[str, str]) -> None:
    """Draw downloads of the weights of a run, and of the metrics of all chosen runs."""
    store, file = visible_runs.store(), folder_name(entry.name)
    by_name = {f"{names[run.id]} {run.id}": run for run in entries}
    which, prefix = (f", all {len(entries)} chosen", "runs") if len(entries) > 1 else ("", file)

    def rows() -> dict[str, Any]:
        return {name: store.rows(run.id) for name, run in by_name.items()}

    def events() -> bytes:
        return event_files(rows(), {name: run.created for name, run in by_name.items()})

    def offer(kind: str, title: str, file_name: str, make: Callable[[], Any], help: str | None = None) -> None:
        button = partial(st.download_button, on_click="ignore", width="stretch", help=help)
        button(title, make, file_name, key=f"runs_{kind}_{entry.id}")

    if HealthRecord.is_in(store.folder_of(entry.id)):
        help = "Attention patterns, measures, alarms and loss curve as one zip file for Import; no weights."
        offer("record", "Recorded attention", f"{file}.zip", lambda: to_archive(store, entry.id), help)
    if steps := visible_runs.steps_of(entry.id):
        help = "Weights, settings, loss curve and scores as one safetensors file for Import."
        title = f"Weights of step {steps[-1]:,}"
        offer("weights", title, f"{file}.safetensors", lambda: to_file(store, entry.id), help)
    offer("csv", f"Metrics, CSV{which}", f"{prefix}.csv", lambda: metrics_csv(rows()))
    help = "tensorboard --logdir FOLDER"
    offer("events", f"Metrics for TensorBoard{which}", f"{prefix}-tensorboard.zip", events, help)


def run_notes(entries: Sequence[RunRecord], rows: Mapping[str, Rows], settings: pd.DataFrame) -> Iterator[str]:
    """Yield notes on the chosen runs, as Markdown.

    Args:
        entries: The chosen runs.
        rows: The reports of each run by id.
        settings: The settings in which the runs differ, one row per run.
    """
    names = {run: escape_markdown(name) for run, name in visible_runs.labels(entries).items()}
    if len({json.dumps(entry.task, sort_keys=True) for entry in entries}) > 1:
        return  # steps on different tasks are not comparable
    scores = {entry.id: exact_match(entry, rows[entry.id][-1]) for entry in entries if rows[entry.id]}
    judged = [run for run, share in scores.items() if share is not None]
    # reports of other programs may lack the metric
    good = {run: [row for row in rows[run] if (row.get("held_out_exact_match") or 0.0) >= GOOD] for run in judged}
    arrived = {run: found[0] for run, found in good.items() if found}
    if len(entries) > 1 and arrived:
        first = min(arrived, key=lambda run: arrived[run]["step"])
        never = [names[run] for run in judged if run not in arrived]
        rest = f" Not reached so far: {', '.join(never[:4])}{' …' if len(never) > 4 else ''}." if never else ""
        yield (
            f"**{names[first]}** needs the fewest steps to get {GOOD:.0%} of unseen sequences right: it does so at step "
            f"{arrived[first]['step']:,}, after {arrived[first]['seconds']:.1f} s.{rest}"
        )
    elif arrived:
        [row] = arrived.values()
        yield f"It first gets {GOOD:.0%} of unseen sequences right at step {row['step']:,}, after {row['seconds']:.1f} s."
    if len(entries) == 2 and all(entry.parent is None and entry.wanted != ELSEWHERE for entry in entries):
        yield from _difference(entries, rows, settings, names)


def _difference(
    entries: Sequence[RunRecord], rows: Mapping[str, Rows], settings: pd.DataFrame, names: Mapping[str, str]
) -> Iterator[str]:
    """Yield a note if two runs differ in exactly one setting, or are equal."""
    one, other = (entry.id for entry in entries)
    apart = [name for name in settings.columns if not _equal(settings.at[one, name], settings.at[other, name])]
    if len(apart) == 1:
        [name] = apart
        values = [f"{escape_markdown(str(settings.at[run, name]))} in **{names[run]}**" for run in (one, other)]
        is_cause = name not in REPORTING and entries[0].device == entries[1].device
        cause = " Any difference between their curves is due to it." if is_cause else ""
        yield f"The two runs differ in only one setting: `{name}` is {values[0]} and {values[1]}.{cause}"
    elif not apart and (shared := _equal_reports(rows[one], rows[other])):
        yield (
            f"The two runs have the same settings, and the losses of all {shared:,} reports that they share are equal to the "
            "last digit: here, the settings determine a run completely."
        )


def _equal_reports(one: Rows, other: Rows) -> int:
    """Return the number of steps that both runs have reported if their losses are equal at all of them, else 0."""
    mine, theirs = ({row["step"]: row.get("loss") for row in rows} for rows in (one, other))
    shared = mine.keys() & theirs.keys()
    return len(shared) if all(mine[step] is not None and mine[step] == theirs[step] for step in shared) else 0


def _equal(one: Any, other: Any) -> bool:
    return one == other or (pd.isna(one) and pd.isna(other))
