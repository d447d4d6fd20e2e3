"""The status of a run: state, progress bar, figures, and the buttons that control it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import streamlit as st

from pages.shared import run_commands, run_store
from pages.shared.escape_markdown import escape_markdown
from pages.train.state import NEW, report_problem, rows_so_far, show_run, start_once, train_state
from pages.train.timeline import ACTIVE
from xformer.errors import RunStoreError, XformerError
from xformer.formatting import duration, percent
from xformer.presets import Preset
from xformer.tasks.rules import RULES
from xformer.training import dispatch
from xformer.training.entry import ELSEWHERE, SCORING, Entry
from xformer.training.recipe import learning_rate
from xformer.training.snapshots import snapshot_steps

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
"""Seconds between two updates of the figures of a young run, whose figures change most."""
LATER = 1.2
"""The same for an older or a paused run."""
FIRST = 3
"""The number of figures above the timeline."""
YOUNG = 30.0
"""Seconds of training up to which a run is young."""
RESUME = {"stopped": " Resume goes on from there.", "interrupted": " Resume goes on from the last saved state."}


def status_sentence(entry: Entry, settings: Preset, who: str) -> str:
    """The status of a run in one or two sentences."""
    more = f" {entry.message}" if entry.message and entry.state != "failed" else RESUME.get(entry.state, "")
    return _status(entry, settings) + more + visibility_sentence(entry, who)


def visibility_sentence(entry: Entry, who: str) -> str:
    """Who can see and control a run, where that is not everybody."""
    words = ""
    if entry.private and not run_store.is_open():
        words += " Only you see it, until you share it on the Runs screen."
    if not run_store.may_control(entry, who):
        words += " It was started by someone else: you are looking on."
    return words


def queue_position(entry: Entry) -> str:
    """The position of a run in the queue, in words."""
    place = dispatch.place(entry.id, run_store.store().entries(), dispatch.devices())
    return "it is next" if place == 0 else f"{place} {'run comes' if place == 1 else 'runs come'} before it"


def _status(entry: Entry, settings: Preset) -> str:
    steps = settings.train.steps
    far = f"step {entry.step:,} of {steps:,}"
    if entry.state == "queued":
        return f"Waiting for its turn: {queue_position(entry)}."
    if entry.state == "running" and entry.pid is None:
        return "Starting its process."
    if entry.state == "running" and (done := _scored(entry)) is not None:
        left = f", about {duration(done[2] * (done[1] - done[0]) / done[0])} left" if done[0] else ""
        return f"Trained. Scoring it on unseen examples: {done[0]:,} of {done[1]:,}{left}."
    if entry.state == "running":
        rate = entry.step / entry.seconds if entry.seconds > 0 else 0.0  # of the whole run: the latest rate fluctuates
        left = f", about {duration((steps - entry.step) / rate)} left" if rate > 0 and entry.step < steps else ""
        return f"Training on {device_name(entry)}: {far}{left}."
    if entry.state == "paused" and not entry.is_active:
        return f"Paused at {far}, and its process has ended. Resume starts it again from there."
    if entry.state == "paused":
        return f"Paused at {far}. Step trains one more step, Resume all of them."
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


def device_name(entry: Entry) -> str:
    if entry.device == ELSEWHERE:
        return "another program’s device"
    return "the CPU" if entry.device in (None, "cpu") else f"GPU {entry.device.removeprefix('cuda:')}"


def _scored(entry: Entry) -> tuple[int, int, float] | None:
    """While a trained run is scored: examples done, their total, and the seconds so far; else None."""
    found = entry.live.get(SCORING) if entry.state == "running" else None
    if not isinstance(found, list) or len(found) != 3 or not all(isinstance(n, (int, float)) for n in found):
        return None
    done, total, seconds = found
    return int(done), max(1, int(total)), float(seconds)


def progress(entry: Entry, settings: Preset, who: str, rests_at: int | None) -> None:
    """Draw the progress bar and the figures, in a fragment that updates more often than the pictures.

    Args:
        entry: The run.
        settings: Its settings.
        who: The visitor.
        rests_at: The step that the player shows; the figures are those of that step.
    """
    tick = TICK if entry.seconds < YOUNG and entry.state != "paused" else LATER
    fragment = st.fragment(run_every=tick if entry.state in ACTIVE else None, key="train_progress")
    fragment(_progress)(entry.id, settings, who, rests_at, entry.state, _has_picture(entry.id))


def _progress(run: str, settings: Preset, who: str, rests_at: int | None, drawn: str, has_picture: bool) -> None:
    try:
        entry = run_store.entry(run)
    except RunStoreError:  # the rest of the page shows the error
        return
    if entry.state != drawn or has_picture != _has_picture(run):  # other buttons, or the first picture
        st.rerun()
    is_text = RULES[settings.task.name].is_open_ended
    rows = rows_so_far(entry)
    earlier = rests_at if rests_at is not None and rests_at < entry.step else None
    done = _scored(entry)
    share = done[0] / done[1] if done else min(1.0, entry.step / settings.train.steps)
    words = _at_earlier_step(earlier, rows, is_text) + status_sentence(entry, settings, who)
    with st.container(horizontal=True, vertical_alignment="center", gap="medium", key="run_progress"):
        st.progress(share, text=escape_markdown(words))
        tiles(figures(entry, rows, earlier, is_text)[:FIRST], width=330)


def tiles(found: Sequence[tuple[str, str]], width: int | Literal["stretch"] = "stretch") -> None:
    """Draw figures side by side."""
    cells = "".join(f"<div><span>{name}</span><b>{value}</b></div>" for name, value in found)
    st.html(f"{_CSS}<div class='train-tiles'>{cells}</div>", width=width)


def _has_picture(run: str) -> bool:
    return bool(snapshot_steps(run_store.store().folder_of(run)))


def _report_at(rows: Sequence[dict[str, Any]], step: int) -> dict[str, Any] | None:
    """The last report at or before a step; None before the first."""
    return next((row for row in reversed(rows) if row["step"] <= step), None)


def _at_earlier_step(step: int | None, rows: Sequence[dict[str, Any]], is_text: bool) -> str:
    """The score at an earlier step, for the beginning of a sentence; "" for the latest step."""
    if step is None:
        return ""
    row = _report_at(rows, step)
    value = None if row is None else row.get("held_out_loss" if is_text else "held_out_exact_match")
    known = ""
    if row is not None and isinstance(value, (int, float)):
        known = (
            f", with {value / math.log(2):.3f} bits per character"
            if is_text
            else f", with {percent(value, 1)} exact match"
        )
        known += "" if row["step"] == step else f" as reported at step {row['step']:,}"
    return f"You look at step {step:,}{known}. The run itself: "


def figures(entry: Entry, rows: Sequence[dict[str, Any]], shown: int | None, is_text: bool) -> list[tuple[str, str]]:
    """The names and values of the figures, the step first; a missing value is a dash.

    Args:
        entry: The run.
        rows: Its metrics.
        shown: The earlier step that is shown; None for the latest.
        is_text: Whether the task is a text, which has bits per character and no exact match.
    """
    live = entry.live if shown is None else {}
    last = (rows[-1] if rows else {}) if shown is None else _report_at(rows, shown) or {}
    loss = last.get("held_out_loss")
    bits = loss / math.log(2) if is_text and isinstance(loss, float) else None
    speed = ("Tokens/s", _number(last.get("tokens_per_second") or None, ",.0f"))
    if shown is None and entry.state == "running":
        speed = ("Steps/s", _number(live.get("steps_per_second"), ",.0f"))
    return [
        (
            "Step",
            f"{_number(entry.step if shown is None else last.get('step'), ',.0f')} / {entry.train.get('steps', 0):,}",
        ),
        ("Bits per character", _number(bits, ".3f"))
        if is_text
        else ("Exact match", _share(last.get("held_out_exact_match"))),
        ("Loss", _number(live.get("loss", last.get("loss")), ".4f")),
        ("Held-out loss", _number(loss, ".4f")),
        ("Tokens right", _share(last.get("held_out_token_accuracy"))),
        ("Gradient", _number(live.get("gradient_norm", last.get("gradient_norm")), ".3f")),
        ("Learning rate", _number(live.get("learning_rate", last.get("learning_rate")), ".2e")),
        speed,
    ]


def _share(value: Any) -> str:
    return percent(float(value), 1) if isinstance(value, int | float) and not isinstance(value, bool) else "–"


def _number(value: Any, look: str) -> str:
    return format(float(value), look) if isinstance(value, int | float) and not isinstance(value, bool) else "–"


_CSS = """<style>
.train-tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(92px, 1fr)); gap: 6px; }
.train-tiles div {
  border: 1px solid color-mix(in srgb, currentColor 18%, transparent); border-radius: 9px; padding: 0 8px 1px; }
