"""What a worker does between two steps: pause, single steps, a new learning rate, a stop; and how it makes room."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import safetensors.torch
import torch

from tests.training.at_work import add, claim, happenings, resume_here, train
from tests.training.tiny import tiny_preset
from xformer.checkpoints import FILE, load
from xformer.errors import RunStoreError
from xformer.paths import snapshot_steps
from xformer.training import commands, evaluate, jobs, worker
from xformer.training.entry import Entry
from xformer.training.loop import read_state
from xformer.training.run_store import Database, RunStore

TIMES = ("seconds", "tokens_per_second")


def weights(store: RunStore, run: str) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(store.folder_of(run) / FILE)


def rows(store: RunStore, run: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in TIMES} for row in store.rows(run)]


def assert_same_run(store: RunStore, one: str, other: str) -> None:
    """The same bits, and the same metrics but for times."""
    mine, theirs = weights(store, one), weights(store, other)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert rows(store, one) == rows(store, other)
    assert store.entry(one).figures == store.entry(other).figures != {}


def undisturbed(store: RunStore, monkeypatch: pytest.MonkeyPatch, entry: Entry) -> str:
    """Another run with the settings that a run has now."""
    run = add(store, entry.settings())
    assert train(store, run, monkeypatch).state == "finished"
    return run


def test_pause_and_resume(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run, seen = add(store), []

    def look() -> None:
        seen.append(store.entry(run))
        assert read_state(store.folder_of(run)).values["step"] == 8  # nothing is lost should it be killed now

    pauses = [look, look, lambda: store.send(run, "resume")]
    entry = train(store, run, monkeypatch, at={7: lambda: store.send(run, "pause")}, pauses=pauses)
    assert [(e.state, e.step, e.is_active) for e in seen] == [("paused", 8, True)] * 2
    assert (entry.state, entry.step, entry.is_active) == ("finished", 20, False)
    assert 8 in snapshot_steps(store.folder_of(run))
    assert_same_run(store, run, undisturbed(store, monkeypatch, entry))


@pytest.mark.parametrize("end", ["stop", "resume", "kill", "ask"])
def test_a_state_is_never_in_the_book_without_its_step(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """“Paused at step 8” is written at once, however rarely the step is written otherwise."""
    run, committed, driven, handlers = add(store), [], [], []
    drives, writing = commands.CommandLoop.drives, Database.writing

    @contextmanager
    def spy(database: Database) -> Iterator[Any]:
        with writing(database) as db:
            yield db
        entry = store.entry(run)
        if driven and (not committed or committed[-1][0] != entry.state):
            committed.append((entry.state, entry.step, driven[0].step))

    def begin() -> None:
        monkeypatch.setattr(commands, "WRITE_SECONDS", 1e9)
        monkeypatch.setattr(Database, "writing", spy)

    def finish() -> None:
        if end == "kill":
            raise OSError("no room")
        handlers[0](15, None) if end == "ask" else store.send(run, end)

    monkeypatch.setattr(
        commands.CommandLoop, "drives", lambda self, runs: (driven.extend(runs.values()), drives(self, runs))[1]
    )
    at = {2: begin, 7: lambda: store.send(run, "pause"), **({9: finish} if end == "kill" else {})}
    pauses = [lambda: store.send(run, "resume")] if end == "kill" else [finish]
    with happenings(monkeypatch, at=at, pauses=pauses), monkeypatch.context() as patch:
        patch.setattr(worker.signal, "signal", lambda _, handler: handlers.append(handler))
        worker.work(store, run, claim(store, run))
    states = {"stop": "stopped", "resume": "finished", "kill": "failed", "ask": "interrupted"}
    still = [(state, written, true) for state, written, true in committed if state != "running"]
    assert [state for state, *_ in still] == ["paused", states[end]]
    assert all(written == true for _, written, true in still), still


def test_the_figures_of_a_run_that_pauses_at_a_report_are_those_of_the_report(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, live = add(store), []
    pauses = [lambda: live.append(store.entry(run).live), lambda: store.send(run, "resume")]
    train(store, run, monkeypatch, at={9: lambda: store.send(run, "pause")}, pauses=pauses)
    report = next(row for row in store.rows(run) if row["step"] == 10)
    assert {name: live[0][name] for name in ("loss", "gradient_norm")} == {
        name: report[name] for name in ("loss", "gradient_norm")
    }


def test_single_steps(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run, steps = add(store), []

    def step(*kinds: str) -> None:
        entry = store.entry(run)
        steps.append((entry.step, entry.state))
        for kind in kinds:
            store.send(run, kind)

    pauses = [lambda: step("step"), lambda: step("step", "step"), lambda: step(), lambda: step("resume")]
    entry = train(store, run, monkeypatch, at={2: lambda: store.send(run, "pause")}, pauses=pauses)
    assert steps == [(3, "paused"), (4, "paused"), (6, "paused"), (6, "paused")]
    assert entry.state == "finished"
    assert {3, 4, 5, 6} <= set(snapshot_steps(store.folder_of(run)))
    assert_same_run(store, run, undisturbed(store, monkeypatch, entry))


def test_commands_that_change_nothing(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run = add(store)

    def tell(*kinds: str) -> None:
        for kind in kinds:
            store.send(run, kind)

    pauses = [lambda: tell("pause", "pause"), lambda: tell("resume", "resume")]
    at = {3: lambda: tell("resume", "step"), 5: lambda: tell("pause", "pause")}
    assert train(store, run, monkeypatch, at=at, pauses=pauses).state == "finished"


def test_of_two_commands_at_once_the_later_one_holds(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run, other = add(store), add(store)
    assert (
        train(store, run, monkeypatch, at={3: lambda: [store.send(run, k) for k in ("pause", "resume")]}).state
        == "finished"
    )
    pauses = [lambda: [store.send(other, k) for k in ("resume", "pause")], lambda: store.send(other, "resume")]
    assert (
        train(store, other, monkeypatch, at={3: lambda: store.send(other, "pause")}, pauses=pauses).state == "finished"
    )


@pytest.mark.parametrize("paused", [False, True], ids=["running", "paused"])
def test_a_stop(store: RunStore, monkeypatch: pytest.MonkeyPatch, paused: bool) -> None:
    run = add(store)
    pauses = [lambda: store.send(run, "stop")] if paused else []
    entry = train(
        store, run, monkeypatch, at={6: lambda: store.send(run, "pause" if paused else "stop")}, pauses=pauses
    )
    assert (entry.state, entry.step, entry.worker, entry.message) == ("stopped", 7, None, "")
    assert read_state(store.folder_of(run)).values["step"] == 7
    assert [row["step"] for row in store.rows(run)] == [5]
    with store.database.reading() as db:
        assert db.execute("SELECT count(*) FROM commands").fetchone()[0] == 0
    entry = resume_here(store, run, monkeypatch)
    assert entry.state == "finished"
    assert_same_run(store, run, undisturbed(store, monkeypatch, entry))


def test_a_stop_is_in_the_book_until_the_run_has_stopped(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the process hangs while it saves, the store has the command and its time."""
    run, leave, seen = add(store), worker.leave, []

    def look_and_leave(*args: Any, **position: Any) -> None:
        with store.database.reading() as db:
            seen.extend(row["kind"] for row in db.execute("SELECT kind FROM commands"))
        leave(*args, **position)

    monkeypatch.setattr(worker, "leave", look_and_leave)
    at = {6: lambda: [store.send(run, kind) for kind in ("rate", "stop")]}
    assert train(store, run, monkeypatch, at=at).state == "stopped"
    assert seen == ["stop"]


