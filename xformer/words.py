"""Numbers as words on a screen, a card or a line: never rounder than they are."""

from __future__ import annotations

MOST_DIGITS = 12


def percent(share: float, digits: int = 2) -> str:
    """A share as a percentage: "98.61%", "100%" and "0%" for exactly all and none alone.

    What would be rounded to one of these gets as many digits more as it takes: 0.99998 is "99.998%", 0.00002 is "0.002%".
    """
    if share in (0.0, 1.0):
        return f"{share:.0%}"
    for more in range(digits, MOST_DIGITS):
        text = f"{share:.{more}%}"
        if float(text[:-1]) not in (0.0, 100.0):
            return text
    return f"{share:.{MOST_DIGITS}%}"
