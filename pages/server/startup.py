"""The server: the guards between the network and the app, and the loading of the libraries that every screen needs.

Each guard is an ASGI middleware (https://asgi.readthedocs.io) that `app.py` puts in front of Streamlit. PyTorch, pandas, the
chart libraries and the shared modules take several seconds to load. They load in a thread that starts with the server, so that
the server responds at once; visitors who arrive before it has finished see a message.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from types import ModuleType

import streamlit as st
from starlette.middleware import Middleware
from starlette.routing import BaseRoute

import __main__
from pages.classroom import routes as classroom
from pages.controls.streamlit_compat import freeze_objects, ignore_pages_folder, restore_main_module
from pages.learn import routes as lessons
from pages.server.access import BasePathGuard, HostGuard, MessageGuard, SecretGuard, SecurityHeaders, VisitorCookie
from pages.server.limits import Attendance, ConnectionGuard, UploadGuard
from xformer.errors import XformerError
from xformer.installed import APP

RECONCILE_SECONDS = 1.0
EMPTY_BIN_SECONDS = 60.0
_loaded = threading.Event()
_lock = threading.Lock()
_guest_of: ModuleType | None = None


def routes() -> list[BaseRoute]:
    """The routes of the app besides its screens: those of the rooms and of the lessons."""
    return [*classroom.routes(), *lessons.routes()]


def guest_app(secret: str) -> st.App:
    """The app for the process of a notebook or script, which keeps its settings; `xformer.show` serves it.

    Only browsers that have opened a link with the secret are admitted.
    """
    for name in ("uvicorn.access", "uvicorn.error", "xformer.memory"):  # they log for the operator of a server
        logging.getLogger(name).addFilter(lambda record: record.levelno >= logging.ERROR)
    guards = [Middleware(SecretGuard, secret=secret), *prepare(guest_of=__main__)]
    return st.App(APP / "app.py", routes=routes(), middleware=guards)


def prepare(guest_of: ModuleType | None = None) -> list[Middleware]:
    """Start loading, and return the guards of the app, the outermost first.

    Args:
        guest_of: The main module of the host process when the app runs as a guest in a notebook or script, whose settings are
            left alone. None for a server process.
    """
    global _guest_of
    _guest_of = guest_of
    ignore_pages_folder()
    begin_loading()
    outer = (SecurityHeaders, HostGuard, BasePathGuard, ConnectionGuard)
    return [Middleware(guard) for guard in (*outer, VisitorCookie, UploadGuard, MessageGuard, Attendance)]


def begin_loading() -> None:
    """Start loading in a thread."""
    threading.Thread(target=load, name="loading", daemon=True).start()


def wait_until_loaded() -> None:
    """Show a message until everything is loaded. Raises `ImportError` if a library is missing."""
    if _guest_of is not None:
        restore_main_module(_guest_of)
    place = st.empty()  # always present: if an element vanished, the browser would rebuild everything below it
    if not _loaded.is_set():
        with place, st.spinner("This server has just started and is loading PyTorch."):
            load()


def load() -> None:
    """Import everything once; a second caller waits for the first."""
    with _lock:
        if not _loaded.is_set():
            _import()
            if _guest_of is None:
                import torch

                # The models are small, so a second thread costs more than it saves, and visitors share the cores.
                torch.set_num_threads(1)
                freeze_objects()
            _loaded.set()


def _import() -> None:
    from pages.classroom import stage  # noqa: F401
    from pages.compute import cached_runs, picture  # noqa: F401
    from pages.controls import embed  # noqa: F401
    from pages.state import playlist, screens, session  # noqa: F401

    start_reconciler()


def start_reconciler() -> None:
    """Start the thread that manages the queue, the memory and the rooms while the server runs. Call it once."""
    threading.Thread(target=_reconcile_for_ever, name="reconciler", daemon=True).start()


def _reconcile_for_ever() -> None:
    from pages.compute import visible_runs
    from pages.compute.byte_cache import shared

    emptied = time.monotonic()
    while True:
        shared.sweep()  # also frees the memory of visitors who have left
        if is_time := time.monotonic() - emptied > EMPTY_BIN_SECONDS:
            emptied = time.monotonic()
            with suppress(XformerError):  # rooms may be off
                classroom.rooms().delete_expired()
        with suppress(XformerError, OSError):  # such as a full disk: it may be temporary, and the screens report it
            visible_runs.reconcile(empties_bin=is_time)
        time.sleep(RECONCILE_SECONDS)
