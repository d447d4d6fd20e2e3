"""Playlists: parsing and validation of files, and the shipped playlists made from the lessons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pages.compute.cached_runs import MASKS
from pages.compute.models import adapter
from pages.state.screens import screens
from tools import doc_pages
from xformer import playlist
from xformer.edit_links import parse_edits
from xformer.errors import ConfigError, InputError
from xformer.live import lesson
from xformer.playlist import Item, Playlist

MASKS_LESSON = Path("docs/lessons/masks.md")


def text(*items: Any, **more: Any) -> str:
    return json.dumps({"version": 1, "title": "Talk", "items": items, **more})


def test_playlist_survives_a_round_trip_through_a_file(tmp_path: Path) -> None:
    items = (Item(link="/?model=reverse", title="“Start” ♥", note="Wait.\nThen go on."), Item(link="/train", title=""))
    talk = Playlist(title="Talk", items=items)
    file = tmp_path / "talk.json"
    file.write_text(talk.to_text(), encoding="utf-8")
    assert playlist.load(file) == talk
    assert json.loads(talk.to_text())["version"] == 1


def test_item_has_the_screen_and_the_parameters_of_its_link_without_embedding() -> None:
    item = Item(link="/attention?model=reverse&input=3+7&edits=cut%3Aa&other=&embed=true&embed_options=dark", title="")
    assert item.screen == "attention"
    assert item.values == {"model": "reverse", "input": "3 7", "edits": "cut:a", "other": ""}
    assert Item(link="/", title="").screen == ""


def test_link_must_name_a_screen_of_the_app() -> None:
    for link in ("https://example.org/attention", "//example.org/attention", "attention", "/a/b", "/../a", "/attention#x",
                 "javascript:alert(1)", "/attention?x=a b", "/attention\n", "", "/train?x=" + "9" * 8_000):  # fmt: skip
        with pytest.raises(ConfigError, match=r"^link must (be a screen|have at most)"):
            Item(link=link, title="")


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("{", "A playlist must be JSON"),
        ("[" * 100_000, "A playlist must be JSON"),
        (json.dumps({"title": "x"}), "needs the field 'items'"),
        (text() + " " * 1_000_000, "at most 1,000,000 bytes"),
        (text(more=3), "has no field 'more'"),
        (text(*[{"link": "/", "title": "x"}] * 101), "at most 100 items, got 101"),
        (text({"link": "/", "title": 5}), "Item 1: title must be of type str, got 5; for example title='One head'"),
        (text({"link": "//x", "title": "x"}), "Item 1: link must be a screen of the app"),
    ],
)
def test_invalid_file_is_rejected_with_the_broken_rule(content: str, part: str) -> None:
    with pytest.raises(InputError) as refused:
        playlist.parse(content)
    assert part in str(refused.value)
    assert len(str(refused.value)) < 400


def test_file_that_is_not_utf8_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "talk.json").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"talk\.json must be UTF-8 text; byte 0 is not"):
        playlist.load(tmp_path / "talk.json")


def test_shipped_playlists_are_up_to_date_with_the_lessons() -> None:
    made = doc_pages.playlists()
    files = {file.stem: file.read_text("utf-8") for file in doc_pages.PLAYLISTS.glob("*.json")}
    assert files == made, "make pages"
    assert sorted(playlist.shipped()) == sorted(made)
    assert len(made) == 8


def test_every_shipped_link_is_valid() -> None:
    for item in [item for one in playlist.shipped().values() for item in one.items]:
        assert (item.screen or "home") in screens()
        assert item.title
        assert item.note
        if (values := item.values) and item.screen != "train":
            model = adapter(values["model"])
            model.input.read(values["input"])
            assert values["mask"] in MASKS
            parse_edits(values.get("edits", ""), model.shape)
            layer, head = map(int, values.get("head", "1.1").split(".")[:2])
            assert head <= list(model.shape.heads.values())[layer - 1]


def test_question_comes_before_the_view_with_its_answer() -> None:
    found = playlist.from_lesson(lesson.load(MASKS_LESSON), ["encoder.0.attn", "encoder.1.attn"]).items
    asked, answer = found[1:3]
    assert (asked.title, answer.title) == ("Take the future away", "Answer: Take the future away")
    assert asked.values["mask"] == "as trained"
    assert answer.values["mask"] == "causal"
    assert "– " in asked.note
    assert "query 0 can see only itself" in answer.note
    assert "query 0 can see only itself" not in asked.note
    assert not any("<" in item.note for item in found)
    # The preceding view shows the run of the next question, so the question uses the embeddings instead.
    assert found[3].screen == "embeddings"
    assert found[4].values["head"] == "2.1"
