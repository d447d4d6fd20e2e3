"""`python -m xformer runs`: what was trained in a folder, in the app or here, and orders to what is being trained."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from xformer.cli import run_commands
from xformer.cli.folders import Found, found_in
from xformer.cli.say import complain, say, say_json, say_table
from xformer.errors import InputError, RunStoreError
from xformer.formatting import percent
from xformer.training.card import card_of
from xformer.training.entry import Entry
from xformer.training.liveness import with_process_state
from xformer.training.run_store import RunStore, exact_match, latest_rows

COLUMNS = ("run", "name", "preset", "seed", "step", "state", "exact match", "seconds")
MOST_NAMED = 20


def run(options: Namespace) -> int:
    """Do what was asked; a run store that cannot be read is said so, and hides no folder."""
    folder, trouble = Path(options.folder), ""
    store, entries, thrown_away = RunStore(folder), {}, set()
    if store.database.file.exists():  # else looking would make one
        try:
            entries = {entry.id: with_process_state(store, entry) for entry in reversed(store.entries())}
            thrown_away = {entry.id for entry in store.entries(deleted=True)}
        except RunStoreError as error:
            trouble = str(error)
    found = {one.name: one for one in found_in(folder) if one.name not in {*entries, *thrown_away}}
    if options.action == "list":
        return _list(found, entries, store, trouble)
    if options.run in entries:
        _one_of_the_book(options.action, entries[options.run], store)
    elif options.run in found:
        _one_of_the_folders(options.action, found[options.run])
    elif trouble:
        raise RunStoreError(trouble)
    else:
        there = [*found, *entries]
        more = f" and {len(there) - MOST_NAMED} more" if len(there) > MOST_NAMED else ""
        names = ", ".join(there[:MOST_NAMED]) or "none"
        asked = f"There is no run {options.run!r:.100} in" if options.run else f"runs {options.action} needs a run of"
        raise InputError(f"{asked} {folder}; the runs there: {names}{more}.")
    return 0


def _one_of_the_book(action: str, entry: Entry, store: RunStore) -> None:
    if action != "show":
        say(run_commands.tell(action, entry, store))
        return
    rows = store.rows(entry.id)
    words = {"id": entry.id, "tags": entry.tags, "state": entry.state, "model": entry.model, "task": entry.task}
    words |= {"message": entry.message} if entry.message else {}
    words |= {"damaged_rows": n} if (n := store.n_rows(entry.id) - len(rows)) else {}
    say_json(words | card_of(entry, rows, entry.step), indent=2)


def _one_of_the_folders(action: str, found: Found) -> None:
    if action == "show":
        if found.trouble:
            raise InputError(f"The run {found.name!r:.100} is damaged. {found.trouble}")
        say_json(found.card, indent=2)
    elif action == "delete":
        found.delete()
        say(f"Deleted {found.path}.")
    else:
        raise InputError(
            f"The run {found.name!r:.100} is not the app's, so it cannot be told to {action}; press Ctrl-C where it is "
            "trained, and go on with train --resume."
        )


def _list(found: dict[str, Found], entries: dict[str, Entry], store: RunStore, trouble: str) -> int:
    lines = [one.line() for one in found.values()]
    try:
        latest = latest_rows(store) if entries else {}
    except RunStoreError as error:
        latest, trouble = {}, str(error)
    for name, entry in entries.items():
        share = exact_match(entry, latest.get(name, {}))
        exact = "–" if share is None else percent(share)
        seed, seconds = entry.train.get("seed", ""), f"{entry.seconds:.1f}"
        lines.append((name, entry.name, entry.preset, seed, f"{entry.step:,}", entry.state, exact, seconds))
    if lines:
        say_table(COLUMNS, lines)
    elif not trouble:
        start = "python -m xformer train --preset reverse --out …"
        say(f"Nothing has been trained in {store.folder} yet; start with: {start}")
    if trouble:
        complain(trouble)
    return int(bool(trouble))
