"""What a change is judged by: one number that follows from the logits, which autograd can go back through.

Loss(example)                  mean −log p over the outputs that are asked for
Logit(position, a)             what a token has there
Logit(position, a, b)          how far it is ahead of another one
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from xformer.errors import InputError
from xformer.reading import Reading
from xformer.subjects.gradients import Measure
from xformer.tasks.batch import IGNORED
from xformer.tasks.task import Example


@dataclass(frozen=True, eq=False)
class Loss:
    """Of the first input, as `Reading.loss` has it. Raises `InputError` where no output is asked for."""

    example: Example

    def __post_init__(self) -> None:
        if not bool((self.example.labels[0] != IGNORED).any()):
            raise InputError("No answer is known to this input, so there is no loss; measure a logit.")

    def __call__(self, logits: Tensor) -> Tensor:
        return F.cross_entropy(logits[0].float(), self.example.labels[0].to(logits.device), ignore_index=IGNORED)


@dataclass(frozen=True)
class Logit:
    """Of a token at a position of the first input; with `against`, less that of another one."""

    position: int
    token: int
    against: int | None = None

    def __call__(self, logits: Tensor) -> Tensor:
        n_pos, n_tokens = logits.shape[1:]
        tokens = (self.token, self.against or 0)
        if not -n_pos <= self.position < n_pos or not all(0 <= one < n_tokens for one in tokens):
            raise InputError(
                f"There are logits at positions 0 to {n_pos - 1} of tokens 0 to {n_tokens - 1}, got position "
                f"{self.position}, token {self.token}" + ("." if self.against is None else f" against {self.against}.")
            )
        at = logits[0, self.position]  # [vocab]
        return at[self.token] if self.against is None else at[self.token] - at[self.against]


def of_run(
    reading: Reading, position: int | None = None, token: int | None = None, against: int | None = None
) -> Measure:
    """What a run is judged by: its loss; with a position, or where no answer is known, how far a token is ahead there.

    Without a token that is the likeliest; without both the likeliest against the next.
    """
    if position is None and token is None and reading.asked:
        return Loss(reading.example)
    position = reading.logits.shape[1] - 1 if position is None else position
    if token is not None:
        return Logit(position, token, against)
    likeliest, second = reading.logits[0, position].topk(2).indices.tolist()
    return Logit(position, likeliest, second if against is None else against)


def title(reading: Reading, measure: Measure) -> str:
    """What is measured, in words."""
    if not isinstance(measure, Logit):
        return "loss"
    labels = reading.subject.labels
    if measure.against is None:
        return f"logit of {labels[measure.token]}"
    return f"lead of {labels[measure.token]} over {labels[measure.against]}"
