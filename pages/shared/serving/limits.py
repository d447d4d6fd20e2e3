"""Limits by address: connections, queued training runs and uploaded files. A visitor who deletes a cookie gains nothing.

The address is that of the connection. Behind a proxy it is the forwarded one, if the proxy runs on this machine or
`FORWARDED_ALLOW_IPS` lists it (uvicorn reads that variable); the X-Forwarded-For header of other clients is ignored. Addresses
are held in memory only, while a connection, a run or an upload from there exists.
"""

from __future__ import annotations

import ipaddress
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import streamlit as st
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from pages.shared.streamlit_compat import uploaded_sizes
from xformer.errors import RunStoreError
from xformer.training.entry import Entry

HERE = "this machine"
MB = 1024**2
UPLOAD_PATH = "/_stcore/upload_file/"
FILES_EACH = 16
"""Uploaded files that are held for one visitor; the screens ask for one at a time."""
_SizesBySession = dict[str, list[int]]
_runs: dict[str, str] = {}
"""The address from which each run was started, since the server was started."""


def _max_waiting_runs() -> int:
    """The number of runs from one address that may wait or be trained: half of all, since a class may share an address."""
    return _number_in("XFORMER_MAX_WAITING_BY_ADDRESS", 32)


def _max_connections() -> int:
    """The number of connections that one address may have open; each tab of each visitor takes one."""
    return _number_in("XFORMER_MAX_CONNECTIONS_BY_ADDRESS", 64)


def _max_upload_bytes() -> int:
    """The size in bytes of all uploaded files together; `XFORMER_MAX_UPLOADS` gives it in MB."""
    return _number_in("XFORMER_MAX_UPLOADS", 512) * MB


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
        n, most = sum(_runs.get(run) == address for run in unfinished), _max_waiting_runs()
        if n >= most:
            raise RunStoreError(
                f"{n} runs from your address are waiting or in training, and {most} are allowed; "
                "try again when some are finished."
            )

    return check


def count_run(address: str, run: str) -> None:
    """Record that a run was started from an address."""
    _runs[run] = address


class ConnectionGuard:
    """Refuses a websocket from an address that has as many open as allowed."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.open: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await self.app(scope, receive, send)
            return
        address = _client(scope)
        if self.open[address] >= _max_connections():
            await send({"type": "websocket.close", "code": 1008, "reason": "Too many connections from your address"})
            return
        self.open[address] += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.open[address] -= 1
            self.open += Counter()  # drops addresses without connections


def _upload_refusal(
    session: str, length: int | None, sizes: _SizesBySession, addresses: Mapping[str, str]
) -> str | None:
    """The reason to refuse an upload, or None.

    Args:
        session: The session that uploads.
        length: The size of the file in bytes, as the request states it.
        sizes: The sizes in bytes of the files in memory, by session.
        addresses: The address of each session. One address gets at most half of the total, however many sessions it has.
    """
    if length is None:
        return "An upload must say how long it is (Content-Length)."
    own = sizes.get(session, [])
    if len(own) >= FILES_EACH or sum(own) + length > max_upload_bytes_each():
        return (
            f"At most {FILES_EACH} files and {max_upload_bytes_each() // MB} MB of one visitor are kept at a time; "
            "close some first."
        )
    there = [name for name in sizes if name in addresses and addresses[name] == addresses.get(session)]
    if length + sum(sum(sizes[name]) for name in there) > _max_upload_bytes() // 2:
        return (
            f"The uploads from your address take {_max_upload_bytes() // 2 // MB} MB, which is the limit here; "
            "close some first."
        )
    if sum(map(sum, sizes.values())) + length > _max_upload_bytes():
        return (
            f"The uploads of all visitors take {_max_upload_bytes() // MB} MB, which is the limit here. "
            "Try again in a while."
        )
    return None


class UploadGuard:
    """Refuses an upload that would take more memory than allowed, before it is read.

    Streamlit holds an uploaded file in memory until its visitor leaves. It accepts any number of them from every connection,
    and its own limit (server.maxUploadSize) is for a single file.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.arriving: _SizesBySession = {}
        """Bytes of the uploads that are being read, by session."""
        self.addresses: dict[str, str] = {}
        """The address of each session that has files."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or scope["method"] != "PUT" or UPLOAD_PATH not in path:
            await self.app(scope, receive, send)
            return
        session = path.partition(UPLOAD_PATH)[2].partition("/")[0]
        stated = Headers(scope=scope).get("content-length", "")
        length = int(stated) if stated.isdecimal() else None
        sizes = self._sizes()
        self.addresses = {name: address for name, address in self.addresses.items() if name in sizes}
        self.addresses[session] = _client(scope)
        refusal = _upload_refusal(session, length, sizes, self.addresses)
        if refusal is not None or length is None:
            await PlainTextResponse(refusal or "", status_code=413)(scope, receive, send)
            return
        self.arriving.setdefault(session, []).append(length)
        try:
            await self.app(scope, receive, send)
        finally:
            self.arriving[session].remove(length)
            if not self.arriving[session]:
                del self.arriving[session]

    def _sizes(self) -> _SizesBySession:
        sizes = dict(uploaded_sizes())
        for name, arriving in self.arriving.items():
            sizes[name] = sizes.get(name, []) + arriving
        return sizes


def _client(scope: Scope) -> str:
    client = scope.get("client")
    return network(client[0] if client else None)
