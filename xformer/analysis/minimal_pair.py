"""Two inputs through one model that differ in little, and what it makes of the difference, as one number.

    measure = logit[answer] − logit[the other's answer]          at one output, in each run
    share   = (measure − this run's) / (the other's − this run's)     0: as in this run, 1: as in the other

(Wang et al. 2022, arXiv:2211.00593, §3; the normalisation is theirs.) What is compared is position by position, so both inputs
have as many tokens, in each stack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from xformer.analysis.measures import Logit
from xformer.errors import InputError
from xformer.reading import Reading

LEAST = 0.1
"""Logits: runs that are less apart change the odds of the two answers by less than a tenth, so there is nothing to explain."""
Token = int | str
"""A token by its number, or as it is written; a space before it may be left out."""


@dataclass(frozen=True, eq=False)
class MinimalPair:
    """A run, the run of the other input, and what is measured in both."""

    reading: Reading
    source: Reading
    """The other run: activations are taken from it and put into `reading`."""
    position: int
    """The output at which the answers are compared."""
    answers: tuple[int, int]

    @classmethod
    def of(
        cls,
        reading: Reading,
        source: Reading,
        answers: Sequence[Token] | None = None,
        position: int | None = None,
    ) -> MinimalPair:
        """What is not given is the usual: where the two runs part, and each one's likeliest token there.

        Raises `InputError` with one sentence where the two cannot be compared, or a token or a position is none of theirs.
        """
        if why := why_no_pair(reading, source):
            raise InputError(why)
        n = reading.logits.shape[1]
        if position is None:
            position = where_they_part(reading, source)
        elif not 0 <= position < n:
            raise InputError(f"The outputs are at positions 0 to {n - 1}, got {position}.")
        found = usual_answers(reading, source, position)
        if answers is not None:
            if len(answers) != 2:
                raise InputError(f"Two answers are compared, got {len(answers)}; for example {found}.")
            one, other = (token_of(reading.subject.labels, token) for token in answers)
            found = one, other
        if found[0] == found[1]:
            raise InputError(f"Two different answers are compared, got {reading.subject.labels[found[0]]} twice.")
        return cls(reading, source, position, found)

    @property
    def measure(self) -> Logit:
        """How far the first answer is ahead of the second."""
        return Logit(self.position, *self.answers)

    @property
    def start(self) -> float:
        """The measure of this run."""
        return self.measure(self.reading.logits).item()

    @property
    def goal(self) -> float:
        """The measure of the other run."""
        return self.measure(self.source.logits).item()

    @property
    def gap(self) -> float:
        """What there is to explain. Raises `InputError` where that is nothing."""
        gap = self.goal - self.start
        if abs(gap) < LEAST:
            one, other = (self.reading.subject.labels[token] for token in self.answers)
            raise InputError(
                f"In both runs {one} is about as far ahead of {other}: {self.start:+.2f} and {self.goal:+.2f} logits. There is "
                "nothing to explain; compare other answers, or inputs that differ in what matters."
            )
        return gap


def stacks_of(reading: Reading) -> tuple[str, ...]:
    """The stacks of a model, in the order the input meets them."""
    return tuple(dict.fromkeys(site.stack for site in reading.subject.shape.sites))


def differing(reading: Reading, source: Reading, stack: str | None = None) -> list[int]:
    """The positions of a stack at which the two read different tokens (or patches)."""
    name = f"{stack or reading.output_stack}.0.resid_pre"
    if name in reading and name in source:
        return (reading[name] != source[name])[0].any(dim=-1).nonzero()[:, 0].tolist()
    ids = zip(reading.ids(stack), source.ids(stack), strict=True)
    return [at for at, (one, other) in enumerate(ids) if one != other]


def why_no_pair(reading: Reading, source: Reading) -> str | None:
    """Why two runs cannot be compared position by position, as one sentence; None where they can."""
    if _kind(reading) != _kind(source):
        return "A minimal pair is two inputs of one model; these two runs are of models of different kinds."
    sources = [run.example.source for run in (reading, source)]
    if len(sources[0]) != len(sources[1]):
        one, other = (reading.subject.names(torch.tensor(tokens)) for tokens in sources)
        return _unlike(one, other, "")
    for stack in stacks_of(reading):
        if len(reading.tokens_of(stack)) != len(source.tokens_of(stack)):
            return _unlike(reading.tokens_of(stack), source.tokens_of(stack), " to write")
    if not any(differing(reading, source, stack) for stack in stacks_of(reading)):
        return "Both inputs are the same; change a token in one of them."
    return None


def _kind(reading: Reading) -> tuple[object, ...]:
    shape = reading.subject.shape
    return shape.sites, shape.vocab_size, shape.d_model, dict(shape.heads), dict(shape.neurons)


def _unlike(one: Sequence[str], other: Sequence[str], written: str) -> str:
    """That two are not equally long, where they part, and what would make them so."""
    longest = min(len(one), len(other))
    at = next((at for at in range(longest) if one[at] != other[at]), longest)
    there = [f"“{tokens[at]}”" if at < len(tokens) else "nothing" for tokens in (one, other)]
    more = len(one) - len(other)
    mend = f"Add {more} to the second" if more > 0 else f"Take {-more} from the second"
    return (
        f"The first has {len(one)} tokens{written} and the second {len(other)}, so they cannot be laid side by side. They part "
        f"at position {at}: {there[0]} against {there[1]}. {mend}, or choose words that are cut into as many tokens."
    )


def where_they_part(reading: Reading, source: Reading) -> int:
    """The output to compare: what follows a text; else the first asked for at which they say different tokens.

    Where they say the same at all of them, that at which what they believe differs most.
    """
    if reading.open_output is not None:
        return reading.open_output
    asked = reading.asked or tuple(range(reading.logits.shape[1]))
    one, other = (run.logits[0, list(asked)].softmax(dim=-1) for run in (reading, source))
    parted = (one.argmax(dim=-1) != other.argmax(dim=-1)).nonzero()[:, 0].tolist()
    return asked[parted[0] if parted else int((one - other).abs().sum(dim=-1).argmax())]


def usual_answers(reading: Reading, source: Reading, position: int) -> tuple[int, int]:
    """Each run's likeliest token; where that is one, the second is what gains most from the first run to the other."""
    one, other = (run.logits[0, position].softmax(dim=-1) for run in (reading, source))
    first, second = int(one.argmax()), int(other.argmax())
    if first == second:
        gains = other - one
        gains[first] = -2.0
        second = int(gains.argmax())
    return first, second


def token_of(labels: Sequence[str], token: Token) -> int:
    """The number of a token. Raises `InputError` where there is none that is written so."""
    if isinstance(token, int):
        if 0 <= token < len(labels):
            return token
        raise InputError(f"The tokens are 0 to {len(labels) - 1}, got {token}.")
    shown = token.replace(" ", "·")
    for text in (token, shown, f"·{shown}"):
        if text in labels:
            return list(labels).index(text)
    raise InputError(f"No token is written “{token[:40]}”; one of them is {labels[len(labels) // 2]}.")
