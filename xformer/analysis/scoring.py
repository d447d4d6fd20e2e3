"""Accuracy, agreement and confusions of models over many sampled inputs, overall and by input length.

Intervals are 95% Wilson intervals (1927, JASA 22:209–212).

Each answer token is the likeliest one given the right answer so far and nothing after it, so exact match equals that of greedy
decoding, even if a change lets the model see ahead. The trials of an interval are assumed to be independent. Inputs are, but
the tokens of one answer are not: the interval of a token accuracy over whole answers (`accuracy` overall and by length,
`same_answers`) is somewhat too narrow.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, takewhile
from statistics import NormalDist
from typing import Any, Literal

import pandas as pd
import torch
from jaxtyping import Bool
from torch import Tensor

from xformer.adapters import own_task_model
from xformer.analysis.comparison import (
    NO_TOKEN,
    Predictions,
    Variant,
    check_names,
    inputs_for,
    joint_labels,
    predictions,
)
from xformer.analysis.tables import TableSoFar
from xformer.arguments import Count, Seed
from xformer.errors import InputError, UnavailableError
from xformer.formatting import check_option
from xformer.reading import Reading
from xformer.tasks import Task
from xformer.training.evaluate import lengths_of, of_length, scores_by_length

CHUNK = 500
"""Inputs between two progress reports; equal to the batch size of `evaluate`, so that the results agree."""

Cell = tuple[Any, ...]
"""A counter's key: (kind, model, measure, where), with kind "all", "position", "length" or "pair", or (model, right, predicted)
as indices of the joint labels."""


def wilson(hits: int, trials: int) -> tuple[float, float]:
    """Return the ends of the 95% interval; 0 and 1 without trials. Raises `ValueError` for more hits than trials."""
    if not 0 <= hits <= trials:
        raise ValueError(f"There are {trials} trials, got {hits} hits.")
    if trials == 0:
        return 0.0, 1.0
    z, share = NormalDist().inv_cdf(0.975), hits / trials
    middle = share + z**2 / (2 * trials)
    reach = z * math.sqrt(share * (1 - share) / trials + z**2 / (4 * trials**2))
    low, high = ((middle + end) / (1 + z**2 / trials) for end in (-reach, reach))
    return (low if hits else 0.0), (high if hits < trials else 1.0)


@dataclass(frozen=True, eq=False)
class Agreement:
    """The counts so far. Measures: "token" counts single right tokens, "exact" whole right answers."""

    done: int
    samples: int
    models: tuple[str, ...]
    labels: tuple[str, ...]
    hits: dict[Cell, int]
    trials: dict[Cell, int]
    confusions: dict[Cell, int]
    code: str = ""
    """The call that repeats the count; its variants may have no code."""

    @property
    def is_final(self) -> bool:
        return self.done == self.samples


def accuracy(counted: Agreement, by: Literal["all", "position", "length"] = "all") -> pd.DataFrame:
    """Compute how often each model is right, with 95% intervals.

    Args:
        counted: The counted answers, from `agreement`.
        by: "all" for all answers; "position" for each token of the answer, from 0; "length" for each length of the right
            answer, without its end token.

    Returns:
        A row per model and measure (and position or length, in a column of that name): model, measure ("token", or "exact":
        the whole answer, by position the answer up to there), share, low and high (ends of its interval), hits and trials.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", edits="ablate:decoder.0.attn.0"),
        ... ]
        >>> counted = xformer.analysis.agreement(variants, samples=50)
        >>> table = xformer.analysis.accuracy(counted)
        >>> list(table.columns)
        ['model', 'measure', 'share', 'low', 'high', 'hits', 'trials']
    """
    check_option("by", by, ("all", "position", "length"))
    table = _table(counted, by, by)
    return table.drop(columns="all") if by == "all" else table


def same_answers(counted: Agreement) -> pd.DataFrame:
    """Compute how often two models predict the same, with 95% intervals.

    Args:
        counted: The counted answers, from `agreement`.

    Returns:
        A row per pair of models and measure: one, other, measure ("token" or "exact"), share, low and high (ends of its
        interval), hits and trials.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", edits="ablate:decoder.0.attn.0"),
        ... ]
        >>> counted = xformer.analysis.agreement(variants, samples=50)
        >>> table = xformer.analysis.same_answers(counted)
        >>> list(table.columns)
        ['one', 'other', 'measure', 'share', 'low', 'high', 'hits', 'trials']
    """
    return _table(counted, "pair", "other").rename(columns={"model": "one"})


def confusion(counted: Agreement, model: str | None = None) -> pd.DataFrame:
    """Count which tokens were predicted for each right token.

    Args:
        counted: The counted answers, from `agreement`.
        model: The name of one variant; by default all of them.

    Returns:
        A row per model and pair of tokens that occurred: model, right, predicted, count and share (of the right token's
        occurrences).

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", edits="ablate:decoder.0.attn.0"),
        ... ]
        >>> counted = xformer.analysis.agreement(variants, samples=50)
        >>> table = xformer.analysis.confusion(counted, "ablated")
        >>> list(table.columns)
        ['model', 'right', 'predicted', 'count', 'share']
    """
    check_option("model", model, (None, *counted.models))
    cells = sorted(counted.confusions.items(), key=lambda item: (counted.models.index(item[0][0]), *item[0][1:]))
    rows = [
        (name, counted.labels[right], counted.labels[predicted], count)
        for (name, right, predicted), count in cells
        if model in (None, name)
    ]
    table = pd.DataFrame(rows, columns=["model", "right", "predicted", "count"])
    return table.assign(share=table["count"] / table.groupby(["model", "right"])["count"].transform("sum"))


def _table(counted: Agreement, kind: str, group: str) -> pd.DataFrame:
    """Tabulate the counts of one kind as shares with their intervals, models in the given order."""
    keys = sorted((key for key in counted.trials if key[0] == kind), key=lambda key: counted.models.index(key[1]))
    rows = []
    for key in keys:
        _, model, measure, where = key
        hits, trials = counted.hits[key], counted.trials[key]
        rows.append((model, where, measure, hits / trials, *wilson(hits, trials), hits, trials))
    return pd.DataFrame(rows, columns=["model", group, "measure", "share", "low", "high", "hits", "trials"])


def agreement(variants: Sequence[Variant], *, samples: Count = 5000, seed: Seed = 0) -> Agreement:
    """Count right and equal answers of several models over fresh inputs of the first one's task.

    Args:
        variants: The variants of models to compare.
        samples: The number of inputs.
        seed: The seed of the sampled inputs.

    Returns:
        The counts, for `accuracy`, `same_answers` and `confusion`.

    Raises:
        InputError: If variants have equal names or different tokens.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", edits="ablate:decoder.0.attn.0"),
        ... ]
        >>> counted = xformer.analysis.agreement(variants, samples=50)
        >>> table = xformer.analysis.same_answers(counted)
    """
    *_, last = count_agreement(variants, samples=samples, seed=seed)
    return last


def count_agreement(variants: Sequence[Variant], *, samples: int = 5000, seed: int = 0) -> Iterator[Agreement]:
    """Count as `agreement` does, with a report every 500 inputs, or more often for long ones.

    Closing the iterator stops the count.
    """
    check_names(variants)
    if samples < 1:
        raise InputError(f"At least one input must be sampled, got {samples}; for example 5000.")
    names, labels = tuple(variant.name for variant in variants), joint_labels(variants)
    codes = ", ".join(variant.code for variant in variants)
    end = labels.index("end") if "end" in labels else NO_TOKEN
    hits: Counter[Cell] = Counter()
    trials: Counter[Cell] = Counter()
    confusions: Counter[Cell] = Counter()
    for done, chunk in predictions(variants, samples, seed=seed, chunk=CHUNK):
        outcomes = [_pair_outcomes(*pair) for pair in combinations(zip(names, chunk, strict=True), 2)]
        outcomes += [_outcomes(name, one, end) for name, one in zip(names, chunk, strict=True)]
        for key, outcome in chain.from_iterable(outcomes):
            if outcome.numel():
                hits[key] += int(torch.count_nonzero(outcome))
                trials[key] += outcome.numel()
        for name, one in zip(names, chunk, strict=True):
            pairs = (one.right * len(labels) + one.predicted)[one.right != NO_TOKEN]
            confusions.update((name, *divmod(pair, len(labels))) for pair in pairs.tolist())
        code = f"xformer.analysis.agreement([{codes}], samples={done}, seed={seed})"
        yield Agreement(done, samples, names, labels, dict(hits), dict(trials), dict(confusions), code)


Outcomes = Iterator[tuple[Cell, Bool[Tensor, " trial"]]]


def _outcomes(name: str, one: Predictions, end: int) -> Outcomes:
    """Yield whether one variant is right in each trial: over all, by position and by length."""
    there = one.right != NO_TOKEN  # [input, place]
    right = (one.predicted == one.right) & there
    exact = (right | ~there).all(dim=1)  # [input]
    yield ("all", name, "token", 0), right[there]
    yield ("all", name, "exact", 0), exact
    so_far = (right | ~there).cummin(dim=1).values
    for place in range(there.shape[1]):
        cells = there[:, place]
        yield ("position", name, "token", place), right[cells, place]
        yield ("position", name, "exact", place), so_far[cells, place]
    length = (there & (one.right != end)).sum(dim=1)  # [input]
    for n in length.unique().tolist():
        rows = length == n
        yield ("length", name, "token", n), right[rows][there[rows]]
        yield ("length", name, "exact", n), exact[rows]


def _pair_outcomes(first: tuple[str, Predictions], second: tuple[str, Predictions]) -> Outcomes:
    """Yield whether two named models predict the same, over the tokens that both predict."""
    (name, one), (other_name, other) = first, second
    width = min(one.predicted.shape[1], other.predicted.shape[1])
    a, b = one.predicted[:, :width], other.predicted[:, :width]
    there = (a != NO_TOKEN) & (b != NO_TOKEN)  # [input, place]
    yield ("pair", name, "token", other_name), (a == b)[there]
    yield ("pair", name, "exact", other_name), ((a == b) | ~there).all(dim=1)


SAMPLES = 200
"""Inputs per length."""

HIGH = 0.99
"""The share of right answers from which a length counts as mastered."""


def accuracy_by_length(
    reading: Reading, *, lengths: Sequence[int] | None = None, samples: Count = SAMPLES, seed: Seed = 1
) -> pd.DataFrame:
    """Measure a model's accuracy on fresh inputs of each length.

    Args:
        reading: Any run of a model with a task.
        lengths: The input lengths to test; by default all that the model can read.
        samples: The number of inputs per length.
        seed: The seed of the sampled inputs.

    Returns:
        A row per length: length, exact_match (share of whole answers right), low and high (ends of its 95% Wilson interval),
        token_accuracy, samples and trained (whether the training had inputs of that length).

    Raises:
        UnavailableError: If the model has no task, or its task has only one length.
        InputError: If the model cannot read a length.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.accuracy_by_length(reading, lengths=[3, 5], samples=20)
        >>> list(table.columns)
        ['length', 'exact_match', 'low', 'high', 'token_accuracy', 'samples', 'trained']
    """
    *_, last = iter_accuracy_by_length(reading, lengths=lengths, samples=samples, seed=seed)
    return last.table


def iter_accuracy_by_length(
    reading: Reading, *, lengths: Sequence[int] | None = None, samples: int = SAMPLES, seed: int = 1
) -> Iterator[TableSoFar]:
    """Compute `accuracy_by_length` with a report after each length."""
    own = own_task_model(reading.adapter)
    chosen = _lengths_to_test(lengths_of(own.model.config, own.task), lengths)
    rows = []
    for length, found in scores_by_length(own.model, own.task, chosen, samples=samples, seed=seed):
        interval = wilson(round(found.exact_match * found.samples), found.samples)
        rows.append(_row(own.task, length, found.exact_match, interval, found.token_accuracy, found.samples))
        yield TableSoFar(pd.DataFrame(rows, columns=[*_OF_LENGTH]), len(rows), len(chosen))


_OF_LENGTH = ("length", "exact_match", "low", "high", "token_accuracy", "samples", "trained")


def _row(
    task: Task, length: int, exact: float, interval: tuple[float, float], token_accuracy: float, samples: int
) -> tuple[Any, ...]:
    """Return the values of the columns `_OF_LENGTH`."""
    trained = task.config.min_len <= length <= task.config.max_len
    return (length, exact, *interval, token_accuracy, samples, trained)


def _lengths_to_test(every: Sequence[int], lengths: Sequence[int] | None) -> Sequence[int]:
    """Return the `lengths`, or every length. Raises `UnavailableError` for a task with only one length."""
    if not every:
        raise UnavailableError("All inputs of this task have the same length, so there is no other one to test.")
    return every if lengths is None else lengths


def has_mastered_its_training(table: pd.DataFrame) -> bool:
    """Return whether the table has lengths that occurred in training, and all of them are mastered."""
    trained = table["exact_match"][table["trained"]].tolist()
    return bool(trained) and min(trained) >= HIGH


def longest_mastered_length(table: pd.DataFrame) -> int | None:
    """Return the length up to which all lengths beyond the training are mastered; None if the first of them is not.

    The table must have all lengths from the trained ones on.
    """
    cells = sorted(table[["length", "exact_match", "trained"]].itertuples(index=False, name=None))
    longest = max((length for length, _, trained in cells if trained), default=0)
    mastered = takewhile(lambda cell: cell[1] >= HIGH, (cell for cell in cells if cell[0] > longest))
    return max((length for length, *_ in mastered), default=None)


COMPARED_SAMPLES = 100
"""Inputs per length when several models are compared."""


def lengths_compared(
    variants: Sequence[Variant],
    *,
    lengths: Sequence[int] | None = None,
    samples: Count = COMPARED_SAMPLES,
    seed: Seed = 0,
) -> pd.DataFrame:
    """Measure the accuracy of several models on the same fresh inputs of each length, with their own changes applied.

    Args:
        variants: The variants of models to compare.
        lengths: The input lengths to test; by default all that every model can read.
        samples: The number of inputs per length.
        seed: The seed of the sampled inputs.

    Returns:
        A row per model and length: model, length, exact_match (share of whole answers right), low and high (ends of its 95%
        Wilson interval), token_accuracy, samples and trained (whether the model's training had inputs of that length).

    Raises:
        UnavailableError: If the task has only one length.
        InputError: If the variants have different tasks, or one of them cannot read a length.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load(f"checkpoints/{name}", name) for name in ("reverse", "reverse-mirror")
        ... ]
        >>> table = xformer.analysis.lengths_compared(variants, lengths=[3, 5], samples=20)
        >>> list(table.columns)
        ['model', 'length', 'exact_match', 'low', 'high', 'token_accuracy', 'samples', 'trained']
    """
    *_, last = iter_lengths_compared(variants, lengths=lengths, samples=samples, seed=seed)
    return last.table


def iter_lengths_compared(
    variants: Sequence[Variant], *, lengths: Sequence[int] | None = None, samples: int = COMPARED_SAMPLES, seed: int = 0
) -> Iterator[TableSoFar]:
    """Compute `lengths_compared` with a report after each length."""
    check_names(variants)
    each = [set(lengths_of(one.model.config, inputs_for(one, variants[0].task))) for one in variants]
    every = sorted(set.intersection(*each))
    chosen = _lengths_to_test(every, lengths)
    rows = []
    for done, length in enumerate(chosen, start=1):
        if length not in every:
            raise InputError(f"All of these models read lengths from {every[0]} to {every[-1]}, got {length}.")
        of_one = [replace(one, adapter=replace(one.adapter, task=of_length(one.task, length))) for one in variants]
        shares = accuracy(agreement(of_one, samples=samples, seed=seed)).set_index(["model", "measure"])
        for one in variants:
            exact, token = shares.loc[(one.name, "exact")], shares.loc[(one.name, "token")]
            row = _row(one.task, length, exact["share"], (exact["low"], exact["high"]), token["share"], samples)
            rows.append((one.name, *row))
        yield TableSoFar(pd.DataFrame(rows, columns=["model", *_OF_LENGTH]), done, len(chosen))
