"""The spare of a server is killed before it is given a run, with one in its hands, or its worker while it trains."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from unittest.mock import patch

from tests.faults.ground import LONG, fresh, undisturbed
from tests.faults.process_faults import in_turn
from tests.faults.trial import NotPossibleError, Trial
from tests.faults.zygote import Zygote, end
from xformer.training import dispatch, jobs
from xformer.training.spare import Spare

WHEN = ("the spare, before it is given a run", "the spare, with a run in its hands or forked", "its worker")
SECONDS = 4.0
"""Longer than a spare takes to be ready on a machine that has time."""


def spares(zygote: Zygote, n: int, draw: random.Random) -> Iterator[Trial]:
    """Whoever is killed, the run is finished, or can go on from what it kept."""
    for who in in_turn(list(WHEN), n, draw):
        moment = draw.uniform(0, SECONDS)
        yield Trial(f"kill {who} after {moment:.2f} s", partial(_kill, zygote, who, moment))


def _kill(zygote: Zygote, who: str, moment: float) -> None:
    with fresh(zygote) as ground, closing(Spare()) as spare, patch.object(dispatch, "spare", spare):
        spare.keep()
        if spare.process is None:
            raise NotPossibleError("a spare is kept on Linux only, and where memory is not short")
        pid = spare.process.pid
        if who == WHEN[0]:
            end(pid)
        run = jobs.submit(ground.store, LONG)
        time.sleep(moment)
        end(pid if who == WHEN[1] else ground.pid(run))
        entry = ground.wait_for_rest(run)
        worker = ground.pid(run)
        assert entry.state in ("interrupted", "finished"), entry.state
        spare.close()
        end(worker)  # which may stay a moment longer than its run
        ground.wait_until_gone(worker)
        ground.assert_whole(run, is_at_work=True)
        if entry.state == "interrupted":
            ground.resume_to_the_end(run)
            ground.assert_like_undisturbed(run, undisturbed(zygote, LONG))
