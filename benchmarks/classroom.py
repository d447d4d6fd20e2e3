"""Classroom mode on its own server: a class that follows and votes, a server that is killed during votes, guessed codes.

    python -m benchmarks.classroom --what load --students 200 [--tabs 10] [--beside "hostile students"]
    python -m benchmarks.classroom --what restart --trials 200
    python -m benchmarks.classroom --what guesses --guesses 10000

Most students are websockets of this process and some are Chromium tabs; the lecturer is a tab too. The server, the students and
the browser share the processors of one machine.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import multiprocessing
import os
import random
import secrets
import socket
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, Page, expect
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from benchmarks.chromium import chromium
from benchmarks.crowd import resident
from benchmarks.measure import Machine, options, show
from pages.server.access import COOKIE
from tests.attack import classroom
from tests.attack.strangers import Ground
from tests.browser.serving import launch, stop
from xformer.classroom.rooms import Room, RoomQuestion, Rooms
from xformer.training.run_store import RunStore

SCREEN = "/attention?model=reverse&input=3+7+12+9&mask=as+trained&head=3.1"
MASKS = ("causal", "as trained")
TOGGLES = 10
PATIENCE = 180.0
MEMORY_SECONDS = 120.0
"""The time in which the memory of the server must return to that before the class, within a tenth."""


def main() -> None:
    given = options(
        __doc__,
        rounds=1,
        what={"choices": ["load", "restart", "guesses"], "default": "load"},
        students={"type": int, "default": 200, "help": "connections, including the tabs"},
        tabs={"type": int, "default": 10, "help": "number of students that are Chromium tabs"},
        trials={"type": int, "default": 200, "help": "number of times that the server is killed"},
        guesses={"type": int, "default": 10_000, "help": "number of wrong codes"},
        beside={"default": "", "help": "a kind of tests.attack.classroom that attacks the server meanwhile"},
    )
    machine = Machine.start(given.threads)
    if given.what == "load":
        rows, notes = load(given.students, given.tabs, given.beside)
    elif given.what == "restart":
        rows, notes = restart(given.trials)
    else:
        rows, notes = guess(given.guesses)
    show(f"Classroom {given.what}", machine, rows, notes, given)


def p95(values: Sequence[float]) -> float:
    """Return the 95th percentile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]


def row(what: str, seconds: Sequence[float]) -> dict[str, Any]:
    """Return a row of the table, in milliseconds."""
    return {
        "what": what, "n": len(seconds), "median ms": 1000 * statistics.median(seconds),
        "p95 ms": 1000 * p95(seconds), "max ms": 1000 * max(seconds),
    }  # fmt: skip


class Student:
    """A websocket that behaves like the students' page: it reconnects, and resends an answer until it is confirmed."""

    def __init__(self, address: str, code: str) -> None:
        self.url = f"{address.replace('http', 'ws')}/room/{code}"
        self.cookie = secrets.token_hex(16)
        self.arrived: dict[str, float] = {}
        """The time at which each mask arrived."""
        self.confirmed: dict[int, tuple[str, float]] = {}
        self.pending: dict[str, Any] | None = None
        self.errors: list[str] = []
        self.messages = 0
        self.socket: ClientConnection | None = None
        self.connected = asyncio.Event()

    async def run(self) -> None:
        while True:
            try:
                async with connect(
                    self.url, additional_headers={"Cookie": f"{COOKIE}={self.cookie}"}, open_timeout=60, proxy=None
                ) as self.socket:
                    async for text in self.socket:
                        self.take(json.loads(text), time.perf_counter())
                        if not self.connected.is_set():
                            self.connected.set()
                            if self.pending is not None:
                                await self.socket.send(json.dumps(self.pending))
                    self.errors.append(f"closed with {self.socket.close_code}")
            except (OSError, ConnectionClosed, InvalidHandshake) as error:
                self.errors.append(type(error).__name__)
            self.connected.clear()
            await asyncio.sleep(random.uniform(0.2, 1.2))

    def take(self, message: dict[str, Any], now: float) -> None:
        self.messages += 1
        if message["type"] == "room" and "state" in message["shown"]:
            self.arrived[message["shown"]["state"]["mask"]] = now
        if message["type"] == "problem" and self.pending is not None:
            asyncio.get_running_loop().call_later(0.5, lambda: asyncio.ensure_future(self._send_pending()))
        if message["type"] == "voted":
            self.confirmed[message["question"]] = message["answer"], now
            if self.pending and (self.pending["question"], self.pending["answer"]) == (
                message["question"],
                message["answer"],
            ):
                self.pending = None

    async def vote(self, question: int, answer: str) -> None:
        self.pending = {"type": "vote", "question": question, "round": 1, "answer": answer}
        await self._send_pending()

    async def _send_pending(self) -> None:
        if self.pending is not None and self.socket is not None and self.connected.is_set():
            with suppress(ConnectionClosed):
                await self.socket.send(json.dumps(self.pending))


