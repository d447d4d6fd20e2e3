"""A folder of runs, and what can happen to it: a cell, a row, a column, a byte of the run store, a file or a folder, by a seed.

    good = good_folder(path)                   # three runs of the run store, two folders of the command line
    what = damage(copy, random.Random(7))      # says what it did

`python -m tests.damaged_books 300` tries so many on every command that lists, shows, stops and deletes.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import shutil
import sqlite3
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.training.tiny import tiny_preset
from xformer.__main__ import main
from xformer.files import CARD, FILE, STATE
from xformer.training.loop import iter_train
from xformer.training.run_store import FILE as BOOK
from xformer.training.run_store import RunStore

VALUES: tuple[object, ...] = (
    "", "{", "{}", "[]", "null", "3", '"x"', "[" * 50_000, "\x00", "\x1b[2J", "[/b]", b"\xff\x00\xfe", b"", -1, 0, 2**62,
    -(2**62), 1e308, float("inf"), "..", "/", "x" * 100_000, '{"steps": 1e999}', '{"steps": -1}', '{"name": []}',
    '{"loss": {}}', '{"step": 12, "held_out_exact_match": "much"}', '{"exact_match": [1]}', '{"exact_match": 1e300}', "[[]]",
    "running", "queued", "finished", "damaged", None,
)  # fmt: skip
CONTENTS = (b"", b"{", b"[]", b"\xff" * 99, b"null", b'{"curve": 3}', b'{"step": "x", "curve": [null]}', b"\x00" * 4096)


def good_folder(path: Path) -> Path:
    """Runs of all kinds, all of them whole."""
    store = RunStore(path)
    for number, state in enumerate(("finished", "stopped", "queued")):
        run = store.add(tiny_preset(seed=number), name=f"run {number}", state=state, owner="here", run=f"{number:08x}")
        if state != "queued":
            rows = [of.row() for of in iter_train(tiny_preset(seed=number), out=store.folder_of(run), device="cpu")]
            store.put_rows(run, rows)
            store.change(
                run, step=rows[-1]["step"], seconds=1.0, figures='{"exact_match": 0.5, "loss": 1.0, "samples": 9}'
            )
    list(iter_train(tiny_preset(seed=6), out=path / "plain", device="cpu"))
    half = iter_train(tiny_preset(seed=7), out=path / "half", device="cpu")
    next(half)
    half.close()
    return path


def damage(folder: Path, draw: random.Random) -> str:
    """Do one to three things to a folder, and say which."""
    return " · ".join(draw.choice(KINDS)(folder, draw) for _ in range(draw.choice((1, 1, 2, 3))))


def _tables(folder: Path, draw: random.Random, change: Callable[[sqlite3.Connection], str]) -> str:
    """A change of the run store's tables by SQL, sometimes without the rules that they were made with."""
    db = sqlite3.connect(folder / BOOK, isolation_level=None)
    try:
        if draw.random() < 0.5:
            for table in ("runs", "metrics"):
                db.execute(f"CREATE TABLE copied AS SELECT * FROM {table}")
                db.execute(f"DROP TABLE {table}")
                db.execute(f"ALTER TABLE copied RENAME TO {table}")
        return change(db)
    except (
        sqlite3.Error,
        OverflowError,
        IndexError,
    ) as error:  # what an earlier damage, or a rule of the table, does not allow
        return f"nothing ({error})"
    finally:
        db.close()


def _cell(folder: Path, draw: random.Random) -> str:
    def change(db: sqlite3.Connection) -> str:
        columns = [row[1] for row in db.execute("PRAGMA table_info(runs)")]
        column, value = draw.choice(columns), draw.choice(VALUES)
        db.execute(
            f"UPDATE runs SET {column} = ? WHERE rowid = (SELECT rowid FROM runs LIMIT 1 OFFSET ?)",
            (value, draw.randrange(3)),
        )
        return f"{column} = {value!r:.40}"

    return _tables(folder, draw, change)


def _row(folder: Path, draw: random.Random) -> str:
    def change(db: sqlite3.Connection) -> str:
        column, value = draw.choice(("row", "row", "row", "step", "run")), draw.choice(VALUES)
        number = draw.randrange(12)
        db.execute(
            f"UPDATE metrics SET {column} = ? WHERE (run, step) = (SELECT run, step FROM metrics LIMIT 1 OFFSET ?)",
            (value, number),
        )
        return f"metrics {column} = {value!r:.40}"

    return _tables(folder, draw, change)


def _shape(folder: Path, draw: random.Random) -> str:
    def change(db: sqlite3.Connection) -> str:
        statement = draw.choice((
            "ALTER TABLE runs ADD COLUMN colour TEXT DEFAULT 'red'", "ALTER TABLE metrics ADD COLUMN x BLOB",
            "ALTER TABLE runs DROP COLUMN live", "ALTER TABLE runs DROP COLUMN deleted",
            "ALTER TABLE runs RENAME name TO called",
            "DROP TABLE metrics", "DROP TABLE commands", "DROP TABLE runs", "PRAGMA user_version = 0",
            "PRAGMA user_version = 77",
            "DELETE FROM runs", "UPDATE runs SET model = train, train = model", "UPDATE runs SET id = 'same'",
            "UPDATE runs SET state = 'running', worker = 'w', pid = 1", "UPDATE runs SET parent = id || '@12'",
            "UPDATE runs SET name = CAST(x'ff61fe' AS TEXT)", "CREATE VIEW v AS SELECT 1",
        ))  # fmt: skip
        db.execute(statement)
        return statement

    return _tables(folder, draw, change)


