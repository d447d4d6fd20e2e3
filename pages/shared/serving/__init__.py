"""The guards between the network and the app: who may connect, how much may be sent, and which messages are passed on.

Each guard is an ASGI middleware (https://asgi.readthedocs.io) that `app.py` puts before Streamlit.
"""

from __future__ import annotations

from starlette.middleware import Middleware

from pages.shared.serving.access import HostGuard, SecurityHeaders, VisitorCookie
from pages.shared.serving.attendance import Attendance
from pages.shared.serving.limits import ConnectionGuard, UploadGuard
from pages.shared.serving.messages import MessageGuard


def guards() -> list[Middleware]:
    """All guards, the outermost first."""
    every = (SecurityHeaders, HostGuard, ConnectionGuard, VisitorCookie, UploadGuard, MessageGuard, Attendance)
    return [Middleware(guard) for guard in every]
