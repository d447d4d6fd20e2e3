"""What is compared: the players, their input, and all that follows from them, each computed once and shared by all visitors.

comparison = Comparison(choices, source, forced=False)
comparison.rollouts(); comparison.readings(3)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations
from typing import Any

from pages.compare.choice import LETTERS, Choice
from pages.shared import models
from pages.shared.byte_cache import shared
from xformer.adapters.own_models import TaskInput
from xformer.analysis import Contender, roll_out
from xformer.analysis.generation import Rollout, first_divergence, rolling_out
from xformer.reading import Reading
from xformer.viz.generation import pack_rollouts


@dataclass(frozen=True)
class Progress:
    """How far the players of a comparison have come."""

    done: int
    total: int
    is_final: bool = False


@dataclass(frozen=True)
class Comparison:
    """Two to four players before one input."""

    choices: tuple[Choice, ...]
    source: tuple[int, ...]
    forced: bool
    """Whether every player goes on with the right answer instead of its own words."""
    model = "compare"
    """What the files of its pictures are named after."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        return names_of(self.choices)

    @property
    def letters(self) -> tuple[str, ...]:
        return LETTERS[: len(self.choices)]

    @property
    def input(self) -> TaskInput:
        """What is typed and sampled: what the first player reads."""
        return self.choices[0].subject.input

    @cached_property
    def about(self) -> str:
        """All that decides what is seen, as one text."""
        how = "forced" if self.forced else "free"
        return "|".join([*(choice.text for choice in self.choices), str(self.source), how, str(self.names)])

    @property
    def players(self) -> str:
        """Who is compared, whatever the input."""
        return "|".join(choice.text for choice in self.choices)

    @property
    def pairs(self) -> list[str]:
        """The players that can be compared two by two: "AB", "AC", …"""
        return ["".join(pair) for pair in combinations(self.letters, 2)]

    @property
    def has_decoder(self) -> bool:
        """Whether some player writes one token after the other, so that forcing it makes a difference."""
        return any(choice.shape.architecture != "encoder" for choice in self.choices)

    @property
    def unit(self) -> str:
        """What a step is called: encoders answer all positions at once."""
        return "step" if self.has_decoder else "position"

    @property
    def has_right_answer(self) -> bool:
        """Whether anybody knows what is right here: not how a text goes on."""
        return self.input.task.has_right_answer(self.source)

    def contenders(self) -> list[Contender]:
        return [choice.contender(name) for choice, name in zip(self.choices, self.names, strict=True)]

    def rollouts(self) -> list[Rollout]:
        """Raises `XformerError` where a player cannot read the input, or a change does not fit."""
        return [
            shared.get(key, partial(roll_out, contender, self.source, forced=self.forced))
            for key, contender in self._keyed()
        ]

    def rolling_out(self) -> Iterator[Progress]:
        """Take a step at a time, so that a page can say how far it is; afterwards `rollouts` is quick."""
        waiting = [(key, contender) for key, contender in self._keyed() if shared.peek(key) is None]
        for index, (key, contender) in enumerate(waiting):
            work = rolling_out(contender, self.source, forced=self.forced)
            while True:
                try:
                    done, total = next(work)
                except StopIteration as ended:
                    shared.put(key, ended.value)
                    break
                yield Progress(index * total + done, len(waiting) * total)
        yield Progress(1, 1, is_final=True)

    def divergence(self) -> int | None:
        """The step at which they part first."""
        return first_divergence(self.rollouts())

    def readings(self, step: int) -> list[Reading]:
        """What every player that takes a step read when it decided it."""
        return [
            shared.get((*key, step), partial(rollout.__getitem__, step))
            for (key, _), rollout in zip(self._keyed(), self.rollouts(), strict=True)
            if step < len(rollout)
        ]

    def data(self) -> dict[str, Any]:
        """What the ruler draws."""
        return shared.get(("ruler", self.about), lambda: pack_rollouts(self.rollouts()))

    def _keyed(self) -> list[tuple[tuple[Any, ...], Contender]]:
        """Each player with what its answer is kept by."""
        texts = [choice.text for choice in self.choices]
        return [
            (("rollout", text, contender.name, self.source, self.forced), contender)
            for text, contender in zip(texts, self.contenders(), strict=True)
        ]


def names_of(choices: Sequence[Choice]) -> tuple[str, ...]:
    """What players are called: a letter, and that in which they differ."""
    runs = {(models.run_and_step(choice.model) or (choice.model,))[0] for choice in choices}
    same_model, same_run = len({choice.model for choice in choices}) == 1, len(runs) == 1
    names = []
    for letter, choice in zip(LETTERS, choices, strict=False):
        title = models.title_of(choice.model)
        words = [] if same_model else [title.rsplit(", ", 1)[-1] if same_run else title]
        names.append(f"{letter} · {', '.join([*words, *choice.settings()]) or 'as trained'}")
    return tuple(names)
