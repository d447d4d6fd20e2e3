"""Scores of a model on unseen examples: overall, by length of the input, and on edge cases.

Loss and token accuracy are measured with teacher forcing. Exact match is measured by greedy decoding: a decoder gets only the
prompt, so a model that leaks later tokens into its outputs does not score well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from xformer.checkpoints import Checkpoint, load, save
from xformer.config import ModelConfig
from xformer.counting import n_parameters
from xformer.decoding import is_right, questions
from xformer.errors import ConfigError, InputError
from xformer.model import Transformer
from xformer.tasks import Score, Task, score
from xformer.tasks.batch import IGNORED, Batch

BATCH = 500
PART = 2e9
"""Multiplications between two calls of a `Watch`: a few tenths of a second on one core."""
Watch = Callable[[int, int], bool]
"""A callback that gets the number of examples done and the total number. Returns False to end the evaluation."""


@torch.no_grad()
def evaluate(model: Transformer, task: Task, *, samples: int, seed: int, watch: Watch | None = None) -> Score:
    """Score `samples` fresh examples drawn from `seed`.

    If there are fewer unseen examples, each is scored once. `watch` is called after each small batch.
    """
    samples = min(samples, task.rule.n_held_out or samples)
    was_training = model.training
    model.eval()
    batches = _batches(task, samples, seed, model.device)
    result = score_batches(model, task, batches if watch is None else _watched(model, batches, samples, watch))
    model.train(was_training)
    return result


def _watched(model: Transformer, batches: Iterator[Batch], samples: int, watch: Watch) -> Iterator[Batch]:
    """Yield small parts of the batches, at least one, until `watch` returns False."""
    done = 0
    watch(done, samples)
    for batch in batches:
        for part in _parts(batch, rows_at_once(model, batch)):
            yield part
            done += len(part.tokens)
            if not watch(done, samples):
                return


def _parts(batch: Batch, n: int) -> Iterator[Batch]:
    """Yield the rows of a batch in parts of `n` rows."""
    return (batch.rows(begin, begin + n) for begin in range(0, len(batch.tokens), n))


def rows_at_once(model: Transformer, batch: Batch) -> int:
    """Return the number of rows of a batch that take a few tenths of a second."""
    tokens = batch.tokens.shape[1] + batch.labels.shape[1]
    return max(1, int(PART / (n_parameters(model.config) * tokens)))


def evaluate_edge_cases(model: Transformer, task: Task) -> Score | None:
    """Score each edge case of a task once. Returns None for a task without edge cases."""
    batch = task.edge_cases(model.device)
    return None if batch is None else score_batches(model, task, _parts(batch, BATCH))


@torch.no_grad()
def score_batches(model: Transformer, task: Task, batches: Iterator[Batch]) -> Score:
    """Return one score over all batches. If the task is decoded, exact match is measured by greedy decoding."""
    parts, cells, n_right = [], [], 0
    for batch in batches:
        parts.append(score(batch.logits(model), batch))
        cells.append(int((batch.labels != IGNORED).sum()))
        if task.is_decoded:
            n_right += sum(int(is_right(model, question).sum()) for question in questions(batch))
    samples = [part.samples for part in parts]

    def mean(values: list[float], weights: list[int]) -> float:
        return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)

    return Score(
        loss=mean([part.loss for part in parts], cells),
        token_accuracy=mean([part.token_accuracy for part in parts], cells),
        exact_match=n_right / sum(samples) if task.is_decoded else mean([part.exact_match for part in parts], samples),
        samples=sum(samples),
    )


def _batches(task: Task, samples: int, seed: int, device: torch.device) -> Iterator[Batch]:
    """Yield fresh examples in batches, one per row. A finite set is drawn in one call, so that no example repeats."""
    if task.rule.n_held_out:
        yield from _parts(task.sample(samples, seed=seed, purpose="test", device=device), BATCH)
        return
    for step, done in enumerate(range(0, samples, BATCH)):
        yield task.sample(min(BATCH, samples - done), seed=seed, step=step, purpose="test", device=device)


@cache
def of_length(task: Task, length: int) -> Task:
    """Return the task restricted to one input length. Raises `ConfigError` if it has no inputs of that length."""
    return Task(task.config.replace(min_len=length, max_len=length))


@cache
def lengths_of(config: ModelConfig, task: Task) -> tuple[int, ...]:
    """Return the input lengths of a task that a model of this shape can read; empty for a task of one length."""
    if task.config.min_len == task.config.max_len:
        return ()
    return tuple(length for length in range(1, config.max_len + 1) if _fits(config, task, length))


def scores_by_length(
    model: Transformer, task: Task, lengths: Sequence[int], *, samples: int, seed: int
) -> Iterator[tuple[int, Score]]:
    """Yield each length and its score on unseen inputs. Raises `InputError` for a length that the model cannot read."""
    for length in lengths:
        if not _fits(model.config, task, length):
            known = lengths_of(model.config, task)
            some = f"lengths from {known[0]} to {known[-1]}" if known else f"only the length {task.config.max_len}"
            raise InputError(f"This model and task take {some}, got {length}.")
        yield length, evaluate(model, of_length(task, length), samples=samples, seed=seed)


def _fits(config: ModelConfig, task: Task, length: int) -> bool:
    with suppress(ConfigError):
        of_length(task, length).check_fits(config)
        return True
    return False


def measure(
    checkpoint: Checkpoint, samples: int, seed: int, watch: Watch | None = None, *, edge_cases: bool = False
) -> dict[str, Any]:
    """Score a checkpoint on `samples` unseen examples and, with `edge_cases`, on the edge cases of its task.

    Raises `InputError` if the checkpoint has no task.
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
    """Score the checkpoint in `folder` with a seed other than its training seed, add the scores to its card, and return them.

    Raises `InputError` if the card has no seed.
    """
    checkpoint = load(folder)
    seed = checkpoint.card.get("seed")
    if type(seed) is not int:
        raise InputError(f"The card of {folder} has no training seed, so no other seed can be chosen for scoring.")
    figures = measure(checkpoint, samples, (seed + 1) % 2**63, watch, edge_cases=edge_cases)
    save(replace(checkpoint, card=checkpoint.card | {"figures": figures}), folder)
    return figures


@dataclass(frozen=True)
class Progress:
    """One report: the metrics since the previous report, and a score on held-out examples.

    Example:
        >>> import xformer
        >>> progress = next(xformer.iter_train("reverse-small", device="cpu"))
        >>> progress.step, 0 <= progress.held_out.exact_match <= 1
        (20, True)
    """

    step: int
    steps: int
    loss: float
    """Mean training loss since the previous report, in nats."""
    held_out: Score
    learning_rate: float
    gradient_norm: float
    """Norm of the last step's gradient, before clipping."""
    seconds: float
    """Time spent in training steps so far, including the time before a resume."""
    tokens_per_second: float
    scores: dict[str, list[float]] = field(default_factory=dict)
    """The task score of each head, from 0 to 1, by the path of its layer; see `Task.head_scores`."""
    note: str = ""
    """A sentence if the run stalls or reaches its target, else empty."""
    done: bool = False

    def row(self) -> dict[str, Any]:
        """Return the report as one flat row of a table."""
        row = asdict(self)
        held_out = row.pop("held_out")
        best = max((score for heads in self.scores.values() for score in heads), default=0.0)
        return row | {f"held_out_{name}": value for name, value in held_out.items()} | {"best_head_score": best}
