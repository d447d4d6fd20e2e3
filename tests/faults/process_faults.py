"""Processes that hang, that several people command at once, whose clock runs backwards, that have no memory left."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from tests.faults.ground import LONG, SHORT, change_settings, fresh, undisturbed
from tests.faults.kill_faults import SLOW
from tests.faults.presses import press
from tests.faults.trial import Trial
from tests.faults.zygote import Fault, Zygote
from tests.training.tiny import tiny_preset
from xformer.checkpoints import load
from xformer.errors import RunStoreError
from xformer.paths import STATE, snapshot_file, snapshot_steps
from xformer.training import jobs
from xformer.training.entry import DAMAGED
from xformer.training.loop import read_state

HANGING = {
    "a worker that obeys": SLOW,
    "a step that never ends": Fault(mischief={"hang_at": {"step": 20}}),
    "a step that never ends, deaf to signals": Fault(mischief={"hang_at": {"step": 20, "deaf": True}}),
    "a worker that obeys and hangs while it saves": Fault(
        mischief={"slow": {"seconds": 0.01}, "hang_at_the_last_save": {}}
    ),
    "a worker that never begins": Fault(mischief={"hang_at_the_start": {}}),
}
SECONDS = 5.0
"""In which a stop is obeyed."""


def stops(zygote: Zygote, n: int, draw: random.Random) -> Iterator[Trial]:
    """A stop is obeyed within five seconds, and no process is left."""
    for name in in_turn(list(HANGING), n, draw):
        yield Trial(f"a stop for {name}", partial(_stop, zygote, HANGING[name], draw.uniform(0, 1)))


def in_turn(names: list[str], n: int, draw: random.Random) -> Iterator[str]:
    """`n` names, each as often as the others, from a random one on."""
    first = draw.randrange(len(names))
    return (names[(first + number) % len(names)] for number in range(n))


def _stop(zygote: Zygote, fault: Fault, moment: float) -> None:
    with fresh(zygote) as ground:
        run = ground.submit(LONG, fault)
        zygote.start("reconcile", folder=str(ground.store.folder), seconds=600.0)
        pid = ground.pid(run)
        time.sleep(moment)
        jobs.stop(ground.store, run)
        sent = time.monotonic()
        entry = ground.wait(run, "an end", lambda entry: not entry.is_active, reconcile=False)
        took = time.monotonic() - sent
        assert entry.state == "stopped" or (entry.state, entry.step) == ("finished", 160), entry.state
        assert took < SECONDS, f"a stop took {took:.1f} s"
        ground.wait_until_gone(pid)
        ground.assert_whole(run, is_at_work=True)
        ground.resume_to_the_end(run)
        ground.assert_like_undisturbed(run, undisturbed(zygote, LONG))


def tabs(zygote: Zygote, n: int, draw: random.Random) -> Iterator[Trial]:
    """Several tabs press the same button in the same millisecond."""
    tries = {"four tabs press start, two are allowed": _start_at_once, "four tabs press resume": _resume_at_once}
    for name in in_turn(list(tries), n, draw):
        yield Trial(name, partial(tries[name], zygote))


def _start_at_once(zygote: Zygote) -> None:
    with fresh(zygote) as ground:
        results = press(ground, 4, button="start", owner="ada", waiting=2)
        entries = {entry.id for entry in ground.store.entries()}
        answers = [answer["answer"] for answer in results if "answer" in answer]
        # a tiny run may be over before the last tab is heard
        assert len(answers) >= 2
        assert set(answers) == entries
        assert all("are allowed" in answer["error"] for answer in results if "error" in answer)
        for run in entries:
            ground.wait(run, "the end", lambda entry: entry.state == "finished")
            ground.assert_like_undisturbed(run, undisturbed(zygote, SHORT))


def _resume_at_once(zygote: Zygote) -> None:
    with fresh(zygote) as ground:
        run = ground.submit(LONG, SLOW)
        ground.wait(run, "some steps", lambda entry: entry.step > 20)
        ground.kill(run)
        assert ground.wait_for_rest(run).state == "interrupted"
        results = press(ground, 4, button="resume", run=run)
        assert all("answer" in answer or "nothing left to resume" in answer["error"] for answer in results)
        entry = ground.wait(run, "the end", lambda entry: entry.state == "finished")
        assert entry.turn == 2, "it was started more than once"
        ground.assert_like_undisturbed(run, undisturbed(zygote, LONG))


def pauses(zygote: Zygote, n: int, draw: random.Random) -> Iterator[Trial]:
    """A paused run makes room for another one, and gets resume, step or a kill at a random moment."""
    for _ in range(n):
        what = draw.choice(("resume", "step", "kill"))
        yield Trial(f"{what} while a paused run makes room", partial(_pause, zygote, what, draw.uniform(0, 0.8)))


def _pause(zygote: Zygote, what: str, moment: float) -> None:
    with fresh(zygote) as ground:
        run = ground.submit(LONG, SLOW)
        ground.store.send(run, "pause")
        ground.wait(run, "a pause", lambda entry: entry.state == "paused", reconcile=False)
        other = ground.submit(SHORT)
        time.sleep(moment)
        if what == "kill":
            ground.kill(run)
        elif what == "step" and ground.store.entry(run).is_active:
            try:
                ground.store.send(run, "step")
            except RunStoreError:  # it has left in this very moment
                assert not ground.store.entry(run).is_active
        else:
            ground.resume(run)
        ground.wait(other, "the end of the other one", lambda entry: entry.state == "finished")
        entry = ground.store.entry(run)
        assert entry.state in ("paused", "queued", "running", "interrupted", "finished"), entry.state
        if entry.is_active or entry.state == "queued":
            ground.wait(run, "rest", lambda entry: entry.state in ("paused", "finished", "interrupted"))
        ground.resume_to_the_end(run)
        ground.assert_like_undisturbed(run, undisturbed(zygote, LONG))
        ground.assert_like_undisturbed(other, undisturbed(zygote, SHORT))


def rates(zygote: Zygote, n: int, draw: random.Random) -> Iterator[Trial]:
    """A learning rate chosen while it runs, and a kill some time later: the settings in the run store tell the whole run."""
    for _ in range(n):
        moments = draw.uniform(0.1, 0.6), draw.uniform(0, 0.6)
        yield Trial(f"a new learning rate, and a kill {moments[1]:.2f} s later", partial(_rate, zygote, moments))


def _rate(zygote: Zygote, moments: tuple[float, float]) -> None:
    with fresh(zygote) as ground:
        run = ground.submit(LONG, SLOW)
        time.sleep(moments[0])
        ground.store.send(run, "rate", 0.02)
        ground.wait(run, "a new rate", lambda entry: bool(entry.train["lr_changes"]))
        time.sleep(moments[1])
        ground.kill(run)
        assert ground.wait_for_rest(run).state in ("interrupted", "finished")
        ground.resume_to_the_end(run)
        replayed = ground.submit(ground.store.entry(run).settings())
        ground.wait(replayed, "the end", lambda entry: entry.state == "finished")
        ground.assert_like_undisturbed(run, ground.outcome(replayed))


def clocks(zygote: Zygote, n: int, draw: random.Random) -> Iterator[Trial]:
    """The clock on the wall runs backwards, for the worker and for the server."""
    tries = {
        "a clock that runs backwards, and a kill": lambda: _clock(zygote, draw.uniform(0, 0.5)),
        "a clock set back after a stop without a worker": lambda: _clock_and_stop(zygote),
    }
    for name in in_turn(list(tries), n, draw):
        yield Trial(name, tries[name])


BACKWARDS = Fault(mischief={"clock_backwards": {}})


def _clock(zygote: Zygote, moment: float) -> None:
    with fresh(zygote) as ground:
        run = ground.submit(LONG, BACKWARDS)
        zygote.start("reconcile", BACKWARDS, folder=str(ground.store.folder), seconds=600.0)
        time.sleep(moment)
        ground.kill(run)
        entry = ground.wait(run, "rest", lambda entry: not entry.is_active, reconcile=False)
        if entry.state != "finished":
            ground.resume(run, BACKWARDS)
        ground.wait(run, "the end", lambda entry: entry.state == "finished", reconcile=False)
        ground.assert_like_undisturbed(run, undisturbed(zygote, LONG))


def _clock_and_stop(zygote: Zygote) -> None:
    with fresh(zygote) as ground:
        run = ground.submit(LONG, Fault(mischief={"hang_at": {"step": 20}}))
        zygote.start(
            "reconcile", Fault(mischief={"clock_an_hour_back": {}}), folder=str(ground.store.folder), seconds=600.0
        )
        jobs.stop(ground.store, run)
        assert ground.wait(run, "a stop", lambda entry: not entry.is_active, reconcile=False).state == "stopped"
        ground.resume_to_the_end(run)
        ground.assert_like_undisturbed(run, undisturbed(zygote, LONG))


def failures(zygote: Zygote, n: int, draw: random.Random) -> Iterator[Trial]:
    """Runs that cannot go on: a huge learning rate, no memory, settings and states edited by hand."""
    tries: dict[str, Callable[[Zygote], None]] = {
        "a learning rate of 1e9": _huge_rate,
        "a batch that no memory can hold": _giant_batch,
        "no memory left in Python": _no_memory,
        "the seed edited in the book": partial(_edit, train={"seed": 5}),
        "a rate edited in the book, behind the step": partial(_edit, train={"lr_changes": [[1, 0.5]]}),
        "settings edited into nonsense": partial(_edit, train={"steps": "many"}),
        "a state that was cut": partial(_edit, state=lambda content: content[: len(content) // 2]),
        "a state that was edited": partial(_edit, state=lambda content: content.replace(b'"step', b'"stop', 1)),
        "an empty state": partial(_edit, state=lambda _: b""),
    }
    for name in in_turn(list(tries), n, draw):
        yield Trial(name, partial(tries[name], zygote))


def _huge_rate(zygote: Zygote) -> None:
    with fresh(zygote) as ground:
        run = ground.submit(replace(LONG, train=LONG.train.replace(peak_lr=1e9, clip_norm=0.0, snapshot_every=1)))
        entry = ground.wait_for_rest(run)
        assert entry.state == "failed"
        assert "try a smaller one, for example" in entry.message
        folder = ground.store.folder_of(run)
        ground.assert_whole(run)
        assert bool(read_state(folder).tensors["model.embedding.token"].isfinite().all())
        load(snapshot_file(folder, snapshot_steps(folder)[-1]))  # refuses weights that are no numbers


def _giant_batch(zygote: Zygote) -> None:
    with fresh(zygote) as ground:
        giant = tiny_preset(batch_size=65_536, model={"d_ff": 1024})
        run = ground.submit(giant, Fault(mischief={"little_memory": {}}))
        entry = ground.wait_for_rest(run)
        assert entry.state == "failed"
        assert "try a smaller batch (it was 65536, try 16384)" in entry.message, entry.message
        ground.assert_whole(run)


def _no_memory(zygote: Zygote) -> None:
    with fresh(zygote) as ground:
        run = ground.submit(LONG, Fault(mischief={"no_memory_at": {"step": 50}}))
        entry = ground.wait_for_rest(run)
        assert entry.state == "failed"
        assert "It ran out of memory" in entry.message
        ground.resume_to_the_end(run)
        ground.assert_like_undisturbed(run, undisturbed(zygote, LONG))


def _edit(
    zygote: Zygote, train: dict[str, object] | None = None, state: Callable[[bytes], bytes] = lambda content: content
) -> None:
    """Edited, a run says that it cannot be resumed; put right again, it can."""
    with fresh(zygote) as ground:
        run = ground.submit(LONG, SLOW)
        ground.wait(run, "some steps", lambda entry: entry.step > 20)
        jobs.stop(ground.store, run)
        ground.wait_for_rest(run)
        file = ground.store.folder_of(run) / STATE
        settings, content = ground.store.entry(run).train, file.read_bytes()
        change_settings(ground.store, run, **(train or {}))
        file.write_bytes(state(content))
        if ground.store.entry(run).state != DAMAGED:  # else it is refused before it is started
            ground.resume(run)
        assert ground.wait_for_rest(run).state in ("failed", DAMAGED)
        ground.store.change(run, train=json.dumps(settings))
        file.write_bytes(content)
        ground.resume_to_the_end(run)
        ground.assert_like_undisturbed(run, undisturbed(zygote, LONG))
