"""Which orders of a browser the server obeys: those of the screens, and none of Streamlit's own for developers.

Streamlit's protocol lets every visitor clear the caches of all, with one message that no screen here ever sends
(https://github.com/streamlit/streamlit/blob/develop/proto/streamlit/proto/BackMsg.proto). Such messages end here.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit.proto.BackMsg_pb2 import BackMsg

REFUSED = ("clear_cache", "load_git_info", "debug_disconnect_websocket", "debug_shutdown_runtime", "set_run_on_save")


def is_refused(data: bytes) -> bool:
    """Whether a message from a browser is one of the refused orders, or nothing that can be read."""
    order = BackMsg()
    try:
        order.ParseFromString(data)
    except DecodeError:
        return True
    return order.WhichOneof("type") in REFUSED


class MessageGuard:
    """Drops refused orders before Streamlit sees them."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await self.app(scope, receive, send)
            return

        async def obeyed() -> Message:
            while True:
                message = await receive()
                data = message.get("bytes")
                if message["type"] != "websocket.receive" or data is None or not is_refused(data):
                    return message

        await self.app(scope, obeyed, send)
