"""The state of the Train screen, and the status of a run: sentence, progress bar, figures, and control buttons."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, Literal

import pandas as pd
import streamlit as st

from pages.components.elements import put_at
from pages.compute import run_commands, visible_runs
from pages.compute.call import PictureCall, script, themed_spec
from pages.controls.text import escape_markdown
from pages.controls.widgets import warn_unknown
from pages.state import link
from xformer.errors import RunStoreError, XformerError
from xformer.files import snapshot_steps
from xformer.formatting import duration, percent
from xformer.presets import Preset
from xformer.tasks.rules import RULES
from xformer.training import jobs
from xformer.training.recipe import learning_rate
from xformer.training.run_record import ELSEWHERE, SCORING, RunRecord

NEW = "new"
"""The value of `run` in the link while a new run is set up."""


@dataclass
class TrainState:
    """The session state of the Train screen, apart from the values of its widgets."""

    run: str | None = None
    """The run on screen, or `NEW`; None before anything was chosen."""
    targets: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    """By run: how often its player was moved to a step, and the last such step (None: the latest)."""
    problem: str = ""
    form_preset: str = ""
    """The preset that the form starts from."""
    form_text: str = ""
    """The text that replaces the preset's; "" keeps the preset's."""
    ticket: int = 0
    """The number of the current rerun of the screen; each rerun can start at most one run."""
    used_ticket: int = 0
    starting: Lock = field(default_factory=Lock)
    evaluating: str | None = None
    """The run whose snapshots are not all evaluated yet."""
    rows: tuple[str, list[dict[str, Any]]] = ("", [])
    """A run and the metrics that this session has read so far."""

    def next_ticket(self) -> int:
        """Return a new ticket for the buttons of this rerun."""
        self.ticket += 1
        return self.ticket


def train_state() -> TrainState:
    """Return the state of this session."""
    return st.session_state.setdefault("train_state", TrainState())


def start_once(ticket: int, start: Callable[[], str]) -> None:
    """Start a run and show it; a callback that ignores the second press of a double click.

    The second press can interrupt the first at any access to the session state. So a lock serialises them, and the ticket is
    used up only once the run exists.
    """
    state = train_state()
    with state.starting:
        if state.used_ticket == ticket:
            return
        try:
            state.run = start()
            state.used_ticket = ticket
        except (XformerError, OSError) as error:
            report_problem(error)


def show_run(run: str) -> None:
    """Switch the screen to a run, or to the setup of a new one for `NEW`. A callback."""
    train_state().run = run


def player_key(run: str) -> str:
    """Return the key of the player of a run; each run has its own player."""
    return f"film_{run}"


def share(run: str, step: int | None) -> None:
    """Put the run, and the step of its player if any, into the address bar."""
    link.share({"run": run} | ({} if step is None else {"step": str(step)}))


def go_to(run: str, step: int | None) -> None:
    """Move the player of a run to a step; None is the latest."""
    put_at(player_key(run), step)
    targets = train_state().targets
    targets[run] = (targets.get(run, (0, None))[0] + 1, step)


def player_target(run: str) -> tuple[int, int | None]:
    """Return how often the player of a run was moved to a step, and the last such step (None: the latest)."""
    return train_state().targets.get(run, (0, None))


def report_problem(error: Exception) -> None:
    """Show an error on the next rerun."""
    words = f"A file could not be written: {error.strerror or error}." if isinstance(error, OSError) else str(error)
    train_state().problem = words


def show_problem() -> None:
    """Show the last error. The container is always drawn, so that the browser does not rebuild everything below it."""
    with st.container(key="train_complaints"):
        if train_state().problem:
            st.warning(escape_markdown(train_state().problem), icon=":material/report:")
            train_state().problem = ""


def shown_run(visitor: str) -> RunRecord | None:
    """Return the run in the link, else the visitor's latest run; None if a new run is to be set up."""
    state = train_state()
    if (run := link.take_parameter("run")) is not None:
        _follow_the_link(run)
    try:
        if state.run is None and visitor:
            state.run = next((entry.id for entry in visible_runs.entries() if entry.owner == visitor), None)
        if state.run in (None, NEW):
            return None
        entry = visible_runs.entry(state.run)
        if entry.deleted is None:
            return entry
        st.warning("This run was deleted. It can be restored on the Runs screen for an hour.")
    except RunStoreError as error:
        st.warning(escape_markdown(str(error)))
    state.run = NEW if state.run is not None else None
    return None


