"""All attacks, each in a short form for the test suite and in a long one for `make attack`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.attack import bounds, crowd, damaged, folders, forged, links
from tests.attack.ground import Ground


class Kind(NamedTuple):
    """One kind of attack: `attempts(ground, n, draw)` yields the outcome of each of n attempts."""

    name: str
    attempts: Callable[[Ground, int, random.Random], Iterator[str]]
    short: int
    """Attempts in the test suite."""
    long: int


KINDS = (
    Kind("damaged files: checkpoint", lambda _, n, draw: damaged.attempts("checkpoint", n, draw), 60, 40_000),
    Kind("damaged files: import", lambda _, n, draw: damaged.attempts("import", n, draw), 30, 4_000),
    Kind("damaged files: trace", lambda _, n, draw: damaged.attempts("trace", n, draw), 60, 15_000),
    Kind("model folders", lambda _, n, draw: folders.attempts(folders.mutant, n, draw), 4, 700),
    Kind("GGUF files", lambda _, n, draw: folders.attempts(folders.gguf_mutant, n, draw), 4, 500),
    Kind("odd links", lambda ground, n, draw: links.attempts(ground.base, n, draw), 11, 600),
    Kind("forged values", lambda ground, n, draw: forged.attempts(ground.base, n, draw), 4, 250),
    Kind("secrets of a crowd", crowd.attempts, 2, 40),
    Kind("runs with and without an owner", bounds.runs, 2, 16),
)
