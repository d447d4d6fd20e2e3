"""The routes of classroom mode behind the guards: access, hidden results, and malformed or forbidden messages."""

from __future__ import annotations

import asyncio
import json
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.testclient import TestClient, WebSocketTestSession
from starlette.websockets import WebSocketDisconnect

from pages.classroom import routes
from pages.classroom.routes import ENDED, REFUSED, REMOVED, TABS_EACH, GuessLimiter, hub
from pages.compute.byte_cache import shared
from pages.server import limits
from pages.server.access import COOKIE, HostGuard, MessageGuard, SecurityHeaders, VisitorCookie
from pages.server.limits import ConnectionGuard
from xformer.classroom import rooms as module
from xformer.classroom.messages import MAX_CHARACTERS, PageState
from xformer.classroom.rooms import Room, RoomQuestion, Rooms
from xformer.errors import ClassroomError
from xformer.live.lesson import ORDER, model_of

LECTURER = "1" * 32
SECRET = "the result"
TRUTH = RoomQuestion("choice", "Which?", options=("yes", "no"), shown={"model": "reverse", "state": {"input": SECRET}})


@pytest.fixture
def rooms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rooms:
    monkeypatch.setenv("XFORMER_RUNS", str(tmp_path))
    monkeypatch.setattr(routes, "WRONG_SECONDS", 0)
    monkeypatch.setattr(routes, "OTHERS_SECONDS", 0.1)
    monkeypatch.setattr(routes, "guesses", GuessLimiter())
    return routes.rooms()


@pytest.fixture
def room(rooms: Rooms) -> Room:
    return rooms.open(LECTURER)


@pytest.fixture
def client(rooms: Rooms) -> Iterator[TestClient]:
    yield from _served()


def _served() -> Iterator[TestClient]:
    guards = (SecurityHeaders, HostGuard, ConnectionGuard, VisitorCookie, MessageGuard)
    app = Starlette(routes=routes.routes(), middleware=[Middleware(guard) for guard in guards])
    with TestClient(app, base_url="http://localhost") as client:
        yield client
    hub.loop = None


def join(
    client: TestClient, room: Room | str, visitor: str = "", path: str = "", base: str = "", **headers: str
) -> WebSocketTestSession:
    code = room if isinstance(room, str) else room.code
    cookie = {"cookie": f"{COOKIE}={visitor or secrets.token_hex(16)}"}
    return client.websocket_connect(f"ws://localhost{base}/room/{code}{path}", headers=cookie | headers)


def receive(socket: WebSocketTestSession, kind: str = "room") -> dict[str, Any]:
    while (message := json.loads(socket.receive_text()))["type"] != kind:
        pass
    return message


def closing_code(socket: WebSocketTestSession) -> int:
    try:
        while True:
            socket.receive_text()
    except WebSocketDisconnect as closed:
        return closed.code


def test_every_route_needs_the_code(client: TestClient, rooms: Rooms, room: Room) -> None:
    rooms.show(room.id, {"model": "reverse"}, b"picture")
    wrong = "ZZZZZZ"
    assert client.get(f"/join/{wrong}").status_code == 404
    for path in ("model?name=reverse", "picture", "lesson"):
        assert client.get(f"/room/{wrong}/{path}").status_code == 404
    for path in ("", "/host"):
        with join(client, wrong, path=path) as socket:
            assert closing_code(socket) == ENDED
    assert room.code not in client.get("/join").text
    assert client.get(f"/room/{room.code}/picture").content == b"picture"


