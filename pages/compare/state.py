"""What one visit keeps of Compare, in one place: who is compared, what is read, and what is being worked on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import streamlit as st

from pages.compare.choice import Choice
from pages.shared.background_job import Job, Report
from pages.shared.session import LookedAt


@dataclass
class State:
    """Private to the visit; what a link restores is in the link."""

    choices: list[Choice] = field(default_factory=list)
    is_chosen: bool = False
    """Whether somebody has chosen a player here."""
    looked_at: LookedAt | None = None
    """What the other screens showed when the first player was last taken from them."""
    refused: str = ""
    """Why the model that was just chosen cannot play."""
    shared_input: str | None = None
    """The input of the other screens that this one has taken over last."""
    good_input: str = ""
    """The last input that all could read."""
    found_input: str | None = None
    """What a search has found, to be typed into the box."""
    task: str = ""
    linked_step: tuple[str, int] | None = None
    """The comparison for which a link asked for a step, and the step."""
    jobs: dict[str, Job[Any]] = field(default_factory=dict)
    """What is worked on a little at a time, by what it is."""

    def put(self, index: int, choice: Choice) -> None:
        """Another player takes a place."""
        self.choices[index] = choice
        self.is_chosen = True

    def job(self, what: str, about: str) -> Job[Any] | None:
        """The work of that kind, unless it is about something that is not looked at any more."""
        job = self.jobs.get(what)
        return job if job is not None and job.about == about else None

    def begin(self, what: str, about: str, work: Iterator[Report]) -> Job[Any]:
        """Begin a work, in place of any other of its kind."""
        self.jobs[what] = Job(work, about)
        return self.jobs[what]

    def work_on(self, what: str, about: str, work: Callable[[], Iterator[Report]], at_once: float) -> Job[Any]:
        """Go on with a work; one that begins now may take `at_once` seconds before anybody has to be told."""
        if (job := self.job(what, about)) is None:
            job = self.begin(what, about, work())
            job.advance(at_once)
        else:
            job.advance()
        return job


def state() -> State:
    """That of this visit."""
    return st.session_state.setdefault("compare", State())


def show(key: str, value: Any) -> None:
    """Have a widget show what is kept elsewhere."""
    if st.session_state.get(key) != value:
        st.session_state[key] = value
