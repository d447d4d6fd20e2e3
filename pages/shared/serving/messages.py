"""Which orders of a browser the server obeys: those of the screens, and none of Streamlit's own for developers.

A browser may also send half a character: JavaScript keeps text in halves of 16 bits, and a paste or a script can leave one
alone. Such text is no UTF-8, and Streamlit ends the connection over it; here it becomes the replacement character.

Streamlit's protocol lets every visitor clear the caches of all, with one message that no screen here ever sends
(https://github.com/streamlit/streamlit/blob/develop/proto/streamlit/proto/BackMsg.proto). Such messages end here.
"""

from __future__ import annotations

import re

from google.protobuf.message import DecodeError
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit.proto.BackMsg_pb2 import BackMsg

HALF = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
"""Half a character of two halves, as JavaScript encodes it."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()
"""As long as what it replaces, so that the lengths in the message stay true."""
REFUSED = ("clear_cache", "load_git_info", "debug_disconnect_websocket", "debug_shutdown_runtime", "set_run_on_save")

ASKS_FOR, ANSWERED = "backend_operation_request", ("deferred_file", "dataframe_chunk")
"""What a browser may ask for beside a run of the script; Streamlit would also write files for those who develop an app."""

POLICY_VIOLATION = 1008
"""The code of https://www.rfc-editor.org/rfc/rfc6455#section-7.4.1 with which a connection is closed."""


def readable(data: bytes) -> bytes | None:
    """A message from a browser as it may be handed on; None for a refused order, and for what cannot be read."""
    for content in (data, HALF.sub(REPLACEMENT, data)):
        order = BackMsg()
        try:
            order.ParseFromString(content)
        except DecodeError:
            continue
        kind = order.WhichOneof("type")
        if kind == ASKS_FOR and order.backend_operation_request.WhichOneof("payload") not in ANSWERED:
            return None
        return None if kind in REFUSED else content
    return None


class MessageGuard:
    """Drops refused orders before Streamlit sees them, and closes a connection that sends text: the protocol is binary."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await self.app(scope, receive, send)
            return

        is_closed = False

        async def obeyed() -> Message:
            nonlocal is_closed
            while True:
                message = await receive()
                if message["type"] != "websocket.receive":
                    return message
                if (data := message.get("bytes")) is None:
                    is_closed = True
                    await send(
                        {"type": "websocket.close", "code": POLICY_VIOLATION, "reason": "Text is not understood"}
                    )
                    return {"type": "websocket.disconnect", "code": POLICY_VIOLATION}
                if (content := readable(data)) is not None:
                    return message if content is data else {**message, "bytes": content}

        async def send_while_open(message: Message) -> None:
            if not is_closed:
                await send(message)

        await self.app(scope, obeyed, send_while_open)
