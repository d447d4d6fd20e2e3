"""Which messages of a browser reach Streamlit: those that the screens need, and no other.

Streamlit's protocol has messages for developers. One of them lets every visitor clear the caches of all:
https://github.com/streamlit/streamlit/blob/develop/proto/streamlit/proto/BackMsg.proto.
"""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pages.shared.streamlit_compat import message_kind

ALLOWED = (
    "rerun_script",
    "stop_script",
    "app_heartbeat",
    "file_urls_request",
    "backend_operation_request.deferred_file",
    "backend_operation_request.dataframe_chunk",
)
"""Kinds of messages: run a screen, stop it, keep the connection, upload a file, download one, scroll in a table."""
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
"""A lone surrogate, as JavaScript encodes it. A paste or a script can leave one in a text; it is not UTF-8."""
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()
"""As many bytes as a surrogate, so that the lengths in the message stay correct."""
_POLICY_VIOLATION = 1008
"""A close code: https://www.rfc-editor.org/rfc/rfc6455#section-7.4.1."""


def readable(data: bytes) -> bytes | None:
    """A message as Streamlit can read it, lone surrogates replaced; None where it is malformed or not allowed.

    Streamlit closes the connection when it cannot decode a message.
    """
    kind = message_kind(data)
    if kind is None:
        data = _SURROGATE.sub(_REPLACEMENT, data)
        kind = message_kind(data)
    return data if kind in ALLOWED else None


class MessageGuard:
    """Drops messages that are not allowed, and closes a connection that sends text: the protocol is binary."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await self.app(scope, receive, send)
            return

        is_closed = False

        async def receive_allowed() -> Message:
            nonlocal is_closed
            while True:
                message = await receive()
                if message["type"] != "websocket.receive":
                    return message
                if (data := message.get("bytes")) is None:
                    is_closed = True
                    await send(
                        {"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": "Text is not understood"}
                    )
                    return {"type": "websocket.disconnect", "code": _POLICY_VIOLATION}
                if (content := readable(data)) is not None:
                    return message if content is data else {**message, "bytes": content}

        async def send_while_open(message: Message) -> None:
            if not is_closed:
                await send(message)

        await self.app(scope, receive_allowed, send_while_open)
