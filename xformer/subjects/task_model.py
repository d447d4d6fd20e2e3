"""One of our transformers with the task it was made for: it knows its words, and mostly what is right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from xformer.continuation import continue_text
from xformer.decoding import GREEDY, Sampling, Step
from xformer.edits import AnyEdit
from xformer.model import Transformer
from xformer.model_shape import ModelShape
from xformer.subjects.bare import BareModel
from xformer.subjects.task_input import TaskInput, input_of
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

    @cached_property
    def _input(self) -> TaskInput:
        return input_of(self.task, self.model.config.max_len)

    @property
    def input(self) -> TaskInput:
        """What the task's inputs are."""
        return self._input

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
        source = list(self.input.read(typed) if isinstance(typed, str) else typed)
        return self.task.example(source, max_len=self.model.config.max_len)

    def has_right_answer(self, example: Example) -> bool:
        """A text may go on in many ways, and nobody knows what a drawn image shows; all else is right or wrong."""
        return self.task.has_right_answer(example.source)

    def names(self, tokens: Int[Tensor, " pos"]) -> tuple[str, ...]:
        """The tokens as they are written, or the patches of an image."""
        return tuple(self.task.position_names(tokens.tolist()))

    def record(self, example: Example, *, edits: Sequence[AnyEdit] = (), keep: Sequence[str] = ("*",)) -> Trace:
        """Run it once; see `xformer.record`."""
        return self._bare.record(example, edits=edits, keep=keep)

    def unembed(self, stream: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocab"]:
        """Last norm (where there is one), then the output layer of the stack that predicts."""
        return self._bare.unembed(stream)

    def steps(
        self,
        example: Example,
        n: int | None = None,
        *,
        sampling: Sampling = GREEDY,
        edits: Sequence[AnyEdit] = (),
        generator: torch.Generator | None = None,
    ) -> Iterator[Step]:
        """Its answer; or where it goes on with a text the `n` characters after it, an encoder-decoder's from what it reads."""
        options: dict[str, Any] = {"sampling": sampling, "edits": edits, "generator": generator}
        if not self.input.goes_on or n is None:
            return self._bare.steps(example, n, **options)
        prompt = example.stream if example.target is None else example.tokens
        return continue_text(self.model, prompt, n, **options)

    def check_fits(self, example: Example, allowed_bytes: int) -> None:
        """See `xformer.memory`."""
        self._bare.check_fits(example, allowed_bytes)

    def task_scores(self, trace: Trace, example: Example) -> dict[str, list[float]]:
        """What the task needs; see `Task.head_scores`."""
        return self.task.head_scores(trace, example)

    @cached_property
    def _bare(self) -> BareModel:
        return BareModel(self.model, self.name)
