"""Connections of the app's server send small pieces at once, whatever its listening socket says of its protocol."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from asyncio import StreamReader, StreamWriter, base_events
from concurrent.futures import ThreadPoolExecutor

import pytest

from pages.shared.serving.at_once import send_at_once
from tests.browser.serving import ROOT


async def is_sent_at_once(listening: socket.socket) -> bool:
    """Whether a server on that socket gathers nothing that it sends."""
    found: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def answer(_: StreamReader, writer: StreamWriter) -> None:
        found.set_result(bool(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))
        writer.close()

    async with await asyncio.start_server(answer, sock=listening):
        _, writer = await asyncio.open_connection(*listening.getsockname()[:2])
        try:
            return await found
        finally:
            writer.close()


@pytest.mark.parametrize("protocol", [0, socket.IPPROTO_TCP])
def test_a_connection_gathers_nothing(monkeypatch: pytest.MonkeyPatch, protocol: int) -> None:
    monkeypatch.setattr(base_events, "_set_nodelay", lambda connection: None)
    send_at_once()
    with socket.socket(proto=protocol) as listening, ThreadPoolExecutor(1) as thread:
        listening.bind(("127.0.0.1", 0))
        assert thread.submit(asyncio.run, is_sent_at_once(listening)).result()


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="this system has no other kind of socket")
def test_a_connection_that_is_no_network_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_events, "_set_nodelay", lambda connection: None)
    send_at_once()
    one, other = socket.socketpair()
    with one, other:
        base_events._set_nodelay(one)  # pyright: ignore[reportAttributeAccessIssue]


def test_the_app_asks_for_it() -> None:
    code = (
        "from asyncio import base_events\nfrom pages.shared import loading\nloading.begin = lambda: None\nimport app\n"
        "print(base_events._set_nodelay.__module__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == [send_at_once.__module__]