.train-tiles span { display: block; font-size: 0.75rem; opacity: 0.8; white-space: nowrap; }
.train-tiles b { font-size: 1rem; font-weight: 650; font-variant-numeric: tabular-nums; white-space: nowrap; }
.st-key-run_headline { margin-bottom: -0.6rem; }
@media (max-width: 640px) {
  .st-key-run_progress > :has(.train-tiles) { display: none; }
  .st-key-run_headline p { font-size: 1rem; }
  .st-key-run_new button [data-testid="stMarkdownContainer"] { position: absolute; clip-path: inset(50%); }
}
.st-key-run_name * { white-space: nowrap !important; overflow: hidden; text-overflow: ellipsis; }
</style>"""


def heading(entry: Entry) -> None:
    """The title above a run: its state and its name, and why it failed."""
    words, colour, icon = BADGES[entry.state]
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="run_row"):
        st.title("Train", anchor=False, width="content")
        st.badge(words, color=colour, icon=icon)
        with st.container(width="stretch", key="run_name"):
            st.text(entry.name)
    with st.container(key="run_trouble"):  # always there, so that the browser does not rebuild everything below
        if entry.state == "failed":
            st.error(escape_markdown(entry.message or "Failed; no error was recorded."), icon=":material/error:")


def new_run() -> None:
    """The button that sets up another run."""
    st.button("New run", icon=":material/add:", on_click=show_run, args=(NEW,), key="run_new")


def controls(entry: Entry, who: str) -> None:
    """The buttons of a visitor who may control a run."""
    run, is_scored = entry.id, _scored(entry) is not None
    if not run_store.may_control(entry, who):
        return
    if entry.state == "running":
        is_early = entry.pid is None or is_scored
        button("Pause", "pause", lambda: run_commands.send(run, "pause"), disabled=is_early)
    if entry.state == "paused":
        button("Step", "skip_next", lambda: run_commands.send(run, "step"), disabled=not entry.is_active)
    if entry.state in ("paused", "stopped", "failed", "interrupted"):
        button("Resume", "play_arrow", lambda: run_commands.resume(run), type="primary")
    if entry.state in ACTIVE:
        button("End scoring" if is_scored else "Stop", "stop", lambda: run_commands.stop(run), key="run_stop")


def button(
    words: str,
    icon: str,
    do: Callable[[], object],
    *,
    key: str | None = None,
    disabled: bool = False,
    type: Literal["primary", "secondary"] = "secondary",
) -> None:
    """A button with a command to a run; the page shows the reason where the command is refused."""

    def press() -> None:
        try:
            do()
        except (XformerError, OSError) as error:
            report_problem(error)

    key = key or f"run_{words.lower()}"
    st.button(words, icon=f":material/{icon}:", on_click=press, key=key, disabled=disabled, type=type)


def change_rate(entry: Entry, settings: Preset) -> None:
    """Ask for another peak of the learning rate."""
    now = learning_rate(settings.train, max(1, entry.step))
    peak = settings.train.lr_changes[-1][1] if settings.train.lr_changes else settings.train.peak_lr
    st.caption(f"At step {entry.step:,} the learning rate is {now:.3g}; the peak of its schedule is {peak:.3g}.")
    key = f"new_rate_{entry.id}_{peak:g}"
    new = st.number_input("New peak", 0.0, None, float(peak), peak / 10 or 1e-4, "%g", key=key)
    if peak:
        st.caption(f"With this peak it would be {new * now / peak:.3g} now.")
    button("Use it from the next step on", "check", lambda: run_commands.change_rate(entry.id, float(new)))


def again_button(entry: Entry, *, is_possible: bool) -> None:
    """A button that trains a run with the same settings again."""
    ticket = train_state().next_ticket()
    st.button(
        "Train the same again",
        icon=":material/replay:",
        on_click=lambda: start_once(ticket, lambda: run_commands.again(entry.id, f"{entry.name} again"[:80])),
        disabled=not is_possible,
        help="The same settings and the same seed: on a CPU the same run, bit for bit.",
        key="run_again",
    )
