"""The curve of a run as its card carries it: thinned evenly until it fits into the header of a file."""

from __future__ import annotations

import json
from typing import Any

from xformer.files import MAX_HEADER

ROWS = 500
"""The most rows: more than a screen has pixels for."""
SHARE = 0.7
"""How much of a header a curve may take."""


def fitting(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each so-manieth row, counted from the last, which is always among them."""
    every = max(1, -(-len(rows) // ROWS))
    # A card is text within the text of a header, in which each quotation mark takes a character more.
    while len(rows) > every and len(json.dumps(json.dumps(rows[::-every]))) > SHARE * MAX_HEADER:
        every *= 2
    return rows[::-every][::-1]
