"""The work of a worker between two steps: pause, single steps, a new learning rate, stop, and releasing the device."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from tests.training.at_work import LocalRun, NewRun
from tests.training.tiny import tiny_preset
from xformer.checkpoints import load
from xformer.errors import RunStoreError
from xformer.training import commands, evaluate, jobs, worker
from xformer.training.loop import read_state


def test_pause_saves_the_state_and_resume_continues(run: LocalRun) -> None:
    seen = []

    def look() -> None:
        seen.append(run.entry)
        assert run.saved_step == 8  # nothing would be lost if it were killed now

    # The step is written together with the state, even if it is otherwise written rarely.
    rarely = partial(run.monkeypatch.setattr, commands, "WRITE_SECONDS", 1e9)
    entry = run.train({2: rarely, 7: "pause"}, [look, look, "resume"])
    assert [(e.state, e.step, e.is_active) for e in seen] == [("paused", 8, True)] * 2
    assert (entry.step, entry.is_active) == (20, False)
    assert 8 in run.snapshots
    run.assert_undisturbed()


def test_single_steps_run_one_step_each(run: LocalRun) -> None:
    steps = []

    def send(words: str) -> None:
        steps.append((run.entry.step, run.entry.state))
        run.happens(words)

    run.train({2: "pause"}, [partial(send, words) for words in ("step", "step step", "", "resume")])
    assert steps == [(3, "paused"), (4, "paused"), (6, "paused"), (6, "paused")]
    assert {3, 4, 5, 6} <= set(run.snapshots)
    run.assert_undisturbed()


@pytest.mark.parametrize(
    ("at", "pauses"), [({6: "rate=0 stop"}, []), ({6: "pause"}, ["stop"])], ids=["running", "paused"]
)
def test_stop_ends_the_run_at_its_current_step(run: LocalRun, at: dict[int, str], pauses: list[str]) -> None:
    release, seen = worker.release, []

    def look_and_leave(*args: Any, **position: Any) -> None:
        seen.extend(run.commands)
        release(*args, **position)

    run.monkeypatch.setattr(worker, "release", look_and_leave)
    entry = run.train(at, pauses)
    assert (entry.state, entry.step, entry.worker) == ("stopped", 7, None)
    assert seen == ["stop"]  # if the process hangs while saving, the store still has the command and its time
    assert (run.saved_step, run.reported, run.commands) == (7, [5], [])
    assert run.snapshots[-1] == 7
    run.assert_goes_on()


def test_new_learning_rate_is_part_of_the_settings_and_reproducible(run: LocalRun) -> None:
    entry = run.train({4: "rate=0.02", 12: "rate=0.0005"})
    assert entry.train["lr_changes"] == [[6, 0.02], [14, 0.0005]]
    run.assert_undisturbed()
    plain = run.another()
    plain.train()
    assert plain.outcome()["weights"] != run.outcome()["weights"]


def test_new_learning_rate_survives_a_kill_before_the_next_state(run: LocalRun) -> None:
    """The change is in the run store, but not in the state of step 10, which precedes it."""
    run.dies({12: "rate=0.02", 15: "dies"})
    assert run.saved_step == 10
    assert run.assert_goes_on().train["lr_changes"] == [[14, 0.02]]


def test_invalid_learning_rate_is_reported_and_changes_nothing(run: LocalRun) -> None:
    messages = []
    entry = run.train({4: "rate=inf", 9: lambda: messages.append(run.entry.message)})
    assert "lr_changes must be pairs" in messages[0]
    assert entry.train["lr_changes"] == []
    run.assert_undisturbed()


def test_paused_run_releases_its_device_when_another_run_waits(run: LocalRun) -> None:
    entry = run.train({6: "pause"}, [lambda: None, lambda: run.another(owner="bob")])
    assert (entry.state, entry.step, entry.worker, run.saved_step) == ("paused", 7, None, 7)
    run.assert_goes_on()


@pytest.mark.parametrize(("sent", "state"), [("resume stop", "stopped"), ("rate=0.02", "paused")])
def test_commands_that_arrive_while_a_worker_ends_take_effect(run: LocalRun, sent: str, state: str) -> None:
    """The commands are sent after the worker's last poll and before it records its end."""
    release = worker.release

    def send_and_leave(*args: Any, **position: Any) -> None:
        run.happens(sent)
        release(*args, **position)

    with run.monkeypatch.context() as patch:
        patch.setattr(worker, "release", send_and_leave)
        patch.setattr(commands, "IDLE_SECONDS", 0.0)
        entry = run.train({6: "pause"})
    assert (entry.state, entry.step, entry.worker) == (state, 7, None)
    if sent.startswith("rate"):
        assert entry.train["lr_changes"] == [[8, 0.02]]
        jobs.change_rate(run.store, run.id, 0.03)  # also works without a process
    entry = run.resume()
    assert entry.train["lr_changes"] == ([[8, 0.03]] if sent.startswith("rate") else [])
    run.assert_undisturbed()
    with pytest.raises(RunStoreError, match="takes no more steps"):
        jobs.change_rate(run.store, run.id, 0.01)


