"""What a model has to answer so that it can be read and drawn, whoever made it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from xformer.adapters.input import Input
from xformer.adapters.weights import Weights
from xformer.decoding import Step
from xformer.edits import AnyEdit
from xformer.model_shape import ModelShape
from xformer.tasks.task import Example
from xformer.trace import Trace


@runtime_checkable
class ModelAdapter(Protocol):
    """A model that is only read: any number of threads may ask the same one at once."""

    @property
    def name(self) -> str:
        """What a person calls it."""
        ...

    @property
    def input(self) -> Input:
        """What it reads, as a person types it."""
        ...

    @property
    def labels(self) -> tuple[str, ...]:
        """The text of each token of its vocabulary."""
        ...

    @property
    def shape(self) -> ModelShape:
        """Its sizes, and where its layers sit."""
        ...

    @property
    def weights(self) -> Weights:
        """What can be asked of its weights."""
        ...

    def frame(self, typed: str | Sequence[int]) -> Example:
        """An input as it is typed, or as tokens, laid out for the model with the answer that somebody knows.

        Raises `InputError` with one plain sentence when the model cannot read it.
        """
        ...

    def has_right_answer(self, example: Example) -> bool:
        """Whether what the model says to it can be right or wrong."""
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

    def heads_read(
        self, example: Example, trace: Trace, path: str, x: Float[Tensor, "part pos d_model"], side: Literal["q", "k"]
    ) -> Float[Tensor, "part head pos d_head"]:
        """The queries or keys that an attention layer makes of streams, everything else as in a run of `example`.

        Streams that need a gradient get one.

        Raises `UnavailableError` where they are out of reach.
        """
        ...

    def steps(
        self, example: Example, n: int | None = None, *, edits: Sequence[AnyEdit] = (), **how: Any
    ) -> Iterator[Step]:
        """What it says by itself, token by token: `n` tokens where it goes on with its input, else until its answer ends.

        `how` are a `sampling` and a `generator`, as `xformer.decode` takes them.

        Raises `UnavailableError` where it says nothing by itself.
        """
        ...

    def recording_bytes(self, example: Example) -> int:
        """Return about how many bytes it takes to record a run, from shapes alone."""
        ...

    def task_scores(self, trace: Trace, example: Example) -> dict[str, list[float]]:
        """How much each head does of what is needed here, 0 to 1, by the path of its layer; nothing where nobody knows."""
        ...
