"""What stands between the network and the app: who may ask, in which frame, how much may be sent, and which orders are obeyed.

Each guard is a small ASGI middleware of its own (https://asgi.readthedocs.io), put before Streamlit by `app.py`.
"""

from __future__ import annotations

from starlette.middleware import Middleware

from pages.shared.serving.address import ConnectionGuard
from pages.shared.serving.attendance import Attendance
from pages.shared.serving.headers import SecurityHeaders
from pages.shared.serving.hosts import HostGuard
from pages.shared.serving.messages import MessageGuard
from pages.shared.serving.uploads import UploadGuard
from pages.shared.serving.visitor import VisitorCookie


def guards() -> list[Middleware]:
    """All guards, the outermost first."""
    every = (SecurityHeaders, HostGuard, ConnectionGuard, VisitorCookie, UploadGuard, MessageGuard, Attendance)
    return [Middleware(guard) for guard in every]
