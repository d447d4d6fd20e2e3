"""What one visit keeps of the Bug lab, in one place; what a link restores is in the link."""

from __future__ import annotations

from dataclasses import dataclass, field

import streamlit as st

from pages.shared.background_job import Job
from xformer.bugs.lesson import Lesson


@dataclass
class State:
    """Private to the visit."""

    lessons: dict[str, Job[Lesson]] = field(default_factory=dict)
    """What is being trained, and what was, by model, bug, rate and steps."""
    attention_of: tuple[str, str] | None = None
    """The model and the bug whose head that moved most was enlarged last."""


def state() -> State:
    """That of this visit."""
    return st.session_state.setdefault("bug_lab", State())
