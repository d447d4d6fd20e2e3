"""Where a run stands, in a word and in a sentence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import streamlit as st

from pages.shared import run_commands, run_store
from pages.shared.escape_markdown import escape_markdown
from pages.train.state import NEW, complain, rows_so_far, show_run
from pages.train.timeline import GOES_ON
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


def state_words(entry: Entry, settings: Preset, who: str) -> str:
    """Where the run stands, in one plain sentence or two."""
    words = _where(entry, settings)
    if entry.message and entry.state != "failed":  # that is said in a frame of its own
        words += f" {entry.message}"
    elif entry.state in ("stopped", "interrupted"):
        words += (
            " Resume goes on from there."
            if entry.state == "stopped"
            else " Resume goes on from the last state it kept."
        )
    if entry.private and not run_store.is_open():
        words += " Only you see it, until you share it on the Runs screen."
    if not run_store.may_control(entry, who):
        words += " It was started by someone else: you are looking on."
    return words


def looking_back(step: int | None, rows: Sequence[Mapping[str, Any]], is_text: bool) -> str:
    """What was known at an earlier step that is looked at, before what is to be said on the run; nothing for the latest."""
    if step is None:
        return ""
    row = next((row for row in reversed(rows) if row["step"] <= step), None)
    value = None if row is None else row.get("held_out_loss" if is_text else "held_out_exact_match")
    if row is None or not isinstance(value, (int, float)):
        return f"You look at step {step:,}. The run itself: "
    known = f"{value / math.log(2):.3f} bits per character" if is_text else f"{percent(value, 1)} exact match"
    at = "" if row["step"] == step else f" as reported at step {row['step']:,}"
    return f"You look at step {step:,}, with {known}{at}. The run itself: "


def far_along(entry: Entry, settings: Preset) -> float:
    """How far the bar stands: of the training, and after it of the scoring."""
    done = scored(entry)
    return done[0] / done[1] if done else min(1.0, entry.step / settings.train.steps)


def scored(entry: Entry) -> tuple[int, int, float] | None:
    """While a run that is through is scored: examples done, of how many, and for how many seconds; else None."""
    found = entry.live.get(SCORING) if entry.state == "running" else None
    if not isinstance(found, list) or len(found) != 3 or not all(isinstance(n, (int, float)) for n in found):
        return None
    done, total, seconds = found
    return int(done), max(1, int(total)), float(seconds)


def _where(entry: Entry, settings: Preset) -> str:
    steps = settings.train.steps
    far = f"step {entry.step:,} of {steps:,}"
    if entry.state == "queued":
        place = dispatch.place(entry.id, run_store.store().entries(), dispatch.devices())
        ahead = "it is next" if place == 0 else f"{place} {'run comes' if place == 1 else 'runs come'} before it"
        return f"Waiting for its turn: {ahead}."
    if entry.state == "running" and entry.pid is None:
        return "Starting its process."
    if entry.state == "running" and (done := scored(entry)) is not None:
        left = f", about {duration(done[2] * (done[1] - done[0]) / done[0])} left" if done[0] else ""
        return f"Trained. Scoring it on unseen examples: {done[0]:,} of {done[1]:,}{left}."
    if entry.state == "running":
        rate = entry.step / entry.seconds if entry.seconds > 0 else 0.0  # of the whole run: the latest one jumps about
        left = f", about {duration((steps - entry.step) / rate)} left" if rate > 0 and entry.step < steps else ""
        return f"Training on {device_words(entry)}: {far}{left}."
    if entry.state == "paused":
        if not entry.is_active:
            return f"Paused at {far}, and its process has ended meanwhile. Resume starts it again from there."
        return f"Paused at {far}. Step goes on by one step, Resume for good."
    if entry.state == "finished":
        words = f"Finished at {far}, {duration(entry.seconds)} of training on {device_words(entry)}."
        score, loss = entry.figures.get("exact_match"), entry.figures.get("loss")
        on = f"On {entry.figures.get('samples', 0):,} unseen examples:"
        if RULES[settings.task.name].is_open_ended and isinstance(loss, float):
            words += f" On text it never read: {loss:.4f} nats, {loss / math.log(2):.3f} bits per character."
        elif isinstance(score, float):
            words += f" {on} {percent(score)} exact match."
        return words
    if entry.state == "interrupted":
        return f"Interrupted after {far}."
    return f"{BADGES[entry.state][0].capitalize()} at {far}."


def device_words(entry: Entry) -> str:
    """The device as a person says it."""
    if entry.device == ELSEWHERE:
        return "another program’s device"
    return "the CPU" if entry.device in (None, "cpu") else f"GPU {entry.device.removeprefix('cuda:')}"


def tiles(entry: Entry, rows: Sequence[dict[str, Any]], shown: int | None, *, is_text: bool) -> None:
    """Draw them; `shown` is an earlier step that is looked at, None for the latest."""
    cells = "".join(
        f"<div><span>{words}</span><b>{number}</b></div>" for words, number in figures(entry, rows, shown, is_text)
    )
    st.html(f"{_CSS}<div class='train-tiles'>{cells}</div>")


def figures(entry: Entry, rows: Sequence[dict[str, Any]], shown: int | None, is_text: bool) -> list[tuple[str, str]]:
    """What each figure is called, and the number or a dash; the first says of which step they are."""
    if shown is None:
        last, live, step = (rows[-1] if rows else {}), entry.live, entry.step
    else:
        last, live = report_at(rows, shown) or {}, {}
        step = last.get("step")
    loss = last.get("held_out_loss")
    bits = loss / math.log(2) if is_text and isinstance(loss, float) else None
    is_running = shown is None and entry.state == "running"
    return [
        ("figures of step", _number(step, ",.0f")),
        ("loss", _number(live.get("loss", last.get("loss")), ".4f")),
        ("held-out loss", _number(loss, ".4f")),
        ("bits per character", _number(bits, ".3f"))
        if is_text
        else ("exact match", _share(last.get("held_out_exact_match"))),
        ("tokens right", _share(last.get("held_out_token_accuracy"))),
        ("gradient", _number(live.get("gradient_norm", last.get("gradient_norm")), ".3f")),
        ("learning rate", _number(live.get("learning_rate", last.get("learning_rate")), ".2e")),
        ("steps/s", _number(live.get("steps_per_second"), ",.0f"))
        if is_running
        else ("tokens/s", _number(last.get("tokens_per_second") or None, ",.0f")),
    ]


def report_at(rows: Sequence[dict[str, Any]], step: int) -> dict[str, Any] | None:
    """The latest report at or before a step; None where there was none yet."""
    return next((row for row in reversed(rows) if row["step"] <= step), None)


def _share(value: Any) -> str:
    """A share as a percentage that is all or none only where it is; a dash where there is none."""
    return percent(float(value), 1) if isinstance(value, int | float) and not isinstance(value, bool) else "–"


def _number(value: Any, look: str) -> str:
    """A number as it is shown; a dash where there is none."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return format(float(value), look) if is_number else "–"


