"""What a diagnosis hands back: what it found, what it looked at, what this run left open, and what no run can show."""

from __future__ import annotations

from dataclasses import dataclass, replace

from xformer.diagnosis.behaviour import BEHAVIOURS
from xformer.diagnosis.case import Finding
from xformer.diagnosis.identities import IDENTITIES

OUT_OF_SIGHT = (
    "how it is trained: the loss, the labels, the batches, clipping, dropout, the learning rate",
    "whether the weights are good ones: score them with eval",
    "a term that its own weights make vanish (a bias of 0, a gain of 1), and what only other inputs would reach",
)
FROM_A_TRACE = (
    "what the weights would absorb: a constant factor, or heads in another order, where the weights are not at hand",
    "what it does unrecorded or on other inputs: padding, later tokens, its neighbours in a batch, the cache, its gradient",
)


@dataclass(frozen=True)
class Report:
    """The findings, errors first, and in how many places each equation and each behaviour was looked at."""

    findings: list[Finding]
    looked: dict[str, int]
    has_weights: bool
    pairs: dict[str, int] | None = None
    """For each behaviour, how many pairs of runs were compared; None where no model was run."""

    def with_behaviours(self, found: list[Finding], pairs: dict[str, int]) -> Report:
        """The same with what the model did besides."""
        return replace(self, findings=[*(f for f in found if f.severity == "error"), *self.findings], pairs=pairs)

    @property
    def checked(self) -> list[str]:
        """One line for each thing that was looked at somewhere."""
        lines = [
            f"{one.equation} ({_places(self.looked[one.kind])})" for one in IDENTITIES if self.looked.get(one.kind)
        ]
        pairs = self.pairs or {}
        return lines + [f"{one.rule} ({_runs(pairs[one.kind])})" for one in BEHAVIOURS if pairs.get(one.kind)]

    @property
    def left_open(self) -> list[str]:
        """What there was nothing to see of: not part of this model, not kept, or too few tokens to tell."""
        lines = [one.equation for one in IDENTITIES if not self.looked.get(one.kind)]
        if self.pairs is not None:
            lines += [one.rule for one in BEHAVIOURS if not self.pairs.get(one.kind)]
        return lines

    @property
    def out_of_sight(self) -> list[str]:
        """What could be wrong all the same."""
        unknown = [] if self.has_weights else [FROM_A_TRACE[0]]
        return [*unknown, *([] if self.pairs is not None else [FROM_A_TRACE[1]]), *OUT_OF_SIGHT]


def _places(n: int) -> str:
    return "1 place" if n == 1 else f"{n} places"


def _runs(n: int) -> str:
    return "1 pair of runs" if n == 1 else f"{n} pairs of runs"
