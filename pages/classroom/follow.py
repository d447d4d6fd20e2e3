"""Publishes the lecturer's screen to the students of a room, as the state of a live page or as a picture.

app.py and the fragments of screens call `publish` when a screen has been drawn and its link is written.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from pages.classroom.routes import hub, rooms
from pages.components.attention_view import Selection
from pages.compute import models
from pages.compute.picture import live_state
from pages.controls.text import escape_markdown
from pages.server.access import visitor_id
from pages.state import link, screens
from pages.state.view import View
from xformer.adapters.own_models import own_model
from xformer.checkpoints import Checkpoint
from xformer.classroom.rooms import Room, RoomEndedError
from xformer.edit_links import parse_edits
from xformer.errors import ClassroomError, XformerError
from xformer.live.export import check_exportable
from xformer.viz.packing import pack, pack_selection, pattern_layers

MAX_PARAMETERS = 3_000_000
"""Maximum parameters of a model that runs on students' phones (6 MB as float16). Larger models are shown as pictures."""
TABS = {"home": "scene", "attention": "attention", "feed_forward": "feed_forward", "residual": "lens"}
"""The tab of a live page that corresponds to a screen."""
_ROOM, _LAST = "classroom_room", "classroom_published"


def room() -> Room | None:
    """Return the visitor's open room. A new session, as after a server restart, finds it by the visitor's cookie.

    Without a usable database there are no rooms, and the menu says so.
    """
    try:
        if _ROOM not in st.session_state:
            found = rooms().of(visitor_id())
            st.session_state[_ROOM] = "" if found is None else found.id
            return found
        return rooms().room(st.session_state[_ROOM]) if st.session_state[_ROOM] else None
    except RoomEndedError:
        st.session_state[_ROOM] = ""
    except ClassroomError:
        pass
    return None


def act(room: str, change: Callable[..., object], *values: Any) -> bool:
    """Change a room and wake up its pages. Returns False, and says why, if nothing could be changed."""
    try:
        change(*values)
    except ClassroomError as error:
        st.toast(escape_markdown(str(error)))
        return False
    publish_again()
    hub.changed(room)
    return True


def use_room(chosen: str) -> None:
    """Record the visitor's room; "" for none."""
    st.session_state[_ROOM] = chosen
    publish_again()


def publish_again() -> None:
    """Publish the next screen even if nothing has changed."""
    st.session_state.pop(_LAST, None)


def view_of_link(values: Mapping[str, str]) -> tuple[View, Selection] | None:
    """Return the view of a link and the selected head; None if the link names no known model.

    Raises `XformerError` if the link does not fit the model.
    """
    if not {"model", "input", "mask"} <= values.keys() or models.resolved(values["model"]) is None:
        return None
    adapter = models.adapter(values["model"])
    source = adapter.input.read(values["input"])
    view = View(values["model"], source, values["mask"], adapter, parse_edits(values.get("edits", ""), adapter.shape))
    return view.with_fitting_changes(), Selection.parse(values.get("head", "")) or Selection(
        len(adapter.shape.attention) - 1
    )


def shown(screen: str, values: Mapping[str, str]) -> tuple[dict[str, Any], bytes | None]:
    """Return the message to students for a screen and its link (see `xformer.widgets.classroom`), and a picture if needed.

    Raises `XformerError` if the link does not fit the model.
    """
    title = screens.screens()[screen].title if screen in screens.screens() else screen
    if not (screen in TABS or screens.screens()[screen].shows_a_model) or (found := view_of_link(values)) is None:
        return {"screen": title, "note": f"The lecturer is showing “{title}”. Look at the lecturer's screen."}, None
    view, at = found
    if not _runs_in_browser(view):
        return _picture(title, view, at)
    state, missing = live_state(view)
    if missing:
        return _picture(title, view, at)
    state |= {"input": view.input.text(view.source), "tab": TABS.get(screen, "attention")}
    if "head" in values:
        state |= {"layer": at.layer, "head": at.head, "query": at.query, "key": at.key}
    return {"screen": title, "model": view.model, "state": state}, None


def _runs_in_browser(view: View) -> bool:
    if view.model not in models.shipped() and models.run_and_step(view.model) is None:
        return False
    try:
        check_exportable(Checkpoint(view.own.model, view.task))
        return sum(value.numel() for value in own_model(view.adapter).parameters()) <= MAX_PARAMETERS
    except XformerError:
        return False


def _picture(title: str, view: View, at: Selection) -> tuple[dict[str, Any], bytes]:
    """Return a message with the input and predicted tokens, and the packed patterns of all heads of the selected layer."""
    original, changed = view.original(), view.changed()
    runs = [pattern_layers(run)[at.layer : at.layer + 1] for run in (original, changed) if run is not None]
    packed = pack(runs[0], runs[1] if changed is not None else None, selected=(0, at.head))
    planes = packed.message("view") + pack_selection((0, at.head), (at.query, at.key))
    lanes = view.kind.rows(original, changed, f"with {view.change_summary()}")
    message = {
        "screen": title, "title": models.title_of(view.model), "picture": time.time_ns() // 1_000_000,
        "lanes": [[lane.name, list(lane.tokens)] for lane in lanes],
    }  # fmt: skip
    return message, struct.pack("<I", len(planes)) + planes + packed.head("view")


def publish() -> None:
    """Publish the visitor's screen to the students, if the visitor has a room and the screen has changed."""
    if st.session_state.get(_ROOM) == "" or not (now := link.written())[1]:
        return
    if st.session_state.get(_LAST) == now or (here := room()) is None:
        return
    if here.is_paused or here.lesson is not None or (here.asked is not None and not here.asked.is_revealed):
        return
    try:
        message, picture = shown(*now)
    except XformerError:
        return  # the screen itself shows the error
    st.session_state[_LAST] = now
    try:
        rooms().show(here.id, message, picture)
    except ClassroomError as error:
        st.toast(escape_markdown(str(error)))
        return
    hub.changed(here.id)
