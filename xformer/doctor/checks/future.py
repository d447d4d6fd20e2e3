"""A causal model's outputs depend on earlier tokens only."""

from __future__ import annotations

from dataclasses import replace

from xformer.doctor.check import Exam, Outcome, Pair, check, distance, not_applicable, stacked
from xformer.doctor.subject import Run

N_CHANGED = 6
"""The number of positions whose token is changed, spread over the input."""
LONGEST = 32
"""Tokens of the input that are looked at."""
REMEDY = (
    "Look at how the mask is made and whether it reaches the scores: it must be −∞ above the diagonal (torch.triu with "
    "diagonal=1), be added before the softmax, and apply on every path."
)


def later_tokens(exam: Exam, base: Run) -> list[Pair]:
    """For some positions, the run and the same run with another token there; everything before it should agree."""
    tokens = base.read[:, :LONGEST]
    base, n = base.with_read(tokens), tokens.shape[1]
    other = exam.subject.other_tokens(tokens)
    at = sorted({1 + round(i * (n - 2) / max(1, min(N_CHANGED, n - 1) - 1)) for i in range(min(N_CHANGED, n - 1))})
    runs = [base]
    for position in at:
        changed = tokens.clone()
        changed[:, position] = other[:, position]
        runs.append(base.with_read(changed))
    batch = stacked(runs)
    return [
        Pair(
            batch,
            batch,
            range(position),
            row_second=number,
            title=f"token {position} changed from {int(tokens[0, position])} to {int(other[0, position])}",
        )
        for number, position in enumerate(at, start=1)
    ]


def _sizes(exam: Exam, pairs: list[Pair]) -> list[float]:
    """How far apart the rows of one batch are."""
    logits = exam.subject.logits(pairs[0].first)  # [row, out, vocab]
    return [distance(logits[pair.row][list(pair.at)], logits[pair.row_second][list(pair.at)]) for pair in pairs]


def _applies(exam: Exam) -> Outcome | None:
    subject = exam.subject
    if not subject.causal:
        return not_applicable("The model is not causal: every token may see every other.")
    if subject.base.read.shape[1] < 2:
        return not_applicable("The input has one token; give at least two.")
    if not subject.has_output_by_position:
        return not_applicable("The model has one output for the whole input.")
    return None


@check("causality", "changing a later token changes no earlier output")
def causality(exam: Exam) -> Outcome:
    """Outputs before a changed token stay."""
    if (silent := _applies(exam)) is not None:
        return silent
    pairs = later_tokens(exam, exam.subject.base)
    return exam.judged(
        pairs,
        _sizes(exam, pairs),
        f"Changing a later token changes no earlier output ({len(pairs)} positions).",
        "With {title}, earlier outputs change by {size}: the model sees the future.",
        REMEDY,
    )


@check(
    "causality_with_attention", "the same while the attention weights are returned, and outputs stay as without them"
)
def causality_with_attention(exam: Exam) -> Outcome:
    """As `causality`, on the path that returns attention weights."""
    if (silent := _applies(exam)) is not None:
        return silent
    subject = exam.subject
    if not subject.can("attention"):
        return not_applicable("The model cannot be asked for its attention weights.")
    base = replace(subject.base, with_attention=True)
    pairs = later_tokens(exam, base)
    found = exam.judged(
        pairs,
        _sizes(exam, pairs),
        "While attention is returned, changing a later token changes no earlier output.",
        "While attention is returned, {title} changes earlier outputs by {size}: the mask is lost on that path.",
        "Look at the branch that returns attention weights: it must use the same mask as the other.",
    )
    if found.verdict == "holds":
        at = range(subject.base.read.shape[1])
        found = exam.compare(
            [Pair(subject.base, base, at, title="asking for attention weights")],
            found.sentence,
            "Asking for attention weights changes the outputs by {size}.",
            "Look at the branch that returns attention weights: it must compute the same as the other.",
        )
    if found.verdict == "broken" and max(_sizes(exam, later_tokens(exam, subject.base))) > exam.limit:
        return not_applicable("The model sees the future on every path; see causality.")
    return found
