"""“Find me one on which they differ”: a search through sampled inputs that reports as it goes and ends within a bound.

    first            the first input found
    shortest         the one with the fewest tokens to read
    most confident   the one with the highest confidence: over the players that say different tokens at the step where the
                     answers first differ, the smaller of the two probabilities that they give their own

Answers are compared given the right answer so far (forced). Where every earlier token was right, players that run free part
at the same step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from xformer.analysis.answers import NOTHING, Answers, answers, portions, sees_ahead
from xformer.analysis.players import Player, joint_labels
from xformer.errors import InputError
from xformer.tasks import Task

Want = Literal["first", "shortest", "most confident"]
CHUNK = 250
"""Inputs between two reports."""


@dataclass(frozen=True)
class Disagreement:
    """An input on which players differ: `Task.example(list(source))` puts it before any of them."""

    source: tuple[int, ...]
    step: int
    """The first step at which they say different tokens."""
    said: tuple[str, ...]
    """What each player says there …"""
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
    players: Sequence[Player], want: Want = "first", *, within: int = 5000, seed: int = 0, task: Task | None = None
) -> Iterator[Search]:
    """Look through at most `within` inputs of `task` (the first player's unless given); the last report is final.

    Raises `InputError` for fewer than two players, players of different tokens, or a wish that is not known.
    """
    if len(players) < 2:
        raise InputError(f"It takes two players to differ, got {len(players)}; add another one.")
    if want not in get_args(Want):
        raise InputError(f"The search can look for {', '.join(get_args(Want))}, got {want!r:.40}.")
    if within < 1:
        raise InputError(f"At least one input must be looked at, got {within}; for example 5000.")
    task = players[0].task if task is None else task
    labels = joint_labels(players)
    best: Disagreement | None = None
    n_found = 0
    ahead = [sees_ahead(player, task) for player in players]
    for chunk, looked in enumerate(range(0, within, CHUNK)):
        n = min(CHUNK, within - looked)
        for rows in portions(task, n, players, one_by_one=any(ahead)):
            said = [
                answers(player, task, n, seed=seed, step=chunk, labels=labels, rows=rows, one_by_one=one_by_one)
                for player, one_by_one in zip(players, ahead, strict=True)
            ]
            for found in _differing(players, said, labels):
                n_found += 1
                if best is None or _better(found, best, want):
                    best = found
            done = looked + rows.stop
            # inputs are no shorter than min_len, so nothing shorter can follow
            enough = best is not None and (
                want == "first" or (want == "shortest" and len(best.source) <= task.config.min_len)
            )
            is_final = enough or done == within
            yield Search(done, within, best, n_found, is_final)
            if is_final:
                return


def _differing(players: Sequence[Player], said: Sequence[Answers], labels: tuple[str, ...]) -> Iterator[Disagreement]:
    """The inputs of a chunk on which some two players differ, in order."""
    width = min(one.said.shape[1] for one in said)
    tokens = torch.stack([one.said[:, :width] for one in said])  # [player, input, place]
    right = torch.stack([one.right[:, :width] for one in said])
    there = (tokens != NOTHING).all(dim=0)  # [input, place]: where all of them say something
    differs = (tokens != tokens[:1]).any(dim=0) & there
    for index in differs.any(dim=1).nonzero()[:, 0].tolist():
        step = int(differs[index].long().argmax())
        here = tokens[:, index, step].tolist()
        p = [one.probability[index, step].item() for one in said]
        best: dict[int, float] = {}  # the surest player of each token
        for token, value in zip(here, p, strict=True):
            best[token] = max(best.get(token, 0.0), value)
        yield Disagreement(
            source=_source(players[0], said[0].sources[index].tolist()),
            step=step,
            said=tuple(labels[token] for token in here),
            probability=tuple(p),
            right=labels[int(right[0, index, step])],
            confidence=sorted(best.values())[-2],
            in_free_running=bool((tokens[:, index, :step] == right[:, index, :step]).all()),
        )


def _source(player: Player, tokens: list[int]) -> tuple[int, ...]:
    """What stands before the first special token of an input."""
    special = player.task.vocabulary.special
    stops = {special.pad, special.end, special.start}
    length = next((place for place, token in enumerate(tokens) if token in stops), len(tokens))
    return tuple(tokens[:length])


def _better(one: Disagreement, other: Disagreement, want: Want) -> bool:
    if want == "shortest":
        return len(one.source) < len(other.source)
    return want == "most confident" and one.confidence > other.confidence
