"""What a model has to answer so that it can be read and drawn, whoever made it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from xformer.edits import AnyEdit
from xformer.model_shape import ModelShape
from xformer.tasks.task import Example
from xformer.trace import Trace


@runtime_checkable
class Subject(Protocol):
    """A model that is only read: any number of threads may ask the same one at once."""

    @property
    def name(self) -> str:
        """What a person calls it."""
        ...

    @property
    def labels(self) -> tuple[str, ...]:
        """The text of each token of its vocabulary."""
        ...

    @property
    def shape(self) -> ModelShape:
        """Its sizes, and where its layers sit."""
        ...

    def frame(self, typed: str | Sequence[int]) -> Example:
        """An input as it is typed, or as tokens, laid out for the model with the answer that somebody knows.

        Raises `InputError` with one plain sentence when the model cannot read it.
        """
        ...

    def has_right_answer(self, example: Example) -> bool:
        """Whether what the model says to it can be right or wrong."""
        ...

    @property
    def instead_of_an_answer(self) -> str:
        """What stands in an answer's place where nobody knows what is right, in a few words."""
        ...

    def names(self, tokens: Int[Tensor, " pos"]) -> tuple[str, ...]:
        """What stands at each position of a stream, as a person reads it."""
        ...

    def record(self, example: Example, *, edits: Sequence[AnyEdit] = (), keep: Sequence[str] = ("*",)) -> Trace:
        """Run it once and keep what it computed. Raises `EditError` when an edit or a glob of `keep` fits nothing."""
        ...

    def unembed(self, stream: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocab"]:
        """The logits that a place of the stream would have if it were the last: its last norm, then the output layer."""
        ...

    def scored(self, example: Example, look: str) -> tuple[Sequence[int] | None, Sequence[int] | None]:
        """The positions whose attention tells what a head does, and those of another stream that it is held against.

        `look` is "answer", from the answer back to the source where they stand in one stream, or "source". None: all.
        """
        ...

    def task_scores(self, trace: Trace, example: Example) -> dict[str, list[float]]:
        """How much each head does of what is needed here, 0 to 1, by the path of its layer; nothing where nobody knows."""
        ...
