"""The app with a watch on its event loop, which logs each callback that takes longer than `SLOW_SECONDS`.

python -m tests.attack.watched --server.port 8501
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time

from app import serve

SLOW_SECONDS = 0.02


def _watch() -> None:
    """Switch on the debug mode of the event loop, once the first websocket of a room tells which one it is."""
    from pages.classroom.routes import hub

    while hub.loop is None:
        time.sleep(0.05)
    hub.loop.call_soon_threadsafe(_log_slow_callbacks, hub.loop)


def _log_slow_callbacks(loop: asyncio.AbstractEventLoop) -> None:
    loop.slow_callback_duration = SLOW_SECONDS
    loop.set_debug(True)
    logging.getLogger("asyncio").addHandler(logging.StreamHandler())


if __name__ == "__main__":
    threading.Thread(target=_watch, daemon=True).start()
    serve()
