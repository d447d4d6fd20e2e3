"""`xformer app` and `xformer models`: start the app, and list or fetch external models."""

from __future__ import annotations

import io
import os
import socket
import sys
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from xformer.cli.output import print_answer, print_line, print_table, to_printable
from xformer.disk_quota import READ_ONLY, megabytes, runs_folder
from xformer.errors import InputError, MissingLibraryError
from xformer.installed import APP, IS_INSTALLED
from xformer.model_files import PACKAGES, catalogue, check_memory, fetch, inspect
from xformer.model_files.models_here import FIRST, Entry, models_folder
from xformer.playlist import FIRST as PLAYLIST
from xformer.playlist import load


def run_app(options: Namespace) -> None:
    """Check the options, then replace this process with the server. Raises `XformerError` if the app cannot be served."""
    if missing := [name for name in ("streamlit", "plotly") if find_spec(name) is None]:
        raise MissingLibraryError(f"The app needs {' and '.join(missing)}: pip install 'xformer-studio[app]'")
    if options.model is not None:
        check_memory(inspect(options.model))  # so that an error appears here and not on a screen
        os.environ[FIRST] = str(Path(options.model).resolve())
    if options.runs is not None:
        if not Path(options.runs).is_dir():
            raise InputError(f"--runs must be a folder of runs, got {options.runs}; for example checkpoints/runs.")
        os.environ |= {"XFORMER_RUNS": str(Path(options.runs).resolve()), READ_ONLY: "1"}
    if options.playlist is not None:
        load(options.playlist)  # so that an error appears here and not on a screen
        os.environ[PLAYLIST] = str(Path(options.playlist).resolve())
    command = [sys.executable, str(APP / "app.py")]
    if options.host is not None:
        command += ["--server.address", options.host]
        if options.host not in ("127.0.0.1", "localhost", "::1"):
            address = _address_in_network() if options.host in ("0.0.0.0", "::") else options.host
            command += ["--browser.serverAddress", address]
            url = f"http://{f'[{address}]' if ':' in address else address}:{options.port or 8501}"
            print_line(f"Others on this network can open {url}")
            if sys.stdout.isatty() and to_printable("█") == "█" and find_spec("segno"):  # it can display a QR code
                print(_code(url))
    if options.port is not None:
        command += ["--server.port", str(options.port)]
    if IS_INSTALLED:  # a checkout stores runs in its own folder
        print_line(f"Runs are stored in {runs_folder()}; set XFORMER_RUNS to use another folder.")
    sys.stdout.flush()
    os.execv(command[0], command)


def _address_in_network() -> str:
    """Return the address at which other machines on the network reach this one, or its host name without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing, only selects the interface
            return probe.getsockname()[0]
        except OSError:
            return socket.gethostname()


def _code(url: str) -> str:
    """Return an address as a QR code for a terminal."""
    import segno  # imported here because it is rarely needed

    code = io.StringIO()
    segno.make(url, micro=False).terminal(code, border=2, compact=True)
    return "\n".join(f"\033[97;40m{row}\033[0m" for row in code.getvalue().splitlines())


_COLUMNS = ("model", "kind", "parameters", "on disk", "memory", "path, or reason why it cannot be opened")


def run_models(options: Namespace) -> None:
    """List or fetch models."""
    if options.action == "list":
        _list(options.json)
    elif not options.name:
        raise InputError(f"models fetch needs the name of a model; available: {', '.join(PACKAGES)}.")
    else:
        for name in options.name:
            _fetch(name)


def _list(is_answer: bool) -> None:
    if is_answer:
        found = catalogue().entries.values()
        print_answer("models list", models=[_described(one) for one in found])
        return
    rows = []
    for entry in catalogue().entries.values():
        if found := entry.contents:
            sizes = f"{found.n_parameters:,}", megabytes(found.n_bytes), megabytes(found.needed)
            rows.append((entry.title, found.model_type, *sizes, entry.path))
        else:
            rows.append((entry.title, "–", "–", "–", "–", entry.trouble))
    if rows:
        print_table(_COLUMNS, rows)
        return
    folder = models_folder()
    where = f"There are no models in {folder}." if folder else "XFORMER_MODELS is empty, so there are no models."
    print_line(f"{where} To fetch one: python -m xformer models fetch {next(iter(PACKAGES))}")


def _described(entry: Entry) -> dict[str, Any]:
    """A model as plain values; `trouble` says why it cannot be opened."""
    of = entry.contents
    sizes: dict[str, Any] = {}
    if of is not None:
        sizes = {"kind": of.model_type, "parameters": of.n_parameters, "bytes": of.n_bytes, "memory": of.needed}
    return {"model": entry.title, **sizes, "path": str(entry.path), "trouble": entry.trouble}


def _fetch(name: str) -> None:
    """Fetch a model and print the progress: in place on a terminal, else one line per step."""
    shown = ""
    for done, of, what in fetch(name):
        heading = what.partition(":")[0]
        if sys.stdout.isatty():
            print(f"\r\033[K{100 * done / of:3.0f}%  {to_printable(what)}", end="", flush=True)
        elif heading != shown:
            print_line(what)
        shown = heading
    if sys.stdout.isatty():
        print()
