"""What to notice about a bug: what it does to the answer, the loss and the rows of the patterns, in this run's numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from pages.bug_lab.choice import WORSE, Written, moved, n_padding, shows_something
from pages.shared.escape_markdown import escape_markdown
from pages.shared.view import View
from xformer.bugs import Bug
from xformer.bugs.lesson import Lesson
from xformer.formatting import percent
from xformer.reading import Reading
from xformer.site import Site


def look_for(bug: Bug) -> str:
    """What to look at, as a hint: whether it is so here, the numbers say."""
    return f"Look for: **{escape_markdown(bug.look_for)}**"


def seen_in(bug: Bug) -> str:
    """Where the mistake is met."""
    return f"Where people meet it: {escape_markdown(bug.seen_in)}."


def bug_notes(view: View, bug: Bug, both: Sequence[Reading], alone: Written, lesson: Lesson | None) -> list[str]:
    """One paragraph each."""
    notes = [look_for(bug), seen_in(bug)]
    if both:
        notes.append(effect(view, bug, both, alone))
        if note := rows(both):
            notes.append(note)
        if not shows_something(both, bug):
            notes.append("On this model and input nothing of the bug is to be seen in the answer: try another input.")
    elif bug.shows == "in training":
        notes.append(
            "This bug is in the training loop. In one run there is nothing to see of it, because the model is the same: "
            "**Train both** shows what it does."
        )
    if lesson is not None and "loss_wrong" in lesson.rows[-1]:
        last = lesson.rows[-1]
        notes.append(
            f"After {lesson.step} steps of training the loss is {last['loss_right']:.3f} without the bug and "
            f"{last['loss_wrong']:.3f} with it; {percent(last['tokens_right'], 0)} and {percent(last['tokens_wrong'], 0)} of "
            "the tokens of unseen inputs are right."
        )
        if last["tokens_right"] < 0.5:
            notes.append(
                "So few steps are not enough for this model even without the bug. Train for longer, or choose "
                "`reverse-mirror`, which learns its task in a few dozen steps."
            )
        if bug.name == "no-clipping":
            cut = sum(row["gradient_right"] > 1 for row in lesson.rows)
            if cut:
                notes.append(
                    f"The gradient of the right run was longer than 1, and so was cut, at {cut} of {len(lesson.rows)} reports. "
                    "AdamW divides each gradient by its own recent size, which hides most of what a long one would do."
                )
            else:
                notes.append(
                    "At none of the reports was the gradient of the right run longer than 1, so there was nothing to cut: "
                    "choose ten times the rate."
                )
    return notes


def effect(view: View, bug: Bug, both: Sequence[Reading], alone: Written) -> str:
    """How many tokens are right and what the loss is, without and with."""
    right, wrong = both
    n = len(right.answer)
    if right.trace.logits.equal(wrong.trace.logits):
        return "The two runs are equal to the last bit: this model does the same with this bug as without it."
    words = ""
    if right.has_right_answer:
        words = f"{right.n_right} of {n} tokens are right without the bug, {wrong.n_right} with it; "
    words += f"the loss is {right.loss:.4f} nats without it and "
    words += f"{wrong.loss:.4f} with it." if math.isfinite(wrong.loss) else "with it no number at all."
    if bug.shows == "when fresh":
        guess = math.log(view.shape.vocab_size)
        words += f" Both are untrained, so neither can know; guessing costs ln(vocabulary) = {guess:.3f}."
        if not math.isfinite(wrong.loss) or wrong.loss <= guess + WORSE:
            words += " The bug is in the patterns, not in the loss."
    if padding := n_padding(right):
        words += f" {padding} cells of padding stand behind the input."
    if alone and right.has_right_answer and wrong.n_right == n and alone[1] != alone[0]:
        words += " Read with the right answer before it, it looks sound; writing alone, it is not."
    return words


def rows(both: Sequence[Reading]) -> str:
    """What the rows of the head that moved most sum to, and how sharp they are; "" where that is the same with the bug."""
    right, wrong = both
    far = moved(both)
    if not far:
        return ""
    path, head = max(far, key=far.__getitem__)
    empty = wrong[f"{path}.pattern"][0, head].isnan().any(dim=-1)  # [query]
    if empty.any():
        lost = [site.path for site in wrong.sites if wrong[f"{site.path}.pattern"].isnan().all()]
        spread = f" In `{lost[0]}` every row is." if lost else ""
        return f"{int(empty.sum())} of {len(empty)} rows of `{path}`, head {head + 1}, are not a number.{spread}"
    low, high, peak = _rows(wrong, path, head)
    low_before, high_before, peak_before = _rows(right, path, head)
    words = []
    if (with_it := _span(low, high)) != (without := _span(low_before, high_before)):
        words.append(f"its rows sum to {with_it} with the bug and to {without} without")
    if f"{peak:.2f}" != f"{peak_before:.2f}":
        words.append(f"the largest weight of a row is {peak:.2f} on average with the bug and {peak_before:.2f} without")
    if not words:
        return ""
    return f"The head that changes most is `{path}`, head {head + 1}: {'; '.join(words)}."


def _rows(run: Reading, path: str, head: int) -> tuple[float, float, float]:
    pattern = run[f"{path}.pattern"][0, head]  # [query, key]
    real = run.trace.real(Site.parse(path).query_stack)
    pattern = pattern if real is None else pattern[: int(real.sum())]
    sums = pattern.sum(dim=-1)
    return sums.min().item(), sums.max().item(), torch.amax(pattern, dim=-1).mean().item()


def _span(low: float, high: float) -> str:
    return f"{low:.3f}" if f"{low:.3f}" == f"{high:.3f}" else f"{low:.3f} to {high:.3f}"
