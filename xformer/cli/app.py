"""`xformer app` and `xformer models`: start the app, and list or fetch external models."""

from __future__ import annotations

import io
import os
import socket
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
from xformer.playlist import FIRST as PLAYLIST
from xformer.playlist import load


def run_app(options: Namespace) -> None:
    """Check the model, then become the server. Raises `XformerError` if the app cannot be served."""
    if missing := [name for name in ("streamlit", "plotly") if find_spec(name) is None]:
        raise MissingLibraryError(f"The app needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    if options.model is not None:
        check_memory(inspect(options.model))  # fails here, not on a screen
        os.environ[FIRST] = str(Path(options.model).resolve())
    if options.runs is not None:
        if not Path(options.runs).is_dir():
            raise InputError(
                f"--runs is a folder of runs, and there is none at {options.runs}; for example checkpoints/runs."
            )
        os.environ["XFORMER_RUNS"] = str(Path(options.runs).resolve())
    if options.playlist is not None:
        load(options.playlist)  # fails here, not on a screen
        os.environ[PLAYLIST] = str(Path(options.playlist).resolve())
    command = [sys.executable, str(APP / "app.py")]
    if options.host is not None:
        command += ["--server.address", options.host]
        if options.host not in ("127.0.0.1", "localhost", "::1"):
            address = _address_in_network() if options.host in ("0.0.0.0", "::") else options.host
            command += ["--browser.serverAddress", address]
            url = f"http://{f'[{address}]' if ':' in address else address}:{options.port or 8501}"
            say(f"Others in this network open {url}")
            _print_code(url)
    if options.port is not None:
        command += ["--server.port", str(options.port)]
    if IS_INSTALLED:  # a checkout keeps them in its own folder
        say(f"Runs are kept in {runs_folder()}; XFORMER_RUNS chooses another folder.")
    sys.stdout.flush()
    os.execv(command[0], command)


def _address_in_network() -> str:
    """The address of this machine as others in its network reach it; its name where it is in none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: it only chooses the interface
            return probe.getsockname()[0]
        except OSError:
            return socket.gethostname()


def _print_code(url: str) -> None:
    """Print the address as a QR code, on a terminal that can show it."""
    if sys.stdout.isatty() and fit("█") == "█" and find_spec("segno"):
        print(_code(url))


def _code(url: str) -> str:
    import segno  # only now: few need it

    drawn = io.StringIO()
    segno.make(url, micro=False).terminal(drawn, border=2, compact=True)
    return "\n".join(f"\033[97;40m{row}\033[0m" for row in drawn.getvalue().splitlines())


_COLUMNS = ("model", "kind", "parameters", "on disk", "memory", "path, or why it cannot be opened")


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
        say_table(_COLUMNS, rows)
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