_CSS = """<style>
.train-tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(92px, 1fr)); gap: 5px; }
.train-tiles div {
  border: 1px solid color-mix(in srgb, currentColor 18%, transparent); border-radius: 9px; padding: 1px 7px 2px; }
.train-tiles span { display: block; font-size: 0.72rem; opacity: 0.75; white-space: nowrap; }
.train-tiles b { font-size: 1rem; font-weight: 650; font-variant-numeric: tabular-nums; white-space: nowrap; }
.st-key-run_row h1 { font-size: 1.55rem; }
.st-key-run_row { gap: 0.5rem; }
.st-key-run_row button { min-height: 2.2rem; padding: 0.1rem 0.6rem; }
.st-key-run_name { min-width: 7rem; }
.st-key-run_name * { white-space: nowrap !important; overflow: hidden; text-overflow: ellipsis; }
</style>"""

TICK = 0.4
"""Seconds between two looks while a run is young, which is when its figures change most."""

LATER = 1.2
"""And later, or while it is paused: only somebody else could have it go on."""

YOUNG = 30.0
"""So many seconds of training long."""


def progress(entry: Entry, settings: Preset, who: str, rests_at: int | None) -> None:
    """Draw the bar, the sentence on it and the figures; a fragment of its own while the run goes on.

    `rests_at` is the step where the player rests: what an earlier one is looked at for is said of that step.
    """
    tick = TICK if entry.seconds < YOUNG and entry.state != "paused" else LATER
    fragment = st.fragment(run_every=tick if entry.state in GOES_ON else None, key="train_progress")
    fragment(_progress)(entry.id, settings, who, rests_at, entry.state, _has_picture(entry.id))


