"""The memory that the server holds for its visitors: logged, and freed when all have left.

14:05:12 memory: 3 visitors, 312 MB kept, 40 MB in use besides, 1,180 MB in the process
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import time
from contextlib import suppress
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

GRACE_SECONDS = 30.0
"""After the last visitor has left: a browser that reloads is back within seconds."""
EVERY_SECONDS, TOLD_EVERY_SECONDS = 15.0, 60.0
"""Between two counts while there are visitors, and between two lines in the log."""
MB = 1024**2
log = logging.getLogger("xformer.memory")


class Attendance:
    """Counts the open connections; half a minute after the last one has ended, what the visitors shared is given back."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.visitors = 0
        self._logged, self._told = "", -TOLD_EVERY_SECONDS
        self._next: asyncio.TimerHandle | None = None
        if not log.handlers:
            log.addHandler(handler := logging.StreamHandler())
            handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
            log.setLevel(logging.INFO)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await self.app(scope, receive, send)
            return
        self.visitors += 1
        self._in(EVERY_SECONDS, replace=self.visitors == 1)
        try:
            await self.app(scope, receive, send)
        finally:
            self.visitors -= 1
            self._in(GRACE_SECONDS, replace=not self.visitors)

    def _in(self, seconds: float, *, replace: bool) -> None:
        """Look after the memory in so many seconds, or when that is planned already."""
        if self._next is not None and replace:
            self._next.cancel()
        elif self._next is not None:
            return
        loop = asyncio.get_running_loop()
        self._next = loop.call_later(seconds, lambda: loop.run_in_executor(None, self._look, loop))

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        from pages.shared.byte_cache import shared  # imports torch, which the server answers without

        self._next = None
        if self.visitors:
            shared.recount()
            shared.sweep()
            loop.call_soon_threadsafe(lambda: self._in(EVERY_SECONDS, replace=False))
        else:
            _give_back()
        _trim()
        self._tell()

    def _tell(self) -> None:
        from pages.shared.byte_cache import shared

        kept, out = shared.total // MB, shared.checked_out // MB
        line = f"{self.visitors} visitors, {kept:,} MB kept, {out:,} MB in use besides"
        now = time.monotonic()
        if line != self._logged and (not self.visitors or now - self._told >= TOLD_EVERY_SECONDS):
            self._logged, self._told = line, now
            log.info("memory: %s, %s MB in the process", line, f"{resident_bytes() // MB:,}")


def _give_back() -> None:
    """Let go all that visitors shared."""
    from pages.shared.byte_cache import shared

    shared.sweep(unused=-1.0)
    gc.collect()


def _trim() -> None:
    """Return freed memory to the operating system.

    glibc keeps what is freed in the arena of each thread that took it: with many visitors that is more than all that is in use.
    `malloc_trim` returns it; without glibc there is no such function, and nothing is done.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def resident_bytes() -> int:
    """The memory that this process takes; 0 where the system does not tell."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
