"""What is compared: the players, their input, and all that follows from them, each computed once and shared by all visitors.

match = Match(seats, source, forced=False)
match.plays(); match.moments(3)
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import streamlit as st

from pages.compare.seat import LETTERS, Seat, names_of, read_seat
from pages.components.step_ruler import ruler_data
from pages.shared.byte_cache import kept, shared
from xformer.analysis.deciding import Moment, moment
from xformer.analysis.parting import first_parting
from xformer.analysis.players import Play, Player, playing
from xformer.errors import InputError
from xformer.interventions import changed_source
from xformer.tasks import Task

PlayKey = tuple[str, str, tuple[int, ...], bool]


@dataclass(frozen=True)
class Progress:
    """How far the plays of a match have come."""

    done: int
    total: int
    is_final: bool = False


@dataclass(frozen=True)
class Match:
    """Two to four players before one input."""

    seats: tuple[Seat, ...]
    source: tuple[int, ...]
    forced: bool
    """Whether every player goes on with the right answer instead of its own words."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        return names_of(self.seats)

    @property
    def letters(self) -> tuple[str, ...]:
        return LETTERS[: len(self.seats)]

    @property
    def task(self) -> Task:
        """The task that inputs are typed and sampled for: that of the first player."""
        return task_of(self.seats[0])

    @cached_property
    def order(self) -> str:
        """All that decides what is seen, as one text."""
        return "|".join([*(seat.text for seat in self.seats), str(self.source), "forced" if self.forced else "free"])

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The players that can be compared two by two."""
        return list(combinations(range(len(self.seats)), 2))

    @property
    def has_decoder(self) -> bool:
        """Whether some player writes one token after the other, so that forcing it makes a difference."""
        return any(seat.checkpoint.config.architecture != "encoder" for seat in self.seats)

    @property
    def unit(self) -> str:
        """What a step is called: encoders answer all positions at once."""
        return "step" if self.has_decoder else "position"

    def players(self) -> list[Player]:
        return [_player(seat.text, name) for seat, name in zip(self.seats, self.names, strict=True)]

    def plays(self) -> list[Play]:
        """Raises `XformerError` where a player cannot read the input, or a change does not fit."""
        return [_play(key) for key in self._keys()]

    def playing(self) -> Iterator[Progress]:
        """Play a step at a time, so that a page can say how far it is; afterwards `plays` is quick."""
        keys = self._keys()
        n = len(keys)
        for index, key in enumerate(keys):
            work = None if shared.peek(("play", key)) else _begun(key)
            while work is not None:
                try:
                    done, total = next(work)
                except StopIteration as ended:
                    shared.put(("play", key), ended.value)
                    break
                yield Progress(index * total + done, n * total)
        yield Progress(1, 1, is_final=True)

    def parting(self) -> int | None:
        return first_parting(self.plays())

    def moments(self, step: int) -> list[Moment]:
        """The recorded run behind a step of every player that takes it."""
        plays = zip(self._keys(), self.plays(), strict=True)
        return [_moment(key, one, step) for key, one in plays if step < len(one)]

    @property
    def has_right_answer(self) -> bool:
        """Whether anybody knows what is right here: not how a text goes on."""
        return self.task.has_right_answer(self.source)

    def data(self) -> dict[str, Any]:
        """What the ruler draws."""
        return _data(self.order, self.names, self)

    def _keys(self) -> list[PlayKey]:
        return [(seat.text, name, self.source, self.forced) for seat, name in zip(self.seats, self.names, strict=True)]


def task_of(seat: Seat) -> Task:
    task = seat.checkpoint.task
    assert task is not None  # `read_seat` refuses a model without one
    return task


def reads(seat: Seat, source: tuple[int, ...]) -> tuple[int, ...]:
    """What a player reads: the input with the tokens replaced that are replaced for it alone."""
    return changed_source(seat.interventions(), source)


def why_not_together(seats: Sequence[Seat]) -> str | None:
    """Why players cannot get the same input, as one sentence; None where they can."""
    first, first_task = LETTERS[0], task_of(seats[0])
    alphabet = symbols_of(first_task)
    for letter, seat in zip(LETTERS, seats, strict=False):
        task = task_of(seat)
        if symbols_of(task) != alphabet:
            return (
                f"{first} reads {_described(first_task)} and {letter} reads {_described(task)}, so no input suits both; "
                "choose models that read the same tokens."
            )
    return None


def check_input(seats: Sequence[Seat], source: tuple[int, ...]) -> None:
    """Raise `InputError` when a player cannot read an input."""
    for letter, seat in zip(LETTERS, seats, strict=False):
        try:
            task_of(seat).example(list(reads(seat, source)), max_len=seat.checkpoint.config.max_len)
        except InputError as error:
            raise InputError(str(error) if len(set(seats)) == 1 else f"{letter} cannot read this. {error}") from None


def symbols_of(task: Task) -> tuple[str, ...]:
    """What inputs of a task are written in."""
    vocabulary = task.vocabulary
    return vocabulary.labels[1 : 1 + vocabulary.symbols]


def _described(task: Task) -> str:
    symbols = symbols_of(task)
    return f"{len(symbols)} tokens of the task {task.config.name} ({symbols[0]} to {symbols[-1]})"


@kept
def _player(seat: str, name: str) -> Player:
    found = read_seat(seat)
    return Player(name, found.checkpoint.model, task_of(found), found.edits(), found.sampling, found.seed)


def _begun(key: PlayKey) -> Generator[tuple[int, int], None, Play]:
    seat, name, source, forced = key
    found, player = read_seat(seat), _player(seat, name)
    example = player.task.example(list(reads(found, source)), max_len=player.model.config.max_len)
    return playing(player, example, forced=forced)


def _play(key: PlayKey) -> Play:
    if (there := shared.peek(("play", key))) is not None:
        return there
    work = _begun(key)
    while True:
        try:
            next(work)
        except StopIteration as ended:
            shared.put(("play", key), ended.value)
            return ended.value


def _moment(key: PlayKey, played: Play, step: int) -> Moment:
    if (there := shared.peek(("moment", key, step))) is not None:
        return there
    found = moment(played, step)
    shared.put(("moment", key, step), found)
    return found


@st.cache_data(max_entries=32, show_spinner=False)
def _data(order: str, names: tuple[str, ...], _match: Match) -> dict[str, Any]:
    return ruler_data(_match.plays())
