"""The same input through a model and through its copy with a bug: two readings to lay side by side.

    right, wrong = read_both("checkpoints/reverse", "3 7 12 9", "no-scale")

A bug that only padding shows is read on a padded input, one of fresh weights from two fresh models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F

from xformer.adapters import TaskModel, own_task_model
from xformer.bugs import BUGS
from xformer.edits import set_causal
from xformer.model import Transformer
from xformer.reading import Reading, adapter_of, framed
from xformer.tasks.batch import IGNORED
from xformer.tasks.task import Example
from xformer.trace import record

PADDING = 3
"""Cells behind the input of a bug that only padding shows, where there is room for them."""
FRESH_SEED = 0


def right_and_wrong(model: Transformer, bug: str) -> tuple[Transformer, Transformer]:
    """The model without the bug (fresh, where the bug is one of fresh weights) and with it."""
    if BUGS[bug].shows == "when fresh":
        model = Transformer(model.config, torch.Generator().manual_seed(FRESH_SEED)).eval()
    return model, BUGS[bug].broken(model)


def read_both(
    where: str | Path | TaskModel,
    typed: str | Sequence[int],
    bug: str,
    *,
    causal: bool | None = None,
    changes: str = "",
    models: tuple[Transformer, Transformer] | None = None,
) -> list[Reading]:
    """Read an input without the bug of that name and with it, under a mask (None: its own) and interventions.

    `models` are those of `right_and_wrong`, where they are there already. Raises what `read` raises, and `XformerError` where
    the changes do not fit the broken model.
    """
    subject = own_task_model(adapter_of(where))
    config, (_, example, changed) = subject.model.config, framed(subject, typed, changes)
    edits = [*([] if causal is None else [set_causal(causal)]), *changed]
    n = min(PADDING, config.max_len - example.stream.shape[1]) if BUGS[bug].shows == "with padding" else 0
    valid = torch.arange(example.stream.shape[1] + n)[None] < example.stream.shape[1] if n else None
    example = _padded(example, n, config.pad_token)
    has_right_answer, found = subject.has_right_answer(example), []
    for model in models or right_and_wrong(subject.model, bug):
        trace = record(model, example.stream, example.target, edits=edits, valid=valid)
        found.append(Reading(replace(subject, model=model), example, trace, has_right_answer))
    return found


def _padded(example: Example, n: int, pad: int) -> Example:
    own = example.target is None  # where the stream itself is answered
    labels = F.pad(example.labels, (0, n), value=IGNORED) if own else example.labels
    return replace(example, stream=F.pad(example.stream, (0, n), value=pad), labels=labels)
