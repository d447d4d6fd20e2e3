"""`xformer app`: the app, from any folder; with --model it opens that model first."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path

from xformer.disk_quota import runs_folder
from xformer.errors import MissingLibraryError
from xformer.installed import APP, IS_INSTALLED
from xformer.model_files import check_memory, inspect
from xformer.model_files.models_here import FIRST


def run(options: Namespace) -> None:
    """Look at the model, then become the server. Raises `XformerError` where there is nothing to serve."""
    if missing := [name for name in ("streamlit", "plotly") if find_spec(name) is None]:
        raise MissingLibraryError(f"The app needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    if options.model is not None:
        check_memory(inspect(options.model))  # better said here than on a screen later
        os.environ[FIRST] = str(Path(options.model).resolve())
    command = [sys.executable, str(APP / "app.py")]
    if options.port is not None:
        command += ["--server.port", str(options.port)]
    if IS_INSTALLED:  # else they are in the project's folder, where one looks for them
        print(f"Runs are kept in {runs_folder()}; XFORMER_RUNS chooses another folder.", flush=True)
    os.execv(command[0], command)