def test_rooms_are_under_the_base_path_of_the_app(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    option = st.get_option
    monkeypatch.setattr(st, "get_option", lambda name: "/lab/" if name == "server.baseUrlPath" else option(name))
    for client in _served():
        assert client.get(f"/lab/join?code={room.code}").url.path == f"/lab/join/{room.code}"
        assert client.get(f"/join/{room.code}").status_code == 404
        with join(client, room, base="/lab") as socket:
            assert receive(socket)["type"] == "room"
        with join(client, "ZZZZZZ", base="/lab") as socket:
            assert closing_code(socket) == ENDED


def test_page_has_the_code_in_its_address_and_a_form_without_it(client: TestClient, room: Room) -> None:
    assert client.get("/join").status_code == 200
    page = client.get(f"/join?code={room.code.lower()}", headers={"accept": "text/html"})
    assert page.url.path == f"/join/{room.code}"
    assert page.status_code == 200
    assert COOKIE in page.headers["set-cookie"]
    assert room.id not in page.text
    assert "frame-ancestors 'self'" in page.headers["content-security-policy"]
    hostile = client.get("/join/%3Cscript%3Ealert(1)")
    assert hostile.status_code == 404
    assert len(hostile.content) < 20_000, "the response to a wrong code is a small form"
    assert b"<script>alert" not in hostile.content.lower()


def test_only_the_shown_model_and_lesson_are_served(client: TestClient, rooms: Rooms, room: Room) -> None:
    rooms.show(room.id, {"model": "reverse-mirror"})
    assert client.get(f"/room/{room.code}/model?name=reverse-mirror").content[:4] == b"XLIV"
    for name in ("reverse-small", "../reverse-mirror", ""):
        assert client.get(f"/room/{room.code}/model", params={"name": name}).status_code == 404
    lesson, model = f"/room/{room.code}/lesson", f"/room/{room.code}/model?name=lesson:masks"
    assert [client.get(path).status_code for path in (lesson, model)] == [404, 404]
    rooms.teach(room.id, "masks")
    assert client.get(lesson).json()["title"] == "Masks"
    assert client.get(model).content[:4] == b"XLIV"


def test_every_lesson_of_learn_runs_in_a_room_one_with_snapshots(
    client: TestClient, rooms: Rooms, room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tuple(routes.lessons()) == ORDER
    short = partial(replace, train={"seed": 0, "steps": 2, "snapshot_every": 1})
    monkeypatch.setattr(routes, "model_of", lambda lesson, *where: model_of(short(lesson), *where))
    shared.forget(lambda key: key == ("packed", "lesson:training"))
    rooms.teach(room.id, "training")
    packed = client.get(f"/room/{room.code}/model?name=lesson:training").content
    shared.forget(lambda key: key == ("packed", "lesson:training"))
    assert packed[:4] == b"XLIV"
    header = json.loads(packed[8 : 8 + int.from_bytes(packed[4:8], "little")])
    assert [one["step"] for one in header["snapshots"]] == [0, 1, 2]


def test_no_result_is_sent_before_the_reveal(client: TestClient, rooms: Rooms, room: Room) -> None:
    question = rooms.ask(room.id, TRUTH, ["1"])
    rooms.show(room.id, {"model": "reverse", "state": {"input": SECRET}}, SECRET.encode())
    with join(client, room) as student, join(client, room) as neighbour:
        received = [json.dumps(receive(student)), json.dumps(receive(neighbour))]
        student.send_text(json.dumps({"type": "vote", "question": question, "round": 1, "answer": "1"}))
        received += [json.dumps(receive(student, "voted"))]
        rooms.ask_again(question)
        hub.changed(room.id)
        received += [json.dumps(receive(neighbour))]
        for text in received:
            assert SECRET not in text
            assert '"truth": [' not in text
            assert '"votes": {' not in text
        assert client.get(f"/room/{room.code}/picture").status_code == 404
        rooms.reveal(question)
        hub.changed(room.id)
        shown = receive(neighbour)["question"]
        assert (shown["truth"], shown["votes"], shown["shown"]["model"]) == (["1"], {"1": {"1": 1}}, "reverse")


def test_the_votes_of_those_who_left_are_not_counted_as_answers_of_those_present(
    client: TestClient, rooms: Rooms, room: Room
) -> None:
    question = rooms.ask(room.id, TRUTH, ["1"])
    left, stayed = (rooms.join(room.id, secret * 32).id for secret in "34")
    rooms.vote(left, question, 1, "1")
    with join(client, room, LECTURER, "/host") as host, join(client, room, "4" * 32):
        while (seen := receive(host, "host"))["present"] != 1:
            pass
        assert (seen["question"]["asked"], seen["question"]["votes"]) == (2, {"1": {"1": 1}})
        rooms.ask_again(question)
        for member in (left, stayed):
            rooms.vote(member, question, 2, "0")
        rooms.reveal(question)
        hub.changed(room.id)
        while not (seen := receive(host, "host"))["question"]["isRevealed"]:
            pass
        assert seen["question"]["votes"] == {"1": {"1": 1}, "2": {"0": 2}}
        assert seen["question"]["twice"] == {"1": {"1": 1}, "2": {"0": 1}}


def test_vote_reaches_the_lecturer_once_and_survives_a_reconnect(client: TestClient, rooms: Rooms, room: Room) -> None:
    question = rooms.ask(room.id, TRUTH, ["1"])
    visitor = "2" * 32
    with join(client, room, LECTURER, "/host") as host, join(client, room, visitor) as student:
        vote = {"type": "vote", "question": question, "round": 1, "answer": "0"}
        for answer in ("0", "1", "1"):
            student.send_text(json.dumps(vote | {"answer": answer}))
            assert receive(student, "voted")["answer"] == answer
        while (seen := receive(host, "host"))["question"]["votes"].get("1") != {"1": 1}:
            pass
        assert seen["present"] == 1
        assert seen["question"]["truth"] is None, "the lecturer's screen shows no result either"
    with join(client, room, visitor) as student:
        assert receive(student, "voted")["answer"] == "1"


def test_student_cannot_act_as_the_lecturer(client: TestClient, rooms: Rooms, room: Room) -> None:
    question = rooms.ask(room.id, TRUTH, ["1"])
    with join(client, room, path="/host") as socket:
        assert closing_code(socket) == REFUSED
    commands = ("reveal", "ask", "ask_again", "finish", "end", "show", "teach", "pause", "host", None, ["vote"], {})
    with join(client, room) as student:
        receive(student)
        for command in commands:
            message = {"type": command, "question": question, "room": room.id, "shown": {"model": "x"}}
            student.send_text(json.dumps(message))
            assert receive(student, "problem")
    assert rooms.room(room.id) == rooms.find(room.code)
    asked = rooms.room(room.id).asked
    assert asked is not None
    assert (asked.id, asked.round, asked.is_revealed) == (question, 1, False)


def test_page_of_another_site_or_without_a_cookie_is_refused(client: TestClient, room: Room) -> None:
    for origin in ("https://evil.example", "null", "file://"):
        with pytest.raises(WebSocketDisconnect), join(client, room, LECTURER, "/host", origin=origin):
            pass
    with join(client, room, origin="http://localhost") as socket:
        receive(socket)
    with client.websocket_connect(f"ws://localhost/room/{room.code}") as socket:
        assert closing_code(socket) == REFUSED


MALFORMED = [
    "", "{", "[]", "null", "1e999", "\ufffd", '{"type": "vote"}', "[" * 4000,
    '{"type": "vote", "question": true, "round": 1, "answer": "0"}',
    '{"type": "vote", "question": 1e400, "round": 1, "answer": "0"}',
    '{"type": "vote", "question": 99999999999999999999, "round": 1, "answer": "0"}',
    '{"type": "vote", "question": 1, "round": 1, "answer": {"a": 1}}',
    '{"type": "work", "lesson": "masks", "step": -1, "tries": 1}',
    '{"type": "work", "lesson": ["masks"], "step": 1, "tries": 1}',
]  # fmt: skip


def test_malformed_message_gets_an_error_and_changes_nothing(client: TestClient, rooms: Rooms, room: Room) -> None:
    question = rooms.ask(room.id, TRUTH, ["1"])
    with join(client, room) as student:
        receive(student)
        for text in MALFORMED:
            student.send_text(text)
            assert receive(student, "problem")["text"], text
        student.send_text(json.dumps({"type": "vote", "question": question, "round": 1, "answer": "0"}))
        assert receive(student, "voted")
    assert rooms.tally(question) == {1: {"0": 1}}


def test_oversized_message_closes_only_its_own_connection(client: TestClient, rooms: Rooms, room: Room) -> None:
    with join(client, room) as student, join(client, room) as neighbour:
        receive(student)
        receive(neighbour)
        student.send_text("x" * (MAX_CHARACTERS + 1))
        assert closing_code(student) == 1009
        neighbour.send_bytes(b"\xff\xfe")
        assert receive(neighbour, "problem")
        rooms.show(room.id, {"model": "reverse"})
        hub.changed(room.id)
        assert receive(neighbour)["shown"] == {"model": "reverse"}


def test_guesses_are_limited_but_joined_students_can_return(client: TestClient, rooms: Rooms, room: Room) -> None:
    visitor = "3" * 32
    with join(client, room, visitor) as student:
        receive(student)
    answers = [client.get(f"/join/AAAA{a}{b}").status_code for a in "BCDEFG" for b in "BCDEFGH"]
    assert answers[: routes.GUESSES] == [404] * routes.GUESSES
    assert answers[routes.GUESSES + 2 :] == [429] * (len(answers) - routes.GUESSES - 2)
    assert client.get(f"/join/{room.code}").status_code == 429, "a right code gets the same response"
    with join(client, room) as socket:
        assert closing_code(socket) == REFUSED
    with join(client, room, visitor) as student:
        assert receive(student), "a student who has joined before can return"


def test_class_with_one_address_is_admitted(client: TestClient, room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XFORMER_MAX_CONNECTIONS_BY_ADDRESS", "1")
    with join(client, room) as one, join(client, room) as two, join(client, room) as three:
        for student in (one, two, three):
            receive(student)


def test_one_student_has_a_limited_number_of_tabs(client: TestClient, room: Room) -> None:
    visitor, sockets = "4" * 32, []
    for _ in range(TABS_EACH):
        sockets.append(join(client, room, visitor))
        receive(sockets[-1].__enter__())
    with join(client, room, visitor) as socket:
        assert "close one" in receive(socket, "problem")["text"]
        assert closing_code(socket) == REFUSED
    for socket in sockets:
        socket.__exit__(None, None, None)


STATES = {
    "nested": '{"input": ' + "[" * 400 + "]" * 400 + "}",
    "a field nested": '{"input": "3 7", "replace": ' + '{"a": ' * 400 + "1" + "}" * 400 + "}",
    "long number": '{"layer": ' + "9" * 4300 + "}",
    "negative number": '{"head": -1}',
    "number as text": '{"layer": "1"}',
    "infinite": '{"layer": 1e999}',
    "text": '"x"',
    "list": "[1]",
    "long text": json.dumps({"input": "x" * 2001}),
    "many cuts": json.dumps({"cut": ["a"] * 513}),
    "odd cut": '{"cut": ["encoder.0.attn.0,positions:off"]}',
    "odd mask": '{"mask": "x"}',
}


@pytest.mark.parametrize("text", STATES.values(), ids=STATES)
def test_state_outside_the_schema_is_refused_or_cut_to_it(
    client: TestClient, rooms: Rooms, room: Room, text: str
) -> None:
    with join(client, room, LECTURER, "/host") as host, join(client, room) as student:
        receive(student)
        student.send_text(f'{{"type": "state", "state": {text}}}')
        student.send_text("{")
        receive(student, "problem")
        receive(host, "host")
        [member] = rooms.members(room.id)
        assert member.state in (None, PageState(input="3 7"))
    rooms.teach(room.id, "masks")
    with join(client, room, LECTURER, "/host") as host:
        assert receive(host, "host")["work"]


def test_half_of_a_surrogate_pair_is_replaced(client: TestClient, rooms: Rooms, room: Room) -> None:
    with join(client, room) as student:
        receive(student)
        student.send_text('{"type": "state", "state": {"input": "3 \\ud800 \\ud83d\\ude00"}}')
        student.send_text('{"type": "nickname", "name": "Mia\\ud83d"}')
        student.send_text("{")
        receive(student, "problem")
    [member] = rooms.members(room.id)
    assert member.state is not None
    assert member.state.input == "3 \ufffd \N{GRINNING FACE}"
    assert member.name.encode()


def test_only_steps_with_an_exercise_are_recorded(client: TestClient, rooms: Rooms, room: Room) -> None:
    steps = routes.exercises("masks")
    with join(client, room) as student:
        receive(student)
        for step in range(40):
            student.send_text(json.dumps({"type": "work", "lesson": "masks", "step": step, "tries": 1}))
        student.send_text(json.dumps({"type": "work", "lesson": "x" * 60, "step": steps[0], "tries": 1}))
        student.send_text(json.dumps({"type": "forget", "then": "ignored"}) + " ")
        for _ in range(40 - len(steps) + 1):
            assert "no such exercise" in receive(student, "problem")["text"]
        receive(student, "forgotten")
    assert 0 < len(steps) < 10


def test_a_check_reports_solved_tasks_of_an_assignment(client: TestClient, rooms: Rooms, room: Room) -> None:
    headers, lesson = {"cookie": f"{COOKIE}={'5' * 32}"}, "assignment_gpt"
    work = [{"type": "work", "lesson": lesson, "step": step, "tries": 1, "solved": step == 0} for step in (0, 9)]
    lines = [json.dumps(one) for one in ({"type": "nickname", "name": "ada"}, *work)]

    def post(*lines: str, code: str = room.code, **headers: str) -> tuple[int, str]:
        answer = client.post(f"/room/{code}/work", content="\n".join(lines), headers=headers)
        return answer.status_code, answer.text

    assert post(*lines, **headers) == (204, "")
    assert post(*lines, **headers) == (204, "")  # a student who checks again is the same student
    found = [(row["student"], row["lesson"], row["step"], row["solved"]) for row in rooms.results(room.id)]
    assert found == [("ada", lesson, 1, True), ("ada", lesson, 10, False)]
    assert post(*lines)[0] == 403
    assert post(*lines, code="AAAAAA", **headers)[0] == 404
    assert post("x" * (MAX_CHARACTERS + 1), **headers)[0] == 413
    assert post("{}", **headers)[0] == 400
    assert post(lines[2].replace("9", "10"), **headers) == (400, "There is no such exercise.")
    assert client.get(f"/room/{room.code}/work", headers=headers).status_code == 405
    rooms.lock(room.id, True)
    assert post(*lines, cookie=f"{COOKIE}={'6' * 32}")[0] == 403


def test_lecturer_receives_only_what_has_changed(client: TestClient, rooms: Rooms, room: Room) -> None:
    members = [rooms.join(room.id, f"{number:032}").id for number in range(50)]
    rooms.teach(room.id, "masks")
    for member in members:
        rooms.work(member, "masks", routes.exercises("masks")[0], 1, True)
    with join(client, room, LECTURER, "/host") as host:
        assert len(receive(host, "host")["work"]["students"]) == 50
        rooms.rename(members[3], "Mia")
        rooms.forget(members[4])
        hub.changed(room.id, hosts_only=True)
        work = receive(host, "host")["work"]
        assert [one["name"] for one in work["students"].values()] == ["Mia"]
        assert work["gone"] == [members[4]]


def test_database_is_never_used_on_the_event_loop(
    client: TestClient, rooms: Rooms, room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, used = rooms._connection, []

    def watched(role: str) -> Any:
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            used.append(role)
        return connection(role)

    rooms.teach(room.id, "masks")
    question = rooms.ask(room.id, TRUTH, ["1"])
    monkeypatch.setattr(rooms, "_connection", watched)
    with join(client, room, LECTURER, "/host") as host, join(client, room) as student:
        receive(host, "host")
        receive(student)
        step = routes.exercises("masks")[0]
        for message in (
            {"type": "vote", "question": question, "round": 1, "answer": "0"}, {"type": "nickname", "name": "Mia"},
            {"type": "work", "lesson": "masks", "step": step, "tries": 1}, {"type": "state", "state": {"input": "1"}},
        ):  # fmt: skip
            student.send_text(json.dumps(message))
        receive(student, "voted")
        for path in ("model?name=lesson:masks", "lesson", "picture"):
            client.get(f"/room/{room.code}/{path}")
        with join(client, "ZZZZZZ") as wrong:
            closing_code(wrong)
        student.send_text(json.dumps({"type": "forget"}))
        receive(student, "forgotten")
    assert not used


def test_locked_database_delays_nobody_and_is_said(
    client: TestClient, rooms: Rooms, room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = rooms.ask(room.id, TRUTH, ["1"])
    with join(client, room) as student, sqlite3.connect(rooms.file, isolation_level=None) as other:
        receive(student)
        other.execute("BEGIN IMMEDIATE")
        student.send_text(json.dumps({"type": "vote", "question": question, "round": 1, "answer": "0"}))
        with join(client, room, LECTURER, "/host") as host:
            assert receive(host, "host")["question"]["votes"] == {}
        assert "try again" in receive(student, "problem")["text"]
        other.execute("COMMIT")
        student.send_text(json.dumps({"type": "vote", "question": question, "round": 1, "answer": "0"}))
        assert receive(student, "voted")


def test_change_by_another_server_arrives(client: TestClient, rooms: Rooms, room: Room) -> None:
    other = Rooms(rooms.file.parent)
    with join(client, room) as student, join(client, room, LECTURER, "/host") as host:
        receive(student)
        receive(host, "host")
        question = other.ask(room.id, TRUTH, ["1"])
        assert receive(student)["question"]["id"] == question
        other.vote(other.join(room.id, "elsewhere").id, question, 1, "1")
        while receive(host, "host")["question"] is None or not other.tally(question):
            pass
        other.end(room.id)
        assert closing_code(student) == closing_code(host) == ENDED


def test_expired_room_closes_its_connections(client: TestClient, room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    with join(client, room) as student:
        receive(student)
        monkeypatch.setattr(module, "LIFETIME", 0)
        assert closing_code(student) == ENDED


def test_locked_room_admits_only_those_who_joined_and_clearing_removes_all(
    client: TestClient, rooms: Rooms, room: Room
) -> None:
    visitor = "5" * 32
    with join(client, room, visitor) as student:
        receive(student)
        rooms.lock(room.id, True)
        with join(client, room) as late:
            assert "locked" in receive(late, "problem")["text"]
            assert closing_code(late) == REFUSED
        with join(client, room, visitor) as again:
            receive(again)
        rooms.clear(room.id)
        hub.changed(room.id)
        assert closing_code(student) == REMOVED
    assert rooms.members(room.id) == []
    with join(client, room, visitor) as again:
        assert closing_code(again) == REFUSED


def test_one_address_can_neither_fill_a_room_nor_open_all_rooms(
    client: TestClient, rooms: Rooms, room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XFORMER_MAX_STUDENTS_BY_ADDRESS", "2")
    visitor = "6" * 32
    with join(client, room, visitor) as student:
        receive(student)
    with join(client, room) as student:
        receive(student)
        with join(client, room) as third:
            assert "at your address" in receive(third, "problem")["text"]
        with join(client, room, visitor) as known:
            receive(known)
            with pytest.raises(WebSocketDisconnect), join(client, room, visitor):  # its connections are limited too
                pass
    monkeypatch.setenv("XFORMER_MAX_ROOMS_BY_ADDRESS", "2")
    own = [rooms.open(name).id for name in "abc"]
    for name in own[:2]:
        limits.check_rooms("203.0.113.9", rooms.ids())
        limits.count_room("203.0.113.9", name)
    with pytest.raises(ClassroomError, match="2 rooms"):
        limits.check_rooms("203.0.113.9", rooms.ids())
    limits.check_rooms("203.0.113.10", rooms.ids())
    rooms.end(own[0])
    limits.check_rooms("203.0.113.9", rooms.ids())


def test_browser_that_leaves_early_raises_no_error(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "WRONG_SECONDS", 0.05)
    for path in ("", "/host"):
        with join(client, "ZZZZZZ", path=path) as socket:
            socket.close()


def test_ended_room_closes_its_connections(client: TestClient, rooms: Rooms, room: Room) -> None:
    with join(client, room) as student, join(client, room, LECTURER, "/host") as host:
        receive(student)
        receive(host, "host")
        rooms.end(room.id)
        hub.changed(room.id)
        assert closing_code(student) == ENDED
        assert closing_code(host) == ENDED
    assert room.id not in hub.connections


def test_student_can_set_a_nickname_and_delete_all_data(client: TestClient, rooms: Rooms, room: Room) -> None:
    with join(client, room) as student:
        receive(student)
        student.send_text(json.dumps({"type": "nickname", "name": "Mia"}))
        student.send_text(json.dumps({"type": "state", "state": {"input": "3 7"}}))
        student.send_text(json.dumps({"type": "work", "lesson": "masks", "step": 3, "tries": 2, "solved": True}))
        student.send_text("{")
        receive(student, "problem")
        assert [(one.name, one.state) for one in rooms.members(room.id)] == [("Mia", PageState(input="3 7"))]
        assert [(row["lesson"], row["step"], row["solved"]) for row in rooms.results(room.id)] == [("masks", 4, True)]
        student.send_text(json.dumps({"type": "forget"}))
        receive(student, "forgotten")
    assert rooms.members(room.id) == []