def _bytes(folder: Path, draw: random.Random) -> str:
    file = folder / BOOK
    content = bytearray(file.read_bytes() if file.is_file() else b"")
    if not content:
        return "nothing (an empty book)"
    kind = draw.choice(("flip", "cut", "zero", "shuffle"))
    place = draw.randrange(len(content)) if draw.random() < 0.6 else draw.randrange(min(200, len(content)))
    if kind == "flip":
        for _ in range(draw.choice((1, 8, 64))):
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    elif kind == "cut":
        del content[place:]
    elif kind == "zero":
        content[place : place + 600] = bytes(len(content[place : place + 600]))
    else:
        other = draw.randrange(len(content))
        content[place : place + 64], content[other : other + 64] = (
            content[other : other + 64],
            content[place : place + 64],
        )
    file.write_bytes(content)
    return f"{kind} at byte {place:,}"


def _file(folder: Path, draw: random.Random) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(BOOK))
    if not files:
        return "nothing (no file)"
    file, kind = draw.choice(files), draw.choice(("cut", "gone", "folder", "content", "pipe", "link", "header"))
    content = file.read_bytes()
    file.unlink()
    if kind == "cut":
        file.write_bytes(content[: draw.randrange(len(content) + 1)])
    elif kind == "folder":
        file.mkdir()
    elif kind == "content":
        file.write_bytes(draw.choice(CONTENTS))
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "link":
        file.symlink_to(file)
    elif kind == "header":
        file.write_bytes(content.replace(b'\\"step\\"', b'\\"stop\\"', 1).replace(b"held_out", b"held-out"))
    return f"{file.relative_to(folder)}: {kind}"


def _folder(folder: Path, draw: random.Random) -> str:
    folders = sorted(path for path in folder.rglob("*") if path.is_dir())
    kind = draw.choice(("gone", "file", "new", "names"))
    if kind == "names":
        for name in ("\x1b[2J", "[/b]", "🦊", "a\nb", "-x"):
            (folder / name / "snapshots").mkdir(parents=True, exist_ok=True)
    elif kind == "new" or not folders:
        new = folder / f"new{draw.randrange(99)}"
        new.mkdir(exist_ok=True)
        (new / draw.choice((FILE, STATE, CARD, "snapshots"))).write_bytes(draw.choice(CONTENTS))
    else:
        one = draw.choice(folders)
        shutil.rmtree(one)
        if kind == "file":
            one.write_text("a file")
        return f"{one.relative_to(folder)}: {kind}"
    return f"folder: {kind}"


KINDS = (_cell, _cell, _cell, _row, _row, _shape, _bytes, _bytes, _file, _file, _folder)


def commands(folder: Path) -> list[list[str]]:
    """What is asked of a damaged folder: everything is listed and shown, gets a command, and the last one is deleted."""
    try:
        runs = [entry.id for entry in RunStore(folder).entries()] if (folder / BOOK).exists() else []
    except Exception:  # the command line is asked, and says it in a sentence or ends in a traceback
        runs = []
    names = [*runs[:3], "plain", "half", *sorted(path.name for path in folder.iterdir() if path.name.startswith("new"))]
    asked = [["list"], *(["show", name] for name in names), *(["stop", name] for name in runs[:3])]
    return [
        *asked,
        *(["pause", name] for name in runs[:1]),
        *(["delete", name] for name in names[-3:]),
        ["list"],
    ]


def trouble_with(folder: Path) -> list[str]:
    """What ends otherwise than in an answer or in one sentence."""
    found = []
    for words in commands(folder):
        out, err = io.StringIO(), io.StringIO()
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = main(["runs", *words, "--folder", str(folder)])
        except (Exception, SystemExit):
            found.append(
                f"{words}: {traceback.format_exc().splitlines()[-1]} {traceback.format_exc().splitlines()[-4:-2]}"
            )
            continue
        output = out.getvalue() + err.getvalue()
        if status not in (0, 1) or err.getvalue().count("\n") != status:
            found.append(f"{words}: status {status}, {err.getvalue()!r:.200}")
        if not all(letter.isprintable() for letter in output.replace("\n", "")):
            found.append(f"{words}: {output!r:.200}")
    return found


def try_many(n: int, first: int = 0) -> dict[int, tuple[str, list[str]]]:
    """So many damaged folders; what went wrong, by the seed."""
    wrong = {}
    with tempfile.TemporaryDirectory() as aside:
        good = good_folder(Path(aside) / "good")
        for seed in range(first, first + n):
            folder = Path(aside) / str(seed)
            shutil.copytree(good, folder)
            what = damage(folder, random.Random(seed))
            if found := trouble_with(folder):
                wrong[seed] = (what, found)
            shutil.rmtree(folder)
    return wrong


if __name__ == "__main__":
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    wrong = try_many(n)
    for seed, (what, found) in wrong.items():
        print(f"{seed}: {what}")
        for line in found:
            print(f"    {line}")
    print(f"{len(wrong)} of {n} damaged folders end otherwise than in an answer or a sentence")
