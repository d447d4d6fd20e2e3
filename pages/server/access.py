"""Access control: allowed host names and origins, sites that may frame the app, the visitor's cookie, allowed messages.

`XFORMER_HOSTS` and `XFORMER_FRAMES` configure the first two; docs/serving.md describes both.
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import ClassVar
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import streamlit as st
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pages.controls.streamlit_compat import message_kind

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
"""The headers that a reverse proxy adds to a request that it passes on."""
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
COOKIE = "xformer_visitor"
SECRET = "secret"
"""The parameter of a link with the secret of `SecretGuard`."""
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
ALLOWED = (
    "rerun_script",
    "stop_script",
    "app_heartbeat",
    "file_urls_request",
    "backend_operation_request.deferred_file",
    "backend_operation_request.dataframe_chunk",
)
"""Allowed kinds of messages: run a screen, stop it, heartbeat, upload a file, download a file, scroll in a table.

Streamlit's protocol has others for developers. One of them lets any visitor clear the caches of all visitors:
https://github.com/streamlit/streamlit/blob/develop/proto/streamlit/proto/BackMsg.proto.
"""
MAX_MESSAGE_BYTES = 4_000_000
"""Longest message from a browser; a pasted text is the largest that a screen sends."""
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
"""A lone surrogate as JavaScript encodes it, which is not valid UTF-8. A paste or a script can leave one in a text."""
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()
"""Three bytes long, as a surrogate is, so that the lengths in the message stay correct."""
_REFUSED = {"type": "websocket.close", "code": 1008}
"""Closes a connection with the code for a policy violation: https://www.rfc-editor.org/rfc/rfc6455#section-7.4.1."""
_ORIGIN = re.compile(r"https?://[a-z0-9.*:\[\]-]+|\*", re.ASCII | re.IGNORECASE)


def is_local_only() -> bool:
    """Whether the server listens on the loopback interface only."""
    return st.get_option("server.address") in LOOPBACK


def base_path() -> str:
    """Return the path under which the app is served, such as "/xformer"; usually empty."""
    path = str(st.get_option("server.baseUrlPath") or "").strip("/")
    return f"/{path}" if path else ""


def is_forwarded(headers: Iterable[str]) -> bool:
    """Whether a request came through a proxy, so that a loopback address no longer identifies the sender."""
    return not {name.lower() for name in headers}.isdisjoint(_FORWARDED)


def _name_in(host: str | None) -> str | None:
    """Return the name or address in a Host header, without its port; None if the header is missing or malformed."""
    if not host or re.search(r"[\s@/?#\\]", host):
        return None
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port  # raises ValueError if it is not a number
        return (parts.hostname or "").rstrip(".") or None
    except ValueError:
        return None


def is_own(host: str | None) -> bool:
    """Whether the app answers requests with this Host header.

    Allowed are the names of this machine, IP addresses if the server listens on more than the loopback interface, and the
    names in `XFORMER_HOSTS` (`XFORMER_HOSTS=xformer.school.example,*.lab.example`; `*` allows every name). Other names are
    refused to prevent DNS rebinding: the site evil.example can make its own name resolve to 127.0.0.1 and then read this app
    under its own origin, but the browser still sends `Host: evil.example`. An IP address cannot be redirected in this way.
    """
    name = _name_in(host)
    if name is None:
        return False
    if name in LOOPBACK or _is_listed(name):
        return True
    return not is_local_only() and (_is_address(name) or name in _machine_names())


def _is_listed(name: str, *, any_name: bool = True) -> bool:
    listed = [word.strip().lower().rstrip(".") for word in os.environ.get("XFORMER_HOSTS", "").split(",")]
    if any_name and "*" in listed:
        return True
    return any(word == name or (word.startswith("*.") and name.endswith(word[1:])) for word in listed)


def _is_address(name: str) -> bool:
    with suppress(ValueError):
        return bool(ipaddress.ip_address(name))
    return False


