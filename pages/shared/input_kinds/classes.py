"""What a classifier says, as a sentence: a class with its probability, never right or wrong, as no right answer is known."""

from __future__ import annotations

from collections import Counter

from pages.shared.escape_markdown import escape_markdown
from xformer.formatting import percent
from xformer.reading import Reading


def class_sentence(original: Reading, changed: Reading | None, what: str) -> str:
    """Which class a classifier says, or how many tokens it puts into each."""
    run = changed or original
    with_what = "" if changed is None else f"With {what}: "
    if len(run.predicted) > 1:
        counts = Counter(run.subject.labels[label] for label in run.predicted).most_common(3)
        said = ", ".join(f"{n} × {escape_markdown(label)}" for label, n in counts)
        return f"{with_what}Its classes for {len(run.predicted)} tokens: {said}."
    if run.probabilities.shape[-1] == 1:  # a number, not a class (a regression)
        before = "" if changed is None else f" instead of {original.logits[0, 0, 0].item():.3f}"
        return f"{with_what}Its output is {run.logits[0, 0, 0].item():.3f}{before}."
    before = "" if changed is None else f" Without the change: {_class_of(original)}."
    return f"{with_what}It says {_class_of(run)}.{before}"


def _class_of(run: Reading) -> str:
    return f"**{escape_markdown(run.subject.labels[run.predicted[0]])}** with probability {percent(run.probability[0])}"
