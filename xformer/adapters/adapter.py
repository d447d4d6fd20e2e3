"""What a model has to answer so that it can be read and drawn, whoever made it."""

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


class Input:
    """One kind of input. A subclass says at least how it is read and written, and what it is called."""

    kind: ClassVar[str] = "symbols"
    """Which file of the screens asks for it: "symbols", "text", "image"."""
    one: ClassVar[str] = "token"
    """What stands at a position, in a word."""
    many: ClassVar[str] = "tokens"
    reference_label: ClassVar[str] = "nothing"
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
    instruction: str
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
    reference_label: ClassVar[str] = "really comes next"
    goes_on: ClassVar[bool] = True