def _follow_the_link(run: str) -> None:
    try:
        train_state().run = run if run == NEW else visible_runs.entry(run).id
    except RunStoreError:
        warn_unknown("run")
        return
    step = link.take_parameter("step")
    if run == NEW or step is None:
        return
    if re.fullmatch(r"\d{1,9}", step, re.ASCII):
        go_to(run, int(step))
    else:
        warn_unknown("step")


def rows_so_far(entry: RunRecord) -> list[dict[str, Any]]:
    """Return the metrics of a run so far; only new rows are read, unless the run was resumed from an earlier step."""
    state = train_state()
    run, rows = state.rows
    if run != entry.id or (rows and rows[-1].get("step", 0) > entry.step):
        rows = []
    rows.extend(visible_runs.store().rows(entry.id, rows[-1]["step"] if rows else -1))
    state.rows = (entry.id, rows)
    return rows


ACTIVE = ("queued", "running", "paused")
"""The states in which a run can progress without a command."""
BADGES: dict[str, tuple[str, Literal["orange", "green", "gray", "blue", "red"], str]] = {
    "queued": ("waiting", "orange", ":material/hourglass_top:"),
    "running": ("training", "green", ":material/play_circle:"),
    "paused": ("paused", "orange", ":material/pause_circle:"),
    "stopped": ("stopped", "gray", ":material/stop_circle:"),
    "finished": ("finished", "blue", ":material/check_circle:"),
    "failed": ("failed", "red", ":material/error:"),
    "interrupted": ("interrupted", "red", ":material/power_off:"),
}
TICK = 0.4
"""Seconds between two updates of the figures of a young run, which change fastest."""
LATER = 1.2
"""Seconds between two updates of the figures of an older or paused run."""
FIRST = 3
"""The number of figures above the timeline."""
YOUNG = 30.0
"""Seconds of training up to which a run is young."""
RESUME = {"stopped": " Resume continues from there.", "interrupted": " Resume continues from the last saved state."}


def status_sentence(entry: RunRecord, settings: Preset, visitor: str) -> str:
    """Return the status of a run in one or two sentences."""
    resume = "" if entry.wanted == ELSEWHERE else RESUME.get(entry.state, "")
    more = f" {entry.message}" if entry.message and entry.state != "failed" else resume
    return _status(entry, settings) + more + visibility_sentence(entry, visitor)


def visibility_sentence(entry: RunRecord, visitor: str) -> str:
    """Return sentences on who can see and control a run, if that is not everyone."""
    words = ""
    if entry.private and not visible_runs.is_open():
        words += " Only you can see it until you share it on the Runs screen."
    if not visible_runs.may_control(entry, visitor):
        words += " It was started by someone else; you can only watch."
    return words


def queue_position(entry: RunRecord) -> str:
    """Return the position of a run in the queue, in words."""
    place = jobs.queue_position(entry.id, visible_runs.store().entries(), jobs.devices())
    return "it is next" if place == 0 else f"{place} {'run comes' if place == 1 else 'runs come'} before it"


