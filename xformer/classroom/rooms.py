"""The classroom rooms of a server in one SQLite file: the shared view, members, questions, votes and solved exercises.

    rooms = Rooms("checkpoints/runs")
    room = rooms.open(owner)                                   # `owner` is a secret of the lecturer's browser
    member = rooms.join(room.id, secret).id                    # `secret` is a secret of the student's browser
    question = rooms.ask(room.id, Question("choice", "Which?", options=("a", "b")), truth=("1",))
    rooms.vote(member, question, 1, "1")

Rooms survive a restart of the server, because it reads the same file. Secrets are stored as hashes. A room is deleted with all
its data after a day, or when the lecturer ends it; a student's data is also deleted at the student's request.
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
"""The letters of room codes, without I, L and O, which look like 1 and 0. Six letters give 148 million codes."""
CODE_LENGTH = 6
LIFETIME = 24 * 3600.0
"""Seconds until a room is deleted."""
MAX_ROOMS, MAX_MEMBERS = 200, 2000
"""Largest number of rooms on a server, and of students in a room."""
MAX_CELLS, MAX_OPTIONS = 64, 512
"""Largest number of tokens on each side of an attention map in a question, and of answers to choose from."""
KINDS = ("cell", "token", "head", "choice")
STUCK_SECONDS = 240.0
"""Seconds of work on an unsolved exercise after which a student is listed as stuck."""
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
    """A question, without its right answer, so that it can be sent to everyone.

    Attributes:
        kind: "cell" asks for a cell of an attention map, "token" for an output, "head" for a head, "choice" for any option.
        text: The question.
        options: The answers to choose from; empty for the kind "cell".
        queries: The labels of the map's rows.
        keys: The labels of its columns.
        query: The row in which the cell must be; None for any row.
        about: A description of the input, the head and the changes that the question is about.
        shown: The view to show when the result is revealed, in the form of `Rooms.show`.
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
            raise ClassroomError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}; for example 'cell'.")
        if not self.text.strip():
            raise ClassroomError("A question needs a text, got none; for example “Where will it look?”.")
        n = len(self.options)
        if self.kind != "cell" and not 2 <= n <= MAX_OPTIONS:
            raise ClassroomError(f"A question needs 2 to {MAX_OPTIONS} answers, got {n}; for example yes and no.")
        if self.kind == "cell" and not all(1 <= len(side) <= MAX_CELLS for side in (self.queries, self.keys)):
            what = f"A question about a cell needs a map of at most {MAX_CELLS} × {MAX_CELLS}"
            raise ClassroomError(f"{what}, got {len(self.queries)} × {len(self.keys)}; use a shorter input.")

    def accepts(self, answer: object) -> bool:
        """Return whether an answer is valid: "2.0" for query 2 and key 0, or the index of an option."""
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
    """A question of a room, with the round of its vote. `truth` has the right answers and is sent only once revealed."""

    id: int
    question: Question
    truth: tuple[str, ...]
    round: int
    is_revealed: bool


@dataclass(frozen=True)
class Room:
    """The state of a room. `shown` is the view that students follow, `lesson` the name and step of their lesson."""

    id: str
    code: str
    shown: Mapping[str, Any]
    lesson: Mapping[str, Any] | None
    is_paused: bool
    asked: Asked | None


@dataclass(frozen=True)
class Member:
    """A student in a room. `state` is the view on the student's page, or None without consent to share it."""

    id: str
    number: int
    nickname: str
    state: Mapping[str, Any] | None

    @property
    def name(self) -> str:
        """The nickname if there is one, else "Student" and the number."""
        return self.nickname or f"Student {self.number}"


def normalised(code: str) -> str:
    """Return a code in its stored form: upper case, without spaces and dashes."""
    return re.sub(r"[\s-]", "", code).upper()[: 2 * CODE_LENGTH]


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()


