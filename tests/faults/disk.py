"""A disk that refuses: calls on the files of one folder are counted, and the n-th fails, or ends the process.

Below Python and SQLite alike, in a library that is loaded before libc; without a C compiler these faults are not tried.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("disk.c")
KILL = -1
"""In place of the number of an error: the process ends at that call."""
FOR_EVER = 2**40


def library(folder: Path) -> Path | None:
    """The library, compiled into a folder; None where that cannot be done."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    target = folder / "disk.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", target, SOURCE, "-ldl"], check=True)
    return target


def is_loaded() -> bool:
    """Whether this process can refuse its own calls."""
    return hasattr(ctypes.CDLL(None), "fault_arm")


def arm(folder: str, first: int, last: int, error: int, log: str) -> None:
    """From now on count this process's calls on `folder`; those from `first` to `last` meet `error`."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    ctypes.CDLL(None).fault_arm(
        folder.encode(), ctypes.c_long(first), ctypes.c_long(last), ctypes.c_int(error), ctypes.c_int(descriptor)
    )
