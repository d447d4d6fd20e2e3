"""Commands on runs. Every screen sends its commands through here, where permissions are checked.

A disabled or missing button is no protection, since a browser can send any message. So each function identifies the visitor
itself, and raises `RunStoreError` with a one-sentence message if the visitor may not give the command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pages.compute import visible_runs
from pages.controls.widgets import validate_text
from pages.server import limits
from xformer.disk_quota import is_read_only
from xformer.errors import RunStoreError
from xformer.integrations.health_archive import from_archive, is_archive
from xformer.presets import Preset
from xformer.tasks import texts
from xformer.training import jobs
from xformer.training.card import ImportResult, from_file
from xformer.training.run_record import ELSEWHERE, RunRecord

Settings = Mapping[str, Sequence[Any]] | None
"""The swept settings; None for one model."""
MAX_NAME = 80
NO_OWNER = (
    "You cannot own anything here: your browser blocks the cookie of this server, or shows this page in a frame. "
    "Allow the cookie, or open the page in its own tab, and try again."
)


READ_ONLY = "This app only shows the runs of a folder. To train or change runs, start it without --runs."


def why_not() -> str:
    """Return why this visitor can own nothing, or ""."""
    return "" if visible_runs.visitor() else READ_ONLY if is_read_only() else NO_OWNER


def start(settings: Preset, *, name: str = "", device: str = "auto", sweep: Settings = None) -> str:
    """Queue a run for the visitor and return its id; with `sweep`, a sweep of many models."""
    name = validate_text(name, MAX_NAME)
    return _submit(jobs.submit, visible_runs.store(), settings, name=name, device=device, sweep=sweep)


def again(run: str, name: str) -> str:
    """Queue a run with the settings of an existing one and return its id. It is private if the original is."""
    entry = visible_runs.entry(run)
    settings = entry.settings()
    sweep = None if entry.sweep is None else entry.sweep["settings"]
    submit = partial(_submit, jobs.submit, visible_runs.store(), settings, name=name, sweep=sweep)
    return submit(device=entry.wanted, private=bool(entry.private))


def fork(run: str, step: int, settings: Preset, name: str) -> str:
    """Queue a run that starts with the weights of an existing one and return its id. It is private if the original is."""
    entry = visible_runs.entry(run)
    device = "auto" if entry.wanted == ELSEWHERE else entry.wanted
    submit = partial(_submit, jobs.fork, visible_runs.store(), run, step, settings, name=name)
    return submit(device=device, private=bool(entry.private))


def send(run: str, kind: str) -> None:
    """Send a command to the worker of a run: "pause", or one "step"."""
    visible_runs.store().send(_own(run).id, kind)


def resume(run: str) -> None:
    """Resume a run."""
    jobs.resume(visible_runs.store(), _own(run).id)


def stop(run: str) -> None:
    """Stop a run, or remove it from the queue."""
    jobs.stop(visible_runs.store(), _own(run).id)


def change_rate(run: str, peak: float) -> None:
    """Change the peak learning rate of a run."""
    jobs.change_rate(visible_runs.store(), _own(run).id, peak)


def rename(run: str, name: str) -> None:
    """Rename a run."""
    visible_runs.store().rename(_own(run).id, validate_text(name, MAX_NAME))


def tag(run: str, tags: list[str]) -> None:
    """Replace the tags of a run."""
    visible_runs.store().tag(_own(run).id, tags)


def share(run: str) -> None:
    """Make a private run visible to everyone on this server."""
    visible_runs.store().share(_own(run).id)


def delete(run: str) -> None:
    """Delete a run."""
    visible_runs.store().delete(_own(run).id)


def undelete(run: str) -> None:
    """Restore a deleted run."""
    visible_runs.store().undelete(_own(run).id)


def take_file(content: bytes, file_name: str) -> ImportResult:
    """Import a file into the run store: weights, or the archive of a recorded training.

    On a server for several people the run is private until the visitor shares it.
    """
    store, take = visible_runs.store(), partial(from_file, file_name=file_name, sees=visible_runs.may_see)
    take = from_archive if is_archive(content) else take
    return take(store, content, owner=_visitor(), limits=visible_runs.limits(), private=not visible_runs.is_open())


def keep_text(content: bytes) -> str:
    """Store a text to train on, and return its name. Only visitors who know the name can use it."""
    _visitor()
    return texts.keep(content)


def download_shakespeare() -> None:
    """Download tiny Shakespeare for all visitors."""
    _visitor()
    texts.download_shakespeare()


def _visitor() -> str:
    if reason := why_not():
        raise RunStoreError(reason)
    return visible_runs.visitor()


def _own(run: str) -> RunRecord:
    """Return a run that the visitor may control. Raises `RunStoreError` for other runs."""
    visitor, entry = _visitor(), visible_runs.entry(run)
    if not visible_runs.may_control(entry, visitor):
        raise RunStoreError(f"The run “{entry.name}” was started by someone else, and only its owner can do that.")
    return entry


def _submit(how: Any, *arguments: Any, **more: Any) -> str:
    """Start a run for the visitor, and count it towards the limits of the visitor and of their address."""
    owner, address = _visitor(), limits.visitor_address()
    run = how(*arguments, owner=owner, limits=visible_runs.limits(), also=limits.run_limit(address), **more)
    limits.count_run(address, run)
    return run