def test_a_stop_before_the_first_step(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run = add(store)
    with happenings(monkeypatch):
        token = claim(store, run)
        store.send(run, "stop")
        worker.work(store, run, token)
    assert (store.entry(run).state, store.entry(run).step) == ("stopped", 0)
    assert resume_here(store, run, monkeypatch).state == "finished"


def test_a_new_learning_rate_is_part_of_the_settings_and_gives_the_same_bits_again(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = add(store)
    at = {4: lambda: store.send(run, "rate", 0.02), 12: lambda: store.send(run, "rate", 0.0005)}
    entry = train(store, run, monkeypatch, at=at)
    assert entry.train["lr_changes"] == [[6, 0.02], [14, 0.0005]]
    plain = add(store)
    train(store, plain, monkeypatch)
    assert not torch.equal(weights(store, run)["embedding.token"], weights(store, plain)["embedding.token"])
    assert_same_run(store, run, undisturbed(store, monkeypatch, entry))


def test_a_new_learning_rate_while_paused_and_a_stop_on_top(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run = add(store)
    pauses = [lambda: store.send(run, "rate", 0.02), lambda: store.send(run, "step"), lambda: store.send(run, "stop")]
    entry = train(store, run, monkeypatch, at={3: lambda: store.send(run, "pause")}, pauses=pauses)
    assert (entry.state, entry.step, entry.train["lr_changes"]) == ("stopped", 5, [[5, 0.02]])
    entry = resume_here(store, run, monkeypatch)
    assert_same_run(store, run, undisturbed(store, monkeypatch, entry))


def test_a_new_learning_rate_survives_a_kill_before_the_next_state(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run store knows of it, the state of step 10 does not yet: it lies ahead."""
    run = add(store)

    def die() -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        train(store, run, monkeypatch, at={12: lambda: store.send(run, "rate", 0.02), 15: die})
    assert read_state(store.folder_of(run)).values["step"] == 10
    store.change(run, worker=None, state="interrupted")
    entry = resume_here(store, run, monkeypatch)
    assert (entry.state, entry.train["lr_changes"]) == ("finished", [[14, 0.02]])
    assert_same_run(store, run, undisturbed(store, monkeypatch, entry))


@pytest.mark.parametrize("rate", [-1.0, 1e13, float("inf")])
def test_a_rate_that_is_none_is_a_sentence_and_changes_nothing(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, rate: float
) -> None:
    run, messages = add(store), []
    at = {4: lambda: store.send(run, "rate", rate), 9: lambda: messages.append(store.entry(run).message)}
    entry = train(store, run, monkeypatch, at=at)
    assert entry.state == "finished"
    assert "lr_changes must be pairs" in messages[0]
    assert entry.train["lr_changes"] == []
    assert_same_run(store, run, undisturbed(store, monkeypatch, entry))


def test_a_new_learning_rate_told_to_a_run_while_it_leaves_is_not_lost(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, leave = add(store), worker.leave

    def tell_and_leave(*args: Any, **position: Any) -> None:
        store.send(run, "rate", 0.02)
        leave(*args, **position)

    monkeypatch.setattr(worker, "leave", tell_and_leave)
    monkeypatch.setattr(commands, "IDLE_SECONDS", 0.0)
    entry = train(store, run, monkeypatch, at={6: lambda: store.send(run, "pause")})
    assert (entry.state, entry.train["lr_changes"]) == ("paused", [[8, 0.02]])
    monkeypatch.setattr(worker, "leave", leave)
    jobs.change_rate(store, run, 0.03)  # it has no process now, and takes it all the same
    entry = resume_here(store, run, monkeypatch)
    assert (entry.state, entry.train["lr_changes"]) == ("finished", [[8, 0.03]])
    assert_same_run(store, run, undisturbed(store, monkeypatch, entry))
    with pytest.raises(RunStoreError, match="takes no more steps"):
        jobs.change_rate(store, run, 0.01)


def test_a_paused_run_makes_room_when_somebody_waits(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run = add(store)
    pauses = [lambda: None, lambda: add(store, owner="bob")]
    entry = train(store, run, monkeypatch, at={6: lambda: store.send(run, "pause")}, pauses=pauses)
    assert (entry.state, entry.step, entry.worker) == ("paused", 7, None)
    assert read_state(store.folder_of(run)).values["step"] == 7
    entry = resume_here(store, run, monkeypatch)
    assert_same_run(store, run, undisturbed(store, monkeypatch, entry))


def test_it_makes_no_room_for_who_waits_for_another_device(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "devices", lambda: ["cuda:0", "cpu"])
    run, seen = add(store, device="cpu"), []
    add(store, owner="bob", device="cuda:0")
    pauses = [lambda: seen.append(store.entry(run).is_active), lambda: store.send(run, "resume")]
    assert train(store, run, monkeypatch, at={6: lambda: store.send(run, "pause")}, pauses=pauses).state == "finished"
    assert seen == [True]


@pytest.mark.parametrize(
    ("sent", "state"),
    [
        (["resume"], "queued"),
        (["step"], "queued"),
        (["stop"], "stopped"),
        (["resume", "stop"], "stopped"),
        (["pause"], "paused"),
        ([], "paused"),
    ],
)
def test_what_is_told_to_a_run_while_it_leaves(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, sent: list[str], state: str
) -> None:
    """Between the last look at the commands and the run store saying that the process is gone."""
    run, leave = add(store), worker.leave

    def tell_and_leave(*args: Any, **position: Any) -> None:
        for kind in sent:
            store.send(run, kind)
        leave(*args, **position)

    monkeypatch.setattr(worker, "leave", tell_and_leave)
    monkeypatch.setattr(commands, "IDLE_SECONDS", 0.0)
    entry = train(store, run, monkeypatch, at={6: lambda: store.send(run, "pause")})
    assert (entry.state, entry.step, entry.worker) == (state, 7, None)
    monkeypatch.setattr(worker, "leave", leave)
    go_on = train if state == "queued" else resume_here
    assert go_on(store, run, monkeypatch).state == "finished"


@pytest.mark.parametrize("paused", [False, True], ids=["running", "paused"])
def test_the_system_asks_it_to_end(store: RunStore, monkeypatch: pytest.MonkeyPatch, paused: bool) -> None:
    run, handlers = add(store), []
    at = {6: lambda: store.send(run, "pause") if paused else handlers[0](15, None)}
    pauses = [lambda: handlers[0](15, None)] if paused else []
    with happenings(monkeypatch, at=at, pauses=pauses), monkeypatch.context() as patch:
        patch.setattr(worker.signal, "signal", lambda _, handler: handlers.append(handler))
        worker.work(store, run, claim(store, run))
    entry = store.entry(run)
    assert (entry.state, entry.step) == ("interrupted", 7)
    assert read_state(store.folder_of(run)).values["step"] == 7
    entry = resume_here(store, run, monkeypatch)
    assert_same_run(store, run, undisturbed(store, monkeypatch, entry))


def test_the_state_is_written_now_and_then_even_without_snapshots(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "SAVE_SECONDS", 0.0)
    run = add(store, tiny_preset(steps=20, snapshot_every=0))

    def die() -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        train(store, run, monkeypatch, at={13: die})
    assert read_state(store.folder_of(run)).values["step"] == 13
    store.change(run, worker=None, state="interrupted")
    entry = resume_here(store, run, monkeypatch)
    assert_same_run(store, run, undisturbed(store, monkeypatch, entry))


@pytest.mark.parametrize("snapshot_every", [0, 10])
def test_weights_that_are_no_numbers_do_not_replace_the_last_good_state(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, snapshot_every: int
) -> None:
    """A pause between the step that ruins the weights and the one that notices."""
    run = add(store, tiny_preset(steps=20, snapshot_every=snapshot_every))
    monkeypatch.setattr(commands, "SAVE_SECONDS", 0.0)
    drives, driven = commands.CommandLoop.drives, []
    monkeypatch.setattr(
        commands.CommandLoop, "drives", lambda self, runs: (driven.extend(runs.values()), drives(self, runs))[1]
    )

    def ruin() -> None:
        with torch.no_grad():
            driven[0].model.embedding.token[0] = float("nan")
        store.send(run, "pause")

    with happenings(
        monkeypatch, at={12: ruin}, pauses=[lambda: store.send(run, "resume")] if not snapshot_every else []
    ):
        worker.work(store, run, claim(store, run))
    entry = store.entry(run)
    assert entry.state == "failed"
    assert bool(read_state(store.folder_of(run)).tensors["model.embedding.token"].isfinite().all())


def test_a_run_that_was_given_to_another_process_is_let_go(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run = add(store)
    entry = train(store, run, monkeypatch, at={6: lambda: store.change(run, worker="another")})
    assert (entry.state, entry.worker, entry.message) == ("running", "another", "")
    assert read_state(store.folder_of(run)).values["step"] == 0  # and nothing was written in the other one's folder


def test_a_book_that_is_gone_ends_the_worker(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would train forever, and no one could stop it."""
    run = add(store)

    def remove() -> None:
        for file in store.folder.glob("runs.sqlite*"):
            file.unlink()

    with pytest.raises(RunStoreError, match="There is no run"):
        train(store, run, monkeypatch, at={6: remove})
    assert snapshot_steps(store.folder_of(run)) == [0]


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "rows_at_once", lambda *_: 5)
    monkeypatch.setattr(commands, "WRITE_SECONDS", 0.0)


def scored(store: RunStore, monkeypatch: pytest.MonkeyPatch, during: Any = lambda run: None) -> tuple[str, list[Any]]:
    """Train a run here; what the run store says after each part of its scoring, and `during` happens after the first."""
    run, seen, score = add(store), [], evaluate.score

    def part(*args: Any) -> Any:
        seen.append(store.entry(run))
        if len(seen) == 2:
            during(run)
        return score(*args)

    monkeypatch.setattr(evaluate, "score", part)
    with happenings(monkeypatch):
        worker.work(store, run, claim(store, run))
    return run, [(entry.state, entry.step, *entry.live["scoring"][:2]) for entry in seen]


def test_the_book_says_how_far_it_is(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run, seen = scored(store, monkeypatch)
    assert seen == [("running", 20, done, 20) for done in (0, 5, 10, 15)]
    entry = store.entry(run)
    assert (entry.state, entry.figures["samples"], entry.message) == ("finished", 20, "")
    assert "scoring" not in entry.live


def test_a_stop_ends_the_scoring_and_not_the_run(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run, seen = scored(store, monkeypatch, lambda run: jobs.stop(store, run))
    assert len(seen) == 2
    entry = store.entry(run)
    assert (entry.state, entry.figures["samples"], entry.message) == ("finished", 10, "Its scoring was ended early.")
    assert load(store.folder_of(run)).card["figures"] == entry.figures
    with store.database.reading() as db:
        assert db.execute("SELECT count(*) FROM commands").fetchone()[0] == 0


def test_a_score_that_takes_long_is_taken_over_fewer_examples(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "MOST_SECONDS", 0.0)
    run, _ = scored(store, monkeypatch)
    entry = store.entry(run)
    assert (entry.state, entry.figures["samples"]) == ("finished", 5)
    assert entry.message == "Its scoring was ended after 0 s."
