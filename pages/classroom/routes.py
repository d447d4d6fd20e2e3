"""The routes of classroom mode: the page that students join with a code, and the websockets of students and lecturers.

    GET /join                 the form for the code             GET /join/CODE            the students' page
    GET /room/CODE/model      a model that runs in the page     GET /room/CODE/lesson     a lesson
    GET /room/CODE/picture    a picture of one that cannot      WS  /room/CODE  /room/CODE/host
    POST /room/CODE/work      solved tasks of an assignment

A student's websocket accepts votes, solved exercises and a nickname, but no commands of a lecturer. The lecturer's websocket
only sends reports; a lecturer's commands come from the screens (`pages.classroom`). The visitor's cookie identifies both.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from html import escape
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from pages.server.access import base_path, visitor_id_in
from pages.server.limits import admit_student, client_address
from xformer.classroom.messages import MAX_CHARACTERS, NOT_UNDERSTOOD, Forget, Nickname, Offer, Vote, Work, parse
from xformer.classroom.rooms import Room, RoomEndedError, Rooms, normalised
from xformer.disk_quota import rooms_folder
from xformer.errors import ClassroomError, XformerError
from xformer.live.lesson import FOLDER, Lesson, model_of, shipped

MESSAGES_A_SECOND = 20
TABS_EACH = 4
"""Maximum open connections of one student."""
GUESSES, GUESSES_A_MINUTE = 30, 20
"""Wrong codes allowed from one address: a burst, and the rate after it. A whole class may share one address."""
WRONG_SECONDS = 0.5
"""Delay of the response to a wrong code."""
HOST_SECONDS, HOST_SHARE = 0.15, 0.2
"""Minimum interval between two reports to a lecturer, and the largest share of the time that is spent on making them."""
OTHERS_SECONDS = 1.0
"""Interval at which a server looks for changes that another server made in the same database, and for expired rooms."""
ENDED, REFUSED, REMOVED, TOO_LARGE, TRY_AGAIN = 4404, 4403, 4405, 1009, 1013
"""Close codes of a websocket: the room has ended; this browser is not allowed; the lecturer has removed all students; a message
is too large; the database cannot be used at the moment.
"""
T = TypeVar("T")
_writer = ThreadPoolExecutor(1, thread_name_prefix="rooms")
"""Runs the writes of all students one after the other, so that they never wait for each other's locks."""
_reader = ThreadPoolExecutor(1, thread_name_prefix="rooms-reader")
"""Reads for the event loop, which must never wait for the database."""


_rooms_in = cache(Rooms)


def rooms() -> Rooms:
    """The rooms of this server."""
    return _rooms_in(rooms_folder())


def routes() -> list[BaseRoute]:
    """The routes for `st.App`, under the base path of the app."""
    join, room = f"{base_path()}/join", base_path() + "/room/{code}"
    return [
        Route(join, _join),
        Route(f"{join}/{{code}}", _with_room(_students_page)),
        Route(f"{room}/model", _with_room(_model)),
        Route(f"{room}/lesson", _with_room(_lesson)),
        Route(f"{room}/picture", _with_room(_picture)),
        Route(f"{room}/work", _with_room(_work), methods=["POST"]),
        WebSocketRoute(room, _until_it_ends(_student)),
        WebSocketRoute(f"{room}/host", _until_it_ends(_host)),
    ]


# ── notifications ──


