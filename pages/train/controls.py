"""What a person may tell a run: pause, step, resume, stop, another learning rate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import streamlit as st

from pages.shared import run_commands, run_store
from pages.train.state import NEW, complain, show_run
from pages.train.status import BADGES, scored
from xformer.errors import XformerError
from xformer.presets import Preset
from xformer.training.entry import Entry
from xformer.training.schedule import learning_rate


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
