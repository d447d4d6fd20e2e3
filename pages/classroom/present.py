"""The “Present” menu next to the title of every screen: open a room, show its code, ask questions, set exercises, end it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

import pandas as pd
import segno
import streamlit as st
from streamlit.components.v2 import component

from pages.classroom import ask, follow
from pages.classroom.routes import lessons, rooms
from pages.controls.text import escape_markdown
from pages.controls.widgets import download
from pages.server.access import LOOPBACK, base_path, is_local_only, visitor_id
from pages.server.limits import check_rooms, count_room, readmit_students, visitor_address
from pages.state import link
from xformer.classroom.rooms import Room
from xformer.errors import ClassroomError
from xformer.training.tables import to_csv
from xformer.widgets.scripts import script, style

LARGE_CODE = "code"
"""The parameter of a link that shows the code of the visitor's room instead of the screen."""
_host_view = component("xformer_classroom", css=style("classroom"), js=script("classroom", "streamlit"))


def host_view(
    room: Room,
    view: str,
    *,
    key: str,
    more: Mapping[str, object] | None = None,
    moved: Callable[[], None] = lambda: None,
) -> None:
    """Draw the live state of a room for the lecturer, see `xformer/widgets/classroom/host.js`.

    `moved` is called, in a callback, when the lecturer has moved the lesson in its own page.
    """
    data = {"code": room.code, "base": base_path(), "view": view, **(more or {})}
    _host_view(key=key, data=data, on_room_change=moved)


def menu() -> None:
    """Draw the menu for a visitor with a cookie; nothing in a frame."""
    if st.context.is_embedded or not visitor_id():
        return
    room = follow.room()
    label = "Present" if room is None else spaced(room.code)
    with st.popover(label, icon=":material/cast:", type="tertiary", key="present"):
        if room is None:
            _offer()
        else:
            _open_room(room)


def _offer() -> None:
    _stage_view()
    st.markdown("**Present this to a class**")
    st.caption(
        "Students join with a phone or a laptop, without an account. Their pages run the model and follow what you show. "
        "You can ask what they expect, and give them exercises. Everything is deleted after a day."
    )
    if is_local_only():
        st.caption("Only this machine can reach this server. For a class, start it with `xformer app --host 0.0.0.0`.")
    try:
        rooms().of(visitor_id())
    except ClassroomError as error:
        st.warning(escape_markdown(str(error)))
        return
    st.button("Open a room", type="primary", on_click=_begin, key="open_room")


def _begin() -> None:
    try:
        check_rooms(address := visitor_address(), rooms().ids())
        opened = rooms().open(visitor_id())
        count_room(address, opened.id)
        follow.use_room(opened.id)
    except ClassroomError as error:
        st.toast(escape_markdown(str(error)))


def _stage_view() -> None:
    """Draw the switch of the stage view, which `stage_view.js` handles."""
    st.html(
        '<button type="button" class="stage-view-switch">Stage view</button> (key F): the picture alone, with large type'
    )


def _open_room(room: Room) -> None:
    address = address_of(room)
    with st.container(horizontal=True, gap="medium", key="join"):
        st.image(code_uri(address), width=190)
        with st.container(gap="xsmall"):
            st.caption("Join at")
            st.markdown(f"**{escape_markdown(short_address())}**")
            st.caption("with the code")
            st.markdown(f"## {spaced(room.code)}")
            host_view(room, "count", key="room_count")
    if is_local_only():
        st.caption("Only this machine can join. For a class, start the server with `xformer app --host 0.0.0.0`.")
    with st.container(horizontal=True, gap="small"):
        if st.button("Ask a question", icon=":material/how_to_vote:", type="primary", key="ask_question"):
            ask.dialog(room)
        st.button("Show the code large", icon=":material/qr_code_2:", key="show_code", on_click=show_large_code)
    names = {"": "none: students follow the screen"}
    names |= {name: f"{number}. {lesson.title}" for number, (name, lesson) in enumerate(lessons().items(), 1)}
    st.session_state["room_lesson"] = "" if room.lesson is None else room.lesson["name"]
    teach = {"key": "room_lesson", "on_change": _teach, "args": (room.id,)}
    st.selectbox("Lesson with exercises", list(names), format_func=names.__getitem__, **teach)
    _assignments(room)
    st.session_state["room_follows"] = not room.is_paused
    st.toggle("Students follow this screen", key="room_follows", on_change=_pause, args=(room.id,),
              help="Switch this off to prepare something that students do not see yet.")  # fmt: skip
    st.session_state["room_locked"] = room.is_locked
    st.toggle("Let nobody else join", key="room_locked", on_change=_lock, args=(room.id,),
              help="Students who have joined before can come back.")  # fmt: skip
    st.button("Remove all students", icon=":material/group_off:", on_click=_clear, args=(room.id,), type="tertiary",
              key="clear_room", help="Deletes their votes and results. They can join again if the room is open.")  # fmt: skip
    _stage_view()
    st.button("End the room", icon=":material/logout:", on_click=_end, args=(room.id,), type="tertiary", key="end_room",
              help="Deletes the room with all its votes and results.")  # fmt: skip


