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
from xformer.checkpoints import FILE
from xformer.errors import BookError
from xformer.training import jobs, obedience, worker
from xformer.training.book import Book, Entry
from xformer.training.database import Database
from xformer.training.snapshots import read_state, snapshot_steps

TIMES = ("seconds", "tokens_per_second")


def weights(book: Book, run: str) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(book.folder_of(run) / FILE)


def rows(book: Book, run: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in TIMES} for row in book.rows(run)]


def assert_same_run(book: Book, one: str, other: str) -> None:
    """The same bits, and the same metrics but for times."""
    mine, theirs = weights(book, one), weights(book, other)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert rows(book, one) == rows(book, other)
    assert book.entry(one).figures == book.entry(other).figures != {}


def undisturbed(book: Book, monkeypatch: pytest.MonkeyPatch, entry: Entry) -> str:
    """Another run with the settings that a run has now."""
    run = add(book, entry.settings())
    assert train(book, run, monkeypatch).state == "finished"
    return run


def test_pause_and_resume(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    run, seen = add(book), []

    def look() -> None:
        seen.append(book.entry(run))
        assert read_state(book.folder_of(run)).values["step"] == 8  # nothing is lost should it be killed now

    pauses = [look, look, lambda: book.send(run, "resume")]
    entry = train(book, run, monkeypatch, at={7: lambda: book.send(run, "pause")}, pauses=pauses)
    assert [(e.state, e.step, e.is_active) for e in seen] == [("paused", 8, True)] * 2
    assert (entry.state, entry.step, entry.is_active) == ("finished", 20, False)
    assert 8 in snapshot_steps(book.folder_of(run))
    assert_same_run(book, run, undisturbed(book, monkeypatch, entry))


@pytest.mark.parametrize("end", ["stop", "resume", "kill", "ask"])
def test_a_state_is_never_in_the_book_without_its_step(book: Book, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """However rarely the step is written down otherwise: whoever reads “paused at step 8” can rely on both words."""
    run, committed, driven, handlers = add(book), [], [], []
    drives, writing = obedience.Obedience.drives, Database.writing

    @contextmanager
    def spy(database: Database) -> Iterator[Any]:
        with writing(database) as db:
            yield db
        entry = book.entry(run)
        if driven and (not committed or committed[-1][0] != entry.state):
            committed.append((entry.state, entry.step, driven[0].step))

    def begin() -> None:
        monkeypatch.setattr(obedience, "WRITE_SECONDS", 1e9)
        monkeypatch.setattr(Database, "writing", spy)

    def finish() -> None:
        if end == "kill":
            raise OSError("no room")
        handlers[0](15, None) if end == "ask" else book.send(run, end)

    monkeypatch.setattr(obedience.Obedience, "drives", lambda self, run: (driven.append(run), drives(self, run))[1])
    at = {2: begin, 7: lambda: book.send(run, "pause"), **({9: finish} if end == "kill" else {})}
    pauses = [lambda: book.send(run, "resume")] if end == "kill" else [finish]
    with happenings(monkeypatch, at=at, pauses=pauses), monkeypatch.context() as patch:
        patch.setattr(worker.signal, "signal", lambda _, handler: handlers.append(handler))
        worker.work(book, run, claim(book, run))
    states = {"stop": "stopped", "resume": "finished", "kill": "failed", "ask": "interrupted"}
    still = [(state, told, true) for state, told, true in committed if state != "running"]
    assert [state for state, *_ in still] == ["paused", states[end]]
    assert all(told == true for _, told, true in still), still


def test_the_figures_of_a_run_that_pauses_at_a_report_are_those_of_the_report(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, live = add(book), []
    pauses = [lambda: live.append(book.entry(run).live), lambda: book.send(run, "resume")]
    train(book, run, monkeypatch, at={9: lambda: book.send(run, "pause")}, pauses=pauses)
    report = next(row for row in book.rows(run) if row["step"] == 10)
    assert {name: live[0][name] for name in ("loss", "gradient_norm")} == {
        name: report[name] for name in ("loss", "gradient_norm")
    }


def test_single_steps(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    run, steps = add(book), []

    def step(*kinds: str) -> None:
        entry = book.entry(run)
        steps.append((entry.step, entry.state))
        for kind in kinds:
            book.send(run, kind)

    pauses = [lambda: step("step"), lambda: step("step", "step"), lambda: step(), lambda: step("resume")]
    entry = train(book, run, monkeypatch, at={2: lambda: book.send(run, "pause")}, pauses=pauses)
    assert steps == [(3, "paused"), (4, "paused"), (6, "paused"), (6, "paused")]
    assert entry.state == "finished"
    assert {3, 4, 5, 6} <= set(snapshot_steps(book.folder_of(run)))
    assert_same_run(book, run, undisturbed(book, monkeypatch, entry))


def test_commands_that_change_nothing(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    run = add(book)

    def tell(*kinds: str) -> None:
        for kind in kinds:
            book.send(run, kind)

    pauses = [lambda: tell("pause", "pause"), lambda: tell("resume", "resume")]
    at = {3: lambda: tell("resume", "step"), 5: lambda: tell("pause", "pause")}
    assert train(book, run, monkeypatch, at=at, pauses=pauses).state == "finished"


def test_of_two_commands_at_once_the_later_one_holds(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    run, other = add(book), add(book)
    assert (
        train(book, run, monkeypatch, at={3: lambda: [book.send(run, k) for k in ("pause", "resume")]}).state
        == "finished"
    )
    pauses = [lambda: [book.send(other, k) for k in ("resume", "pause")], lambda: book.send(other, "resume")]
    assert train(book, other, monkeypatch, at={3: lambda: book.send(other, "pause")}, pauses=pauses).state == "finished"


@pytest.mark.parametrize("paused", [False, True], ids=["running", "paused"])
def test_a_stop(book: Book, monkeypatch: pytest.MonkeyPatch, paused: bool) -> None:
    run = add(book)
    pauses = [lambda: book.send(run, "stop")] if paused else []
    entry = train(book, run, monkeypatch, at={6: lambda: book.send(run, "pause" if paused else "stop")}, pauses=pauses)
    assert (entry.state, entry.step, entry.worker, entry.message) == ("stopped", 7, None, "")
    assert read_state(book.folder_of(run)).values["step"] == 7
    assert [row["step"] for row in book.rows(run)] == [5]
    with book.database.reading() as db:
        assert db.execute("SELECT count(*) FROM commands").fetchone()[0] == 0
    entry = resume_here(book, run, monkeypatch)
    assert entry.state == "finished"
    assert_same_run(book, run, undisturbed(book, monkeypatch, entry))


def test_a_stop_is_in_the_book_until_the_run_has_stopped(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should the process hang while it saves, it is known that it was told, and since when."""
    run, leave, seen = add(book), worker.leave, []

    def look_and_leave(*args: Any, **position: Any) -> None:
        with book.database.reading() as db:
            seen.extend(row["kind"] for row in db.execute("SELECT kind FROM commands"))
        leave(*args, **position)

    monkeypatch.setattr(worker, "leave", look_and_leave)
    at = {6: lambda: [book.send(run, kind) for kind in ("rate", "stop")]}
    assert train(book, run, monkeypatch, at=at).state == "stopped"
    assert seen == ["stop"]


def test_a_stop_before_the_first_step(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    run = add(book)
    with happenings(monkeypatch):
        token = claim(book, run)
        book.send(run, "stop")
        worker.work(book, run, token)
    assert (book.entry(run).state, book.entry(run).step) == ("stopped", 0)
    assert resume_here(book, run, monkeypatch).state == "finished"


def test_a_new_learning_rate_is_part_of_the_settings_and_gives_the_same_bits_again(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = add(book)
    at = {4: lambda: book.send(run, "rate", 0.02), 12: lambda: book.send(run, "rate", 0.0005)}
    entry = train(book, run, monkeypatch, at=at)
    assert entry.train["lr_changes"] == [[6, 0.02], [14, 0.0005]]
    plain = add(book)
    train(book, plain, monkeypatch)
    assert not torch.equal(weights(book, run)["embedding.token"], weights(book, plain)["embedding.token"])
    assert_same_run(book, run, undisturbed(book, monkeypatch, entry))


def test_a_new_learning_rate_while_paused_and_a_stop_on_top(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    run = add(book)
    pauses = [lambda: book.send(run, "rate", 0.02), lambda: book.send(run, "step"), lambda: book.send(run, "stop")]
    entry = train(book, run, monkeypatch, at={3: lambda: book.send(run, "pause")}, pauses=pauses)
    assert (entry.state, entry.step, entry.train["lr_changes"]) == ("stopped", 5, [[5, 0.02]])
    entry = resume_here(book, run, monkeypatch)
    assert_same_run(book, run, undisturbed(book, monkeypatch, entry))


def test_a_new_learning_rate_survives_a_kill_before_the_next_state(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    """The book knows of it, the state of step 10 does not yet: it lies ahead."""
    run = add(book)

    def die() -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        train(book, run, monkeypatch, at={12: lambda: book.send(run, "rate", 0.02), 15: die})
    assert read_state(book.folder_of(run)).values["step"] == 10
    book.change(run, worker=None, state="interrupted")
    entry = resume_here(book, run, monkeypatch)
    assert (entry.state, entry.train["lr_changes"]) == ("finished", [[14, 0.02]])
    assert_same_run(book, run, undisturbed(book, monkeypatch, entry))


@pytest.mark.parametrize("rate", [-1.0, 1e13, float("inf")])
def test_a_rate_that_is_none_is_a_sentence_and_changes_nothing(
    book: Book, monkeypatch: pytest.MonkeyPatch, rate: float
) -> None:
    run, messages = add(book), []
    at = {4: lambda: book.send(run, "rate", rate), 9: lambda: messages.append(book.entry(run).message)}
    entry = train(book, run, monkeypatch, at=at)
    assert entry.state == "finished"
    assert "lr_changes must be pairs" in messages[0]
    assert entry.train["lr_changes"] == []
    assert_same_run(book, run, undisturbed(book, monkeypatch, entry))


@pytest.mark.parametrize("rate", [None, float("nan")])
def test_no_rate_at_all_is_no_command(book: Book, monkeypatch: pytest.MonkeyPatch, rate: float | None) -> None:
    run = add(book)
    entry = train(book, run, monkeypatch, at={4: lambda: book.send(run, "rate", rate)})
    assert (entry.state, entry.train["lr_changes"]) == ("finished", [])


def test_a_new_learning_rate_told_to_a_run_while_it_leaves_is_not_lost(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, leave = add(book), worker.leave

    def tell_and_leave(*args: Any, **position: Any) -> None:
        book.send(run, "rate", 0.02)
        leave(*args, **position)

    monkeypatch.setattr(worker, "leave", tell_and_leave)
    monkeypatch.setattr(obedience, "IDLE_SECONDS", 0.0)
    entry = train(book, run, monkeypatch, at={6: lambda: book.send(run, "pause")})
    assert (entry.state, entry.train["lr_changes"]) == ("paused", [[8, 0.02]])
    monkeypatch.setattr(worker, "leave", leave)
    jobs.change_rate(book, run, 0.03)  # it has no process now, and takes it all the same
    entry = resume_here(book, run, monkeypatch)
    assert (entry.state, entry.train["lr_changes"]) == ("finished", [[8, 0.03]])
    assert_same_run(book, run, undisturbed(book, monkeypatch, entry))
    with pytest.raises(BookError, match="takes no more steps"):
        jobs.change_rate(book, run, 0.01)


def test_a_paused_run_makes_room_when_somebody_waits(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    run = add(book)
    pauses = [lambda: None, lambda: add(book, owner="bob")]
    entry = train(book, run, monkeypatch, at={6: lambda: book.send(run, "pause")}, pauses=pauses)
    assert (entry.state, entry.step, entry.worker) == ("paused", 7, None)
    assert read_state(book.folder_of(run)).values["step"] == 7
    entry = resume_here(book, run, monkeypatch)
    assert_same_run(book, run, undisturbed(book, monkeypatch, entry))


def test_it_makes_no_room_for_who_waits_for_another_device(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(obedience.queue, "devices", lambda: ["cuda:0", "cpu"])
    run, seen = add(book, device="cpu"), []
    add(book, owner="bob", device="cuda:0")
    pauses = [lambda: seen.append(book.entry(run).is_active), lambda: book.send(run, "resume")]
    assert train(book, run, monkeypatch, at={6: lambda: book.send(run, "pause")}, pauses=pauses).state == "finished"
    assert seen == [True]


def test_nobody_comes_back(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(obedience, "IDLE_SECONDS", 0.0)
    run = add(book)
    entry = train(book, run, monkeypatch, at={6: lambda: book.send(run, "pause")})
    assert (entry.state, entry.worker) == ("paused", None)


@pytest.mark.parametrize(
    ("told", "state"),
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
    book: Book, monkeypatch: pytest.MonkeyPatch, told: list[str], state: str
) -> None:
    """Between the last look at the commands and the book saying that the process is gone."""
    run, leave = add(book), worker.leave

    def tell_and_leave(*args: Any, **position: Any) -> None:
        for kind in told:
            book.send(run, kind)
        leave(*args, **position)

    monkeypatch.setattr(worker, "leave", tell_and_leave)
    monkeypatch.setattr(obedience, "IDLE_SECONDS", 0.0)
    entry = train(book, run, monkeypatch, at={6: lambda: book.send(run, "pause")})
    assert (entry.state, entry.step, entry.worker) == (state, 7, None)
    monkeypatch.setattr(worker, "leave", leave)
    go_on = train if state == "queued" else resume_here
    assert go_on(book, run, monkeypatch).state == "finished"


@pytest.mark.parametrize("paused", [False, True], ids=["running", "paused"])
def test_the_system_asks_it_to_end(book: Book, monkeypatch: pytest.MonkeyPatch, paused: bool) -> None:
    run, handlers = add(book), []
    at = {6: lambda: book.send(run, "pause") if paused else handlers[0](15, None)}
    pauses = [lambda: handlers[0](15, None)] if paused else []
    with happenings(monkeypatch, at=at, pauses=pauses), monkeypatch.context() as patch:
        patch.setattr(worker.signal, "signal", lambda _, handler: handlers.append(handler))
        worker.work(book, run, claim(book, run))
    entry = book.entry(run)
    assert (entry.state, entry.step) == ("interrupted", 7)
    assert read_state(book.folder_of(run)).values["step"] == 7
    entry = resume_here(book, run, monkeypatch)
    assert_same_run(book, run, undisturbed(book, monkeypatch, entry))


def test_the_state_is_written_now_and_then_even_without_snapshots(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(obedience, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(obedience, "SAVE_SHARE", 1e9)
    run = add(book, tiny_preset(steps=20, snapshot_every=0))

    def die() -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        train(book, run, monkeypatch, at={13: die})
    assert read_state(book.folder_of(run)).values["step"] == 13
    book.change(run, worker=None, state="interrupted")
    entry = resume_here(book, run, monkeypatch)
    assert_same_run(book, run, undisturbed(book, monkeypatch, entry))


@pytest.mark.parametrize("snapshot_every", [0, 10])
def test_weights_that_are_no_numbers_do_not_replace_the_last_good_state(
    book: Book, monkeypatch: pytest.MonkeyPatch, snapshot_every: int
) -> None:
    """A pause between the step that ruins the weights and the one that notices."""
    run = add(book, tiny_preset(steps=20, snapshot_every=snapshot_every))
    monkeypatch.setattr(obedience, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(obedience, "SAVE_SHARE", 1e9)
    drives, driven = obedience.Obedience.drives, []
    monkeypatch.setattr(obedience.Obedience, "drives", lambda self, run: (driven.append(run), drives(self, run))[1])

    def ruin() -> None:
        driven[0].optimiser.flat[0] = float("nan")
        book.send(run, "pause")

    with happenings(
        monkeypatch, at={12: ruin}, pauses=[lambda: book.send(run, "resume")] if not snapshot_every else []
    ):
        worker.work(book, run, claim(book, run))
    entry = book.entry(run)
    assert entry.state == "failed"
    assert bool(read_state(book.folder_of(run)).tensors["weights"].isfinite().all())


def test_a_run_that_was_given_to_another_process_is_let_go(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    run = add(book)
    entry = train(book, run, monkeypatch, at={6: lambda: book.change(run, worker="another")})
    assert (entry.state, entry.worker, entry.message) == ("running", "another", "")
    assert read_state(book.folder_of(run)).values["step"] == 0  # and nothing was written in the other one's folder


def test_a_book_that_is_gone_ends_the_worker(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would train on for ever, with nobody who could stop it."""
    run = add(book)

    def remove() -> None:
        for file in book.folder.glob("runs.sqlite*"):
            file.unlink()

    with pytest.raises(BookError, match="There is no run"):
        train(book, run, monkeypatch, at={6: remove})
    assert snapshot_steps(book.folder_of(run)) == [0]
