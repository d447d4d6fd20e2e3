"""What is measured at once, and the text on parts that are only estimated."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd
import pytest

from pages.shared.background_job import Job, begin_measuring, how_far_to_trust, seconds_left


@dataclass
class Report:
    done: int
    to_do: int = 10

    @property
    def is_final(self) -> bool:
        return self.done == self.to_do


def work(seconds: float, preparation: float = 0.0) -> Iterator[Report]:
    time.sleep(preparation)
    for done in range(11):
        yield Report(done)
        time.sleep(seconds)


def test_quick_work_starts_at_once_and_long_work_waits_for_a_click(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pages.shared.background_job.LONG", 0.5)
    quick: Job[Report] = Job(work(0.01, preparation=0.2), "")
    begin_measuring(quick, 0.0)
    assert quick.is_running
    assert quick.latest == Report(1)
    long: Job[Report] = Job(work(0.1), "")
    begin_measuring(long, 0.0)
    assert long.cancelled
    assert long.latest == Report(1)
    assert seconds_left(long) == pytest.approx(0.9, rel=0.3)
    whole: Job[Report] = Job(work(0.0), "")
    begin_measuring(whole, 5.0)
    assert whole.latest == Report(10)
    assert not whole.is_running


def shown_text(estimated: Sequence[float], measured: Sequence[float | None]) -> str:
    table = pd.DataFrame({"estimated": estimated, "measured": measured}).astype({"measured": float})
    return how_far_to_trust(table, "heads")


VALUES = [0.1 * step for step in range(1, 21)]


def test_it_is_said_what_is_not_measured() -> None:
    assert shown_text(VALUES, VALUES).startswith("All 20 heads are measured.")
    assert shown_text(VALUES, [None, *VALUES[1:]]).startswith("**1 of 20 heads are not measured**; for them")
    assert "Too few are measured" in shown_text(VALUES, [*[None] * 15, *VALUES[15:]])
    assert shown_text(VALUES[:5], VALUES[:5]) == "All 5 heads are measured."


def test_estimates_are_distrusted_where_they_are_no_better_than_chance_or_miss_the_largest() -> None:
    good = shown_text(VALUES, VALUES)
    assert "**+1.00**" in good
    assert "the 6 heads with the largest estimates have 100% of the effect of the 6 with the largest effects" in good
    assert "Do not" not in good
    assert "**+0.99**" in shown_text(VALUES, [VALUES[1], VALUES[0], *VALUES[2:]])  # not rounded up to perfect
    turned = shown_text(VALUES, VALUES[::-1])
    assert "Do not rely on the estimates here: a random order could agree as well." in turned
    assert "**−1.00**" in turned
    many = [0.01 * step for step in range(1, 61)]
    missed = shown_text([*[0.0] * 4, *many[4:]], [9.0, 8.0, 7.0, 6.0, *many[4:]])
    assert "Do not choose heads by the estimates here: they miss large effects." in missed
    assert "the 6 heads with the largest estimates have 11% of the effect" in missed
