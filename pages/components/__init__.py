"""Streamlit components: each a Python function, an ES module and a style sheet."""

from __future__ import annotations

from typing import Any

import streamlit as st


def sent(key: str, event: str) -> dict[str, Any]:
    """What the browser sent with an event of the component `key`; empty where that is not an object."""
    found = st.session_state[key].get(event)
    return found if isinstance(found, dict) else {}


def whole(value: object, below: int = 10**9) -> int | None:
    """A number that a browser sent, where it is a whole one from 0; else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < below else None
