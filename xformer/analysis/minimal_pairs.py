"""Minimal pairs: two inputs that differ in one detail, and the measure that compares the model's outputs on them.

    measure = logit[answer] − logit[the other input's answer]         at one output, in each run
    share   = (measure − this run's) / (the other's − this run's)     0: as in this run, 1: as in the other

(Wang et al. 2022, arXiv:2211.00593, §3, including the normalisation.) Runs are compared position by position, so both inputs
must have the same number of tokens in each stack.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from string import ascii_lowercase

import torch
import torch.nn.functional as F
from torch import Tensor

from xformer.adapters import ModelAdapter, TaskModel
from xformer.adapters.adapter import Measure
from xformer.adapters.inputs import known_pairs
from xformer.errors import InputError
from xformer.formatting import check_index
from xformer.reading import Reading
from xformer.tasks.batch import IGNORED
from xformer.tasks.task import Example

LEAST = 0.1
"""Logits. A smaller difference changes the odds of the two answers by less than about a tenth."""
Token = int | str
"""A token by its id or its label; the space before a word may be left out."""


@dataclass(frozen=True, eq=False)
class MinimalPair:
    """A run, the run of the other input, and the measure taken in both."""

    reading: Reading
    source: Reading
    """The other run, whose activations are patched into `reading`."""
    position: int
    """The output at which the answers are compared."""
    answers: tuple[int, int]

    @classmethod
    def of(
        cls, reading: Reading, source: Reading, answers: Sequence[Token] | None = None, position: int | None = None
    ) -> MinimalPair:
        """Pair two runs. By default they are compared where they diverge, on the likeliest token of each there.

        Raises `InputError` if the two cannot be compared, or if a token or position does not exist.
        """
        if reason := pair_incompatibility(reading, source):
            raise InputError(reason)
        n = reading.logits.shape[1]
        if position is None:
            position = differing_output(reading, source)
        check_index("position", position, n)
        found = [token_of(reading.adapter.token_labels, token) for token in answers or ()]
        if answers is None:
            found = usual_answers(reading, source, position)
        if len(found) != 2 or found[0] == found[1]:
            raise InputError(f"Give two different answers to compare, got {answers}.")
        return cls(reading, source, position, (found[0], found[1]))

    @property
    def measure(self) -> Logit:
        """The logit of the first answer minus that of the second."""
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
        """The difference between the two measures. Raises `InputError` if it is too small to explain."""
        gap = self.goal - self.start
        if abs(gap) < LEAST:
            one, other = (self.reading.adapter.token_labels[token] for token in self.answers)
            raise InputError(
                f"In both runs {one} is about as far ahead of {other}: {self.start:+.2f} and {self.goal:+.2f} logits. There is "
                "nothing to explain; compare other answers, or inputs that differ in what matters."
            )
        return gap


def stacks_of(reading: Reading) -> tuple[str, ...]:
    """Return the stacks of a model, in the order in which the input passes them."""
    return tuple(dict.fromkeys(site.stack for site in reading.adapter.shape.layer_paths))


def differing(reading: Reading, source: Reading, stack: str | None = None) -> list[int]:
    """Return the positions of a stack at which the two runs read different tokens (or patches)."""
    name = f"{stack or reading.output_stack}.0.resid_pre"
    if name in reading and name in source:
        return (reading[name] != source[name])[0].any(dim=-1).nonzero()[:, 0].tolist()
    ids = zip(reading.ids(stack), source.ids(stack), strict=True)
    return [at for at, (one, other) in enumerate(ids) if one != other]


def pair_incompatibility(reading: Reading, source: Reading) -> str | None:
    """Return the reason why two runs cannot be compared position by position, in one sentence, or None."""
    if reading.adapter.shape != source.adapter.shape:
        return "A minimal pair is two inputs of one model; these two runs come from models of different shapes."
    tokens = [reading.adapter.token_names(torch.tensor(run.example.source)) for run in (reading, source)]
    for one, other in (tokens, *((run.tokens_of(stack) for run in (reading, source)) for stack in stacks_of(reading))):
        if len(one) != len(other):
            return _different_lengths(one, other)
    if not any(differing(reading, source, stack) for stack in stacks_of(reading)):
        return "Both inputs are the same; change a token in one of them."
    return None


def _different_lengths(one: Sequence[str], other: Sequence[str]) -> str:
    """Return a sentence about two inputs of different lengths: where they first differ, and how to make them equally long."""
    at, pair = next((at, pair) for at, pair in enumerate(zip_longest(one, other)) if pair[0] != pair[1])
    first, second = ("nothing" if token is None else f"“{token}”" for token in pair)
    more = len(one) - len(other)
    advice = f"Add {more} to the second" if more > 0 else f"Take {-more} from the second"
    return (
        f"The first has {len(one)} tokens and the second {len(other)}. They differ first at position {at}: {first} against "
        f"{second}. {advice}, or choose words that are split into equally many tokens."
    )


def differing_output(reading: Reading, source: Reading) -> int:
    """Return the output to compare: the one after the end of a text, else the first target at which the predictions differ.

    If the predictions agree at all targets, it is the one at which the two distributions differ most.
    """
    if reading.open_output is not None:
        return reading.open_output
    targets = reading.target_positions or tuple(range(reading.logits.shape[1]))
    one, other = (run.logits[0, list(targets)].softmax(dim=-1) for run in (reading, source))
    diverging = (one.argmax(dim=-1) != other.argmax(dim=-1)).nonzero()[:, 0].tolist()
    return targets[diverging[0] if diverging else int((one - other).abs().sum(dim=-1).argmax())]


def usual_answers(reading: Reading, source: Reading, position: int) -> tuple[int, int]:
    """Return each run's likeliest token; if they agree, the second is the token that gains most from one run to the other."""
    one, other = (run.logits[0, position].softmax(dim=-1) for run in (reading, source))
    first, second = int(one.argmax()), int(other.argmax())
    if first == second:
        gains = other - one
        gains[first] = -2.0
        second = int(gains.argmax())
    return first, second


