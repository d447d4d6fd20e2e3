"""The process that trains one run or sweep of the run store: `python -m xformer.training.worker RUN …`, started by `jobs`.

Between two steps it handles the commands in the run store and writes its progress. When it ends, it records the final state of
the run and the reason. If it is killed, the last saved state is intact and resuming continues from there.

The models of a sweep train together. Each becomes a separate run when it ends. After a stop, the remaining models become
stopped runs, which can be resumed individually or with the sweep. Their ids are fixed in advance, so a kill at any moment can
be repaired.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from xformer.checkpoints import load
from xformer.disk_quota import DiskQuota
from xformer.errors import ConfigError, QuotaExceededError, RunStoreError, TrainingError
from xformer.files import STATE, is_finished
from xformer.presets import Preset
from xformer.tasks import Task
from xformer.training import liveness
from xformer.training.commands import GOES_ON, CommandLoop, GpuGoneError, Scoring, failure
from xformer.training.evaluate import put_figures_on_card
from xformer.training.jobs import START, reconcile
from xformer.training.limits import check_memory
from xformer.training.loop import Run, Stopped, choose_device, forget_after, forget_unfinished, prepare_process
from xformer.training.many import reports
from xformer.training.run_record import SCORING, RunRecord
from xformer.training.run_store import RunStore, change_peak, entry_of, insert_rows, move, set_columns
from xformer.training.stored_sweep import MapWriter
from xformer.training.sweeps import SweepMember, members_of

SAMPLES = 2_000
"""The number of unseen examples that a finished run is scored on."""


def main(arguments: list[str] | None = None) -> int:
    """Train one run until it ends or is stopped."""
    parser = argparse.ArgumentParser(prog="python -m xformer.training.worker")
    parser.add_argument("run")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--token", required=True, help="the token that assigns the run to this process")
    parser.add_argument("--lock", type=int, required=True, help="descriptor of the lock file, held until the end")
    options = parser.parse_args(arguments)
    prepare_process()
    store = RunStore(options.folder)
    held_open = store.database.connect()  # otherwise each write would copy the log back into the file
    try:
        work(store, options.run, options.token, options.lock)
        reconcile(store)  # the device is free now; the lock is released when this process exits
    except RunStoreError as error:
        with suppress(OSError):  # if the disk is full, the log cannot be written either
            print(error, file=sys.stderr)
        return 1
    finally:
        held_open.close()
    return 0


def work(store: RunStore, run: str, token: str, lock: int | None = None) -> None:
    """Train the run if `token` assigns it to this process. If the store cannot be written, the reason goes to the lock file."""
    with store.database.writing() as db:  # wait for the transaction that started this process
        entry = entry_of(db, run)
    if entry.worker != token:
        return
    command_loop = CommandLoop(store, entry)
    if _has_own_process():
        signal.signal(signal.SIGTERM, command_loop.interrupt)
    try:
        if entry.sweep is None:
            state, message = train_one(store, entry, command_loop)
        else:
            lower_priority(entry)
            state, message = train_sweep(store, entry, command_loop, _device(store, entry))
    except Exception as error:  # record every error as the state and message of the run
        state, message = failure(store, entry, error)
    try:
        release(store, run, token, state, message, **command_loop.position())
    except RunStoreError as error:
        if lock is not None:
            liveness.sign(lock, os.getpid(), message.removesuffix(GOES_ON) or str(error))
        raise


def release(store: RunStore, run: str, token: str, state: str, message: str, **position: Any) -> None:
    """Record in one transaction that this process has released the run, with its state, message and step."""
    with store.database.writing() as db:
        entry = entry_of(db, run)
        if entry.worker != token:
            return
        found = db.execute("SELECT kind, value FROM commands WHERE run = ? ORDER BY number", (run,)).fetchall()
        sent = {row["kind"] for row in found}  # commands that arrived while the process was ending
        if state in ("paused", "queued") and "stop" in sent:
            state = "stopped"
        elif state == "paused" and sent & {"resume", "step"}:
            state = "queued"
        values = {"worker": None, "pid": None, "unreported_starts": 0, **position}
        values |= {"message": message} if message else {}
        for row in found:  # otherwise the last change of the learning rate would be lost
            if row["kind"] == "rate" and row["value"] is not None and state != "finished":
                change_peak(db, run, values.get("step", entry.step), row["value"])
        if state == entry.state:
            set_columns(db, run, **values)
        else:
            move(db, entry, state, **values)
        db.execute("DELETE FROM commands WHERE run = ?", (run,))


def train_one(store: RunStore, entry: RunRecord, command_loop: CommandLoop) -> tuple[str, str]:
    """Train a run of one model. Returns its final state and a message."""
    folder, settings = store.folder_of(entry.id), entry.settings()
    forget_unfinished(folder)
    if is_finished(folder):  # the process was killed after the last step
        card = load(folder).card
        with store.database.writing() as db:
            insert_rows(db, entry.id, card["curve"])
            set_columns(db, entry.id, step=card["step"], seconds=card["seconds"], pid=os.getpid())
        return finish(store, entry, folder, command_loop)
    Task(settings.task).check_fits(settings.model)
    device = _device(store, entry)
    check_memory(settings, device.type)
    if "@" in (entry.parent or "") and not ((folder / STATE).exists() or (folder / START).exists()):
        raise TrainingError(f"The weights of {entry.parent} that this run starts from are missing; fork it again.")
    run = _begin(store, entry.id, settings, folder, device)
    command_loop.attach({entry.id: run})
    try:
        for progress in run.reports(between=command_loop.between):
            command_loop.report(entry.id, progress.row())
            lower_priority(entry)  # after the first report, which the visitor who pressed Start waits for
    except Stopped:
        message = _keep_snapshot(run)
        command_loop.flush()
        return command_loop.reason, message
    except (TrainingError, QuotaExceededError):
        command_loop.flush()  # the metrics show what led to the error
        raise
    command_loop.flush()
    return finish(store, entry, folder, command_loop)


def lower_priority(entry: RunRecord) -> None:
    """Give this process the lowest scheduling priority, so that pages stay responsive while it trains.

    A run on a GPU keeps its priority because it needs little CPU time. So does a run in a thread of another program.
    """
    if entry.device != "cpu" or not _has_own_process():
        return
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except (AttributeError, OSError):  # not Linux, or not allowed in this container
        os.nice(19)  # repeated calls are harmless, because 19 is the maximum


def _has_own_process() -> bool:
    """Return whether this process only trains the run, as opposed to a thread of a process with other work."""
    return threading.current_thread() is threading.main_thread()


def _device(store: RunStore, entry: RunRecord) -> torch.device:
    """Return the device of a run, and record a message if it is not the requested one. Raises `GpuGoneError`."""
    try:
        device = choose_device(entry.device or "cpu")
    except ConfigError as error:
        raise GpuGoneError(str(error)) from error
    if device.type == "cpu" and entry.wanted.startswith("cuda"):
        store.change(entry.id, message=f"The requested GPU ({entry.wanted}) does not exist; this run uses the CPU.")
    return device


def finish(store: RunStore, entry: RunRecord, folder: Path, command_loop: CommandLoop) -> tuple[str, str]:
    scoring = Scoring(command_loop)
    figures = put_figures_on_card(folder, SAMPLES, scoring)
    live = {name: value for name, value in store.entry(entry.id).live.items() if name != SCORING}
    store.change(entry.id, figures=json.dumps(figures), live=json.dumps(live))
    return "finished", scoring.ended if figures["samples"] < SAMPLES else ""


def train_sweep(store: RunStore, entry: RunRecord, loop: CommandLoop, device: torch.device) -> tuple[str, str]:
    """Train the models of a sweep. Returns the final state of the sweep and a message.

    A model becomes a run when it ends: a finished model is scored, and a failed model gets the reason as its message.
    """
    folder, members = store.folder_of(entry.id), members_of(entry)
    forget_unfinished(folder)
    reclaim_members(store, entry, members)
    known = store.ids()
    waiting = [member for member in members if member.id not in known]
    check_memory(entry.settings(), device.type, n_models=len(waiting))
    folders = {member.number: member.folder(store, entry.id) for member in waiting}
    runs = {one.number: _begin(store, one.id, one.preset, folders[one.number], device) for one in waiting}
    ended = [member for member in waiting if is_finished(folders[member.number])]
    loop.attach({members[number].id: run for number, run in runs.items()})
    maps = MapWriter(folder, members, runs)
    n_failed = 0

    def between() -> None:
        maps.write_if_due()
        loop.between()

    def end(member: SweepMember, run: Run, failure: str = "") -> None:
        loop.ended.add(member.id)
        maps.end_member(member.number)
        loop.flush()
        if failure:
            become_run(store, entry, member, run, "failed", message=failure)
            return
        scoring = Scoring(loop)
        figures = put_figures_on_card(folders[member.number], SAMPLES, scoring)
        become_run(store, entry, member, run, "finished", message=scoring.ended, figures=figures)

    try:
        for member in ended:  # the process was killed after their last step, before they became runs
            end(member, runs.pop(member.number))
        for report in reports(runs, between):
            member = members[report.number]
            if report.progress is not None:
                loop.report(member.id, report.progress.row())
            if report.is_last:
                n_failed += bool(report.failure)
                end(member, runs[report.number], report.failure)
    except Stopped:
        maps.write_if_due(now=True)
        message = ""
        for number, run in runs.items() if loop.reason == "stopped" else ():
            if members[number].id not in loop.ended:
                message = _keep_snapshot(run) or message
                become_run(store, entry, members[number], run, "stopped")
        return loop.reason, message
    finally:
        loop.flush()
    return "finished", sweep_message(n_failed, len(members))


def sweep_message(n_failed: int, n_models: int) -> str:
    """Return the message of a finished sweep; empty if no model failed."""
    return f"{n_failed} of its {n_models} models failed because the loss was no longer finite." if n_failed else ""


def _keep_snapshot(run: Run) -> str:
    """Write a snapshot of a run that stops. Returns a message if the quota does not allow it, else ""."""
    try:
        run.keep_snapshot()
    except QuotaExceededError as error:
        return f"No snapshot of this step was saved. {error}"
    return ""


def _begin(store: RunStore, name: str, settings: Preset, folder: Path, device: torch.device) -> Run:
    """Return a run, or a model of a sweep, with the weights of its folder: final ones, a saved state, or those of a fork.

    All snapshots and metrics after the step from which it continues are discarded.
    """
    run = Run(settings, Task(settings.task), device, folder, DiskQuota(store.folder))
    if is_finished(folder):
        card = load(folder).card
        run.step, run.seconds, run.rows = card["step"], card["seconds"], card["curve"]
        run.begin_with(load(folder).model)
    elif (folder / STATE).exists():
        run.restore()
    elif (folder / START).exists():
        run.begin_with(load(folder / START).model)
    forget_after(folder, run.step)
    with store.database.writing() as db:
        db.execute("DELETE FROM metrics WHERE run = ? AND step > ?", (name, run.step))
        insert_rows(db, name, run.rows)
        set_columns(db, name, step=run.step, seconds=run.seconds, live="{}")
    return run


RECLAIMABLE = ("stopped", "interrupted")
"""The states of member runs that are resumed with their sweep."""


def become_run(
    store: RunStore,
    entry: RunRecord,
    member: SweepMember,
    run: Run,
    state: str,
    *,
    message: str = "",
    figures: Any = None,
) -> None:
    """Turn a model of a sweep into a run with this state."""

    def move_files(_: Sequence[RunRecord]) -> None:  # within the transaction, so that no run exists without its files
        with suppress(FileNotFoundError):  # a process that was then killed has already moved them
            os.rename(member.folder(store, entry.id), store.folder_of(member.id))

    columns = {"step": run.step, "seconds": run.seconds, "device": entry.device, "message": message}
    columns |= {"tags": json.dumps(list(entry.tags))}
    owned: dict[str, Any] = {"owner": entry.owner, "device": entry.wanted, "private": bool(entry.private)}
    owned |= {"name": f"{entry.name} · {member.name}", "parent": f"{entry.id}/{member.number:03d}"}
    store.add(member.preset, run=member.id, state=state, figures=figures, check=move_files, columns=columns, **owned)


def reclaim_members(store: RunStore, entry: RunRecord, members: Sequence[SweepMember]) -> None:
    """Return members to their sweep: stopped ones, and those whose files a killed process had already moved."""
    for member in members:
        moved, here = store.folder_of(member.id), member.folder(store, entry.id)
        with store.database.writing() as db:
            found = db.execute("SELECT worker, deleted, state FROM runs WHERE id = ?", (member.id,)).fetchone()
            if found is not None and (found["worker"] or found["deleted"] or found["state"] not in RECLAIMABLE):
                continue
            db.execute("DELETE FROM runs WHERE id = ?", (member.id,))
            if moved.is_dir() and not here.exists():
                here.parent.mkdir(parents=True, exist_ok=True)
                os.rename(moved, here)


if __name__ == "__main__":
    sys.exit(main())
