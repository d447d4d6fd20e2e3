"""Accuracy, agreement and confusions of models over many sampled inputs, with 95 % intervals, also by length of the input.

The intervals are Wilson's (1927, JASA 22:209–212), of 95 %.

Every answer is the likeliest token given the right answer so far and nothing of what follows, so that a model's exact
match is that of its greedy decoding, also where a change lets it see ahead. The trials of an interval are taken as
independent. Inputs are; the tokens of one answer are not, so that the interval of a token accuracy over whole answers
(`accuracy` over all and by length, `same_answers`) is somewhat too narrow.
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
from xformer.errors import InputError, UnavailableError
from xformer.reading import Reading
from xformer.tasks import Task
from xformer.training.evaluate import lengths_of, of_length, scores_by_length

CHUNK = 500
"""Inputs between two reports: those of `evaluate`, batch by batch, so that the figures are the same."""

Cell = tuple[Any, ...]
"""What is counted: (kind, model, measure, where), of kind "all", "position", "length" or "pair"; or (model, right, predicted)
as indices of the joint labels."""


def wilson(hits: int, trials: int) -> tuple[float, float]:
    """The ends of the 95 % interval; 0 and 1 where nothing was tried. Raises `ValueError` for more hits than trials."""
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
    """What has been counted so far. Measures: "token" one token right, "exact" a whole answer."""

    done: int
    samples: int
    models: tuple[str, ...]
    labels: tuple[str, ...]
    hits: dict[Cell, int]
    trials: dict[Cell, int]
    confusions: dict[Cell, int]
    recipe: str = ""
    """The call that counts so many again, where that can be written down."""

    @property
    def is_final(self) -> bool:
        return self.done == self.samples


def accuracy(counted: Agreement, by: Literal["all", "position", "length"] = "all") -> pd.DataFrame:
    """How often each model is right, a row per model and measure: model, measure, share, low, high, hits, trials.

    By "position", for each token of the answer from 0 (a column of that name); "exact" is the share that is right up to there.
    By "length", for each length of the right answer, its end token not counted.

    Args:
        counted: The answers that were counted, from `agreement`.
        by: "all", "position" or "length".

    Returns:
        A table; the example shows its columns.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", changes="ablate:decoder.0.attn.0"),
        ... ]
        >>> counted = xformer.analysis.agreement(variants, samples=50)
        >>> table = xformer.analysis.accuracy(counted)
        >>> list(table.columns)
        ['model', 'measure', 'share', 'low', 'high', 'hits', 'trials']
    """
    table = _table(counted, by, by)
    return table.drop(columns="all") if by == "all" else table


def same_answers(counted: Agreement) -> pd.DataFrame:
    """How often two models say the same, a row per pair and measure: one, other, measure, share to trials.

    Args:
        counted: The answers that were counted, from `agreement`.

    Returns:
        A table; the example shows its columns.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", changes="ablate:decoder.0.attn.0"),
        ... ]
        >>> counted = xformer.analysis.agreement(variants, samples=50)
        >>> table = xformer.analysis.same_answers(counted)
        >>> list(table.columns)
        ['one', 'other', 'measure', 'share', 'low', 'high', 'hits', 'trials']
    """
    return _table(counted, "pair", "other").rename(columns={"model": "one"})


def confusion(counted: Agreement, model: str | None = None) -> pd.DataFrame:
    """A row for each token predicted for a right one: model, right, predicted, count, share (of that right token).

    Args:
        counted: The answers that were counted, from `agreement`.
        model: The name of the variant.

    Returns:
        A table; the example shows its columns.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", changes="ablate:decoder.0.attn.0"),
        ... ]
        >>> counted = xformer.analysis.agreement(variants, samples=50)
        >>> table = xformer.analysis.confusion(counted, "ablated")
        >>> list(table.columns)
        ['model', 'right', 'predicted', 'count', 'share']
    """
    cells = sorted(counted.confusions.items(), key=lambda item: (counted.models.index(item[0][0]), *item[0][1:]))
    rows = [
        (name, counted.labels[right], counted.labels[predicted], count)
        for (name, right, predicted), count in cells
        if model in (None, name)
    ]
    table = pd.DataFrame(rows, columns=["model", "right", "predicted", "count"])
    return table.assign(share=table["count"] / table.groupby(["model", "right"])["count"].transform("sum"))


def _table(counted: Agreement, kind: str, group: str) -> pd.DataFrame:
    """The counts of one kind as shares with their intervals, models in their own order."""
    keys = sorted((key for key in counted.trials if key[0] == kind), key=lambda key: counted.models.index(key[1]))
    rows = []
    for key in keys:
        _, model, measure, where = key
        hits, trials = counted.hits[key], counted.trials[key]
        rows.append((model, where, measure, hits / trials, *wilson(hits, trials), hits, trials))
    return pd.DataFrame(rows, columns=["model", group, "measure", "share", "low", "high", "hits", "trials"])


def agreement(variants: Sequence[Variant], *, samples: int = 5000, seed: int = 0) -> Agreement:
    """Count over `samples` fresh inputs of the first one's task.

    Raises `InputError` when variants share a name or were made for different tokens.

    Args:
        variants: The variants.
        samples: The number of random inputs.
        seed: The seed of the random numbers.

    Returns:
        The counted answers.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", changes="ablate:decoder.0.attn.0"),
        ... ]
        >>> counted = xformer.analysis.agreement(variants, samples=50)
        >>> table = xformer.analysis.same_answers(counted)
    """
    *_, last = count_agreement(variants, samples=samples, seed=seed)
    return last


def count_agreement(variants: Sequence[Variant], *, samples: int = 5000, seed: int = 0) -> Iterator[Agreement]:
    """The same with a report per 500 inputs, or fewer long ones.

    Closing the iterator stops the counting; nothing is left behind.
    """
    check_names(variants)
    if samples < 1:
        raise InputError(f"At least one input must be sampled, got {samples}; for example 5000.")
    names, labels = tuple(variant.name for variant in variants), joint_labels(variants)
    recipes = ", ".join(variant.recipe for variant in variants)
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
            pair = one.right * len(labels) + one.predicted  # [input, place]
            counts = pair[one.right != NO_TOKEN].bincount(minlength=len(labels) ** 2)
            confusions.update(
                {(name, *divmod(i, len(labels))): int(counts[i]) for i in counts.nonzero()[:, 0].tolist()}
            )
        recipe = f"xformer.analysis.agreement([{recipes}], samples={done}, seed={seed})"
        yield Agreement(done, samples, names, labels, dict(hits), dict(trials), dict(confusions), recipe)


Outcomes = Iterator[tuple[Cell, Bool[Tensor, " trial"]]]


def _outcomes(name: str, one: Predictions, end: int) -> Outcomes:
    """Whether one variant is right at each trial: over all, by position and by length."""
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
    """Whether two models, each with its name, predict the same, over the tokens that both predict."""
    (name, one), (other_name, other) = first, second
    width = min(one.predicted.shape[1], other.predicted.shape[1])
    a, b = one.predicted[:, :width], other.predicted[:, :width]
    there = (a != NO_TOKEN) & (b != NO_TOKEN)  # [input, place]
    yield ("pair", name, "token", other_name), (a == b)[there]
    yield ("pair", name, "exact", other_name), ((a == b) | ~there).all(dim=1)


SAMPLES = 200
"""Inputs of each length."""

HIGH = 0.99
"""A length counts as mastered from such a share of right answers on."""


def accuracy_by_length(
    reading: Reading, *, lengths: Sequence[int] | None = None, samples: int = SAMPLES, seed: int = 1
) -> pd.DataFrame:
    """Measure how often a model answers inputs of each length, on fresh inputs drawn from `seed`.

    One row a length: exact_match, the ends low and high of its 95 % interval (Wilson 1927), token_accuracy, samples, and
    whether it was trained on. Only the model and the task of the reading count.

    Raises `UnavailableError` for a model without a task, or whose task has one length alone, `InputError` for a length that is
    out of reach.

    Args:
        reading: The run.
        lengths: The lengths of input to try; those that the model reads by default.
        samples: The number of random inputs.
        seed: The seed of the random numbers.

    Returns:
        A table; the example shows its columns.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.accuracy_by_length(reading, lengths=[3, 5], samples=20)
        >>> list(table.columns)
        ['length', 'exact_match', 'low', 'high', 'token_accuracy', 'samples', 'trained']
    """
    *_, last = asking_lengths(reading, lengths=lengths, samples=samples, seed=seed)
    return last.table


def asking_lengths(
    reading: Reading, *, lengths: Sequence[int] | None = None, samples: int = SAMPLES, seed: int = 1
) -> Iterator[TableSoFar]:
    """The same with a report every length."""
    own = own_task_model(reading.subject)
    chosen = _chosen(lengths_of(own.model.config, own.task), lengths)
    rows = []
    for length, found in scores_by_length(own.model, own.task, chosen, samples=samples, seed=seed):
        interval = wilson(round(found.exact_match * found.samples), found.samples)
        rows.append(_row(own.task, length, found.exact_match, interval, found.token_accuracy, found.samples))
        yield TableSoFar(pd.DataFrame(rows), len(rows), len(chosen))


def _row(
    task: Task, length: int, exact: float, interval: tuple[float, float], token_accuracy: float, samples: int
) -> dict[str, Any]:
    low, high = interval
    trained = task.config.min_len <= length <= task.config.max_len
    values = {"length": length, "exact_match": exact, "low": low, "high": high, "token_accuracy": token_accuracy}
    return values | {"samples": samples, "trained": trained}


def _chosen(every: Sequence[int], lengths: Sequence[int] | None) -> Sequence[int]:
    """The `lengths`, or every length. Raises `UnavailableError` for a task of one length alone."""
    if not every:
        raise UnavailableError("The inputs of this task all have one length, so there is none to go beyond.")
    return every if lengths is None else lengths


def has_mastered_its_training(table: pd.DataFrame) -> bool:
    """Whether every length that it was trained on is mastered, and there are some in the table."""
    trained = table["exact_match"][table["trained"]].tolist()
    return bool(trained) and min(trained) >= HIGH


def how_far(table: pd.DataFrame) -> int | None:
    """Up to which length every one beyond the training is mastered, in a table of all lengths from the trained ones on; None
    where the first of them is not."""
    cells = sorted(table[["length", "exact_match", "trained"]].itertuples(index=False, name=None))
    longest = max((length for length, _, trained in cells if trained), default=0)
    mastered = takewhile(lambda cell: cell[1] >= HIGH, (cell for cell in cells if cell[0] > longest))
    return max((length for length, *_ in mastered), default=None)


COMPARED_SAMPLES = 100
"""Inputs of each length where several models are compared."""


def lengths_compared(
    variants: Sequence[Variant], *, lengths: Sequence[int] | None = None, samples: int = COMPARED_SAMPLES, seed: int = 0
) -> pd.DataFrame:
    """Measure how often several models answer the same fresh inputs of each length, under their own changes.

    A row for each model and length: model, length, exact_match with the ends low and high of its 95 % interval (Wilson
    1927), token_accuracy, samples, and whether its own training had inputs of that length.

    Raises `UnavailableError` for a task of one length alone, and `InputError` for variants of different tasks or a length
    that one of them cannot read.

    Args:
        variants: The variants.
        lengths: The lengths of input to try; those that the model reads by default.
        samples: The number of random inputs.
        seed: The seed of the random numbers.

    Returns:
        A table; the example shows its columns.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load(f"checkpoints/{name}", name) for name in ("reverse", "reverse-mirror")
        ... ]
        >>> table = xformer.analysis.lengths_compared(variants, lengths=[3, 5], samples=20)
        >>> list(table.columns)
        ['model', 'length', 'exact_match', 'low', 'high', 'token_accuracy', 'samples', 'trained']
    """
    *_, last = comparing_lengths(variants, lengths=lengths, samples=samples, seed=seed)
    return last.table


def comparing_lengths(
    variants: Sequence[Variant], *, lengths: Sequence[int] | None = None, samples: int = COMPARED_SAMPLES, seed: int = 0
) -> Iterator[TableSoFar]:
    """The same with a report every length."""
    check_names(variants)
    each = [set(lengths_of(one.model.config, inputs_for(one, variants[0].task))) for one in variants]
    every = sorted(set.intersection(*each))
    chosen = _chosen(every, lengths)
    rows = []
    for done, length in enumerate(chosen, start=1):
        if length not in every:
            raise InputError(f"These models all read lengths from {every[0]} to {every[-1]}, got {length}.")
        of_one = [replace(one, subject=replace(one.subject, task=of_length(one.task, length))) for one in variants]
        shares = accuracy(agreement(of_one, samples=samples, seed=seed)).set_index(["model", "measure"])
        for one in variants:
            exact, token = shares.loc[(one.name, "exact")], shares.loc[(one.name, "token")]
            row = _row(one.task, length, exact["share"], (exact["low"], exact["high"]), token["share"], samples)
            rows.append({"model": one.name} | row)
        yield TableSoFar(pd.DataFrame(rows), done, len(chosen))
