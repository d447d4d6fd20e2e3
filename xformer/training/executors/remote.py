"""The actor on a node of the cluster: one run, or one batch of a sweep, trained by the same worker as local runs.

The worker gets its own run store in a temporary folder of the node, with only this run in it. The relay requests the changes
since its last request (`RemoteRun.poll`) and writes them into the server's store. A node never sees the files of the server,
and a lost report is sent again. This module uses Ray only to look up the id of the node.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from xformer.files import write_atomically
from xformer.tasks import texts
from xformer.training import liveness, worker
from xformer.training.loop import prepare_process
from xformer.training.run_store import RunStore, insert_run, put_command

Stamp = tuple[int, int]
"""The modification time in nanoseconds, and the size. A copy of a file gets the stamp of its original."""
Files = Mapping[str, tuple[Stamp, bytes]]
"""Stamps and contents of files, by path relative to the folder of a run store."""
MAX_BYTES = 64 * 1024**2
"""Approximate largest size of the files in one report."""
PREFIX = "xformer-run-"
ABANDONED_SECONDS = 3600.0
"""Seconds after which the next actor on the node removes the folder of a killed process."""


@dataclass(frozen=True)
class RemoteJob:
    """Everything that a node needs to train a run."""

    row: Mapping[str, Any]
    """The row of the run in the server's store."""
    others: Sequence[str] = ()
    """The models of its sweep that are trained elsewhere or have ended."""
    files: Files | None = None
    """The files of the state to continue from."""
    text: tuple[str, bytes] | None = None
    """The name and content of the text to train on, if the library does not include it."""


@dataclass(frozen=True)
class RemoteReport:
    """The changes on the node that the server does not have yet."""

    node_id: str
    row: Mapping[str, Any]
    """The row of the run in the node's store."""
    rows: Mapping[str, Sequence[dict[str, Any]]]
    """New metrics, by the id of the run or model."""
    models: Sequence[Mapping[str, Any]]
    """The rows of the models of a sweep that have ended."""
    files: Files
    """New and changed files."""
    gone: Sequence[str]
    """Paths of files that no longer exist."""
    is_whole: bool
    """Whether `files` is complete, so that none is left for the next report."""
    is_over: bool
    """Whether the training has ended."""
    error: str
    """The error that prevented the node from recording the end in its store; empty if there was none."""
    obeyed: int
    """The number of the last command handled."""


def stamp_of(status: os.stat_result) -> Stamp:
    """Return the stamp of a file."""
    return status.st_mtime_ns, status.st_size


def stamps(folder: Path, inside: str) -> dict[str, Stamp]:
    """Return the stamps of all complete files below `folder / inside`, by path relative to `folder`."""
    found = {}
    for path in (folder / inside).rglob("*"):
        if path.suffix not in (".part", ".lock", ".log"):
            with suppress(FileNotFoundError):  # it is just being replaced
                status = path.stat()
                if path.is_file():
                    found[str(path.relative_to(folder))] = stamp_of(status)
    return found


def write_copy(folder: Path, path: str, stamp: Stamp, content: bytes) -> None:
    """Write a copy of a file with the stamp of its original."""
    write_atomically(folder / path, content)
    os.utime(folder / path, ns=(stamp[0], stamp[0]))


