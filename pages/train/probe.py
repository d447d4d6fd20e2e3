"""The input that is followed through a run, as the visitor types or draws it."""

from __future__ import annotations

import random

import streamlit as st

from pages.shared.escape_markdown import escape_markdown
from pages.shared.typed import typed
from xformer.errors import InputError
from xformer.tasks import Task
from xformer.tasks.task import Example
from xformer.training.entry import Entry


def ask_probe(entry: Entry, task: Task, max_len: int) -> Example:
    """The input that is followed through the run, as the visitor types it; the last good one where it cannot be read."""
    begin_key, good_key, version_key = (f"probe_{entry.id}:{what}" for what in ("begin", "good", "version"))
    usual = task.vocabulary.text(list(task.probe(entry.train.get("seed", 0)).source))
    begin = st.session_state.setdefault(begin_key, usual)
    version = st.session_state.setdefault(version_key, 0)

    def draw() -> None:
        st.session_state[begin_key] = task.vocabulary.text(task.draw(random.getrandbits(32)))
        st.session_state[version_key] = version + 1

    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="probe_row"):
        # A default, not an entry of the session: this is drawn anew every second, and must not overwrite what is being typed.
        text = st.text_input(
            "Watch it learn on",
            begin,
            key=f"probe_{entry.id}_{version}",
            persist_state="session",
            label_visibility="collapsed",
            icon=":material/visibility:",
            placeholder=f"Watch it learn on … {task.rule.typed}",
        )
        st.button(
            "Random", icon=":material/casino:", on_click=draw, key="probe_random", help="Another input to watch it on."
        )
    try:
        example = task.example(task.vocabulary.read(typed(text, 400)), max_len=max_len)
    except InputError as error:
        st.error(escape_markdown(str(error)), icon=":material/edit:")
        return task.example(task.vocabulary.read(st.session_state.get(good_key, usual)))
    st.session_state[good_key] = text
    return example
