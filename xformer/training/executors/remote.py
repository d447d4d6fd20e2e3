"""What is on a node of the cluster: one run, or a batch of a sweep, trained by the worker of all runs.

The worker gets a run store of its own, in a temporary folder of the node, with nothing in it but this run. The server asks what
has changed since it asked last (`RemoteRun.poll`) and writes it into its own store: a node never sees the files of the server,
and an answer that is lost is given again. Nothing here knows Ray, except for the name of the node.
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
"""The time of the last change in nanoseconds, and the size. The copy of a file has the stamp of its original."""
Files = Mapping[str, tuple[Stamp, bytes]]
"""Files by their paths in the folder of a run store."""
MOST_BYTES = 64 * 1024**2
"""About the most bytes of files in one answer."""
PREFIX = "xformer-run-"
ABANDONED_SECONDS = 3600.0
"""Seconds after which the folder of a killed process is removed by the next one on the node."""


@dataclass(frozen=True)
class Job:
    """All that a node needs to train a run."""

    row: Mapping[str, Any]
    """The row of the run in the server's store."""
    others: Sequence[str] = ()
    """The models of its sweep that are trained elsewhere, or have ended."""
    files: Files | None = None
    """The state to go on from."""
    text: tuple[str, bytes] | None = None
    """The name and the content of the text that it learns, where that is not part of the library."""


@dataclass(frozen=True)
class Report:
    """What has changed on the node, as far as the server does not have it."""

    node_id: str
    row: Mapping[str, Any]
    """The row of the run in the store of the node."""
    rows: Mapping[str, Sequence[dict[str, Any]]]
    """Metrics by the id of the run or model."""
    models: Sequence[Mapping[str, Any]]
    """The rows of the models of a sweep that have ended."""
    files: Files
    gone: Sequence[str]
    """Files that were there before."""
    is_whole: bool
    """Whether no file is left for the next answer."""
    is_over: bool
    """Whether the training has ended."""
    error: str
    """Why the node could not even write it down."""
    obeyed: int
    """The number of the last command."""


def stamp_of(status: os.stat_result) -> Stamp:
    """Return the stamp of a file."""
    return status.st_mtime_ns, status.st_size


def stamps(folder: Path, inside: str) -> dict[str, Stamp]:
    """Return the stamps of all finished files in a folder of a run store, by their paths in it."""
    found = {}
    for path in (folder / inside).rglob("*"):
        if path.suffix not in (".part", ".lock", ".log"):
            with suppress(FileNotFoundError):  # replaced at this moment
                status = path.stat()
                if path.is_file():
                    found[str(path.relative_to(folder))] = stamp_of(status)
    return found


def write_copy(folder: Path, path: str, stamp: Stamp, content: bytes) -> None:
    """Write the copy of a file, with its stamp."""
    write_atomically(folder / path, content)
    os.utime(folder / path, ns=(stamp[0], stamp[0]))


