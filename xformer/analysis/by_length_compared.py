"""How long several models can go on: right answers at each length, for every contender on the same inputs.

analysis.lengths_compared([Contender.load("checkpoints/reverse", "A"), Contender.load("checkpoints/reverse-long", "B")])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from xformer.analysis.by_length import LengthsDone, chosen_lengths
from xformer.analysis.comparison import Contender, check_names, inputs_for
from xformer.analysis.counting_agreement import accuracy, agreement
from xformer.errors import InputError
from xformer.training.by_length import lengths_of, of_length

SAMPLES = 100
"""Inputs of each length."""


def lengths_of_all(contenders: Sequence[Contender]) -> tuple[int, ...]:
    """The lengths of input that every contender reads, in order. Raises `InputError` where one was made for other tokens."""
    task = contenders[0].task
    each = [set(lengths_of(one.model.config, inputs_for(one, task))) for one in contenders]
    return tuple(sorted(set.intersection(*each)))


def lengths_compared(
    contenders: Sequence[Contender], *, lengths: Sequence[int] | None = None, samples: int = SAMPLES, seed: int = 0
) -> pd.DataFrame:
    """A row for each contender and length: player, length, exact_match with the ends low and high of its 95 % interval (Wilson
    1927), token_accuracy, samples, and whether its own training had inputs of that length.

    All get the same fresh inputs, under their own changes. Raises `UnavailableError` for a task of one length alone, and
    `InputError` for contenders of different tasks or a length that one of them cannot read.
    """
    *_, last = comparing_lengths(contenders, lengths=lengths, samples=samples, seed=seed)
    return last.frame()


def comparing_lengths(
    contenders: Sequence[Contender], *, lengths: Sequence[int] | None = None, samples: int = SAMPLES, seed: int = 0
) -> Iterator[LengthsDone]:
    """The same with a report every length."""
    check_names(contenders)
    every = lengths_of_all(contenders)
    chosen = chosen_lengths(every, lengths)
    rows: list[dict[str, Any]] = []
    for done, length in enumerate(chosen, start=1):
        if length not in every:
            raise InputError(f"These players all read lengths from {every[0]} to {every[-1]}, got {length}.")
        counted = agreement([_asked(one, length) for one in contenders], samples=samples, seed=seed)
        shares = accuracy(counted).set_index(["player", "measure"])
        for one in contenders:
            exact = shares.loc[(one.name, "exact")]
            own = one.task.config
            rows.append(
                {
                    "player": one.name, "length": length, "exact_match": exact["share"], "low": exact["low"],
                    "high": exact["high"], "token_accuracy": shares.loc[(one.name, "token"), "share"], "samples": samples,
                    "trained": own.min_len <= length <= own.max_len,
                }
            )  # fmt: skip
        yield LengthsDone(list(rows), len(chosen), done)


def _asked(contender: Contender, length: int) -> Contender:
    """The same contender, whose task has inputs of one length."""
    return replace(contender, subject=replace(contender.subject, task=of_length(contender.task, length)))
