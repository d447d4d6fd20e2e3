"""Streamlit components: each a Python function, an ES module and a style sheet."""

from __future__ import annotations

from typing import Any

import streamlit as st


def event_data(key: str, event: str) -> dict[str, Any]:
    """Return the data of an event that the browser sent from the component `key`; empty if it is not an object."""
    found = st.session_state[key].get(event)
    return found if isinstance(found, dict) else {}


def memory_key(key: str, what: str) -> str:
    """Return the session key of what Python remembers of the component `key`.

    It is not the component's own key, whose value Streamlit deletes when the visitor leaves the page.
    """
    return f"{key}:{what}"


def parse_index(value: object, below: int = 10**9) -> int | None:
    """Return a value from the browser if it is an integer with 0 ≤ value < `below`, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < below else None
