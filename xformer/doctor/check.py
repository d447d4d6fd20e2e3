"""What a check is: a rule that two runs should obey, when it applies, and what it found.

    @check("causality", "changing a later token changes no earlier output")
    def causality(exam: Exam) -> Finding:
        ...
        return exam.compare(pairs, "…", remedy="…")

A file in `xformer/doctor/checks` registers its checks by being imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from xformer.doctor.subject import TENSORS, Run, Subject
from xformer.errors import UnavailableError

Verdict = Literal["holds", "broken", "not applicable", "could not run"]

LIMIT = 20.0
"""Runs that should agree may be this many rounding floors apart."""
LEAST_FLOOR, MOST_FLOOR = 16, 512
"""In units of the rounding of the weights' type. Without the upper bound a model that mixes its batch would hide that."""


@dataclass(frozen=True, eq=False)
class Pair:
    """Two calls of a model, and the positions at which they should agree.

    Attributes:
        first: The call as it should be.
        second: The call beside it.
        at: The positions of the first call that are compared, counted in `Run.read`.
        at_second: The same positions in the second call; None: the same numbers.
        row_second: The row of the second call that is compared; the first call has one row.
        title: What the second call changes, for people: "token 5 changed from 9 to 3".
        second_subject: The model of the second call, where that is another one.
    """

    first: Run
    second: Run
    at: Sequence[int]
    at_second: Sequence[int] | None = None
    row_second: int = 0
    title: str = ""
    second_subject: Subject | None = None

    @property
    def positions(self) -> tuple[list[int], list[int]]:
        """The positions in the first and in the second call."""
        return list(self.at), list(self.at if self.at_second is None else self.at_second)


CAUSES = {
    "q": "the queries",
    "k": "the keys",
    "v": "the values",
    "mask": "the mask",
    "scores": "the scores",
    "pattern": "the softmax",
    "z": "the mixing of the values",
    "positions": "the positions",
    "norm": "the norm before it",
    "out": "the output projection",
    "embedding": "the embedding",
    "feed-forward": "the feed-forward layer",
    "residual": "the sum of the residual stream",
    "output": "the output layer",
}
"""The first thing that is wrong in a layer, and what it is called."""


@dataclass(frozen=True, eq=False)
class Place:
    """Where two runs part.

    Attributes:
        name: The first activation that differs, or the module.
        cause: The earliest cause, a key of `CAUSES`.
        layer: The layer, from 0; None outside the layers.
        head: The head, from 0, where one is to blame.
        query: The query's position in the first run.
        key: The key's position in the run whose weights are shown.
        pattern: The weights of that head in that run, [query, key].
        labels: The tokens of that run, one for each key.
    """

    name: str
    cause: str
    layer: int | None = None
    head: int | None = None
    query: int | None = None
    key: int | None = None
    pattern: Float[Tensor, "query key"] | None = None
    labels: tuple[int, ...] = ()

    @property
    def sentence(self) -> str:
        """Where it is, for people: layers and heads count from 0, as in the table."""
        if self.layer is None:
            return f"First seen in {CAUSES.get(self.cause, self.name)}."
        where = f"layer {self.layer}" + ("" if self.head is None else f", head {self.head}")
        cell = "" if self.key is None else f", where query {self.query} attends to key {self.key}"
        return f"First seen in {where}{cell}: {CAUSES.get(self.cause, self.name)}."


@dataclass(frozen=True, eq=False)
class Finding:
    """The result of one check.

    Attributes:
        verdict: "holds", "broken", "not applicable" or "could not run".
        sentence: What was found, or why nothing was looked at, in one sentence.
        remedy: What to look at in the code, where the verdict is "broken".
        size: The largest difference, relative to the outputs.
        floor: What rounding alone makes of runs that do agree.
        pair: The two runs that show it.
        place: Where it is; None where nothing is broken or no place was found.
        check: The name of the check.
    """

    verdict: Verdict
    sentence: str
    remedy: str = ""
    size: float | None = None
    floor: float | None = None
    pair: Pair | None = None
    place: Place | None = None
    check: str = ""

    @property
    def title(self) -> str:
        """The name of the check in words."""
        return self.check.replace("_", " ")

    @property
    def whole_sentence(self) -> str:
        """What was found, and where: layers and heads count from 0."""
        return self.sentence if self.place is None else f"{self.sentence} {self.place.sentence}"

    def row(self) -> dict[str, Any]:
        """The finding as a row of `Diagnosis.table`."""
        values = vars(self) | {name: getattr(self.place, name, None) for name in CELL}
        values["sentence"] = self.whole_sentence
        return {name: values[name] for name in COLUMNS}


CELL = ("layer", "head", "query", "key")
COLUMNS = ("check", "verdict", "size", "floor", *CELL, "sentence", "remedy")


def broken(
    sentence: str, remedy: str, size: float | None = None, floor: float | None = None, *, cause: str = "", **at: Any
) -> Finding:
    """A broken rule that is known to be at a place; `at` has its layer, head, query, key and pattern."""
    place = Place("", cause, **at) if cause or at.get("layer") is not None else None
    return Finding("broken", sentence, remedy, size, floor, place=place)


class NotApplicableError(Exception):
    """The rule does not concern this model."""


