"""The lecturer's screen while the students join, answer a question or take a lesson. It replaces the screen's own content."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import streamlit as st

from pages.classroom import follow
from pages.classroom.ask import keep_the_link
from pages.classroom.present import (
    LARGE_CODE,
    address_of,
    code_uri,
    host_view,
    results_csv,
    short_address,
    show_large_code,
    spaced,
)
from pages.classroom.routes import exercises, lessons, rooms
from pages.components import event_data, parse_index
from pages.controls.text import escape_markdown
from pages.controls.widgets import download
from pages.server.access import visitor_id
from pages.state import link
from pages.state.view import OFF
from xformer.classroom.messages import PageState
from xformer.classroom.rooms import Asked, Room, Student

_STUDENT = "classroom_student"
"""The name of the student whose work the screen shows."""


def stage() -> bool:
    """Draw the question, the code or the lesson of the visitor's room; return whether the screen below must stay hidden."""
    if st.context.is_embedded or not visitor_id() or (room := follow.room()) is None:
        return False
    is_joining = link.pending_parameter(LARGE_CODE) == "1"
    if room.asked is None and not is_joining and (room.lesson is None or _is_showing_a_student()):
        return False
    is_hidden = True
    with st.container(key="stage", gap="small"):
        if room.asked is not None:
            _question(room, room.asked)
            is_hidden = not room.asked.is_revealed
        elif is_joining:
            _large_code(room)
        else:
            _lesson(room, room.lesson or {})
    if is_hidden:
        link.wait()  # the screen applies its link when it is drawn again
    return is_hidden


def _join_line(room: Room) -> None:
    with st.container(key="join_line"):
        st.markdown(f"Join at **{escape_markdown(short_address())}** with **{spaced(room.code)}**")


def _large_code(room: Room) -> None:
    """Draw the code of the room, its address and the number of students, for the whole window."""
    with st.container(horizontal=True, gap="large", vertical_alignment="center", key="large_code"):
        st.html(f'<img alt="QR code of the address" src="{code_uri(address_of(room))}">')
        with st.container(gap="small"):
            st.markdown(f"Join at **{escape_markdown(short_address())}** with the code")
            st.title(spaced(room.code), anchor=False)
            host_view(room, "count", key="room_large_count")
    close = partial(show_large_code, is_large=False)
    st.button("Back to the lecture", icon=":material/arrow_back:", on_click=close, key="close_code", type="primary")


def _question(room: Room, asked: Asked) -> None:
    _join_line(room)
    host_view(room, "question", key="room_question")
    store = rooms()

    def button(words: str, act: Callable[[int], None], icon: str, key: str, **look: Any) -> None:
        # Not a callback: after a server restart the new session has no callbacks registered, and would lose the click.
        if st.button(words, icon=f":material/{icon}:", key=key, **look) and follow.act(room.id, act, asked.id):
            st.rerun()

    with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
        if asked.is_revealed:
            button("Back to the lecture", store.finish, "arrow_back", "finish_question", type="primary")
            return
        right = None if asked.truth or asked.question.kind != "choice" else _ask_right_answer(asked)
        button("Reveal", partial(store.reveal, right=right), "visibility", "reveal", type="primary")
        if asked.round == 1:
            button("Discuss, then vote again", store.ask_again, "forum", "ask_again")
        button("Cancel", store.finish, "close", "finish_question", type="tertiary")


def _ask_right_answer(asked: Asked) -> str | None:
    """Ask for the right answer to the lecturer's own question, only now, because the students see this screen."""
    options = asked.question.options
    right = st.selectbox("Right answer", [None, *range(len(options))], key=f"right_answer_{asked.id}", width=320,
                         format_func=lambda at: "none: an opinion" if at is None else options[at])  # fmt: skip
    at = parse_index(right, len(options))
    return None if at is None else str(at)


def _lesson(room: Room, lesson: Mapping[str, Any]) -> None:
    name, step = lesson["name"], int(lesson["step"])
    given = lessons()[name]
    columns = [{"step": at + 1, "title": given.steps[at].title} for at in exercises(name)]
    _join_line(room)
    title = f"{list(lessons()).index(name) + 1}. {given.title}"

    def moved() -> None:
        _go_to(room, name, event_data("room_work", "room").get("step"))

    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        titles = [f"{at + 1}. {lesson_step.title}" for at, lesson_step in enumerate(given.steps)]
        st.session_state["room_step"] = step
        st.selectbox("The students’ current step", range(len(titles)), format_func=titles.__getitem__, width=420,
                     key="room_step", on_change=_go_to_lesson, args=(room, name), label_visibility="collapsed")  # fmt: skip
        download("Results as CSV", lambda: results_csv(room.id), "xformer-exercises.csv", key="room_results")
        st.button("End the lesson", on_click=_end_lesson, args=(room.id,), key="end_lesson")
    host_view(room, "work", key="room_work", more={"exercises": columns, "title": title}, moved=moved)
    if given.checkpoint:  # Attention has no model that was trained for a lesson
        _students_who_allow_it(room, given.checkpoint)


def _end_lesson(room: str) -> None:
    follow.act(room, rooms().teach, room, None)


def _go_to_lesson(room: Room, lesson: str) -> None:
    _go_to(room, lesson, st.session_state["room_step"])


def _go_to(room: Room, lesson: str, wanted: object) -> None:
    step = parse_index(wanted, len(lessons()[lesson].steps))
    if step is not None:  # a forged value is no step
        follow.act(room.id, rooms().teach, room.id, lesson, step)


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
