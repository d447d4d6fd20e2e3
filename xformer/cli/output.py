"""Printing for the command line. Text from users and files cannot send control sequences to the terminal.

Control characters are escaped, square brackets are not markup, and characters that the terminal cannot encode are replaced.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from xformer.config import TaskName
from xformer.errors import InputError
from xformer.formatting import percent
from xformer.task_limits import TASK_LIMITS

if TYPE_CHECKING:
    from xformer.tasks import Score

_IN_ASCII = str.maketrans(
    {"–": "-", "—": "-", "−": "-", "…": "...", "“": '"', "”": '"', "’": "'", "‘": "'", "·": "-", "×": "x", "→": "->",
     "≤": "<=", "≥": ">=", "√": "sqrt ", "▸": ">", "‖": "|"}
)  # fmt: skip
"""ASCII replacements for terminals without Unicode."""


def to_printable(text: object, stream: TextIO | None = None) -> str:
    """Return a text on one line that the stream can encode; unprintable characters are escaped: "\\x1b", "\\n"."""
    shown = "".join(letter if letter.isprintable() else _escaped(letter) for letter in str(text))
    encoding = getattr(stream or sys.stdout, "encoding", None) or "utf-8"
    try:
        shown.encode(encoding)
    except UnicodeEncodeError:
        return shown.translate(_IN_ASCII).encode(encoding, "backslashreplace").decode(encoding)
    return shown


def print_line(text: object = "") -> None:
    """Print one line to stdout."""
    print(to_printable(text))


def print_error(text: object) -> None:
    """Print one line to stderr."""
    print(f"xformer: {to_printable(text, sys.stderr)}", file=sys.stderr)


def print_json(value: Any, *, indent: int | None = None) -> None:
    """Print a JSON value with unprintable characters escaped."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    if any(to_printable(line) != line for line in text.split("\n")):
        text = json.dumps(value, indent=indent).replace("\x7f", "\\u007f")
    print(text)


SCHEMA_VERSION = 1
"""The version of the JSON objects of all commands. It grows when a field is renamed, removed or changes its meaning."""


def print_answer(command: str, **fields: Any) -> None:
    """Print the answer of a command as one JSON object; numbers that are not finite become null."""
    print_json(_finite({"schema_version": SCHEMA_VERSION, "command": command, **fields}))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, apart: bool = False, whole: int = 0) -> None:
    """Print a table as wide as the terminal. `apart` draws lines between rows; the first `whole` columns do not wrap."""
    from rich.console import Console  # imported here because that takes a tenth of a second
    from rich.table import Table
    from rich.text import Text

    table = Table(show_lines=apart)
    for number, column in enumerate(columns):
        # not "ellipsis", which is not ASCII
        table.add_column(Text(to_printable(column)), no_wrap=number < whole, overflow="fold")
    for row in rows:
        table.add_row(*(Text(to_printable(cell)) for cell in row))
    Console(markup=False, highlight=False, emoji=False).print(table)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape", "surrogatepass").decode("ascii")


_MAX_SAMPLES = 10_000_000


def checked_page(wanted: str, what: str) -> Path:
    """Return the path of the page to write. Raises `InputError` for a folder or another suffix. `what` names the option."""
    out = Path(wanted)
    if out.suffix.lower() not in (".html", ".htm") or wanted.endswith((os.sep, "/")) or out.is_dir():
        raise InputError(f"{what} must name a file ending in .html, got {wanted!r:.200}; for example view.html.")
    return out


def check_samples(option: str, value: int, least: int) -> None:
    """Raise `InputError` for an invalid number of samples."""
    if not least <= value <= _MAX_SAMPLES:
        raise InputError(f"{option} must be from {least} to {_MAX_SAMPLES:,}, got {value}; for example 10000.")


def check_seed(value: int) -> None:
    """Raise `InputError` for an invalid seed."""
    if not 0 <= value < 2**63:
        raise InputError(f"--seed must be from 0 to 2^63 - 1, got {value}; for example 1.")


def lengths_in(text: str) -> range:
    """Parse "3-60" or "20" as a range of lengths. Raises `InputError` for other text."""
    found = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", text, re.ASCII)
    first, last = (0, 0) if found is None else (int(found[1]), int(found[2] or found[1]))
    if not 1 <= first <= last:
        raise InputError(f"--lengths must be a length or a range, each at least 1, got {text!r:.40}; for example 3-60.")
    return range(first, last + 1)


def score_of(figures: Mapping[str, Any]) -> Score:
    """Return a `Score` with these values."""
    from xformer.tasks import Score  # imported here because it imports torch

    return Score(**{name: figures[name] for name in ("loss", "token_accuracy", "exact_match", "samples")})


def main_metric(score: Score, task: TaskName) -> str:
    """Return the main metric of a task's score as text."""
    if TASK_LIMITS[task].is_text:
        return f"held-out loss {score.loss:.4f} nats, {score.bits:.3f} bits per character"
    return f"{percent(score.exact_match)} exact match"


def figure(name: str, value: float) -> str:
    """Format one value of a score."""
    if name == "seed":
        return str(value)
    if name in ("token_accuracy", "exact_match"):
        return percent(value, 4)
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
