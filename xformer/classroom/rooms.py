"""The classroom rooms of a server in one SQLite file: the shared view, members, questions, votes and solved exercises.

    rooms = Rooms("checkpoints/runs")
    room = rooms.open(owner)                                   # `owner` is a secret of the lecturer's browser
    member = rooms.join(room.id, secret).id                    # `secret` is a secret of the student's browser
    question = rooms.ask(room.id, RoomQuestion("choice", "Which?", options=("a", "b")), truth=("1",))
    rooms.vote(member, question, 1, "1")

Rooms survive a restart of the server, because it reads the same file. Secrets are stored as hashes. A room is deleted with all
its data after a day, or when the lecturer ends it; a student's data is also deleted at the student's request.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from xformer.classroom.messages import PageState
from xformer.disk_quota import DiskQuota
from xformer.errors import ClassroomError, QuotaExceededError

FILE, RESERVE = "rooms.sqlite", "rooms.reserve"
RESERVE_BYTES = 4 * 1024**2
"""Size of a file that is given up on a full disk, so that what a student or a lecturer deletes can be deleted there too."""
BUSY_SECONDS = 1.0
"""Longest wait for a lock that another server holds on the database."""
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
    shown TEXT NOT NULL DEFAULT '{}', picture BLOB, lesson TEXT, is_paused INTEGER NOT NULL DEFAULT 0,
    is_locked INTEGER NOT NULL DEFAULT 0, cleared INTEGER NOT NULL DEFAULT 0);
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


class RoomEndedError(ClassroomError):
    """The room has ended or expired."""


class _FullDiskError(ClassroomError):
    """The disk has no room for a change."""


@dataclass(frozen=True)
class RoomQuestion:
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
    question: RoomQuestion
    truth: tuple[str, ...]
    round: int
    is_revealed: bool


@dataclass(frozen=True)
class Room:
    """The state of a room.

    Attributes:
        id: The secret name of the room.
        code: The six letters that students type.
        shown: The view that students follow.
        lesson: The name and step of their lesson, or None.
        is_paused: Whether students keep what they last saw.
        is_locked: Whether only those who have joined before may come in.
        cleared: How often the lecturer has removed all students.
        asked: The current question, or None.
    """

    id: str
    code: str
    shown: Mapping[str, Any]
    lesson: Mapping[str, Any] | None
    is_paused: bool
    is_locked: bool
    cleared: int
    asked: Asked | None


@dataclass(frozen=True)
class Student:
    """A student in a room. `state` is the view on the student's page, or None without consent to share it."""

    id: str
    number: int
    nickname: str
    state: PageState | None

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
    """All rooms of a server. Any thread may use them; one connection reads and one writes, so that a write delays no reader."""

    def __init__(self, folder: str | Path) -> None:
        self.file = Path(folder) / FILE
        self._reserve = Path(folder) / RESERVE
        self._quota = DiskQuota(Path(folder))
        self._connections: dict[str, sqlite3.Connection] = {}
        self._versions: dict[str, int] = {}
        self._locks = {"reader": threading.RLock(), "writer": threading.RLock()}

    @contextmanager
    def _connection(self, role: str) -> Iterator[sqlite3.Connection]:
        """Yield the connection that reads or the one that writes, to one thread at a time."""
        with self._locks[role]:
            try:
                if role not in self._connections:
                    db = self._connections[role] = self._connected()
                    self._versions[role] = db.execute("PRAGMA data_version").fetchone()[0]
                yield self._connections[role]
            except (sqlite3.Error, OSError) as error:
                code = getattr(error, "sqlite_errorcode", None)
                if code is not None and code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                    raise ClassroomError("Another server is using the database of rooms; try again.") from error
                if code == sqlite3.SQLITE_FULL or getattr(error, "errno", None) == errno.ENOSPC:
                    raise _FullDiskError("The disk of this server is full, so nothing was stored.") from error
                raise ClassroomError(
                    f"Rooms are off: {FILE} cannot be used ({error}). The operator of this server can delete it."
                ) from error

    def _connected(self) -> sqlite3.Connection:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with suppress(
            FileExistsError
        ):  # an existing file is not opened, because closing it would release SQLite's locks
            os.close(os.open(self.file, os.O_CREAT | os.O_EXCL, 0o600))
        self.file.chmod(0o600)  # SQLite's other files get its permissions
        db = sqlite3.connect(self.file, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        db.row_factory = sqlite3.Row
        for setting in ("auto_vacuum = FULL", "journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON"):
            db.execute(f"PRAGMA {setting}")
        db.execute("PRAGMA secure_delete = ON")
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'work'").fetchone():
            db.executescript(f"BEGIN IMMEDIATE; {_TABLES} COMMIT")
        return db

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection in a transaction, which is rolled back on an error."""
        with self._connection("writer") as db, db:  # the connection itself commits, or rolls back on an exception
            db.execute("BEGIN IMMEDIATE")
            yield db

    def _write(self, query: str, *values: object) -> None:
        """Run one statement that changes something, if there has been a room."""
        if self._connections or self.file.exists():
            with self._connection("writer") as db:
                db.execute(query, values)

    def _read(self, query: str, *values: object) -> list[sqlite3.Row]:
        """Run one query. Returns no rows, and creates no file, if there has been no room yet."""
        if not self._connections and not self.file.exists():
            return []
        with self._connection("reader") as db:
            return db.execute(query, values).fetchall()

    def _delete(self, query: str, *values: object) -> None:
        """Delete rows for good: also from SQLite's write-ahead log. Works on a full disk."""
        try:
            self._write(query, *values)
        except _FullDiskError:
            self._reserve.unlink(missing_ok=True)
            self._empty_log()
            self._write(query, *values)
        self._empty_log()

    def _empty_log(self) -> None:
        """Empty SQLite's write-ahead log, so that no deleted data remains in it."""
        if self._connections or self.file.exists():
            with self._connection("writer") as db:
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _keep_reserve(self) -> None:
        """Write the reserve, if the disk has room for it."""
        if not self._reserve.exists():
            with suppress(OSError):
                self._reserve.write_bytes(bytes(RESERVE_BYTES))

    def _check_space(self, n: int) -> None:
        """Raise `ClassroomError` if `n` more bytes exceed the disk quota."""
        try:
            self._quota.check(n, "This room")
        except QuotaExceededError as error:
            raise ClassroomError(str(error)) from error

    def is_changed_by_others(self) -> bool:
        """Whether another process has changed the rooms since the last call."""
        if not self._connections and not self.file.exists():
            return False
        with self._connection("writer") as db:
            before = self._versions["writer"]  # changes of its own connection do not count
            self._versions["writer"] = db.execute("PRAGMA data_version").fetchone()[0]
            return before != self._versions["writer"]

    # ── rooms ──

    def open(self, owner: str) -> Room:
        """Open a room for a lecturer, replacing the lecturer's previous room. Raises `ClassroomError` if there are too many."""
        if not owner:
            raise ClassroomError("Opening a room requires cookies; allow them in your browser.")
        self._check_space(RESERVE_BYTES)
        self.delete_expired()
        self._keep_reserve()
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
        return self._room("code", normalised(code))

    def of(self, owner: str) -> Room | None:
        """Return the room of the lecturer with this secret, or None."""
        return self._room("owner", _hash(owner)) if owner else None

    def is_owner(self, room: str, owner: str) -> bool:
        """Return whether the room belongs to this lecturer."""
        found = self.of(owner)
        return found is not None and found.id == room

    def room(self, room: str) -> Room:
        """Return a room by its id. Raises `RoomEndedError` if it has ended."""
        if (found := self._room("id", room)) is None:
            raise RoomEndedError("This room has ended; open another one.")
        return found

    def ids(self) -> set[str]:
        """Return the ids of all rooms that have neither ended nor expired."""
        return {row["id"] for row in self._read("SELECT id FROM rooms WHERE opened > ?", time.time() - LIFETIME)}

    def _room(self, column: str, value: str) -> Room | None:
        query = (
            "SELECT r.id AS room, code, shown, lesson, is_paused, is_locked, cleared, q.* FROM rooms r "
            f"LEFT JOIN questions q ON q.room = r.id AND phase != 'over' WHERE r.{column} = ? AND opened > ?"
        )
        for row in self._read(query, value, time.time() - LIFETIME):
            lesson = json.loads(row["lesson"]) if row["lesson"] else None
            flags = bool(row["is_paused"]), bool(row["is_locked"]), row["cleared"]
            asked = None if row["id"] is None else _asked(row)
            return Room(row["room"], row["code"], json.loads(row["shown"]), lesson, *flags, asked)
        return None

    def show(self, room: str, shown: Mapping[str, Any], picture: bytes | None = None) -> None:
        """Set the view that students follow. Their pages show `picture` instead if they cannot run the model."""
        self._check_space(len(picture or b""))
        self._set(room, shown=json.dumps(shown), picture=picture)

    def picture(self, room: str) -> bytes | None:
        """Return the picture of the current view, or None."""
        return next((row["picture"] for row in self._read("SELECT picture FROM rooms WHERE id = ?", room)), None)

    def pause(self, room: str, is_paused: bool) -> None:
        """Pause or resume showing the lecturer's changes to the students."""
        self._set(room, is_paused=int(is_paused))

    def lock(self, room: str, is_locked: bool) -> None:
        """Let in only those who have joined before, or everybody who has the code."""
        self._set(room, is_locked=int(is_locked))

    def clear(self, room: str) -> None:
        """Remove all students with their votes and exercises. Their pages must join again."""
        self._write("UPDATE rooms SET cleared = cleared + 1 WHERE id = ?", room)
        self._delete("DELETE FROM members WHERE room = ?", room)

    def teach(self, room: str, lesson: str | None, step: int = 0) -> None:
        """Start a lesson for the students, or move to another step; None ends it."""
        self._set(room, lesson=None if lesson is None else json.dumps({"name": lesson, "step": step}))

    def _set(self, room: str, **values: Any) -> None:
        names = ", ".join(f"{name} = ?" for name in values)
        self._write(f"UPDATE rooms SET {names} WHERE id = ?", *values.values(), room)

    def end(self, room: str) -> None:
        """Delete a room and all its data."""
        self._delete("DELETE FROM rooms WHERE id = ?", room)

    def delete_expired(self) -> int:
        """Delete expired rooms. Returns their number."""
        expired = self._read("SELECT id FROM rooms WHERE opened <= ?", time.time() - LIFETIME)
        for row in expired:
            self.end(row["id"])
        return len(expired)

    # ── students ──

    def join(self, room: str, secret: str) -> Student:
        """Return the student with this secret, adding one on the first visit.

        Raises:
            ClassroomError: The room has ended, is full or locked, or nothing can be stored.
        """
        member = _hash(room, secret)
        if known := self._read("SELECT * FROM members WHERE id = ?", member):  # returns on a full disk too
            return _member(known[0])
        self._check_space(0)
        with self._writing() as db:
            found = db.execute("SELECT is_locked FROM rooms WHERE id = ?", (room,)).fetchone()
            if found is None:
                raise RoomEndedError("This room has ended.")
            if found["is_locked"]:
                raise ClassroomError("The lecturer has locked this room; ask to be let in.")
            if db.execute("SELECT 1 FROM members WHERE id = ?", (member,)).fetchone() is None:
                of_room = "FROM members WHERE room = ?"
                n, last = db.execute(f"SELECT count(*), coalesce(max(number), 0) {of_room}", (room,)).fetchone()
                if n >= MAX_MEMBERS:
                    raise ClassroomError(f"This room has {n} students, and {MAX_MEMBERS} are allowed.")
                db.execute("INSERT INTO members (id, room, number) VALUES (?, ?, ?)", (member, room, last + 1))
            return _member(db.execute("SELECT * FROM members WHERE id = ?", (member,)).fetchone())

    def is_member(self, room: str, secret: str) -> bool:
        """Return whether this browser has joined the room."""
        return bool(self._read("SELECT 1 FROM members WHERE id = ?", _hash(room, secret)))

    def members(self, room: str) -> list[Student]:
        """Return the students of a room in the order in which they joined."""
        return [_member(row) for row in self._read("SELECT * FROM members WHERE room = ? ORDER BY number", room)]

    def rename(self, member: str, nickname: str) -> None:
        """Set the nickname that the lecturer sees, cut to 24 characters."""
        shown = " ".join("".join(letter for letter in nickname if letter.isprintable()).split())[:24]
        self._write("UPDATE members SET nickname = ? WHERE id = ?", shown, member)

    def offer(self, member: str, state: PageState | None) -> None:
        """Store the view that a student consents to the lecturer showing; None withdraws the consent."""
        written = None if state is None else state.model_dump_json()
        self._write("UPDATE members SET state = ? WHERE id = ?", written, member)

    def forget(self, member: str) -> None:
        """Delete a student with all votes and solved exercises."""
        self._delete("DELETE FROM members WHERE id = ?", member)

    # ── questions ──

    def ask(self, room: str, question: RoomQuestion, truth: Iterable[str]) -> int:
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

    def reveal(self, question: int, right: str | None = None) -> None:
        """End the vote and reveal the right answer; `right` sets it for a question that was asked without one."""
        if right is not None:
            row = next(iter(self._read("SELECT * FROM questions WHERE id = ?", question)), None)
            if row is None or _asked(row).truth or not _asked(row).question.accepts(right):
                raise ClassroomError(f"The right answer must be one of the answers, got {right!r}; for example '0'.")
            self._write("UPDATE questions SET truth = ? WHERE id = ?", json.dumps([right]), question)
        self._move(question, "phase = 'revealed'", "phase = 'voting'")

    def finish(self, question: int) -> None:
        """Close a question, so that students follow the lecture again."""
        self._move(question, "phase = 'over'", "phase != 'over'")

    def _move(self, question: int, change: str, where: str) -> None:
        self._write(f"UPDATE questions SET {change} WHERE id = ? AND {where}", question)

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
        return next((row["answer"] for row in self._read(query, question, round, member)), None)

    def tally(self, question: int, *, twice: bool = False) -> dict[int, dict[str, int]]:
        """Return the number of votes for each answer, by round; with `twice`, of the students who voted in both rounds."""
        found: dict[int, dict[str, int]] = {}
        both = "SELECT member FROM votes WHERE question = v.question GROUP BY member HAVING count(*) > 1"
        among = f"AND member IN ({both})" if twice else ""
        query = f"SELECT round, answer, count(*) AS n FROM votes v WHERE question = ? {among} GROUP BY round, answer"
        for row in self._read(query, question):
            found.setdefault(row["round"], {})[row["answer"]] = row["n"]
        return found

    def voters(self, question: int, round: int) -> set[str]:
        """Return the ids of the students who voted in a round."""
        query = "SELECT member FROM votes WHERE question = ? AND round = ?"
        return {row["member"] for row in self._read(query, question, round)}

    # ── exercises ──

    def work(self, member: str, lesson: str, exercise: int, tries: int, is_solved: bool) -> None:
        """Record a student's work on an exercise, identified by its step. A solved exercise stays solved."""
        now = time.time()
        query = (
            "INSERT INTO work (member, lesson, exercise, tries, begun, solved) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (member, lesson, exercise) DO UPDATE SET tries = max(tries, excluded.tries), "
            "solved = coalesce(solved, excluded.solved)"
        )
        self._write(query, member, lesson, exercise, tries, now, now if is_solved else None)

    def results(self, room: str, lesson: str | None = None) -> list[dict[str, Any]]:
        """Return a row for each student and exercise: student, lesson, step, tries, seconds, solved, stuck, member."""
        query = (
            "SELECT members.*, work.* FROM work JOIN members ON members.id = work.member WHERE room = ? "
            "AND coalesce(?, lesson) = lesson ORDER BY number, lesson, exercise"
        )
        now, rows = time.time(), []
        for row in self._read(query, room, lesson):
            seconds = (row["solved"] or now) - row["begun"]
            rows.append({
                "student": _member(row).name, "lesson": row["lesson"], "step": row["exercise"] + 1,
                "tries": row["tries"], "seconds": round(seconds), "solved": row["solved"] is not None,
                "stuck": row["solved"] is None and seconds > STUCK_SECONDS, "member": row["member"],
            })  # fmt: skip
        return rows


def _member(row: sqlite3.Row) -> Student:
    state = PageState.model_validate_json(row["state"]) if row["state"] else None
    return Student(row["id"], row["number"], row["nickname"], state)


def _asked(row: sqlite3.Row) -> Asked:
    content = json.loads(row["content"])
    for name in ("options", "queries", "keys"):
        content[name] = tuple(content[name])
    truth = tuple(json.loads(row["truth"]))
    return Asked(row["id"], RoomQuestion(**content), truth, row["round"], row["phase"] == "revealed")