def token_of(labels: Sequence[str], token: Token) -> int:
    """Return the id of a token. Raises `InputError` if there is no such token."""
    if isinstance(token, int):
        check_index("token", token, len(labels))
        return token
    shown = token.replace(" ", "·")
    for text in (token, shown, f"·{shown}"):
        if text in labels:
            return labels.index(text)
    raise InputError(f"There is no token “{token[:40]}”; an example of a token is {labels[len(labels) // 2]}.")


LAST = 8
"""Number of characters before the last one of a text that are replaced in trials; the prediction is made at the last one."""

TRIED = 6
"""Number of replacement symbols tried at each position of an input that has a right answer."""


def pairs(adapter: ModelAdapter) -> dict[str, tuple[str, str]]:
    """Return minimal pairs for a model, by the topic of each; empty if none is known and none can be made."""
    if known := known_pairs(adapter.name):
        return known
    if adapter.shape.image:
        return {}
    found = {}
    for purpose, text in adapter.input.examples().items():
        try:
            other = one_token_changed(adapter, adapter.input.read(text))
        except InputError:  # some examples are too long on purpose
            continue
        if other is not None:
            found[purpose] = text, adapter.input.text(other)
    return found


def one_token_changed(adapter: ModelAdapter, source: Sequence[int]) -> tuple[int, ...] | None:
    """Return the source with one token replaced; None if no such change is known to matter."""
    source = tuple(source)
    for pair in known_pairs(adapter.name).values():
        texts = [adapter.input.read(text) for text in pair]
        if source in texts:
            return texts[1 - texts.index(source)]
    if not isinstance(adapter, TaskModel) or adapter.shape.image:
        return None
    example = adapter.to_example(source)
    candidates = list(_candidates(adapter, example))
    if not candidates:
        return None
    if adapter.has_right_answer(example):
        changed = [sum(a != b for a, b in zip(one.answer, example.answer, strict=True)) for one in candidates]
        best = min((n, at) for at, n in enumerate(changed) if n) if any(changed) else None
        return None if best is None else candidates[best[1]].source
    if example.target is not None:
        return None
    rows = torch.cat([example.input_ids, *(one.input_ids for one in candidates)])
    logits = adapter.record(replace(example, input_ids=rows), keep=("logits",)).logits
    expected = logits[:, -1].softmax(dim=-1)  # [1 + candidate, vocab]
    return candidates[int((expected[1:] - expected[0]).abs().sum(dim=-1).argmax())].source


