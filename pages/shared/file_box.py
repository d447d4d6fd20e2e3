"""A place to drop a file, which is taken once: afterwards the box is empty again, and says what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import streamlit as st

from pages.shared.escape_markdown import escape_markdown
from xformer.errors import XformerError


@dataclass
class _Box:
    number: int = 0
    """Another number is another, empty box in the browser."""
    success: str = ""
    problem: str = ""


def file_box(label: str, types: Sequence[str], megabytes: int, take: Callable[[bytes, str], str], *, key: str) -> None:
    """Draw the box; `take` gets content and name in a callback, and returns what to say, or raises why the file is refused."""
    box: _Box = st.session_state.setdefault(f"{key}_box", _Box())

    def taken() -> None:
        file = st.session_state[f"{key}_{box.number}"]
        if file is None:
            return
        box.number += 1
        try:
            box.success = take(file.getvalue(), file.name)
        except (XformerError, OSError) as error:
            box.problem = f"The file was not taken. {error}"

    st.file_uploader(label, type=types, max_upload_size=megabytes, key=f"{key}_{box.number}", on_change=taken)
    if box.problem:
        st.error(escape_markdown(box.problem), icon=":material/error:")
    if box.success:
        st.success(escape_markdown(box.success), icon=":material/check:")
    box.problem = box.success = ""