def _assignments(room: Room) -> None:
    """Draw which tasks of an assignment each student has solved, if any has reported one."""
    from xformer.assignments.room import SETS

    solved: dict[str, list[str]] = {}
    for row in rooms().results(room.id):
        if (tasks := SETS.get(row["lesson"])) is not None:
            of_student = solved.setdefault(row["student"], [])
            of_student += [tasks[row["step"] - 1]] * row["solved"]
    if solved:
        rows = [{"student": name, "solved": len(tasks), "tasks": ", ".join(tasks)} for name, tasks in solved.items()]
        st.dataframe(pd.DataFrame(rows), key="room_assignments", hide_index=True)
        download("Results as CSV", lambda: results_csv(room.id), "xformer-exercises.csv", key="room_all_results")


def results_csv(room: str) -> bytes:
    """Return the results of all lessons and assignments of a room as CSV."""
    columns = ["student", "lesson", "step", "tries", "seconds", "solved", "stuck"]
    return to_csv(pd.DataFrame(rooms().results(room), columns=columns))


def show_large_code(is_large: bool = True) -> None:
    """Show the code of the room instead of the screen, or the screen again. A callback.

    The link has it, so that a reload and the stage view show it, too.
    """
    values = link.written()[1] | {LARGE_CODE: "1"}
    if not is_large:
        del values[LARGE_CODE]
    link.reopen(values)


def _teach(room: str) -> None:
    ask.keep_the_link()
    lesson = st.session_state["room_lesson"]
    follow.act(room, rooms().teach, room, lesson if lesson in lessons() else None)  # a forged value is no lesson


def _pause(room: str) -> None:
    follow.act(room, rooms().pause, room, not st.session_state["room_follows"])


def _lock(room: str) -> None:
    follow.act(room, rooms().lock, room, bool(st.session_state["room_locked"]))


def _clear(room: str) -> None:
    if follow.act(room, rooms().clear, room):
        readmit_students(room)


def _end(room: str) -> None:
    if follow.act(room, rooms().end, room):
        readmit_students(room)
        follow.use_room("")


def spaced(code: str) -> str:
    """Split a code into two halves, which are easier to dictate."""
    return f"{code[:3]} {code[3:]}"


def _here() -> str:
    return st.context.url or ""


def short_address() -> str:
    """Return the address where students enter the code: the lecturer's own, or this machine's address in its network."""
    parts = urlsplit(_here())
    host, port = parts.hostname or "localhost", f":{parts.port}" if parts.port else ""
    if host in LOOPBACK and not is_local_only():
        host = st.get_option("browser.serverAddress") or host
    return f"{f'[{host}]' if ':' in host else host}{port}{base_path()}/join"


def address_of(room: Room) -> str:
    """Return the address encoded in the QR code."""
    return f"{urlsplit(_here()).scheme or 'http'}://{short_address()}/{room.code}"


def code_uri(address: str) -> str:
    """Return a QR code as the address of an SVG image of any size, black on white in both themes."""
    return segno.make(address, micro=False).svg_data_uri(border=2, light="#ffffff", dark="#000000", omitsize=True)
