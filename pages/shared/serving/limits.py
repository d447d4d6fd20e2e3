"""Limits by address (connections, queued training runs, uploaded files), and the memory that is held for all visitors.

A visitor who deletes a cookie gains nothing.

The address is that of the connection. Behind a proxy it is the forwarded one, if the proxy runs on this machine or
`FORWARDED_ALLOW_IPS` lists it (uvicorn reads that variable); the X-Forwarded-For header of other clients is ignored. Addresses
are held in memory only, while a connection, a run or an upload from there exists.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import ipaddress
import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import streamlit as st
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from pages.shared.serving.access import Guard, is_of_a_room
from pages.shared.streamlit_compat import uploaded_sizes
from xformer.errors import RunStoreError
from xformer.training.entry import Entry

HERE = "this machine"
MB = 1024**2
UPLOAD_PATH = "/_stcore/upload_file/"
FILES_EACH = 16
"""Uploaded files that are held for one visitor; the screens ask for one at a time."""
EVERY_SECONDS, GRACE_SECONDS = 60.0, 30.0
"""Between two looks at the memory while there are visitors, and after the last has left: a reloading browser is back soon."""
log = logging.getLogger("xformer.memory")
_File = tuple[str, int]
"""The session that owns an uploaded file, and its size in bytes."""
_runs: dict[str, str] = {}
"""The address from which each run was started, since the server was started."""


def max_upload_bytes_each() -> int:
    """The size in bytes of one visitor's uploaded files: two files of the largest size."""
    return 2 * int(st.get_option("server.maxUploadSize")) * MB


def _number_in(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isascii() and text.isdigit() else default


def visitor_address() -> str:
    """The address of the visitor's connection, as it is counted."""
    return network(st.context.ip_address)


def network(address: str | None) -> str:
    """An address as it is counted; of IPv6 the first 64 bits, since a client chooses the other 64."""
    try:
        found = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError:
        return address or HERE
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is None:
            return HERE if found.is_loopback else str(ipaddress.ip_network((found, 64), strict=False))
        found = found.ipv4_mapped
    return HERE if found.is_loopback else str(found)


def run_limit(address: str) -> Callable[[Sequence[Entry]], None]:
    """A check of all runs that raises `RunStoreError` where `address` already has as many unfinished ones as allowed."""

    def check(entries: Sequence[Entry]) -> None:
        unfinished = {entry.id for entry in entries if entry.state == "queued" or entry.is_active}
        for run in [run for run in list(_runs) if run not in unfinished]:
            _runs.pop(run, None)
        n, most = sum(_runs.get(run) == address for run in unfinished), _number_in("XFORMER_MAX_WAITING_BY_ADDRESS", 32)
        if n >= most:
            raise RunStoreError(
                f"{n} runs from your address are waiting or in training, and {most} are allowed; "
                "try again when some are finished."
            )

    return check


def count_run(address: str, run: str) -> None:
    """Record that a run was started from an address."""
    _runs[run] = address


class ConnectionGuard(Guard):
    """Refuses a websocket from an address that has as many open as allowed."""

    kinds = ("websocket",)

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app)
        self.open: Counter[str] = Counter()

    async def guard(self, scope: Scope, receive: Receive, send: Send) -> None:
        if is_of_a_room(scope):  # a class has one address; a room has a limit of its own
            await self.app(scope, receive, send)
            return
        address = client_address(scope)
        if self.open[address] >= _number_in("XFORMER_MAX_CONNECTIONS_BY_ADDRESS", 64):
            await send({"type": "websocket.close", "code": 1008, "reason": "Too many connections from your address"})
            return
        self.open[address] += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.open[address] -= 1
            self.open += Counter()  # drops addresses without connections


