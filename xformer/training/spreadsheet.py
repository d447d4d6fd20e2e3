"""Tables as CSV files that a spreadsheet opens as what they say: no cell and no heading becomes a formula.

A name can come from anybody, and "=HYPERLINK(…)" or "=cmd|…" in a CSV file is run by spreadsheets. An apostrophe in front
makes it text: https://owasp.org/www-community/attacks/CSV_Injection.
"""

from __future__ import annotations

import re

import pandas as pd

_FORMULA = re.compile("[=+\\-@\t\r\n＝＋－＠]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(inf|nan)", re.ASCII | re.IGNORECASE)


def to_csv(table: pd.DataFrame) -> bytes:
    """A table as a CSV file, its index left out."""
    safe = table.rename(columns=inert)
    for place in range(len(table.columns)):
        if not pd.api.types.is_numeric_dtype(table.dtypes.iloc[place]):
            safe.isetitem(place, [inert(cell) for cell in table.iloc[:, place]])
    return safe.to_csv(index=False).encode("utf-8", "replace")


def inert(cell: object) -> object:
    """A text that a spreadsheet would run, with an apostrophe in front; a number, a single sign and all else as they are."""
    if not isinstance(cell, str):
        return cell
    text = cell.replace("\r", " ")  # unquoted, it would begin another line
    return f"'{text}" if len(text) > 1 and _FORMULA.match(cell) and not _NUMBER.fullmatch(text) else text
