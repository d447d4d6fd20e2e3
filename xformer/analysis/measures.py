"""What a change is judged by: one number that follows from the logits, which autograd can go back through.

loss(example)                  mean −log p over the outputs that are asked for
logit(position, a)             what a token has there
logit(position, a, b)          how far it is ahead of another one
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from xformer.errors import InputError
from xformer.subjects.gradients import Measure
from xformer.tasks.batch import IGNORED
from xformer.tasks.task import Example


def loss(example: Example) -> Measure:
    """Of the first input, as `Reading.loss` has it. Raises `InputError` where no output is asked for."""
    labels = example.labels[0]
    if not bool((labels != IGNORED).any()):
        raise InputError("No answer is known to this input, so there is no loss; measure a logit.")

    def measure(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits[0].float(), labels.to(logits.device), ignore_index=IGNORED)

    return measure


def logit(position: int, token: int, against: int | None = None) -> Measure:
    """Of a token at a position of the first input; with `against`, less that of another one."""

    def measure(logits: Tensor) -> Tensor:
        n_pos, n_tokens = logits.shape[1:]
        if not -n_pos <= position < n_pos or not all(0 <= one < n_tokens for one in (token, against or 0)):
            raise InputError(
                f"There are logits at positions 0 to {n_pos - 1} of tokens 0 to {n_tokens - 1}, got position {position}, "
                f"token {token}" + ("." if against is None else f" against {against}.")
            )
        at = logits[0, position]  # [vocab]
        return at[token] if against is None else at[token] - at[against]

    return measure
