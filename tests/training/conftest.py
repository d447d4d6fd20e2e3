"""What the tests of the training room share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from xformer.training.run_store import RunStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    """A run store without runs, held open all along: the last one to close it would write its log back each time."""
    store = RunStore(tmp_path / "runs")
    held_open = store.database.connect()
    yield store
    held_open.close()