class Hub:
    """The open connections of all rooms. A change wakes them up, and each then sends only the latest state."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.connections: dict[str, dict[asyncio.Event, str | None]] = {}
        """By room id: the event that wakes up each connection, with the student's id (None for a lecturer)."""
        self._states: dict[str, asyncio.Task[tuple[str, int]]] = {}
        self._watch: asyncio.Task[None] | None = None

    def changed(self, room: str, *, hosts_only: bool = False) -> None:
        """Wake up the connections of a room. Thread-safe."""
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._wake, room, hosts_only)

    def _wake(self, room: str, hosts_only: bool = False) -> None:
        if not hosts_only:
            self._states.pop(room, None)
        for event, member in self.connections.get(room, {}).items():
            if member is None or not hosts_only:
                event.set()

    async def state(self, room: str) -> tuple[str, int]:
        """Return the message that every student of a room receives, and how often the room was cleared.

        Both are read once for all of them. Raises `ClassroomError` if the room has ended.
        """
        if room not in self._states:
            self._states[room] = asyncio.create_task(_read(partial(_students_state, room)))
        return await asyncio.shield(self._states[room])

    def add(self, room: str, member: str | None, event: asyncio.Event) -> None:
        """Register a connection. Raises `ClassroomError` if the student has too many."""
        if self.loop is not (loop := asyncio.get_running_loop()):
            self.loop, self._states, self._watch = loop, {}, None  # tasks belong to their loop
        of_room = self.connections.setdefault(room, {})
        if member is not None and list(of_room.values()).count(member) >= TABS_EACH:
            raise ClassroomError(f"This room is already open in {TABS_EACH} tabs of this browser; close one of them.")
        of_room[event] = member
        self._wake(room, hosts_only=True)
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._follow_others())

    def remove(self, room: str, event: asyncio.Event) -> None:
        """Unregister a connection that has ended."""
        self.connections[room].pop(event)
        self._wake(room, hosts_only=True)
        if not self.connections[room]:
            del self.connections[room]
            self._states.pop(room, None)

    def connected_students(self, room: str) -> set[str]:
        """Return the ids of the students who are connected to this server."""
        return {member for member in self.connections.get(room, {}).values() if member is not None}

    async def _follow_others(self) -> None:
        """While there are connections, wake up those whose room another server has changed, or whose room has expired."""
        while self.connections:
            await asyncio.sleep(OTHERS_SECONDS)
            with suppress(ClassroomError):  # a database that cannot be used is reported where it is
                ended = set(self.connections) - await _read(rooms().ids)
                for room in list(self.connections) if await _write(rooms().is_changed_by_others) else ended:
                    self._wake(room)


def _students_state(room: str) -> tuple[str, int]:
    found = rooms().room(room)
    return json.dumps(for_students(found, rooms())), found.cleared


hub = Hub()


def for_students(room: Room, store: Rooms) -> dict[str, Any]:
    """Return the state of a room for its students: no results before they are revealed, and nothing about other students."""
    message: dict[str, Any] = {"type": "room", "shown": dict(room.shown), "lesson": room.lesson, "question": None}
    if (asked := room.asked) is not None:
        about = vars(asked.question) | {"id": asked.id, "round": asked.round, "truth": None, "votes": None}
        if asked.is_revealed:
            about |= {"truth": asked.truth, "votes": store.tally(asked.id), "twice": store.tally(asked.id, twice=True)}
        else:
            del about["shown"]
            message["shown"] = {}
        message["question"] = about
    return message


