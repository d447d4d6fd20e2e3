"""A progress bar for work that takes longer than half a second. A click anywhere ends the work.

with patience("It is speaking") as step:
    for done in range(32):
        step(done, 32)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import streamlit as st

Step = Callable[[int, int], None]
MOMENT, OFTEN = 0.5, 0.15
"""Seconds until the bar appears, and between two of its steps."""


@contextmanager
def patience(words: str) -> Iterator[Step]:
    """Yield `step(done, of)`, which moves the bar. Its place is always there, so that nothing below moves."""
    place, begun, last = st.empty(), time.monotonic(), 0.0

    def step(done: int, of: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - begun > MOMENT and now - last > OFTEN:
            last = now
            place.progress(min(1.0, done / max(1, of)), f"{words}: {done} of {of}")

    yield step
    place.empty()
