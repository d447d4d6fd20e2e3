"""Classroom mode on the lecturer's screens, without a browser: published screens, and hiding them during a question."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import streamlit as st

from pages.classroom import follow, present, routes, stage
from pages.classroom.follow import shown
from pages.classroom.stage import link_of_state
from tests.pages.conftest import Open
from xformer.classroom.messages import PageState
from xformer.classroom.rooms import Room, RoomQuestion, Rooms
from xformer.errors import XformerError
from xformer.viz.packing import header_of

LECTURER = "7" * 32
ATTENTION = "pages/attention/page.py"
REVERSE = {"model": "reverse", "input": "3 7 12 9", "mask": "causal"}


@pytest.fixture
def rooms(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Rooms:
    """The rooms of this test; the visitor is a lecturer."""
    for module in (follow, present, stage):
        monkeypatch.setattr(module, "visitor_id", lambda: LECTURER)
    return routes.rooms()


@pytest.fixture
def room(rooms: Rooms) -> Room:
    return rooms.open(LECTURER)


def room_of(rooms: Rooms) -> Room:
    found = rooms.of(LECTURER)
    assert found is not None
    return found


def test_screen_is_followed_until_the_lecturer_switches_it_off(open_page: Open, rooms: Rooms, room: Room) -> None:
    app = open_page(ATTENTION, **REVERSE)
    assert (room_of(rooms).shown["model"], room_of(rooms).shown["state"]["mask"]) == ("reverse", "causal")
    app.toggle(key="room_follows").set_value(False).run()
    app.text_input(key="input").set_value("4 5").run()
    assert room_of(rooms).shown["state"]["input"] == "3 7 12 9"
    assert not app.exception


def test_lecturer_sees_who_has_solved_tasks_of_an_assignment(open_page: Open, rooms: Rooms, room: Room) -> None:
    assert not [one for one in open_page(ATTENTION, **REVERSE).dataframe if "tasks" in one.value]
    for number, (name, steps) in enumerate((("ada", (0, 2)), ("bob", ()))):
        member = rooms.join(room.id, f"{number:032}").id
        rooms.rename(member, name)
        for step in range(3):
            rooms.work(member, "assignment_gpt", step, 1, step in steps)
    app = open_page(ATTENTION, **REVERSE)
    assert not app.exception
    [table] = [one.value for one in app.dataframe if "tasks" in one.value]
    assert table.to_dict("records") == [
        {"student": "ada", "solved": 2, "tasks": "softmax, causal_mask"}, {"student": "bob", "solved": 0, "tasks": ""},
    ]  # fmt: skip
    assert b"assignment_gpt" in present.results_csv(room.id)


def test_visitor_without_a_cookie_is_offered_nothing(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (follow, present, stage):
        monkeypatch.setattr(module, "visitor_id", lambda: "")
    app = open_page(ATTENTION, **REVERSE)
    assert not [button for button in app.button if button.key == "open_room"]


def test_nothing_is_published_while_a_question_is_asked(open_page: Open, rooms: Rooms, room: Room) -> None:
    """Rounds, reveal and lessons are tested in a browser."""
    rooms.ask(room.id, RoomQuestion("choice", "Which?", options=("a", "b")), ["1"])
    app = open_page(ATTENTION, **REVERSE)
    assert not any("Attention" in title.value for title in app.title)
    assert room_of(rooms).shown == {}
    app.button(key="reveal").click().run()
    assert room_of(rooms).shown["state"]["mask"] == "causal", "the screen reopens at its link"


def test_the_code_is_shown_instead_of_the_screen_until_the_lecture_goes_on(open_page: Open, room: Room) -> None:
    app = open_page(ATTENTION, **REVERSE, code="1")
    assert [title.value for title in app.title] == [present.spaced(room.code)]
    assert not app.run().exception
    assert app.query_params["code"] == "1"  # a reload, and the stage view, show it again
    app.button(key="close_code").click().run()
    assert "Attention" in app.title[0].value
    assert (app.query_params["mask"], "code" in app.query_params) == ("causal", False)
    app.button(key="show_code").click().run()
    assert app.title[0].value == present.spaced(room.code)


def test_without_a_room_the_screen_is_shown(open_page: Open, rooms: Rooms) -> None:
    app = open_page(ATTENTION, **REVERSE, code="1")
    assert "Attention" in app.title[0].value


def test_a_question_has_no_right_answer_on_screen_before_the_reveal(open_page: Open, rooms: Rooms, room: Room) -> None:
    own = RoomQuestion("choice", "Which?", options=("a", "b"))
    for truth, is_asked in (((), True), (("0",), False)):
        rooms.ask(room.id, own, truth)
        app = open_page(ATTENTION, **REVERSE)
        [*asked] = [box for box in app.selectbox if (box.key or "").startswith("right_answer_")]
        assert bool(asked) == is_asked
        for box in asked:
            assert box.value is None
            box.set_value(1).run()
        app.button(key="reveal").click().run()
        now = room_of(rooms).asked
        assert now is not None
        assert now.truth == (("1",) if is_asked else ("0",))


def test_a_lesson_is_numbered_as_on_learn_and_moved_from_its_page(
    open_page: Open, rooms: Rooms, room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(ATTENTION, **REVERSE)
    names = app.selectbox(key="room_lesson").options[1:]
    assert names == [f"{at}. {lesson.title}" for at, lesson in enumerate(routes.lessons().values(), 1)]
    rooms.teach(room.id, "masks")
    draw = stage.host_view
    monkeypatch.setattr(stage, "host_view", lambda *at, moved, **more: (moved(), draw(*at, moved=moved, **more)))
    for sent in ({"step": 3}, {"step": 99}, {"step": "2"}, {}):  # all but the first are forged
        monkeypatch.setattr(stage, "event_data", lambda key, event, sent=sent: sent)
        assert not open_page(ATTENTION, **REVERSE).exception
        assert room_of(rooms).lesson == {"name": "masks", "step": 3}


@pytest.fixture
def known(open_page: Open) -> None:
    """Register the screens by running the app once."""
    open_page("pages/home/page.py")


def test_forged_lesson_and_step_change_nothing(rooms: Rooms, room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(present.ask, "keep_the_link", lambda: None)
    st.session_state["room_lesson"], st.session_state["room_step"] = "masks", "😀"
    present._teach(room.id)
    stage._go_to_lesson(room_of(rooms), "masks")
    assert room_of(rooms).lesson == {"name": "masks", "step": 0}
    st.session_state["room_lesson"] = "😀"
    present._teach(room.id)
    assert room_of(rooms).lesson is None


EDITS = "ablate:encoder.0.attn.1,cut:encoder.2.attn.0.1-3,cut:encoder.2.attn.*.0-0,positions:off"


@pytest.mark.usefixtures("known")
def test_state_of_a_live_page_converts_back_to_the_link() -> None:
    link = REVERSE | {"edits": EDITS, "head": "3.1"}
    message, picture = shown("attention", link)
    assert picture is None
    assert link_of_state(PageState.model_validate(message["state"]), "reverse") == link
    state = shown("attention", REVERSE | {"head": "3.2.0-3"})[0]["state"]  # counted from 1
    assert [state[name] for name in ("layer", "head", "query", "key", "tab")] == [2, 1, 0, 3, "attention"]
    assert "layer" not in shown("residual", REVERSE)[0]["state"], "the page chooses a head"
    assert shown("train", {})[0]["note"].startswith("The lecturer is showing “"), "this screen has no single model"
    with pytest.raises(XformerError):
        shown("attention", REVERSE | {"edits": "ablate:encoder.9.attn.1"})


@pytest.mark.parametrize(
    "state",
    [PageState(input="<b>", ablate=["x"], layer=999_999), PageState(cut=[""], ablate=["*"], head=9, mask="drawn")],
)
def test_forged_state_of_a_student_becomes_a_harmless_link(open_page: Open, state: PageState) -> None:
    link = link_of_state(state, "reverse-small")
    assert all(isinstance(value, str) for value in link.values())
    assert not open_page(ATTENTION, **link).exception


@pytest.mark.usefixtures("known")
def test_changes_that_a_live_page_cannot_run_are_published_as_a_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    message, picture = shown("attention", REVERSE | {"edits": "ablate:encoder.0.ffn", "head": "3.2"})
    assert picture is not None
    length = struct.unpack("<I", picture[:4])[0]
    planes, head = picture[4 : 4 + length], picture[4 + length :]
    (layer,) = header_of(planes)["layers"]
    assert (layer["name"], layer["heads"]) == ("encoder.2.attn", 4)
    assert header_of(head, b"XATH")["selected"] == [0, 1]
    assert message["lanes"][0] == ["reads", ["3", "7", "12", "9"]]
    assert "model" not in message
    monkeypatch.setattr(follow, "MAX_PARAMETERS", 1000)
    assert shown("attention", REVERSE)[1]


def test_qr_code_has_an_address_reachable_from_the_network(monkeypatch: pytest.MonkeyPatch, room: Room) -> None:
    options = {"browser.serverAddress": "10.0.0.5", "server.address": "0.0.0.0", "server.baseUrlPath": "lab"}
    monkeypatch.setattr(st, "get_option", lambda name: options[name])
    for url, address in (
        ("http://localhost:8501/attention?x=1", "http://10.0.0.5:8501/lab/join/"),
        ("https://xformer.school.example/lab/attention", "https://xformer.school.example/lab/join/"),
        ("http://[fd00::1]:8501/", "http://[fd00::1]:8501/lab/join/"),
    ):
        monkeypatch.setattr(present, "_here", lambda url=url: url)
        assert present.address_of(room) == address + room.code


def test_damaged_database_switches_rooms_off_in_one_sentence(open_page: Open, rooms: Rooms) -> None:
    rooms.file.parent.mkdir(parents=True, exist_ok=True)
    rooms.file.write_bytes(b"no database")
    page = open_page(ATTENTION, model="reverse-small")
    assert not page.exception
    assert any("Rooms are off" in warning.value for warning in page.warning)
    assert page.main.children
