"""What is compared: the players, their input, and all that follows from them, each computed once and shared by all visitors.

match = Match(seats, source, forced=False)
match.plays(); match.moments(3)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import streamlit as st

from pages.shared.components.step_ruler import ruler_data
from pages.shared.panels.compare_seat import LETTERS, Seat, names_of, read_seat
from xformer.analysis.deciding import Moment, moment
from xformer.analysis.parting import first_parting
from xformer.analysis.players import Play, Player, play
from xformer.errors import InputError
from xformer.interventions import changed_source
from xformer.tasks import Task


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
        return [_play(*key) for key in self._keys()]

    def parting(self) -> int | None:
        return first_parting(self.plays())

    def moments(self, step: int) -> list[Moment]:
        """The recorded run behind a step of every player that takes it."""
        plays = zip(self._keys(), self.plays(), strict=True)
        return [_moment(*key, step) for key, one in plays if step < len(one)]

    def data(self) -> dict[str, Any]:
        """What the ruler draws."""
        return _data(self.order, self.names, self)

    def _keys(self) -> list[tuple[str, str, tuple[int, ...], bool]]:
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
    alphabet = _symbols(first_task)
    for letter, seat in zip(LETTERS, seats, strict=False):
        task = task_of(seat)
        if _symbols(task) != alphabet:
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


def _symbols(task: Task) -> tuple[str, ...]:
    vocabulary = task.vocabulary
    return vocabulary.labels[1 : 1 + vocabulary.symbols]


def _described(task: Task) -> str:
    symbols = _symbols(task)
    return f"{len(symbols)} tokens of the task {task.config.name} ({symbols[0]} to {symbols[-1]})"


@st.cache_resource(max_entries=64, show_spinner=False)
def _player(seat: str, name: str) -> Player:
    found = read_seat(seat)
    return Player(name, found.checkpoint.model, task_of(found), found.edits(), found.sampling, found.seed)


@st.cache_resource(max_entries=128, show_spinner=False)
def _play(seat: str, name: str, source: tuple[int, ...], forced: bool) -> Play:
    found, player = read_seat(seat), _player(seat, name)
    example = player.task.example(list(reads(found, source)), max_len=player.model.config.max_len)
    return play(player, example, forced=forced)


@st.cache_resource(max_entries=256, show_spinner=False)
def _moment(seat: str, name: str, source: tuple[int, ...], forced: bool, step: int) -> Moment:
    return moment(_play(seat, name, source, forced), step)


@st.cache_data(max_entries=32, show_spinner=False)
def _data(order: str, names: tuple[str, ...], _match: Match) -> dict[str, Any]:
    return ruler_data(_match.plays())
