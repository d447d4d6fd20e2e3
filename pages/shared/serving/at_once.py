"""Small answers leave at once: else the second half of each waits until the browser has confirmed the first, some 40 ms.

TCP gathers small pieces while an earlier one is unconfirmed (Nagle's algorithm), and a browser takes its time to confirm. So
asyncio switches that off, for sockets of which it knows that they speak TCP; Streamlit opens its own without saying so
(protocol 0, which for a stream means TCP). A page is some eighty files and each drawing some messages, so they add up.
"""

from __future__ import annotations

import socket
from asyncio import base_events
from contextlib import suppress


def send_at_once() -> None:
    """Have every connection of this process from now on send what it is given."""
    base_events._set_nodelay = _set_nodelay  # pyright: ignore[reportAttributeAccessIssue]


def _set_nodelay(connection: socket.socket) -> None:
    if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
        with suppress(OSError):  # it has just been closed, or speaks another protocol
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
