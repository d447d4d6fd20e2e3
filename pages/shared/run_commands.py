"""What may be ordered of runs: every order of every screen goes through here, and is refused here where it is not allowed.

A button that is disabled or not drawn is a courtesy; what a browser sends is not bound to it. So each function asks by itself
who the visitor is, and raises `RunStoreError` with one plain sentence for an order that is not theirs to give.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pages.shared import run_store
from pages.shared.serving import limits
from pages.shared.widgets import typed
from xformer.errors import RunStoreError
from xformer.integrations.health_archive import from_archive, is_archive
from xformer.presets import Preset
from xformer.tasks import texts
from xformer.training import jobs
from xformer.training.card import ImportResult, from_file
from xformer.training.entry import ELSEWHERE, Entry

MOST_NAME = 80
NO_OWNER = (
    "Nothing can belong to you here: your browser keeps no cookie of this server, or shows this page in a frame. "
    "Allow the cookie, or open the page by itself, and try again."
)


def start(
    settings: Preset, *, name: str = "", device: str = "auto", sweep: Mapping[str, Sequence[Any]] | None = None
) -> str:
    """Put a run of the visitor's into the queue and return its id; with `sweep`, one of many models."""
    name = typed(name, MOST_NAME)
    return _submitted(jobs.submit, run_store.store(), settings, name=name, device=device, sweep=sweep)


def again(run: str, name: str) -> str:
    """A run of the visitor's with the settings of one that they see; of a private one a private one."""
    entry = run_store.entry(run)
    settings = entry.settings()
    sweep = None if entry.sweep is None else entry.sweep["settings"]
    how: dict[str, Any] = {"name": name, "device": entry.wanted, "private": bool(entry.private), "sweep": sweep}
    return _submitted(jobs.submit, run_store.store(), settings, **how)


def fork(run: str, step: int, settings: Preset, name: str) -> str:
    """A run of the visitor's that begins with the weights of one that they see; of a private one a private one."""
    entry = run_store.entry(run)
    device = "auto" if entry.wanted == ELSEWHERE else entry.wanted
    how: dict[str, Any] = {"name": name, "device": device, "private": bool(entry.private)}
    return _submitted(jobs.fork, run_store.store(), run, step, settings, **how)


def send(run: str, kind: str) -> None:
    """Tell the worker of a run to "pause", or to take one "step"."""
    run_store.store().send(_own(run).id, kind)


def resume(run: str) -> None:
    """Let a run go on."""
    jobs.resume(run_store.store(), _own(run).id)


def stop(run: str) -> None:
    """Stop a run, or take it out of the queue."""
    jobs.stop(run_store.store(), _own(run).id)


def change_rate(run: str, peak: float) -> None:
    """Give a run another peak of its learning rate."""
    jobs.change_rate(run_store.store(), _own(run).id, peak)


def rename(run: str, name: str) -> None:
    """Give a run another name."""
    run_store.store().rename(_own(run).id, typed(name, MOST_NAME))


def tag(run: str, tags: list[str]) -> None:
    """Give a run other tags."""
    run_store.store().tag(_own(run).id, tags)


def share(run: str) -> None:
    """Have everyone on this server see a private run."""
    run_store.store().share(_own(run).id)


def delete(run: str) -> None:
    """Throw a run away."""
    run_store.store().delete(_own(run).id)


def undelete(run: str) -> None:
    """Take a run back that was thrown away."""
    run_store.store().undelete(_own(run).id)


def take_file(content: bytes, file_name: str) -> ImportResult:
    """Take a file into the run store: weights, or the archive of a recorded training.

    On a server for several people it is the visitor's alone until they share it.
    """
    store, limits = run_store.store(), run_store.limits()
    how: dict[str, Any] = {"owner": _somebody(), "limits": limits, "private": not run_store.is_open()}
    if is_archive(content):
        return from_archive(store, content, **how)
    return from_file(store, content, file_name=file_name, sees=run_store.may_see, **how)


def keep_text(content: bytes) -> str:
    """Keep a text that a model can learn, and return its name; only who has the name can use it."""
    _somebody()
    return texts.keep(content)


def download_shakespeare() -> None:
    """Fetch tiny Shakespeare for everyone."""
    _somebody()
    texts.download_shakespeare()


def _somebody() -> str:
    if not (who := run_store.who()):
        raise RunStoreError(NO_OWNER)
    return who


def _own(run: str) -> Entry:
    """A run that the visitor may order about."""
    who, entry = _somebody(), run_store.entry(run)
    if not run_store.may_control(entry, who):
        raise RunStoreError(f"The run “{entry.name}” was started by someone else, so only they can do that.")
    return entry


def _submitted(how: Any, *arguments: Any, **more: Any) -> str:
    """Start a run for the visitor, counted for them and for the address that they ask from."""
    owner, address = _somebody(), limits.visitor_address()
    run = how(*arguments, owner=owner, limits=run_store.limits(), also=limits.run_limit(address), **more)
    limits.count_run(address, run)
    return run
