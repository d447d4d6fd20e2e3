"""What models of our own tasks read: symbols of a rule, the characters of a text, an image. The rule does the work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xformer.errors import InputError
from xformer.subjects.input import Input
from xformer.tasks.task import Example, Task


@dataclass(frozen=True)
class TaskInput(Input):
    """Symbols: numbers, digits, brackets, whatever a rule is about."""

    task: Task
    max_len: int

    @property
    def name(self) -> str:
        return self.task.config.name

    @property
    def does(self) -> str:
        return self.task.rule.does

    @property
    def typed(self) -> str:
        return self.task.rule.typed

    @property
    def default(self) -> str:
        return self.task.rule.default

    @property
    def missing(self) -> str:
        return self.task.rule.missing

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

    @property
    def replacements(self) -> range:
        return range(1, 1 + self.task.vocabulary.symbols)

    def scored(self, example: Example, look: str) -> tuple[Sequence[int], Sequence[int] | None]:
        """The tokens of the source without special ones."""
        n = len(example.source)
        if self.task.config.architecture == "decoder" and look == "answer":
            return self.task.answer_queries(n), range(n)  # the output that says the answer's i-th token is at n + i
        return range(n), None


@dataclass(frozen=True)
class TextInput(TaskInput):
    """The characters of a text: there is no right answer, and no end."""

    kind: ClassVar[str] = "text"
    one: ClassVar[str] = "character"
    many: ClassVar[str] = "characters"
    instead_of_an_answer: ClassVar[str] = "really comes next"
    goes_on: ClassVar[bool] = True

    def plain(self, tokens: Sequence[int]) -> str:
        """What is no character is left out."""
        alphabet = self.task.config.alphabet
        return "".join(alphabet[token - 1] for token in tokens if 1 <= token <= len(alphabet))

    def fitted(self, source: tuple[int, ...]) -> tuple[int, ...]:
        """The end of a text, as long as a model reads it: all of it, where it fits."""
        least, most = 0, len(source)  # that many fit; no more can
        while least < most:
            n = (least + most + 1) // 2
            if self._fits(source[-n:]):
                least = n
            else:
                most = n - 1
        return source[-least:] if least else source

    def scored(self, example: Example, look: str) -> tuple[Sequence[int], None]:
        """All of it is read, and all of it is asked for."""
        return range(min(example.stream.shape[1], example.labels.shape[1])), None

    def _fits(self, source: tuple[int, ...]) -> bool:
        try:
            self.task.example(list(source), max_len=self.max_len)
        except InputError:
            return len(source) < 2  # too short is another matter
        return True


@dataclass(frozen=True)
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
