"""What a model read and said, as lanes of tokens for the prediction strip."""

from __future__ import annotations

from pages.components.prediction_strip import Lane
from xformer.reading import Reading
from xformer.tasks import Task


def token_rows(task: Task, run: Reading, changed: Reading | None = None, name: str = "") -> list[Lane]:
    """The input, what the model says to it, and what it says in the changed run, aligned by position."""
    label = task.vocabulary.labels
    example = run.example
    first = int((example.labels[0] >= 0).long().argmax())  # the first output that has a right answer
    if task.rule.is_image:
        shown = [Lane("is", tuple(label[token] for token in run.answer) if run.has_right_answer else ("?",))]
    elif task.config.architecture == "encoder-decoder":
        assert example.target is not None
        shown = [
            Lane("source", tuple(label[token] for token in example.stream[0].tolist())),
            Lane("decoder reads", tuple(label[token] for token in example.target[0].tolist())),
        ]
    else:
        shown = [Lane("reads", tuple(label[token] for token in example.stream[0].tolist()))]
    if task.rule.is_open_ended:  # nothing is right or wrong; the bars say how far each character was expected
        comes = tuple(label[token] for token in run.answer)
        shown.append(Lane("comes next", comes, probability=run.probability_of_answer, offset=first))
    is_open = task.rule.is_open_ended and example.target is None  # the last output's right answer nobody knows
    is_judged = run.has_right_answer and not task.rule.is_open_ended
    says = _said("says next" if is_open else "says", label, run, first, is_open, is_judged=is_judged)
    shown.append(says)
    if changed is not None:
        shown.append(_said(name, label, changed, first, is_open, says, is_judged=is_judged))
    return shown


def _said(
    name: str,
    label: tuple[str, ...],
    run: Reading,
    first: int,
    is_open: bool,
    before: Lane | None = None,
    *,
    is_judged: bool,
) -> Lane:
    predicted, probability = run.predicted, run.probability
    if is_open:
        last = run.trace.logits[0, -1].softmax(dim=-1).max(dim=-1)
        predicted, probability = (*predicted, int(last.indices)), (*probability, last.values.item())
    tokens = tuple(label[token] for token in predicted)
    moved = () if before is None else tuple(a != b for a, b in zip(tokens, before.tokens, strict=True))
    judged = zip(run.predicted, run.answer, strict=True) if is_judged else ()
    return Lane(
        name,
        tokens,
        right=tuple(said == right for said, right in judged),
        probability=probability,
        offset=first,
        moved=moved,
    )
