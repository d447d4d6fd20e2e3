"""What a worker does between two steps: pause, single steps, a new learning rate, a stop; and how it makes room."""

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


def test_pause_and_resume(run: LocalRun) -> None:
    seen = []

    def look() -> None:
        seen.append(run.entry)
        assert run.saved_step == 8  # nothing is lost should it be killed now

    # Though the step is written rarely otherwise, it is written together with the state.
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
def test_a_stop_ends_the_run_at_its_step(run: LocalRun, at: dict[int, str], pauses: list[str]) -> None:
    leave, seen = worker.leave, []

    def look_and_leave(*args: Any, **position: Any) -> None:
        seen.extend(run.commands)
        leave(*args, **position)

    run.monkeypatch.setattr(worker, "leave", look_and_leave)
    entry = run.train(at, pauses)
    assert (entry.state, entry.step, entry.worker) == ("stopped", 7, None)
    assert seen == ["stop"]  # if the process hangs while it saves, the store has the command and its time
    assert (run.saved_step, run.reported, run.commands) == (7, [5], [])
    assert run.snapshots[-1] == 7
    run.assert_goes_on()


def test_a_new_learning_rate_is_part_of_the_settings_and_gives_the_same_bits_again(run: LocalRun) -> None:
    entry = run.train({4: "rate=0.02", 12: "rate=0.0005"})
    assert entry.train["lr_changes"] == [[6, 0.02], [14, 0.0005]]
    run.assert_undisturbed()
    plain = run.another()
    plain.train()
    assert plain.outcome()["weights"] != run.outcome()["weights"]


def test_a_new_learning_rate_survives_a_kill_before_the_next_state(run: LocalRun) -> None:
    """The run store knows of it, the state of step 10 does not yet: it lies ahead."""
    run.dies({12: "rate=0.02", 15: "dies"})
    assert run.saved_step == 10
    assert run.assert_goes_on().train["lr_changes"] == [[14, 0.02]]


def test_a_rate_that_is_none_is_a_sentence_and_changes_nothing(run: LocalRun) -> None:
    messages = []
    entry = run.train({4: "rate=inf", 9: lambda: messages.append(run.entry.message)})
    assert "lr_changes must be pairs" in messages[0]
    assert entry.train["lr_changes"] == []
    run.assert_undisturbed()


def test_a_paused_run_leaves_when_another_run_waits(run: LocalRun) -> None:
    entry = run.train({6: "pause"}, [lambda: None, lambda: run.another(owner="bob")])
    assert (entry.state, entry.step, entry.worker, run.saved_step) == ("paused", 7, None, 7)
    run.assert_goes_on()


@pytest.mark.parametrize(("sent", "state"), [("resume stop", "stopped"), ("rate=0.02", "paused")])
def test_commands_to_a_leaving_run_are_kept(run: LocalRun, sent: str, state: str) -> None:
    """Between the last look at the commands and the run store saying that the process is gone."""
    leave = worker.leave

    def tell_and_leave(*args: Any, **position: Any) -> None:
        run.happens(sent)
        leave(*args, **position)

    with run.monkeypatch.context() as patch:
        patch.setattr(worker, "leave", tell_and_leave)
        patch.setattr(commands, "IDLE_SECONDS", 0.0)
        entry = run.train({6: "pause"})
    assert (entry.state, entry.step, entry.worker) == (state, 7, None)
    if sent.startswith("rate"):
        assert entry.train["lr_changes"] == [[8, 0.02]]
        jobs.change_rate(run.store, run.id, 0.03)  # it has no process now, and takes it all the same
    entry = run.resume()
    assert entry.train["lr_changes"] == ([[8, 0.03]] if sent.startswith("rate") else [])
    run.assert_undisturbed()
    with pytest.raises(RunStoreError, match="takes no more steps"):
        jobs.change_rate(run.store, run.id, 0.01)


def test_the_system_asks_it_to_end(run: LocalRun) -> None:
    entry = run.train({6: "pause"}, ["SIGTERM"])
    assert (entry.state, entry.step, run.saved_step) == ("interrupted", 7, 7)
    run.assert_goes_on()


def test_the_state_is_written_now_and_then_even_without_snapshots(new_run: NewRun) -> None:
    run = new_run(tiny_preset(steps=20, snapshot_every=0))
    run.monkeypatch.setattr(commands, "SAVE_SECONDS", 0.0)
    run.dies({13: "dies"})
    assert run.saved_step == 13
    run.assert_goes_on()


def test_weights_that_are_no_numbers_do_not_replace_the_last_good_state(new_run: NewRun) -> None:
    """A pause between the step that ruins the weights and the one that notices."""
    run = new_run(tiny_preset(steps=20, snapshot_every=0))
    run.monkeypatch.setattr(commands, "SAVE_SECONDS", 0.0)

    def ruin() -> None:
        with torch.no_grad():
            run.trained.model.embedding.token[0] = float("nan")
        run.happens("pause")

    assert run.train({12: ruin}, ["resume"]).state == "failed"
    assert bool(read_state(run.folder).tensors["model.embedding.token"].isfinite().all())


def test_a_run_that_was_given_to_another_process_is_let_go(run: LocalRun) -> None:
    entry = run.train({6: lambda: run.store.change(run.id, worker="another")})
    assert (entry.state, entry.worker, entry.message) == ("running", "another", "")
    assert run.saved_step == 0  # and nothing was written in the other one's folder


@pytest.mark.parametrize(
    ("during", "seconds", "samples", "message"),
    [
        (lambda run: None, 1e9, 20, ""),
        (lambda run: jobs.stop(run.store, run.id), 1e9, 10, "Scoring was ended early."),
        (lambda run: None, 0.0, 5, "Scoring was ended after 0 s."),
    ],
    ids=["to the end", "a stop ends it and not the run", "it takes long"],
)
def test_the_run_store_has_the_progress_of_scoring(
    run: LocalRun, during: Any, seconds: float, samples: int, message: str
) -> None:
    seen, score = [], evaluate.score

    def part(*args: Any) -> Any:
        seen.append(run.entry)
        if len(seen) == 2:
            during(run)
        return score(*args)

    run.monkeypatch.setattr(evaluate, "rows_at_once", lambda *_: 5)
    run.monkeypatch.setattr(evaluate, "score", part)
    run.monkeypatch.setattr(commands, "MOST_SECONDS", seconds)
    entry = run.train()
    found = [(one.state, one.step, *one.live["scoring"][:2]) for one in seen]
    assert found == [("running", 20, done, 20) for done in range(0, samples, 5)]
    assert (entry.state, entry.figures["samples"], entry.message) == ("finished", samples, message)
    assert load(run.folder).card["figures"] == entry.figures
    assert ("scoring" in entry.live, run.commands) == (False, [])