class UploadGuard(Guard):
    """Refuses an upload that would take more memory than allowed, before it is read.

    Streamlit holds an uploaded file in memory until its visitor leaves. It accepts any number of them from every connection,
    and its own limit (server.maxUploadSize) is for a single file.
    """

    kinds = ("http",)

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app)
        self.arriving: list[_File] = []
        """The uploads that are being read."""
        self.addresses: dict[str, str] = {}
        """The address of each session that has files."""

    async def guard(self, scope: Scope, receive: Receive, send: Send) -> None:
        _, is_upload, name = scope.get("path", "").partition(UPLOAD_PATH)
        if scope["method"] != "PUT" or not is_upload:
            await self.app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "")
        file = (name.partition("/")[0], int(length) if length.isdecimal() else -1)
        if refusal := self._refusal(file, client_address(scope)):
            await PlainTextResponse(refusal, status_code=413)(scope, receive, send)
            return
        self.arriving.append(file)
        try:
            await self.app(scope, receive, send)
        finally:
            self.arriving.remove(file)

    def _refusal(self, file: _File, address: str) -> str:
        """The reason to refuse a file, or "". One address gets at most half of the total, however many sessions it has."""
        session, length = file
        if length < 0:
            return "An upload must say how long it is (Content-Length)."
        files, most = self._files(), _number_in("XFORMER_MAX_UPLOADS", 512) * MB
        sessions = {name for name, _ in files}
        self.addresses = {name: one for name, one in self.addresses.items() if name in sessions} | {session: address}
        own = [size for name, size in files if name == session]
        near = [size for name, size in files if self.addresses.get(name) == address]
        for whose, held, allowed in (
            ("of one visitor", own, max_upload_bytes_each()),
            ("from your address", near, most // 2),
            ("of all visitors", [size for _, size in files], most),
        ):
            if sum(held) + length > allowed:
                return (
                    f"The uploads {whose} may take {allowed // MB} MB here; close some first, or try again in a while."
                )
        return (
            f"At most {FILES_EACH} files of one visitor are kept; close some first." if len(own) >= FILES_EACH else ""
        )

    def _files(self) -> list[_File]:
        """The files in memory, and those that arrive."""
        return [*self.arriving, *((name, size) for name, sizes in uploaded_sizes().items() for size in sizes)]


def client_address(scope: Scope) -> str:
    """The address of a request or a websocket, as it is counted."""
    client = scope.get("client")
    return network(client[0] if client else None)


class Attendance(Guard):
    """Counts the open connections; half a minute after the last one has ended, what the visitors shared is given back.

    Once in a while it frees what exceeds the budget, and logs a line:

    14:05:12 memory: 3 visitors, 312 MB kept, 1,180 MB in the process
    """

    kinds = ("websocket",)

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app)
        self.visitors = 0
        self._care: asyncio.Task[None] | None = None
        if not log.handlers:
            log.addHandler(handler := logging.StreamHandler())
            handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
            log.setLevel(logging.INFO)

    async def guard(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.visitors += 1
        self._care = self._care or asyncio.create_task(self._look_after_memory())
        try:
            await self.app(scope, receive, send)
        finally:
            self.visitors -= 1

    async def _look_after_memory(self) -> None:
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            if not self.visitors:
                await asyncio.sleep(GRACE_SECONDS)
            await asyncio.to_thread(_free_memory, there := self.visitors)
            if not there and not self.visitors:  # else they have left, or come, in the meantime
                self._care = None
                return


def _free_memory(visitors: int) -> None:
    from pages.shared.byte_cache import UNUSED_SECONDS, shared  # imports torch, which the server answers without

    shared.recount()
    shared.sweep(unused=UNUSED_SECONDS if visitors else -1.0)
    if not visitors:
        gc.collect()
    with suppress(OSError, AttributeError):
        # glibc keeps what is freed in the arena of each thread that took it, which can be more than all that is in use.
        ctypes.CDLL(None).malloc_trim(0)
    kept, resident = shared.total // MB, resident_bytes() // MB
    log.info("memory: %s", f"{visitors} visitors, {kept:,} MB kept, {resident:,} MB in the process")


def resident_bytes() -> int:
    """The memory that this process takes; 0 where the system does not tell."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
