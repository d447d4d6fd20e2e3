"""A model that goes on with a text on Compare, and how far it expected what was typed."""

from __future__ import annotations

from dataclasses import dataclass

from pages.shared import models, resources
from xformer.analysis.texts_apart import bits_per_character
from xformer.subjects import Subject


@dataclass(frozen=True)
class TextPlayer:
    """A model under a mask and changes."""

    letter: str
    model: str
    mask: str = resources.MASKS[0]
    changes: str = ""

    @property
    def subject(self) -> Subject:
        return models.subject(self.model)


def surprise(players: tuple[TextPlayer, TextPlayer], sources: list[tuple[int, ...]], text: str) -> str:
    """How far each expected what was typed, for each character; and whether tokens can be compared at all."""
    said = []
    for player, source in zip(players, sources, strict=True):
        run = resources.run(player.model, source, player.mask, player.changes)
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
