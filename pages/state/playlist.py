"""The visitor's playlist. The browser stores it; this module opens its links and reads playlist files."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from functools import cache

import streamlit as st

from pages.components import event_data, parse_index
from pages.components.elements import playlist
from pages.controls import embed
from pages.controls.text import escape_markdown
from pages.state import link, screens
from xformer.errors import InputError, XformerError
from xformer.playlist import FIRST, Item, Playlist, load, parse, shipped

_KEY, _GO, _ANSWER = "playlist_views", "playlist_go", "playlist_answer"


def begin(name: str) -> None:
    """Call before the screen `name` runs: open the requested view, and draw the playlist."""
    if embed.is_framed():
        return
    wanted = st.session_state.get(_GO, {})
    if (asked := wanted.pop("link", None)) is not None:
        _open(asked)
    known = screens.screens()
    data = {
        "screen": "" if name == next(iter(known)) else name,  # as in its address
        "title": known[name].title,
        "screens": {name: screen.title for name, screen in known.items()} | {"": known[next(iter(known))].title},
        "shipped": {name: playlist.title for name, playlist in _offered().items()},
        "followed": wanted.get("id"),  # the browser sends the next link when it sees this
        "answer": st.session_state.get(_ANSWER),  # has an id, so that the browser handles it only once
    }
    with st.container(key="playlist"):
        playlist(key=_KEY, data=data, on_go_change=_remember, on_open_change=_read)


def _open(wanted: str) -> None:
    """Switch to the screen of a link and apply its parameters."""
    try:
        item = Item(link=wanted, title="")
        name = item.screen or next(iter(screens.screens()))
        if name not in screens.screens():
            raise InputError(f"There is no screen “{name}”. The screens are {', '.join(screens.screens())}.")
    except XformerError as error:
        st.toast(escape_markdown(str(error)), icon=":material/link_off:")
        return
    link.follow_again()
    st.switch_page(screens.file_of(name), query_params=item.values)


def _remember() -> None:
    st.session_state.pop(_ANSWER, None)  # the browser has it; each rerun would send it again
    wanted = event_data(_KEY, "go")
    if isinstance(wanted.get("link"), str):
        st.session_state[_GO] = {"link": wanted["link"], "id": parse_index(wanted.get("id"), 2**32)}


def _read() -> None:
    """Return the playlist of a file or of a lesson to the browser, or an error message."""
    asked = event_data(_KEY, "open")
    try:
        found = _offered().get(str(asked.get("shipped"))) or parse(str(asked.get("text", "")))
        answer = {"playlist": found.to_json()}
    except InputError as error:
        answer = {"problem": f"The file could not be opened. {error}"}
    st.session_state[_ANSWER] = {"id": secrets.token_hex(8), **answer}


@cache
def _offered() -> dict[str, Playlist]:
    """Return the playlists that can be opened by name: the server's own, then those of the lessons."""
    found: dict[str, Playlist] = {}
    if path := os.environ.get(FIRST):
        with suppress(InputError):  # the command line has checked it, but it may be gone by now
            found["server"] = load(path)
    return found | shipped()
