"""Classroom rooms in SQLite: membership, votes, exercises, and the deletion of all data."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from xformer.classroom import rooms as module
from xformer.classroom.messages import PageState
from xformer.classroom.rooms import CODE_LENGTH, LETTERS, Room, RoomQuestion, Rooms, normalised
from xformer.errors import ClassroomError

YES_NO = RoomQuestion("choice", "Is it?", options=("yes", "no"))
CELL = RoomQuestion("cell", "Where?", queries=("a", "b"), keys=("a", "b", "c"))


@pytest.fixture
def rooms(tmp_path: Path) -> Rooms:
    return Rooms(tmp_path)


@pytest.fixture
def room(rooms: Rooms) -> Room:
    return rooms.open("lecturer")


def test_room_is_found_by_its_code_in_any_case_and_spacing(rooms: Rooms, room: Room) -> None:
    assert len(room.code) == CODE_LENGTH
    assert set(room.code) <= set(LETTERS)
    typed = f" {room.code[:3].lower()}-{room.code[3:]} "
    assert rooms.find(typed) == room
    assert normalised(typed) == room.code
    assert rooms.find(room.id) is None, "the id is not a code"


def test_only_the_lecturer_owns_the_room(rooms: Rooms, room: Room) -> None:
    rooms.join(room.id, "student")
    assert rooms.is_owner(room.id, "lecturer")
    assert not rooms.is_owner(room.id, "student")
    assert not rooms.is_owner(room.id, "")
    for file in rooms.file.parent.glob(f"{rooms.file.name}*"):
        assert b"lecturer" not in file.read_bytes(), "secrets are stored as hashes"


def test_returning_browser_is_the_same_student(rooms: Rooms, room: Room) -> None:
    first, other = rooms.join(room.id, "one"), rooms.join(room.id, "two")
    assert rooms.join(room.id, "one") == first
    assert [member.name for member in rooms.members(room.id)] == ["Student 1", "Student 2"]
    assert first.id != other.id
    assert first.id != rooms.join(rooms.open("another").id, "one").id, "a student has unrelated ids in different rooms"


def test_full_room_refuses_further_students(rooms: Rooms, room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_MEMBERS", 1)
    rooms.join(room.id, "one")
    with pytest.raises(ClassroomError, match="1 are allowed"):
        rooms.join(room.id, "two")
    rooms.join(room.id, "one")


def test_later_vote_of_a_round_replaces_the_earlier_one(rooms: Rooms, room: Room) -> None:
    one, two = rooms.join(room.id, "one").id, rooms.join(room.id, "two").id
    question = rooms.ask(room.id, YES_NO, ["1"])
    for answer in ("0", "1", "1"):
        rooms.vote(one, question, 1, answer)
    rooms.vote(two, question, 1, "0")
    assert rooms.tally(question) == {1: {"0": 1, "1": 1}}
    with pytest.raises(ClassroomError, match="got '2'"):
        rooms.ask(room.id, YES_NO, ["2"])  # the right answer must be one of the answers
    rooms.ask_again(question)
    rooms.vote(two, question, 2, "1")
    assert rooms.tally(question) == {1: {"0": 1, "1": 1}, 2: {"1": 1}}
    assert rooms.vote_of(two, question, 1) == "0"
    assert rooms.vote_of(two, question, 2) == "1"


def test_students_who_voted_twice_are_counted_apart(rooms: Rooms, room: Room) -> None:
    one, two, three, four = (rooms.join(room.id, name).id for name in ("one", "two", "three", "four"))
    question = rooms.ask(room.id, YES_NO, ["1"])
    for member, answer in ((one, "0"), (two, "1"), (three, "1")):
        rooms.vote(member, question, 1, answer)
    assert rooms.tally(question, twice=True) == {}
    rooms.ask_again(question)
    for member, answer in ((one, "1"), (four, "0"), (two, "1")):
        rooms.vote(member, question, 2, answer)
    assert rooms.tally(question) == {1: {"0": 1, "1": 2}, 2: {"0": 1, "1": 2}}
    assert rooms.tally(question, twice=True) == {1: {"0": 1, "1": 1}, 2: {"1": 2}}
    assert rooms.voters(question, 1) == {one, two, three}
    assert rooms.voters(question, 2) == {one, two, four}


def test_vote_from_another_room_or_invalid_or_after_the_reveal_is_rejected(rooms: Rooms, room: Room) -> None:
    question = rooms.ask(room.id, YES_NO, ["0"])
    one, stranger = rooms.join(room.id, "one").id, rooms.join(rooms.open("another").id, "stranger").id
    for member, round, answer in ((stranger, 1, "0"), (one, 2, "0"), (one, 1, "2"), (one, 1, "x"), (one, 1, "")):
        with pytest.raises(ClassroomError):
            rooms.vote(member, question, round, answer)
    rooms.reveal(question)
    with pytest.raises(ClassroomError, match="ended"):
        rooms.vote(one, question, 1, "0")
    assert rooms.tally(question) == {}
    rooms.ask_again(question)
    asked = rooms.room(room.id).asked
    assert asked is not None
    assert (asked.round, asked.is_revealed) == (1, True), "a revealed question stays revealed"


def test_right_answer_to_an_own_question_is_set_at_the_reveal(rooms: Rooms, room: Room) -> None:
    question = rooms.ask(room.id, RoomQuestion("choice", "Which?", options=("a", "b")), ())
    with pytest.raises(ClassroomError, match="must be one of the answers"):
        rooms.reveal(question, "2")
    asked = rooms.room(room.id).asked
    assert asked is not None
    assert not asked.is_revealed
    rooms.reveal(question, "1")
    asked = rooms.room(room.id).asked
    assert asked is not None
    assert (asked.truth, asked.is_revealed) == (("1",), True)
    with pytest.raises(ClassroomError, match="must be one of the answers"):
        rooms.reveal(question, "0")  # it has one


def test_cell_must_be_on_the_map_and_in_the_row_of_the_question() -> None:
    answers = ("1.2", "0.0", "2.0", "0.3", "1", "1.2.0", None, "٣.1")
    assert [answer for answer in answers if CELL.accepts(answer)] == ["1.2", "0.0"]
    row = RoomQuestion("cell", "Where?", queries=("a", "b"), keys=("a", "b"), query=1)
    assert [answer for answer in ("1.0", "0.0") if row.accepts(answer)] == ["1.0"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "riddle", "text": "?", "options": ("a", "b")},
        {"kind": "choice", "text": " ", "options": ("a", "b")},
        {"kind": "choice", "text": "?", "options": ("a",)},
        {"kind": "cell", "text": "?"},
        {"kind": "cell", "text": "?", "queries": ("a",) * 65, "keys": ("a",)},
    ],
)
def test_invalid_question_is_rejected(wrong: dict) -> None:
    with pytest.raises(ClassroomError, match=r"got|for example"):
        RoomQuestion(**wrong)


def test_solved_exercise_stays_solved(rooms: Rooms, room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    member = rooms.join(room.id, "one").id
    rooms.rename(member, "  Mia \n\x00 the second, of a very long name ")
    rooms.work(member, "masks", 3, 1, False)
    rooms.work(member, "masks", 3, 5, True)
    rooms.work(member, "masks", 3, 2, False)
    rooms.work(member, "heads", 1, 1, False)
    masks, heads = rooms.results(room.id)[::-1]
    found = [masks[name] for name in ("student", "step", "tries", "solved")]
    assert found == ["Mia the second, of a ver", 4, 5, True]
    assert (heads["solved"], heads["stuck"]) == (False, False)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + module.STUCK_SECONDS + 1)
    assert [row["stuck"] for row in rooms.results(room.id)] == [True, False], "a student who has solved it is not stuck"
    assert len(rooms.results(room.id, "masks")) == 1


def test_ended_room_leaves_nothing_behind(rooms: Rooms, room: Room) -> None:
    member = rooms.join(room.id, "one").id
    rooms.rename(member, "Mia-Sophie")
    question = rooms.ask(room.id, RoomQuestion("choice", "A secret question?", options=("yes", "no")), ["1"])
    rooms.vote(member, question, 1, "1")
    rooms.work(member, "masks", 3, 1, True)
    rooms.end(room.id)
    assert rooms.find(room.code) is None
    assert rooms.results(room.id) == []
    assert rooms.tally(question) == {}
    for file in rooms.file.parent.glob(f"{rooms.file.name}*"):
        assert b"Mia-Sophie" not in file.read_bytes()
        assert b"secret question" not in file.read_bytes()


def test_room_ends_after_a_day(rooms: Rooms, room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    rooms.rename(rooms.join(room.id, "one").id, "Mia-Sophie")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + module.LIFETIME + 1)
    assert rooms.find(room.code) is None, "even before it is deleted"
    assert rooms.delete_expired() == 1
    assert rooms.delete_expired() == 0
    assert all(b"Mia-Sophie" not in file.read_bytes() for file in rooms.file.parent.glob(f"{rooms.file.name}*"))


def test_forgotten_student_is_deleted_with_all_votes_and_exercises(rooms: Rooms, room: Room) -> None:
    one, two = rooms.join(room.id, "one").id, rooms.join(room.id, "two").id
    question = rooms.ask(room.id, YES_NO, [])
    rooms.vote(one, question, 1, "0")
    rooms.vote(two, question, 1, "1")
    rooms.work(one, "masks", 3, 1, True)
    rooms.offer(one, PageState(input="3 7"))
    rooms.offer(two, PageState(input="3 7"))
    assert rooms.members(room.id)[1].state == PageState(input="3 7")
    rooms.offer(two, None)
    rooms.forget(one)
    assert rooms.tally(question) == {1: {"1": 1}}
    assert rooms.results(room.id) == []
    assert [(member.id, member.state) for member in rooms.members(room.id)] == [(two, None)]


def test_another_process_reads_the_same_rooms(rooms: Rooms, room: Room) -> None:
    rooms.show(room.id, {"model": "reverse"}, b"picture")
    rooms.teach(room.id, "masks", 3)
    rooms.pause(room.id, True)
    again = Rooms(rooms.file.parent)
    found = again.room(room.id)
    assert (found.shown, found.lesson, found.is_paused) == ({"model": "reverse"}, {"name": "masks", "step": 3}, True)
    assert again.picture(room.id) == b"picture"


def test_number_of_rooms_on_a_server_is_limited(rooms: Rooms, room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ROOMS", 1)
    with pytest.raises(ClassroomError, match="1 are allowed"):
        rooms.open("another")
    second = rooms.open("lecturer")  # replaces the first
    assert rooms.find(room.code) is None
    assert rooms.of("lecturer") == second
    with pytest.raises(ClassroomError, match="cookies"):
        rooms.open("")


def test_files_are_private_and_shrink_after_a_deletion(rooms: Rooms, room: Room) -> None:
    rooms.show(room.id, {}, bytes(range(256)) * 4000)
    files = [rooms.file, *rooms.file.parent.glob(f"{rooms.file.name}-*")]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    rooms.file.chmod(0o644)
    Rooms(rooms.file.parent).find(room.code)
    assert rooms.file.stat().st_mode & 0o777 == 0o600
    rooms.end(room.id)
    assert sum(file.stat().st_size for file in files) < 200_000


@pytest.mark.parametrize("content", [b"no database", b"", b"SQLite format 3\0" + bytes(200)])
def test_damaged_or_foreign_database_gives_one_sentence(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / module.FILE
    file.write_bytes(content)
    if not content:
        with sqlite3.connect(file) as other:
            other.execute("CREATE TABLE work (other TEXT)")
    with pytest.raises(ClassroomError, match="Rooms are off"):
        Rooms(tmp_path).of("lecturer")


def test_room_counts_in_the_disk_quota(rooms: Rooms, room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    question = rooms.ask(room.id, YES_NO, [])
    known = rooms.join(room.id, "known")
    monkeypatch.setenv("XFORMER_MAX_DISK", "1000")
    rooms._quota = module.DiskQuota(rooms.file.parent)
    for act in (
        lambda: rooms.open("another"),
        lambda: rooms.join(room.id, "new"),
        lambda: rooms.show(room.id, {}, b"x"),
    ):
        with pytest.raises(ClassroomError, match="are allowed"):
            act()
    assert rooms.join(room.id, "known") == known
    rooms.reveal(question)
    rooms.end(room.id)


def test_deletions_work_on_a_full_disk(tmp_path: Path) -> None:
    """On a disk of 6 MB in memory of which nothing is left, students and rooms can still be deleted."""
    script = """
