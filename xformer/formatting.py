"""Numbers as text, rounded so that the text is never misleading ("100%" only for all), and errors as one sentence."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable
from decimal import ROUND_CEILING, Decimal
from difflib import get_close_matches
from typing import Any

from xformer.errors import InputError

ROUNDING = 1e-9
"""Fractions this close to 0 or 1 differ from them by rounding only: none here counts that many items."""
SUMS = 1e-5
"""Largest excess over 1 of a sum of softmax weights in single precision."""

MAX_NAMES = 20
"""The most names that an error lists."""


def percent(share: float, digits: int = 2) -> str:
    """Format a fraction as a percentage: "98.61%", and "100%" or "0%" only for exactly all or none.

    Fractions that would round to these get one more digit, or become a bound: 0.99998 is "99.998%", 0.000002 is "under 0.001%".
    """
    if min(abs(share), abs(1.0 - share)) < ROUNDING or 1.0 < share < 1.0 + SUMS:
        return f"{round(abs(share)):.0%}"
    for text in (f"{share:.{digits}%}", f"{share:.{digits + 1}%}"):
        if float(text[:-1]) not in (0.0, 100.0):
            return text
    least = Decimal(1).scaleb(-digits - 1)
    return f"under {least}%" if share < 0.5 else f"over {100 - least}%"


def at_most(value: float, digits: int = 2) -> str:
    """Format an upper bound with this many decimals, rounded up so that it stays a bound: 0.324 is "0.33"."""
    return f"{_rounded_up(value, digits):f}"


def percent_at_most(share: float, digits: int = 2) -> str:
    """Format an upper bound of a fraction as a percentage, rounded up: 0.1241 is "12.5%" with one digit."""
    return f"{_rounded_up(min(share, 1.0), digits + 2).scaleb(2):f}%"


def _rounded_up(value: float, digits: int) -> Decimal:
    return Decimal(repr(float(value))).quantize(Decimal(1).scaleb(-digits), ROUND_CEILING)


def duration(seconds: float) -> str:
    """Format seconds as a human-readable duration: "40 s", "5 min", "2.5 h"."""
    if seconds < 1:
        return "a second"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def error_message(error: BaseException, longest: int) -> str:
    """Return the message of any error as one line of at most `longest` characters."""
    return " ".join(str(error).split())[:longest]


def check_option(name: str, value: object, options: Collection[object]) -> None:
    """Raise `InputError` unless an argument has one of the values in `options`."""
    if value not in options:
        raise InputError(f"{name} must be one of {', '.join(map(str, options))}, got {value!r:.100}.")


def check_index(name: str, value: Any, n: int | None = None, *, least: int | None = 0) -> None:
    """Raise `InputError` unless an argument is a whole number from `least` to n − 1; either bound may be None."""
    try:
        index = operator.index(value)
        is_valid = not isinstance(value, bool) and (least is None or least <= index) and (n is None or index < n)
    except TypeError:
        is_valid = False
    if not is_valid:
        whole = "a whole number" if least is None else f"a whole number of at least {least}"
        raise InputError(f"{name} must be {whole if n is None else f'from {least} to {n - 1}'}, got {value!r:.100}.")


def check_indices(name: str, values: Iterable[Any], n: int) -> None:
    """Raise `InputError` unless all values of an argument are whole numbers from 0 to n − 1."""
    for value in values:
        check_index(name, value, n)


def similar_names(name: str, names: Collection[str]) -> str:
    """Return the end of a sentence about an unknown name: up to three similar names, or else the first names."""
    if near := get_close_matches(name, names, n=3, cutoff=0.4):
        return f"did you mean {', '.join(near)}?"
    more = f", … ({len(names)} in all)" if len(names) > MAX_NAMES else ""
    return f"its names are {', '.join([*names][:MAX_NAMES])}{more}."
