"""Which names this server answers to: its own, and no name that a stranger's web page has pointed at it (DNS rebinding).

A page of evil.example can have its name resolve to 127.0.0.1; the browser then takes this app for a part of that page, but it
still sends `Host: evil.example`. So a request is answered where its Host is

- a name of this machine: localhost, or the host name where the server is open to others,
- an address instead of a name (where the server is open to others): nobody can point an address elsewhere,
- a name that XFORMER_HOSTS lists: `XFORMER_HOSTS=xformer.school.example,*.lab.example`; `*` answers to every name.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Iterable
from functools import cache
from urllib.parse import urlsplit

import streamlit as st
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK = ("localhost", "127.0.0.1", "::1")
FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
"""The headers by which a reverse proxy tells that it hands on somebody else's request."""


def is_local_only() -> bool:
    """Whether the server listens to this machine alone."""
    return st.get_option("server.address") in LOOPBACK


def is_forwarded(headers: Iterable[str]) -> bool:
    """Whether a proxy has handed a request on, so that “this machine alone” no longer says who is asking."""
    return not {name.lower() for name in headers}.isdisjoint(FORWARDED)


def name_in(host: str | None) -> str | None:
    """The name or address in a Host header, without its port; None where there is none that can be read."""
    if not host or re.search(r"[\s@/?#\\]", host):
        return None
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port  # raises where it is no number
        return (parts.hostname or "").rstrip(".") or None
    except ValueError:
        return None


def is_own(host: str | None) -> bool:
    """Whether a request to that Host is for this server."""
    name = name_in(host)
    if name is None:
        return False
    if name in LOOPBACK or any(_fits(name, pattern) for pattern in _configured()):
        return True
    return not is_local_only() and (_is_address(name) or name in _machine_names())


def _configured() -> list[str]:
    return [word.strip().lower().rstrip(".") for word in os.environ.get("XFORMER_HOSTS", "").split(",") if word.strip()]


def _fits(name: str, pattern: str) -> bool:
    return pattern in ("*", name) or (pattern.startswith("*.") and name.endswith(pattern[1:]))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


@cache
def _machine_names() -> frozenset[str]:
    name = socket.gethostname().lower()
    return frozenset({name, f"{name}.local", socket.getfqdn().lower()}) - {""}


class HostGuard:
    """Refuses requests and connections that were sent to another name than this server's."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        host = Headers(scope=scope).get("host")
        if is_own(host):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "Host not allowed"})
        else:
            shown = name_in(host) or "(none)"
            sentence = (
                f"This server does not answer to the name {shown[:200]}. Whoever runs it can add it to XFORMER_HOSTS.\n"
            )
            await PlainTextResponse(sentence, status_code=421)(scope, receive, send)
