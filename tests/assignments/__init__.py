"""Tests of the assignments: `wrong_solutions.txt` and `right_variants.txt` are written as students write."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
PLAIN = (FOLDER / "solutions" / "plain.py").read_text()
MARK = "# <-"


@dataclass(frozen=True)
class Variant:
    """A solution of which some functions are replaced.

    Attributes:
        task: The task.
        name: The cause for a wrong solution, a description for a right one.
        text: The file.
        lines: The numbers of the marked lines.
    """

    task: str
    name: str
    text: str
    lines: tuple[int, ...]


def variants(file: str) -> list[Variant]:
    """The variants in a file: after `### task name`, functions and classes that replace those of the plain solution."""
    found = []
    for block in re.split(r"^### ", (FOLDER / file).read_text(), flags=re.MULTILINE)[1:]:
        head, _, code = block.partition("\n")
        task, _, name = head.partition(" ")
        text = f"{PLAIN}\n\n{code}"
        lines = [number for number, line in enumerate(text.split("\n"), 1) if line.endswith(MARK)]
        found.append(Variant(task, name, text, tuple(lines)))
    return found
