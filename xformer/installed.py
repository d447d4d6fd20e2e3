"""The folders of the app, the shipped models and the runs, and a helper for missing optional libraries.

In a checkout, all of them are in the repository. An installed package has the app in `xformer/_app`, which is read-only, and
stores runs in the user's data folder (`XDG_DATA_HOME`).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xformer.errors import MissingLibraryError

_PACKED = Path(__file__).parent / "_app"
IS_INSTALLED = _PACKED.is_dir()
APP = _PACKED if IS_INSTALLED else Path(__file__).parents[1]
"""The folder with app.py, pages/ and checkpoints/."""
_DATA = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
KEPT = _DATA / "xformer" if IS_INSTALLED else APP
"""The default folder of runs, texts and external models."""


def shipped(path: Path) -> Path:
    """Return the path of a shipped model for "checkpoints/NAME" if no such path exists here; return other paths unchanged."""
    if len(path.parts) == 2 and path.parts[0] == "checkpoints" and path.name != ".." and not os.path.exists(path):
        return APP / path
    return path


@contextmanager
def needed(library: str, what: str, requirement: str = "") -> Iterator[None]:
    """Turn a failed import of `library` into `MissingLibraryError`, naming the feature that needs it and how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != library:
            raise
        requirement = requirement or library
        raise MissingLibraryError(f"{what} needs {library}: pip install {shlex.quote(requirement)}") from None
