"""What to notice about a bug: what it does to the answer, the loss and the rows of the patterns, in this run's numbers."""

from __future__ import annotations

import math

import torch

from pages.bug_lab.fit import WORSE, moved, shows_something
from pages.bug_lab.runs import Pair
from pages.bug_lab.training import Lesson
from pages.shared.literal import literal
from pages.shared.view import View
from xformer.bugs import Bug
from xformer.reading import Reading
from xformer.words import percent


def look_for(bug: Bug) -> str:
    """What to look at, as a hint: whether it is so here, the numbers say."""
    return f"Look for: **{literal(bug.look_for)}**"


def seen_in(bug: Bug) -> str:
    """Where the mistake is met."""
    return f"Where people meet it: {literal(bug.seen_in)}."


def bug_notes(view: View, bug: Bug, pair: Pair | None, lesson: Lesson | None) -> list[str]:
    """One paragraph each."""
    notes = [look_for(bug), seen_in(bug)]
    if pair is not None:
        notes.append(said(view, bug, pair))
        if note := rows(pair):
            notes.append(note)
        if not shows_something(pair, bug):
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


def said(view: View, bug: Bug, pair: Pair) -> str:
    """How many tokens are right and what the loss is, without and with."""
    n, right, wrong = len(pair.right.answer), pair.right, pair.wrong
    if right.trace.logits.equal(wrong.trace.logits):
        return "The two runs are equal to the last bit: this model does the same with this bug as without it."
    words = ""
    if right.has_right_answer:
        words = f"{right.n_right} of {n} tokens are right without the bug, {wrong.n_right} with it; "
    words += f"the loss is {right.loss:.4f} nats without it and "
    words += f"{wrong.loss:.4f} with it." if math.isfinite(wrong.loss) else "with it no number at all."
    if bug.shows == "when fresh":
        guess = math.log(view.checkpoint.config.vocab_size)
        words += f" Both are untrained, so neither can know; guessing costs ln(vocabulary) = {guess:.3f}."
        if not math.isfinite(wrong.loss) or wrong.loss <= guess + WORSE:
            words += " The bug is in the patterns, not in the loss."
    if pair.padding:
        words += f" {pair.padding} cells of padding stand behind the input."
    if pair.alone is not None and right.has_right_answer and wrong.n_right == n and pair.alone[1] != pair.alone[0]:
        words += " Read with the right answer before it, it looks sound; writing alone, it is not."
    return words


def rows(pair: Pair) -> str:
    """What the rows of the head that moved most sum to, and how sharp they are; "" where that is the same with the bug."""
    far = moved(pair)
    if not far:
        return ""
    path, head = max(far, key=far.__getitem__)
    empty = pair.wrong.trace[f"{path}.pattern"][0, head].isnan().any(dim=-1)  # [query]
    if empty.any():
        lost = [
            name for name in pair.wrong.trace.attention_layers() if pair.wrong.trace[f"{name}.pattern"].isnan().all()
        ]
        spread = f" In `{lost[0]}` every row is." if lost else ""
        return f"{int(empty.sum())} of {len(empty)} rows of `{path}`, head {head + 1}, are not a number.{spread}"
    low, high, peak = _rows(pair.wrong, path, head, pair.padding)
    low_before, high_before, peak_before = _rows(pair.right, path, head, pair.padding)
    words = []
    if (with_it := _span(low, high)) != (without := _span(low_before, high_before)):
        words.append(f"its rows sum to {with_it} with the bug and to {without} without")
    if f"{peak:.2f}" != f"{peak_before:.2f}":
        words.append(f"the largest weight of a row is {peak:.2f} on average with the bug and {peak_before:.2f} without")
    if not words:
        return ""
    return f"The head that changes most is `{path}`, head {head + 1}: {'; '.join(words)}."


def _rows(run: Reading, path: str, head: int, padding: int) -> tuple[float, float, float]:
    pattern = run.trace[f"{path}.pattern"][0, head]  # [query, key]
    in_source = path.startswith("encoder") or run.example.target is None
    pattern = pattern[: pattern.shape[0] - (padding if in_source else 0)]
    sums = pattern.sum(dim=-1)
    return sums.min().item(), sums.max().item(), torch.amax(pattern, dim=-1).mean().item()


def _span(low: float, high: float) -> str:
    return f"{low:.3f}" if f"{low:.3f}" == f"{high:.3f}" else f"{low:.3f} to {high:.3f}"
