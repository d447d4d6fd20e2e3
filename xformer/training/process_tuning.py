"""Settings of a whole process that trains on a CPU; for its owner to choose (a command line, a worker), never for a library.

memory      A training step frees what it allocated, glibc hands it back to the kernel, and the next step gets it again page
            by page, zeroed: thousands of page faults a step. Told to keep it, malloc asks the kernel once.
denormals   Numbers below 10⁻³⁸ take a processor a hundred times as long as others, and count for nothing: make them zero.
threads     The products of a small model are over before a second thread has been woken.
priority    Whoever looks at a page comes first: the process takes only the time that nobody else wants, but for its first
            seconds, for which somebody waits who has just pressed Start.
"""

from __future__ import annotations

import ctypes
import os
import signal
from dataclasses import dataclass

import torch

# Their numbers in <malloc.h>, and what they are set to: larger pieces than this are mapped afresh each time; this much is
# kept when freed; this much is asked for at once.
_MMAP_THRESHOLD = (-3, 1 << 30)
_TRIM_THRESHOLD = (-1, (1 << 31) - 1)
_TOP_PAD = (-2, 64 << 20)

FIRST_SECONDS = 3.0
"""Processor time for which a run that somebody has just started is worth as much as the pages of others."""


@dataclass(frozen=True)
class ProcessTuning:
    """What `tune_process` did."""

    keeps_memory: bool
    flushes_denormals: bool
    threads: int

    def __str__(self) -> str:
        parts = [f"{self.threads} thread{'' if self.threads == 1 else 's'}"]
        parts += ["memory kept"] if self.keeps_memory else []
        parts += ["denormals flushed"] if self.flushes_denormals else []
        return ", ".join(parts)


def tune_process(threads: int | None = 1) -> ProcessTuning:
    """Make this process fit for training small models; `threads=None` leaves their number as it is.

    Call it first thing, from the thread that will train: denormals are a setting of a thread. What this system does not
    know is left alone.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    return ProcessTuning(
        keeps_memory=keep_memory(), flushes_denormals=torch.set_flush_denormal(True), threads=torch.get_num_threads()
    )


def keep_memory() -> bool:
    """Tell glibc's malloc to keep what is freed for the next step. False, and nothing happens, where there is no glibc."""
    try:
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018  only glibc has it
        return all(libc.mallopt(*option) == 1 for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD, _TOP_PAD))
    except (AttributeError, OSError, TypeError):
        return False


def lower_priority_later(seconds: float = FIRST_SECONDS) -> None:
    """Lower it once this process has had so much processor time from now on; to be called from its first thread.

    By then somebody has seen whether the run learns. The clock stands still while the process waits for anything.
    """
    signal.signal(signal.SIGPROF, lambda _number, _frame: lower_priority())
    signal.setitimer(signal.ITIMER_PROF, seconds)


def lower_priority() -> str:
    """Give this process the lowest priority that the system offers to everyone; returns which one it was."""
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        return "idle"
    except (AttributeError, OSError):  # not Linux, or not allowed in this container
        os.nice(19)
        return "nice"
