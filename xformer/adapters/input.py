"""What a model reads, as a person types it: text in, the numbers of a source out, and back, and the words to speak of it.

A kind of input is one object here, and one file of `pages/shared/input_kinds/`, which asks for it and shows it, under `kind`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xformer.tasks.task import Example


class Input:
    """One kind of input. A subclass says at least how it is read and written, and what it is called."""

    kind: ClassVar[str] = "symbols"
    """Which file of the screens asks for it: "symbols", "text", "image"."""
    one: ClassVar[str] = "token"
    """What stands at a position, in a word."""
    many: ClassVar[str] = "tokens"
    instead_of_an_answer: ClassVar[str] = "nothing"
    """What stands in an answer's place where nobody knows what is right, in a few words."""
    goes_on: ClassVar[bool] = False
    """Whether there is no end to what the model says: it goes on with what it reads."""
    continues: ClassVar[int] = 32
    """How many tokens are shown of what it goes on with."""
    answers_itself: ClassVar[bool] = False
    """Whether what the unchanged model says takes the place of an answer that nobody knows."""
    sampled: ClassVar[str] = "sampled input"
    """What one of many is called that a model is tried on."""

    name: str
    """Inputs of one name are written alike, so that one may stand when another model is chosen."""
    does: str
    """What a person does and what the model then does, in one sentence: “Type numbers; it …”."""
    typed: str
    """What can be typed, in a few words."""
    default: str
    """What stands in the box at first."""
    missing: str = ""
    """Why nothing can be drawn at random, as one sentence; "" where it can."""
    replacements: range = range(0)
    """The tokens that one of the source can be replaced by."""

    def examples(self) -> dict[str, str]:
        """Inputs with a purpose, in the words of “See how the model …”."""
        return {}

    def read(self, text: str) -> tuple[int, ...]:
        """The source that was typed. Raises `InputError` with one plain sentence for anything else."""
        raise NotImplementedError

    def text(self, source: Sequence[int]) -> str:
        """What `read` reads as this source."""
        raise NotImplementedError

    def plain(self, tokens: Sequence[int]) -> str:
        """Tokens as the text that they are, to be read and not typed."""
        return self.text(tokens)

    def random(self, seed: int) -> str:
        """An input drawn from a seed, as it is typed."""
        return self.default

    def fitted(self, source: tuple[int, ...]) -> tuple[int, ...]:
        """As much of a source as the model reads of one that is too long; all of it where no part can stand for it."""
        return source

    def shortest(self) -> tuple[int, ...]:
        """A source that fits where nothing else does."""
        return self.read(self.default)

    def remark(self, source: Sequence[int]) -> str:
        """What makes a source unlike those that the model knows, as one sentence; "" when nothing does."""
        return ""

    def scored(self, example: Example, look: str) -> tuple[Sequence[int] | None, Sequence[int] | None]:
        """The positions whose attention tells what a head does, and those of another stream that it is held against.

        `look` is "answer", from the answer back to the source where they stand in one stream, or "source". None: all.
        """
        return None, None


class OpenText(Input):
    """A text of which nobody knows how it goes on."""

    kind: ClassVar[str] = "text"
    instead_of_an_answer: ClassVar[str] = "really comes next"
    goes_on: ClassVar[bool] = True
