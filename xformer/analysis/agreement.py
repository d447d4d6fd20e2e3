"""How often players are right, and how often they agree, over many sampled inputs: counted chunk by chunk, with intervals.

The intervals are Wilson's (1927, JASA 22:209–212), of 95 %.

Every answer is the likeliest token given the right answer so far and nothing of what follows, so that a player's exact
match is that of its greedy decoding, also where a change lets it see ahead. The trials of an interval are taken as
independent. Inputs are; the tokens of one answer are not, so that the interval of a token accuracy over whole answers
(`figures`, `by_length`, `pairs`) is somewhat too narrow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pandas as pd
import torch
from jaxtyping import Bool
from torch import Tensor

from xformer.analysis.answers import NOTHING, Answers, answers, portions, sees_ahead
from xformer.analysis.players import Player, joint_labels
from xformer.errors import InputError
from xformer.tasks import Task

CHUNK = 500
"""Inputs between two reports: those of `evaluate`, batch by batch, so that the figures are the same."""

Cell = tuple[Any, ...]
"""What is counted: (kind, player, measure, where) with kind "all", "position", "length" or "pair"; or (player, right, said)."""


def wilson(hits: int, trials: int) -> tuple[float, float]:
    """The ends of the 95 % interval; 0 and 1 where nothing was tried. Raises `ValueError` for more hits than trials."""
    if trials == 0:
        return 0.0, 1.0
    from scipy.stats import binomtest  # only now: importing it takes a second

    interval = binomtest(hits, trials).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


@dataclass(frozen=True, eq=False)
class Agreement:
    """What has been counted so far; each method is one table. Measures: "token" one token right, "exact" a whole answer."""

    done: int
    samples: int
    players: tuple[str, ...]
    labels: tuple[str, ...]
    hits: dict[Cell, int]
    trials: dict[Cell, int]
    said: dict[Cell, int]

    @property
    def is_final(self) -> bool:
        return self.done == self.samples

    def figures(self) -> pd.DataFrame:
        """One row per player and measure: player, measure, share, low, high, hits, trials."""
        return self._table("all", "all").drop(columns="all")

    def by_position(self) -> pd.DataFrame:
        """The same for each token of the answer, from 0 (`position`); "exact" is the share that is right up to there."""
        return self._table("position", "position")

    def by_length(self) -> pd.DataFrame:
        """The same for each length of the right answer (`length`), its end token not counted."""
        return self._table("length", "length")

    def pairs(self) -> pd.DataFrame:
        """How often two players say the same, a row per pair and measure: one, other, measure, share to trials."""
        return self._table("pair", "other").rename(columns={"player": "one"})

    def confusion(self) -> pd.DataFrame:
        """One row per player, right and said token that came up: player, right, said, count, share (of that right token)."""
        total: Counter[Cell] = Counter()
        for (player, right, _), count in self.said.items():
            total[player, right] += count
        rows = [
            (player, self.labels[right], self.labels[said], count, count / total[player, right])
            for (player, right, said), count in sorted(
                self.said.items(), key=lambda item: (self.players.index(item[0][0]), *item[0][1:])
            )
        ]
        return pd.DataFrame(rows, columns=["player", "right", "said", "count", "share"])

    def _table(self, kind: str, group: str) -> pd.DataFrame:
        """The counts of one kind as shares with their intervals, players in their own order."""
        keys = sorted((key for key in self.trials if key[0] == kind), key=lambda key: self.players.index(key[1]))
        rows = []
        for key in keys:
            _, player, measure, where = key
            hits, trials = self.hits[key], self.trials[key]
            rows.append((player, where, measure, hits / trials, *wilson(hits, trials), hits, trials))
        return pd.DataFrame(rows, columns=["player", group, "measure", "share", "low", "high", "hits", "trials"])


def agreement(
    players: Sequence[Player], *, samples: int = 5000, seed: int = 0, task: Task | None = None
) -> Iterator[Agreement]:
    """Count over `samples` fresh inputs of `task` (the first player's unless given), a report per 500, or fewer long ones.

    Closing the iterator stops the counting; nothing is left behind.

    Raises `InputError` when players share a name or were made for different tokens.
    """
    names = tuple(player.name for player in players)
    if not names or len(set(names)) < len(names):
        raise InputError(f"Players need different names to be told apart, got {list(names)}; for example ['a', 'b'].")
    if samples < 1:
        raise InputError(f"At least one input must be sampled, got {samples}; for example 5000.")
    task = players[0].task if task is None else task
    labels = joint_labels(players)
    end = labels.index("end") if "end" in labels else NOTHING
    hits: Counter[Cell] = Counter()
    trials: Counter[Cell] = Counter()
    said: Counter[Cell] = Counter()
    ahead = [sees_ahead(player, task) for player in players]
    for step, done in enumerate(range(0, samples, CHUNK)):
        n = min(CHUNK, samples - done)
        for rows in portions(task, n, players, one_by_one=any(ahead)):
            chunk = [
                answers(player, task, n, seed=seed, step=step, labels=labels, rows=rows, one_by_one=one_by_one)
                for player, one_by_one in zip(players, ahead, strict=True)
            ]
            for name, one in zip(names, chunk, strict=True):
                _count(name, one, end, hits, trials)
                pair = one.right * len(labels) + one.said  # [input, place]
                counts = pair[one.right != NOTHING].bincount(minlength=len(labels) ** 2)
                said.update(
                    {(name, i // len(labels), i % len(labels)): int(counts[i]) for i in counts.nonzero()[:, 0].tolist()}
                )
            for (a, one), (b, other) in combinations(zip(names, chunk, strict=True), 2):
                _count_pair((a, b), one, other, hits, trials)
            yield Agreement(done + rows.stop, samples, names, labels, dict(hits), dict(trials), dict(said))


def _count(name: str, one: Answers, end: int, hits: Counter[Cell], trials: Counter[Cell]) -> None:
    """Add one player's answers to the counts, over all, by position and by length."""
    there = one.right != NOTHING  # [input, place]
    right = (one.said == one.right) & there
    exact = (right | ~there).all(dim=1)  # [input]
    _add(("all", name, "token", 0), right[there], hits, trials)
    _add(("all", name, "exact", 0), exact, hits, trials)
    so_far = (right | ~there).cummin(dim=1).values
    for place in range(there.shape[1]):
        cells = there[:, place]
        _add(("position", name, "token", place), right[cells, place], hits, trials)
        _add(("position", name, "exact", place), so_far[cells, place], hits, trials)
    length = (there & (one.right != end)).sum(dim=1)  # [input]
    for n in length.unique().tolist():
        rows = length == n
        _add(("length", name, "token", n), right[rows][there[rows]], hits, trials)
        _add(("length", name, "exact", n), exact[rows], hits, trials)


def _count_pair(
    names: tuple[str, str], one: Answers, other: Answers, hits: Counter[Cell], trials: Counter[Cell]
) -> None:
    """Add how often two players say the same, over the tokens that both say."""
    width = min(one.said.shape[1], other.said.shape[1])
    a, b = one.said[:, :width], other.said[:, :width]
    there = (a != NOTHING) & (b != NOTHING)  # [input, place]
    _add(("pair", names[0], "token", names[1]), (a == b)[there], hits, trials)
    _add(("pair", names[0], "exact", names[1]), ((a == b) | ~there).all(dim=1), hits, trials)


def _add(key: Cell, outcome: Bool[Tensor, " trial"], hits: Counter[Cell], trials: Counter[Cell]) -> None:
    if outcome.numel():
        hits[key] += int(torch.count_nonzero(outcome))
        trials[key] += outcome.numel()
