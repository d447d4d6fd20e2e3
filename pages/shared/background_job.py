"""Work that takes a while: a progress bar for what a click ends, and jobs in small portions for what goes on meanwhile.

The visitor's page drives the generator of a job, so that other visitors hardly wait.

job = Job(agreement(players), about=match.order)
job.advance(); job.latest; job.is_running
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import pandas as pd
import streamlit as st

from pages.shared.text import signed
from xformer.analysis.ablation import agreement
from xformer.errors import XformerError
from xformer.formatting import duration

BUDGET = 0.2
"""Seconds of work in one run of the page; a chunk that was begun is finished."""
TICK = 0.4
"""Seconds between two runs of the page while a job is running."""


LONG = 10.0
"""Seconds: what takes longer is measured only when the visitor asks for it."""
MOMENT, OFTEN = 0.5, 0.15
"""Seconds until a bar appears for work that a click ends, and between two of its steps."""
Step = Callable[[int, int], None]


class Report(Protocol):
    """What a job's generator yields."""

    @property
    def is_final(self) -> bool: ...


class Stoppable(Protocol):
    """Work that a visitor can stop and go on with."""

    cancelled: bool

    def cancel(self) -> None: ...
    def resume(self) -> None: ...


R = TypeVar("R", bound=Report)


@dataclass
class Job(Generic[R]):
    """One visitor's work that is not done yet: kept in the session, gone with it."""

    work: Iterator[R] = field(repr=False)
    about: str
    """What it was started for; it is stale when that has changed."""
    latest: R | None = None
    problem: str = ""
    cancelled: bool = False
    seconds: float = 0.0
    """Spent on the work since its first report."""

    @property
    def is_running(self) -> bool:
        return not (self.cancelled or self.problem or (self.latest is not None and self.latest.is_final))

    def advance(self, budget: float = BUDGET) -> None:
        """Work for about `budget` seconds; one chunk at least."""
        begun = time.perf_counter()
        while self.is_running:
            is_first, started = self.latest is None, time.perf_counter()
            try:
                self.latest = next(self.work)
            except XformerError as error:
                self.problem = str(error)
            now = time.perf_counter()
            self.seconds += 0.0 if is_first else now - started
            if now - begun > budget:
                return

    def cancel(self) -> None:
        """Stop; what was found so far stays."""
        self.cancelled = True

    def resume(self) -> None:
        """Go on after all."""
        self.cancelled = False


def kept_job(key: str, about: str, work: Callable[[], Iterator[R]], begin: Callable[[Job[R]], None]) -> Job[R]:
    """The visitor's job under a key; a new one where there is none or it is about something else.

    Args:
        key: The key of the session state.
        about: What the job is about.
        work: Makes the generator of a new job.
        begin: Called with a new job, to work for a moment before the page is drawn.
    """
    job: Job[R] | None = st.session_state.get(key)
    if job is None or job.about != about:
        job = st.session_state[key] = Job(work(), about)
        begin(job)
    return job


def follow(job: Job[Any], tell: Callable[[], None], budget: float = BUDGET) -> None:
    """Work on and draw how far it is, again and again for as long as it runs; the page runs again when that ends or begins."""
    st.fragment(_follow, run_every=TICK if job.is_running else None)(job, job.is_running, tell, budget)


def _follow(job: Job[Any], ticks: bool, tell: Callable[[], None], budget: float) -> None:
    """`ticks` says whether it runs again by itself."""
    if ticks:
        job.advance(budget)
    if job.is_running != ticks:  # it has ended, or goes on after all
        st.rerun()
    tell()


def progress(job: Stoppable, key: str, share: float, words: str, stopped: str = "") -> None:
    """How far a work is, with a way to stop it and to go on with it."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key=key):
        if job.cancelled and stopped:
            st.markdown(stopped, width="content")
        else:
            st.progress(share, words, width=420)
        if job.cancelled:
            st.button("Go on", icon=":material/play_arrow:", key=f"{key}_on", on_click=job.resume)
        else:
            st.button("Cancel", key=f"{key}_cancel", on_click=job.cancel)


def begin_measuring(job: Job[Any], at_once: float) -> None:
    """Measure parts of a model for `at_once` seconds, at least one; stop if measuring all takes longer than `LONG`.

    The first report of such a job comes before any part is measured. A report counts what is `done` of what is `to_do`.
    """
    job.advance(at_once)
    while job.is_running and job.latest is not None and not job.latest.done:
        job.advance(0.0)
    if job.is_running and job.seconds + seconds_left(job) > LONG:
        job.cancel()


def seconds_left(job: Job[Any]) -> float:
    """How long the rest takes if it goes on as before."""
    assert job.latest is not None
    return job.seconds * (job.latest.to_do / max(1, job.latest.done) - 1)


def measuring_bar(job: Job[Any], key: str, many: str) -> None:
    """How far the measuring is, with a way to stop it and to go on."""
    if (found := job.latest) is None or found.is_final:
        return
    words = f"{found.done} of {found.to_do} {many} measured"
    stopped = f"{words}. The other {found.to_do - found.done} take about {duration(seconds_left(job))}."
    progress(job, key, found.done / max(1, found.to_do), words, stopped)


def how_far_to_trust(table: pd.DataFrame, many: str) -> str:
    """What is measured, and how well the estimates agree with it, as Markdown; `table` has the columns estimated, measured."""
    missing, found = table["measured"].isna().tolist().count(True), agreement(table)
    words = f"All {len(table)} {many} are measured."
    if missing:
        words = f"**{missing} of {len(table)} {many} are not measured**; for them there is only an estimate."
    if found is None:
        return words + " Too few are measured to say how good the estimates are." * bool(missing)
    if found.is_near_chance:
        words += " **Do not rely on the estimates here: a random order could agree as well.**"
    elif found.is_poor:
        words += f" **Do not choose {many} by the estimates here: they miss large effects.**"
    rho = signed(int(found.rho * 100) / 100)
    return (
        f"{words} Over the {found.n} that are measured and do anything, the estimates have a rank correlation of **{rho}** "
        f"with the measurements (Spearman; 1: the same order, 0: no relation); the {found.top} {many} with the largest "
        f"estimates have {int(100 * found.found)}% of the effect of the {found.top} with the largest effects (sizes added up)."
    )


@contextmanager
def patience(words: str) -> Iterator[Step]:
    """Yield `step(done, of)`, which moves a progress bar that appears after half a second; a click anywhere ends the work.

    Its place is always there, so that nothing below moves.
    """
    place, begun, last = st.empty(), time.monotonic(), 0.0

    def step(done: int, of: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - begun > MOMENT and now - last > OFTEN:
            last = now
            place.progress(min(1.0, done / max(1, of)), f"{words}: {done} of {of}")

    yield step
    place.empty()