def _status(entry: RunRecord, settings: Preset) -> str:
    steps = settings.train.steps
    far = f"step {entry.step:,} of {steps:,}"
    if entry.state == "queued":
        return f"Waiting in the queue: {queue_position(entry)}."
    if entry.state == "running" and entry.pid is None:
        waits = "Waiting for a free processor on the Ray cluster."
        return "Starting its process." if entry.node is None else waits
    if (scored := _scoring_progress(entry)) is not None:
        done, total, seconds = scored
        left = f", about {duration(seconds * (total - done) / done)} left" if done else ""
        return f"Trained. Scoring it on unseen examples: {done:,} of {total:,}{left}."
    if entry.state == "running":
        rate = entry.step / entry.seconds if entry.seconds > 0 else 0.0  # of the whole run: the latest rate fluctuates
        left = f", about {duration((steps - entry.step) / rate)} left" if rate > 0 and entry.step < steps else ""
        return f"Training on {device_name(entry)}: {far}{left}."
    if entry.state == "paused" and not entry.is_active:
        return f"Paused at {far}; its process has ended. Resume continues from there."
    if entry.state == "paused":
        return f"Paused at {far}. Step trains a single step, Resume all remaining ones."
    if entry.state == "finished":
        words = f"Finished after {duration(entry.seconds)} on {device_name(entry)}"
        score, loss, n = (entry.figures.get(name) for name in ("exact_match", "loss", "samples"))
        if RULES[settings.task.name].is_open_ended and isinstance(loss, float):
            words += f": {loss / math.log(2):.3f} bits per character on held-out text"
        elif isinstance(score, float):
            words += f": {percent(score)} exact match on {n or 0:,} unseen examples"
        return f"{words}."
    if entry.state == "interrupted":
        return f"Interrupted after {far}."
    return f"{BADGES[entry.state][0].capitalize()} at {far}."


def device_name(entry: RunRecord) -> str:
    if entry.device == ELSEWHERE:
        return "a device of another program"
    where = f" of {entry.node}" if entry.node else ""
    if entry.device in (None, "cpu"):
        return f"the CPU{where}"
    return f"the GPU{where}" if entry.device == "cuda" else f"GPU {entry.device.removeprefix('cuda:')}{where}"


def _scoring_progress(entry: RunRecord) -> tuple[int, int, float] | None:
    """Return (examples scored, their total, seconds so far) while a trained run is being scored, else None."""
    found = entry.live.get(SCORING) if entry.state == "running" else None
    return (found[0], max(1, found[1]), found[2]) if isinstance(found, list) and len(found) == 3 else None


def progress(entry: RunRecord, settings: Preset, visitor: str, rests_at: int | None) -> None:
    """Draw the progress bar and the figures, in a fragment that updates more often than the pictures.

    Args:
        entry: The run.
        settings: Its settings.
        visitor: The visitor.
        rests_at: The step that the player shows, whose figures are drawn; None is the latest.
    """
    tick = TICK if entry.seconds < YOUNG and entry.state != "paused" else LATER
    fragment = st.fragment(run_every=tick if entry.state in ACTIVE else None, key="train_progress")
    fragment(_progress)(entry.id, settings, visitor, rests_at, entry.state, _has_picture(entry.id))


def _progress(run: str, settings: Preset, visitor: str, rests_at: int | None, drawn: str, has_picture: bool) -> None:
    try:
        entry = visible_runs.entry(run)
    except RunStoreError:  # the rest of the page shows the error
        return
    if entry.state != drawn or has_picture != _has_picture(run):  # the buttons change, or the first picture is ready
        st.rerun()
    is_text, earlier = RULES[settings.task.name].is_open_ended, earlier_step(entry, rests_at)
    done = _scoring_progress(entry)
    share = done[0] / done[1] if done else min(1.0, entry.step / settings.train.steps)
    shown = "" if earlier is None else f"The figures are for step {earlier:,}. The run itself: "
    words = shown + status_sentence(entry, settings, visitor)
    with st.container(horizontal=True, vertical_alignment="center", gap="medium", key="run_progress"):
        st.progress(share, text=escape_markdown(words))
        tiles(figures(entry, rows_so_far(entry), earlier, is_text)[:FIRST], width=330)


