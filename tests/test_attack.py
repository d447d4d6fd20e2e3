"""A little of every attack (`make attack` tries all): each is refused with a sentence or has no effect on other visitors."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.attack.ground import Ground
from tests.attack.kinds import KINDS, Kind


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    with Ground() as ground:
        yield ground


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_an_attack_finds_nothing(ground: Ground, kind: Kind) -> None:
    assert list(kind.attempts(ground, kind.short, random.Random(kind.name)))  # the same ones each time
    ground.check()
