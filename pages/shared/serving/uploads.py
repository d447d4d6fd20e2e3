"""How much may lie in the server's memory as uploaded files: of one visitor, from one address, and of all together.

Streamlit keeps an upload in memory until its visitor has gone, and takes any number of them from whoever has a connection,
also such that no upload box on a screen has asked for. Its own limit (server.maxUploadSize) is a single file's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import streamlit as st
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from streamlit.runtime import Runtime

from pages.shared.serving.address import network

MB = 1024**2
PATH = "/_stcore/upload_file/"
FILES_EACH = 16
"""Files of one visitor that are kept at once; the screens ask for one at a time."""

Kept = dict[str, list[int]]


def limit_in_all() -> int:
    """Bytes of all uploads together: XFORMER_MAX_UPLOADS in MB, 512 where it holds no number."""
    asked = os.environ.get("XFORMER_MAX_UPLOADS", "")
    return (int(asked) if asked.isdecimal() else 512) * MB


def limit_each() -> int:
    """Bytes of one visitor's uploads: two of the largest files."""
    return 2 * int(st.get_option("server.maxUploadSize")) * MB


def refusal(session: str, length: int | None, kept: Kept, places: Mapping[str, str]) -> str | None:
    """Why an upload of `length` bytes is not taken, where `kept` has the bytes of each visitor's files; None where it is.

    `places` has the address of each visitor: from one come at most half of all, however many visitors say to be there.
    """
    if length is None:
        return "An upload must say how long it is (Content-Length)."
    mine = kept.get(session, [])
    if len(mine) >= FILES_EACH or sum(mine) + length > limit_each():
        return f"At most {FILES_EACH} files and {limit_each() // MB} MB of one visitor are kept at a time; close some first."
    there = [name for name in kept if name in places and places[name] == places.get(session)]
    if length + sum(sum(kept[name]) for name in there) > limit_in_all() // 2:
        return f"The uploads from your address take {limit_in_all() // 2 // MB} MB, which is the limit here; close some first."
    if sum(map(sum, kept.values())) + length > limit_in_all():
        return f"The uploads of all visitors take {limit_in_all() // MB} MB, which is the limit here. Try again in a while."
    return None


class UploadGuard:
    """Refuses an upload that would take more memory than is allowed, before it is read."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.arriving: dict[str, list[int]] = {}
        """Bytes of each visitor's uploads that are being read right now."""
        self.places: dict[str, str] = {}
        """The address that each visitor with files came from."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or scope["method"] != "PUT" or PATH not in path:
            await self.app(scope, receive, send)
            return
        session = path.partition(PATH)[2].partition("/")[0]
        said = Headers(scope=scope).get("content-length", "")
        length = int(said) if said.isdecimal() else None
        kept, client = self._kept(), scope.get("client")
        self.places = {name: place for name, place in self.places.items() if name in kept}
        self.places[session] = network(client[0] if client else None)
        if sentence := refusal(session, length, kept, self.places):
            await PlainTextResponse(sentence, status_code=413)(scope, receive, send)
            return
        assert length is not None
        self.arriving.setdefault(session, []).append(length)
        try:
            await self.app(scope, receive, send)
        finally:
            self.arriving[session].remove(length)
            if not self.arriving[session]:
                del self.arriving[session]

    def _kept(self) -> Kept:
        # The interface does not say where files are; the one manager that Streamlit has keeps them here.
        storage = Runtime.instance().uploaded_file_mgr.file_storage  # pyright: ignore[reportAttributeAccessIssue]
        kept = {name: [len(file.data) for file in list(files.values())] for name, files in list(storage.items())}
        for name, sizes in self.arriving.items():
            kept[name] = kept.get(name, []) + sizes
        return kept
