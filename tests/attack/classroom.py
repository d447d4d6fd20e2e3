"""Hostile websockets: foreign origins, students who send anything, and a database that another process has locked.

Meanwhile the server must answer others, its event loop must not block, and its log must not fill with tracebacks.
"""

from __future__ import annotations

import json
import random
import re
import secrets
import sqlite3
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.sync.client import ClientConnection, connect

from pages.server.access import COOKIE
from tests.attack.strangers import Ground
from tests.trials import Kind
from xformer.classroom.messages import MAX_CHARACTERS
from xformer.classroom.rooms import RoomQuestion, Rooms

ORIGINS = ("http://evil.example", "https://evil.example:8443", "null", "file://", "http://localhost:1", "", "x" * 4000)
ODD: tuple[Any, ...] = (
    None, True, -1, 10**400, 1e308, "", "\ud800", "x" * 3000, [], {}, [[[]]], {"a": {"a": {}}}, "1.1", "<b>", ["\ud800"],
)  # fmt: skip
ANSWER_SECONDS = 5.0
"""The longest that another visitor may wait for an answer during an attack, on a busy machine."""
LOOP_SECONDS = 2.0
"""The longest that a callback may block the event loop, on a busy machine."""
MAX_LOG_BYTES = 4_000
"""The most that the log may grow in an attack of one kind, besides slow callbacks."""


def _open(ground: Ground, path: str, **headers: str) -> ClientConnection:
    sent = {"Cookie": f"{COOKIE}={secrets.token_hex(16)}"} | headers
    url = ground.base.replace("http", "ws") + path
    return connect(url, additional_headers=sent, open_timeout=30, proxy=None, max_size=None)


def _answer_seconds(ground: Ground) -> float:
    began = time.monotonic()
    with urllib.request.urlopen(f"{ground.base}/_stcore/health", timeout=60) as answer:
        assert answer.read() == b"ok"
    return time.monotonic() - began


@contextmanager
def _others_served(ground: Ground) -> Iterator[None]:
    """Check that the server answers others during the block, and that neither its event loop nor its log suffers."""
    before, seconds = ground.log.stat().st_size, []
    with ThreadPoolExecutor(1) as pool:
        is_over: list[bool] = []

        def ask() -> None:
            while not is_over:
                seconds.append(_answer_seconds(ground))
                time.sleep(0.05)

        asking = pool.submit(ask)
        try:
            yield
        finally:
            is_over.append(True)
            asking.result()
    written = ground.log.read_text(errors="replace")[before:]
    slow = [(float(found[2]), found[1]) for found in re.finditer(r"Executing (.*) took ([\d.]+) seconds", written)]
    assert max(seconds) < ANSWER_SECONDS, f"another visitor waited {max(seconds):.1f} s"
    took, what = max(slow, default=(0.0, ""))
    assert took < LOOP_SECONDS, f"a callback blocked the event loop for {took:.2f} s: {what}"
    rest = [line for line in written.splitlines() if "Executing" not in line]
    assert sum(map(len, rest)) < MAX_LOG_BYTES, "\n".join(rest[:40])


def origins(ground: Ground, n: int, draw: random.Random) -> Iterator[str]:
    """Open websockets with foreign origins, several at once: each is refused at once."""

    def one(origin: str) -> str:
        try:
            with _open(ground, draw.choice(("/_stcore/stream", "/room/AAAAAA", "/room/AAAAAA/host")), Origin=origin):
                return "admitted"
        except InvalidHandshake:
            return "refused"

    with _others_served(ground), ThreadPoolExecutor(5) as pool:
        outcomes = list(pool.map(one, [draw.choice(ORIGINS) for _ in range(n)]))
    assert set(outcomes) == {"refused"}
    yield from outcomes


