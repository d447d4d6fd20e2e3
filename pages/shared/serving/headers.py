"""What each answer asks of the browser: load nothing from elsewhere, guess no types, and be framed only where that is meant.

A page may stand in a frame of this server's own pages, and a picture for slides, `?embed=true`, in a frame of any site.
XFORMER_FRAMES lists who else may frame whole pages: `XFORMER_FRAMES=https://slides.school.example`. In a frame of another site
a visitor has no rights, only a view (see `visitor`).
"""

from __future__ import annotations

import os
import re
from urllib.parse import parse_qs

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_ORIGIN = re.compile(r"https?://[a-z0-9.*:\[\]-]+|\*", re.ASCII | re.IGNORECASE)

POLICY = (
    "default-src 'self'",
    # Streamlit's components are inline scripts from blobs; Vega and Plotly compile expressions.
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


def framers(query: bytes) -> str:
    """Who may frame the page that is asked for with this query, as a content policy says it."""
    if parse_qs(query.decode("latin-1")).get("embed") == ["true"]:
        return "*"
    listed = [
        word for word in os.environ.get("XFORMER_FRAMES", "").replace(",", " ").split() if _ORIGIN.fullmatch(word)
    ]
    return " ".join(["'self'", *listed])


class SecurityHeaders:
    """Adds the headers to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                policy = [*POLICY, f"frame-ancestors {framers(scope.get('query_string', b''))}"]
                headers["Content-Security-Policy"] = "; ".join(policy)
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Referrer-Policy"] = "same-origin"
                headers["Cross-Origin-Opener-Policy"] = "same-origin"
                headers["Permissions-Policy"] = "camera=(), geolocation=(), microphone=()"
            await send(message)

        await self.app(scope, receive, with_headers)
