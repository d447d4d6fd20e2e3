"""Limits by address (connections, rooms, students, queued runs, uploaded files) and the memory that all visitors share.

Limits are tied to the address, so that deleting the cookie does not reset them. The address is that of the connection, or the
forwarded one behind a proxy that runs on this machine or is listed in `FORWARDED_ALLOW_IPS` (read by uvicorn); the
X-Forwarded-For header of other clients is ignored. Addresses are held in memory only, for as long as they have a connection, a
run or an upload.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import ipaddress
import logging
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from pathlib import Path

import streamlit as st
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from pages.controls.streamlit_compat import uploaded_sizes
from pages.server.access import Guard, is_classroom_websocket
from xformer.errors import ClassroomError, RunStoreError
from xformer.training.run_record import RunRecord

THIS_MACHINE = "this machine"
MB = 1024**2
UPLOAD_PATH = "/_stcore/upload_file/"
FILES_EACH = 16
"""Maximum uploaded files held for one visitor; a screen needs only one at a time."""
EVERY_SECONDS, GRACE_SECONDS = 60.0, 30.0
"""Interval between memory checks while there are visitors; delay after the last one leaves, since a reload reconnects soon."""
log = logging.getLogger("xformer.memory")
_File = tuple[str, int]
"""The session that owns an uploaded file, and its size in bytes."""


def max_upload_bytes_each() -> int:
    """Return the maximum total size in bytes of one visitor's uploaded files: two files of the largest size."""
    return 2 * int(st.get_option("server.maxUploadSize")) * MB


