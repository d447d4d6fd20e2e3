"""The interface of every model that can be read and drawn, and of the inputs it accepts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from xformer.adapters.weights import Weights
from xformer.decoding import Step
from xformer.edits import AnyEdit
from xformer.model_shape import ModelShape
from xformer.tasks.task import Example
from xformer.trace import Trace


@runtime_checkable
class ModelAdapter(Protocol):
    """A read-only model. Any number of threads may use one adapter at once."""

    @property
    def name(self) -> str:
        """The name shown to people."""
        ...

    @property
    def input(self) -> Input:
        """The kind of input, as it is typed."""
        ...

    @property
    def labels(self) -> tuple[str, ...]:
        """The text of each token of the vocabulary."""
        ...

    @property
    def shape(self) -> ModelShape:
        """Sizes, and the sites of the layers."""
        ...

    @property
    def weights(self) -> Weights:
        """The weights, as far as they can be located."""
        ...

    def frame(self, typed: str | Sequence[int]) -> Example:
        """Lay an input out for the model.

        Args:
            typed: The input as text, or as token ids.

        Returns:
            The input with its right answer, where one is known.

        Raises:
            InputError: The model cannot read it.
        """
        ...

    def has_right_answer(self, example: Example) -> bool:
        """Whether a prediction for this example can be right or wrong."""
        ...

    def names(self, tokens: Int[Tensor, " pos"]) -> tuple[str, ...]:
        """The label of each position of a stream."""
        ...

    def record(self, example: Example, *, edits: Sequence[AnyEdit] = (), keep: Sequence[str] = ("*",)) -> Trace:
        """Run the model once and keep its activations.

        Raises:
            EditError: An edit or a glob of `keep` matches no activation.
        """
        ...

    def unembed(self, stream: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocab"]:
        """Logits of a residual stream state: the final norm, then the unembedding."""
        ...

    def heads_read(
        self, example: Example, trace: Trace, path: str, x: Float[Tensor, "part pos d_model"], side: Literal["q", "k"]
    ) -> Float[Tensor, "part head pos d_head"]:
        """The queries or keys that an attention layer computes from the streams `x`, otherwise as in a run of `example`.

        Differentiable with respect to `x`.

        Raises:
            UnavailableError: They cannot be computed for this model.
        """
        ...

    def steps(
        self, example: Example, n: int | None = None, *, edits: Sequence[AnyEdit] = (), **how: Any
    ) -> Iterator[Step]:
        """Generate token by token.

        Args:
            example: The prompt.
            n: The number of tokens for models without an end token; else generation stops at the end token.
            edits: Applied in every step.
            **how: `sampling` and `generator`, as for `xformer.decode`.

        Raises:
            UnavailableError: The model does not generate.
        """
        ...

    def recording_bytes(self, example: Example) -> int:
        """Estimate the memory of a recorded run in bytes, from shapes alone."""
        ...

    def task_scores(self, trace: Trace, example: Example) -> dict[str, list[float]]:
        """The task score of each head in [0, 1], by the path of its layer; empty for models without a task."""
        ...


class Input:
    """One kind of input. A subclass defines at least `read`, `text` and the names."""

    kind: ClassVar[str] = "symbols"
    """The kind of widget that asks for it: "symbols", "text", "image"."""
    one: ClassVar[str] = "token"
    """The unit at a position, singular."""
    many: ClassVar[str] = "tokens"
    reference_label: ClassVar[str] = "nothing"
    """The label of the reference token where no right answer is known."""
    goes_on: ClassVar[bool] = False
    """Whether generation has no end token."""
    continues: ClassVar[int] = 32
    """The default number of generated tokens."""
    answers_itself: ClassVar[bool] = False
    """Whether the prediction of the unchanged model serves as the reference."""
    sampled: ClassVar[str] = "sampled input"
    """The noun for one sampled input."""

    name: str
    """Inputs with the same name are interchangeable between models."""
    instruction: str
    """One sentence: what the visitor types and what the model returns."""
    typed: str
    """The accepted text, in a few words."""
    default: str
    """The initial text."""
    missing: str = ""
    """The reason why no input can be sampled, as one sentence; empty otherwise."""
    replacements: range = range(0)
    """The tokens that may replace one of the source."""

    def examples(self) -> dict[str, str]:
        """Example inputs by their purpose, which continues “See how the model …”."""
        return {}

    def read(self, text: str) -> tuple[int, ...]:
        """The source tokens of a typed text. Raises `InputError` for text that cannot be read."""
        raise NotImplementedError

    def text(self, source: Sequence[int]) -> str:
        """The inverse of `read`."""
        raise NotImplementedError

    def plain(self, tokens: Sequence[int]) -> str:
        """The tokens as readable text."""
        return self.text(tokens)

    def random(self, seed: int) -> str:
        """A sampled input, as text."""
        return self.default

    def fitted(self, source: tuple[int, ...]) -> tuple[int, ...]:
        """A source shortened to what the model reads, where a part of it makes sense."""
        return source

    def shortest(self) -> tuple[int, ...]:
        """A short valid source."""
        return self.read(self.default)

    def remark(self, source: Sequence[int]) -> str:
        """One sentence on how a source differs from the training data; empty if it does not."""
        return ""

    def scored(self, example: Example, look: str) -> tuple[Sequence[int] | None, Sequence[int] | None]:
        """The query positions over which a head's attention is scored, and the positions of another stream to compare with.

        `look` is "answer" (from the answer back to the source of the same stream) or "source". None means all positions.
        """
        return None, None


class OpenText(Input):
    """Text without a known continuation."""

    kind: ClassVar[str] = "text"
    reference_label: ClassVar[str] = "really comes next"
    goes_on: ClassVar[bool] = True
