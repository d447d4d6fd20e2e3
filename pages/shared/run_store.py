"""The runs as a visitor may see them: the run store, who is asking, and what they may do.

On a server for this machine alone, every visitor may do everything (open mode). On a server for several people, which one
behind a proxy is too, each browser has a number of its own in a cookie: who started a run controls it, all others look on.
XFORMER_OPEN=0 or 1 chooses otherwise. A visitor without the cookie only looks on: a frame of another site has none.

A page reads runs through here, so that a private one is there for its owner alone; what it may order stands in `run_commands`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

import streamlit as st

from pages.shared.byte_cache import shared
from pages.shared.serving import access
from pages.shared.serving.access import is_forwarded, is_local_only
from pages.shared.serving.classroom import rooms
from pages.shared.streamlit_compat import is_script_thread
from pages.shared.text import escape_markdown
from xformer.checkpoints import FILE
from xformer.disk_quota import runs_folder
from xformer.errors import ConfigError, RunStoreError, XformerError
from xformer.files import snapshot_steps
from xformer.training import executors, jobs, liveness
from xformer.training.entry import Entry
from xformer.training.executors.relay import Status
from xformer.training.limits import Limits
from xformer.training.run_store import RunStore, no_such_run

HERE = "here"
"""Who everybody is in open mode."""
RECONCILE_SECONDS = 1.0
EMPTY_BIN_SECONDS = 60.0


def store() -> RunStore:
    """The run store of all runs that are trained here."""
    return RunStore(runs_folder())


def limits() -> Limits:
    """What this server allows; the usual limits where the environment holds nonsense."""
    try:
        return Limits.from_environment()
    except ConfigError as error:
        st.warning(escape_markdown(str(error)))
        return Limits()


def is_open() -> bool:
    """Whether everybody may do everything."""
    if _is_onlooker():
        return False
    asked = os.environ.get("XFORMER_OPEN")
    if asked in ("0", "1"):
        return asked == "1"
    return is_local_only() and not is_forwarded(st.context.headers)


def who() -> str:
    """The visitor's name, which owns the runs that they start; empty for a visitor without one, who can own none."""
    if is_open():
        return HERE
    return "" if _is_onlooker() else access.visitor_id()


def _is_onlooker() -> bool:
    """Whether the visitor may order nothing: a page around the frame could lay something else over the buttons."""
    return is_script_thread() and (bool(st.context.is_embedded) or not access.visitor_id())


def may_control(entry: Entry, who: str) -> bool:
    """Whether a visitor may tell a run what to do."""
    return is_open() or (bool(who) and entry.owner == who)


def may_see(entry: Entry) -> bool:
    """Whether the visitor may look at a run: everyone may, unless it is private."""
    return not entry.private or may_control(entry, who())


def entries(*, deleted: bool = False) -> list[Entry]:
    """The runs that the visitor may look at, the latest first, as their processes stand at this moment.

    Raises `RunStoreError` where the run store cannot be read.
    """
    return [liveness.with_process_state(store(), entry) for entry in store().entries(deleted=deleted) if may_see(entry)]


def entry(run: str) -> Entry:
    """One run, as its process stands at this moment.

    Raises `RunStoreError`, with the same words for one that is not there and one that may not be seen.
    """
    found = store().entry(run)
    if not may_see(found):
        raise no_such_run(run)
    return liveness.with_process_state(store(), found)


def labels(entries: Sequence[Entry]) -> dict[str, str]:
    """The display name of each run by its id: its name, with the start of its id where another run has the same name."""
    names = [entry.name for entry in entries]
    return {one.id: one.name if names.count(one.name) == 1 else f"{one.name} · {one.id[:4]}" for one in entries}


def trained() -> dict[str, str]:
    """The runs that have weights to look at, the latest first: their ids and display names."""
    try:
        return labels([entry for entry in entries() if steps_of(entry.id)])
    except RunStoreError:
        return {}


def steps_of(run: str) -> list[int]:
    """The steps of a run whose weights can be looked at, in order."""
    folder = store().folder_of(run)
    steps = snapshot_steps(folder)
    if not steps and os.path.exists(folder / FILE):
        return [store().entry(run).step]
    return steps


def cluster() -> Status | None:
    """How the Ray cluster is that trains the runs; None without one, or while its figures are not known."""
    try:
        return Status.read(store().folder) if executors.chosen() == executors.RAY else None
    except ConfigError:  # the reconciler starts no run then, and the start of a run says why
        return None


def start_reconciler() -> None:
    """Look after the queue for as long as the server runs; to be called once."""
    threading.Thread(target=_reconcile_for_ever, name="reconciler", daemon=True).start()


def _reconcile_for_ever() -> None:
    emptied = time.monotonic()
    while True:
        shared.sweep()  # also frees the memory of visitors who have left
        is_time = time.monotonic() - emptied > EMPTY_BIN_SECONDS
        try:
            if is_time:
                emptied = time.monotonic()
                rooms().delete_expired()
            if store().database.file.exists():
                jobs.reconcile(store())
                if is_time:
                    jobs.empty_bin(store())
        except (XformerError, OSError):  # a full disk, a folder that may not be written: the pages say so, it may pass
            pass
        time.sleep(RECONCILE_SECONDS)
