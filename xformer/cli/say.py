"""The one way in which the command line says anything: what a person or a file wrote cannot speak to the terminal through it.

Escape sequences would move the cursor, change the title or colour all that follows; square brackets would be read as rich's
markup; a terminal that knows ASCII alone would end the program. Here each is shown as what it is.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

IN_ASCII = str.maketrans(
    {"–": "-", "—": "-", "−": "-", "…": "...", "“": '"', "”": '"', "’": "'", "‘": "'", "·": "-", "×": "x", "→": "->",
     "≤": "<=", "≥": ">=", "√": "sqrt ", "▸": ">", "‖": "|"}
)  # fmt: skip
"""What stands for the marks of our own sentences where a terminal has none of them."""


def fit(text: object, stream: TextIO | None = None) -> str:
    """A text on one line as a stream can carry it: what cannot be printed is written out, as "\\x1b" or "\\n"."""
    shown = "".join(letter if letter.isprintable() else _written_out(letter) for letter in str(text))
    encoding = getattr(stream or sys.stdout, "encoding", None) or "utf-8"
    try:
        shown.encode(encoding)
    except UnicodeEncodeError:
        return shown.translate(IN_ASCII).encode(encoding, "backslashreplace").decode(encoding)
    return shown


def say(text: object = "") -> None:
    """One line on stdout."""
    print(fit(text))


def complain(text: object) -> None:
    """One line on stderr."""
    print(f"xformer: {fit(text, sys.stderr)}", file=sys.stderr)


def say_json(value: Any, *, indent: int | None = None) -> None:
    """A JSON value, in which what cannot be printed is written as JSON writes it."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(re.sub(r"[^\n]", lambda found: _in_json(found[0], encoding), text))


def say_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, apart: bool = False, whole: int = 0) -> None:
    """A table as wide as the terminal; `apart` draws a line between rows, the first `whole` columns are never broken."""
    from rich.console import Console  # only now: a tenth of a second
    from rich.table import Table
    from rich.text import Text

    table = Table(show_lines=apart)
    for number, column in enumerate(columns):
        table.add_column(Text(fit(column)), no_wrap=number < whole, overflow="fold")  # an ellipsis is no ASCII
    for row in rows:
        table.add_row(*(Text(fit(cell)) for cell in row))
    Console(markup=False, highlight=False, emoji=False).print(table)


def _written_out(letter: str) -> str:
    return letter.encode("unicode_escape", "surrogatepass").decode("ascii")


def _in_json(letter: str, encoding: str) -> str:
    if letter.isprintable():
        try:
            letter.encode(encoding)
        except UnicodeEncodeError:
            return json.dumps(letter)[1:-1]
        return letter
    return json.dumps(letter)[1:-1] if letter != "\x7f" else "\\u007f"