def assume(condition: object, otherwise: str) -> None:
    """End a check as not applicable unless a condition holds; `otherwise` says why it does not apply."""
    if not condition:
        raise NotApplicableError(otherwise)


@dataclass(frozen=True, eq=False)
class Exam:
    """A model under examination, with what its checks share."""

    subject: Subject

    @cached_property
    def floor(self) -> float:
        """How far apart runs are that must agree, relative to the outputs: one row in other batches."""
        subject, base = self.subject, self.subject.base
        eps = subject.eps
        other = base.with_read(subject.other_tokens(base.read))
        apart = [0.0]
        for rows in ([base, other], [other, base], [other, other, base]):
            whole = subject.logits(stacked(rows))
            at = next(i for i, one in enumerate(rows) if one is base)
            apart.append(distance(subject.base_logits[0], whole[at]))
        return min(max(*apart, LEAST_FLOOR * eps), MOST_FLOOR * eps)

    @cached_property
    def change_when_repeated(self) -> float:
        """How far apart two calls with one input are."""
        subject = self.subject
        return distance(subject.base_logits, subject.logits(replace(subject.base, seed=1)))

    @property
    def outputs(self) -> range:
        """The positions of all outputs."""
        return range(self.subject.base_logits.shape[1])

    @property
    def limit(self) -> float:
        """The largest difference that is called rounding."""
        return LIMIT * self.floor

    def need_determinism(self) -> None:
        """Raise `UnavailableError` where the model draws random numbers, so that no two runs can be compared."""
        if self.change_when_repeated > self.limit:
            raise UnavailableError("The same input twice gives different outputs, so other runs cannot be compared.")

    def apart(self, pair: Pair, made: dict[int, Tensor] | None = None) -> float:
        """How far apart the outputs of two runs are at the compared positions, relative to the outputs.

        Args:
            pair: The two runs.
            made: Outputs of earlier runs, by the identity of the run; those of the first run are added.
        """
        made = {} if made is None else made
        if id(pair.first) not in made:
            made[id(pair.first)] = self.subject.logits(pair.first)
        at, at_second = pair.positions
        second = (pair.second_subject or self.subject).logits(pair.second)
        return distance(made[id(pair.first)][0, at], second[pair.row_second][at_second])

    def compare(self, pairs: Sequence[Pair], holds: str, broken: str, remedy: str) -> Finding:
        """The outcome of pairs of runs that should agree: the worst of them is shown.

        Args:
            pairs: At least one.
            holds: The sentence where all agree.
            broken: The sentence where one does not; "{title}" stands for what it changes, "{size}" for the difference.
            remedy: What to look at in the code.
        """
        made = {id(self.subject.base): self.subject.base_logits}  # many pairs share a run
        sizes = [self.apart(pair, made) for pair in pairs]
        return self.judged(pairs, sizes, holds, broken, remedy)

    def judged(self, pairs: Sequence[Pair], sizes: Sequence[float], holds: str, broken: str, remedy: str) -> Finding:
        """As `compare`, for differences that are known.

        Raises:
            UnavailableError: The model draws random numbers, so no two runs can be compared.
        """
        self.need_determinism()
        worst = max(range(len(pairs)), key=lambda i: sizes[i])
        size = sizes[worst]
        if size <= self.limit:
            return Finding("holds", holds, size=size, floor=self.floor)
        sentence = broken.format(title=pairs[worst].title, size=share(size))
        return Finding("broken", sentence, remedy, size, self.floor, pairs[worst])


def distance(first: Float[Tensor, "*shape"], second: Float[Tensor, "*shape"]) -> float:
    """The largest difference, relative to the spread of the first; ∞ where one is not a number and the other is."""
    if first.shape != second.shape:
        return float("inf")
    if first.numel() == 0:
        return 0.0
    first, second = first.double(), second.double().to(first.device)
    if not torch.equal(first.isfinite(), second.isfinite()):
        return float("inf")
    first, second = first.nan_to_num(0.0, 0.0, 0.0), second.nan_to_num(0.0, 0.0, 0.0)
    spread = float((first - first.mean(dim=-1, keepdim=True)).abs().max())
    return float((first - second).abs().max()) / max(spread, 1e-30)


def share(size: float) -> str:
    """A relative difference for people: "12 %", "0.03 %"."""
    return "not finite" if size == float("inf") else f"{100 * size:.2g} %" if size < 1 else f"{100 * size:.0f} %"


def stacked(runs: Sequence[Run]) -> Run:
    """Several calls of one shape as the rows of one call."""

    def rows(name: str) -> Tensor | None:
        values = [getattr(run, name) for run in runs]
        return None if values[0] is None else torch.cat(values)

    return replace(runs[0], **{name: rows(name) for name in TENSORS})


@dataclass(frozen=True)
class Check:
    """One rule."""

    name: str
    rule: str
    """What must hold, as the end of "It is checked whether …"."""
    run: Callable[[Exam], Finding]


CHECKS: dict[str, Check] = {}
"""All checks by name, in the order in which they run."""


def check(name: str, rule: str) -> Callable[[Callable[[Exam], Finding]], Callable[[Exam], Finding]]:
    """Register a check."""

    def register(run: Callable[[Exam], Finding]) -> Callable[[Exam], Finding]:
        CHECKS[name] = Check(name, rule, run)
        return run

    return register