def test_sigterm_interrupts_the_run_and_saves_its_state(run: LocalRun) -> None:
    entry = run.train({6: "pause"}, ["SIGTERM"])
    assert (entry.state, entry.step, run.saved_step) == ("interrupted", 7, 7)
    run.assert_goes_on()


def test_state_is_saved_periodically_even_without_snapshots(new_run: NewRun) -> None:
    run = new_run(tiny_preset(steps=20, snapshot_every=0))
    run.monkeypatch.setattr(commands, "SAVE_SECONDS", 0.0)
    run.dies({13: "dies"})
    assert run.saved_step == 13
    run.assert_goes_on()


def test_non_finite_weights_do_not_replace_the_last_good_state(new_run: NewRun) -> None:
    """The run pauses between the step that ruins the weights and the step that detects it."""
    run = new_run(tiny_preset(steps=20, snapshot_every=0))
    run.monkeypatch.setattr(commands, "SAVE_SECONDS", 0.0)

    def ruin() -> None:
        with torch.no_grad():
            run.trained.model.embedding.token[0] = float("nan")
        run.happens("pause")

    assert run.train({12: ruin}, ["resume"]).state == "failed"
    assert bool(read_state(run.folder).tensors["model.embedding.token"].isfinite().all())


def test_worker_releases_a_run_that_was_assigned_to_another_process(run: LocalRun) -> None:
    entry = run.train({6: lambda: run.store.change(run.id, worker="another")})
    assert (entry.state, entry.worker, entry.message) == ("running", "another", "")
    assert run.saved_step == 0  # nothing was written to the folder, which the other process owns now


@pytest.mark.parametrize(
    ("during", "seconds", "samples", "message"),
    [
        (lambda run: None, 1e9, 20, ""),
        (lambda run: jobs.stop(run.store, run.id), 1e9, 10, "Its scoring was ended early."),
        (lambda run: None, 0.0, 5, "Its scoring was ended after 0 s."),
    ],
    ids=["complete", "ended by a stop", "ended by the time limit"],
)
def test_progress_of_scoring_is_stored(run: LocalRun, during: Any, seconds: float, samples: int, message: str) -> None:
    seen, score = [], evaluate.score

    def part(*args: Any) -> Any:
        seen.append(run.entry)
        if len(seen) == 2:
            during(run)
        return score(*args)

    run.monkeypatch.setattr(evaluate, "rows_at_once", lambda *_: 5)
    run.monkeypatch.setattr(evaluate, "score", part)
    run.monkeypatch.setattr(commands, "MAX_SECONDS", seconds)
    entry = run.train()
    found = [(one.state, one.step, *one.live["scoring"][:2]) for one in seen]
    assert found == [("running", 20, done, 20) for done in range(0, samples, 5)]
    assert (entry.state, entry.figures["samples"], entry.message) == ("finished", samples, message)
    assert load(run.folder).card["figures"] == entry.figures
    assert ("scoring" in entry.live, run.commands) == (False, [])
