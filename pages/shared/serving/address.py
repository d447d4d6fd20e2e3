"""Where a visitor asks from: so that limits also count by address, and a cookie that is thrown away brings nothing.

The address is that of the connection. Behind a proxy it is the one that the proxy forwards, if the proxy is on this machine or
FORWARDED_ALLOW_IPS lists it (which uvicorn, the server under Streamlit, reads); anybody else's X-Forwarded-For is not believed.
Addresses are kept in memory only, and only while a run or a connection from there is under way.
"""

from __future__ import annotations

import ipaddress
import os
from collections import Counter
from collections.abc import Callable, Sequence

import streamlit as st
from starlette.types import ASGIApp, Receive, Scope, Send

from xformer.errors import RunStoreError
from xformer.training.entry import Entry

HERE = "this machine"
_runs: dict[str, str] = {}
"""From which address each run was asked for since the server was started."""


def most_waiting() -> int:
    """Runs from one address that may wait or be trained: half of all, for a whole class may sit behind one address."""
    return _whole("XFORMER_MAX_WAITING_BY_ADDRESS", 32)


def most_connections() -> int:
    """Return how many connections one address may have open: one for each tab of each visitor there."""
    return _whole("XFORMER_MAX_CONNECTIONS_BY_ADDRESS", 64)


def _whole(variable: str, usual: int) -> int:
    asked = os.environ.get(variable, "")
    return int(asked) if asked.isascii() and asked.isdigit() else usual


def of_visitor() -> str:
    """The address that the visitor's connection comes from."""
    return network(st.context.ip_address)


def network(address: str | None) -> str:
    """An address as it is counted: of IPv6 the first half, the rest of which everyone chooses for themselves."""
    try:
        found = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError:
        return address or HERE
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is None:
            return HERE if found.is_loopback else str(ipaddress.ip_network((found, 64), strict=False))
        found = found.ipv4_mapped
    return HERE if found.is_loopback else str(found)


def check(place: str) -> Callable[[Sequence[Entry]], None]:
    """What raises `RunStoreError` when as many runs from there are under way, among all entries, as are allowed."""

    def check(entries: Sequence[Entry]) -> None:
        under_way = {entry.id for entry in entries if entry.state == "queued" or entry.is_active}
        for run in [run for run in list(_runs) if run not in under_way]:
            _runs.pop(run, None)
        n, most = sum(_runs.get(run) == place for run in under_way), most_waiting()
        if n >= most:
            raise RunStoreError(
                f"{n} runs from your address are waiting or in training, and {most} are allowed; "
                "try again when some are finished."
            )

    return check


def note(place: str, run: str) -> None:
    """Remember that a run was asked for from there."""
    _runs[run] = place


class ConnectionGuard:
    """Refuses a websocket from an address that has as many open as are allowed."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.open: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await self.app(scope, receive, send)
            return
        client = scope.get("client")
        place = network(client[0] if client else None)
        if self.open[place] >= most_connections():
            await send({"type": "websocket.close", "code": 1008, "reason": "Too many connections from your address"})
            return
        self.open[place] += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.open[place] -= 1
            self.open += Counter()  # drops addresses without connections
