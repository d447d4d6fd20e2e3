"""The text on how well estimated effects agree with measured ones."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from pages.compute.background_job import describe_estimates


def shown_text(estimated: Sequence[float], measured: Sequence[float | None]) -> str:
    table = pd.DataFrame({"estimated": estimated, "measured": measured}).astype({"measured": float})
    return describe_estimates(table, "heads")


VALUES = [0.1 * step for step in range(1, 21)]


def test_text_states_how_many_parts_are_not_measured() -> None:
    assert shown_text(VALUES, VALUES).startswith("All 20 heads are measured.")
    missing = shown_text(VALUES, [None, *VALUES[1:]])
    assert missing.startswith("**1 of 20 heads are not measured**; they have only an estimate.")
    assert "Too few are measured" in shown_text(VALUES, [*[None] * 15, *VALUES[15:]])
    assert shown_text(VALUES[:5], VALUES[:5]) == "All 5 heads are measured."


def test_text_warns_of_estimates_near_chance_or_missing_the_largest_effects() -> None:
    good = shown_text(VALUES, VALUES)
    assert "**+1.00**" in good
    best = "The 6 heads with the largest estimates have 100% of the total effect, in absolute values, of the 6 with the largest"
    assert best in good
    assert "Do not" not in good
    assert "**+0.99**" in shown_text(VALUES, [VALUES[1], VALUES[0], *VALUES[2:]])  # not rounded up to perfect
    turned = shown_text(VALUES, VALUES[::-1])
    assert "Do not rely on the estimates here: a random order could agree just as well." in turned
    assert "**−1.00**" in turned
    many = [0.01 * step for step in range(1, 61)]
    missed = shown_text([*[0.0] * 4, *many[4:]], [9.0, 8.0, 7.0, 6.0, *many[4:]])
    assert "Do not choose heads by the estimates here: they miss large effects." in missed
    assert "The 6 heads with the largest estimates have 11% of the total effect" in missed
