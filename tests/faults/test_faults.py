"""A little of every fault of the campaign (`make faults` tries all): nothing is lost, and the run ends in the same bits."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.faults.ground import NotPossibleError
from tests.faults.kinds import KINDS, Kind
from tests.faults.zygote import Zygote


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.short], ids=lambda kind: kind.name)
def test_a_run_survives(zygote: Zygote, kind: Kind) -> None:
    try:
        trials = list(kind.trials(zygote, kind.short, random.Random(kind.name)))  # the same ones each time
        assert trials
        for trial in trials:
            trial.run()
    except NotPossibleError as reason:
        pytest.skip(str(reason))
