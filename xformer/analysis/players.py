"""One player of a comparison, a model under edits and a sampling rule, and all that it says to one input, step by step.

    step s      p_s = softmax(logits at the deciding position)      token_s chosen from p_s by the sampling rule
    entropy     H(p) = −Σ p log₂ p, in bits                         (Shannon 1948, §6)

An encoder's steps are the positions that have a right answer. A decoder's are the tokens it writes: free-running it goes on
with what it chose, forced it goes on with the right answer. They end at its end token (free-running only) or once as many
tokens are said as the right answer has, its end token included: nothing runs on for ever.

A text has no right answer. Free-running, a decoder goes on for `GOES_ON` tokens after the whole of it; forced, it is led along
the text, and what stands there is its `answer` without being right.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from xformer.continuation import go_on
from xformer.decoding import GREEDY, Sampling, Step, decode
from xformer.edits import AblateHead, AblateNeuron, AnyEdit, Scale, SetCausal, SetEdges, ZeroPositions
from xformer.errors import InputError
from xformer.model import Transformer
from xformer.tasks import Task
from xformer.tasks.batch import IGNORED
from xformer.tasks.task import Example
from xformer.trace import Trace, record

Ending = Literal["end token", "length of the right answer", "tokens that were asked for"]
GOES_ON = 32
"""How many tokens a decoder goes on with after a text."""


@dataclass(frozen=True, eq=False)
class Player:
    """Who plays: a model, the task it was made for, and what is changed for this player alone."""

    name: str
    model: Transformer
    task: Task
    edits: tuple[AnyEdit, ...] = ()
    sampling: Sampling = GREEDY
    seed: int = 0
    """Of this player's own generator: the same seed draws the same tokens, whoever plays beside it."""

    def __post_init__(self) -> None:
        if not self.name:
            raise InputError("A player needs a name to be told from the others, got none; for example 'original'.")
        if self.model.training:
            raise InputError(f"Only a model in eval() mode plays, and that of {self.name} is being trained.")
        self.task.check_fits(self.model.config)


@dataclass(frozen=True, eq=False)
class Play:
    """Everything that one player says to one input, computed once."""

    player: Player
    example: Example
    forced: bool
    answer: tuple[int, ...]
    """The right token at each step, beyond the steps taken too; of a text what stands there, none after its end."""
    said: tuple[int, ...]
    """The token that the player chose at each step."""
    read: tuple[int, ...]
    """The token it went on with: what it said, or when forced the right one."""
    positions: tuple[int, ...]
    """The position of its (last) stack that decided each step."""
    probabilities: Float[Tensor, "step vocab"]
    """What the model believes."""
    drawn_from: Float[Tensor, "step vocab"]
    """What the token was drawn from, after temperature, top-k and top-p."""
    ended: Ending
    steps: tuple[Step, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.said)

    @property
    def labels(self) -> tuple[str, ...]:
        """The text of each token."""
        return self.player.task.vocabulary.labels

    @property
    def has_right_answer(self) -> bool:
        """Whether somebody knows what is right: a text may go on in many ways."""
        return self.player.task.has_right_answer(self.example.source)

    @property
    def right(self) -> tuple[bool, ...]:
        """Whether each step said the right token; empty where there is no right answer."""
        if not self.has_right_answer:
            return ()
        return tuple(said == right for said, right in zip(self.said, self.answer, strict=False))

    @property
    def is_exact(self) -> bool:
        """Whether the whole answer is right."""
        return self.has_right_answer and self.said == self.answer

    def probability(self, step: int) -> float:
        """What the model gives the token that it said."""
        return self.probabilities[self._checked(step), self.said[step]].item()

    def top(self, step: int, k: int = 5) -> list[tuple[int, float]]:
        """The k likeliest tokens with their probabilities, likeliest first."""
        best = self.probabilities[self._checked(step)].topk(min(k, self.probabilities.shape[1]))
        return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))

    def entropy(self) -> Float[Tensor, " step"]:
        """How undecided each step was, in bits: 0 for certain, log₂(vocab) for no idea."""
        p = self.probabilities.double()
        return -torch.special.xlogy(p, p).sum(dim=-1) / torch.tensor(2.0, dtype=p.dtype).log()

    def trace(self, step: int) -> Trace:
        """A recorded run over everything that was read when this step was decided. One forward pass a call."""
        return self.steps[self._checked(step)].trace()

    def _checked(self, step: int) -> int:
        if not 0 <= step < len(self):
            raise InputError(f"{self.player.name} takes the steps 0 to {len(self) - 1}, got {step}.")
        return step


@dataclass(frozen=True)
class EdgesSoFar(SetEdges):
    """`SetEdges` for a decoder that still grows: edges of positions that are not there yet wait until they are."""

    def apply(self, name: str, value: Tensor) -> Tensor:
        n_query, n_key = value.shape[-2:]
        there = tuple((query, key) for query, key in self.edges if query < n_query and key < n_key)
        return SetEdges(self.name, there, self.allowed, self.heads).apply(name, value)


def play(player: Player, example: Example, *, forced: bool = False) -> Play:
    """Let a player say its answer to an input; `forced` feeds it the right answer instead of its own words.

    The input is framed anew for the player, so one example serves players of every architecture.

    Raises `InputError` when it is too long for the model, `EditError` when an edit does not fit.
    """
    work = playing(player, example, forced=forced)
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value