def _candidates(adapter: TaskModel, example: Example) -> Iterator[Example]:
    """Yield the example with one token replaced, same layout, starting from the middle so that both ends stay the same."""
    source, symbols = example.source, adapter.input.replacements
    n = len(source)
    is_text = adapter.input.is_open_ended
    places = range(max(0, n - 1 - LAST), n - 1) if is_text else sorted(range(n), key=lambda at: abs(at - n // 2))
    for at in places:
        tried = [symbols[(source[at] - symbols[0] + step) % len(symbols)] for step in range(1, 1 + TRIED)]
        if is_text:  # replace a lower-case letter by another one
            is_small = {token: adapter.token_labels[token] in ascii_lowercase for token in (*symbols, source[at])}
            tried = [token for token in symbols if is_small[token] and is_small[source[at]]]
        for token in tried:
            other = (*source[:at], token, *source[at + 1 :])
            try:
                if token != source[at] and adapter.input.read(adapter.input.text(other)) == other:
                    framed = adapter.to_example(other)
                    if (
                        framed.input_ids.shape == example.input_ids.shape
                        and framed.labels.shape == example.labels.shape
                    ):
                        yield framed
            except InputError:  # not every sequence of symbols is a valid input
                continue


@dataclass(frozen=True, eq=False)
class Loss:
    """The loss of the first input, as in `Reading.loss`. Raises `InputError` if the input has no labels."""

    example: Example

    def __post_init__(self) -> None:
        if not bool((self.example.labels[0] != IGNORED).any()):
            raise InputError("This input has no known answer, so there is no loss; measure a logit instead.")

    def __call__(self, logits: Tensor) -> Tensor:
        labels = self.example.labels[0].to(logits.device)
        own = logits[0, -len(labels) :]  # without positions that the model puts before those of the input
        return F.cross_entropy(own.float(), labels, ignore_index=IGNORED)


@dataclass(frozen=True)
class Logit:
    """The logit of a token at a position of the first input, minus that of the token `against` if it is given."""

    position: int
    token: int
    against: int | None = None

    def __call__(self, logits: Tensor) -> Tensor:
        n_pos, n_tokens = logits.shape[1:]
        for name, token in (("token", self.token), ("against", self.against or 0)):
            check_index(name, token, n_tokens)
        if not -n_pos <= self.position < n_pos:
            raise InputError(f"There are logits at {n_pos} positions, got position {self.position}.")
        at = logits[0, self.position]  # [vocab]
        return at[self.token] if self.against is None else at[self.token] - at[self.against]


def of_run(
    reading: Reading, position: int | None = None, token: int | None = None, against: int | None = None
) -> Measure:
    """Return the measure of a run: its loss, or a logit or a difference of two if a position or token is given.

    A run without labels has no loss: its measure is the likeliest token's logit minus the second likeliest's at the last
    position. `position` defaults to the last, `token` to the likeliest, and `against`, if no token is given, to the second
    likeliest.
    """
    if position is not None:
        check_index("position", position, reading.example.labels.shape[1])
    if position is None and token is None and reading.target_positions:
        return Loss(reading.example)
    position = reading.logits.shape[1] - 1 if position is None else position
    if token is not None:
        return Logit(position, token, against)
    likeliest, second = reading.logits[0, position].topk(2).indices.tolist()
    return Logit(position, likeliest, second if against is None else against)


def title(reading: Reading, measure: Measure) -> str:
    """Name the measure for a chart."""
    if not isinstance(measure, Logit):
        return "loss"
    labels = reading.adapter.token_labels
    if measure.against is None:
        return f"logit of {labels[measure.token]}"
    return f"lead of {labels[measure.token]} over {labels[measure.against]}"
