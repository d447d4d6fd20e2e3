"""Scoring a finished run: the book says how far it is, and a stop, the system or the clock end it with the figures so far."""

from __future__ import annotations

from typing import Any

import pytest

from tests.training.at_work import add, claim, happenings
from xformer.checkpoints import load
from xformer.training import evaluate, jobs, scoring, worker
from xformer.training.book import Book


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "rows_at_once", lambda *_: 5)
    monkeypatch.setattr(scoring, "WRITE_SECONDS", 0.0)


def scored(book: Book, monkeypatch: pytest.MonkeyPatch, during: Any = lambda run: None) -> tuple[str, list[Any]]:
    """Train a run here; what the book says after each part of its scoring, and `during` happens after the first."""
    run, seen, score = add(book), [], evaluate.score_batches

    def part(*args: Any) -> Any:
        seen.append(book.entry(run))
        if len(seen) == 2:
            during(run)
        return score(*args)

    monkeypatch.setattr(evaluate, "score_batches", part)
    with happenings(monkeypatch):
        worker.work(book, run, claim(book, run))
    return run, [(entry.state, entry.step, *entry.live["scoring"][:2]) for entry in seen]


def test_the_book_says_how_far_it_is(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    run, seen = scored(book, monkeypatch)
    assert seen == [("running", 20, done, 20) for done in (0, 5, 10, 15)]
    entry = book.entry(run)
    assert (entry.state, entry.figures["samples"], entry.message) == ("finished", 20, "")
    assert "scoring" not in entry.live


def test_a_stop_ends_the_scoring_and_not_the_run(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    run, seen = scored(book, monkeypatch, lambda run: jobs.stop(book, run))
    assert len(seen) == 2
    entry = book.entry(run)
    assert (entry.state, entry.figures["samples"], entry.message) == ("finished", 10, "Its scoring was ended early.")
    assert load(book.folder_of(run)).card["figures"] == entry.figures
    with book.database.reading() as db:
        assert db.execute("SELECT count(*) FROM commands").fetchone()[0] == 0


def test_a_score_that_takes_long_is_taken_over_fewer_examples(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "MOST_SECONDS", 0.0)
    run, _ = scored(book, monkeypatch)
    entry = book.entry(run)
    assert (entry.state, entry.figures["samples"]) == ("finished", 5)
    assert entry.message == "Its scoring was ended after 0 s."