def _machine_names() -> set[str]:
    """The names of this machine that need no name server; `socket.getfqdn` would ask one on the event loop."""
    name = socket.gethostname().lower()
    return {name, name.partition(".")[0], f"{name}.local"} - {""}


def is_own_origin(origin: str | None, host: str | None) -> bool:
    """Whether a page with this Origin header may open a websocket to the Host `host`.

    Allowed are the host itself, a name that `XFORMER_HOSTS` lists (a proxy may change the Host header), and clients that are
    no browser and send no origin. A page without an origin ("null"), as a file or a sandboxed frame has, is refused.
    """
    if origin is None:
        return True
    place = origin.partition("://")[2].lower()
    name = _name_in(place)
    return name is not None and (place == (host or "").lower() or _is_listed(name, any_name=False))


class Guard:
    """An ASGI middleware that handles connections of certain kinds and passes all others on."""

    kinds: ClassVar[tuple[str, ...]] = ("http", "websocket")

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self.guard if scope["type"] in self.kinds else self.app)(scope, receive, send)

    async def guard(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a connection of one of `kinds`; `self.app` is the next application in the chain."""
        raise NotImplementedError


def is_classroom_websocket(scope: Scope) -> bool:
    """Whether a websocket belongs to classroom mode, which has its own messages and limits."""
    return scope.get("path", "").startswith(f"{base_path()}/room/")


class HostGuard(Guard):
    """Refuses requests whose Host header names another server, and websockets that pages of other origins open.

    The origin of an accepted websocket is not passed on: Streamlit compares it with the external address of this machine,
    which it asks from a server on the internet, on the event loop.
    """

    async def guard(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        host, is_websocket = headers.get("host"), scope["type"] == "websocket"
        if is_own(host) and (not is_websocket or is_own_origin(headers.get("origin"), host)):
            if is_websocket:
                scope = {**scope, "headers": [one for one in scope["headers"] if one[0] != b"origin"]}
            await self.app(scope, receive, send)
        elif is_websocket:
            await send({**_REFUSED, "reason": "Host or origin not allowed"})
        else:
            shown = _name_in(host) or "(none)"
            text = f"This server does not answer to the name {shown[:200]}. Its operator can add it to XFORMER_HOSTS.\n"
            await PlainTextResponse(text, status_code=421)(scope, receive, send)


class BasePathGuard(Guard):
    """Declines the search for the base path of the app below a screen, without an error in the browser's console.

    On a deep link such as /attention, Streamlit's page first requests /attention/_stcore/health and
    /attention/_stcore/host-config, and after a refusal those of the parent path. Browsers log Streamlit's refusal, 404, as an
    error. 300 without a location is a refusal that they do not log.
    """

    kinds = ("http",)

    async def guard(self, scope: Scope, receive: Receive, send: Send) -> None:
        base, _, name = scope.get("path", "").rpartition("/_stcore/")
        is_search = name in ("health", "host-config") and base != base_path()
        await (Response(status_code=300) if is_search else self.app)(scope, receive, send)


def framers(query: bytes) -> str | None:
    """Return the sites that may frame the page with this query string, in `frame-ancestors` syntax; None if any site may.

    Any site may frame a single picture for slides (`?embed=true`). Whole pages may be framed by this server and by the sites
    in `XFORMER_FRAMES` (`XFORMER_FRAMES=https://slides.school.example`). For pictures the directive is omitted rather than
    `frame-ancestors *`, because `*` matches network schemes only and would refuse slides that are opened as a file:
    https://www.w3.org/TR/CSP3/#match-url-to-source-expression.
    """
    if parse_qs(query.decode("latin-1")).get("embed") == ["true"]:
        return None
    words = os.environ.get("XFORMER_FRAMES", "").replace(",", " ").split()
    return " ".join(["'self'", *filter(_ORIGIN.fullmatch, words)])


class SecurityHeaders(Guard):
    """Adds security headers to every response: no content from other sites, no MIME sniffing, frames as `framers` allows."""

    kinds = ("http",)

    async def guard(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                sites = framers(scope.get("query_string", b""))
                policy = _CONTENT_POLICY if sites is None else (*_CONTENT_POLICY, f"frame-ancestors {sites}")
                headers.update(_HEADERS | {"Content-Security-Policy": "; ".join(policy)})
            await send(message)

        await self.app(scope, receive, with_headers)


def visitor_id() -> str:
    """Return the visitor's id from the cookie, 32 hexadecimal digits; empty in a cross-site frame and once disconnected.

    Permissions depend on it. The cookie is `SameSite=Lax`: the browser sends it with the websocket of a top-level page or of a
    same-site frame, but not from a cross-site frame. The `Origin` header cannot tell these apart: in a cross-site frame it is
    the app's own.
    """
    return visitor_id_in(st.context.cookies)


def visitor_id_in(cookies: Mapping[str, str]) -> str:
    """Return the visitor's id in these cookies; empty if there is none."""
    found = cookies.get(COOKIE)
    return found if isinstance(found, str) and re.fullmatch(r"[0-9a-f]{32}", found) else ""


class VisitorCookie(Guard):
    """Sets the visitor's cookie with each page, except with a picture that any site may frame."""

    kinds = ("http",)

    async def guard(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = Headers(scope=scope)
        is_page = scope["method"] == "GET" and "text/html" in sent.get("accept", "")
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


class SecretGuard(Guard):
    """Admits browsers that have opened a link with the secret, and no other account of this machine.

    The link sets a cookie and leads to the same page without the secret, so that no copied address contains it.
    """

    def __init__(self, app: ASGIApp, secret: str) -> None:
        super().__init__(app)
        self.secret = secret

    async def guard(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        _, port = scope.get("server") or ("", None)
        cookie = f"xformer_secret_{port}"  # cookies of all ports of a machine are sent to each
        known = cookie_parser(Headers(scope=scope).get("cookie", "")).get(cookie, "")
        if secrets.compare_digest(known.encode(), self.secret.encode()):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({**_REFUSED, "reason": "The secret of this app is missing"})
        elif secrets.compare_digest(dict(query).get(SECRET, "").encode(), self.secret.encode()):
            rest = urlencode([(name, value) for name, value in query if name != SECRET])
            answer = RedirectResponse(f"{scope['path']}?{rest}" if rest else scope["path"], 303)
            answer.set_cookie(cookie, self.secret, httponly=True, samesite="lax")
            await answer(scope, receive, send)
        else:
            await PlainTextResponse("Open this app by the link that xformer.show prints.\n", 403)(scope, receive, send)


def readable(data: bytes) -> bytes | None:
    """Return a message with lone surrogates replaced; None if it is malformed or not allowed.

    Streamlit closes the connection when it cannot decode a message.
    """
    kind = message_kind(data)
    if kind is None:
        data = _SURROGATE.sub(_REPLACEMENT, data)
        kind = message_kind(data)
    return data if kind in ALLOWED else None


class MessageGuard(Guard):
    """Drops messages that are not allowed, and closes connections that send large ones or text; the protocol is binary."""

    kinds = ("websocket",)

    async def guard(self, scope: Scope, receive: Receive, send: Send) -> None:
        if is_classroom_websocket(scope):
            await self.app(scope, receive, send)
            return
        is_closed = False

        async def receive_allowed() -> Message:
            nonlocal is_closed
            while True:
                message = await receive()
                if message["type"] != "websocket.receive":
                    return message
                if (data := message.get("bytes")) is None or len(data) > MAX_MESSAGE_BYTES:
                    is_closed = True
                    why = "Text messages are not supported" if data is None else "The message is too large"
                    await send({**_REFUSED, "reason": why})
                    return {"type": "websocket.disconnect", "code": _REFUSED["code"]}
                if (content := readable(data)) is not None:
                    return message if content is data else {**message, "bytes": content}

        async def send_while_open(message: Message) -> None:
            if not is_closed:
                await send(message)

        await self.app(scope, receive_allowed, send_while_open)
