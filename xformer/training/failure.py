"""What becomes of a run that an error ended, and what it says of it to whoever looks; the log says where it happened."""

from __future__ import annotations

import errno
import traceback
from contextlib import suppress

import torch

from xformer.errors import ConfigError, QuotaExceededError, XformerError
from xformer.training.entry import Entry
from xformer.training.run_store import RunStore

NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc")
"""How torch says on a processor that there is none left; it also speaks of the format of memory, and of pinned memory."""
GOES_ON = " Resume goes on from there."


class GpuGoneError(Exception):
    """The GPU that the run was given is not there."""


def failure(store: RunStore, entry: Entry, error: Exception) -> tuple[str, str]:
    """The state that the run is in after that error, and its message."""
    if isinstance(error, QuotaExceededError):
        return "failed", f"{error}{GOES_ON}"
    if isinstance(error, XformerError):
        return "failed", str(error)
    if isinstance(error, MemoryError):
        return "failed", _too_big(store, entry)
    with suppress(OSError):  # a full disk takes no log either
        traceback.print_exception(error)
    if isinstance(error, torch.OutOfMemoryError | torch.AcceleratorError | GpuGoneError) and entry.device != "cpu":
        return _without_gpu(store, entry, error)
    if isinstance(error, OSError):
        what = f"A file could not be written ({error.strerror or error})"
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return "failed", f"{'The disk is full' if is_full else what}; what was kept before is whole.{GOES_ON}"
    if isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in NO_MEMORY)
    ):
        return "failed", _too_big(store, entry)
    return "failed", f"It failed for a reason of its own ({type(error).__name__})."


def _without_gpu(store: RunStore, entry: Entry, error: Exception) -> tuple[str, str]:
    """A run that lost its GPU waits for the processor."""
    store.change(entry.id, wanted="cpu")
    why = "ran out of memory" if isinstance(error, torch.OutOfMemoryError) else "was lost"
    return (
        "queued",
        f"The GPU ({entry.device}) {why}, so this run goes on on the processor from the last state it kept.",
    )


def _too_big(store: RunStore, entry: Entry) -> str:
    try:
        batch = entry.settings().train.batch_size
    except ConfigError:
        batch = 1
    return (
        f"It ran out of memory at step {store.entry(entry.id).step}; try a smaller batch "
        f"(it was {batch}, try {max(1, batch // 4)}) or a smaller model."
    )
