"""Where the app and the shipped models lie, and where what is made is kept: all in the project's folder, if there is one.

An installed library has the app beside it, in xformer/_app, where nothing may be written: what is trained there is kept among
the user's own data. What only a part of the library needs may be absent; whoever comes to that part is told what to install.
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
"""Where app.py, pages/ and checkpoints/ are."""
_DATA = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
KEPT = _DATA / "xformer" if IS_INSTALLED else APP
"""Where runs, texts and models of others are kept, where nobody says otherwise."""


def shipped(path: Path) -> Path:
    """ "checkpoints/reverse" wherever one stands: the shipped model of that name, unless there is such a folder here."""
    if len(path.parts) == 2 and path.parts[0] == "checkpoints" and path.name != ".." and not os.path.exists(path):
        return APP / path
    return path


@contextmanager
def needed(library: str, what: str, requirement: str = "") -> Iterator[None]:
    """Around an import that may fail: raises `MissingLibraryError`, which says `what` needs it and how it is installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != library:
            raise
        requirement = requirement or library
        raise MissingLibraryError(f"{what} needs {library}: pip install {requirement}") from None
