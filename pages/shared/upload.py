"""A file of weights from elsewhere, taken among the runs."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from pages.shared import run_commands, run_store
from pages.shared.file_box import file_box
from xformer.training.transfer import ImportResult

MAX_MEGABYTES = 64
"""The largest file that is taken; the model with the most parameters that a server trains by default takes 80."""


def upload(who: str, then: Callable[[ImportResult], None], *, key: str) -> None:
    """A place to drop a file of weights, which becomes a run; `then` is called with where it has come to be.

    What came of it, or why the file is refused, is said below, once.
    """
    if not who:
        st.caption(run_commands.NOBODY)
        return
    if not run_store.is_open():
        st.caption("Only you will see it, until you share it with everyone here.")

    def take(content: bytes, file_name: str) -> str:
        result = run_commands.take_file(content, file_name)
        then(result)
        step = f"step {result.step:,}"
        if result.is_new:
            return f"“{result.name}”, {step}, is among your runs now."
        return f"These weights are here already: they are “{result.name}”, {step}."

    file_box(
        "A .safetensors file that was downloaded here or on another server",
        ["safetensors"],
        MAX_MEGABYTES,
        take,
        key=key,
    )
