"""The rooms of a server in one SQLite file: what is shown, who is there, questions, votes and solved exercises.

    rooms = Rooms("checkpoints/runs")
    room = rooms.open(owner)                                   # `owner` is a secret of the lecturer's browser
    member = rooms.join(room.id, secret).id                    # `secret` is one of the student's browser
    question = rooms.ask(room.id, Question("choice", "Which?", options=("a", "b")), truth=("1",))
    rooms.vote(member, question, 1, "1")

A restarted server reads the same file, so a room goes on. Secrets are stored as hashes. A room and all that belongs to it are
deleted after a day, or when the lecturer ends it; what a student left behind, whenever the student asks.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from xformer.errors import ClassroomError

FILE = "rooms.sqlite"
LETTERS = "ABCDEFGHJKMNPQRSTUVWXYZ"
"""Of a code: without I, L and O, which look like 1 and 0. Six of them make 148 million codes."""
CODE_LENGTH = 6
LIFETIME = 24 * 3600.0
"""Seconds until a room is deleted."""
MOST_ROOMS, MOST_MEMBERS = 200, 2000
"""Rooms of a server, and students of a room."""
MOST_CELLS, MOST_OPTIONS = 64, 512
"""Tokens on a side of a map on which a cell is asked for, and answers to choose from."""
KINDS = ("cell", "token", "head", "choice")
STUCK_SECONDS = 240.0
"""Who has worked on an exercise for so long without solving it is listed as stuck."""
_TABLES = """
CREATE TABLE IF NOT EXISTS rooms (
    id TEXT PRIMARY KEY, code TEXT UNIQUE NOT NULL, owner TEXT NOT NULL, opened REAL NOT NULL,
    shown TEXT NOT NULL DEFAULT '{}', picture BLOB, lesson TEXT, is_paused INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS members (
    id TEXT PRIMARY KEY, room TEXT NOT NULL REFERENCES rooms ON DELETE CASCADE, number INTEGER NOT NULL,
    nickname TEXT NOT NULL DEFAULT '', state TEXT);
CREATE INDEX IF NOT EXISTS members_of_room ON members (room);
CREATE TABLE IF NOT EXISTS questions (
    id INTEGER PRIMARY KEY AUTOINCREMENT, room TEXT NOT NULL REFERENCES rooms ON DELETE CASCADE,
    content TEXT NOT NULL, truth TEXT NOT NULL, round INTEGER NOT NULL DEFAULT 1, phase TEXT NOT NULL DEFAULT 'voting');
CREATE TABLE IF NOT EXISTS votes (
    question INTEGER NOT NULL REFERENCES questions ON DELETE CASCADE, round INTEGER NOT NULL,
    member TEXT NOT NULL REFERENCES members ON DELETE CASCADE, answer TEXT NOT NULL,
    PRIMARY KEY (question, round, member)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS work (
    member TEXT NOT NULL REFERENCES members ON DELETE CASCADE, lesson TEXT NOT NULL, exercise INTEGER NOT NULL,
    tries INTEGER NOT NULL, begun REAL NOT NULL, solved REAL, PRIMARY KEY (member, lesson, exercise)) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Question:
    """What is asked. It holds nothing of the result, so that it can be sent to everybody.

    Attributes:
        kind: "cell" asks for a cell of an attention map, "token" for an answer, "head" for a head, "choice" is free.
        text: The question.
        options: The answers to choose from, except of a cell.
        queries: The labels of the map's rows.
        keys: The labels of its columns.
        query: The row that is asked for; None for a cell of any row.
        about: What the question is about, in words: the input, the head, the changes.
        shown: What is shown when the result is revealed, as `Rooms.show` takes it.
    """

    kind: str
    text: str
    options: tuple[str, ...] = ()
    queries: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    query: int | None = None
    about: str = ""
    shown: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ClassroomError(f"A question is one of {', '.join(KINDS)}, got {self.kind!r}; for example 'cell'.")
        if not self.text.strip():
            raise ClassroomError("A question has a text, got none; for example “Where will it look?”.")
        n_options = len(self.options)
        if self.kind != "cell" and not 2 <= n_options <= MOST_OPTIONS:
            raise ClassroomError(
                f"A question has 2 to {MOST_OPTIONS} answers, got {n_options}; for example yes and no."
            )
        if self.kind == "cell" and not all(1 <= len(side) <= MOST_CELLS for side in (self.queries, self.keys)):
            size = f"{len(self.queries)} × {len(self.keys)}"
            raise ClassroomError(
                f"A cell is asked for on a map of up to {MOST_CELLS} × {MOST_CELLS}, got {size}; take a shorter input."
            )

    def accepts(self, answer: object) -> bool:
        """Whether this is one of the answers: "2.0" for query 2 and key 0, or the number of an option."""
        if not isinstance(answer, str):
            return False
        if self.kind != "cell":
            return bool(re.fullmatch(r"\d{1,3}", answer, re.ASCII)) and int(answer) < len(self.options)
        cell = re.fullmatch(r"(\d{1,2})\.(\d{1,2})", answer, re.ASCII)
        if cell is None:
            return False
        query, key = int(cell[1]), int(cell[2])
        return self.query in (None, query) and query < len(self.queries) and key < len(self.keys)


@dataclass(frozen=True)
class Asked:
    """A question of a room, with the round of its vote. `truth` has the right answers, and is sent only when revealed."""

    id: int
    question: Question
    truth: tuple[str, ...]
    round: int
    is_revealed: bool


@dataclass(frozen=True)
class Room:
    """A room as it stands. `shown` is what students follow, `lesson` the name and step of the lesson that they work on."""

    id: str
    code: str
    shown: Mapping[str, Any]
    lesson: Mapping[str, Any] | None
    is_paused: bool
    asked: Asked | None


@dataclass(frozen=True)
class Member:
    """A student of a room. `state` is what the student's page shows, None without the consent to show it."""

    id: str
    number: int
    nickname: str
    state: Mapping[str, Any] | None

    @property
    def name(self) -> str:
        """The chosen nickname, else a number."""
        return self.nickname or f"Student {self.number}"


def normalised(code: str) -> str:
    """A code as it is stored: in capitals, without spaces and dashes."""
    return re.sub(r"[\s-]", "", code).upper()[: 2 * CODE_LENGTH]


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()


class Rooms:
    """All rooms of a server, over one connection that any thread may use."""

    def __init__(self, folder: str | Path) -> None:
        self.file = Path(folder) / FILE
        self._db: sqlite3.Connection | None = None
        self._lock = threading.RLock()

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """The connection, for one thread at a time."""
        with self._lock:
            try:
                if self._db is None:
                    self._db = self._connected()
                yield self._db
            except (sqlite3.Error, OSError) as error:
                raise ClassroomError(f"The rooms ({FILE}) cannot be used: {error}.") from error

    def _connected(self) -> sqlite3.Connection:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(self.file, timeout=10, isolation_level=None, check_same_thread=False)
        db.row_factory = sqlite3.Row
        db.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = ON;")
        db.execute("PRAGMA secure_delete = ON")
        db.executescript(f"BEGIN IMMEDIATE; {_TABLES} COMMIT")
        return db

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction; an error takes it back."""
        with self._connection() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

    def _run(self, query: str, *values: object) -> list[sqlite3.Row]:
        """The rows of one statement; nothing where there has been no room yet."""
        if self._db is None and not self.file.exists():
            return []
        with self._connection() as db:
            return db.execute(query, values).fetchall()

    # ── rooms ──

    def open(self, owner: str) -> Room:
        """Open a room for a lecturer, in place of the lecturer's last one. Raises `ClassroomError` where there are too many."""
        if not owner:
            raise ClassroomError("A room needs a browser that keeps cookies.")
        self.delete_expired()
        room = secrets.token_hex(16)
        with self._writing() as db:
            db.execute("DELETE FROM rooms WHERE owner = ?", (_hash(owner),))
            if (n := db.execute("SELECT count(*) FROM rooms").fetchone()[0]) >= MOST_ROOMS:
                raise ClassroomError(f"This server has {n} rooms, and {MOST_ROOMS} are allowed; try again later.")
            while True:
                code = "".join(secrets.choice(LETTERS) for _ in range(CODE_LENGTH))
                if not db.execute("SELECT 1 FROM rooms WHERE code = ?", (code,)).fetchone():
                    break
            values = (room, code, _hash(owner), time.time())
            db.execute("INSERT INTO rooms (id, code, owner, opened) VALUES (?, ?, ?, ?)", values)
        return self.room(room)

    def find(self, code: str) -> Room | None:
        """The room with a code; None where there is none, or where its time is over."""
        return self._room("code = ?", normalised(code))

    def of(self, owner: str) -> Room | None:
        """The room of a lecturer, by the lecturer's secret."""
        return self._room("owner = ?", _hash(owner)) if owner else None

    def is_owner(self, room: str, owner: str) -> bool:
        """Whether the room is this lecturer's."""
        found = self.of(owner)
        return found is not None and found.id == room

    def room(self, room: str) -> Room:
        """A room by its id. Raises `ClassroomError` when it has ended."""
        if (found := self._room("id = ?", room)) is None:
            raise ClassroomError("This room has ended; open another one.")
        return found

    def _room(self, where: str, value: str) -> Room | None:
        found = self._run(f"SELECT * FROM rooms WHERE {where} AND opened > ?", value, time.time() - LIFETIME)
        for row in found:
            asked = self._run("SELECT * FROM questions WHERE room = ? AND phase != 'over'", row["id"])
            lesson = json.loads(row["lesson"]) if row["lesson"] else None
            shown, question = json.loads(row["shown"]), _asked(asked[0]) if asked else None
            return Room(row["id"], row["code"], shown, lesson, bool(row["is_paused"]), question)
        return None

    def show(self, room: str, shown: Mapping[str, Any], picture: bytes | None = None) -> None:
        """Set what the students of a room follow; `picture` is what they draw where the model cannot run in their pages."""
        self._set(room, shown=json.dumps(shown), picture=picture)

    def picture(self, room: str) -> bytes | None:
        """The picture of what is shown."""
        return next((row["picture"] for row in self._run("SELECT picture FROM rooms WHERE id = ?", room)), None)

    def pause(self, room: str, is_paused: bool) -> None:
        """Stop or go on to show changes to the students."""
        self._set(room, is_paused=int(is_paused))

    def teach(self, room: str, lesson: str | None, step: int = 0) -> None:
        """Give the students a lesson, or another step of it; None ends it."""
        self._set(room, lesson=None if lesson is None else json.dumps({"name": lesson, "step": step}))

    def _set(self, room: str, **values: Any) -> None:
        names = ", ".join(f"{name} = ?" for name in values)
        self._run(f"UPDATE rooms SET {names} WHERE id = ?", *values.values(), room)

    def end(self, room: str) -> None:
        """Delete a room and all that belongs to it."""
        self._run("DELETE FROM rooms WHERE id = ?", room)
        self._empty_log()

    def delete_expired(self) -> int:
        """Delete the rooms whose time is over; returns how many there were."""
        expired = self._run("SELECT id FROM rooms WHERE opened <= ?", time.time() - LIFETIME)
        for row in expired:
            self.end(row["id"])
        return len(expired)

    def _empty_log(self) -> None:
        """Write the log back into the file, so that nothing deleted stays in it."""
        with self._connection() as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    # ── students ──

    def join(self, room: str, secret: str) -> Member:
        """The student of a browser; the same one whenever that browser comes back. Raises `ClassroomError` in a full room."""
        member = _hash(room, secret)
        with self._writing() as db:
            if db.execute("SELECT 1 FROM rooms WHERE id = ?", (room,)).fetchone() is None:
                raise ClassroomError("This room has ended.")
            if db.execute("SELECT 1 FROM members WHERE id = ?", (member,)).fetchone() is None:
                of_room = "FROM members WHERE room = ?"
                n, last = db.execute(f"SELECT count(*), coalesce(max(number), 0) {of_room}", (room,)).fetchone()
                if n >= MOST_MEMBERS:
                    raise ClassroomError(f"This room has {n} students, and {MOST_MEMBERS} are allowed.")
                db.execute("INSERT INTO members (id, room, number) VALUES (?, ?, ?)", (member, room, last + 1))
            return _member(db.execute("SELECT * FROM members WHERE id = ?", (member,)).fetchone())

    def is_member(self, room: str, secret: str) -> bool:
        """Whether this browser has joined the room before."""
        return bool(self._run("SELECT 1 FROM members WHERE id = ?", _hash(room, secret)))

    def members(self, room: str) -> list[Member]:
        """The students of a room, in the order in which they came."""
        return [_member(row) for row in self._run("SELECT * FROM members WHERE room = ? ORDER BY number", room)]

    def rename(self, member: str, nickname: str) -> None:
        """Set the nickname that the lecturer sees, of at most 24 characters."""
        shown = " ".join("".join(letter for letter in nickname if letter.isprintable()).split())[:24]
        self._run("UPDATE members SET nickname = ? WHERE id = ?", shown, member)

    def offer(self, member: str, state: Mapping[str, Any] | None) -> None:
        """Keep what a student's page shows, with the student's consent that the lecturer shows it; None withdraws it."""
        self._run("UPDATE members SET state = ? WHERE id = ?", None if state is None else json.dumps(state), member)

    def forget(self, member: str) -> None:
        """Delete a student, with all votes and solved exercises."""
        self._run("DELETE FROM members WHERE id = ?", member)
        self._empty_log()

    # ── questions ──

    def ask(self, room: str, question: Question, truth: Iterable[str]) -> int:
        """Ask a question in place of the last one; returns its id. The votes on earlier ones stay until the room ends."""
        right = tuple(truth)
        if wrong := [answer for answer in right if not question.accepts(answer)]:
            raise ClassroomError(f"The right answer is one of those to choose from, got {wrong[0]!r}; for example '0'.")
        with self._writing() as db:
            db.execute("UPDATE questions SET phase = 'over' WHERE room = ?", (room,))
            values = (room, json.dumps(asdict(question)), json.dumps(right))
            return int(
                db.execute("INSERT INTO questions (room, content, truth) VALUES (?, ?, ?)", values).lastrowid or 0
            )

    def ask_again(self, question: int) -> None:
        """Begin the second round of a vote, after the discussion."""
        self._move(question, "round = 2", "phase = 'voting'")

    def reveal(self, question: int) -> None:
        """End the vote and reveal the right answer."""
        self._move(question, "phase = 'revealed'", "phase = 'voting'")

    def finish(self, question: int) -> None:
        """Leave a question: the students follow the lecture again."""
        self._move(question, "phase = 'over'", "phase != 'over'")

    def _move(self, question: int, change: str, where: str) -> None:
        self._run(f"UPDATE questions SET {change} WHERE id = ? AND {where}", question)

    def vote(self, member: str, question: int, round: int, answer: str) -> None:
        """Count a vote; a later one of the round takes its place. Raises `ClassroomError` when it is too late."""
        with self._writing() as db:
            row = db.execute(
                "SELECT questions.* FROM questions JOIN members ON members.room = questions.room "
                "WHERE questions.id = ? AND members.id = ?",
                (question, member),
            ).fetchone()
            if row is None or row["phase"] != "voting" or row["round"] != round:
                raise ClassroomError("This vote has ended.")
            if not _asked(row).question.accepts(answer):
                raise ClassroomError("This is not one of the answers.")
            db.execute(
                "INSERT INTO votes (question, round, member, answer) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (question, round, member) DO UPDATE SET answer = excluded.answer",
                (question, round, member, answer),
            )

    def vote_of(self, member: str, question: int, round: int) -> str | None:
        """What a student has voted for in a round."""
        query = "SELECT answer FROM votes WHERE question = ? AND round = ? AND member = ?"
        return next((row["answer"] for row in self._run(query, question, round, member)), None)

    def tally(self, question: int) -> dict[int, dict[str, int]]:
        """The number of votes for each answer, by round."""
        found: dict[int, dict[str, int]] = {}
        query = "SELECT round, answer, count(*) AS n FROM votes WHERE question = ? GROUP BY round, answer"
        for row in self._run(query, question):
            found.setdefault(row["round"], {})[row["answer"]] = row["n"]
        return found

    # ── exercises ──

    def work(self, member: str, lesson: str, exercise: int, tries: int, is_solved: bool) -> None:
        """Record that a student works on an exercise of a lesson, by its step; once solved it stays so."""
        now = time.time()
        query = (
            "INSERT INTO work (member, lesson, exercise, tries, begun, solved) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (member, lesson, exercise) DO UPDATE SET tries = max(tries, excluded.tries), "
            "solved = coalesce(solved, excluded.solved)"
        )
        self._run(query, member, lesson, exercise, tries, now, now if is_solved else None)

    def results(self, room: str, lesson: str | None = None) -> list[dict[str, Any]]:
        """A row for each student and exercise: student, lesson, step, tries, seconds, solved, stuck."""
        query = (
            "SELECT members.*, work.* FROM work JOIN members ON members.id = work.member WHERE room = ? "
            "AND coalesce(?, lesson) = lesson ORDER BY number, lesson, exercise"
        )
        now, rows = time.time(), []
        for row in self._run(query, room, lesson):
            seconds = (row["solved"] or now) - row["begun"]
            rows.append({
                "student": _member(row).name, "lesson": row["lesson"], "step": row["exercise"] + 1,
                "tries": row["tries"], "seconds": round(seconds), "solved": row["solved"] is not None,
                "stuck": row["solved"] is None and seconds > STUCK_SECONDS, "member": row["member"],
            })  # fmt: skip
        return rows


def _member(row: sqlite3.Row) -> Member:
    state = json.loads(row["state"]) if row["state"] else None
    return Member(row["id"], row["number"], row["nickname"], state)


def _asked(row: sqlite3.Row) -> Asked:
    content = json.loads(row["content"])
    for name in ("options", "queries", "keys"):
        content[name] = tuple(content[name])
    truth = tuple(json.loads(row["truth"]))
    return Asked(row["id"], Question(**content), truth, row["round"], row["phase"] == "revealed")
