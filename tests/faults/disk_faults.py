"""A disk that refuses each of a worker's calls in turn, for a moment or from there on; a disk that is really full."""

from __future__ import annotations

import errno
import random
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from tests.faults.disk import FOR_EVER, KILL
from tests.faults.ground import LONG, SHORT, Ground, fresh
from tests.faults.noted_calls import calls_of
from tests.faults.trial import NotPossibleError, Trial
from tests.faults.zygote import Fault, Zygote
from xformer.errors import XformerError

WAYS = {
    "the process ends": (KILL, 1),
    "no space": (errno.ENOSPC, 1),
    "no space for ten calls": (errno.ENOSPC, 10),
    "no space from there on": (errno.ENOSPC, FOR_EVER),
    "an input/output error": (errno.EIO, 1),
    "read-only from there on": (errno.EROFS, FOR_EVER),
    "no permission from there on": (errno.EACCES, FOR_EVER),
}


def calls(zygote: Zygote, way: str, every: int, draw: random.Random) -> Iterator[Trial]:
    """Each call of a worker on the files of the run store and of its run, every `every`-th from a random one on."""
    names = calls_of(zygote, "a worker", _whole_run)
    for at in range(1 + draw.randrange(every), len(names) + 1, every):
        yield Trial(f"{way} at call {at}: {names[at - 1]}", partial(_refuse, zygote, way, at))


def _refuse(zygote: Zygote, way: str, at: int) -> None:
    error, n = WAYS[way]
    with fresh(zygote) as ground:
        run = ground.submit(SHORT, Fault(calls=(at, at + n - 1, error)))
        ground.wait_until_gone(ground.pid(run))
        entry = ground.wait_for_rest(run)
        assert entry.state in ("interrupted", "failed", "finished"), entry.state
        ground.assert_whole(run, is_at_work=True)
        ground.assert_survived(run, SHORT)


def _whole_run(ground: Ground, fault: Fault) -> str:
    run = ground.submit(SHORT, fault)
    ground.wait_for_end(run)
    ground.wait_until_gone(ground.pid(run))
    return run


def full_disks(zygote: Zygote, n: int, draw: random.Random) -> Iterator[Trial]:
    """A disk of a few hundred kilobytes, full somewhere in the run; later there is space again."""
    for _ in range(n):
        kilobytes = draw.randrange(120, 600, 4)
        yield Trial(f"a disk of {kilobytes} kB", partial(_fill, zygote, kilobytes))


def _fill(zygote: Zygote, kilobytes: int) -> None:
    with fresh(zygote) as ground:
        folder = ground.store.folder
        folder.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", str(folder)]
        if (tried := subprocess.run(mount, capture_output=True, text=True)).returncode:
            raise NotPossibleError(f"a disk of its own cannot be mounted here ({tried.stderr.strip()})")
        try:
            _on_a_small_disk(ground, folder)
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


def _on_a_small_disk(ground: Ground, folder: Path) -> None:
    run = None
    with suppress(XformerError):  # it may be too small for the run store itself
        run = ground.submit(LONG)
    if run is not None:
        with suppress(XformerError, OSError, ValueError):
            ground.wait_until_gone(ground.pid(run))
    subprocess.run(["mount", "-o", "remount,size=50m", folder], check=True)
    run = run or ground.submit(LONG)
    ground.wait_for_rest(run)
    ground.assert_whole(run, is_at_work=True)
    ground.assert_survived(run, LONG)