def students(ground: Ground, n: int, draw: random.Random) -> Iterator[str]:
    """Send odd messages as students, some of whom leave at once: the lecturer still receives reports."""
    rooms, owner = Rooms(ground.store.folder), secrets.token_hex(16)
    room = rooms.open(owner)
    rooms.teach(room.id, "masks")
    question = rooms.ask(room.id, RoomQuestion("choice", "Which?", options=("yes", "no")), ["0"])
    with _others_served(ground):
        for trial in range(n):
            if trial % 5 == 4:
                with suppress(InvalidHandshake), _open(ground, "/room/" + draw.choice(("ZZZZZZ", room.code))):
                    pass  # leaves before it is answered
                yield "left"
                continue
            with suppress(ConnectionClosed), _open(ground, f"/room/{room.code}") as student:
                for _ in range(3):
                    student.send(_message(draw, question))
                student.send(json.dumps({"type": "vote", "question": question, "round": 1, "answer": "0"}))
                while json.loads(student.recv(30))["type"] != "voted":
                    pass
            yield "survived"
        with _open(ground, f"/room/{room.code}/host", Cookie=f"{COOKIE}={owner}") as host:
            report = json.loads(host.recv(30))
    assert set(report["question"]["votes"]) <= {"1"}
    rooms.end(room.id)


def _message(draw: random.Random, question: int) -> str | bytes:
    fields = ("question", "round", "answer", "lesson", "step", "tries", "solved", "name", "state")
    kind = draw.choice(("vote", "work", "nickname", "state", "forget ", "reveal"))
    message: dict[str, Any] = {"type": kind, "question": question, "lesson": "masks", "step": 3, "tries": 1, "round": 1}
    message |= {draw.choice(fields): draw.choice(ODD) for _ in range(3)}
    if kind == "state":
        page = ("input", "cut", "ablate", "layer", "head", "mask", "replace", "model")
        message["state"] = {draw.choice(page): draw.choice(ODD) for _ in range(3)}
    text = json.dumps(message)
    depth = draw.choice((0, 0, 0, 300, 971, 1400))
    text = text[:-1] + ', "more": ' + '{"a":' * depth + "1" + "}" * depth + "}"
    return draw.choice((text, text, text[: draw.randrange(len(text))], "[" * 4000, text.encode()))[:MAX_CHARACTERS]


def large(ground: Ground, n: int, draw: random.Random) -> Iterator[str]:
    """Send large messages to a room: the connection is closed, and the memory of the server does not grow."""
    rooms = Rooms(ground.store.folder)
    room = rooms.open(secrets.token_hex(16))
    with _others_served(ground):
        for _ in range(n):
            with _open(ground, f"/room/{room.code}") as student:
                with suppress(ConnectionClosed):
                    student.send("x" * draw.choice((MAX_CHARACTERS + 1, 10**6, 10**7)))
                    while True:
                        student.recv(30)
                assert student.close_code in (1009, 1006), student.close_code
            yield "closed"
    rooms.end(room.id)


def locked(ground: Ground, n: int, draw: random.Random) -> Iterator[str]:
    """Hold the write lock of the database of rooms: others are served, and a vote is refused in one sentence."""
    rooms = Rooms(ground.store.folder)
    room = rooms.open(secrets.token_hex(16))
    question = rooms.ask(room.id, RoomQuestion("choice", "Which?", options=("yes", "no")), ["0"])
    for _ in range(n):
        with _open(ground, f"/room/{room.code}") as student, _others_served(ground):
            student.recv(30)
            with sqlite3.connect(rooms.file, isolation_level=None) as other:
                other.execute("BEGIN IMMEDIATE")
                student.send(json.dumps({"type": "vote", "question": question, "round": 1, "answer": "0"}))
                while (message := json.loads(student.recv(30)))["type"] != "problem":
                    pass
                other.execute("ROLLBACK")
        assert "try again" in message["text"], message
        yield "refused in one sentence"
    rooms.end(room.id)


def kinds(ground: Ground) -> list[Kind]:
    """Return the kinds of attacks on this server."""
    return [
        Kind("hostile students", partial(students, ground), 10, 400),
        Kind("foreign origins", partial(origins, ground), 10, 400),
        Kind("large messages to a room", partial(large, ground), 3, 40),
        Kind("locked database of rooms", partial(locked, ground), 1, 20),
    ]