def _report(room: str, present: Set[str], sent: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    return for_host(rooms().room(room), rooms(), present, sent)


def for_host(room: Room, store: Rooms, present: Set[str], sent: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the report on a room for its lecturer: the number of students, the votes, and the work on exercises.

    Args:
        room: The room.
        store: All rooms.
        present: The ids of the connected students.
        sent: What the lecturer's page knows of each student already, which is left out; by id.

    Returns:
        The report as JSON, and what the page knows of each student after it.
    """
    message: dict[str, Any] = {"type": "host", "present": len(present), "question": None, "work": None}
    if (asked := room.asked) is not None:
        about = {name: value for name, value in vars(asked.question).items() if name != "shown"}
        about |= {"id": asked.id, "round": asked.round, "isRevealed": asked.is_revealed}
        about |= {"votes": store.tally(asked.id), "twice": store.tally(asked.id, twice=True)}
        about["asked"] = len(present | store.voters(asked.id, asked.round))
        message["question"] = about | {"truth": asked.truth if asked.is_revealed else None}
    found: dict[str, Any] = {}
    if room.lesson is not None:
        done: defaultdict[str, dict[int, Any]] = defaultdict(dict)
        for row in store.results(room.id, room.lesson["name"]):
            done[row["member"]][row["step"]] = {key: row[key] for key in ("tries", "seconds", "solved", "stuck")}
        for member in store.members(room.id):
            about = {
                "number": member.number,
                "name": member.name,
                "isHere": member.id in present,
                "mayShow": member.state is not None,
            }
            found[member.id] = about | {"work": done[member.id]}
        news = {name: about for name, about in found.items() if sent.get(name) != about}
        message["work"] = {
            "lesson": room.lesson,
            "students": news,
            "gone": [name for name in sent if name not in found],
        }
    return json.dumps(message), found


# ── wrong codes ──


class GuessLimiter:
    """A rate limit on wrong codes by address (a token bucket)."""

    def __init__(self) -> None:
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def is_allowed(self, address: str) -> bool:
        """Whether an address may send another code."""
        return self._remaining(address) >= 1

    def record_wrong(self, address: str) -> None:
        """Count a wrong code."""
        self._left[address] = (max(0.0, self._remaining(address) - 1), time.monotonic())
        self._left.move_to_end(address)
        while len(self._left) > 10_000:
            self._left.popitem(last=False)

    def _remaining(self, address: str) -> float:
        left, at = self._left.get(address, (float(GUESSES), 0.0))
        return min(GUESSES, left + (time.monotonic() - at) * GUESSES_A_MINUTE / 60)


guesses = GuessLimiter()


async def _find(connection: HTTPConnection) -> Room | Response:
    """Return the room of a code, or the response that refuses it.

    A student who has already joined the room is not refused because of wrong codes from the same address.
    """
    address, code = client_address(connection.scope), connection.path_params["code"]
    try:
        found = await _read(partial(rooms().find, code))
    except ClassroomError as error:
        return PlainTextResponse(str(error), 503)
    if guesses.is_allowed(address):
        if found is not None:
            return found
        guesses.record_wrong(address)
        why, status = f"There is no room {normalised(code)[:12]}. Check the six letters; rooms close after a day.", 404
    elif found is not None and await _read(partial(rooms().is_member, found.id, visitor_id_in(connection.cookies))):
        return found
    else:
        why, status = "Too many wrong codes have come from your address. Try again in a minute.", 429
    await asyncio.sleep(WRONG_SECONDS)
    return (
        _form(why, status) if connection.url.path.startswith(f"{base_path()}/join") else PlainTextResponse(why, status)
    )


def _with_room(answer: Callable[[Request, Room], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Return a route that calls `answer` with the room of the request's code, or refuses an unknown code."""

    async def route(request: Request) -> Response:
        found = await _find(request)
        return found if isinstance(found, Response) else await answer(request, found)

    return route


# ── pages ──


async def _join(request: Request) -> Response:
    code = normalised(request.query_params.get("code", ""))
    return RedirectResponse(f"{base_path()}/join/{quote(code, safe='')}", 303) if code else _form("")


async def _students_page(request: Request, room: Room) -> Response:
    return HTMLResponse(await asyncio.to_thread(_page))


@cache
def _page() -> str:
    from xformer.widgets import matrices_data, scene_data
    from xformer.widgets.page import stand_alone_page

    colours = matrices_data.COLOURS | scene_data.COLOURS
    inside = ("live", "attention_view", "scene", "matrices", "digit_pad")
    return stand_alone_page(
        "classroom", "room", {"colours": json.dumps(colours).encode()}, title="xformer: classroom", styles=inside
    )


def _form(problem: str, status: int = 200) -> Response:
    """Return the page that asks for a code. It is small, since it is also the response to wrong codes."""
    from xformer.widgets.scripts import style, themes

    light, dark = themes()
    warning = f'<p class="problem" role="alert">{escape(problem)}</p>' if problem else ""
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Join the lecture</title><style>
:root {{ color-scheme: light dark; {light} }}
@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}
body {{ margin: 0; padding: 20px; background: var(--st-background-color); }}
{style("classroom")}</style></head>
<body><main class="room ui entrance"><form action="{base_path()}/join">
<h1>Join the lecture</h1><p class="hint">Enter the six letters on the lecturer's screen.</p>
<label>Room code <input name="code" maxlength="12" required autofocus autocomplete="off" autocapitalize="characters"
spellcheck="false"></label><button type="submit">Join</button>{warning}</form></main></body></html>
"""
    return HTMLResponse(page, status)


async def _model(request: Request, room: Room) -> Response:
    name = request.query_params.get("name", "")
    shown = room.shown if room.asked is None else room.asked.question.shown
    is_of_lesson = room.lesson is not None and name == f"lesson:{room.lesson['name']}"
    if not is_of_lesson and (not name or name not in (room.shown.get("model"), shown.get("model"))):
        return PlainTextResponse("This room does not show that model.", 404)
    try:
        packed = await asyncio.to_thread(_packed, name)
    except XformerError as error:
        return PlainTextResponse(str(error), 409)
    headers = {"Cache-Control": "private, max-age=3600"}
    return Response(packed, media_type="application/octet-stream", headers=headers)


def _packed(name: str) -> bytes:
    """Return a model as packed by `xformer.live`, computed once for all students."""
    from pages.compute.byte_cache import shared
    from pages.compute.models import path_of
    from xformer.live.export import opened, pack_model

    def make() -> bytes:
        of_lesson = lessons().get(name.removeprefix("lesson:")) if name.startswith("lesson:") else None
        if of_lesson is None:
            title, checkpoint, _ = opened(path_of(name))
            return pack_model(checkpoint, name=title if "@" in name else name)
        with tempfile.TemporaryDirectory() as folder:
            title, checkpoint, snapshots = opened(model_of(of_lesson, FOLDER, Path(folder)))
            return pack_model(checkpoint, snapshots, of_lesson.input, name=title)

    return shared.get(("packed", name), make)


def lessons() -> Mapping[str, Lesson]:
    """Return the shipped lessons by name, in the order of Learn."""
    return shipped()


def exercises(name: str) -> tuple[int, ...]:
    """Return the steps of a shipped lesson that have an exercise, or the tasks of an assignment, from 0; or none."""
    from xformer.assignments.room import SETS

    if name in SETS:
        return tuple(range(len(SETS[name])))
    lesson = lessons().get(name)
    return () if lesson is None else lesson.exercise_steps


async def _lesson(request: Request, room: Room) -> Response:
    if room.lesson is None:
        return PlainTextResponse("This room has no lesson.", 404)
    given = await asyncio.to_thread(lessons)
    return JSONResponse(given[room.lesson["name"]].to_json())


async def _picture(request: Request, room: Room) -> Response:
    is_hidden = room.asked is not None and not room.asked.is_revealed
    picture = None if is_hidden else await _read(partial(rooms().picture, room.id))
    return Response(picture or b"", 200 if picture else 404, media_type="application/octet-stream")


async def _work(request: Request, room: Room) -> Response:
    """Record what a student's machine has checked: messages as on the websocket, one a line. See `xformer.assignments.room`."""
    if not (secret := visitor_id_in(request.cookies)):
        return PlainTextResponse("A report needs the number of a student.", 403)
    body = b""
    async for part in request.stream():
        if len(body := body + part) > MAX_CHARACTERS:
            return PlainTextResponse("The report is too long.", 413)
    try:
        admit_student(client_address(request.scope), room.id, secret)
        member = (await _write(partial(rooms().join, room.id, secret))).id
    except ClassroomError as error:
        return PlainTextResponse(str(error), 403)
    for line in body.decode("utf-8", "replace").splitlines():
        if (answer := await _handle(room.id, member, line)) is not None:
            return PlainTextResponse(json.loads(answer).get("text", NOT_UNDERSTOOD), 400)
        await asyncio.sleep(1 / MESSAGES_A_SECOND)
    return Response(status_code=204)


# ── websockets ──


async def _admit(websocket: WebSocket) -> tuple[Room, str] | None:
    """Return the room and the visitor's secret; None if the connection was refused and closed with a reason."""
    secret = visitor_id_in(websocket.cookies)
    await websocket.accept()  # otherwise the page could not tell a refusal from a restarting server
    if not secret:
        await websocket.close(REFUSED)
        return None
    found = await _find(websocket)
    if isinstance(found, Response):
        if found.status_code == 503:
            await websocket.send_text(json.dumps({"type": "problem", "text": bytes(found.body).decode()}))
        await websocket.close(ENDED if found.status_code == 404 else REFUSED)
        return None
    return found, secret


async def _run_connection(
    websocket: WebSocket,
    room: str,
    member: str | None,
    send: Callable[[asyncio.Event], Coroutine[Any, Any, None]],
    take: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    """Run `send` and `take` until one of them ends. Raises `ClassroomError` if the student has too many connections."""
    event = asyncio.Event()
    hub.add(room, member, event)
    tasks = {asyncio.create_task(send(event)), asyncio.create_task(take())}
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if isinstance(error := task.exception(), RoomEndedError):
                await websocket.close(ENDED)
            elif isinstance(error, ClassroomError):
                await websocket.close(TRY_AGAIN)
            elif error is not None and not isinstance(error, WebSocketDisconnect | RuntimeError):
                raise error
    finally:
        hub.remove(room, event)
        for task in tasks:
            task.cancel()


def _until_it_ends(serve: Callable[[WebSocket], Awaitable[None]]) -> Callable[[WebSocket], Awaitable[None]]:
    """Return a route that ends without an error when the browser leaves before it has been answered."""

    async def route(websocket: WebSocket) -> None:
        with suppress(WebSocketDisconnect):
            try:
                await serve(websocket)
            except ClassroomError:  # the database cannot be used now; the page tries again
                await websocket.close(TRY_AGAIN)

    return route


async def _host(websocket: WebSocket) -> None:
    admitted = await _admit(websocket)
    if admitted is None:
        return
    room, secret = admitted
    if not await _read(partial(rooms().is_owner, room.id, secret)):
        await websocket.close(REFUSED)
        return

    async def report(event: asyncio.Event) -> None:
        sent: dict[str, Any] = {}
        while True:
            event.clear()
            began = time.monotonic()
            text, sent = await _read(partial(_report, room.id, hub.connected_students(room.id), sent))
            await websocket.send_text(text)
            await asyncio.sleep(max(HOST_SECONDS, (time.monotonic() - began) / HOST_SHARE))
            await event.wait()

    async def wait_for_the_end() -> None:
        while True:
            await websocket.receive()
            await asyncio.sleep(1 / MESSAGES_A_SECOND)

    await _run_connection(websocket, room.id, None, report, wait_for_the_end)


async def _student(websocket: WebSocket) -> None:
    admitted = await _admit(websocket)
    if admitted is None:
        return
    room, secret = admitted

    async def follow(event: asyncio.Event) -> None:
        sent = ""
        while True:
            event.clear()
            text, cleared = await hub.state(room.id)
            if cleared != room.cleared:
                await websocket.close(REMOVED)
                return
            if text != sent:
                await websocket.send_text(text)
                sent = text
            await event.wait()

    async def take() -> None:
        while (received := await websocket.receive())["type"] != "websocket.disconnect":
            text = received.get("text") or ""
            if len(text) > MAX_CHARACTERS:
                await websocket.close(TOO_LARGE)
                return
            if (answer := await _handle(room.id, member, text)) is not None:
                await websocket.send_text(answer)
            await asyncio.sleep(1 / MESSAGES_A_SECOND)

    try:
        admit_student(client_address(websocket.scope), room.id, secret)
        member = (await _write(partial(rooms().join, room.id, secret))).id
        if (reply := await _read(partial(_earlier_vote, room, member))) is not None:
            await websocket.send_text(reply)
        await _run_connection(websocket, room.id, member, follow, take)
    except ClassroomError as error:
        await websocket.send_text(json.dumps({"type": "problem", "text": str(error)}))
        await websocket.close(REFUSED)


def _earlier_vote(room: Room, member: str) -> str | None:
    """Return the reply to a vote that was cast before a reload or a restart, or None."""
    if room.asked is None or (answer := rooms().vote_of(member, room.asked.id, room.asked.round)) is None:
        return None
    return _vote_reply(room.asked.id, room.asked.round, answer)


def _vote_reply(question: int, round: int, answer: str) -> str:
    return json.dumps({"type": "voted", "question": question, "round": round, "answer": answer})


async def _write(act: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(_writer, act)


async def _read(act: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(_reader, act)


async def _handle(room: str, member: str, text: str) -> str | None:
    """Handle a student's message and return the reply, if any. A malformed message changes nothing."""
    store = rooms()
    try:
        match parse(text):
            case Vote(question=question, round=round, answer=answer):
                await _write(partial(store.vote, member, question, round, answer))
                hub.changed(room, hosts_only=True)
                return _vote_reply(question, round, answer)
            case Work(lesson=lesson, step=step, tries=tries, solved=is_solved):
                if step not in await asyncio.to_thread(exercises, lesson):
                    raise ClassroomError("There is no such exercise.")
                await _write(partial(store.work, member, lesson, step, tries, is_solved))
            case Nickname(name=name):
                await _write(partial(store.rename, member, name))
            case Offer(state=state):
                await _write(partial(store.offer, member, state))
            case Forget():
                await _write(partial(store.forget, member))
                return json.dumps({"type": "forgotten"})
    except ClassroomError as error:
        return json.dumps({"type": "problem", "text": str(error)})
    hub.changed(room, hosts_only=True)
    return None
