"""The guards between the network and the app: who may connect, how much may be sent, and which messages are passed on.

Each guard is an ASGI middleware (https://asgi.readthedocs.io) that `app.py` puts before Streamlit.
"""

from __future__ import annotations

import logging

import streamlit as st
from starlette.middleware import Middleware

import __main__
from pages.shared import loading
from pages.shared.serving.access import HostGuard, SecurityHeaders, VisitorCookie
from pages.shared.serving.attendance import Attendance
from pages.shared.serving.limits import ConnectionGuard, UploadGuard
from pages.shared.serving.messages import MessageGuard
from pages.shared.streamlit_compat import ignore_pages_folder
from xformer.installed import APP


def guest_app() -> st.App:
    """The app for the process of a notebook or script, which keeps its settings; `xformer.show` serves it."""
    ignore_pages_folder()
    for name in ("uvicorn.access", "uvicorn.error", "xformer.memory"):  # their lines are for the operator of a server
        logging.getLogger(name).addFilter(lambda record: record.levelno >= logging.ERROR)
    app = st.App(APP / "app.py", middleware=guards())
    loading.begin(guest_of=__main__)
    return app


def guards() -> list[Middleware]:
    """All guards, the outermost first."""
    every = (SecurityHeaders, HostGuard, ConnectionGuard, VisitorCookie, UploadGuard, MessageGuard, Attendance)
    return [Middleware(guard) for guard in every]
