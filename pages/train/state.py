"""The Train screen's state: the run that it shows, what has been read of it, and the last error."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import pandas as pd
import streamlit as st

from pages.components.training_player import put_at
from pages.shared import link, run_store
from pages.shared.escape_markdown import escape_markdown
from pages.shared.widgets import not_here
from xformer.errors import RunStoreError, XformerError
from xformer.training.entry import Entry
from xformer.training.stored_sweep import Known

NEW = "new"
"""The link's value of `run` while a new run is set up."""


@dataclass
class TrainState:
    """The Train screen's state that is private to a visit; widgets keep their own values."""

    run: str | None = None
    """The run that is shown, or `NEW`; None before anything was chosen."""
    targets: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    """By run: how often its player was sent to a step, and the last such step; None is the latest."""
    problem: str = ""
    form_preset: str = ""
    """The preset that the form starts from."""
    form_text: str = ""
    """The text that replaces the preset's; "" keeps it."""
    ticket: int = 0
    """The number of this drawing of the screen; each drawing starts one run at most."""
    used_ticket: int = 0
    starting: Lock = field(default_factory=Lock)
    evaluating: str | None = None
    """The run whose snapshots are not all evaluated yet."""
    rows: tuple[str, list[dict[str, Any]]] = ("", [])
    """A run and its metrics as far as this visit has read them."""
    sweep_rows: tuple[str, Known] = ("", {})
    """A sweep and the metrics of its models as far as this visit has read them."""

    def next_ticket(self) -> int:
        """A new number for the buttons of this drawing."""
        self.ticket += 1
        return self.ticket

    def rows_of_sweep(self, run: str) -> Known:
        """The metrics of a sweep's models that this visit has read."""
        if self.sweep_rows[0] != run:
            self.sweep_rows = (run, {})
        return self.sweep_rows[1]


def train_state() -> TrainState:
    """The state of this visit."""
    return st.session_state.setdefault("train_state", TrainState())


def start_once(ticket: int, start: Callable[[], str]) -> None:
    """Start a run and show it; a callback that ignores the second press of a double click.

    The second press interrupts the first wherever that touches the session, so both take turns, and the ticket is used up only
    when the run is there.
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
    """Show this run from now on, or set up one for `NEW`. A callback."""
    train_state().run = run


def player_key(run: str) -> str:
    """The key of the player of a run: each run has its own player."""
    return f"film_{run}"


def share(run: str, step: int | None) -> None:
    """Put the run, and the step of its player if any, into the address bar."""
    link.share({"run": run} | ({} if step is None else {"step": str(step)}))


def go_to(run: str, step: int | None) -> None:
    """Send the player of a run to a step; None is the latest."""
    put_at(player_key(run), step)
    targets = train_state().targets
    targets[run] = (targets.get(run, (0, None))[0] + 1, step)


def player_target(run: str) -> tuple[int, int | None]:
    """How often the player of a run was sent to a step, and the last such step."""
    return train_state().targets.get(run, (0, None))


def report_problem(error: Exception) -> None:
    """Have the page show an error once."""
    words = f"A file could not be written: {error.strerror or error}." if isinstance(error, OSError) else str(error)
    train_state().problem = words


def show_problem() -> None:
    """Show the last error; the container is always there, so that the browser does not rebuild everything below."""
    with st.container(key="train_complaints"):
        if train_state().problem:
            st.warning(escape_markdown(train_state().problem), icon=":material/report:")
            train_state().problem = ""


def shown_run(who: str) -> Entry | None:
    """The run of the link, else the visitor's latest; None where a new run is to be set up."""
    state = train_state()
    if (run := link.asked("run")) is not None:
        _follow_the_link(run)
    try:
        if state.run is None and who:
            state.run = next((entry.id for entry in run_store.entries() if entry.owner == who), None)
        if state.run in (None, NEW):
            return None
        entry = run_store.entry(state.run)
        if entry.deleted is None:
            return entry
        st.warning("This run was deleted; the Runs screen can bring it back for an hour.")
    except RunStoreError as error:
        st.warning(escape_markdown(str(error)))
    state.run = NEW if state.run is not None else None
    return None


def _follow_the_link(run: str) -> None:
    try:
        if run != NEW:
            if not re.fullmatch(r"[0-9a-f]{8}", run, re.ASCII):
                raise RunStoreError
            run_store.entry(run)
    except RunStoreError:
        not_here("run")
        return
    train_state().run = run
    step = link.asked("step")
    if run == NEW or step is None:
        return
    if re.fullmatch(r"\d{1,9}", step, re.ASCII):
        go_to(run, int(step))
    else:
        not_here("step")


def rows_so_far(entry: Entry) -> list[dict[str, Any]]:
    """The metrics of a run; only new rows are read, unless the run was resumed from an earlier step."""
    state = train_state()
    run, rows = state.rows
    if run != entry.id or (rows and rows[-1].get("step", 0) > entry.step):
        rows = []
    rows.extend(run_store.store().rows(entry.id, rows[-1]["step"] if rows else -1))
    state.rows = (entry.id, rows)
    return rows


def thinned_curve(frame: pd.DataFrame, column: str, most: int = 200) -> list[tuple[int, float]]:
    """A column by step in about `most` points, the last one among them."""
    clean = frame[["step", column]].dropna()
    stride = max(1, -(-len(clean) // most))
    chosen = clean.iloc[sorted({*range(0, len(clean), stride), len(clean) - 1})] if len(clean) else clean
    return [(int(step), round(float(value), 4)) for step, value in chosen.itertuples(index=False, name=None)]
