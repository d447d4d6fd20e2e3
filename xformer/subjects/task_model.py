"""One of our transformers with the task it was made for: it knows its words, and mostly what is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Float, Int
from torch import Tensor

from xformer.edits import AnyEdit
from xformer.model import Transformer
from xformer.model_shape import ModelShape
from xformer.subjects.bare import BareModel
from xformer.tasks.task import Example, Task
from xformer.trace import Trace


@dataclass(frozen=True, eq=False)
class TaskModel:
    """A `Transformer` and its `Task`. Raises `ConfigError` where they do not fit each other."""

    model: Transformer
    task: Task
    name: str = "model"

    def __post_init__(self) -> None:
        self.task.check_fits(self.model.config)

    @property
    def labels(self) -> tuple[str, ...]:
        """The text of each token of the task."""
        return self.task.vocabulary.labels

    @property
    def shape(self) -> ModelShape:
        """Its sizes, and where its layers sit."""
        return self._bare.shape

    def frame(self, typed: str | Sequence[int]) -> Example:
        """A source as it is typed, "3 7 12 9", or as tokens, with its right answer. Raises `InputError` for anything else."""
        source = self.task.vocabulary.read(typed) if isinstance(typed, str) else list(typed)
        return self.task.example(source, max_len=self.model.config.max_len)

    def has_right_answer(self, example: Example) -> bool:
        """A text may go on in many ways, and nobody knows what a drawn image shows; all else is right or wrong."""
        return self.task.has_right_answer(example.source)

    @property
    def instead_of_an_answer(self) -> str:
        """Of a text the token that follows, of a drawn image what the unchanged model says."""
        return "said unchanged" if self.task.rule.is_image else "really comes next"

    def names(self, tokens: Int[Tensor, " pos"]) -> tuple[str, ...]:
        """The tokens as they are written, or the patches of an image."""
        return tuple(self.task.position_names(tokens.tolist()))

    def record(self, example: Example, *, edits: Sequence[AnyEdit] = (), keep: Sequence[str] = ("*",)) -> Trace:
        """Run it once; see `xformer.record`."""
        return self._bare.record(example, edits=edits, keep=keep)

    def unembed(self, stream: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocab"]:
        """Last norm (where there is one), then the output layer of the stack that predicts."""
        return self._bare.unembed(stream)

    def scored(self, example: Example, look: str) -> tuple[Sequence[int], Sequence[int] | None]:
        """The tokens of the source without special ones, the patches of an image, all of a text; see `Subject.scored`."""
        n = len(example.source)
        if self.task.rule.is_image:
            return range(1, 1 + self.task.n_patches), None  # the class token is left out
        if self.task.rule.is_open_ended:  # all of it is read, and all of it is asked for
            return range(min(example.stream.shape[1], example.labels.shape[1])), None
        if self.task.config.architecture == "decoder" and look == "answer":
            return self.task.answer_queries(n), range(n)  # the output that says the answer's i-th token is at n + i
        return range(n), None

    def task_scores(self, trace: Trace, example: Example) -> dict[str, list[float]]:
        """What the task needs; see `Task.head_scores`."""
        return self.task.head_scores(trace, example)

    @cached_property
    def _bare(self) -> BareModel:
        return BareModel(self.model, self.name)
