"""The tokens of a task: what a person types, what the model reads, and what a label on a chart says."""

from __future__ import annotations

import re
from dataclasses import dataclass

from xformer.config import TaskConfig
from xformer.errors import InputError
from xformer.tasks.framing import Specials


@dataclass(frozen=True)
class Vocabulary:
    """Symbols 1 … n with 0 for padding, then the end and start tokens where the architecture has them."""

    labels: tuple[str, ...]
    special: Specials
    symbols: int

    @classmethod
    def of(cls, config: TaskConfig) -> Vocabulary:
        labels = ["pad", *(str(symbol) for symbol in range(1, config.symbols + 1))]
        end = start = None
        if config.end_token or config.architecture != "encoder":
            end = len(labels)
            labels.append("end")
        if config.architecture != "encoder":
            start = len(labels)
            labels.append("start")
        return cls(tuple(labels), Specials(pad=0, end=end, start=start), config.symbols)

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, text: str) -> list[int]:
        """The symbols in a text such as "3 7 12 9" (commas, semicolons and brackets are fine too).

        Raises `InputError` with one plain sentence for anything else.
        """
        words = [word for word in re.split(r"[\s,;\[\]()]+", text) if word]
        if not words:
            raise InputError(f"Type some numbers from 1 to {self.symbols}, for example {self._example()}.")
        tokens = []
        for word in words:
            if not re.fullmatch(r"[0-9]{1,9}", word) or not 1 <= int(word) <= self.symbols:
                start = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in word[:20])
                shown = start if len(word) <= 20 else start + "…"
                raise InputError(
                    f"This model reads numbers from 1 to {self.symbols}, and “{shown}” is not one; "
                    f"try {self._example()}."
                )
            tokens.append(int(word))
        return tokens

    def text(self, tokens: list[int]) -> str:
        """Tokens as a person would type them."""
        return " ".join(self.labels[token] for token in tokens)

    def _example(self) -> str:
        return " ".join(str(1 + (step * 5 + 2) % self.symbols) for step in range(4))
