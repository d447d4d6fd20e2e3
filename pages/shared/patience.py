"""A bar for what takes longer than a moment: what is being done, and how far it is. A click anywhere breaks it off.

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
"""Seconds until a bar appears, and between two of its steps."""


@contextmanager
def patience(words: str) -> Iterator[Step]:
    """Hands out `step(done, of)`; the place of the bar is always there, so that nothing below moves."""
    place, begun, last = st.empty(), time.monotonic(), 0.0

    def step(done: int, of: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - begun > MOMENT and now - last > OFTEN:
            last = now
            place.progress(min(1.0, done / max(1, of)), f"{words}: {done} of {of}")

    yield step
    place.empty()
