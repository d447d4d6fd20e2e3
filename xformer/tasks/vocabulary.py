"""The tokens of a task: what a person types, what the model reads, and what a label on a chart says."""

from __future__ import annotations

from dataclasses import dataclass

from xformer.config import TaskConfig
from xformer.tasks.framing import Specials
from xformer.tasks.rules import Rule, rule


@dataclass(frozen=True)
class Vocabulary:
    """0 for padding, the task's own tokens from 1 on, then the end and start tokens where the architecture has them."""

    labels: tuple[str, ...]
    special: Specials
    symbols: int
    """A source is made of the tokens 1 … `symbols`."""
    rule: Rule

    @classmethod
    def of(cls, config: TaskConfig) -> Vocabulary:
        of = rule(config)
        labels = list(of.labels) if of.is_image else ["pad", *of.labels]  # images are never padded
        place = {name: len(labels) + index for index, name in enumerate(of.special_names())}
        special = Specials(pad=0, end=place.get("end"), start=place.get("start"))
        return cls((*labels, *place), special, config.symbols, of)

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, text: str) -> list[int]:
        """The symbols in a text as the task's sources are typed: "3 7 12 9", "347+586", "(())", "1011".

        Raises `InputError` with one plain sentence for anything else.
        """
        return self.rule.read(text)

    def text(self, tokens: list[int]) -> str:
        """Tokens as a person would type them: `read` reads what this writes of a source."""
        if (whole := self.rule.written(tokens)) is not None:
            return whole
        typed = dict(enumerate(self.rule.typed_labels, start=0 if self.rule.is_image else 1))
        words = ""
        for before, token in zip([None, *tokens], tokens, strict=False):
            is_close = before is not None and all(1 <= one <= self.symbols for one in (before, token))
            words += ("" if before is None else self.rule.separator if is_close else " ") + typed.get(
                token, self.labels[token]
            )
        return words
