"""What models of our own tasks read: symbols of a rule, the characters of a text, an image. The rule does the work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xformer.adapters.input import Input, OpenText
from xformer.tasks.task import Example, Task


class TaskInput(Input):
    """Symbols: numbers, digits, brackets, whatever a rule is about."""

    def __init__(self, task: Task, max_len: int) -> None:
        rule = task.rule
        self.task, self.max_len, self.name = task, max_len, task.config.name
        self.does, self.typed, self.default, self.missing = rule.does, rule.typed, rule.default, rule.missing
        self.replacements = range(1, 1 + task.vocabulary.symbols)

    def examples(self) -> dict[str, str]:
        return self.task.rule.examples()

    def read(self, text: str) -> tuple[int, ...]:
        return tuple(self.task.vocabulary.read(text))

    def text(self, source: Sequence[int]) -> str:
        return self.task.vocabulary.text(list(source))

    def random(self, seed: int) -> str:
        return self.text(self.task.draw(seed))

    def shortest(self) -> tuple[int, ...]:
        return tuple(self.task.draw(0, size=self.task.config.min_len))

    def remark(self, source: Sequence[int]) -> str:
        return self.task.rule.remark(source)

    def scored(self, example: Example, look: str) -> tuple[Sequence[int], Sequence[int] | None]:
        """The tokens of the source without special ones."""
        n = len(example.source)
        if self.task.config.architecture == "decoder" and look == "answer":
            return self.task.answer_queries(n), range(n)  # the output that says the answer's i-th token is at n + i
        return range(n), None


class TextInput(OpenText, TaskInput):
    """The characters of a text: there is no right answer, and no end."""

    one: ClassVar[str] = "character"
    many: ClassVar[str] = "characters"

    def plain(self, tokens: Sequence[int]) -> str:
        """What is no character is left out."""
        alphabet = self.task.config.alphabet
        return "".join(alphabet[token - 1] for token in tokens if 1 <= token <= len(alphabet))

    def fitted(self, source: tuple[int, ...]) -> tuple[int, ...]:
        """The end of a text, as long as the model reads it; an encoder-decoder is given half of it on each side."""
        return source[-self.max_len * (2 if self.task.config.architecture == "encoder-decoder" else 1) :]

    def scored(self, example: Example, look: str) -> tuple[Sequence[int], None]:
        """All of it is read, and all of it is asked for."""
        return range(min(example.stream.shape[1], example.labels.shape[1])), None


class ImageInput(TaskInput):
    """The pixels of an image, read in patches."""

    kind: ClassVar[str] = "image"
    one: ClassVar[str] = "patch"
    many: ClassVar[str] = "patches"
    instead_of_an_answer: ClassVar[str] = "said unchanged"
    answers_itself: ClassVar[bool] = True
    sampled: ClassVar[str] = "test image"

    def scored(self, example: Example, look: str) -> tuple[Sequence[int], None]:
        """The patches: the class token is left out."""
        return range(1, 1 + self.task.n_patches), None


def input_of(task: Task, max_len: int) -> TaskInput:
    """What a model of a task reads, as far as it reads it."""
    rule = task.rule
    kind = ImageInput if rule.is_image else TextInput if rule.is_open_ended else TaskInput
    return kind(task, max_len)
