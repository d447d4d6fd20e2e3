"""How good a trained model is on examples that it has never seen.

Loss and token accuracy are those under teacher forcing. Exact match is that of greedy decoding: a decoder gets the prompt and
nothing of the answer, so that a model which reads ahead is found out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from xformer.checkpoints import Checkpoint, load, save
from xformer.config import ModelConfig
from xformer.counting import n_parameters
from xformer.decoding import Question, is_right, questions
from xformer.errors import ConfigError, InputError
from xformer.model import Transformer
from xformer.tasks import Score, Task, score
from xformer.tasks.batch import IGNORED, Batch

BATCH = 500
PART = 2e9
"""Multiplications between two looks of whoever watches: a few tenths of a second on one core."""
Watch = Callable[[int, int], bool]
"""Called with the examples done and asked for; where it says no, it is enough."""
TOGETHER = 4000
"""Prompts of one length that are decoded at once: they wait for each other, over several batches."""


@torch.no_grad()
def evaluate(model: Transformer, task: Task, *, samples: int, seed: int, watch: Watch | None = None) -> Score:
    """Score `samples` fresh examples drawn from `seed` (each as often as its length comes up).

    Where there are fewer that training never showed, each of them is scored once. With `watch`, it goes in small parts.
    """
    samples = min(samples, task.rule.unseen or samples)
    was_training = model.training
    model.eval()
    batches = _batches(task, samples, seed, model.device)
    result = score_batches(model, task, batches) if watch is None else _watched(model, task, batches, samples, watch)
    model.train(was_training)
    return result


def _watched(model: Transformer, task: Task, batches: Iterator[Batch], samples: int, watch: Watch) -> Score:
    """The figures of as many parts as `watch` lets it do: of one at least."""
    parts, cells, done = [], [], 0
    watch(done, samples)
    for batch in batches:
        n = rows_at_once(model, batch)
        for begin in range(0, len(batch.tokens), n):
            part = batch.rows(begin, begin + n)
            parts.append(score_batches(model, task, iter([part])))
            cells.append(int((part.labels != IGNORED).sum()))
            done += parts[-1].samples
            if not watch(done, samples):
                return average(parts, cells)
    return average(parts, cells)


def rows_at_once(model: Transformer, batch: Batch) -> int:
    """How many rows of a batch make a part that takes a fraction of a second."""
    tokens = batch.tokens.shape[1] + batch.labels.shape[1]
    return max(1, int(PART / (n_parameters(model.config) * tokens)))


def evaluate_edge_cases(model: Transformer, task: Task) -> Score | None:
    """Score the edge cases of a task, each once; None where it has none."""
    batch = task.edge_cases(model.device)
    if batch is None:
        return None
    rows = range(0, len(batch.tokens), BATCH)
    return score_batches(model, task, (batch.rows(row, min(row + BATCH, len(batch.tokens))) for row in rows))


@torch.no_grad()
def score_batches(model: Transformer, task: Task, batches: Iterator[Batch]) -> Score:
    """The figures of some batches together: exact match by greedy decoding where answers are written token by token."""
    parts, cells, decoded = [], [], Decoded(model)
    for batch in batches:
        parts.append(score(batch.logits(model), batch))
        cells.append(int((batch.labels != IGNORED).sum()))
        if task.is_decoded:
            decoded.add(batch)
    result = average(parts, cells)
    if not task.is_decoded:
        return result
    return Score(result.loss, result.token_accuracy, decoded.count_right() / result.samples, result.samples)


class Decoded:
    """Counts the examples that greedy decoding gets right, prompts of one length together."""

    def __init__(self, model: Transformer) -> None:
        self.model, self.right = model, 0
        self.waiting: dict[tuple[int, int], list[Question]] = defaultdict(list)

    def add(self, batch: Batch) -> None:
        """Take in a batch, one example per row."""
        for question in questions(batch):
            alike = self.waiting[question.prompt.shape[1], question.answer.shape[1]]
            alike.append(question)
            if sum(len(one.rows) for one in alike) >= TOGETHER:
                self._decode(alike)

    def count_right(self) -> int:
        """How many were right, when all are in."""
        for alike in self.waiting.values():
            self._decode(alike)
        return self.right

    def _decode(self, alike: list[Question]) -> None:
        if alike:
            prompt, answer, rows = (
                torch.cat([getattr(one, name) for one in alike]) for name in ("prompt", "answer", "rows")
            )
            self.right += int(is_right(self.model, Question(prompt, answer, rows)).sum())
            alike.clear()


def average(parts: list[Score], cells: list[int]) -> Score:
    """Scores of several batches as one: what is a mean over cells is weighted by their labelled cells, the rest by examples."""
    samples = [part.samples for part in parts]

    def mean(values: list[float], weights: list[int]) -> float:
        return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)

    return Score(
        loss=mean([part.loss for part in parts], cells),
        token_accuracy=mean([part.token_accuracy for part in parts], cells),
        exact_match=mean([part.exact_match for part in parts], samples),
        samples=sum(samples),
    )


def _batches(task: Task, samples: int, seed: int, device: torch.device) -> Iterator[Batch]:
    """Fresh examples in batches, one per row; where there are only so many, all are drawn at once, so that none comes twice."""
    if task.rule.unseen:
        whole = task.sample(samples, seed=seed, purpose="test", device=device)
        yield from (whole.rows(done, min(done + BATCH, samples)) for done in range(0, samples, BATCH))
        return
    for step, done in enumerate(range(0, samples, BATCH)):
        yield task.sample(min(BATCH, samples - done), seed=seed, step=step, purpose="test", device=device)


@cache
def of_length(task: Task, length: int) -> Task:
    """The same task with inputs of one length alone. Raises `ConfigError` where it has none of that length."""
    return Task(task.config.replace(min_len=length, max_len=length))


@cache
def lengths_of(config: ModelConfig, task: Task) -> tuple[int, ...]:
    """Every length that the task has and a model of this shape reads, as its `min_len` and `max_len` count. Of a task whose
    inputs all have one length, none."""
    if task.config.min_len == task.config.max_len:
        return ()
    return tuple(length for length in range(1, config.max_len + 1) if _fits(config, task, length))


def scores_by_length(
    model: Transformer, task: Task, lengths: Sequence[int], *, samples: int, seed: int
) -> Iterator[tuple[int, Score]]:
    """Each length with the score of so many unseen inputs. Raises `InputError` for a length that cannot be read or asked."""
    for length in lengths:
        if not _fits(model.config, task, length):
            known = lengths_of(model.config, task)
            some = f"lengths from {known[0]} to {known[-1]}" if known else f"only the length {task.config.max_len}"
            raise InputError(f"Inputs of this model and task have {some}, got {length}.")
        yield length, evaluate(model, of_length(task, length), samples=samples, seed=seed)


def _fits(config: ModelConfig, task: Task, length: int) -> bool:
    try:
        of = of_length(task, length)
        of.check_fits(config)
    except ConfigError:
        return False
    return True


def measure(
    checkpoint: Checkpoint, samples: int, seed: int, watch: Watch | None = None, *, edge_cases: bool = False
) -> dict[str, Any]:
    """How good it is on `samples` unseen examples, and if asked on the edge cases of its task, where it has any.

    The figures say of how many examples they are: fewer where `watch` has ended it (see `evaluate`).

    Raises `InputError` where the checkpoint names no task.
    """
    if checkpoint.task is None:
        raise InputError("The checkpoint names no task, so there is nothing to score it on.")
    model, task = checkpoint.model, checkpoint.task
    figures = asdict(evaluate(model, task, samples=samples, seed=seed, watch=watch)) | {"seed": seed}
    edges = evaluate_edge_cases(model, task) if edge_cases else None
    return figures if edges is None else figures | {"edge_cases": asdict(edges)}


def put_figures_on_card(
    folder: str | Path, samples: int, watch: Watch | None = None, *, edge_cases: bool = False
) -> dict[str, Any]:
    """Measure the checkpoint in `folder` from a seed that is not its own, add the figures to its card, and return them.

    Raises `InputError` where its card does not say from which seed it was trained.
    """
    checkpoint = load(folder)
    seed = checkpoint.card.get("seed")
    if type(seed) is not int:
        raise InputError(
            f"The card of {folder} does not say which seed it was trained from, so none is known to be another."
        )
    figures = measure(checkpoint, samples, (seed + 1) % 2**63, watch, edge_cases=edge_cases)
    save(replace(checkpoint, card=checkpoint.card | {"figures": figures}), folder)
    return figures


@dataclass(frozen=True)
class Progress:
    """One report: the figures since the last report, and a score on held-out examples.

    Example:
        >>> import xformer
        >>> progress = next(xformer.iter_train("reverse-small", device="cpu"))
        >>> progress.step, 0 <= progress.held_out.exact_match <= 1
        (20, True)
    """

    step: int
    steps: int
    loss: float
    """Mean training loss since the last report, in nats."""
    held_out: Score
    learning_rate: float
    gradient_norm: float
    """Of the last step, before clipping."""
    seconds: float
    """Time spent in training steps so far, including the parts before a resume."""
    tokens_per_second: float
    scores: dict[str, list[float]] = field(default_factory=dict)
    """The task score of each head, 0 to 1, by the path of its layer; see `Task.head_scores`."""
    note: str = ""
    """A sentence when a run stalls or reaches its target."""
    done: bool = False

    def row(self) -> dict[str, Any]:
        """Return the report as one flat row of a table."""
        row = asdict(self)
        held_out = row.pop("held_out")
        best = max((score for heads in self.scores.values() for score in heads), default=0.0)
        return row | {f"held_out_{name}": value for name, value in held_out.items()} | {"best_head_score": best}
