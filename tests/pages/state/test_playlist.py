"""The server side of the playlist: links open screens, files are parsed, and malformed messages are rejected."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from pages.state import playlist
from pages.state.screens import screens
from tests.pages.conftest import Open
from xformer.playlist import FIRST, Item, Playlist

ATTENTION = "pages/attention/page.py"


def drawn(app: AppTest) -> list[dict[str, Any]]:
    """Return the playlist data sent to the browser."""
    protos = [element.proto for element in app.main.get("bidi_component")]
    return [json.loads(proto.json) for proto in protos if proto.component_name.endswith("xformer_playlist")]


@pytest.fixture
def offered() -> Iterator[None]:
    playlist._offered.cache_clear()
    yield
    playlist._offered.cache_clear()


def go(app: AppTest, link: object) -> AppTest:
    app.session_state["playlist_go"] = {"link": link, "id": 7}
    return app.run()


def test_a_view_opens_outside_a_frame_and_an_unknown_screen_is_refused(open_page: Open) -> None:
    app = open_page(ATTENTION, model="reverse", input="4 9 2 11", edits="ablate:encoder.1.attn.2")
    for link in ("/nowhere?model=reverse-small", "https://example.org/"):
        go(app, link)
        assert app.title[0].value.startswith("Attention")
        assert app.query_params["model"] == "reverse"
        assert len(app.toast) == 1
    go(app, "/?model=reverse-small&input=1+2+3&embed=true")
    [data] = drawn(app)
    assert (data["screen"], data["title"], data["followed"]) == ("", screens()["home"].title, 7)
    assert (app.query_params["model"], app.query_params["input"]) == ("reverse-small", "1 2 3")
    assert not {"edits", "embed"} & set(app.query_params)
    assert not app.warning
    assert not app.toast


def test_an_invalid_file_returns_an_error_message(monkeypatch: pytest.MonkeyPatch) -> None:
    for sent in (None, 5, [], {"text": 5}, {"shipped": ["masks"]}, {"text": "<b>"}):
        monkeypatch.setattr(st, "session_state", {"playlist_views": {"open": sent}})
        playlist._read()
        answer = st.session_state["playlist_answer"]
        assert "playlist" not in answer
        assert answer["problem"].startswith("The file could not be opened. ")


@pytest.mark.usefixtures("offered")
def test_a_file_a_lesson_and_the_server_playlist_can_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Playlist(title="Talk", items=(Item(link="/train", title="x"),))
    (tmp_path / "talk.json").write_text(talk.replace(title="Of the server").to_text())
    monkeypatch.setenv(FIRST, str(tmp_path / "talk.json"))
    monkeypatch.setattr(st, "session_state", {})
    found, ids = [], set()
    for sent in ({"text": talk.to_text()}, {"shipped": "masks"}, {"shipped": "server"}):
        st.session_state["playlist_views"] = {"open": sent}
        playlist._read()
        answer = st.session_state["playlist_answer"]
        found.append(answer["playlist"]["title"])
        ids.add(answer["id"])
    assert found == ["Talk", "Masks", "Of the server"]
    assert len(ids) == 3  # the browser handles each id once
    assert next(iter(playlist._offered())) == "server"


@pytest.mark.usefixtures("offered")
def test_a_missing_playlist_of_the_server_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FIRST, str(tmp_path / "gone.json"))
    assert "server" not in playlist._offered()
    assert "masks" in playlist._offered()
