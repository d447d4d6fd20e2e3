"""How good a model is at each length of its inputs, also at those that its training never showed it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from xformer.config import ModelConfig
from xformer.errors import ConfigError, InputError
from xformer.model import Transformer
from xformer.tasks import Score, Task
from xformer.training.evaluate import evaluate


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
