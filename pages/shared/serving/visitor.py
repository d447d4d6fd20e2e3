"""A number for each browser, in a cookie that a page in a frame of another site never has: rights hang on it.

The server sets the cookie (`SameSite=Lax`, `HttpOnly`) with each page. A browser then sends it with the websocket of a page
that stands by itself or in a frame of the same site, and never from a frame of another site. So the server knows from the
handshake whether a visitor may order anything; what the page says of itself (`embed=true`) takes rights away and gives none.
The other headers of the handshake do not tell: also in a frame, `Origin` is the app's own.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping

import streamlit as st
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pages.shared.serving.headers import framers

COOKIE = "xformer_visitor"
YEAR = 365 * 24 * 3600


def number() -> str:
    """Return the number of the visitor's browser; empty where its connection brought none, and once it has gone."""
    return number_in(st.context.cookies)


def number_in(cookies: Mapping[str, str]) -> str:
    """Return the number in some cookies, 32 hexadecimal digits; empty where there is none."""
    found = cookies.get(COOKIE)
    return found if isinstance(found, str) and re.fullmatch(r"[0-9a-f]{32}", found) else ""


class VisitorCookie:
    """Sets the cookie with each page, but for a picture that may stand in a frame of any site."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = Headers(scope=scope) if scope["type"] == "http" else Headers()
        is_page = scope.get("method") == "GET" and "text/html" in sent.get("accept", "")  # as browsers ask for one
        if not is_page or framers(scope.get("query_string", b"")) == "*":
            await self.app(scope, receive, send)
            return
        known = number_in(cookie_parser(sent.get("cookie", ""))) or secrets.token_hex(16)

        async def with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                cookie = f"{COOKIE}={known}; Path=/; Max-Age={YEAR}; SameSite=Lax; HttpOnly"
                MutableHeaders(scope=message).append("set-cookie", cookie)
            await send(message)

        await self.app(scope, receive, with_cookie)
