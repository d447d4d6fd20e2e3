"""The folders of the app, of the shipped models and of runs, and a plain error where an optional library is missing.

In a checkout all of them are in its folder. An installed package has the app in `xformer/_app`, which is read-only; runs are
then kept in the user's data folder (`XDG_DATA_HOME`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xformer.errors import MissingLibraryError

_PACKED = Path(__file__).parent / "_app"
IS_INSTALLED = _PACKED.is_dir()
APP = _PACKED if IS_INSTALLED else Path(__file__).parents[1]
"""The folder of app.py, pages/ and checkpoints/."""
_DATA = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
KEPT = _DATA / "xformer" if IS_INSTALLED else APP
"""The default folder of runs, texts and external models."""


def shipped(path: Path) -> Path:
    """The path of a shipped model for "checkpoints/NAME", unless the current folder has such a path; other paths unchanged."""
    if len(path.parts) == 2 and path.parts[0] == "checkpoints" and path.name != ".." and not os.path.exists(path):
        return APP / path
    return path


@contextmanager
def needed(library: str, what: str, requirement: str = "") -> Iterator[None]:
    """Turn a failed import of `library` into `MissingLibraryError`, which names what needs it and how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != library:
            raise
        requirement = requirement or library
        raise MissingLibraryError(f"{what} needs {library}: pip install {requirement}") from None
