"""Displayed numbers are never rounded to something misleading."""

from __future__ import annotations

import pytest

from xformer.formatting import at_most, duration, percent, percent_at_most


@pytest.mark.parametrize(
    ("share", "digits", "text"),
    [
        (1.0, 2, "100%"),
        (0.0, 2, "0%"),
        (0.9861111, 2, "98.61%"),
        (0.9961, 0, "99.6%"),
        (0.99998, 0, "over 99.9%"),
        (0.000001, 2, "under 0.001%"),
        (0.00002, 2, "0.002%"),
        (-1e-16, 0, "0%"),
        (float("nan"), 2, "nan%"),
    ],
)
def test_100_and_0_percent_are_shown_only_for_all_and_none(share: float, digits: int, text: str) -> None:
    assert percent(share, digits) == text


@pytest.mark.parametrize(
    ("value", "digits", "text"), [(0.324, 2, "0.33"), (0.3, 1, "0.3"), (1.9991, 3, "2.000"), (-0.325, 2, "-0.32")]
)
def test_an_upper_bound_is_rounded_up(value: float, digits: int, text: str) -> None:
    assert at_most(value, digits) == text
    assert float(text) >= value


def test_an_upper_bound_in_percent_is_rounded_up() -> None:
    assert [percent_at_most(share, 1) for share in (0.1241, 0.124, 1.000001)] == ["12.5%", "12.4%", "100.0%"]


def test_durations_use_a_fitting_unit() -> None:
    assert [duration(seconds) for seconds in (0.4, 89.6, 90, 5400)] == ["a second", "90 s", "2 min", "1.5 h"]
