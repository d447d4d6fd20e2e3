"""The executor `ray`: a detached named actor for each run, or for each batch of a sweep; `remote` implements the actor.

An actor's name consists of the run's id and the token of its start, so every process with the run store finds the actors.
Progress is pulled into the store in a transaction that checks the token. A run whose node is lost returns to the queue and
continues from the last state in its local folder.
"""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from xformer.disk_quota import DiskQuota
from xformer.errors import CheckpointError, InputError, RunStoreError
from xformer.files import FILE, STATE
from xformer.tasks import texts
from xformer.training import jobs
from xformer.training.card import read_metadata
from xformer.training.commands import failure
from xformer.training.executors import Executor, Resources
from xformer.training.executors.cluster import LostError, RayCluster
from xformer.training.executors.relay import is_on_ray
from xformer.training.executors.remote import Files, RemoteJob, RemoteReport, Stamp, stamp_of, stamps, write_copy
from xformer.training.limits import Limits, memory_needed
from xformer.training.loop import forget_after, forget_unfinished
from xformer.training.run_record import RunRecord
from xformer.training.run_store import RunStore, entry_of, insert_rows, insert_run, move, owned_entry, set_columns
from xformer.training.stored_sweep import read_maps, write_maps
from xformer.training.sweeps import SweepMember, members_of
from xformer.training.worker import reclaim_members, release, sweep_message

GRACE_SECONDS = 10.0
"""Seconds that an actor may be unknown to the cluster, because it is still being registered or the head has restarted."""
STOP_SECONDS = 60.0
"""Seconds after which a run that does not stop is killed."""
MAX_STARTS = 5
"""Number of consecutive starts without a saved state after which the run fails."""
UNANSWERED = "Its node did not respond. Resume continues from the last state that was saved here."
AHEAD = 2
"""Number of actors, beyond the CPUs of the cluster, that may wait in Ray's own queue. Other runs wait in the run store."""
FEW = 8
"""Smallest batch of a sweep that is split off to use more CPUs, because starting an actor takes seconds."""


@dataclass(frozen=True)
class RayBatch:
    """The work of one actor: a run, or some models of a sweep."""

    name: str
    members: Sequence[SweepMember] = ()


@dataclass
class Seen:
    """What this process has already received from an actor. If it is lost, everything is requested again."""

    after: dict[str, int] = field(default_factory=dict)
    """The step of the last row of metrics, by the id of the run or model."""
    maps: dict[str, Stamp] = field(default_factory=dict)
    last: Any = None
    """The values written last, so that a report without changes writes nothing."""
    forget: list[str] = field(default_factory=list)
    """Models that the actor can delete, because everything about them is stored here."""
    row: Mapping[str, Any] = field(default_factory=dict)
    sent_commands: int = 0
    missing_since: float | None = None
    is_whole: bool = False


def batches(entry: RunRecord) -> list[RayBatch]:
    """Return the work of each actor of an active run."""
    members, name = members_of(entry), f"{entry.id}-{entry.worker}"
    if not members:
        return [RayBatch(name)]
    size = (entry.sweep or {}).get("batch") or len(members)
    return [
        RayBatch(f"{name}-{first // size}", members[first : first + size]) for first in range(0, len(members), size)
    ]


