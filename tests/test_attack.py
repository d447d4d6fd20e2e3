"""A little of every attack (`make attack` tries more): each is refused with a sentence or has no effect on other visitors."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.attack import classroom, damaged, strangers


@pytest.fixture(scope="module")
def ground() -> Iterator[strangers.Ground]:
    with strangers.served() as ground:
        yield ground


@pytest.mark.parametrize("kind", damaged.KINDS, ids=lambda kind: kind.name)
def test_a_damaged_file_is_refused_with_a_sentence_or_read(kind: damaged.Kind) -> None:
    assert list(kind.trials(kind.short, random.Random(kind.name)))  # the same ones each time


@pytest.mark.parametrize("number", range(4), ids=["students", "origins", "large", "locked"])
def test_hostile_websockets_stop_nobody(ground: strangers.Ground, number: int) -> None:
    kind = classroom.kinds(ground)[number]
    assert list(kind.trials(kind.short, random.Random(kind.name)))


@pytest.mark.parametrize("number", range(3), ids=["links", "forged values", "crowd"])
def test_strangers_break_and_see_nothing(ground: strangers.Ground, number: int) -> None:
    kind = strangers.kinds(ground)[number]
    assert list(kind.trials(kind.short, random.Random(kind.name)))
