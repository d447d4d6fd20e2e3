"""Who may reach the app: the host names it answers to, the sites that may frame it, and the cookie that identifies a browser.

`XFORMER_HOSTS` and `XFORMER_FRAMES` configure the first two; docs/serving.md describes both.
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
import socket
from collections.abc import Iterable, Mapping
from functools import cache
from urllib.parse import parse_qs, urlsplit

import streamlit as st
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
"""The headers that a reverse proxy adds to a request that it passes on."""
COOKIE = "xformer_visitor"
_YEAR = 365 * 24 * 3600
_CONTENT_POLICY = (
    "default-src 'self'",
    # Streamlit loads components as inline scripts from blobs; Vega and Plotly compile expressions.
    "script-src 'self' 'unsafe-inline' 'unsafe-eval' 'wasm-unsafe-eval' blob:",
    "style-src 'self' 'unsafe-inline'",
    "img-src 'self' data: blob:",
    "font-src 'self' data:",
    "media-src 'self' data: blob:",
    "connect-src 'self' ws: wss: data: blob:",
    "worker-src 'self' blob:",
    "frame-src 'self' blob: data:",
    "object-src 'none'",
    "base-uri 'self'",
    "form-action 'self'",
)
_ORIGIN = re.compile(r"https?://[a-z0-9.*:\[\]-]+|\*", re.ASCII | re.IGNORECASE)


def is_local_only() -> bool:
    """Whether the server listens on the loopback interface only."""
    return st.get_option("server.address") in _LOOPBACK


def is_forwarded(headers: Iterable[str]) -> bool:
    """Whether a request came through a proxy, so that a loopback address no longer identifies the sender."""
    return not {name.lower() for name in headers}.isdisjoint(_FORWARDED)


def _name_in(host: str | None) -> str | None:
    """The name or address in a Host header, without its port; None where the header is missing or malformed."""
    if not host or re.search(r"[\s@/?#\\]", host):
        return None
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port  # raises where it is no number
        return (parts.hostname or "").rstrip(".") or None
    except ValueError:
        return None


def is_own(host: str | None) -> bool:
    """Whether the app answers requests with this Host header.

    It answers to a name of this machine, to an IP address where the server is open to others, and to the names that
    `XFORMER_HOSTS` lists: `XFORMER_HOSTS=xformer.school.example,*.lab.example`; `*` allows every name. Other names are refused
    because of DNS rebinding: the site evil.example can let its own name resolve to 127.0.0.1 and then read this app as a part
    of itself, but the browser still sends `Host: evil.example`. An IP address cannot be redirected in this way.
    """
    name = _name_in(host)
    if name is None:
        return False
    if name in _LOOPBACK or any(_fits(name, pattern) for pattern in _configured()):
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
    """Refuses requests and websockets whose Host header names another server."""

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
            shown = _name_in(host) or "(none)"
            sentence = f"This server does not answer to the name {shown[:200]}. XFORMER_HOSTS can add it.\n"
            await PlainTextResponse(sentence, status_code=421)(scope, receive, send)


def framers(query: bytes) -> str | None:
    """The sites that may frame the page with this query string, as a `frame-ancestors` directive names them; None for any.

    Any page may frame a picture for slides (`?embed=true`). This server itself and the sites that `XFORMER_FRAMES` lists may
    frame whole pages: `XFORMER_FRAMES=https://slides.school.example`. `frame-ancestors *` would refuse slides that are opened
    as a file: `*` stands for sites of the network (https://www.w3.org/TR/CSP3/#match-url-to-source-expression).
    """
    if parse_qs(query.decode("latin-1")).get("embed") == ["true"]:
        return None
    listed = [
        word for word in os.environ.get("XFORMER_FRAMES", "").replace(",", " ").split() if _ORIGIN.fullmatch(word)
    ]
    return " ".join(["'self'", *listed])


class SecurityHeaders:
    """Adds a content policy to every answer: no content from other sites, no guessed types, frames as `framers` allows."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                sites = framers(scope.get("query_string", b""))
                policy = _CONTENT_POLICY if sites is None else (*_CONTENT_POLICY, f"frame-ancestors {sites}")
                headers["Content-Security-Policy"] = "; ".join(policy)
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Referrer-Policy"] = "same-origin"
                headers["Cross-Origin-Opener-Policy"] = "same-origin"
                headers["Permissions-Policy"] = "camera=(), geolocation=(), microphone=()"
            await send(message)

        await self.app(scope, receive, with_headers)


def visitor_id() -> str:
    """The visitor's cookie, 32 hexadecimal digits; empty in a frame of another site and after the connection has closed.

    Permissions depend on it. The cookie is `SameSite=Lax`: the browser sends it with the websocket of a page that stands alone
    or in a frame of the same site, and not from a frame of another site. The `Origin` header does not show the difference; in
    a frame of another site it is the app's own.
    """
    return visitor_id_in(st.context.cookies)


def visitor_id_in(cookies: Mapping[str, str]) -> str:
    """The visitor's id in some cookies; empty where there is none."""
    found = cookies.get(COOKIE)
    return found if isinstance(found, str) and re.fullmatch(r"[0-9a-f]{32}", found) else ""


class VisitorCookie:
    """Sets the visitor's cookie with each page, except for a picture that any site may frame."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = Headers(scope=scope) if scope["type"] == "http" else Headers()
        is_page = scope.get("method") == "GET" and "text/html" in sent.get("accept", "")
        if not is_page or framers(scope.get("query_string", b"")) is None:
            await self.app(scope, receive, send)
            return
        known = visitor_id_in(cookie_parser(sent.get("cookie", ""))) or secrets.token_hex(16)

        async def with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                cookie = f"{COOKIE}={known}; Path=/; Max-Age={_YEAR}; SameSite=Lax; HttpOnly"
                MutableHeaders(scope=message).append("set-cookie", cookie)
            await send(message)

        await self.app(scope, receive, with_cookie)
