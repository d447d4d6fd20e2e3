"""A run that a test recorded by itself, as the `Reading` that analyses and pictures take."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from xformer.model import Transformer
from xformer.reading import Reading
from xformer.subjects import BareModel
from xformer.tasks.batch import IGNORED
from xformer.tasks.task import Example
from xformer.trace import Trace


def reading_of(model: Transformer, trace: Trace, answers: Tensor | Sequence[int] | None = None) -> Reading:
    """The run as a reading of the bare model; `answers` [pos] are right where they are no −100."""
    out = trace.logits.shape[1]
    labels = torch.full((out,), IGNORED) if answers is None else torch.as_tensor(answers)
    tokens = trace.tokens[:1]
    target = None if trace.target is None else trace.target[:1]
    example = Example(tuple(tokens[0].tolist()), (), tokens, target, tokens, labels[None])
    return Reading(BareModel(model), example, trace, answers is not None)
