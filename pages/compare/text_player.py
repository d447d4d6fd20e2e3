"""A model that goes on with a text on Compare, and how far it expected what was typed."""

from __future__ import annotations

from dataclasses import dataclass

from pages.shared import models, resources
from xformer.adapters import ModelAdapter
from xformer.adapters.inputs import TextWithGaps
from xformer.analysis.differences import bits_per_character, named
from xformer.interventions import parse
from xformer.reading import Reading


@dataclass(frozen=True)
class TextPlayer:
    """A model under a mask and changes."""

    letter: str
    model: str
    mask: str = resources.MASKS[0]
    changes: str = ""

    @property
    def subject(self) -> ModelAdapter:
        return models.subject(self.model)

    @property
    def title(self) -> str:
        """What it is called beside another one."""
        changed, changes = resources.mask_words(self.mask), parse(self.changes, self.subject.shape)
        changed += [changes[0].label] if len(changes) == 1 else [f"{len(changes)} changes"] if changes else []
        return ", ".join([f"{self.letter} · {models.title_of(self.model)}", *changed])

    def in_its_words(self, text: str, other: TextPlayer) -> str:
        """A text that was typed for another model: what is missing is written by each in its own way."""
        theirs, ours = other.subject.input, self.subject.input
        if not (isinstance(theirs, TextWithGaps) and isinstance(ours, TextWithGaps)):
            return text
        return text.replace(str(theirs.tokenizer.mask_token), str(ours.tokenizer.mask_token))

    def reading(self, source: tuple[int, ...]) -> Reading:
        """Its run on a text."""
        return resources.run(self.model, source, self.mask, self.changes)

    def named(self, reading: Reading) -> Reading:
        """The same run, as that of the model under its title."""
        return named(reading, self.title)


def surprise(players: tuple[TextPlayer, TextPlayer], sources: list[tuple[int, ...]], text: str) -> str:
    """How far each expected what was typed, for each character; and whether tokens can be compared at all."""
    said = []
    for player, source in zip(players, sources, strict=True):
        run = player.reading(source)
        if len(run.answer) < 1 or run.example.target is not None:
            continue
        n = len(text) - len(player.subject.input.plain(source[: len(source) - len(run.answer)]))
        if n > 0:
            said.append(f"{player.letter} {bits_per_character(run.loss, len(run.answer), n):.2f}")
    typed_text = (
        f"Bits for each character of what was typed, after its first token: {', '.join(said)}. " if said else ""
    )
    labels = [player.subject.labels for player in players]
    same = (
        "Both have the same tokens."
        if labels[0] == labels[1]
        else "They cut a text into different tokens, so what needs a common vocabulary, like the distance of two distributions "
        "over it, cannot be said."
    )
    return typed_text + same
