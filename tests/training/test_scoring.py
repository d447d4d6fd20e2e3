"""Scoring a finished run: the store says how far it is, and a stop, the system or the clock end it with the figures so far."""

from __future__ import annotations

from typing import Any

import pytest

from tests.training.at_work import add, claim, happenings
from xformer.checkpoints import load
from xformer.training import evaluate, jobs, scoring, worker
from xformer.training.run_store import RunStore


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "rows_at_once", lambda *_: 5)
    monkeypatch.setattr(scoring, "WRITE_SECONDS", 0.0)


def scored(store: RunStore, monkeypatch: pytest.MonkeyPatch, during: Any = lambda run: None) -> tuple[str, list[Any]]:
    """Train a run here; what the run store says after each part of its scoring, and `during` happens after the first."""
    run, seen, score = add(store), [], evaluate.score_batches

    def part(*args: Any) -> Any:
        seen.append(store.entry(run))
        if len(seen) == 2:
            during(run)
        return score(*args)

    monkeypatch.setattr(evaluate, "score_batches", part)
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
    monkeypatch.setattr(scoring, "MOST_SECONDS", 0.0)
    run, _ = scored(store, monkeypatch)
    entry = store.entry(run)
    assert (entry.state, entry.figures["samples"]) == ("finished", 5)
    assert entry.message == "Its scoring was ended after 0 s."
