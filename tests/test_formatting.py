"""A share on a screen is never rounder than it was measured."""

from __future__ import annotations

import pytest

from xformer.formatting import at_most, percent, percent_at_most


@pytest.mark.parametrize(
    ("share", "digits", "text"),
    [
        (1.0, 2, "100%"),
        (0.0, 2, "0%"),
        (0.9861111, 2, "98.61%"),
        (0.9861111, 0, "99%"),
        (0.99998, 2, "99.998%"),
        (0.99998, 0, "99.998%"),
        (0.999996, 1, "99.9996%"),
        (0.00002, 2, "0.002%"),
        (0.004, 0, "0.4%"),
        (0.5, 0, "50%"),
        (1.0000001, 1, "100%"),
        (1.0 - 1e-16, 1, "100%"),
        (1e-16, 1, "0%"),
        (-1e-16, 0, "0%"),
        (0.00001, 0, "0.001%"),
        (float("nan"), 2, "nan%"),
    ],
)
def test_all_and_none_are_said_of_all_and_none_alone(share: float, digits: int, text: str) -> None:
    assert percent(share, digits) == text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.324, 2, "0.33"),
        (0.32, 2, "0.32"),
        (0.3, 1, "0.3"),
        (0.0, 2, "0.00"),
        (1e-7, 3, "0.001"),
        (1.9991, 3, "2.000"),
        (12.01, 0, "13"),
        (-0.325, 2, "-0.32"),
    ],
)
def test_an_upper_bound_is_rounded_up(value: float, digits: int, text: str) -> None:
    assert at_most(value, digits) == text
    assert float(text) >= value


@pytest.mark.parametrize(
    ("share", "digits", "text"),
    [(0.1241, 1, "12.5%"), (0.124, 1, "12.4%"), (0.004, 0, "1%"), (0.07, 0, "7%"), (1.000001, 1, "100.0%")],
)
def test_an_upper_bound_in_percent_is_rounded_up(share: float, digits: int, text: str) -> None:
    assert percent_at_most(share, digits) == text
