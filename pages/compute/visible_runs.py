"""Access to the run store with the visitor's permissions.

On a server that listens to this machine only, anyone can do everything (open mode). On a server for several people, including
one behind a proxy, each browser gets its own id in a cookie. The visitor who started a run controls it, and everyone else can
only watch. XFORMER_OPEN=0 or 1 overrides this choice. A visitor without the cookie, as in a cross-site frame, can only watch.

Screens read runs through this module, so that a private run is visible only to its owner; `run_commands` has the commands.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import streamlit as st

from pages.controls.streamlit_compat import is_script_thread
from pages.controls.text import escape_markdown
from pages.server import access
from pages.server.access import is_forwarded, is_local_only
from xformer.checkpoints import FILE
from xformer.disk_quota import is_read_only, runs_folder
from xformer.errors import ConfigError, RunStoreError
from xformer.files import snapshot_steps
from xformer.training import executors, jobs, liveness
from xformer.training.executors.relay import Status
from xformer.training.limits import Limits
from xformer.training.run_record import RunRecord
from xformer.training.run_store import RunStore, no_such_run

LOCAL_SCOPE = "here"
"""The owner of all runs in open mode."""


def store() -> RunStore:
    """Return the run store of this server."""
    return RunStore(runs_folder())


def limits() -> Limits:
    """Return the limits of this server; the defaults, with a warning, if the environment variables are invalid."""
    try:
        return Limits.from_environment()
    except ConfigError as error:
        st.warning(escape_markdown(str(error)))
        return Limits()


def is_open() -> bool:
    """Whether the server is in open mode, where anyone can do everything."""
    return not is_read_only() and _is_open()


def _is_open() -> bool:
    if _is_onlooker():
        return False
    asked = os.environ.get("XFORMER_OPEN")
    if asked in ("0", "1"):
        return asked == "1"
    return is_local_only() and not is_forwarded(st.context.headers)


def visitor() -> str:
    """Return the visitor's id, which owns the runs that they start; empty for a visitor who cannot own runs."""
    if is_open():
        return LOCAL_SCOPE
    return "" if is_read_only() or _is_onlooker() else access.visitor_id()


def _is_onlooker() -> bool:
    """Whether the visitor can only watch: without a cookie, or in a frame, where clickjacking is possible."""
    return is_script_thread() and (bool(st.context.is_embedded) or not access.visitor_id())


def may_control(entry: RunRecord, visitor: str) -> bool:
    """Whether a visitor may control a run."""
    return is_open() or (bool(visitor) and entry.owner == visitor)


def may_see(entry: RunRecord) -> bool:
    """Whether the visitor may see a run: everyone may, unless it is private."""
    return not entry.private or may_control(entry, visitor()) or (is_read_only() and _is_open())


def entries(*, deleted: bool = False) -> list[RunRecord]:
    """Return the runs that the visitor may see, the latest first, with the current state of their processes.

    Raises `RunStoreError` if the run store cannot be read.
    """
    return [liveness.with_process_state(store(), entry) for entry in store().entries(deleted=deleted) if may_see(entry)]


def entry(run: str) -> RunRecord:
    """Return a run with the current state of its process.

    Raises `RunStoreError`, with the same message for a run that does not exist and one that the visitor may not see.
    """
    found = store().entry(run)
    if not may_see(found):
        raise no_such_run(run)
    return liveness.with_process_state(store(), found)


def labels(entries: Sequence[RunRecord]) -> dict[str, str]:
    """Return the display name of each run by id; runs with the same name get the start of their ids as a suffix."""
    names = [run.name for run in entries]
    return {run.id: run.name if names.count(run.name) == 1 else f"{run.name} · {run.id[:4]}" for run in entries}


def trained() -> dict[str, str]:
    """Return the display names of the runs that have weights by id, the latest first."""
    try:
        return labels([entry for entry in entries() if steps_of(entry.id)])
    except RunStoreError:
        return {}


def steps_of(run: str) -> list[int]:
    """Return the steps of a run that have weights, in order."""
    folder = store().folder_of(run)
    steps = snapshot_steps(folder)
    if not steps and os.path.exists(folder / FILE):
        return [store().entry(run).step]
    return steps


def cluster() -> Status | None:
    """Return the status of the Ray cluster that trains the runs; None without one, or while its status is unknown."""
    try:
        return Status.read(store().folder) if executors.chosen() == executors.RAY else None
    except ConfigError:  # the reconciler then starts no runs, and starting one shows this error
        return None


def reconcile(*, empties_bin: bool) -> None:
    """Start, restart and end the workers of the runs, unless the runs are only shown."""
    if store().database.file.exists() and not is_read_only():
        jobs.reconcile(store())
        if empties_bin:
            jobs.empty_bin(store())
