"""One player as a link writes it: a model, then what is changed for this player alone, joined by `~`.

reverse-small
reverse-small~causal~silence:encoder.1.attn.0,positions:off
3fa9c1d2@200~temperature-0.8~top_k-5~top_p-0.9~seed-3
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pages.shared import models
from pages.shared.resources import MASKS, mask_words
from pages.shared.shown_path import shown_path
from xformer.adapters import TaskModel, own_task_model
from xformer.analysis import Contender
from xformer.decoding import GREEDY, Sampling
from xformer.errors import InputError, XformerError
from xformer.interventions import Intervention, parse
from xformer.model_shape import ModelShape

LETTERS = ("A", "B", "C", "D")
"""What players are called for short; there are at most as many."""
LINK_LENGTH = 4000
"""Characters of one player in a link."""
_NUMBERS = {"temperature": float, "top_k": int, "top_p": float, "seed": int}
LARGEST_NUMBER = 2**31 - 1


@dataclass(frozen=True)
class Choice:
    """Everything that a visitor can choose for one player."""

    model: str
    mask: str = MASKS[0]
    changes: tuple[str, ...] = ()
    sampling: Sampling = GREEDY
    seed: int = 0

    @property
    def text(self) -> str:
        """The player as a link writes it; `read_choice` reads it again."""
        words = [self.model, *([self.mask] if self.mask != MASKS[0] else []), *filter(None, [",".join(self.changes)])]
        numbers, usual = self.numbers, Choice(self.model).numbers
        return "~".join([*words, *(f"{name}-{numbers[name]:g}" for name in _NUMBERS if numbers[name] != usual[name])])

    @property
    def numbers(self) -> dict[str, float]:
        """The settings of sampling, as a link names them."""
        return {**vars(self.sampling), "seed": self.seed}

    @property
    def subject(self) -> TaskModel:
        return own_task_model(models.subject(self.model))  # `read_choice` refuses any other model

    @property
    def shape(self) -> ModelShape:
        return self.subject.shape

    def interventions(self) -> tuple[Intervention, ...]:
        return parse(",".join(self.changes), self.shape)

    def contender(self, name: str) -> Contender:
        """What the library compares."""
        return Contender.load(
            shown_path(self.model),
            name,
            causal=None if self.mask == MASKS[0] else self.mask == "causal",
            changes=",".join(self.changes),
            sampling=self.sampling,
            seed=self.seed,
            subject=self.subject,
        )

    def label(self, change: Intervention) -> str:
        """What a person reads of a change: a replaced token as it is written."""
        if change.replaced is None:
            return change.label
        position, token = change.replaced
        return f"position {position} reads {self.subject.labels[token]}"

    def settings(self) -> list[str]:
        """What is changed, in a few words each; empty for the model as it was trained, choosing its likeliest token."""
        words, found = mask_words(self.mask), self.interventions()
        words += [self.label(found[0])] if len(found) == 1 else [f"{len(found)} changes"] if found else []
        if self.sampling.temperature:
            words.append(f"temperature {self.sampling.temperature:g}")
            words += [f"top {self.sampling.top_k}"] if self.sampling.top_k else []
            words += [f"top-p {self.sampling.top_p:g}"] if self.sampling.top_p < 1 else []
            words.append(f"seed {self.seed}")
        return words

    def with_number(self, name: str, number: float) -> Choice:
        """With another seed, or another setting of sampling. Raises `InputError` for one that cannot be."""
        if name != "seed":
            return replace(self, sampling=replace(self.sampling, **{name: number}))
        if number < 0:
            raise InputError(f"seed must be from 0 to {LARGEST_NUMBER:,}, got {number:,}; for example seed-1.")
        return replace(self, seed=int(number))


def read_choice(text: str) -> Choice:
    """The player that a link writes. Raises `InputError` with one sentence where it is none."""
    if len(text) > LINK_LENGTH:
        raise InputError(f"A player takes at most {LINK_LENGTH:,} characters, got {len(text):,}.")
    asked, *words = text.split("~")
    model = models.resolved(asked)
    if model is None:
        raise InputError(models.why_not(asked) or f"There is no model “{asked[:60]}” here.")
    if why := why_not_playable(model):
        raise InputError(why)
    choice = Choice(model)
    for word in words:
        name, _, value = word.partition("-")
        if word in MASKS[1:]:
            choice = replace(choice, mask=word)
        elif name in _NUMBERS:
            choice = choice.with_number(name, _number(name, value))
        else:
            choice = replace(choice, changes=(*choice.changes, *filter(None, word.split(","))))
    n_tokens = choice.shape.vocab_size
    if choice.sampling.top_k > n_tokens:
        raise InputError(f"top_k must be at most {n_tokens}, the number of tokens; for example top_k-5.")
    try:
        return replace(choice, changes=tuple(intervention.text for intervention in choice.interventions()))
    except XformerError as error:
        raise InputError(str(error)) from None


def why_not_playable(model: str) -> str | None:
    """Why a model cannot be compared here, as one sentence; None where it can."""
    if why := models.usable(model):
        return why
    subject = models.subject(model)
    if not isinstance(subject, TaskModel):
        return f"The model {models.title_of(model)} was not trained here, and this screen compares those that were."
    if subject.shape.image:
        return f"The model {models.title_of(model)} reads images, and this screen steps through tokens; choose another one."
    return None


def _number(name: str, value: str) -> float:
    try:
        number = _NUMBERS[name](value)
    except ValueError:
        raise InputError(f"{name} must be a number, got “{value[:40]}”; for example {name}-1.") from None
    if abs(number) > LARGEST_NUMBER:
        raise InputError(f"{name} must be at most {LARGEST_NUMBER:,}; for example {name}-1.")
    return number
