"""Fixtures of the training tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.at_work import PRESET, LocalRun, NewRun
from xformer.training.run_store import RunStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    """An empty run store. A connection stays open, because closing the last one would write the log back each time."""
    store = RunStore(tmp_path / "runs")
    held_open = store.database.connect()
    yield store
    held_open.close()


@pytest.fixture
def new_run(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> NewRun:
    """A function that adds a queued run with given settings."""
    return lambda settings=PRESET, **how: LocalRun(store, monkeypatch, store.add(settings, **how))


@pytest.fixture
def run(new_run: NewRun) -> LocalRun:
    """A queued run."""
    return new_run()
