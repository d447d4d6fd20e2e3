"""`python -m xformer runs`: list runs of the app and of the command line, and control them."""

from __future__ import annotations

import shutil
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xformer.cli.output import print_answer, print_error, print_json, print_line, print_table
from xformer.errors import InputError, RunStoreError, XformerError
from xformer.files import FILE, STATE
from xformer.formatting import percent
from xformer.training import jobs
from xformer.training.card import card_of, read_metadata
from xformer.training.liveness import with_process_state
from xformer.training.run_record import DAMAGED, RunRecord, is_number
from xformer.training.run_store import RunStore, exact_match, latest_rows

_COLUMNS = ("run", "name", "preset", "seed", "step", "state", "exact match", "seconds")
_MAX_NAMED = 20


def run_runs(options: Namespace) -> int:
    """Perform one action. If the run store cannot be read, list the folders anyway and print the error."""
    folder, trouble = Path(options.folder), ""
    store, entries, deleted = RunStore(folder), {}, set()
    if store.database.file.exists():  # opening it would create one
        try:
            entries = {entry.id: with_process_state(store, entry) for entry in reversed(store.entries())}
            deleted = {entry.id for entry in store.entries(deleted=True)}
        except RunStoreError as error:
            trouble = str(error)
    found = {one.name: one for one in _found_in(folder) if one.name not in {*entries, *deleted}}
    if options.action == "list":
        return _list(found, entries, store, trouble, options.json)
    if options.run in entries:
        _act_on_entry(options.action, entries[options.run], store, options.json)
    elif options.run in found:
        _act_on_folder(options.action, found[options.run], options.json)
    elif trouble:
        raise RunStoreError(trouble)
    else:
        existing = [*found, *entries]
        more = f" and {len(existing) - _MAX_NAMED} more" if len(existing) > _MAX_NAMED else ""
        names = ", ".join(existing[:_MAX_NAMED]) or "none"
        what = f"There is no run {options.run!r:.100} in" if options.run else f"runs {options.action} needs a run of"
        raise InputError(f"{what} {folder}; the runs there: {names}{more}.")
    return 0


def _show(card: dict[str, Any], is_answer: bool) -> None:
    """Print the card of a run as JSON: for people on many lines, or as the answer of the command."""
    if is_answer:
        print_answer("runs show", run=card)
    else:
        print_json(card, indent=2)


def _act_on_entry(action: str, entry: RunRecord, store: RunStore, is_answer: bool) -> None:
    if action != "show":
        print_line(_send_command(action, entry, store))
        return
    rows = store.rows(entry.id)
    words = {"id": entry.id, "tags": entry.tags, "state": entry.state, "model": entry.model, "task": entry.task}
    words |= {"message": entry.message} if entry.message else {}
    words |= {"damaged_rows": n} if (n := store.n_rows(entry.id) - len(rows)) else {}
    _show(words | card_of(entry, rows, entry.step), is_answer)


def _act_on_folder(action: str, found: _Found, is_answer: bool) -> None:
    if action == "show":
        if found.trouble:
            raise InputError(f"The run {found.name!r:.100} is damaged. {found.trouble}")
        _show(found.card, is_answer)
    elif action == "delete":
        if found.path.is_symlink():
            raise InputError(f"{str(found.path)!r:.200} is a link to another folder; delete that folder, or the link.")
        shutil.rmtree(found.path)
        print_line(f"Deleted {found.path}.")
    else:
        what = f"The run {found.name!r:.100} was started on the command line, so it cannot {action} from here"
        raise InputError(f"{what}; press Ctrl-C there, and continue with train --resume.")


def _list(
    found: dict[str, _Found], entries: dict[str, RunRecord], store: RunStore, trouble: str, is_answer: bool
) -> int:
    lines = [one.line() for one in found.values()]
    try:
        latest = latest_rows(store) if entries else {}
    except RunStoreError as error:
        latest, trouble = {}, str(error)
    for name, entry in entries.items():
        share, seed = exact_match(entry, latest.get(name, {})), entry.train.get("seed", "")
        lines.append((name, entry.name, entry.preset, seed, entry.step, entry.state, share, entry.seconds))
    if is_answer:
        names = [name.replace(" ", "_") for name in _COLUMNS]
        print_answer("runs list", runs=[dict(zip(names, line, strict=True)) for line in lines])
    elif lines:
        print_table(_COLUMNS, map(_printed, lines))
    elif not trouble:
        start = "python -m xformer train --preset reverse --out …"
        print_line(f"Nothing has been trained in {store.folder} yet; start with: {start}")
    if trouble:
        print_error(trouble)
    return int(bool(trouble))


@dataclass(frozen=True)
class _Found:
    """A run of the command line: a folder with a model or the state of an interrupted run, outside any run store."""

    path: Path
    card: dict[str, Any] = field(default_factory=dict)
    trouble: str = ""
    """One sentence on why it cannot be read; empty if it can."""

    @property
    def name(self) -> str:
        return self.path.name

    def line(self) -> tuple[Any, ...]:
        """Return its row of the list, even if its card is incomplete or invalid."""
        card, rows = self.card, self.card.get("curve") or self.card.get("rows")
        last = rows[-1] if isinstance(rows, list) and rows and isinstance(rows[-1], dict) else {}
        train = card.get("train") if isinstance(card.get("train"), dict) else {}
        step, seconds = (card.get(name) if is_number(card.get(name)) else 0 for name in ("step", "seconds"))
        share = last.get("held_out_exact_match")
        exact = float(share) if share is not None and is_number(share) else None
        state = DAMAGED if self.trouble else "stopped" if (self.path / STATE).exists() else "finished"
        preset, seed = card.get("preset", ""), (train or {}).get("seed", "")
        return self.name, "", preset, seed, step, state, exact, seconds


def _printed(line: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row of the list with its numbers as text."""
    *start, step, state, exact, seconds = line
    return *start, f"{step:,}", state, "–" if exact is None else percent(exact), f"{seconds:.1f}"


def _found_in(folder: Path) -> Iterator[_Found]:
    """Yield the runs in a folder in the order of their names, including damaged ones."""
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        if not path.is_dir() or not any((path / name).exists() for name in (FILE, STATE, "snapshots")):
            continue
        try:
            yield _Found(path, read_metadata(path))
        except (XformerError, OSError) as error:
            yield _Found(path, trouble=str(error))


def _send_command(action: str, entry: RunRecord, store: RunStore) -> str:
    """Send a command to a run and return its effect as one sentence. Raises `RunStoreError` if it is not possible."""
    label = f"{entry.id} ({entry.name})"
    if action == "delete":
        store.delete(entry.id)
        return f"Deleted {label}. It can be restored in the app for an hour."
    if action == "pause":
        store.send(entry.id, "pause")
        return f"{label} will pause after its current step."
    if action == "resume":
        jobs.resume(store, entry.id)
        is_queued = store.entry(entry.id).state == "queued"
        return f"{label} {'is queued and will resume in its turn' if is_queued else 'resumes'}."
    if not entry.is_active and entry.state not in ("queued", "paused"):
        raise RunStoreError(f"The run “{entry.name}” is {entry.state}: there is nothing to stop.")
    jobs.stop(store, entry.id)
    return f"{label} will stop after its current step." if entry.is_active else f"{label} is stopped."
