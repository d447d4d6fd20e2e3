"""One player as a link writes it: a model, then what is changed for this player alone, joined by `~`.

reverse-small
reverse-small~causal~silence:encoder.1.attn.0,positions:off
3fa9c1d2@200~temperature-0.8~top_k-5~top_p-0.9~seed-3
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pages.shared import models
from pages.shared.resources import MASKS, mask_edits
from xformer import Checkpoint
from xformer.decoding import GREEDY, Sampling
from xformer.edits import AnyEdit
from xformer.errors import InputError, XformerError
from xformer.interventions import Intervention, all_edits, parse

LETTERS = ("A", "B", "C", "D")
"""What players are called for short; there are at most as many."""
_NUMBERS = ("temperature", "top_k", "top_p", "seed")
MOST_SEED = 2**31 - 1


@dataclass(frozen=True)
class Seat:
    """Who plays: everything that a visitor can choose for one player."""

    model: str
    mask: str = MASKS[0]
    changes: tuple[str, ...] = ()
    sampling: Sampling = GREEDY
    seed: int = 0

    @property
    def text(self) -> str:
        """The player as a link writes it; `read_seat` reads it again."""
        words = [self.model]
        if self.mask != MASKS[0]:
            words.append(self.mask)
        if self.changes:
            words.append(",".join(self.changes))
        usual = Seat(self.model)
        words += [f"{name}-{_number(self, name):g}" for name in _NUMBERS if _number(self, name) != _number(usual, name)]
        return "~".join(words)

    @property
    def checkpoint(self) -> Checkpoint:
        return models.checkpoint(self.model)

    def interventions(self) -> tuple[Intervention, ...]:
        return parse(",".join(self.changes), self.checkpoint.config)

    def edits(self) -> tuple[AnyEdit, ...]:
        """What is changed in the run: the mask first, as on every screen."""
        return (*mask_edits(self.mask), *all_edits(self.interventions()))

    def label(self, change: Intervention) -> str:
        """What a person reads of a change: a replaced token as it is written."""
        task = self.checkpoint.task
        if change.replaced is None or task is None:
            return change.label
        position, token = change.replaced
        return f"position {position} reads {task.vocabulary.labels[token]}"

    def settings(self) -> list[str]:
        """What is changed, in a few words each; empty for the model as it was trained, choosing its likeliest token."""
        words = [] if self.mask == MASKS[0] else [f"{self.mask} mask"]
        found = self.interventions()
        words += [self.label(found[0])] if len(found) == 1 else [f"{len(found)} changes"] if found else []
        if self.sampling.temperature:
            words.append(f"temperature {self.sampling.temperature:g}")
            words += [f"top {self.sampling.top_k}"] if self.sampling.top_k else []
            words += [f"top-p {self.sampling.top_p:g}"] if self.sampling.top_p < 1 else []
            words.append(f"seed {self.seed}")
        return words


def read_seat(text: str) -> Seat:
    """The player that a link writes. Raises `InputError` with one sentence where it is none."""
    if len(text) > 4000:
        raise InputError(f"A player takes at most 4,000 characters, got {len(text):,}.")
    asked, *words = text.split("~")
    model = models.resolved(asked)
    if model is None:
        raise InputError(models.why_not(asked) or f"There is no model “{asked[:60]}” here.")
    if why := unplayable(model):
        raise InputError(why)
    seat = Seat(model)
    for word in words:
        name, _, value = word.partition("-")
        if word in MASKS[1:]:
            seat = replace(seat, mask=word)
        elif name in _NUMBERS:
            seat = _with_number(seat, name, value)
        else:
            seat = replace(seat, changes=(*seat.changes, *[change for change in word.split(",") if change]))
    n_tokens = seat.checkpoint.config.vocab_size
    if seat.sampling.top_k > n_tokens:
        raise InputError(f"top_k must be at most {n_tokens}, the number of tokens; for example top_k-5.")
    try:
        found = seat.interventions()
    except XformerError as error:
        raise InputError(str(error)) from None
    return replace(seat, changes=tuple(intervention.text for intervention in found))


def unplayable(model: str) -> str | None:
    """Why a model cannot be compared here, as one sentence; None where it can."""
    if why := models.usable(model):
        return why
    if models.checkpoint(model).config.image:
        return f"The model {models.title_of(model)} reads images, and this screen steps through tokens; choose another one."
    return None


def beside(seat: Seat) -> Seat:
    """A contrast to a player: the same without its changes; of a run an earlier step; else under another mask."""
    own = Seat(seat.model)
    if seat != own:
        return own
    if (of_run := models.run_and_step(seat.model)) is not None:
        earlier = [step for step in models.steps_of(of_run[0]) if step < (of_run[1] or 0)]
        if earlier:
            return Seat(f"{of_run[0]}@{min(earlier, key=lambda step: abs(step - 200))}")
    return replace(own, mask="full" if own.checkpoint.config.causal else "causal")


def usual_seats() -> tuple[Seat, ...]:
    """Who plays where nothing that is looked at can: the first model that can, and a contrast to it."""
    first = next(
        name for name in (*models.shipped(), *models.trained()) if unplayable(models.resolved(name) or name) is None
    )
    own = Seat(models.resolved(first) or first)
    return own, beside(own)


def names_of(seats: Sequence[Seat]) -> tuple[str, ...]:
    """What players are called: a letter, and that in which they differ."""
    runs = {(models.run_and_step(seat.model) or (seat.model,))[0] for seat in seats}
    same_model, same_run = len({seat.model for seat in seats}) == 1, len(runs) == 1
    names = []
    for letter, seat in zip(LETTERS, seats, strict=False):
        title = models.title_of(seat.model)
        words = [] if same_model else [title.rsplit(", ", 1)[-1] if same_run else title]
        words += seat.settings()
        names.append(f"{letter} · {', '.join(words) or 'as trained'}")
    return tuple(names)


def _number(seat: Seat, name: str) -> float:
    return seat.seed if name == "seed" else getattr(seat.sampling, name)


def _with_number(seat: Seat, name: str, value: str) -> Seat:
    try:
        number = float(value) if name in ("temperature", "top_p") else int(value)
    except ValueError:
        raise InputError(f"{name} must be a number, got “{value[:40]}”; for example {name}-1.") from None
    if abs(number) > MOST_SEED:
        raise InputError(f"{name} must be at most {MOST_SEED:,}; for example {name}-1.")
    if name != "seed":
        return replace(seat, sampling=replace(seat.sampling, **{name: number}))
    if number < 0:
        raise InputError(f"seed must be from 0 to {MOST_SEED:,}, got {number:,}; for example seed-1.")
    return replace(seat, seed=int(number))
