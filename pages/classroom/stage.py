"""The lecturer's screen while the students answer a question or work on exercises. It replaces the screen's own content."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
import streamlit as st

from pages.classroom import follow
from pages.classroom.ask import keep_the_link
from pages.classroom.present import host_view, short_address, spaced
from pages.classroom.routes import exercises, lessons, rooms
from pages.components import parse_index
from pages.controls.text import escape_markdown
from pages.controls.widgets import download
from pages.server.access import visitor_id
from pages.state import link
from pages.state.view import OFF
from xformer.classroom.messages import PageState
from xformer.classroom.rooms import Asked, Room, Student
from xformer.training.tables import to_csv

_STUDENT = "classroom_student"
"""The name of the student whose work the screen shows."""


def stage() -> bool:
    """Draw the question or the exercises of the visitor's room; return whether the screen below must stay hidden."""
    if st.context.is_embedded or not visitor_id() or (room := follow.room()) is None:
        return False
    if room.asked is None and (room.lesson is None or _is_showing_a_student()):
        return False
    with st.container(key="stage", gap="small"):
        if room.asked is not None:
            _question(room, room.asked)
            is_hidden = not room.asked.is_revealed
        else:
            _exercises(room, room.lesson or {})
            is_hidden = True
    if is_hidden:
        link.wait()  # the screen applies its link when it is drawn again
    return is_hidden


def _join_line(room: Room) -> None:
    st.caption(f"Join at **{escape_markdown(short_address())}** with **{spaced(room.code)}**")


def _question(room: Room, asked: Asked) -> None:
    _join_line(room)
    host_view(room, "question", key="room_question")
    store = rooms()

    def button(words: str, act: Callable[[int], None], icon: str, key: str, **look: Any) -> None:
        # Not a callback: after a server restart the new session has no callbacks registered, and would lose the click.
        if st.button(words, icon=f":material/{icon}:", key=key, **look) and follow.act(room.id, act, asked.id):
            st.rerun()

    with st.container(horizontal=True, gap="small"):
        if asked.is_revealed:
            button("Back to the lecture", store.finish, "arrow_back", "finish_question", type="primary")
            return
        button("Reveal", store.reveal, "visibility", "reveal", type="primary")
        if asked.round == 1:
            button("Discuss, then vote again", store.ask_again, "forum", "ask_again")
        button("Cancel", store.finish, "close", "finish_question", type="tertiary")


def _exercises(room: Room, lesson: Mapping[str, Any]) -> None:
    given, step = lessons()[lesson["name"]], int(lesson["step"])
    columns = [{"step": at + 1, "title": given.steps[at].title} for at in exercises(lesson["name"])]
    _join_line(room)
    host_view(room, "work", key="room_work", more={"exercises": columns, "title": given.title})
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
        titles = [f"{at + 1}. {lesson_step.title}" for at, lesson_step in enumerate(given.steps)]
        st.session_state["room_step"] = step
        st.selectbox("The students’ current step", range(len(titles)), format_func=titles.__getitem__,
                     key="room_step", on_change=_go_to_lesson, args=(room, lesson["name"]))  # fmt: skip
        download("Results as CSV", lambda: results_csv(room.id), "xformer-exercises.csv", key="room_results")
        st.button("End the lesson", on_click=_end_lesson, args=(room.id,), key="end_lesson")
    _students_who_allow_it(room, given.checkpoint)


def _end_lesson(room: str) -> None:
    follow.act(room, rooms().teach, room, None)


def _go_to_lesson(room: Room, lesson: str) -> None:
    step = parse_index(st.session_state["room_step"], len(lessons()[lesson].steps))
    if step is not None:  # a forged value is no step
        follow.act(room.id, rooms().teach, room.id, lesson, step)


def results_csv(room: str) -> bytes:
    """Return the results of all lessons of a room as CSV."""
    columns = ["student", "lesson", "step", "tries", "seconds", "solved", "stuck"]
    return to_csv(pd.DataFrame(rooms().results(room), columns=columns))


@st.fragment(run_every=3.0)
def _students_who_allow_it(room: Room, model: str) -> None:
    """Draw a button for each student who allows the lecturer to show their work."""
    with st.container(horizontal=True, gap="small", key="room_students"):
        for member in rooms().members(room.id):
            if member.state is not None:
                words = f"Show {escape_markdown(member.name)}'s work"
                if st.button(words, icon=":material/person:", key=f"show_student_{member.number}"):
                    _show(member, model)


def _show(member: Student, model: str) -> None:
    """Open the state of a student's page on the lecturer's screen."""
    st.session_state[_STUDENT] = member.name
    values = link_of_state(member.state or PageState(), model)
    link.reopen(values)
    st.switch_page("pages/attention/page.py", query_params=values)


def _is_showing_a_student() -> bool:
    name = st.session_state.get(_STUDENT)
    if name is None:
        return False
    with st.container(horizontal=True, gap="small", vertical_alignment="center", key="stage"):
        st.markdown(f"**{escape_markdown(name)}'s work**", width="content")
        st.button("Back to the exercises", icon=":material/arrow_back:", on_click=_stop_showing, key="stop_showing")
    return True


def _stop_showing() -> None:
    keep_the_link()
    st.session_state.pop(_STUDENT, None)


def link_of_state(state: PageState, model: str) -> dict[str, str]:
    """Return the link parameters of the Attention screen for the state of a student's page. The screen validates them."""
    edits = [f"ablate:{head}" for head in state.ablate]
    for cell in state.cut:  # "encoder.1.attn.2.0.3" → "encoder.1.attn.2.0-3"
        before, _, key = cell.rpartition(".")
        edits.append(f"cut:{before}-{key}")
    if not state.positions:
        edits.append(OFF)
    values = {"model": model, "input": state.input}
    values["mask"] = state.mask if state.mask in ("causal", "full") else "as trained"
    if edits:
        values["edits"] = ",".join(edits)[:4000]
    values["head"] = f"{state.layer + 1}.{state.head + 1}"
    return values
