"""What a model reads and says, as lanes of tokens, and where a changed run says something else."""

from __future__ import annotations

from pages.components.prediction_strip import Lane
from xformer.reading import Reading


def moved(original: Reading, changed: Reading) -> str:
    """Where something else is said: as the strip shows it, the likeliest token after the last one of a text included."""
    if not original.has_logits:
        return ""
    before, after = (run.logits[0].argmax(dim=-1) for run in (original, changed))
    asked = original.example.labels[0] >= 0
    if original.example.target is None and not original.has_right_answer:
        asked[-1] = True
    is_same = bool((before[: len(asked)][asked] == after[: len(asked)][asked]).all())
    return "It says the same." if is_same else "Outlined: changed."


def first_asked(run: Reading) -> int:
    """The first output that is asked for; where none is, the one that says what follows."""
    return (*run.asked, run.open_output or 0)[0]


def said_lane(name: str, run: Reading, before: Lane | None = None) -> Lane:
    """What a model says, each token with its probability, and whether it is right or another one than `before`."""
    predicted, probability = run.predicted, run.probability
    if run.open_output is not None:
        last = run.logits[0, run.open_output].softmax(dim=-1).max(dim=-1)
        predicted, probability = (*predicted, int(last.indices)), (*probability, last.values.item())
    tokens = tuple(run.subject.labels[token] for token in predicted)
    return Lane(
        name,
        tokens,
        right=run.right if run.has_right_answer else (),
        probability=probability,
        offset=first_asked(run),
        moved=() if before is None else tuple(a != b for a, b in zip(tokens, before.tokens, strict=True)),
    )