def earlier_step(entry: RunRecord, rests_at: int | None) -> int | None:
    """Return the step that the player shows if it is not the latest one, else None."""
    return rests_at if rests_at is not None and rests_at < entry.step else None


def tiles(found: Sequence[tuple[str, str]], width: int | Literal["stretch"] = "stretch") -> None:
    """Draw names and values side by side."""
    cells = "".join(f"<div><span>{name}</span><b>{value}</b></div>" for name, value in found)
    st.html(f"<div class='train-tiles'>{cells}</div>", width=width)


def _has_picture(run: str) -> bool:
    return bool(snapshot_steps(visible_runs.store().folder_of(run)))


def figures(
    entry: RunRecord, rows: Sequence[dict[str, Any]], shown: int | None, is_text: bool
) -> list[tuple[str, str]]:
    """Return the names and values of the figures, the step first; a missing value is a dash.

    Args:
        entry: The run.
        rows: Its metrics.
        shown: The earlier step on screen; None for the latest.
        is_text: Whether the task is a text, which has bits per character instead of exact match.
    """
    last = next((row for row in reversed(rows) if shown is None or row["step"] <= shown), {})
    loss, speed = last.get("held_out_loss"), ("Tokens/s", _number(last.get("tokens_per_second") or None, ",.0f"))
    if is_text:
        score = ("Bits per character", _number(loss / math.log(2) if isinstance(loss, float) else None, ".3f"))
    else:
        score = ("Exact match", _number(last.get("held_out_exact_match"), "%"))
    if shown is None:
        last = {**last, **entry.live, "step": entry.step}
        if entry.state == "running":
            speed = ("Steps/s", _number(last.get("steps_per_second"), ",.0f"))
    return [
        ("Step", f"{_number(last.get('step'), ',.0f')} / {entry.train.get('steps', 0):,}"),
        score,
        ("Loss", _number(last.get("loss"), ".4f")),
        ("Held-out loss", _number(loss, ".4f")),
        ("Tokens right", _number(last.get("held_out_token_accuracy"), "%")),
        ("Gradient", _number(last.get("gradient_norm"), ".3f")),
        ("Learning rate", _number(last.get("learning_rate"), ".2e")),
        speed,
    ]


def _number(value: Any, look: str) -> str:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return "–"
    return percent(float(value), 1) if look == "%" else format(float(value), look)


def heading(entry: RunRecord) -> None:
    """Draw the title above a run with its state and name, and the error if it failed."""
    words, colour, icon = BADGES[entry.state]
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="run_row"):
        st.title("Train", anchor=False, width="content")
        st.badge(words, color=colour, icon=icon)
        with st.container(width="stretch", key="run_name"):
            st.text(entry.name)
    with st.container(key="run_trouble"):  # always drawn, so that the browser does not rebuild everything below
        if entry.state == "failed":
            st.error(escape_markdown(entry.message or "Failed; no error was recorded."), icon=":material/error:")


def new_run() -> None:
    """Draw the button that sets up another run."""
    st.button("New run", icon=":material/add:", on_click=show_run, args=(NEW,), key="run_new")


def controls(entry: RunRecord, visitor: str) -> None:
    """Draw the buttons that control a run, for a visitor who may."""
    run, is_scored = entry.id, _scoring_progress(entry) is not None
    if not visible_runs.may_control(entry, visitor):
        return
    is_ours = entry.wanted != ELSEWHERE  # another program can only be stopped
    has_steps = is_ours and entry.sweep is None
    if has_steps and entry.state == "running":
        is_early = entry.pid is None or is_scored
        button("Pause", "pause", lambda: run_commands.send(run, "pause"), disabled=is_early)
    if has_steps and entry.state == "paused":
        button("Step", "skip_next", lambda: run_commands.send(run, "step"), disabled=not entry.is_active)
    if is_ours and entry.state in ("paused", "stopped", "failed", "interrupted"):
        button("Resume", "play_arrow", lambda: run_commands.resume(run), type="primary")
    if entry.state in ACTIVE:
        button("End scoring" if is_scored else "Stop", "stop", lambda: run_commands.stop(run), key="run_stop")


