"""`python -m xformer app`: the app, as `make app` starts it; with --model it opens that model first."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from pathlib import Path

from xformer.errors import InputError
from xformer.model_files import check_memory, inspect
from xformer.model_files.models_here import FIRST
from xformer.room import REPOSITORY


def run(options: Namespace) -> None:
    """Look at the model, then become the server. Raises `XformerError` where there is nothing to serve."""
    app = REPOSITORY / "app.py"
    if not app.is_file():
        raise InputError(
            "The app is not installed with the library; start it in the project's folder, where app.py is."
        )
    if options.model is not None:
        check_memory(inspect(options.model))  # better said here than on a screen later
        os.environ[FIRST] = str(Path(options.model).resolve())
    command = [sys.executable, str(app)]
    if options.port is not None:
        command += ["--server.port", str(options.port)]
    os.execv(command[0], command)
