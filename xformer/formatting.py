"""Numbers as words on a screen, a card or a line: never rounder than they are."""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal

MOST_DIGITS = 12
ROUNDING = 1e-9
"""So near to all or none is rounding: no share here is counted of so many."""
SUMS = 1e-5
"""By so much the weights of a softmax in single precision may add up to more than all."""


def percent(share: float, digits: int = 2) -> str:
    """A share as a percentage: "98.61%", "100%" and "0%" for all and none alone.

    What would be rounded to one of these gets as many digits more as it takes: 0.99998 is "99.998%", 0.00002 is "0.002%".
    """
    if min(abs(share), abs(1.0 - share)) < ROUNDING or 1.0 < share < 1.0 + SUMS:
        return f"{round(abs(share)):.0%}"
    for more in range(digits, MOST_DIGITS):
        text = f"{share:.{more}%}"
        if float(text[:-1]) not in (0.0, 100.0):
            return text
    return f"{share:.{MOST_DIGITS}%}"


def at_most(value: float, digits: int = 2) -> str:
    """An upper bound with so many digits after the point, rounded up so that it holds: 0.324 is "0.33"."""
    return f"{_rounded_up(value, digits):f}"


def percent_at_most(share: float, digits: int = 2) -> str:
    """An upper bound of a share as a percentage, rounded up so that it holds: 0.1241 is "12.5%" with one digit."""
    return f"{_rounded_up(min(share, 1.0), digits + 2).scaleb(2):f}%"


def _rounded_up(value: float, digits: int) -> Decimal:
    return Decimal(repr(float(value))).quantize(Decimal(1).scaleb(-digits), ROUND_CEILING)


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 1:
        return "a second"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
