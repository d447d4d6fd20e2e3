"""The server's part of a playlist: links are followed on all screens, files are answered, and nothing else is taken."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from pages.shared import playlist
from pages.shared.screens import screens
from tests.pages.conftest import Open
from xformer.playlist import FIRST, Item, Playlist

ATTENTION = "pages/attention/page.py"


def drawn(app: AppTest) -> list[dict[str, Any]]:
    """What the browser gets of the playlist."""
    found = [
        one.proto for one in app.main.get("bidi_component") if one.proto.component_name.endswith("xformer_playlist")
    ]
    return [json.loads(proto.json) for proto in found]


@pytest.fixture
def offered() -> Iterator[None]:
    playlist._offered.cache_clear()
    yield
    playlist._offered.cache_clear()


def go(app: AppTest, link: object) -> AppTest:
    app.session_state["playlist_go"] = {"link": link, "id": 7}
    return app.run()


def test_a_view_opens_without_a_frame_and_what_is_no_screen_is_not_opened(open_page: Open) -> None:
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


def test_what_is_no_file_is_answered_with_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    for sent in (None, 5, [], {"text": 5}, {"shipped": ["masks"]}, {"text": "<b>"}):
        monkeypatch.setattr(st, "session_state", {"playlist_views": {"open": sent}})
        playlist._read()
        answer = st.session_state["playlist_answer"]
        assert "playlist" not in answer
        assert answer["problem"].startswith("The file was not opened. ")


@pytest.mark.usefixtures("offered")
def test_a_file_a_lesson_and_the_playlist_of_the_server_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert len(ids) == 3  # the browser takes each once
    assert next(iter(playlist._offered())) == "server"


@pytest.mark.usefixtures("offered")
def test_a_playlist_of_the_server_that_is_gone_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FIRST, str(tmp_path / "gone.json"))
    assert "server" not in playlist._offered()
    assert "masks" in playlist._offered()
