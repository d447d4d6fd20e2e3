"""How long can it go: the share of answers that a model gets right at each length, also beyond those it was trained on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import pandas as pd

from xformer.analysis.counting_agreement import wilson
from xformer.errors import UnavailableError
from xformer.reading import Reading
from xformer.subjects import own_task_model
from xformer.training.by_length import lengths_of, scores_by_length

SAMPLES = 200
"""Inputs of each length."""
HIGH = 0.99
"""A length counts as mastered from such a share of right answers on."""


@dataclass(frozen=True)
class LengthsDone:
    """The lengths that have been asked so far."""

    rows: list[dict[str, Any]]
    total: int
    done: int

    @property
    def is_final(self) -> bool:
        return self.done == self.total

    def frame(self) -> pd.DataFrame:
        """See `accuracy_by_length`."""
        return pd.DataFrame(self.rows)


def accuracy_by_length(
    reading: Reading, *, lengths: Sequence[int] | None = None, samples: int = SAMPLES, seed: int = 1
) -> pd.DataFrame:
    """One row a length: exact_match, the ends low and high of its 95 % interval (Wilson 1927), token_accuracy, samples, and
    whether it was trained on. Of the reading only its model and task count; inputs are fresh, drawn from `seed`.

    Raises `UnavailableError` for a model without a task, or whose task has one length alone, `InputError` for a length that is
    out of reach.
    """
    *_, last = asking_lengths(reading, lengths=lengths, samples=samples, seed=seed)
    return last.frame()


def asking_lengths(
    reading: Reading, *, lengths: Sequence[int] | None = None, samples: int = SAMPLES, seed: int = 1
) -> Iterator[LengthsDone]:
    """The same with a report every length."""
    own = own_task_model(reading.subject)
    model, task = own.model, own.task
    chosen = chosen_lengths(lengths_of(model.config, task), lengths)
    rows: list[dict[str, float]] = []
    for length, found in scores_by_length(model, task, chosen, samples=samples, seed=seed):
        low, high = wilson(round(found.exact_match * found.samples), found.samples)
        trained = task.config.min_len <= length <= task.config.max_len
        rows.append(
            {
                "length": length, "exact_match": found.exact_match, "low": low, "high": high,
                "token_accuracy": found.token_accuracy, "samples": found.samples, "trained": trained,
            }
        )  # fmt: skip
        yield LengthsDone(list(rows), len(chosen), len(rows))


def chosen_lengths(every: Sequence[int], lengths: Sequence[int] | None) -> Sequence[int]:
    """The lengths that are asked for, of `every` one there is. Raises `UnavailableError` where there is none."""
    if not every:
        raise UnavailableError("The inputs of this task all have one length, so there is none to go beyond.")
    return every if lengths is None else list(lengths)


def has_mastered_its_training(table: pd.DataFrame) -> bool:
    """Whether every length that it was trained on is mastered, and there are some in the table."""
    trained = [share for _, share, was_trained in _cells(table) if was_trained]
    return bool(trained) and min(trained) >= HIGH


def how_far(table: pd.DataFrame) -> int | None:
    """Up to which length every one beyond the training is mastered, in a table of all lengths from the trained ones on; None
    where the first of them is not."""
    cells = sorted(_cells(table))
    longest = max((length for length, _, was_trained in cells if was_trained), default=0)
    beyond = takewhile(lambda cell: cell[1] >= HIGH, (cell for cell in cells if cell[0] > longest))
    return max((length for length, *_ in beyond), default=None)


def _cells(table: pd.DataFrame) -> list[tuple[int, float, bool]]:
    return list(zip(table["length"].tolist(), table["exact_match"].tolist(), table["trained"].tolist(), strict=True))
