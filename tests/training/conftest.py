"""What the tests of the training room share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from xformer.training.book import Book


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    """A book without runs, held open all along: the last one to close it would write its log back each time."""
    book = Book(tmp_path / "runs")
    held_open = book.database.connect()
    yield book
    held_open.close()