@torch.no_grad()
def playing(player: Player, example: Example, *, forced: bool = False) -> Generator[tuple[int, int], None, Play]:
    """The same one step at a time: yields how many steps are done and the most that there can be, and returns the play."""
    model, is_encoder = player.model, player.model.config.architecture == "encoder"
    example = player.task.example(list(example.source), max_len=model.config.max_len)
    answer = tuple(int(token) for token in example.labels[0] if token != IGNORED)
    labelled = [place for place, token in enumerate(example.labels[0]) if token != IGNORED]
    after_text = player.task.rule.is_open_ended and example.target is None and not forced
    if after_text:
        answer, n_steps = (), GOES_ON
        work, first = _after_text(player, example), example.stream.shape[1] - 1
    elif is_encoder:
        n_steps = len(answer)
        work, first = _positions(player, example), 0
    else:
        n_steps = len(answer)
        at_once = forced and looks_back_only(player)
        work = _along(player, example, answer) if at_once else _tokens(player, example, answer, forced)
        first = 0 if example.target is not None else example.tokens.shape[1] - 1
    steps: list[Step] = []
    for step in work:
        steps.append(step)
        yield len(steps), n_steps
    said = tuple(step.predicted for step in steps)
    stopped = not forced and not is_encoder and said[-1] == model.config.end_token
    return Play(
        player=player,
        example=example,
        forced=forced,
        answer=answer,
        said=said,
        read=answer[: len(said)] if forced else said,
        positions=tuple(labelled)
        if is_encoder
        else tuple(min(first + index, model.config.max_len - 1) for index in range(len(said))),
        probabilities=torch.stack([step.probabilities for step in steps]),
        drawn_from=torch.stack([step.drawn_from for step in steps]),
        ended="end token" if stopped else "tokens that were asked for" if after_text else "length of the right answer",
        steps=tuple(steps),
    )


def _generator(player: Player) -> torch.Generator:
    return torch.Generator(player.model.device).manual_seed(player.seed)


def _positions(player: Player, example: Example) -> Iterator[Step]:
    """An encoder's steps: what it says wherever there is a right answer."""
    steps = decode(
        player.model, example.tokens, sampling=player.sampling, edits=player.edits, generator=_generator(player)
    )
    labelled = [int(label) != IGNORED for label in example.labels[0]]
    return (step for step in steps if labelled[step.position])


def _tokens(player: Player, example: Example, answer: tuple[int, ...], forced: bool) -> Iterator[Step]:
    """A decoder's steps: the tokens it writes, each decided at the last position it has read."""
    return decode(
        player.model,
        example.tokens,
        sampling=player.sampling,
        forced=answer if forced else None,
        max_steps=len(answer),
        edits=_growing(player, example),
        generator=_generator(player),
    )


def _after_text(player: Player, example: Example) -> Iterator[Step]:
    """What a decoder says after the whole of a text."""
    return go_on(
        player.model,
        example.stream,
        GOES_ON,
        sampling=player.sampling,
        edits=_growing(player, example),
        generator=_generator(player),
    )


def _along(player: Player, example: Example, answer: tuple[int, ...]) -> Iterator[Step]:
    """A forced decoder's steps out of one run over all of the answer: where no position sees a later one, that is the same."""
    model, sampling, edits = player.model, player.sampling, player.edits
    grows = example.stream if example.target is None else example.target
    first = 0 if example.target is not None else example.tokens.shape[1] - 1
    logits = record(model, example.stream, example.target, edits=edits, keep=("logits",)).logits[0, first:]
    generator = _generator(player)
    for index, token in enumerate(answer):
        q = sampling.distribution(logits[index])

        def run(read: Tensor = grows[:, : first + index + 1]) -> Trace:
            inputs = (read,) if example.target is None else (example.stream, read)
            return record(model, *inputs, edits=_growing(player, example))

        yield Step(index, token, sampling.choose(q, generator), logits[index].softmax(dim=-1), q, run)


def looks_back_only(player: Player) -> bool:
    """Whether nothing that is changed in a decoder lets it see what comes later."""
    harmless = all(
        isinstance(edit, AblateHead | AblateNeuron | Scale | ZeroPositions)
        or (isinstance(edit, SetCausal) and edit.on)
        or (isinstance(edit, SetEdges) and not edit.allowed)
        for edit in player.edits
    )
    return harmless and player.model.config.position_kind.keeps_keys


def _growing(player: Player, example: Example) -> tuple[AnyEdit, ...]:
    """The edits of a player for a decoder that still grows."""
    if not any(isinstance(edit, SetEdges) for edit in player.edits):
        return player.edits
    # An edge that not even the whole answer has is a mistake: this run says so.
    record(player.model, example.stream, example.target, edits=player.edits, keep=("logits",))
    return while_it_grows(player.edits)


def while_it_grows(edits: Iterable[AnyEdit]) -> tuple[AnyEdit, ...]:
    """The same edits for a run over the beginning of an answer, which may not have reached all their edges yet."""
    return tuple(
        EdgesSoFar(edit.name, edit.edges, edit.allowed, edit.heads) if isinstance(edit, SetEdges) else edit
        for edit in edits
    )


def joint_labels(players: Iterable[Player]) -> tuple[str, ...]:
    """Every label that some player's vocabulary has: the common ground of players whose token numbers differ."""
    return tuple(dict.fromkeys(label for player in players for label in player.task.vocabulary.labels))


def to_joint(player: Player, labels: tuple[str, ...]) -> Int[Tensor, " vocab"]:
    """Where each of the player's tokens stands among `labels`."""
    place = {label: index for index, label in enumerate(labels)}
    return torch.tensor([place[label] for label in player.task.vocabulary.labels])
