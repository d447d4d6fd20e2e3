"""One of our transformers with the task it was made for: it knows its words, and mostly what is right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from jaxtyping import Int
from torch import Tensor

from xformer.adapters.bare import BareModel
from xformer.adapters.task_input import TaskInput, input_of
from xformer.continuation import continue_text
from xformer.decoding import Step
from xformer.edits import AnyEdit
from xformer.model import Transformer
from xformer.tasks.task import Example, Task, batch_rows
from xformer.trace import Trace


@dataclass(frozen=True, eq=False, init=False)
class TaskModel(BareModel):
    """A `Transformer` and its `Task`. Raises `ConfigError` where they do not fit each other."""

    task: Task = field(kw_only=True)

    def __init__(self, model: Transformer, task: Task, name: str = "model") -> None:
        super().__init__(model, name)
        object.__setattr__(self, "task", task)
        task.check_fits(model.config)

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

    def frame(self, typed: Any) -> Example:
        """A source as it is typed, "3 7 12 9", or as tokens, with its right answer; several as a batch.

        Raises `InputError` for anything else.
        """
        if (rows := batch_rows(typed)) is not None:
            return Example.batch([self.frame(one) for one in rows], self.model.config.pad_token or 0)
        if isinstance(typed, Tensor):
            typed = typed.flatten().tolist()
        source = list(self.input.read(typed) if isinstance(typed, str) else typed)
        return self.task.example(source, max_len=self.model.config.max_len)

    def has_right_answer(self, example: Example) -> bool:
        """A text may go on in many ways, and nobody knows what a drawn image shows; all else is right or wrong."""
        return self.task.has_right_answer(example.source)

    def names(self, tokens: Int[Tensor, " pos"]) -> tuple[str, ...]:
        """The tokens as they are written, or the patches of an image."""
        return tuple(self.task.position_names(tokens.tolist()))

    def steps(
        self, example: Example, n: int | None = None, *, edits: Sequence[AnyEdit] = (), **how: Any
    ) -> Iterator[Step]:
        """Its answer; or where it goes on with a text the `n` characters after it, an encoder-decoder's from what it reads."""
        if not self.input.goes_on or n is None:
            return super().steps(example, n, edits=edits, **how)
        prompt = example.stream if example.target is None else example.tokens
        return continue_text(self.model, prompt, n, edits=edits, **how)

    def task_scores(self, trace: Trace, example: Example) -> dict[str, list[float]]:
        """What the task needs; see `Task.head_scores`."""
        return self.task.head_scores(trace, example)
