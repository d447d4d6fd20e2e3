"""Text: nothing is right or wrong, but the tokens that really come next surprise the model or not."""

from __future__ import annotations

import math
from typing import Any

from pages.components.prediction_strip import Lane
from pages.shared.escape_markdown import escape_markdown
from pages.shared.input_kinds.classes import class_sentence
from pages.shared.input_kinds.kind import InputKind
from pages.shared.input_kinds.lanes import first_asked, moved
from xformer.adapters import ModelAdapter
from xformer.adapters.huggingface_opening import CLASSES
from xformer.formatting import percent
from xformer.reading import Reading


class _Text(InputKind):
    verb = "really followed by"
    meant = "next"
    outline = "a text has no right answer; the outline marks where the likeliest {one} is what really comes next"

    def read_rows(self, run: Reading) -> list[Lane]:
        """With a lane of what comes next; its bars say how far each token was expected."""
        if not run.subject.input.goes_on:
            return super().read_rows(run)
        comes = Lane("comes next", run.answers, probability=run.probability_of_answer, offset=first_asked(run))
        return [*super().read_rows(run), *([comes] if run.asked else [])]

    def sentence(self, original: Reading, changed: Reading | None, what: str) -> str:
        """A text may go on in many ways: how far what really comes was expected."""
        run, one = changed or original, original.subject.input.one
        if original.output in CLASSES:
            return class_sentence(original, changed, what)
        if original.output == "answer_span":
            return _span_sentence(original, changed, what)
        if not original.subject.input.goes_on:
            return _likeliest(original, changed, what)
        expects = f"the {one} that really comes next gets **{percent(math.exp(-run.loss), 1)}** (the geometric mean)"
        if changed is None:
            return f"T{expects[1:]}: {_bits(run)}. A text may go on in many ways, so no guess is right or wrong."
        return f"With {what} {expects}, {_bits(run)} instead of {_bits(original)}. {moved(original, run)}"

    def score(self, subject: ModelAdapter, figures: dict[str, Any]) -> tuple[str, str, str]:
        one, loss, n = subject.input.one, figures["loss"], len(subject.input.replacements)
        read = f"The loss on text it never read, {loss:.4f} nats, in bits."
        knowing = f"Knowing nothing, it would need {math.log2(n):.2f}."
        return f"Bits per {one}", f"{loss / math.log(2):.3f}", f"{read} {knowing}"


def _span_sentence(original: Reading, changed: Reading | None, what: str) -> str:
    """The answer that a model finds in its input, from the likeliest start to the likeliest end."""
    run = changed or original
    with_what = "" if changed is None else f"With {what}: "
    start, end = run.predicted
    p = ", ".join(percent(one) for one in run.probability)
    if end < start:
        return f"{with_what}It finds no answer: the likeliest end, token {end + 1}, is before the start, {start + 1}."
    answer = run.subject.input.plain(run.ids()[start : end + 1]).strip()
    return (
        f"{with_what}Its answer is **{escape_markdown(answer)}**, tokens {start + 1} to {end + 1} (start and end: {p})."
    )


def _likeliest(original: Reading, changed: Reading | None, what: str) -> str:
    """How sure a model is that fills gaps, or says what belongs to a text: nobody knows what is right."""
    sure = f"**{percent(sum(original.probability) / len(original.probability), 1)}**"
    if changed is None:
        n, one = len(original.probability), original.subject.input.one
        return f"Its likeliest {one} gets {sure}{' on average' if n > 1 else ''} here; nobody knows what is right."
    then = percent(sum(changed.probability) / len(changed.probability), 1)
    return f"With {what} its likeliest token gets {then} instead of {sure}. {moved(original, changed)}"


def _bits(run: Reading) -> str:
    return f"{run.loss / math.log(2):.3f} bits per {run.subject.input.one}"


KIND = _Text()
