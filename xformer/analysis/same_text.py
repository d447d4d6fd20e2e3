"""Two runs on one text: at each position how far apart what they believe is, and what each puts into the gaps.

beliefs_apart([one, other])          where a common vocabulary has two distributions to compare
deciding_at(reading, 5)              the run as one whose last word is at position 5: what the pictures of `decision` are about
gap_fillings([one, other])           the likeliest tokens of models that fill gaps
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

import pandas as pd
import torch

from xformer.analysis.generation import kl, total_variation
from xformer.errors import InputError
from xformer.reading import Reading
from xformer.tasks.batch import IGNORED

AT_ONCE = 16
"""Positions whose distributions are in memory at a time: a vocabulary may have 150,000 tokens."""


def why_not_apart(one: Reading, other: Reading) -> str | None:
    """Why two runs cannot be compared token by token, in one sentence; None where they can."""
    names = f"{one.subject.name} and {other.subject.name}"
    if one.subject.labels != other.subject.labels:
        return f"{names} have different vocabularies, so there is no distance between what they believe."
    if one.logits.shape != other.logits.shape:
        return (
            f"{names} predict at {one.logits.shape[1]} and {other.logits.shape[1]} positions; give both the same text."
        )
    return None


@torch.no_grad()
def beliefs_apart(readings: Sequence[Reading]) -> pd.DataFrame:
    """One row a position: token, what each finds likeliest with its probability, KL both ways in nats, total variation.

    Raises `InputError` where the two have no common vocabulary, or read texts of different lengths.
    """
    one, other = readings
    if reason := why_not_apart(one, other):
        raise InputError(reason)
    labels, frames = one.subject.labels, []
    tokens = one.tokens_of(one.output_stack)
    for first in range(0, one.logits.shape[1], AT_ONCE):
        p, q = (run.logits[0, first : first + AT_ONCE].double().softmax(dim=-1) for run in readings)  # [pos, vocab]
        columns: dict[str, object] = {
            "position": range(first, first + len(p)),
            "token": tokens[first : first + len(p)],
        }
        for name, of in (("one", p), ("other", q)):
            best = of.max(dim=-1)
            columns[f"{name}_says"] = [labels[token] for token in best.indices.tolist()]
            columns[f"{name}_probability"] = best.values.tolist()
        frames.append(
            pd.DataFrame(
                columns
                | {
                    "kl": kl(p, q).tolist(),
                    "kl_back": kl(q, p).tolist(),
                    "total_variation": total_variation(p, q).tolist(),
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def named(reading: Reading, name: str) -> Reading:
    """The same run as that of a model of another name: in a picture of several each has its own."""
    subject = copy(reading.subject)  # any subject: it need not be a dataclass
    object.__setattr__(subject, "name", name)
    return replace(reading, subject=subject, recipe=f"xformer.analysis.named({reading.recipe}, {name!r})")


def deciding_at(reading: Reading, position: int) -> Reading:
    """The same run, of which one output alone is asked for. Raises `InputError` where there is no such position."""
    n = reading.example.labels.shape[1]
    if not 0 <= position < n:
        raise InputError(f"This run has outputs 0 to {n - 1}, got {position}.")
    labels = torch.full_like(reading.example.labels, IGNORED)
    labels[0, position] = reading.explained(position)
    return replace(
        reading,
        example=replace(reading.example, labels=labels),
        recipe=f"xformer.analysis.deciding_at({reading.recipe}, {position})",
    )


@torch.no_grad()
def gap_fillings(readings: Sequence[Reading], *, k: int = 6) -> pd.DataFrame:
    """One row for each gap, player and token that is among the `k` likeliest of one of them: gap, player, token, probability.

    Gaps are counted, as the same one may stand at different positions. A player without that token has no row for it.
    """
    n = min(len(reading.asked) for reading in readings)
    rows = []
    for gap in range(n):
        believed = [reading.probabilities[gap] for reading in readings]
        shown: dict[str, float] = {}
        for reading, p in zip(readings, believed, strict=True):
            top = p.topk(min(k, len(p)))
            for token, value in zip(top.indices.tolist(), top.values.tolist(), strict=True):
                label = reading.subject.labels[token]
                shown[label] = max(shown.get(label, 0.0), value)
        for label in sorted(shown, key=shown.__getitem__, reverse=True):
            for reading, p in zip(readings, believed, strict=True):
                if label in reading.subject.labels:
                    token = reading.subject.labels.index(label)
                    rows.append((gap, reading.subject.name, label, p[token].item()))
    return pd.DataFrame(rows, columns=["gap", "player", "token", "probability"])