def _number_in(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isascii() and text.isdigit() else default


def visitor_address() -> str:
    """Return the address of the visitor's connection, normalised by `network`."""
    return network(st.context.ip_address)


def network(address: str | None) -> str:
    """Normalise an address for counting: IPv6 to its first 64 bits (clients choose the others), loopback to `THIS_MACHINE`."""
    try:
        found = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError:
        return address or THIS_MACHINE
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is None:
            return THIS_MACHINE if found.is_loopback else str(ipaddress.ip_network((found, 64), strict=False))
        found = found.ipv4_mapped
    return THIS_MACHINE if found.is_loopback else str(found)


class AddressCounter:
    """The names of what each address holds, in groups, and how many it may hold: a number in an environment variable."""

    def __init__(self, variable: str, default: int) -> None:
        self._limit = variable, default
        self._held: defaultdict[tuple[str, str], set[str]] = defaultdict(set)  # by group and address
        self._lock = threading.Lock()

    @property
    def most(self) -> int:
        """The largest number of names of one address and group."""
        return _number_in(*self._limit)

    def add(self, address: str, name: str, group: str = "") -> None:
        """Count a name towards an address."""
        with self._lock:
            self._held[group, address].add(name)

    def held(self, address: str, group: str = "") -> Set[str]:
        """Return the names that an address holds."""
        return frozenset(self._held.get((group, address), ()))

    def keep(self, names: Set[str]) -> None:
        """Forget all names but these."""
        with self._lock:
            for key in list(self._held):
                self._held[key] &= names
                if not self._held[key]:
                    del self._held[key]

    def drop(self, group: str) -> None:
        """Forget all names of a group."""
        with self._lock:
            for key in [key for key in self._held if key[0] == group]:
                del self._held[key]


_runs = AddressCounter("XFORMER_MAX_WAITING_BY_ADDRESS", 32)
_rooms = AddressCounter("XFORMER_MAX_ROOMS_BY_ADDRESS", 16)
_students = AddressCounter("XFORMER_MAX_STUDENTS_BY_ADDRESS", 512)
"""The browsers that have joined from an address, grouped by room."""


def run_limit(address: str) -> Callable[[Sequence[RunRecord]], None]:
    """Return a check of all runs that raises `RunStoreError` if `address` has reached its limit of unfinished runs."""

    def check(entries: Sequence[RunRecord]) -> None:
        _runs.keep({entry.id for entry in entries if entry.state == "queued" or entry.is_active})
        if (n := len(_runs.held(address))) >= _runs.most:
            raise RunStoreError(
                f"{n} runs from your address are waiting or in training, and {_runs.most} are allowed; "
                "try again when some have finished."
            )

    return check


def count_run(address: str, run: str) -> None:
    """Record that a run was started from an address."""
    _runs.add(address, run)


def check_rooms(address: str, open_rooms: Set[str]) -> None:
    """Raise `ClassroomError` if `address` has reached its limit of rooms. `open_rooms` are the ids of all open ones."""
    _rooms.keep(open_rooms)
    if (n := len(_rooms.held(address))) >= _rooms.most:
        most = f"{_rooms.most} are allowed"
        raise ClassroomError(f"{n} rooms were opened from your address, and {most}; end one of them first.")


def count_room(address: str, room: str) -> None:
    """Record that a room was opened from an address."""
    _rooms.add(address, room)


def admit_student(address: str, room: str, browser: str) -> None:
    """Record that a browser joins a room. Raises `ClassroomError` if too many have joined it from this address."""
    joined, most = _students.held(address, room), _students.most
    if browser not in joined and len(joined) >= most:
        raise ClassroomError(f"{most} browsers at your address have joined this room, and no more are allowed.")
    _students.add(address, browser, room)


def readmit_students(room: str) -> None:
    """Forget who has joined a room, when it has been cleared or has ended."""
    _students.drop(room)


class ConnectionGuard(Guard):
    """Refuses a websocket from an address that has reached its limit of open ones.

    Those of classroom mode are counted apart and may be more, because a whole class may share one address.
    """

    kinds = ("websocket",)

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app)
        self.open: Counter[tuple[str, bool]] = Counter()

    async def guard(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = client_address(scope), is_classroom_websocket(scope)
        name, most = ("STUDENTS", 512) if key[1] else ("CONNECTIONS", 64)
        if self.open[key] >= _number_in(f"XFORMER_MAX_{name}_BY_ADDRESS", most):
            await send({"type": "websocket.close", "code": 1008, "reason": "Too many connections from your address"})
            return
        self.open[key] += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.open[key] -= 1
            self.open += Counter()  # drops addresses without connections


class UploadGuard(Guard):
    """Refuses an upload that would exceed a memory limit, before it is read.

    Streamlit holds uploaded files in memory until their visitor leaves. It accepts any number of them from each connection,
    and its own limit (server.maxUploadSize) applies to a single file.
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
        """Return why a file is refused, or "". One address gets at most half of the total, however many sessions it has."""
        session, length = file
        if length < 0:
            return "An upload must state its length (Content-Length)."
        files, most = self._files(), _number_in("XFORMER_MAX_UPLOADS", 512) * MB
        sessions = {name for name, _ in files}
        self.addresses = {name: kept for name, kept in self.addresses.items() if name in sessions} | {session: address}
        own = [size for name, size in files if name == session]
        from_address = [size for name, size in files if self.addresses.get(name) == address]
        for whose, held, allowed in (
            ("of one visitor", own, max_upload_bytes_each()),
            ("from your address", from_address, most // 2),
            ("of all visitors", [size for _, size in files], most),
        ):
            if sum(held) + length > allowed:
                return f"The uploads {whose} may take at most {allowed // MB} MB here; close some first, or try again later."
        return f"At most {FILES_EACH} files per visitor are kept; close some first." if len(own) >= FILES_EACH else ""

    def _files(self) -> list[_File]:
        """Return the files in memory and those being uploaded."""
        return [*self.arriving, *((name, size) for name, sizes in uploaded_sizes().items() for size in sizes)]


def client_address(scope: Scope) -> str:
    """Return the address of a request or a websocket, normalised by `network`."""
    client = scope.get("client")
    return network(client[0] if client else None)


class Attendance(Guard):
    """Counts the open connections; about a minute after the last one has ended, the shared cache is emptied.

    While there are visitors, it periodically evicts what exceeds the memory budget and logs a line:

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
            if not there and not self.visitors:  # otherwise visitors have left or arrived in the meantime
                self._care = None
                return


def _free_memory(visitors: int) -> None:
    from pages.compute.byte_cache import UNUSED_SECONDS, shared  # imports torch, which the server starts without

    shared.recount()
    shared.sweep(unused=UNUSED_SECONDS if visitors else -1.0)
    if not visitors:
        gc.collect()
    with suppress(OSError, AttributeError):
        # glibc keeps freed memory in the arena of the thread that allocated it, which can exceed all memory in use.
        ctypes.CDLL(None).malloc_trim(0)
    kept, resident = shared.total // MB, resident_bytes() // MB
    log.info("memory: %s", f"{visitors} visitors, {kept:,} MB kept, {resident:,} MB in the process")


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes; 0 if the system does not report it."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
