"""Long computations: a progress bar for work that any click interrupts, and jobs that advance in small chunks between clicks.

The visitor's page drives a job's generator, so that other visitors hardly wait.

job = BackgroundJob(agreement(variants), about=match.order)
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

from pages.controls.text import escape_markdown, signed
from xformer.analysis.ablation import agreement
from xformer.errors import XformerError
from xformer.formatting import duration

AT_ONCE = 1.2
"""Seconds of work of a new job before the page shows a progress bar."""
BUDGET, MEASURING_BUDGET = 0.2, 0.6
"""Seconds of work in one rerun of the page; a chunk that has started is finished. Measurements have longer chunks."""
TICK = 0.4
"""Seconds between two reruns of the page while a job is running."""
LONG = 10.0
"""Seconds; a measurement that takes longer runs only on request."""
MOMENT, OFTEN = 0.5, 0.15
"""Seconds until the progress bar of `interruptible_progress` appears, and between two of its updates."""
OnStep = Callable[[int, int], None]


class JobReport(Protocol):
    """One item that a job's generator yields."""

    @property
    def is_final(self) -> bool: ...


@dataclass(kw_only=True)
class Stoppable:
    """Work that a visitor can cancel and resume. A cancelled one keeps its results so far."""

    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True

    def resume(self) -> None:
        self.cancelled = False


R = TypeVar("R", bound=JobReport)


@dataclass
class BackgroundJob(Stoppable, Generic[R]):
    """A computation of one visitor that advances in chunks. It is kept in the session and ends with it."""

    work: Iterator[R] = field(repr=False)
    about: str
    """Identifies the input of the job; the job is stale when this has changed."""
    latest: R | None = None
    problem: str = ""
    seconds: float = 0.0
    """Seconds spent on the work since its first report."""

    @property
    def is_running(self) -> bool:
        return not (self.cancelled or self.problem or (self.latest is not None and self.latest.is_final))

    def advance(self, budget: float = BUDGET) -> None:
        """Work for about `budget` seconds, at least one chunk."""
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


def kept_job(
    key: str,
    about: str,
    work: Callable[[], Iterator[R]],
    at_once: float,
    begin: Callable[[BackgroundJob[R], float], None] = BackgroundJob.advance,
) -> BackgroundJob[R]:
    """Return the visitor's job under a key; create it if there is none or if it is about something else.

    Args:
        key: The session-state key.
        about: Identifies the input of the job.
        work: Creates the generator of a new job.
        at_once: Seconds for which a new job works before the page is drawn.
        begin: Called with a new job and `at_once`.
    """
    job: BackgroundJob[R] | None = st.session_state.get(key)
    if job is None or job.about != about:
        job = st.session_state[key] = BackgroundJob(work(), about)
        begin(job, at_once)
    return job


def follow(job: BackgroundJob[Any], tell: Callable[[], None], budget: float = BUDGET) -> None:
    """Advance a job and draw its progress, repeatedly while it runs; the page reruns when the job ends or resumes."""
    st.fragment(_follow, run_every=TICK if job.is_running else None)(job, job.is_running, tell, budget)


def _follow(job: BackgroundJob[Any], ticks: bool, tell: Callable[[], None], budget: float) -> None:
    """Advance and draw once. `ticks` is whether the fragment reruns periodically."""
    if ticks:
        job.advance(budget)
    if job.is_running != ticks:  # the job has ended or was resumed
        st.rerun()
    tell()


def progress(job: Stoppable, key: str, share: float, words: str, stopped: str = "") -> None:
    """Draw a progress bar with a button that cancels or resumes the work."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key=key):
        if job.cancelled and stopped:
            st.markdown(stopped, width="content")
        else:
            st.progress(share, words, width=420)
        if job.cancelled:
            st.button("Resume", icon=":material/play_arrow:", key=f"{key}_on", on_click=job.resume)
        else:
            st.button("Cancel", key=f"{key}_cancel", on_click=job.cancel)


def measuring_job(key: str, about: str, work: Callable[[], Iterator[Any]]) -> BackgroundJob[Any]:
    """Return the visitor's job that measures parts of a model; see `kept_job`. A problem of the job is shown.

    A new one measures for `AT_ONCE` seconds, at least one part, and stops if all of them would take longer than `LONG`. Such a
    job yields its first report before any part is measured. Its reports count the parts that are `done` and `to_do`.
    """

    def begin(job: BackgroundJob[Any], at_once: float) -> None:
        job.advance(at_once)
        while job.is_running and job.latest is not None and not job.latest.done:
            job.advance(0.0)
        if job.is_running and job.seconds + seconds_left(job) > LONG:
            job.cancel()

    job = kept_job(key, about, work, AT_ONCE, begin)
    show_problem(job)
    return job


def show_problem(job: BackgroundJob[Any]) -> None:
    """Show why a job has failed, if it has."""
    if job.problem:
        st.info(escape_markdown(job.problem), icon=":material/info:")


def seconds_left(job: BackgroundJob[Any]) -> float:
    """Estimate the remaining seconds from the rate so far."""
    assert job.latest is not None
    return job.seconds * (job.latest.to_do / max(1, job.latest.done) - 1)


def follow_measuring(job: BackgroundJob[Any], key: str, many: str) -> None:
    """Advance a measurement and draw its progress; `many` names the parts in the plural."""

    def bar() -> None:
        if (found := job.latest) is not None and not found.is_final:
            words = f"{found.done} of {found.to_do} {many} measured"
            stopped = f"{words}. The other {found.to_do - found.done} would take about {duration(seconds_left(job))}."
            progress(job, key, found.done / max(1, found.to_do), words, stopped)

    follow(job, bar, MEASURING_BUDGET)


def describe_estimates(table: pd.DataFrame, many: str) -> str:
    """Describe in Markdown how well estimates agree with measurements; `table` has the columns estimated and measured."""
    missing, found = table["measured"].isna().tolist().count(True), agreement(table)
    words = f"All {len(table)} {many} are measured."
    if missing:
        words = f"**{missing} of {len(table)} {many} are not measured**; they have only an estimate."
    if found is None:
        return words + " Too few are measured to judge the estimates." * bool(missing)
    if found.is_near_chance:
        words += " **Do not rely on the estimates here: a random order could agree just as well.**"
    elif found.is_poor:
        words += f" **Do not choose {many} by the estimates here: they miss large effects.**"
    rho = signed(int(found.rho * 100) / 100)
    return (
        f"{words} Over the {found.n} measured {many} that have any effect, the rank correlation of estimates and measurements "
        f"is **{rho}** (Spearman; 1: the same order, 0: no relation). The {found.top} {many} with the largest estimates have "
        f"{int(100 * found.found)}% of the total effect, in absolute values, of the {found.top} with the largest effects."
    )


@contextmanager
def interruptible_progress(words: str) -> Iterator[OnStep]:
    """Yield `step(done, of)`, which updates a progress bar that appears after half a second. Any click ends the work.

    The placeholder of the bar is always present, so that nothing below it moves.
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
