"""What the tests of the training room share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.at_work import PRESET, LocalRun, NewRun
from xformer.training.run_store import RunStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    """A run store without runs, held open all along: the last one to close it would write its log back each time."""
    store = RunStore(tmp_path / "runs")
    held_open = store.database.connect()
    yield store
    held_open.close()


@pytest.fixture
def new_run(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> NewRun:
    """A run that waits, with these settings."""
    return lambda settings=PRESET, **how: LocalRun(store, monkeypatch, store.add(settings, **how))


@pytest.fixture
def run(new_run: NewRun) -> LocalRun:
    """A run that waits."""
    return new_run()
