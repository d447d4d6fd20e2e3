"""The same input through the model and through its copy with the bug: both traces, what they say, and their loss.

A bug that only padding shows is shown on a padded input, one of fresh weights on two fresh models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import streamlit as st
import torch
import torch.nn.functional as F

from pages.shared import models, resources
from pages.shared.byte_cache import kept, shared
from pages.shared.notebook import preamble
from pages.shared.patience import Step
from pages.shared.view import View
from xformer.bugs import BUGS, WHOLE_RUNS, Bug
from xformer.decoding import decode
from xformer.diagnosis.case import Finding
from xformer.diagnosis.model import examine
from xformer.edits import AnyEdit
from xformer.errors import XformerError
from xformer.interventions import all_edits, changed_source, join, parse
from xformer.model import Transformer
from xformer.reading import Reading
from xformer.subjects import TaskModel
from xformer.tasks import Task
from xformer.tasks.batch import IGNORED
from xformer.tasks.task import Example
from xformer.trace import record

PADDING = 3
MOST_WRITTEN = 32
"""So many tokens of a longer answer are written alone: the broken model runs anew for each."""
FRESH_SEED = 0


@dataclass(frozen=True, eq=False)
class Pair:
    """A run without the bug and one with it. `padding` cells at the end of what is read are no tokens."""

    right: Reading
    wrong: Reading
    padding: int
    alone: tuple[tuple[int, ...], tuple[int, ...]] | None
    """The first `MOST_WRITTEN` tokens that each writes, where the model writes token by token."""


def pair_of(view: View, bug: Bug, step: Step | None = None) -> Pair:
    """Both runs of what is on the screen; `step(done, of)` is told how much both have written.

    Raises `XformerError` where the changes do not fit the broken model.
    """
    what = view.model, view.source, view.mask, join(view.interventions), bug.name
    return shared.get(("bug pair", *what), partial(_pair, *what, step))


def models_of(view: View, bug: Bug) -> tuple[Transformer, Transformer]:
    """The model without the bug (fresh, where the bug is one of fresh weights) and with it."""
    return _models(view.model, bug.name)


def shows_padding(view: View, bug: Bug) -> bool:
    """Whether the bug can be seen on this model's input: images are never padded, nor is what fills the model."""
    room = view.checkpoint.config.max_len - view.original().example.stream.shape[1]
    return bug.shows != "with padding" or (not view.task.rule.is_image and room > 0)


@st.cache_data(max_entries=64, show_spinner=False)
def verdict(name: str, bug: str) -> tuple[list[Finding], list[Finding]]:
    """What a diagnosis finds in a run of the model without the bug, and in one of the model with it."""
    right, wrong = _models(name, bug)
    task = models.checkpoint(name).task
    return examine(right, task), examine(wrong, task)


def recording_code(view: View, bug: Bug, pair: Pair) -> list[str]:
    """The lines that make the models and the traces `right` and `wrong`, after those that load the checkpoint."""
    *lines, trace = preamble(view)
    start = "checkpoint.model"
    lines.append("from xformer.bugs import BUGS")
    if bug.shows == "when fresh":
        lines.append(
            f"fresh = xformer.Transformer(checkpoint.config, torch.Generator().manual_seed({FRESH_SEED})).eval()"
        )
        start = "fresh"
    lines.append(f'broken = BUGS["{bug.name}"].broken({start})')
    call = trace.removeprefix("trace = ")
    if pair.padding:
        plain = view.changed() or view.original()
        stream = pair.wrong.example.stream
        call = call.replace(str(plain.example.stream.tolist()), str(stream.tolist()), 1)
        n = stream.shape[1] - pair.padding
        call = f"{call.removesuffix(')')}, valid=torch.arange({stream.shape[1]})[None] < {n})"
    return [
        *lines,
        *(
            f"{name} = {call.replace('checkpoint.model', model)}"
            for name, model in (("right", start), ("wrong", "broken"))
        ),
    ]


@kept
def _models(name: str, bug: str) -> tuple[Transformer, Transformer]:
    right = models.checkpoint(name).model
    if BUGS[bug].shows == "when fresh":
        right = Transformer(right.config, torch.Generator().manual_seed(FRESH_SEED)).eval()
    return right, BUGS[bug].broken(right)


def _pair(name: str, source: tuple[int, ...], mask: str, changes: str, bug: str, step: Step | None) -> Pair:
    chosen, task = models.checkpoint(name), models.checkpoint(name).task
    assert task is not None
    interventions = parse(changes, chosen.config)
    edits = [*resources.mask_edits(mask), *all_edits(interventions)]
    example = task.example(list(changed_source(interventions, source)), max_len=chosen.config.max_len)
    padding = 0
    if BUGS[bug].shows == "with padding":
        padding = min(PADDING, chosen.config.max_len - example.stream.shape[1])
    shown = _padded(example, padding, chosen.config.pad_token)
    right, wrong = _models(name, bug)
    alone = None
    if task.config.architecture != "encoder" and not task.rule.is_open_ended and BUGS[bug].shows == "at once":
        n = min(MOST_WRITTEN, len(example.answer) + 1)  # an end token too
        alone = (
            _written(right, example, edits, n, lambda done: step and step(done, 2 * n)),
            _written(wrong, example, [*edits, WHOLE_RUNS], n, lambda done: step and step(n + done, 2 * n)),
        )
    said, said_wrong = (_said(model, task, shown, edits, padding) for model in (right, wrong))
    return Pair(said, said_wrong, padding, alone)


def _padded(example: Example, n: int, pad: int) -> Example:
    stream = F.pad(example.stream, (0, n), value=pad)
    own = example.target is None  # where the stream itself is answered
    return replace(
        example, stream=stream, labels=F.pad(example.labels, (0, n), value=IGNORED) if own else example.labels
    )


def _said(model: Transformer, task: Task, example: Example, edits: list[AnyEdit], padding: int) -> Reading:
    """A run as the screens show it; where it is not a number, nothing is likely and the loss is none."""
    valid = None if not padding else torch.arange(example.stream.shape[1])[None] < example.stream.shape[1] - padding
    trace = record(model, example.stream, example.target, edits=edits, valid=valid)
    subject = TaskModel(model, task)
    return Reading(subject, example, trace, subject.has_right_answer(example))


def _written(
    model: Transformer, example: Example, edits: list[AnyEdit], n: int, tell: Callable[[int], object]
) -> tuple[int, ...]:
    written: list[int] = []
    try:
        for step in islice(decode(model, example.tokens, edits=edits), n):
            written.append(step.token)
            tell(len(written))
    except (XformerError, RuntimeError):  # nothing can be chosen among scores that are no numbers
        return ()
    return tuple(written)
