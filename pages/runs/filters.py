"""Which runs the table has and in which order: found by words, states and tags, sorted by a column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from pages.runs.state import MAX_DRAWN, runs_state
from pages.shared.escape_markdown import escape_markdown
from pages.shared.link_widgets import not_here, seed
from pages.shared.typed import typed
from xformer.errors import InputError
from xformer.training.entry import DAMAGED, MOVES, Entry

ALWAYS = ("created", "name", "state", "step", "steps", "exact match", "loss", "seconds")
"""The columns that every table of runs has."""
MAX_FIND = 80
UP, DOWN = ":material/arrow_upward:", ":material/arrow_downward:"


@dataclass(frozen=True)
class Filtered:
    """The runs that match, and how they are to be sorted."""

    entries: list[Entry]
    by: str
    descending: bool
    link: dict[str, str]
    """What the link has to say to get the same."""


def follow_the_link(entries: Sequence[Entry], latest: Mapping[str, Any]) -> None:
    """The first choice of a session: what the link asks for, or the latest runs that there is something to see of."""
    state = runs_state()
    if state.has_begun:
        return
    st.session_state.setdefault("runs_text", st.query_params.get("find", "")[:MAX_FIND])
    asked = st.query_params.get("runs")
    if asked is None:
        found = [entry.id for entry in entries if entry.id in latest and not entry.sweep_of][:4]
        found = found or [entry.id for entry in entries if entry.sweep is not None][:1]
    else:
        wanted, known = [run for run in asked.split(",") if run], {entry.id for entry in entries}
        found = [run for run in wanted if run in known]
        if len(found) < len(wanted):
            st.warning(
                "The link asks for runs that are not here; they may have been deleted.", icon=":material/link_off:"
            )
    state.choose(*found[:MAX_DRAWN], select=found[0] if found else None)


def filters(entries: Sequence[Entry], columns: Sequence[str]) -> Filtered:
    """Ask for what is to be shown, and in which order."""
    states = [state for state in (*MOVES, DAMAGED) if any(entry.state == state for entry in entries)]
    tags = sorted({tag for entry in entries for tag in entry.tags})
    _begin_with_the_link(states, tags, columns)
    find_at, state_at, tag_at, sort_at, order_at = st.columns([2.6, 2.4, 2, 2.3, 1.7], vertical_alignment="bottom")
    always: dict[str, Any] = {"persist_state": "session"}
    text = find_at.text_input(
        "Find", key="runs_text", placeholder="name, tag, task …", icon=":material/search:", **always
    )
    of_state = state_at.multiselect("State", states, key="runs_states", placeholder="any state", **always)
    of_tags = tag_at.multiselect("Tag", tags, key="runs_tags", placeholder="any tag", disabled=not tags, **always)
    by = sort_at.selectbox("Sort by", columns, key="runs_sort", **always)
    order = order_at.segmented_control(
        "Order", [UP, DOWN], key="runs_order", required=True, label_visibility="collapsed",
        help="The smallest first, or the largest.", **always,
    )  # fmt: skip
    try:
        words = typed(text or "", MAX_FIND).lower().split()
    except InputError as error:
        st.warning(escape_markdown(str(error)), icon=":material/search_off:")
        words = []
    found = [
        entry
        for entry in entries
        if (not of_state or entry.state in of_state)
        and (not of_tags or set(of_tags) <= set(entry.tags))
        and all(word in _searched(entry) for word in words)
    ]
    link = {"sort": by, "order": "down" if order == DOWN else "up"}
    asked = {"state": ",".join(of_state), "tag": ",".join(of_tags), "find": (text or "")[:MAX_FIND]}
    return Filtered(found, by, order == DOWN, link | {name: words for name, words in asked.items() if words})


def show_all() -> None:
    """Forget what was asked for. A callback."""
    st.session_state["runs_text"] = ""
    st.session_state["runs_states"] = st.session_state["runs_tags"] = []


def _begin_with_the_link(states: Sequence[str], tags: Sequence[str], columns: Sequence[str]) -> None:
    for key, name, there in (("runs_states", "state", states), ("runs_tags", "tag", tags)):
        if key not in st.session_state:
            asked = [word for word in st.query_params.get(name, "").split(",") if word]
            st.session_state[key] = asked
            if set(asked) - set(there):
                not_here(name, there)
        st.session_state[key] = [word for word in st.session_state[key] if word in there]
    if "runs_sort" not in st.session_state:
        st.session_state["runs_order"] = UP if st.query_params.get("order") == "up" else DOWN
    seed("sort", columns, ALWAYS[0], key="runs_sort", called="column to sort by")


def _searched(entry: Entry) -> str:
    task = entry.task.get("name", "")
    return f"{entry.name} {' '.join(entry.tags)} {entry.title} {entry.preset} {entry.id} {task} {entry.state}".lower()