class RayExecutor(Executor):
    """Synchronises a run store with the actors of a cluster. Each store has one process with an executor; see `relay`."""

    def __init__(self, store: RunStore, cluster: RayCluster) -> None:
        self.store, self.cluster = store, cluster
        self.room, self.limits = DiskQuota(store.folder), Limits.from_environment()
        self.nodes = cluster.nodes()
        self.seen: dict[str, Seen] = {}

    def round(self, *, starts: bool) -> None:
        """Poll and command all runs once and, with `starts`, start waiting runs."""
        self.nodes = self.cluster.nodes()
        for entry in self._active():
            with suppress(RunStoreError, OSError):  # an error of one run must not hold up the others
                self.poll(entry)
        for entry in self._active():
            self.command(entry)
        if starts:
            self._start_waiting()
        waits = any(one.state == "queued" or (is_on_ray(one) and one.pid is None) for one in self.store.entries())
        if waits and self.cluster.free().get("CPU", 0.0) < 1:
            self._preempt_paused()
        self._end_orphans()

    def _active(self) -> list[RunRecord]:
        return [entry for entry in self.store.entries() if is_on_ray(entry)]

    def _total(self, resource: str) -> float:
        return sum(node.get(resource, 0.0) for node in self.nodes)

    # Starting

    def _start_waiting(self) -> None:
        """Assign waiting runs to the cluster in turn, as far as it has CPUs."""
        n = sum(len(self._unfinished_batches(entry)) for entry in self._active())
        for waiting in jobs.queue_order(self.store.entries()):
            if n >= self._total("CPU") + AHEAD:
                break
            with self.store.database.writing() as db:
                entry = entry_of(db, waiting.id)
                if entry.state != "queued" or entry.deleted is not None:
                    continue
                sweep = (
                    None if entry.sweep is None else json.dumps(entry.sweep | {"batch": self.models_per_actor(entry)})
                )
                jobs.assign(db, entry, device=None, node="", sweep=sweep)
            entry = self.store.entry(entry.id)
            if entry.sweep is not None:
                reclaim_members(self.store, entry, members_of(entry))  # for all batches, before any counts as finished
            self.submit(entry, self.needs(entry))
            n += len(batches(entry))

    def models_per_actor(self, entry: RunRecord) -> int:
        """Return how many models of a sweep one actor trains: as many as fit into one CPU's share of the memory."""
        settings, n = entry.settings(), len((entry.sweep or {})["ids"])
        most = self.limits.run_memory * 1024**2
        if shares := [node.get("memory", 0.0) / node["CPU"] for node in self.nodes if node.get("CPU")]:
            most = min(most, max(shares))
        size = max(FEW, -(-n // max(1, int(self._total("CPU")))))
        while size > 1 and memory_needed(settings, n_models=size) > most:
            size -= 1
        return min(n, size)

    def needs(self, entry: RunRecord) -> Resources:
        """Return the resources for an actor of a run, with a GPU if the cluster has one and the run may use it."""
        n = max(len(batch.members) for batch in batches(entry))
        gpus = int(entry.wanted != "cpu" and self._total("GPU") >= 1)
        return Resources(gpus=gpus, memory=memory_needed(entry.settings(), n_models=max(1, n)))

    def submit(self, entry: RunRecord, needs: Resources) -> None:
        """Create the missing actors of a run that have something left to train."""
        for batch in self._unfinished_batches(entry):
            self.cluster.start(batch.name, self._job(entry, batch), needs)

    def _unfinished_batches(self, entry: RunRecord) -> list[RayBatch]:
        """Return the batches of a run with something left to train; of a sweep, those with models that are not runs yet."""
        if entry.sweep is None:
            return batches(entry)
        known = self.store.ids()
        return [batch for batch in batches(entry) if any(one.id not in known for one in batch.members)]

    def _job(self, entry: RunRecord, batch: RayBatch) -> RemoteJob:
        folder = self.store.folder_of(entry.id)
        forget_unfinished(folder)
        known = self.store.ids()
        mine = [member for member in batch.members if member.id not in known]
        reclaim_members(self.store, entry, mine)
        folders = [member.folder(self.store, entry.id) for member in mine] if entry.sweep else [folder]
        for one in folders:
            forget_after(one, saved_step(one))
        paths = [one / name for one in folders for name in (STATE, FILE, "card.json", jobs.START)]
        files: Files = {
            str(path.relative_to(self.store.folder)): (stamp_of(path.stat()), path.read_bytes())
            for path in paths
            if path.is_file()
        }
        with self.store.database.reading() as db:
            row = dict(db.execute("SELECT * FROM runs WHERE id = ?", (entry.id,)).fetchone())
        ids = {member.id for member in members_of(entry)} - {member.id for member in mine}
        return RemoteJob(row, sorted(ids), files, text_of(entry))

    def _preempt_paused(self) -> None:
        """Take paused runs off their nodes for waiting runs. Their states have been saved here."""
        for entry in self._active():
            seen = self.seen.get(f"{entry.id}-{entry.worker}")
            if entry.state == "paused" and seen and seen.is_whole and seen.row["state"] == "paused":
                self._leave(entry, "paused", "")

    # Pulling

    def poll(self, entry: RunRecord) -> None:
        """Poll each actor of a run and write its report into the run store."""
        for batch in self._unfinished_batches(entry):
            seen = self.seen.setdefault(batch.name, Seen())
            try:
                report = self.cluster.ask(batch.name, self._local_stamps(entry, batch, seen), seen.after, seen.forget)
            except LostError as error:
                self._restart_missing(entry, batch, seen, error.is_certain)
                continue
            seen.missing_since = None
            if report is not None and not self._take(entry, batch, seen, report):
                return
        if entry.sweep is not None and not self._unfinished_batches(entry):
            self._end_sweep(entry)

    def _local_stamps(self, entry: RunRecord, batch: RayBatch, seen: Seen) -> dict[str, Stamp]:
        """Return the stamps of the local files that belong to an actor's work."""
        if not batch.members:
            return stamps(self.store.folder, entry.id)
        inside = [str(one.folder(self.store, entry.id).relative_to(self.store.folder)) for one in batch.members]
        inside += [one.id for one in batch.members]
        return {path: stamp for one in inside for path, stamp in stamps(self.store.folder, one).items()} | seen.maps

    def _take(self, entry: RunRecord, batch: RayBatch, seen: Seen, report: RemoteReport) -> bool:
        """Write a report into the store and the folder. Returns whether the run continues."""
        try:
            self._move_models(entry, report)
            self._take_files(entry, batch, seen, report)
            self._take_models(entry, report)
        except (RunStoreError, OSError) as error:  # such as a full disk or an exceeded disk quota
            state, message = failure(self.store, entry, error)
            self._leave(entry, state, message)
            return False
        row = report.row
        now = (row, report.obeyed, report.node_id)
        seen.row, seen.is_whole = row, report.is_whole and not report.files
        if now != seen.last or report.models or any(report.rows.values()):
            with self.store.database.writing() as db:
                self._take_columns(db, owned_entry(db, entry), batch, seen, report)
        seen.last = now
        seen.after |= {run: rows[-1]["step"] for run, rows in report.rows.items() if rows}
        if report.is_whole:
            for path in report.gone:
                (self.store.folder / path).unlink(missing_ok=True)  # `_take_files` has checked the path
            seen.forget = [model["id"] for model in report.models]
        if not (report.is_over and report.is_whole):
            return True
        state, message = row["state"], row["message"]
        if row["worker"] is not None:  # the node could not record the end in its own store
            state, message = "failed", report.error or "The run ended on its node without an error message."
        if not batch.members or state == "failed":
            position = {} if batch.members else {"step": row["step"], "seconds": row["seconds"]}
            self._leave(entry, state, message, **position)
            return False
        self.cluster.end(batch.name)
        if state == "queued":  # it lost its GPU and continues without one
            self._restart_missing(entry, batch, seen, is_certain=True)
        return True

    def _move_models(self, entry: RunRecord, report: RemoteReport) -> None:
        """Move the files of models that have ended to the folders of their runs, as the node has done."""
        for model in report.models:
            target = self.store.folder_of(model["id"])
            source = self.store.folder_of(entry.id) / "members" / model["parent"].partition("/")[2]
            if source.is_dir() and not target.exists():
                os.rename(source, target)

    def _take_models(self, entry: RunRecord, report: RemoteReport) -> None:
        """Turn models of a sweep that have ended into runs once all their files have arrived."""
        models = report.models if report.is_whole else ()
        known = self.store.ids() if models else set()
        for model in models:
            if model["id"] not in known:
                with self.store.database.writing() as db:
                    now = owned_entry(db, entry)
                    values = {name: value for name, value in model.items() if name != "number"}
                    values |= {"owner": now.owner, "private": now.private, "node": self._node(report)}
                    insert_run(db, values)

    def _take_files(self, entry: RunRecord, batch: RayBatch, seen: Seen, report: RemoteReport) -> None:
        maps, own = f"{entry.id}/maps/", {entry.id, *(one.id for one in batch.members)}
        for path in (*report.files, *report.gone):
            if ".." in Path(path).parts or Path(path).parts[:1] not in {(run,) for run in own}:
                raise RunStoreError(f"The node named a file that does not belong to this run: {path!r:.100}.")
        for path, (stamp, content) in report.files.items():
            if path.startswith(maps) and Path(path).stem.isdecimal():
                self._take_maps(self.store.folder_of(entry.id), batch, int(Path(path).stem), content)
                seen.maps[path] = stamp
                continue
            if not (self.store.folder / path).exists():
                self.room.check(len(content), "A file of this run")
                self.room.wrote(len(content))
            write_copy(self.store.folder, path, stamp, content)

    def _take_maps(self, folder: Path, batch: RayBatch, step: int, content: bytes) -> None:
        """Merge the maps of this batch into those of the other batches."""
        maps = np.load(io.BytesIO(content), allow_pickle=False)
        with suppress(OSError, ValueError):  # no other batch has sent maps of this step
            merged = read_maps(folder, step)
            for member in batch.members:
                if maps[member.number].any():
                    merged[member.number] = maps[member.number]
            maps = merged
        write_maps(folder, step, maps)

    def _take_columns(self, db: Any, now: RunRecord, batch: RayBatch, seen: Seen, report: RemoteReport) -> None:
        row = report.row
        for run, some in report.rows.items():
            if some and run not in seen.after:  # local rows may be later than the state from which the run continued
                db.execute("DELETE FROM metrics WHERE run = ?", (run,))
            insert_rows(db, run, some)
        kept = ("message", "wanted", "device", "pid")
        kept += () if batch.members else ("step", "seconds", "live", "figures", "train")
        values = {name: row[name] for name in kept} | {"node": self._node(report)}
        if batch.members:
            all_seen = [one.row for one in map(self.seen.get, (of.name for of in batches(now))) if one and one.row]
            speed = sum(json.loads(one["live"]).get("steps_per_second", 0.0) for one in all_seen)
            values["live"] = json.dumps({"steps_per_second": speed})
            values["step"] = max(now.step, *(one["step"] for one in all_seen), 0)
            values["seconds"] = max(now.seconds, sum(one["seconds"] for one in all_seen))
        if any(Path(path).name in (STATE, FILE) for path in report.files):
            values["unreported_starts"] = 0
        if row["state"] in ("running", "paused") and row["state"] != now.state and not batch.members:
            move(db, now, row["state"], **values)
        else:
            set_columns(db, now.id, **values)
        if not batch.members:  # a sweep's stop command is needed by every batch; `release` deletes it
            db.execute("DELETE FROM commands WHERE run = ? AND kind != 'stop' AND number <= ?", (now.id, report.obeyed))

    def _node(self, report: RemoteReport) -> str:
        return next((node["name"] for node in self.nodes if node["id"] == report.node_id), "")

    # Ends

    def _end_sweep(self, entry: RunRecord) -> None:
        ids = {member.id for member in members_of(entry)}
        runs = [one for deleted in (False, True) for one in self.store.entries(deleted=deleted) if one.id in ids]
        n_failed = sum(run.state == "failed" for run in runs)
        is_stopped = any(run.state == "stopped" for run in runs)
        state, message = ("stopped", "") if is_stopped else ("finished", sweep_message(n_failed, len(ids)))
        self._leave(entry, state, message)

    def _leave(self, entry: RunRecord, state: str, message: str, **values: Any) -> None:
        """Record that a run has left the cluster, then end its actors, which are no longer needed."""
        release(self.store, entry.id, str(entry.worker), state, message, **values)
        self.cancel(entry)

    def _restart_missing(self, entry: RunRecord, batch: RayBatch, seen: Seen, is_certain: bool) -> None:
        """Restart a run or batch whose actor has died. An actor of unknown state gets `GRACE_SECONDS` first."""
        now = time.monotonic()
        seen.missing_since = seen.missing_since or now
        if not is_certain and now - seen.missing_since < GRACE_SECONDS:
            return
        entry = self.store.entry(entry.id)
        self.seen.pop(batch.name, None)
        starts = entry.unreported_starts
        if starts >= MAX_STARTS:
            what = f"Its node was lost {starts} times in a row before a saved state came back"
            self._leave(entry, "failed", f"{what}; it may need more memory than a node has. Resume tries again.")
            return
        folders = [one.folder(self.store, entry.id) for one in batch.members] or [self.store.folder_of(entry.id)]
        step = max(map(saved_step, folders))
        node = f"The node {entry.node}" if entry.node else "The node"
        then = f"continues from step {step:,}, the last state that was saved here" if step else "starts again"
        message = f"{node} that trained this run was lost. The run {then}."
        if batch.members:
            with self.store.database.writing() as db:
                set_columns(db, owned_entry(db, entry).id, message=message, unreported_starts=starts + 1)
            now = self.store.entry(entry.id)
            self.submit(now, self.needs(now))
        else:
            state = "paused" if entry.state == "paused" else "queued"
            self._leave(entry, state, message, unreported_starts=starts, live="{}")

    # Commands

    def command(self, entry: RunRecord) -> None:
        """Forward the pending commands. A stop takes effect here if the run has no node yet or does not react in time."""
        with self.store.database.reading() as db:
            query = "SELECT number, kind, value, sent FROM commands WHERE run = ? ORDER BY number"
            found = [tuple(row) for row in db.execute(query, (entry.id,))]
        stops = [sent for _, kind, _, sent in found if kind == "stop"]
        is_late = bool(stops) and time.monotonic() - min(stops) > STOP_SECONDS
        if is_late or (stops and entry.pid is None):
            self._leave(entry, "stopped", UNANSWERED if is_late else "")
            return
        for batch in self._unfinished_batches(entry) if found else ():
            seen = self.seen.setdefault(batch.name, Seen())
            new = [(number, kind, value) for number, kind, value, _ in found if number > seen.sent_commands]
            if new:
                self.cluster.tell(batch.name, new)
                seen.sent_commands = new[-1][0]

    def cancel(self, entry: RunRecord) -> None:
        """End the actors of a run."""
        for batch in batches(entry):
            self.cluster.end(batch.name)
            self.seen.pop(batch.name, None)

    def _end_orphans(self) -> None:
        """End actors that are no longer needed, such as those of runs that were restarted, or left by a killed process."""
        for name in self.cluster.names():
            try:
                entry = self.store.entry(name.partition("-")[0])
            except RunStoreError:  # it belongs to another run store
                continue
            wanted = [batch.name for batch in self._unfinished_batches(entry)] if is_on_ray(entry) else []
            if name not in wanted:
                self.cluster.end(name)


def saved_step(folder: Path) -> int:
    """Return the step of the state in a folder; 0 if there is none, or if it is damaged, which the worker will report."""
    try:
        step = read_metadata(folder).get("step") if (folder / STATE).exists() else 0
    except (OSError, CheckpointError):
        return 0
    return step if isinstance(step, int) else 0


def text_of(entry: RunRecord) -> tuple[str, bytes] | None:
    """Return the name and content of the text that a run trains on, or None if every node has it."""
    name = entry.task.get("text") or texts.PYTHON
    if name == texts.PYTHON:
        return None
    with suppress(InputError):  # the worker will report it
        return name, texts.read(name).encode()
    return None
