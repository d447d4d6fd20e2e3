"""Reports to a room: what is sent, to which address, and what a refusal says."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.assignments.test_report import FAILED, PASSED, TODO
from xformer.assignments.report import Report
from xformer.assignments.room import report_to_room
from xformer.errors import InputError

Received = list[tuple[str, str, list[object]]]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Received, list[int]]]:
    """A server that keeps what is posted: its address, what it has received, and the codes of its next answers."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    received: Received = []
    codes: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            received.append((self.path, self.headers["Cookie"], [json.loads(line) for line in body.splitlines()]))
            self.send_response(codes.pop() if codes else 204)
            self.end_headers()
            self.wfile.write(b"The lecturer has locked this room.")

        def log_message(self, *args: object) -> None:
            """Nothing is printed."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", received, codes
    server.shutdown()
    thread.join()
    server.server_close()


def test_only_the_nickname_and_tried_tasks_are_sent(server: tuple[str, Received, list[int]]) -> None:
    address, received, _ = server
    for _ in range(2):
        assert report_to_room([Report("ada", (PASSED, FAILED, TODO))], f"{address}/base/join/abc DEF", "Ada") == 2
    (path, cookie, messages), again = received
    assert path == "/base/room/ABCDEF/work"
    work = {"type": "work", "lesson": "assignment_gpt", "tries": 1}
    assert messages == [
        {"type": "nickname", "name": "Ada"}, work | {"step": 0, "solved": True}, work | {"step": 2, "solved": False},
    ]  # fmt: skip
    assert again[1] == cookie  # the same student
    assert len(cookie) == len("xformer_visitor=") + 32


def test_a_refusal_and_a_wrong_address_are_one_sentence(server: tuple[str, Received, list[int]]) -> None:
    address, _, codes = server
    codes.append(403)
    with pytest.raises(InputError, match="did not take the report: The lecturer has locked this room"):
        report_to_room([Report("ada", (PASSED,))], f"{address}/join/ABCDEF", "Ada")
    for wrong in ("ABCDEF", "ftp://host/join/ABCDEF", "http://host/ABCDEF"):
        with pytest.raises(InputError, match="the address to join it"):
            report_to_room([], wrong, "Ada")
    with pytest.raises(InputError, match="cannot be reached"):
        report_to_room([], "http://127.0.0.1:9/join/ABCDEF", "Ada")
