"""A client of Streamlit's websocket protocol that needs no browser and can send messages that no browser would."""

from __future__ import annotations

import re
import secrets
import time
import urllib.request
from dataclasses import dataclass, field
from typing import Any, Self

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.proto.WidgetStates_pb2 import WidgetState
from websockets.sync.client import connect

PATIENCE = 60.0
"""Timeout in seconds of a script run, after which the server counts as stuck."""
CANARY = re.compile(rb"canary[0-9a-f]{12}")


class FindingError(AssertionError):
    """A forbidden effect of an attack."""


@dataclass
class Screen:
    """The elements that one script run has drawn."""

    widgets: dict[str, Any] = field(default_factory=dict)
    """The elements that have an id, by id."""
    words: list[str] = field(default_factory=list)
    """The texts of alerts: errors, warnings and similar messages."""
    title: str = ""

    def find(self, key: str) -> str:
        """Return the id of the first widget whose key begins with `key`; empty if there is none."""
        return next((one for one in self.widgets if one.split("-", 2)[-1].startswith(key)), "")


class Visitor:
    """One connection. Raises `FindingError` if a page raises an exception or the server closes the connection."""

    def __init__(self, base: str, *, cookie: str | None = None, is_embedded: bool = False) -> None:
        self.base, self.cookie = base, secrets.token_hex(16) if cookie is None else cookie
        self.is_embedded = is_embedded
        """Whether the visitor claims to be embedded in a frame."""
        self.states: dict[str, WidgetState] = {}
        self.seen: set[bytes] = set()
        """The secrets found in all received messages."""
        self.screen, self.session, self.query, self.page = Screen(), "", "", ""
        sent = {"Cookie": f"xformer_visitor={self.cookie}"} if self.cookie else {}
        self._connection = connect(
            f"{base.replace('http', 'ws')}/_stcore/stream",
            subprotocols=["streamlit"],  # type: ignore[list-item]
            additional_headers=sent,
            max_size=None,
            open_timeout=PATIENCE,
        )
        self.socket = self._connection.__enter__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.__exit__(None, None, None)

    def open(self, page: str = "", query: str = "", *, is_history: bool = False) -> Screen:
        """Open a page by its URL or, with `is_history`, as the Back and Forward buttons do."""
        self.states, self.page, self.query = {}, page, query
        return self.run(is_history=is_history)

    def run(self, *states: WidgetState, is_history: bool = False) -> Screen:
        """Run the script with the current widget states, and return the screen."""
        message = BackMsg()
        message.rerun_script.is_history_navigation = is_history
        message.rerun_script.query_string, message.rerun_script.page_name = self.query, self.page
        message.rerun_script.widget_states.widgets.extend([*self.states.values(), *states])
        message.rerun_script.context_info.is_embedded = self.is_embedded
        self.send(message.SerializeToString())
        return self.read()

    def open_menu(self, key: str) -> Screen:
        """Open a menu whose content is drawn only while it is open."""
        state = WidgetState(id=self._id(key), bool_value=True)
        self.states[state.id] = state
        return self.run()

    def press(self, key: str) -> Screen:
        """Press a button, even if it is disabled."""
        return self.run(WidgetState(id=self._id(key), trigger_value=True))

    def upload(self, key: str, name: str, content: bytes) -> Screen:
        """Upload a file as a browser does: request a URL, send the file to it, and report it. Raises `OSError` if rejected."""
        widget, message = self._id(key), BackMsg()
        message.file_urls_request.request_id, message.file_urls_request.session_id = "1", self.session
        message.file_urls_request.file_names.append(name)
        self.send(message.SerializeToString())
        [urls] = self.read(until="file_urls_response").file_urls  # type: ignore[attr-defined]
        self.put(urls.upload_url, name, content)
        state = WidgetState(id=widget)
        info = state.file_uploader_state_value.uploaded_file_info.add()
        info.file_id, info.name, info.size = urls.file_id, name, len(content)
        info.file_urls.CopyFrom(urls)
        return self.run(state)

    def put(self, url: str, name: str, content: bytes) -> None:
        """Send the bytes of an upload."""
        with urllib.request.urlopen(f"{self.base}/_stcore/health") as page:
            token = re.search(r"_streamlit_xsrf=([^;]+)", page.headers.get("Set-Cookie", ""))
        edge = secrets.token_hex(8)
        head = f'--{edge}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode()
        body = head + content + f"\r\n--{edge}--\r\n".encode()
        sent = {"Content-Type": f"multipart/form-data; boundary={edge}"}
        if token:
            sent |= {"X-Xsrftoken": token[1], "Cookie": f"_streamlit_xsrf={token[1]}"}
        request = urllib.request.Request(f"{self.base}{url}", body, sent, method="PUT")
        urllib.request.urlopen(request, timeout=PATIENCE).close()

    def send(self, data: bytes | str) -> None:
        """Send any message."""
        try:
            self.socket.send(data)
        except Exception as error:
            raise FindingError(f"the server closed the connection: {error}") from error

    def read(self, until: str = "script_finished") -> Any:
        """Read messages until one of this kind arrives. Returns its content or, for a script run, the screen."""
        screen, deadline, began = Screen(), time.monotonic() + PATIENCE, False
        while True:
            try:
                data = self.socket.recv(timeout=max(0.1, deadline - time.monotonic()))
            except TimeoutError:
                raise FindingError(f"no response within {PATIENCE:.0f} s") from None
            except Exception as error:
                raise FindingError(f"the server closed the connection: {error}") from error
            assert isinstance(data, bytes)
            self.seen.update(CANARY.findall(data))
            message = ForwardMsg()
            message.ParseFromString(data)
            for part in _parts(message):
                kind = part.WhichOneof("type")
                if kind == "new_session":
                    self.session, began = part.new_session.initialize.session_id, True
                elif kind == "delta":
                    _draw(part, screen)
                elif kind == until == "file_urls_response":
                    return part.file_urls_response
                elif kind == until and began:
                    self.screen = screen
                    return screen

    def _id(self, key: str) -> str:
        if not (found := self.screen.find(key)):
            raise KeyError(f"{key} is not on the screen: {sorted(self.screen.widgets)}")
        return found


def _parts(message: ForwardMsg) -> list[ForwardMsg]:
    """Return the messages of a batch, or a single message as a list."""
    if message.WhichOneof("type") == "batch":
        return list(message.batch.messages)
    return [message]


def _draw(message: ForwardMsg, screen: Screen) -> None:
    element = message.delta.new_element
    if message.delta.WhichOneof("type") != "new_element" or not (kind := element.WhichOneof("type")):
        block = message.delta.add_block
        for name in ("popover", "expandable"):
            if block.HasField(name) and getattr(getattr(block, name), "id", ""):
                screen.widgets[getattr(block, name).id] = block
        return
    content = getattr(element, kind)
    if kind == "exception":
        raise FindingError(f"a page raised an exception: {content.type} {content.message[:200]}")
    if kind == "alert":
        screen.words.append(content.body)
    if kind == "heading":
        screen.title = content.body
    if name := getattr(content, "id", ""):
        screen.widgets[name] = content
