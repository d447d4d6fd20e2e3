"""Imports of a process of ours that starts: without looking for garbage, and without what is not needed at first.

Looking for garbage is a fifth of the time, and finds next to none. It is for the owner of a process to choose, never for the
library: what is left out is missing until it is imported once more.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_imports(*left_out: str) -> Iterator[None]:
    """Import inside as if the packages `left_out` were not installed, but for those that are imported already.

    What is there in the end counts as no garbage, now or later.
    """
    hidden = [name for name in left_out if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # pyright: ignore  None is how Python knows what is not there
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
        if collects:
            gc.freeze()
            gc.enable()