class Rooms:
    """All rooms of a server, accessed through one connection that any thread may use."""

    def __init__(self, folder: str | Path) -> None:
        self.file = Path(folder) / FILE
        self._db: sqlite3.Connection | None = None
        self._lock = threading.RLock()

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection to one thread at a time."""
        with self._lock:
            try:
                if self._db is None:
                    self._db = self._connected()
                yield self._db
            except (sqlite3.Error, OSError) as error:
                raise ClassroomError(f"The database of rooms ({FILE}) cannot be used: {error}.") from error

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
        """Yield the connection in a transaction, which is rolled back on an error."""
        with self._connection() as db, db:  # the connection itself commits, or rolls back on an exception
            db.execute("BEGIN IMMEDIATE")
            yield db

    def _run(self, query: str, *values: object) -> list[sqlite3.Row]:
        """Run one statement and return its rows. Returns no rows, and creates no file, if there has been no room yet."""
        if self._db is None and not self.file.exists():
            return []
        with self._connection() as db:
            return db.execute(query, values).fetchall()

    # ── rooms ──

    def open(self, owner: str) -> Room:
        """Open a room for a lecturer, replacing the lecturer's previous room. Raises `ClassroomError` if there are too many."""
        if not owner:
            raise ClassroomError("Opening a room requires cookies; allow them in your browser.")
        self.delete_expired()
        room = secrets.token_hex(16)
        with self._writing() as db:
            db.execute("DELETE FROM rooms WHERE owner = ?", (_hash(owner),))
            if (n := db.execute("SELECT count(*) FROM rooms").fetchone()[0]) >= MAX_ROOMS:
                raise ClassroomError(f"This server has {n} rooms, and {MAX_ROOMS} are allowed; try again later.")
            while True:
                code = "".join(secrets.choice(LETTERS) for _ in range(CODE_LENGTH))
                if not db.execute("SELECT 1 FROM rooms WHERE code = ?", (code,)).fetchone():
                    break
            values = (room, code, _hash(owner), time.time())
            db.execute("INSERT INTO rooms (id, code, owner, opened) VALUES (?, ?, ?, ?)", values)
        return self.room(room)

    def find(self, code: str) -> Room | None:
        """Return the room with a code; None if there is none, or if it has expired."""
        return self._room("code = ?", normalised(code))

    def of(self, owner: str) -> Room | None:
        """Return the room of the lecturer with this secret, or None."""
        return self._room("owner = ?", _hash(owner)) if owner else None

    def is_owner(self, room: str, owner: str) -> bool:
        """Return whether the room belongs to this lecturer."""
        found = self.of(owner)
        return found is not None and found.id == room

    def room(self, room: str) -> Room:
        """Return a room by its id. Raises `ClassroomError` if it has ended."""
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
        """Set the view that students follow. Their pages show `picture` instead if they cannot run the model."""
        self._set(room, shown=json.dumps(shown), picture=picture)

    def picture(self, room: str) -> bytes | None:
        """Return the picture of the current view, or None."""
        return next((row["picture"] for row in self._run("SELECT picture FROM rooms WHERE id = ?", room)), None)

    def pause(self, room: str, is_paused: bool) -> None:
        """Pause or resume showing the lecturer's changes to the students."""
        self._set(room, is_paused=int(is_paused))

    def teach(self, room: str, lesson: str | None, step: int = 0) -> None:
        """Start a lesson for the students, or move to another step; None ends it."""
        self._set(room, lesson=None if lesson is None else json.dumps({"name": lesson, "step": step}))

    def _set(self, room: str, **values: Any) -> None:
        names = ", ".join(f"{name} = ?" for name in values)
        self._run(f"UPDATE rooms SET {names} WHERE id = ?", *values.values(), room)

    def end(self, room: str) -> None:
        """Delete a room and all its data."""
        self._run("DELETE FROM rooms WHERE id = ?", room)
        self._empty_log()

    def delete_expired(self) -> int:
        """Delete expired rooms. Returns their number."""
        expired = self._run("SELECT id FROM rooms WHERE opened <= ?", time.time() - LIFETIME)
        for row in expired:
            self.end(row["id"])
        return len(expired)

    def _empty_log(self) -> None:
        """Empty SQLite's write-ahead log, so that no deleted data remains in it."""
        with self._connection() as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    # ── students ──

    def join(self, room: str, secret: str) -> Member:
        """Return the student with this secret, adding one on the first visit. Raises `ClassroomError` if the room is full."""
        member = _hash(room, secret)
        with self._writing() as db:
            if db.execute("SELECT 1 FROM rooms WHERE id = ?", (room,)).fetchone() is None:
                raise ClassroomError("This room has ended.")
            if db.execute("SELECT 1 FROM members WHERE id = ?", (member,)).fetchone() is None:
                of_room = "FROM members WHERE room = ?"
                n, last = db.execute(f"SELECT count(*), coalesce(max(number), 0) {of_room}", (room,)).fetchone()
                if n >= MAX_MEMBERS:
                    raise ClassroomError(f"This room has {n} students, and {MAX_MEMBERS} are allowed.")
                db.execute("INSERT INTO members (id, room, number) VALUES (?, ?, ?)", (member, room, last + 1))
            return _member(db.execute("SELECT * FROM members WHERE id = ?", (member,)).fetchone())

    def is_member(self, room: str, secret: str) -> bool:
        """Return whether this browser has joined the room."""
        return bool(self._run("SELECT 1 FROM members WHERE id = ?", _hash(room, secret)))

    def members(self, room: str) -> list[Member]:
        """Return the students of a room in the order in which they joined."""
        return [_member(row) for row in self._run("SELECT * FROM members WHERE room = ? ORDER BY number", room)]

    def rename(self, member: str, nickname: str) -> None:
        """Set the nickname that the lecturer sees, cut to 24 characters."""
        shown = " ".join("".join(letter for letter in nickname if letter.isprintable()).split())[:24]
        self._run("UPDATE members SET nickname = ? WHERE id = ?", shown, member)

    def offer(self, member: str, state: Mapping[str, Any] | None) -> None:
        """Store the view that a student consents to the lecturer showing; None withdraws the consent."""
        self._run("UPDATE members SET state = ? WHERE id = ?", None if state is None else json.dumps(state), member)

    def forget(self, member: str) -> None:
        """Delete a student with all votes and solved exercises."""
        self._run("DELETE FROM members WHERE id = ?", member)
        self._empty_log()

    # ── questions ──

    def ask(self, room: str, question: Question, truth: Iterable[str]) -> int:
        """Replace the current question and return the new one's id. Votes on earlier questions stay until the room ends."""
        right = tuple(truth)
        if wrong := [answer for answer in right if not question.accepts(answer)]:
            raise ClassroomError(f"The right answer must be one of the answers, got {wrong[0]!r}; for example '0'.")
        with self._writing() as db:
            db.execute("UPDATE questions SET phase = 'over' WHERE room = ?", (room,))
            values = (room, json.dumps(asdict(question)), json.dumps(right))
            added = db.execute("INSERT INTO questions (room, content, truth) VALUES (?, ?, ?)", values)
            return int(added.lastrowid or 0)

    def ask_again(self, question: int) -> None:
        """Start the second round of a vote, after the discussion."""
        self._move(question, "round = 2", "phase = 'voting'")

    def reveal(self, question: int) -> None:
        """End the vote and reveal the right answer."""
        self._move(question, "phase = 'revealed'", "phase = 'voting'")

    def finish(self, question: int) -> None:
        """Close a question, so that students follow the lecture again."""
        self._move(question, "phase = 'over'", "phase != 'over'")

    def _move(self, question: int, change: str, where: str) -> None:
        self._run(f"UPDATE questions SET {change} WHERE id = ? AND {where}", question)

    def vote(self, member: str, question: int, round: int, answer: str) -> None:
        """Record a vote; a later vote in the same round replaces it. Raises `ClassroomError` if the vote has ended."""
        with self._writing() as db:
            query = "SELECT q.* FROM questions q JOIN members m USING (room) WHERE q.id = ? AND m.id = ?"
            row = db.execute(query, (question, member)).fetchone()
            if row is None or row["phase"] != "voting" or row["round"] != round:
                raise ClassroomError("This vote has ended.")
            if not _asked(row).question.accepts(answer):
                raise ClassroomError("This is not one of the answers.")
            query = "INSERT OR REPLACE INTO votes (question, round, member, answer) VALUES (?, ?, ?, ?)"
            db.execute(query, (question, round, member, answer))

    def vote_of(self, member: str, question: int, round: int) -> str | None:
        """Return the answer that a student chose in a round, or None."""
        query = "SELECT answer FROM votes WHERE question = ? AND round = ? AND member = ?"
        return next((row["answer"] for row in self._run(query, question, round, member)), None)

    def tally(self, question: int) -> dict[int, dict[str, int]]:
        """Return the number of votes for each answer, by round."""
        found: dict[int, dict[str, int]] = {}
        query = "SELECT round, answer, count(*) AS n FROM votes WHERE question = ? GROUP BY round, answer"
        for row in self._run(query, question):
            found.setdefault(row["round"], {})[row["answer"]] = row["n"]
        return found

    # ── exercises ──

    def work(self, member: str, lesson: str, exercise: int, tries: int, is_solved: bool) -> None:
        """Record a student's work on an exercise, identified by its step. A solved exercise stays solved."""
        now = time.time()
        query = (
            "INSERT INTO work (member, lesson, exercise, tries, begun, solved) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (member, lesson, exercise) DO UPDATE SET tries = max(tries, excluded.tries), "
            "solved = coalesce(solved, excluded.solved)"
        )
        self._run(query, member, lesson, exercise, tries, now, now if is_solved else None)

    def results(self, room: str, lesson: str | None = None) -> list[dict[str, Any]]:
        """Return a row for each student and exercise: student, lesson, step, tries, seconds, solved, stuck, member."""
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
