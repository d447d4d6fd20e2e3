"""Counting and searching in small portions: the visitor's page drives a generator, so that other visitors hardly wait.

job = Job(agreement(players), about=match.order)
job.advance(); job.latest; job.is_running
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import streamlit as st

from xformer.errors import XformerError

BUDGET = 0.2
"""Seconds of work in one run of the page; a chunk that was begun is finished."""
TICK = 0.4
"""Seconds between two runs of the page while a job is running."""


class Report(Protocol):
    """What a job's generator yields."""

    @property
    def is_final(self) -> bool: ...


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


def progress(job: Job[Any], key: str, share: float, words: str, stopped: str = "") -> None:
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