def _progress(run: str, settings: Preset, who: str, rests_at: int | None, drawn: str, has_picture: bool) -> None:
    try:
        entry = run_store.entry(run)
    except RunStoreError:  # the whole of the page will say so
        return
    if entry.state != drawn or has_picture != _has_picture(run):  # other buttons, or the first picture: at once
        st.rerun()
    is_text = RULES[settings.task.name].is_open_ended
    rows = rows_so_far(entry)
    earlier = rests_at if rests_at is not None and rests_at < entry.step else None
    words = looking_back(earlier, rows, is_text) + state_words(entry, settings, who)
    st.progress(far_along(entry, settings), text=escape_markdown(words))
    tiles(entry, rows, earlier, is_text=is_text)


def _has_picture(run: str) -> bool:
    return bool(snapshot_steps(run_store.store().folder_of(run)))


def controls(entry: Entry, settings: Preset, who: str) -> None:
    """The row of buttons of a run; whoever may not control it is told so."""
    with run_row(entry):
        if run_store.may_control(entry, who):
            _commands(entry)
            if entry.state in ("running", "paused"):
                _rate(entry, settings)


@contextmanager
def run_row(entry: Entry) -> Iterator[None]:
    """The row above a run: how it stands, its name, the buttons that are drawn within, and the way to a new one."""
    words, colour, icon = BADGES[entry.state]
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="run_row"):
        st.title("Train", anchor=False, width="content")
        st.badge(words, color=colour, icon=icon)
        with st.container(width="stretch", key="run_name"):
            st.text(entry.name)
        yield
        st.button("New run", icon=":material/add:", on_click=show_run, args=(NEW,), key="run_new")


def _commands(entry: Entry) -> None:
    run = entry.id
    if entry.state == "running":
        button(
            "Pause",
            "pause",
            lambda: run_commands.send(run, "pause"),
            disabled=entry.pid is None or scored(entry) is not None,
        )
    if entry.state == "paused":
        button("Step", "skip_next", lambda: run_commands.send(run, "step"), disabled=not entry.is_active)
    if entry.state in ("paused", "stopped", "failed", "interrupted"):
        button("Resume", "play_arrow", lambda: run_commands.resume(run), type="primary")
    if entry.state in ("queued", "running", "paused"):
        words = "Stop" if scored(entry) is None else "End scoring"
        button(words, "stop", lambda: run_commands.stop(run), key="run_stop")


def button(
    words: str,
    icon: str,
    do: Callable[[], object],
    *,
    key: str | None = None,
    disabled: bool = False,
    type: Literal["primary", "secondary"] = "secondary",
) -> None:
    """A button that does something to a run; where it is refused, the screen says why."""

    def press() -> None:
        try:
            do()
        except (XformerError, OSError) as error:
            complain(error)

    st.button(
        words,
        icon=f":material/{icon}:",
        on_click=press,
        key=key or f"run_{words.lower()}",
        disabled=disabled,
        type=type,
    )


def _rate(entry: Entry, settings: Preset) -> None:
    now = learning_rate(settings.train, max(1, entry.step))
    peak = settings.train.lr_changes[-1][1] if settings.train.lr_changes else settings.train.peak_lr
    with st.popover("Rate", icon=":material/speed:", key="run_rate"):
        st.caption(f"At step {entry.step:,} the learning rate is {now:.3g}: its schedule has a peak of {peak:.3g}.")
        new = st.number_input(
            "New peak", 0.0, None, float(peak), peak / 10 or 1e-4, "%g", key=f"new_rate_{entry.id}_{peak:g}"
        )
        share = now / peak if peak else 0.0
        if peak:
            st.caption(f"With this peak it would be {new * share:.3g} now. What was trained so far stays.")
        button("Use it from the next step on", "check", lambda: run_commands.change_rate(entry.id, float(new)))
