"""What a model read and said, as lanes of tokens for the prediction strip."""

from __future__ import annotations

from pages.shared.components.prediction_strip import Lane
from pages.shared.resources import Run
from xformer.tasks import Task


def lanes(task: Task, run: Run, changed: Run | None = None, name: str = "") -> list[Lane]:
    """The input, what the model says to it, and what it says in the changed run, aligned by position."""
    label = task.vocabulary.labels
    example = run.example
    first = int((example.labels[0] >= 0).long().argmax())  # the first output that has a right answer
    if task.config.architecture == "encoder-decoder":
        assert example.target is not None
        shown = [
            Lane("source", tuple(label[token] for token in example.stream[0].tolist())),
            Lane("decoder reads", tuple(label[token] for token in example.target[0].tolist())),
        ]
    else:
        shown = [Lane("reads", tuple(label[token] for token in example.stream[0].tolist()))]
    shown.append(_said("says", label, run, first, None))
    if changed is not None:
        shown.append(_said(name, label, changed, first, run))
    return shown


def _said(name: str, label: tuple[str, ...], run: Run, first: int, before: Run | None) -> Lane:
    moved = () if before is None else tuple(a != b for a, b in zip(run.predicted, before.predicted, strict=True))
    return Lane(
        name,
        tuple(label[token] for token in run.predicted),
        right=tuple(said == right for said, right in zip(run.predicted, run.answer, strict=True)),
        probability=run.probability,
        offset=first,
        moved=moved,
    )
