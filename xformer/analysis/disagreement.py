"""“Find me one on which they differ”: a search through sampled inputs that reports as it goes and ends within a bound.

    first            the first input found
    shortest         the one with the fewest tokens to read
    most confident   the one with the highest confidence: over the contenders that say different tokens at the step where the
                     answers first differ, the smaller of the two probabilities that they give their own

Answers are compared given the right answer so far (forced). Where every earlier token was right, contenders that run free part
at the same step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from xformer.analysis.contender import Contender, joint_labels
from xformer.analysis.predictions import NO_TOKEN, Predictions, predictions
from xformer.errors import InputError

Want = Literal["first", "shortest", "most confident"]
CHUNK = 250
"""Inputs between two reports."""


@dataclass(frozen=True)
class Disagreement:
    """An input on which contenders differ: `Task.example(list(source))` puts it before any of them."""

    source: tuple[int, ...]
    step: int
    """The first step at which they say different tokens."""
    predicted: tuple[str, ...]
    """What each one says there …"""
    probability: tuple[float, ...]
    """… and how likely it finds that."""
    right: str
    confidence: float
    in_free_running: bool
    """Whether all were right before that step, so that they part there in free-running mode as well."""


@dataclass(frozen=True)
class Search:
    """How far a search has come, with the best found so far."""

    looked: int
    within: int
    found: Disagreement | None
    n_found: int
    is_final: bool

    @property
    def sentence(self) -> str:
        """The state in plain words."""
        if self.found is None:
            return f"None found in {self.looked:,} inputs{'.' if self.is_final else ' so far.'}"
        return f"They differ on {self.n_found:,} of {self.looked:,} inputs{'.' if self.is_final else ' so far.'}"


def search(
    contenders: Sequence[Contender],
    want: Want = "first",
    *,
    within: int = 5000,
    seed: int = 0,
) -> Iterator[Search]:
    """Look through at most `within` inputs of the first one's task; the last report is final.

    Raises `InputError` for fewer than two contenders, contenders of different tokens, or a wish that is not known.
    """
    if len(contenders) < 2:
        raise InputError(f"It takes two players to differ, got {len(contenders)}; add another one.")
    if want not in get_args(Want):
        raise InputError(f"The search can look for {', '.join(get_args(Want))}, got {want!r:.40}.")
    if within < 1:
        raise InputError(f"At least one input must be looked at, got {within}; for example 5000.")
    labels = joint_labels(contenders)
    best: Disagreement | None = None
    n_found = 0
    for done, chunk in predictions(contenders, within, seed=seed, chunk=CHUNK):
        for found in _differing(contenders, chunk, labels):
            n_found += 1
            if best is None or _better(found, best, want):
                best = found
        # inputs are no shorter than min_len, so nothing shorter can follow
        enough = best is not None and (
            want == "first" or (want == "shortest" and len(best.source) <= contenders[0].task.config.min_len)
        )
        yield Search(done, within, best, n_found, enough or done == within)
        if enough:
            return


def _differing(
    contenders: Sequence[Contender], chunk: Sequence[Predictions], labels: tuple[str, ...]
) -> Iterator[Disagreement]:
    """The inputs of a chunk on which some two contenders differ, in order."""
    width = min(one.predicted.shape[1] for one in chunk)
    tokens = torch.stack([one.predicted[:, :width] for one in chunk])  # [contender, input, place]
    right = torch.stack([one.right[:, :width] for one in chunk])
    there = (tokens != NO_TOKEN).all(dim=0)  # [input, place]: where all of them say something
    differs = (tokens != tokens[:1]).any(dim=0) & there
    for index in differs.any(dim=1).nonzero()[:, 0].tolist():
        step = int(differs[index].long().argmax())
        here = tokens[:, index, step].tolist()
        p = [one.probability[index, step].item() for one in chunk]
        best: dict[int, float] = {}  # the surest one of each token
        for token, value in zip(here, p, strict=True):
            best[token] = max(best.get(token, 0.0), value)
        yield Disagreement(
            source=_source(contenders[0], chunk[0].sources[index].tolist()),
            step=step,
            predicted=tuple(labels[token] for token in here),
            probability=tuple(p),
            right=labels[int(right[0, index, step])],
            confidence=sorted(best.values())[-2],
            in_free_running=bool((tokens[:, index, :step] == right[:, index, :step]).all()),
        )


def _source(contender: Contender, tokens: list[int]) -> tuple[int, ...]:
    """What stands before the first special token of an input."""
    special = contender.task.vocabulary.special
    stops = {special.pad, special.end, special.start}
    length = next((place for place, token in enumerate(tokens) if token in stops), len(tokens))
    return tuple(tokens[:length])


def _better(one: Disagreement, other: Disagreement, want: Want) -> bool:
    if want == "shortest":
        return len(one.source) < len(other.source)
    return want == "most confident" and one.confidence > other.confidence