import os, subprocess, sys
from pathlib import Path
from xformer.classroom import rooms as module
from xformer.classroom.messages import PageState
from xformer.errors import ClassroomError
folder = Path(sys.argv[1])
module.Rooms._check_space = lambda self, n: None  # the quota leaves more free than this disk has
rooms = module.Rooms(folder)
room = rooms.open("lecturer").id
members = [rooms.join(room, str(number)).id for number in range(100)]
question = rooms.ask(room, module.RoomQuestion("choice", "Is it?", options=("yes", "no")), [])
try:
    with open(folder / "filler", "wb", buffering=0) as filler:
        for size in (2**16, 2**10, 1):
            try:
                while True:
                    filler.write(bytes(size))
            except OSError:
                pass
except OSError:
    pass
refusals = []
for _ in range(3):
    try:
        for member in members:
            rooms.offer(member, PageState(input="x" * 2000))
    except ClassroomError as error:
        refusals.append(str(error))
assert refusals and "disk of this server is full" in refusals[0], refusals
rooms.forget(members[0])
assert len(rooms.members(room)) == 99
rooms.end(room)
assert rooms.find(room) is None and not rooms.members(room)
print("deleted")
"""
    mounted = f"mount -t tmpfs -o size=6m tmpfs {tmp_path} && exec {sys.executable} -c '{script}' {tmp_path}"
    run = subprocess.run(["unshare", "--mount", "--user", "--map-root-user", "sh", "-c", mounted.replace("\n", "\n")],
                         capture_output=True, text=True, check=False)  # fmt: skip
    if "unshare" in run.stderr or "mount:" in run.stderr:
        pytest.skip(f"a file system in memory is not permitted here: {run.stderr.strip()[:100]}")
    assert run.stdout == "deleted\n", run.stderr
