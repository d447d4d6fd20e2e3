"""Whether players can get the same input: they read the same tokens, and it is not too long for any of them."""

from __future__ import annotations

from collections.abc import Sequence

from pages.compare.choice import LETTERS, Choice
from xformer.errors import InputError
from xformer.interventions import changed_source
from xformer.tasks import Task


def why_not_together(choices: Sequence[Choice]) -> str | None:
    """Why players cannot get the same input, as one sentence; None where they can."""
    first, *_ = tasks = [choice.subject.task for choice in choices]
    for letter, task in zip(LETTERS, tasks, strict=False):
        if symbols_of(task) != symbols_of(first):
            return (
                f"{LETTERS[0]} reads {_described(first)} and {letter} reads {_described(task)}, so no input "
                "suits both; choose models that read the same tokens."
            )
    return None


def check_input(choices: Sequence[Choice], source: tuple[int, ...]) -> None:
    """Raise `InputError` when a player cannot read an input."""
    for letter, choice in zip(LETTERS, choices, strict=False):
        read = changed_source(choice.interventions(), source)
        try:
            choice.subject.frame(read)
        except InputError as error:
            raise InputError(str(error) if len(set(choices)) == 1 else f"{letter} cannot read this. {error}") from None


def symbols_of(task: Task) -> tuple[str, ...]:
    """What inputs of a task are written in."""
    return task.vocabulary.labels[1 : 1 + task.vocabulary.symbols]


def _described(task: Task) -> str:
    symbols = symbols_of(task)
    return f"{len(symbols)} tokens of the task {task.config.name} ({symbols[0]} to {symbols[-1]})"
