"""What the Train screen remembers of a visit: the run that it shows, the form, and what went wrong last."""

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
"""What the link says, and the session holds, where a run is set up."""


@dataclass
class TrainState:
    """A visit's own; what fields and switches hold is kept by their widgets."""

    run: str | None = None
    """The run that is shown, or `NEW`; None before anything was chosen."""
    targets: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    """How often the player of a run was sent to a step, and to which one last; None is the latest."""
    problem: str = ""
    form_preset: str = ""
    """The preset that the form begins from."""
    form_text: str = ""
    """The text in place of that of the preset; empty for the preset's own."""
    ticket: int = 0
    """The number of this drawing of the screen; each starts one run at most."""
    used_ticket: int = 0
    starting: Lock = field(default_factory=Lock)
    developing: str | None = None
    """The run whose snapshots have not all been looked at yet."""
    rows: tuple[str, list[dict[str, Any]]] = ("", [])
    """A run, and its metrics as far as this visit has read them."""
    sweep_rows: tuple[str, Known] = ("", {})
    """A sweep, and the metrics of its models as far as this visit has read them."""

    def next_ticket(self) -> int:
        """A number for the buttons of this drawing."""
        self.ticket += 1
        return self.ticket

    def rows_of_sweep(self, run: str) -> Known:
        """What was read of the models of a sweep."""
        if self.sweep_rows[0] != run:
            self.sweep_rows = (run, {})
        return self.sweep_rows[1]


def train_state() -> TrainState:
    """The state of this visit."""
    return st.session_state.setdefault("train_state", TrainState())


def start_once(ticket: int, start: Callable[[], str]) -> None:
    """Start a run and show it. In a callback: a second press of the same button starts nothing.

    The second press of a double click breaks off what the first one does, wherever that looks at the session, and is at work
    meanwhile: so they take turns, and a press counts once its run is there, with no look at the session until it is shown.
    """
    state = train_state()
    with state.starting:
        if state.used_ticket == ticket:
            return
        try:
            state.run = start()
            state.used_ticket = ticket
        except (XformerError, OSError) as error:
            complain(error)


def show_run(run: str) -> None:
    """Show this run from now on; `NEW` sets one up. A callback, or followed by `st.rerun()`."""
    train_state().run = run


def film_key(run: str) -> str:
    """The key of the player of a run: every run has one of its own, so that none begins where another was."""
    return f"film_{run}"


def share(run: str, step: int | None) -> None:
    """Put the run, and the step where the player rests on one, into the address bar."""
    link.share({"run": run} | ({} if step is None else {"step": str(step)}))


def go_to(run: str, step: int | None) -> None:
    """Have the player of a run go to a step; None is its latest."""
    put_at(film_key(run), step)
    targets = train_state().targets
    targets[run] = (targets.get(run, (0, None))[0] + 1, step)


def player_target(run: str) -> tuple[int, int | None]:
    """(number, step): how often the player of a run was sent somewhere, and where to."""
    return train_state().targets.get(run, (0, None))


def complain(error: Exception) -> None:
    """Have the page say what went wrong, once."""
    words = f"A file could not be written: {error.strerror or error}." if isinstance(error, OSError) else str(error)
    train_state().problem = words


def show_complaint() -> None:
    """What went wrong since the page was last drawn; its place is always there, so that nothing below is built anew."""
    with st.container(key="train_complaints"):
        if train_state().problem:
            st.warning(escape_markdown(train_state().problem), icon=":material/report:")
            train_state().problem = ""


def shown_run(who: str) -> Entry | None:
    """The run to show, or None where one is to be set up."""
    state = train_state()
    if (run := link.asked("run")) is not None:
        _follow_the_link(run)
    if state.run is None:
        mine = [entry for entry in _entries() if entry.owner == who]
        state.run = mine[0].id if mine and who else None
    if state.run in (None, NEW):
        return None
    try:
        entry = run_store.entry(state.run)
    except RunStoreError as error:
        st.warning(escape_markdown(str(error)))
        entry = None
    if entry is None or entry.deleted is not None:
        if entry is not None:
            st.warning("This run was deleted; the Runs screen can bring it back for an hour.")
        state.run = NEW
        return None
    return entry


def _entries() -> list[Entry]:
    try:
        return run_store.entries()
    except RunStoreError as error:
        st.warning(escape_markdown(str(error)))
        return []


def _follow_the_link(asked: str) -> None:
    state = train_state()
    if asked == NEW:
        state.run = NEW
        return
    try:
        if not re.fullmatch(r"[0-9a-f]{8}", asked, re.ASCII):
            raise RunStoreError
        run_store.entry(asked)
    except RunStoreError:
        not_here("run")
        return
    state.run = asked
    step = link.asked("step")
    if step is None:
        return
    if re.fullmatch(r"\d{1,9}", step, re.ASCII):
        go_to(asked, int(step))
    else:
        not_here("step")


def rows_so_far(entry: Entry) -> list[dict[str, Any]]:
    """The metrics of a run; what this visitor has seen already is not read again, unless the run went back behind it."""
    state = train_state()
    run, rows = state.rows
    if run != entry.id or (rows and rows[-1].get("step", 0) > entry.step):
        rows = []
    rows.extend(run_store.store().rows(entry.id, rows[-1]["step"] if rows else -1))
    state.rows = (entry.id, rows)
    return rows


def thinned_curve(frame: pd.DataFrame, column: str, most: int = 200) -> list[tuple[int, float]]:
    """A column against the steps, in about so many points, the last one among them."""
    clean = frame[["step", column]].dropna()
    stride = max(1, -(-len(clean) // most))
    chosen = clean.iloc[sorted({*range(0, len(clean), stride), len(clean) - 1})] if len(clean) else clean
    return [(int(step), round(float(value), 4)) for step, value in chosen.itertuples(index=False, name=None)]