class Crowd:
    """Students in a thread with its own event loop."""

    def __init__(self, address: str, code: str, n: int) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.students: list[Student] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.call(self._connect(address, code, n))

    def call(self, work: Any, timeout: float = PATIENCE) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)

    async def _connect(self, address: str, code: str, n: int) -> None:
        for at in range(n):
            self.students.append(Student(address, code))
            self.tasks.append(asyncio.create_task(self.students[-1].run()))
            if at % 20 == 19:
                await asyncio.sleep(0.1)
        await asyncio.gather(*(student.connected.wait() for student in self.students))

    async def leave(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


# ── a class ──


def opened(browser: Browser, address: str) -> tuple[Page, str]:
    """Open a room; return the lecturer's tab and the code of the room."""
    page = browser.new_context(viewport={"width": 1280, "height": 720}).new_page()
    page.set_default_timeout(1000 * PATIENCE)
    page.goto(address + SCREEN)
    page.locator(".st-key-attention .head .name").wait_for()
    page.locator(".st-key-present button").first.click()
    page.get_by_role("button", name="Open a room").click()
    code = page.locator(".st-key-join h2").inner_text().replace(" ", "")
    page.keyboard.press("Escape")
    return page, code


def toggle(page: Page, mask: str) -> tuple[float, float]:
    """Choose a mask. Return the time of the click and the seconds until the lecturer sees the changed answers."""
    wanted = "right instead of" if mask == "causal" else "4 of 4 right"
    button = page.locator(".st-key-mask").get_by_text(mask, exact=True)
    start = time.perf_counter()
    button.click()
    expect(page.locator(".st-key-verdict").get_by_text(wanted)).to_be_visible(timeout=1000 * PATIENCE)
    return start, time.perf_counter() - start


def load(n: int, n_tabs: int, beside: str = "") -> tuple[list[dict[str, Any]], list[str]]:
    """Measure how fast students see changes, how fast votes arrive, and how long the lecturer's clicks take."""
    expect.set_options(timeout=1000 * PATIENCE)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, chromium() as browser:
        runs, log = Path(folder) / "runs", Path(folder) / "server.log"
        server, address = launch(XFORMER_RUNS=str(runs), log=log)
        try:
            return _load(n, n_tabs, browser, server.pid, Rooms(runs), (beside, address, runs, log))
        finally:
            stop(server)


@contextmanager
def attacked(kind: str, address: str, runs: Path, log: Path) -> Iterator[None]:
    """Attack the server from another process during the block; "" for no attack."""
    if not kind:
        yield
        return
    context = multiprocessing.get_context("spawn")
    begun = context.Event()  # its imports take seconds of a core that the server would have otherwise
    process = context.Process(target=_attack, args=(kind, address, runs, log, begun), daemon=True)
    process.start()
    try:
        assert begun.wait(PATIENCE), "the attack did not begin"
        yield
        assert process.is_alive(), "the attack ended early"
    finally:
        process.terminate()
        process.join()


def _attack(name: str, address: str, runs: Path, log: Path, begun: Event) -> None:
    ground = Ground(address, RunStore(runs), log)
    kind = next(one for one in classroom.kinds(ground) if one.name == name)
    begun.set()
    for seed in itertools.count():
        with suppress(AssertionError):  # `python -m tests.attack` reports findings
            for _ in kind.trials(kind.short, random.Random(seed)):
                pass


def _load(
    n: int, n_tabs: int, browser: Browser, server: int, rooms: Rooms, attack: tuple[str, str, Path, Path]
) -> tuple[list[dict[str, Any]], list[str]]:
    address = attack[1]
    page, code = opened(browser, address)
    for mask in MASKS:
        toggle(page, mask)
    room = rooms.find(code)
    assert room is not None
    alone = [toggle(page, mask)[1] for _ in range(TOGGLES) for mask in MASKS]
    before = resident(server)
    started = time.perf_counter()
    crowd = Crowd(address, code, n - n_tabs)
    came = time.perf_counter() - started
    tabs = [_tab(browser, f"{address}/join/{code}") for _ in range(n_tabs)]
    with attacked(*attack):
        together, arrived, seen = _toggles(page, crowd, tabs)
        votes, shown = _votes(page, crowd, tabs, rooms, room)
    errors = Counter(error for student in crowd.students for error in student.errors)
    largest = resident(server)
    crowd.call(crowd.leave())
    left = time.perf_counter()
    while resident(server) > 1.1 * before and time.perf_counter() - left < MEMORY_SECONDS:
        time.sleep(1)
    rows = [
        row("lecturer's click → the lecturer's screen, alone", alone),
        row(f"the same with {n} students", together),
        row("lecturer's click → a student's websocket", arrived),
        *([row("lecturer's click → drawn in a student's tab", seen)] if seen else []),
        row("vote → confirmed to the student", votes),
        row("last vote → all votes on the lecturer's screen", shown),
    ]
    ratio = statistics.median(together) / statistics.median(alone)
    return rows, [
        f"{n} students, {n_tabs} of them in Chromium; all joined within {came:.1f} s.",
        f"With students, the lecturer's clicks take {ratio:.2f} times as long.",
        f"Connection errors: {dict(errors) or 'none'}.",
        f"Memory of the server: {before / 1e6:.0f} MB before the class, {largest / 1e6:.0f} MB at its end, "
        f"{resident(server) / 1e6:.0f} MB {time.perf_counter() - left:.0f} s later.",
    ]


def _tab(browser: Browser, address: str) -> Page:
    page = browser.new_context(viewport={"width": 390, "height": 844}).new_page()
    page.set_default_timeout(1000 * PATIENCE)
    page.goto(address)
    page.wait_for_function("window.xformerRoom?.page")
    page.evaluate(
        "window.xformerSeen = []; "
        "xformerRoom.page.onChange(() => xformerSeen.push([Date.now(), xformerRoom.page.state.mask]))"
    )
    return page


def _toggles(page: Page, crowd: Crowd, tabs: Sequence[Page]) -> tuple[list[float], list[float], list[float]]:
    """The seconds until the lecturer, the websockets and the tabs of the students see a change of the mask."""
    together: list[float] = []
    arrived: list[float] = []
    seen: list[float] = []
    offset = time.time() - time.perf_counter()
    for _ in range(TOGGLES):
        for mask in MASKS:
            state = "trained" if mask == MASKS[1] else mask
            start, took = toggle(page, mask)
            together.append(took)
            deadline = start + PATIENCE
            while any(student.arrived.get(state, 0) < start for student in crowd.students):
                assert time.perf_counter() < deadline, "a student got no state"
                time.sleep(0.02)
            arrived += [student.arrived[state] - start for student in crowd.students]
            for tab in tabs:
                tab.wait_for_function(f"xformerSeen.at(-1)?.[1] === '{state}'")
                seen.append(tab.evaluate("xformerSeen.at(-1)[0]") / 1000 - offset - start)
    return together, arrived, seen


def _votes(page: Page, crowd: Crowd, tabs: Sequence[Page], rooms: Rooms, room: Room) -> tuple[list[float], list[float]]:
    """Ask three questions, each answered by all students within two seconds."""
    confirmed: list[float] = []
    shown: list[float] = []
    for _ in range(3):
        page.locator(".st-key-present button").first.click()
        page.get_by_role("button", name="Ask a question").click()
        page.locator(".st-key-ask_now button").click()
        page.get_by_text("answered").wait_for()
        asked = rooms.room(room.id).asked
        assert asked is not None
        page.get_by_role("button", name="Show the votes").click()
        sent: dict[int, float] = {}

        async def vote(at: int, student: Student, question: int, sent: dict[int, float] = sent) -> None:
            await asyncio.sleep(random.uniform(0, 2))
            sent[at] = time.perf_counter()
            await student.vote(question, f"{random.randrange(4)}.{random.randrange(4)}")

        for tab in tabs:
            tab.locator(f"[data-answer='{random.randrange(4)}.0']").click()

        async def all_vote(question: int, vote: Any = vote) -> None:
            await asyncio.gather(*(vote(at, student, question) for at, student in enumerate(crowd.students)))

        crowd.call(all_vote(asked.id))
        last = time.perf_counter()
        n = len(crowd.students) + len(tabs)
        page.get_by_text(f"{n} of {n} answered").wait_for()
        shown.append(time.perf_counter() - last)
        deadline = time.perf_counter() + PATIENCE
        while any(asked.id not in student.confirmed for student in crowd.students):
            assert time.perf_counter() < deadline, "a vote was not confirmed"
            time.sleep(0.02)
        confirmed += [student.confirmed[asked.id][1] - sent[at] for at, student in enumerate(crowd.students)]
        assert sum(rooms.tally(asked.id)[1].values()) == n
        page.get_by_role("button", name="Reveal").click()
        page.get_by_role("button", name="Back to the lecture").click()
        expect(page.locator(".st-key-attention .head .name")).to_have_count(1)
    return confirmed, shown


# ── a server that is killed ──


def restart(trials: int, n: int = 20) -> tuple[list[dict[str, Any]], list[str]]:
    """Kill and restart the server during votes; count the lost votes and measure the time until all students are back."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    lost = twice = 0
    back: list[float] = []
    since_kill: list[float] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        rooms = Rooms(folder)
        room = rooms.open("lecturer")
        server, address = launch(port=port, XFORMER_RUNS=folder)
        crowd = Crowd(address, room.code, n)
        for trial in range(trials):
            question = rooms.ask(room.id, RoomQuestion("choice", f"Question {trial}", options=("a", "b", "c")), ["1"])
            answers = [str(random.randrange(3)) for _ in range(n)]

            async def vote(student: Student, answer: str, question: int = question) -> None:
                await asyncio.sleep(random.uniform(0, 0.3))
                await student.vote(question, answer)

            async def all_vote(answers: list[str] = answers, vote: Any = vote) -> None:
                await asyncio.gather(*map(vote, crowd.students, answers))

            voting = asyncio.run_coroutine_threadsafe(all_vote(), crowd.loop)
            time.sleep(random.uniform(0, 0.3))
            server.kill()
            killed = time.perf_counter()
            server.wait()
            voting.result(PATIENCE)
            server, _ = launch(port=port, XFORMER_RUNS=folder)
            there = time.perf_counter()
            while not all(question in student.confirmed and student.connected.is_set() for student in crowd.students):
                assert time.perf_counter() < there + PATIENCE, "a student did not come back"
                time.sleep(0.02)
            back.append(time.perf_counter() - there)
            since_kill.append(time.perf_counter() - killed)
            counted = rooms.tally(question).get(1, {})
            lost += max(0, n - sum(counted.values()))
            twice += max(0, sum(counted.values()) - n)
            wrong = Counter(answers) - Counter(counted)
            lost += 0 if sum(counted.values()) < n else sum(wrong.values())
        crowd.call(crowd.leave())
        stop(server)
    rows = [row("server answers → all back, all votes confirmed", back), row("killed → the same", since_kill)]
    return rows, [f"{trials} trials with {n} students: {lost} votes lost, {twice} counted twice."]


# ── guessed codes ──


def guess(n: int, at_once: int = 50) -> tuple[list[dict[str, Any]], list[str]]:
    """Try wrong codes as fast as the server allows, half of them by page request and half by websocket."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        rooms = Rooms(folder)
        room = rooms.open("lecturer")
        server, address = launch(XFORMER_RUNS=folder)
        crowd = Crowd(address, room.code, 1)
        try:
            started = time.perf_counter()
            outcome, seconds = asyncio.run(_guess(address, room.code, n, at_once))
            took = time.perf_counter() - started
            known = crowd.students[0]
            errors, stayed = known.errors, known.connected.is_set()
        finally:
            crowd.call(crowd.leave())
            stop(server)
    rows = [row("a wrong code → its refusal", seconds)]
    return rows, [
        f"{n:,} guesses, {at_once} at once, in {took:.0f} s: {dict(outcome)}.",
        f"A student of the room stayed connected: {stayed}, errors {errors or 'none'}.",
    ]


async def _guess(address: str, code: str, n: int, at_once: int) -> tuple[Counter[str], list[float]]:
    outcome: Counter[str] = Counter()
    seconds: list[float] = []
    left = iter(range(n))
    cookie = {"Cookie": f"{COOKIE}={secrets.token_hex(16)}"}

    async def one(client: httpx.AsyncClient) -> None:
        for at in left:
            word = "".join(random.choice("ABCDEFGHJK") for _ in range(6))
            if word == code:
                continue
            start = time.perf_counter()
            if at % 2:
                outcome[f"page {(await client.get(f'{address}/join/{word}')).status_code}"] += 1
            else:
                url = f"{address.replace('http', 'ws')}/room/{word}"
                async with connect(url, additional_headers=cookie, proxy=None, open_timeout=60) as opened:
                    await opened.wait_closed()
                    outcome[f"websocket {opened.close_code}"] += 1
            seconds.append(time.perf_counter() - start)

    async with httpx.AsyncClient(timeout=60) as client:
        await asyncio.gather(*(one(client) for _ in range(at_once)))
    return outcome, seconds


if __name__ == "__main__":
    os.environ.setdefault("no_proxy", "127.0.0.1")
    main()