class RemoteRun:
    """A run on a node. Its methods are called sequentially while a thread trains."""

    def __init__(self, job: RemoteJob) -> None:
        _remove_abandoned()
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self.lock = liveness.take(self.folder / liveness.LOCK)  # held by this process to mark the folder as in use
        self.store, self.run, self.others = RunStore(self.folder / "runs"), str(job.row["id"]), {*job.others}
        self.seen: set[str] = set()
        self.error, self.obeyed = "", 0
        if job.text is not None:
            os.environ["XFORMER_DATA"] = str(self.folder / "texts")
            write_atomically(texts.path_of(job.text[0]), job.text[1])
        for path, (stamp, content) in (job.files or {}).items():
            write_copy(self.store.folder, path, stamp, content)
        is_gpu = torch.cuda.is_available() and job.row["wanted"] != "cpu"
        row = dict(job.row) | {"device": "cuda" if is_gpu else "cpu", "node": None, "pid": None, "state": "running"}
        with self.store.database.writing() as db:
            insert_run(db, row)
            for number, other in enumerate(job.others, start=1):
                values = {"id": other, "number": row["number"] + number, "sweep": None, "state": "finished"}
                insert_run(db, row | values | {"worker": None})
        self.thread = threading.Thread(target=self._work, args=(row["worker"],), daemon=True)
        self.thread.start()

    def _work(self, token: str) -> None:
        try:
            prepare_process()
            worker.work(self.store, self.run, token)
        except Exception as error:  # the node's store cannot be written, so the next report carries the error
            self.error = f"The run failed on its node ({type(error).__name__}: {error})."

    def poll(self, have: Mapping[str, Stamp], after: Mapping[str, int], forget: Sequence[str]) -> RemoteReport:
        """Return what has changed on the node.

        Args:
            have: The stamps of the files that the server has.
            after: The step of the last row of metrics that the server has, by the id of the run or model.
            forget: Ended models of a sweep that the server has completely, so that they can be deleted here.
        """
        for model in forget:
            self._forget(model)
        is_over = not self.thread.is_alive()  # checked first, so that the data read below is final
        with self.store.database.reading() as db:
            found = {row["id"]: dict(row) for row in db.execute("SELECT * FROM runs")}
            in_metrics = [row["run"] for row in db.execute("SELECT DISTINCT run FROM metrics")]
        row = found.pop(self.run)
        models = [model for run, model in found.items() if run not in self.others]
        has_begun = row["pid"] is not None or row["state"] != "running" or is_over  # the worker has read its state
        rows = {run: self.store.rows(run, after.get(run, -1)) for run in in_metrics} if has_begun else {}
        inside, known = stamps(self.store.folder, self.run), dict(have)
        for model in models:  # before it ended, its files were in the folder of its sweep
            inside |= stamps(self.store.folder, model["id"])
            sweep, number = model["parent"].split("/")
            old = f"{sweep}/members/{number}/"
            moved = {path: stamp for path, stamp in have.items() if path.startswith(old)}
            known |= {f"{model['id']}/{path.removeprefix(old)}": stamp for path, stamp in moved.items()}
        files, is_whole = self._read([path for path, stamp in inside.items() if known.get(path) != stamp])
        self.seen |= inside.keys()
        ended = {model["id"] for model in models}  # their states have been deleted since they were moved
        gone = sorted({*self.seen, *(path for path in known if path.partition("/")[0] in ended)} - inside.keys())
        return RemoteReport(_node_id(), row, rows, models, files, gone, is_whole, is_over, self.error, self.obeyed)

    def _read(self, paths: Sequence[str]) -> tuple[Files, bool]:
        """Return files up to about `MAX_BYTES` in total, and whether these are all of them."""
        files, total = {}, 0
        for path in paths:
            if total > MAX_BYTES:
                return files, False
            with suppress(FileNotFoundError), open(self.store.folder / path, "rb") as file:
                files[path] = stamp_of(os.fstat(file.fileno())), file.read()  # stamp and content of the same open file
                total += len(files[path][1])
        return files, True

    def _forget(self, model: str) -> None:
        with self.store.database.writing() as db:
            db.execute("DELETE FROM runs WHERE id = ?", (model,))
            db.execute("DELETE FROM metrics WHERE run = ?", (model,))
        shutil.rmtree(self.store.folder_of(model), ignore_errors=True)
        self.seen = {path for path in self.seen if not path.startswith(f"{model}/")}

    def command(self, commands: Sequence[tuple[int, str, float | None]]) -> None:
        """Queue commands, given with their numbers in the server's store. Commands that have already arrived are ignored."""
        with self.store.database.writing() as db:
            for number, kind, value in commands:
                if number > self.obeyed:
                    put_command(db, self.run, kind, value)
                    self.obeyed = number

    def close(self) -> None:
        """Remove the folder on the node."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _remove_abandoned() -> None:
    """Remove the folders that killed processes left on this machine."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime < ABANDONED_SECONDS:
                continue
            if (lock := liveness.take(folder / liveness.LOCK)) is not None:
                os.close(lock)
                shutil.rmtree(folder, ignore_errors=True)


def _node_id() -> str:
    """Return Ray's id of this node; empty outside a cluster."""
    import ray

    return ray.get_runtime_context().get_node_id() if ray.is_initialized() else ""
