"""One player of a comparison, a model under edits and a sampling rule, and all that it says to one input, step by step.

    step s      p_s = softmax(logits at the deciding position)      token_s chosen from p_s by the sampling rule
    entropy     H(p) = −Σ p log₂ p, in bits                         (Shannon 1948, §6)

An encoder's steps are the positions that have a right answer. A decoder's are the tokens it writes: free-running it goes on
with what it chose, forced it goes on with the right answer. They end at its end token (free-running only) or once as many
tokens are said as the right answer has, its end token included: nothing runs on for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from xformer.decoding import GREEDY, Sampling, Step, decode
from xformer.edits import AnyEdit, SetEdges
from xformer.errors import InputError
from xformer.model import Transformer
from xformer.tasks import Task
from xformer.tasks.batch import IGNORED
from xformer.tasks.task import Example
from xformer.trace import Trace, record

Ending = Literal["end token", "length of the right answer"]


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
    """The right token at each step, beyond the steps taken too."""
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
    def right(self) -> tuple[bool, ...]:
        """Whether each step said the right token."""
        return tuple(said == right for said, right in zip(self.said, self.answer, strict=False))

    @property
    def is_exact(self) -> bool:
        """Whether the whole answer is right."""
        return self.said == self.answer

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


@torch.no_grad()
def play(player: Player, example: Example, *, forced: bool = False) -> Play:
    """Let a player say its answer to an input; `forced` feeds it the right answer instead of its own words.

    The input is framed anew for the player, so one example serves players of every architecture.

    Raises `InputError` when it is too long for the model, `EditError` when an edit does not fit.
    """
    model = player.model
    example = player.task.example(list(example.source), max_len=model.config.max_len)
    answer = tuple(int(token) for token in example.labels[0] if token != IGNORED)
    steps, positions = _positions(player, example) if _is_encoder(player) else _tokens(player, example, answer, forced)
    said = tuple(step.predicted for step in steps)
    stopped = not forced and not _is_encoder(player) and said[-1] == model.config.end_token
    return Play(
        player=player,
        example=example,
        forced=forced,
        answer=answer,
        said=said,
        read=answer[: len(said)] if forced else said,
        positions=positions,
        probabilities=torch.stack([step.probabilities for step in steps]),
        drawn_from=torch.stack([step.drawn_from for step in steps]),
        ended="end token" if stopped else "length of the right answer",
        steps=steps,
    )


def _is_encoder(player: Player) -> bool:
    return player.model.config.architecture == "encoder"


def _generator(player: Player) -> torch.Generator:
    return torch.Generator(player.model.device).manual_seed(player.seed)


def _positions(player: Player, example: Example) -> tuple[tuple[Step, ...], tuple[int, ...]]:
    """An encoder's steps: what it says wherever there is a right answer."""
    steps = decode(
        player.model, example.tokens, sampling=player.sampling, edits=player.edits, generator=_generator(player)
    )
    labelled = [int(label) != IGNORED for label in example.labels[0]]
    chosen = tuple(step for step in steps if labelled[step.position])
    return chosen, tuple(step.position for step in chosen)


def _tokens(
    player: Player, example: Example, answer: tuple[int, ...], forced: bool
) -> tuple[tuple[Step, ...], tuple[int, ...]]:
    """A decoder's steps: the tokens it writes, each decided at the last position it has read."""
    edits = player.edits
    if any(isinstance(edit, SetEdges) for edit in edits):
        # An edge that not even the whole answer has is a mistake: this run says so.
        record(player.model, example.stream, example.target, edits=edits, keep=("logits",))
        edits = tuple(
            EdgesSoFar(edit.name, edit.edges, edit.allowed, edit.heads) if isinstance(edit, SetEdges) else edit
            for edit in edits
        )
    steps = tuple(
        decode(
            player.model,
            example.tokens,
            sampling=player.sampling,
            forced=answer if forced else None,
            max_steps=len(answer),
            edits=edits,
            generator=_generator(player),
        )
    )
    first = 0 if player.model.config.architecture == "encoder-decoder" else example.tokens.shape[1] - 1
    return steps, tuple(range(first, first + len(steps)))


def joint_labels(players: Iterable[Player]) -> tuple[str, ...]:
    """Every label that some player's vocabulary has: the common ground of players whose token numbers differ."""
    return tuple(dict.fromkeys(label for player in players for label in player.task.vocabulary.labels))


def to_joint(player: Player, labels: tuple[str, ...]) -> Int[Tensor, " vocab"]:
    """Where each of the player's tokens stands among `labels`."""
    place = {label: index for index, label in enumerate(labels)}
    return torch.tensor([place[label] for label in player.task.vocabulary.labels])
