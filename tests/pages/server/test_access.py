"""The guards in front of the app, each tested with a small application."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest
import streamlit as st
from starlette.types import Message, Receive, Scope, Send
from streamlit.proto.BackMsg_pb2 import BackMsg

from pages.server import access, limits
from pages.server.access import (
    ALLOWED,
    COOKIE,
    BasePathGuard,
    HostGuard,
    MessageGuard,
    SecretGuard,
    SecurityHeaders,
    VisitorCookie,
    is_forwarded,
    is_own,
    visitor_id_in,
)
from pages.server.limits import MB, ConnectionGuard, UploadGuard
from tests.pages.server.test_limits import run_alone


class Inner:
    """Responds “ok” to a request, and records the messages to a websocket."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"ok"})
            return
        while (message := await receive())["type"] != "websocket.disconnect":
            self.heard.append(message["bytes"])


def ask(app: Any, kind: str = "http", *, incoming: list[Message] | None = None, **scope: Any) -> list[Message]:
    """Return the messages that an application sends for one request or one websocket."""
    sent: list[Message] = []
    waiting = list(incoming or [])

    async def receive() -> Message:
        return waiting.pop(0) if waiting else {"type": f"{kind}.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    base = {"type": kind, "method": "GET", "path": "/", "query_string": b"", "headers": []}
    run_alone(app(base | scope, receive, send))
    return sent


def received(*data: bytes) -> list[Message]:
    """Return these messages as a websocket receives them."""
    return [{"type": "websocket.receive", "bytes": one} for one in data]


def host(name: str) -> dict[str, Any]:
    return {"headers": [(b"host", name.encode())]}


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set the address on which the server listens; initially the loopback address."""
    real = st.get_option

    def listen(where: str) -> None:
        monkeypatch.setattr(st, "get_option", lambda name: where if name == "server.address" else real(name))

    monkeypatch.delenv("XFORMER_HOSTS", raising=False)
    listen("127.0.0.1")
    return listen


def test_own_host_names_are_allowed_and_addresses_only_on_an_open_server(address: Any) -> None:
    good = ["localhost", "LOCALHOST:8501", "127.0.0.1:8501", "[::1]:8501", "localhost.:80"]
    bad = ["evil.example", "evil.example:85", "localhost.evil.example", "localhost:x", "a@localhost", "localhost/x"]
    assert [name for name in [*good, *bad, "192.168.1.7", "", None] if is_own(name)] == good
    address("0.0.0.0")
    assert is_own("192.168.1.7:8501")
    assert is_own(access.socket.gethostname())
    assert not is_own("evil.example")


def test_own_names_can_be_configured(address: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XFORMER_HOSTS", "xformer.school.example, *.lab.example")
    assert is_own("xformer.school.example:443")
    assert is_own("a.lab.example")
    assert not is_own("lab.example.evil.example")
    assert not is_own("evil-lab.example")
    monkeypatch.setenv("XFORMER_HOSTS", "*")
    assert is_own("evil.example")


def test_a_request_to_a_foreign_host_name_is_refused(address: Any) -> None:
    good, bad = (ask(HostGuard(Inner()), **host(name)) for name in ("localhost", "evil.example"))
    assert good[0]["status"] == 200
    assert bad[0]["status"] == 421
    assert b"evil.example" in bad[1]["body"]
    inner = Inner()
    closed = ask(HostGuard(inner), "websocket", incoming=received(b"x"), **host("evil.example"))
    assert closed[0]["type"] == "websocket.close"
    assert not inner.heard


class Seen(Inner):
    """Records the headers of a websocket that arrives."""

    headers: ClassVar[list[bytes]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        Seen.headers = [name for name, _ in scope["headers"]]
        await send({"type": "websocket.accept"})


@pytest.mark.parametrize(
    ("origin", "is_allowed"),
    [
        (None, True), ("http://localhost:8501", True), ("https://LOCALHOST:8501", True),
        ("http://evil.example", False), ("http://localhost:3000", False), ("http://localhost", False), ("null", False),
        ("file://", False), ("file://localhost:8501x", False), ("", False), ("localhost:8501", False),
        ("http://localhost:8501@evil.example", False), ("http://evil.example/localhost:8501", False),
        ("https://xformer.school.example", True), ("https://a.lab.example:444", True), ("https://lab.example.evil", False),
    ],
)  # fmt: skip
def test_a_websocket_of_a_foreign_origin_is_refused_before_the_app(
    address: Any, monkeypatch: pytest.MonkeyPatch, origin: str | None, is_allowed: bool
) -> None:
    monkeypatch.setenv("XFORMER_HOSTS", "xformer.school.example, *.lab.example, *")  # `*` allows hosts, not origins
    given = [(b"host", b"localhost:8501"), *([] if origin is None else [(b"origin", origin.encode())])]
    Seen.headers = []
    [sent] = ask(HostGuard(Seen()), "websocket", headers=given)
    assert sent["type"] == ("websocket.accept" if is_allowed else "websocket.close")
    assert Seen.headers == ([b"host"] if is_allowed else [])  # Streamlit would look up an origin on the internet


def test_the_names_of_this_machine_are_found_without_a_name_server(
    address: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(*_: object) -> str:
        raise AssertionError("a name server was asked")

    address("0.0.0.0")
    for name in ("getfqdn", "gethostbyname", "gethostbyaddr", "getaddrinfo"):
        monkeypatch.setattr(access.socket, name, asked)
    assert is_own(access.socket.gethostname())
    assert not is_own("evil.example")


def test_only_a_browser_with_the_secret_is_admitted() -> None:
    inner = Inner()
    guard, query = SecretGuard(inner, "the secret"), b"model=a%20b&secret=the+secret&input="
    place = {"path": "/attention", "server": ("127.0.0.1", 8501)}
    for wrong in (b"", b"secret=", b"secret=the", b"secret=%C3%A4"):
        assert ask(guard, query_string=wrong, **place)[0]["status"] == 403
    assert ask(guard, "websocket", query_string=query, incoming=received(b"x"), **place)[0]["type"] == "websocket.close"
    assert not inner.heard
    start = ask(guard, query_string=query, **place)[0]
    headers = dict(start["headers"])
    assert (start["status"], headers[b"location"]) == (303, b"/attention?model=a+b&input=")
    cookie = headers[b"set-cookie"].partition(b";")[0]
    assert b"httponly" in headers[b"set-cookie"].lower()
    known = {"headers": [(b"cookie", cookie)], **place}
    assert ask(guard, **known)[0]["status"] == 200
    ask(guard, "websocket", incoming=received(b"x"), **known)
    assert inner.heard == [b"x"]
    assert ask(guard, headers=[(b"cookie", cookie + b"x")], **place)[0]["status"] == 403


@pytest.mark.parametrize("base", ["", "/lab"])
def test_the_search_for_the_base_path_is_declined_below_a_screen(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A status of 400 or more would appear as an error in the browser's console, one below 300 would end the search there."""
    real = st.get_option
    monkeypatch.setattr(st, "get_option", lambda name: base if name == "server.baseUrlPath" else real(name))
    for name in ("health", "host-config"):
        found, declined = (
            ask(BasePathGuard(Inner()), path=f"{base}{below}/_stcore/{name}") for below in ("", "/attention")
        )
        assert (found[0]["status"], declined[0]["status"]) == (200, 300)
    passed = ("/attention", "/_stcore/stream", "/attention/_stcore/stream")
    assert [ask(BasePathGuard(Inner()), path=path)[0]["status"] for path in passed] == [200, 200, 200]


def test_a_proxy_is_recognised_by_its_headers() -> None:
    assert is_forwarded({"Host": "localhost", "X-Forwarded-For": "203.0.113.9"})
    assert is_forwarded({"forwarded": "for=203.0.113.9"})
    assert not is_forwarded({"Host": "localhost", "Cookie": "x"})


def test_pages_may_be_framed_by_their_own_server_and_pictures_by_anyone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XFORMER_FRAMES", raising=False)
    assert access.framers(b"model=reverse") == "'self'"
    assert access.framers(b"model=reverse&embed=true") is None
    assert access.framers(b"embed=false") == "'self'"
    monkeypatch.setenv("XFORMER_FRAMES", "https://slides.school.example, javascript:x")
    assert access.framers(b"") == "'self' https://slides.school.example"
    monkeypatch.setenv("XFORMER_FRAMES", "https://slides.school.example;script-src")
    assert access.framers(b"") == "'self'"


def test_every_response_has_the_policy_and_a_picture_may_be_framed_by_a_local_file() -> None:
    queries = (b"", b"embed=true")
    page, picture = (dict(ask(SecurityHeaders(Inner()), query_string=one)[0]["headers"]) for one in queries)
    assert page[b"x-content-type-options"] == b"nosniff"
    assert b"frame-ancestors 'self'" in page[b"content-security-policy"]
    assert b"object-src 'none'" in picture[b"content-security-policy"]
    assert b"frame-ancestors" not in picture[b"content-security-policy"]  # `*` does not match files


def passed(message: BackMsg | bytes) -> list[bytes]:
    """Return what the guard passes on of one message."""
    data = message if isinstance(message, bytes) else message.SerializeToString()
    inner = Inner()
    ask(MessageGuard(inner), "websocket", incoming=received(data))
    return inner.heard


def of_kind(kind: str, payload: str = "") -> BackMsg:
    """Return an empty message of a kind."""
    message = BackMsg()
    field = BackMsg.DESCRIPTOR.fields_by_name[kind]
    if field.message_type is None:
        setattr(message, kind, True)
    elif payload:
        getattr(message.backend_operation_request, payload).SetInParent()
    else:
        getattr(message, kind).SetInParent()
    return message


KINDS = [field.name for field in BackMsg.DESCRIPTOR.fields if field.containing_oneof is not None]
REQUEST = "backend_operation_request"
PAYLOADS = [field.name for field in BackMsg().backend_operation_request.DESCRIPTOR.fields if field.containing_oneof]


def test_only_listed_kinds_of_messages_pass() -> None:
    assert len(KINDS) > 5
    messages = {kind: of_kind(kind) for kind in KINDS} | {f"{REQUEST}.{one}": of_kind(REQUEST, one) for one in PAYLOADS}
    assert (allowed := {kind for kind, message in messages.items() if passed(message)}) == set(ALLOWED)
    for_developers = {"clear_cache", "set_run_on_save", "debug_shutdown_runtime", f"{REQUEST}.install_skills"}
    assert for_developers <= set(messages) - allowed
    assert passed(of_kind("stop_script")) == [of_kind("stop_script").SerializeToString()]
    assert passed(b"") == passed(b"\xff\xff\xff") == []


def test_a_lone_surrogate_becomes_the_replacement_character() -> None:
    rerun = BackMsg()
    state = rerun.rerun_script.widget_states.widgets.add()
    state.id, state.string_value = "input", "3 \ufffd 7"
    whole, half = rerun.SerializeToString(), rerun.SerializeToString().replace(b"\xef\xbf\xbd", b"\xed\xa0\xbd")
    inner = Inner()
    ask(MessageGuard(inner), "websocket", incoming=received(whole, half))
    assert inner.heard == [whole, whole]


class Uploads(UploadGuard):
    """The guard with given files in memory."""

    def __init__(self, kept: dict[str, list[int]]) -> None:
        super().__init__(Inner())
        self.kept = kept

    def _files(self) -> list[tuple[str, int]]:
        return [(session, size) for session, sizes in self.kept.items() for size in sizes]


def put(guard: UploadGuard, length: int | None, session: str = "me", **scope: Any) -> int:
    headers = [] if length is None else [(b"content-length", str(length).encode())]
    return ask(guard, method="PUT", path=f"{limits.UPLOAD_PATH}{session}/1", headers=headers, **scope)[0]["status"]


def test_uploads_are_limited_per_visitor_and_in_total(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XFORMER_MAX_UPLOADS", "300")
    largest = limits.max_upload_bytes_each() // 2
    assert put(Uploads({}), largest) == 200
    assert put(Uploads({}), None) == 413
    assert put(Uploads({"me": [largest, largest]}), 1) == 413
    assert put(Uploads({"other": [largest, largest]}), largest) == 200
    assert put(Uploads({"me": [1] * limits.FILES_EACH}), 1) == 413
    assert put(Uploads({"a": [200 * MB], "b": [100 * MB]}), 1) == 413
    assert ask(Uploads({"me": [largest] * 2}), method="GET", path=f"{limits.UPLOAD_PATH}me/1")[0]["status"] == 200


def test_one_address_gets_at_most_half_of_the_total_upload_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XFORMER_MAX_UPLOADS", "300")
    guard = Uploads({})
    for number in range(3):
        guard.kept[f"s{number}"] = []
        assert put(guard, 50 * MB, f"s{number}", client=("203.0.113.9", number)) == 200
        guard.kept[f"s{number}"] = [50 * MB]
    assert put(guard, 1, "s3", client=("203.0.113.9", 9)) == 413
    assert put(guard, 50 * MB, "s4", client=("203.0.113.10", 9)) == 200


def test_a_text_message_closes_the_connection_and_nothing_is_sent_after_it() -> None:
    class Talking(Inner):
        """Replies to each message, and sends a last message at the end."""

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            while (message := await receive())["type"] != "websocket.disconnect":
                self.heard.append(message["bytes"])
                await send({"type": "websocket.send", "bytes": b"an answer"})
            await send({"type": "websocket.send", "bytes": b"goodbye"})
            await send({"type": "websocket.close", "code": 1000})

    inner, allowed = Talking(), of_kind("stop_script").SerializeToString()
    frames = [*received(allowed), {"type": "websocket.receive", "text": "{}"}, *received(allowed)]
    sent = ask(MessageGuard(inner), "websocket", incoming=frames)
    assert inner.heard == [allowed]
    assert [(one["type"], one.get("code")) for one in sent] == [("websocket.send", None), ("websocket.close", 1008)]


def test_simultaneous_connections_from_one_address_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XFORMER_MAX_CONNECTIONS_BY_ADDRESS", "3")
    refused: list[str] = []

    async def day() -> None:
        end = asyncio.Event()

        async def stay(scope: Scope, receive: Receive, send: Send) -> None:
            await end.wait()

        guard: Any = ConnectionGuard(stay)

        def connect(client: str) -> asyncio.Task[None]:
            async def send(message: Message) -> None:
                refused.append(client)

            return asyncio.create_task(guard({"type": "websocket", "client": (client, 1)}, None, send))

        addresses = ["203.0.113.9"] * 5 + ["203.0.113.10", "2001:db8::1", "127.0.0.1"]
        visits = [connect(address) for address in addresses]
        await asyncio.sleep(0)
        end.set()
        await asyncio.gather(*visits)
        assert not guard.open
        await connect("203.0.113.9")
        monkeypatch.setenv("XFORMER_MAX_CONNECTIONS_BY_ADDRESS", "many")  # invalid, so the default applies
        await connect("203.0.113.9")

    run_alone(day())
    assert refused == ["203.0.113.9"] * 2


def test_ipv6_addresses_are_counted_by_network() -> None:
    assert limits.network("2001:db8::1%eth0") == limits.network("2001:db8::2") != limits.network("2001:db8:0:1::1")
    assert limits.network("::ffff:203.0.113.9") == "203.0.113.9"
    assert limits.network("::1") == limits.network("127.0.0.1") == limits.network(None) == limits.THIS_MACHINE


def page_cookies(cookie: str = "", accept: str = "text/html,*/*", **scope: Any) -> list[str]:
    """Return the cookies set by a response."""
    given = [(b"accept", accept.encode()), (b"cookie", cookie.encode())]
    start = ask(VisitorCookie(Inner()), headers=given, **scope)[0]
    return [value.decode() for name, value in start["headers"] if name == b"set-cookie"]


def test_each_page_sets_an_id_that_persists() -> None:
    [new], [other] = page_cookies(), page_cookies(cookie=f"{COOKIE}=nonsense; a=b")
    name, _, rest = new.partition("=")
    number = visitor_id_in({COOKIE: rest.partition(";")[0]})
    assert name == COOKIE
    assert number
    assert rest.endswith("; Path=/; Max-Age=31536000; SameSite=Lax; HttpOnly")
    assert new != other
    assert page_cookies(cookie=f"a=b; {COOKIE}={number}") == [new]


def test_embeddable_pictures_and_other_requests_set_no_cookie() -> None:
    assert page_cookies(query_string=b"embed=true&model=reverse") == []
    assert page_cookies(accept="*/*") == []
    assert page_cookies(method="POST") == []
    assert ask(VisitorCookie(Inner()), "websocket", headers=[(b"accept", b"text/html")]) == []