class RemoteRun:
    """A run on a node. Its methods are called one after the other, while a thread trains."""

    def __init__(self, job: Job) -> None:
        _remove_abandoned()
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self.lock = liveness.take(self.folder / liveness.LOCK)  # of this process; it tells that the folder is in use
        self.store, self.run, self.others = RunStore(self.folder / "runs"), str(job.row["id"]), {*job.others}
        self.seen: set[str] = set()
        self.error, self.obeyed = "", 0
        if job.text is not None:
            os.environ["XFORMER_DATA"] = str(self.folder / "texts")
            write_atomically(texts.path_of(job.text[0]), job.text[1])
        for path, (stamp, content) in (job.files or {}).items():
            write_copy(self.store.folder, path, stamp, content)
        is_gpu = torch.cuda.is_available() and job.row["wanted"] != "cpu"
        here = dict(job.row) | {"device": "cuda" if is_gpu else "cpu", "node": None, "pid": None, "state": "running"}
        with self.store.database.writing() as db:
            insert_run(db, here)
            for number, other in enumerate(job.others, start=1):
                values = {"id": other, "number": here["number"] + number, "sweep": None, "state": "finished"}
                insert_run(db, here | values | {"worker": None})
        self.thread = threading.Thread(target=self._work, args=(here["worker"],), daemon=True)
        self.thread.start()

    def _work(self, token: str) -> None:
        try:
            prepare_process()
            worker.work(self.store, self.run, token)
        except Exception as error:  # the store of the node cannot be written, so the next answer has it
            self.error = f"It failed on its node ({type(error).__name__}: {error})."

    def poll(self, have: Mapping[str, Stamp], after: Mapping[str, int], forget: Sequence[str]) -> Report:
        """Return what has changed.

        Args:
            have: The files that the server has, with their stamps.
            after: The step of the last row of metrics that it has, by the id of the run or model.
            forget: Ended models of a sweep that it has altogether, which need not be kept here.
        """
        for model in forget:
            self._forget(model)
        is_over = not self.thread.is_alive()  # first, so that what is read now is the last
        with self.store.database.reading() as db:
            found = {row["id"]: dict(row) for row in db.execute("SELECT * FROM runs")}
            in_metrics = [row["run"] for row in db.execute("SELECT DISTINCT run FROM metrics")]
        row = found.pop(self.run)
        models = [of for run, of in found.items() if run not in self.others]
        has_begun = row["pid"] is not None or row["state"] != "running" or is_over  # before, it has not read its state
        rows = {run: self.store.rows(run, after.get(run, -1)) for run in in_metrics} if has_begun else {}
        inside, known = stamps(self.store.folder, self.run), dict(have)
        for model in models:  # its files were those of its sweep
            inside |= stamps(self.store.folder, model["id"])
            sweep, number = model["parent"].split("/")
            aside = f"{sweep}/members/{number}/"
            moved = {path: one for path, one in have.items() if path.startswith(aside)}
            known |= {f"{model['id']}/{path.removeprefix(aside)}": one for path, one in moved.items()}
        files, is_whole = self._read([path for path, stamp in inside.items() if known.get(path) != stamp])
        self.seen |= inside.keys()
        ended = {model["id"] for model in models}  # the state was moved with them, and is gone since
        gone = sorted({*self.seen, *(path for path in known if path.partition("/")[0] in ended)} - inside.keys())
        return Report(_node_id(), row, rows, models, files, gone, is_whole, is_over, self.error, self.obeyed)

    def _read(self, paths: Sequence[str]) -> tuple[Files, bool]:
        """Return files up to `MOST_BYTES` in all, and whether these are all."""
        files, total = {}, 0
        for path in paths:
            if total > MOST_BYTES:
                return files, False
            with suppress(FileNotFoundError), open(self.store.folder / path, "rb") as file:
                files[path] = stamp_of(os.fstat(file.fileno())), file.read()  # which agree
                total += len(files[path][1])
        return files, True

    def _forget(self, model: str) -> None:
        with self.store.database.writing() as db:
            db.execute("DELETE FROM runs WHERE id = ?", (model,))
            db.execute("DELETE FROM metrics WHERE run = ?", (model,))
        shutil.rmtree(self.store.folder_of(model), ignore_errors=True)
        self.seen = {path for path in self.seen if not path.startswith(f"{model}/")}

    def command(self, commands: Sequence[tuple[int, str, float | None]]) -> None:
        """Take commands with their numbers in the server's store; those that came before are left out."""
        with self.store.database.writing() as db:
            for number, kind, value in commands:
                if number > self.obeyed:
                    put_command(db, self.run, kind, value)
                    self.obeyed = number

    def close(self) -> None:
        """Remove the folder on the node."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _remove_abandoned() -> None:
    """Remove the folders of processes that were killed on this machine."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime < ABANDONED_SECONDS:
                continue
            if (lock := liveness.take(folder / liveness.LOCK)) is not None:
                os.close(lock)
                shutil.rmtree(folder, ignore_errors=True)


def _node_id() -> str:
    """Return Ray's name of this node; empty outside of a cluster."""
    import ray

    return ray.get_runtime_context().get_node_id() if ray.is_initialized() else ""
