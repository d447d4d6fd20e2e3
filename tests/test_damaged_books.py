"""A folder of runs in which a cell, a table, a byte or a file is broken: every command ends in an answer or in one sentence."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sqlite3
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.training.tiny import tiny_preset
from xformer.__main__ import main
from xformer.training.loop import iter_train
from xformer.training.run_store import FILE as BOOK
from xformer.training.run_store import RunStore

STATEMENTS = (
    "ALTER TABLE runs ADD COLUMN colour TEXT DEFAULT 'red'", "ALTER TABLE runs DROP COLUMN deleted",
    "DROP TABLE metrics", "PRAGMA user_version = 77", "UPDATE runs SET model = train, train = model",
    "UPDATE runs SET name = CAST(x'ff61fe' AS TEXT)",
)  # fmt: skip
BYTES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "zeros in the middle": lambda content: content[:5000] + bytes(600) + content[5600:],
    "a flipped bit in every 100th byte": lambda content: bytes(
        byte ^ 4 if n % 100 == 99 else byte for n, byte in enumerate(content)
    ),
}
FILES: dict[str, Callable[[Path, bytes], object]] = {
    "cut": lambda file, content: file.write_bytes(content[: len(content) // 2]),
    "a folder": lambda file, content: file.mkdir(),
    "JSON": lambda file, content: file.write_bytes(b'{"step": "x", "curve": [null]}'),
    "a pipe": lambda file, content: os.mkfifo(file),
    "another header": lambda file, content: file.write_bytes(content.replace(b"held_out", b"held-out")),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs with metrics and one in the queue, a folder of the command line, and one of a run that was cut off."""
    path = tmp_path_factory.mktemp("damaged") / "good"
    store = RunStore(path)
    for number, state in enumerate(("finished", "stopped", "queued")):
        run = store.add(tiny_preset(seed=number), name=f"run {number}", state=state, owner="here", run=f"{number:08x}")
        if state != "queued":
            rows = [of.row() for of in iter_train(tiny_preset(seed=number), out=store.folder_of(run), device="cpu")]
            store.put_rows(run, rows)
            figures = '{"exact_match": 0.5, "loss": 1.0, "samples": 9}'
            store.change(run, step=rows[-1]["step"], seconds=1.0, figures=figures)
    list(iter_train(tiny_preset(seed=6), out=path / "plain", device="cpu"))
    half = iter_train(tiny_preset(seed=7), out=path / "half", device="cpu")
    next(half)
    half.close()
    return path


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    return shutil.copytree(good, tmp_path / "runs")


RUNS = ("00000000", "00000001", "00000002")
COMMANDS = (
    ["list"], *(["show", name] for name in (*RUNS, "plain", "half")), ["stop", RUNS[0]], ["pause", RUNS[2]],
    ["delete", RUNS[1]], ["delete", "half"], ["list"],
)  # fmt: skip


def trouble_with(folder: Path, commands: Sequence[list[str]] = COMMANDS) -> list[str]:
    """What ends otherwise than in an answer or in one sentence."""
    found = []
    for words in commands:
        out, err = io.StringIO(), io.StringIO()
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = main(["runs", *words, "--folder", str(folder)])
        except (Exception, SystemExit):
            found.append(f"{words}: {traceback.format_exc()[-400:]}")
            continue
        output = out.getvalue() + err.getvalue()
        if status not in (0, 1) or err.getvalue().count("\n") != status:
            found.append(f"{words}: status {status}, {err.getvalue()!r:.200}")
        if not all(letter.isprintable() for letter in output.replace("\n", "")):
            found.append(f"{words}: {output!r:.200}")
    return found


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[sqlite3.Connection]:
    """The run store as SQLite has it."""
    with contextlib.closing(sqlite3.connect(folder / BOOK, isolation_level=None)) as db:
        yield db


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_table_of_another_shape_ends_in_no_traceback(folder: Path, statement: str) -> None:
    with opened(folder) as db:
        db.execute(statement)
    assert trouble_with(folder) == []


@pytest.mark.parametrize("kind", BYTES)
def test_a_damaged_database_ends_in_no_traceback(folder: Path, kind: str) -> None:
    (folder / BOOK).write_bytes(BYTES[kind]((folder / BOOK).read_bytes()))
    assert trouble_with(folder) == []


@pytest.mark.parametrize("kind", FILES)
def test_damaged_files_end_in_no_traceback(folder: Path, kind: str) -> None:
    for file in sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(BOOK)):
        content = file.read_bytes()
        file.unlink()
        FILES[kind](file, content)
    assert trouble_with(folder) == []


def test_names_that_are_no_runs_end_in_no_traceback(folder: Path) -> None:
    assert trouble_with(folder, [["list"]]) == []
    shutil.rmtree(folder / "plain")
    (folder / "plain").write_text("a file")
    for name in ("\x1b[2J", "[/b]", "🦊", "a\nb", "-x"):
        (folder / name / "snapshots").mkdir(parents=True)
    assert trouble_with(folder) == []
