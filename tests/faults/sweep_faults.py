"""The process of a sweep is killed at any moment, or the server that looks after it: each of its models ends as undisturbed."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.faults.ground import Ground, Trial, fresh
from tests.faults.process_faults import in_turn
from tests.faults.zygote import Zygote, end
from tests.training.at_work import untimed
from tests.training.tiny import tiny_preset
from xformer.checkpoints import load
from xformer.files import STATE, snapshot_steps
from xformer.training.sweeps import members_of

SWEPT = tiny_preset(steps=120, log_every=5, snapshot_every=8, weight_decay=0.1)
SEEDS = {"seed": [0, 1, 2]}
SECONDS = 3.0
"""About so long it takes, with its scoring."""
WHO = ("its process", "its process, twice", "the server")


def sweeps(zygote: Zygote, n: int, draw: random.Random) -> Iterator[Trial]:
    """The worker or the server is killed at any moment: after a resume all models become finished runs."""
    whole: list[list[dict[str, Any]]] = []
    for who in in_turn(list(WHO), n, draw):
        moments = [draw.uniform(0, SECONDS) for _ in range(2 if who == WHO[1] else 1)]
        at = ", ".join(f"{moment:.2f} s" for moment in moments)
        yield Trial(f"kill {who} after {at}", partial(_kill, zygote, who, moments, whole))


def _kill(zygote: Zygote, who: str, moments: list[float], whole: list[list[dict[str, Any]]]) -> None:
    if not whole:
        with fresh(zygote) as ground:
            run = ground.submit(SWEPT, sweep=SEEDS)
            ground.wait_for_end(run)
            whole.append(_outcome(ground, run))
    with fresh(zygote) as ground:
        server = ground.server() if who == WHO[2] else 0
        run = ground.submit(SWEPT, sweep=SEEDS)
        for moment in moments:
            pid = server or ground.pid(run)
            time.sleep(moment)
            end(pid)
            ground.wait_until_gone(pid)
            if server:
                break
            entry = ground.wait_for_rest(run)
            assert entry.state in ("interrupted", "finished"), entry.state
            if entry.state == "finished":
                break
            ground.resume(run)
        ground.wait_for_end(run)
        for mine, theirs in zip(_outcome(ground, run), whole[0], strict=True):
            assert mine.keys() == theirs.keys()
            assert mine["steps"] == theirs["steps"]
            # A model that is a step ahead of the others when all are killed ends in another stack, whose products are rounded
            # in another order.
            assert mine["losses"] == pytest.approx(theirs["losses"], rel=1e-3)


def _outcome(ground: Ground, sweep: str) -> list[dict[str, Any]]:
    """What each model of a finished sweep has left, as a run of its own."""
    found = []
    for member in members_of(ground.store.entry(sweep)):
        entry, folder = ground.store.entry(member.id), ground.store.folder_of(member.id)
        assert (entry.state, entry.step, entry.sweep_of) == ("finished", 120, sweep), (entry.state, entry.message)
        ground.assert_whole(member.id)
        assert not (folder / STATE).exists()
        rows = untimed(ground.store.rows(member.id))
        assert untimed(load(folder).card["curve"]) == rows
        steps = [[row["step"] for row in rows], snapshot_steps(folder)]
        found.append({"steps": steps, "losses": [row["loss"] for row in rows]})
    assert not list(ground.store.folder_of(sweep).glob("members/*")), "files of models that have become runs"
    return found
