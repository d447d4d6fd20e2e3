"""All attacks, each in a short form for the test suite and in a long one for `make attack`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.attack import bounds, crowd, damaged, folders, forged, links
from tests.attack.ground import Ground


@dataclass(frozen=True)
class Kind:
    """One kind of attack: `attempts(ground, is_long, draw)` yields the outcome of each attempt."""

    name: str
    attempts: Callable[[Ground, bool, random.Random], Iterator[str]]
    has_short: bool = True
    """Whether there is a form of it that takes a moment."""


def _damaged(kind: str, short: int, long: int) -> Kind:
    name = f"damaged files: {kind}"
    return Kind(name, lambda ground, is_long, draw: damaged.attempts(kind, long if is_long else short, draw))


FILES = (
    _damaged("checkpoint", 200, 40_000),
    _damaged("import", 60, 4_000),
    _damaged("trace", 150, 15_000),
    Kind("model folders", lambda g, is_long, draw: folders.attempts(folders.mutant, 700 if is_long else 12, draw)),
    Kind("GGUF files", lambda g, is_long, draw: folders.attempts(folders.gguf_mutant, 500 if is_long else 12, draw)),
)
SERVER = (
    Kind("odd links", lambda g, is_long, draw: links.attempts(g.base, 600 if is_long else 11, draw)),
    Kind("forged values that fit", lambda g, is_long, draw: forged.fitting(g.base, 250 if is_long else 8, draw)),
    Kind("forged values of any kind", lambda g, is_long, draw: forged.wrong_kinds(g.base, 100 if is_long else 2, draw)),
    Kind("messages that are none", lambda g, is_long, draw: forged.garbage(g.base, 2000 if is_long else 50, draw)),
    Kind("text where all is binary", lambda g, is_long, draw: forged.texts(g, 40 if is_long else 4, draw)),
    Kind("orders from a frame", lambda g, is_long, draw: forged.frames(g, 12 if is_long else 3, draw)),
    Kind("idle connections", lambda g, is_long, draw: forged.crowds(g, 300 if is_long else 45, draw)),
    Kind("secrets of a crowd", lambda g, is_long, draw: crowd.attempts(g, *((20, 3) if is_long else (2, 1)), draw)),
    Kind("runs with and without an owner", lambda g, is_long, draw: bounds.runs(g, 16 if is_long else 2, draw)),
    Kind(
        "models that would take all memory",
        lambda g, is_long, draw: bounds.memory(g, ((64, 256), (256, 256)), draw),
        has_short=False,
    ),
    Kind("texts that would fill the disk", lambda g, is_long, draw: bounds.disk(g, 6, draw), has_short=False),
)