def button(words: str, icon: str, do: Callable[[], object], *, key: str | None = None, **look: Any) -> None:
    """Draw a button that sends a command to a run; if the command is refused, the page shows why."""

    def press() -> None:
        try:
            do()
        except (XformerError, OSError) as error:
            report_problem(error)

    st.button(words, icon=f":material/{icon}:", on_click=press, key=key or f"run_{words.lower()}", **look)


def change_rate(entry: RunRecord, settings: Preset) -> None:
    """Draw the form that changes the peak learning rate."""
    now = learning_rate(settings.train, max(1, entry.step))
    peak = settings.train.lr_changes[-1][1] if settings.train.lr_changes else settings.train.peak_lr
    st.caption(f"At step {entry.step:,} the learning rate is {now:.3g}; the peak of its schedule is {peak:.3g}.")
    key = f"new_rate_{entry.id}_{peak:g}"
    new = st.number_input("New peak", 0.0, None, float(peak), peak / 10 or 1e-4, "%g", key=key)
    if peak:
        st.caption(f"With this peak, the current rate would be {new * now / peak:.3g}.")
    button("Use it from the next step", "check", lambda: run_commands.change_rate(entry.id, float(new)))


def start_button(label: str, start: Callable[[], str], *, is_possible: bool, **look: Any) -> None:
    """Draw a button that starts a run; the second press of a double click is ignored."""
    ticket = train_state().next_ticket()
    st.button(label, on_click=lambda: start_once(ticket, start), disabled=not is_possible, **look)


def again_button(entry: RunRecord, *, is_possible: bool) -> None:
    """Draw a button that starts a new run with the same settings."""
    help = "The same settings and the same seed. On a CPU the new run is identical, bit for bit."
    again = partial(run_commands.again, entry.id, f"{entry.name} again"[:80])
    button = partial(start_button, "Train the same again", again, is_possible=is_possible)
    button(icon=":material/replay:", help=help, key="run_again")


def show_code(load: str, lines: Sequence[str], pictures: Sequence[str]) -> None:
    """Draw the code of pictures of a run: the import `load`, `lines` that read the run, and the calls that draw it."""
    lines = [
        "import os, xformer",
        "from xformer.training.run_store import RunStore",
        load,
        'runs = os.environ.get("XFORMER_RUNS", "checkpoints/runs")  # where this app keeps its runs',
        *lines,
        "[" + ",\n ".join(pictures) + "]",
    ]
    st.code(script(lines), language="python", width=900, wrap_lines=True)


def live_chart(call: PictureCall, state: tuple, key: str, *, on_select: Callable[[], None] | None = None) -> None:
    """Show an Altair chart whose data grow, without flicker.

    Altair names data sets by a hash of their contents, and the browser rebuilds a chart in which a name changes. So the data
    are sent separately under fixed names.

    Args:
        call: The call that draws the chart.
        state: Plain values; the chart is redrawn only when they change.
        key: The key of the element; `st.session_state[key]` holds its selection.
        on_select: Called after a click.
    """
    spec = dict(themed_spec((call.name, *state, repr(call.options), key), call.make))
    found = spec.pop("datasets", {})
    text = json.dumps(spec)
    for number, name in enumerate(found):
        text = text.replace(f'"{name}"', f'"table_{number}"')
    spec = json.loads(text)
    spec["datasets"] = {f"table_{number}": pd.DataFrame(rows) for number, rows in enumerate(found.values())}
    width = "stretch"
    if isinstance(spec.get("width"), int | float):  # the chart has a fixed size, with the legend next to it
        width, spec["autosize"] = "content", {"type": "pad"}
    st.vega_lite_chart(spec=spec, theme="streamlit", width=width, key=key, on_select=on_select or "ignore")
